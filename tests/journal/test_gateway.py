"""Journals over HTTP: what each request gives, and to whom (reference, 21)."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator

import pytest

from penstock.base.errors import PenstockError
from penstock.journal.auth import KeyedAuthorizer, bearer, parse_keys, sign
from penstock.journal.claims import EVERYTHING, Capability, Claims
from penstock.journal.gateway_journals import PUT_CHUNK
from penstock.journal.labels import format_selector, parse_selector
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    ReadResponse,
    Status,
)
from penstock.journal.tokens import ValidationError

from .gateways import (
    HEADER,
    NO_ROUTE,
    FakeService,
    answers,
    browsing,
    chunk,
    connected,
    exchange,
    in_loop,
    metadata,
    serving,
)

MAX = 9223372036854775807
KEYS = parse_keys("c2VjcmV0")


def _token(capability: Capability, selector: str = "") -> dict[str, str]:
    claims = Claims(capability, parse_selector(selector))
    return {"Authorization": bearer(sign(KEYS, claims, now=time.time(), lifetime=3600))}


def _keyed() -> KeyedAuthorizer:
    return KeyedAuthorizer(KEYS)


def test_GET_streams_content_and_says_in_a_trailer_why_it_ended() -> None:
    async def test() -> None:
        service = FakeService()
        service.to_read = lambda: answers(metadata(), chunk(150, b"hello"), chunk(155, b", world"))
        async with serving(service) as port:
            answer = await exchange(
                port, b"GET /a/journal?offset=150 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
        head, _, body = answer.partition(b"\r\n\r\n")
        lines = head.decode("ascii").split("\r\n")
        assert lines[0] == "HTTP/1.1 206 Partial Content"
        headers = dict(line.split(": ", 1) for line in lines[1:])
        assert (
            headers.items()
            >= {
                "X-Fragment-Name": "0000000000000064-00000000000000c8-000102030405060708090a0b0c0d0e0f10111213.sz",
                "X-Fragment-Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT",
                "X-Fragment-Location": "https://bucket.test/x?signature=y",
                "Content-Range": f"bytes 150-{MAX}/{MAX}",
                "X-Write-Head": "200",
                "X-Route-Token": 'members { zone: "zone-\\303\\244" suffix: "broker-1" } '
                'endpoints: "http://broker.test:8080"',
                "Location": "http://broker.test:8080/a/journal",
                "Trailer": "X-Close-Error",
                "Transfer-Encoding": "chunked",
            }.items()
        )
        assert body == (b"5\r\nhello\r\n7\r\n, world\r\n0\r\nX-Close-Error: broker terminated RPC\r\n\r\n")
        (request, claims), *_ = service.reads
        assert (request.journal, request.offset, request.block) == ("a/journal", 150, False)
        assert claims is EVERYTHING

    in_loop(test)


@pytest.mark.parametrize(
    "last, reason",
    [
        (metadata(155, status=Status.OFFSET_NOT_YET_AVAILABLE, header=False), "OFFSET_NOT_YET_AVAILABLE"),
        (metadata(156, header=False), "offset jump"),
        (chunk(154, b"again"), "offset jump"),
        (PenstockError("the disk\r\nX-Evil: is\ngone\u2028ä"), "the disk X-Evil: is gone"),
        (metadata(0, status=Status.SUSPENDED, header=False), "SUSPENDED"),
    ],
)
def test_a_body_ends_where_its_bytes_no_longer_adjoin(last: ReadResponse | Exception, reason: str) -> None:
    async def test() -> None:
        service = FakeService()
        service.to_read = lambda: answers(metadata(), chunk(150, b"hello"), last, chunk(155, b"never"))
        async with serving(service) as port:
            answer = await exchange(
                port, b"GET /a/journal HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
        assert answer.endswith(b"5\r\nhello\r\n0\r\nX-Close-Error: " + reason.encode() + b"\r\n\r\n")
        assert service.read_closed.is_set()

    in_loop(test)


def test_a_metadata_message_between_adjoining_chunks_does_not_end_a_body() -> None:
    async def test() -> None:
        service = FakeService()
        service.to_read = lambda: answers(
            metadata(), chunk(150, b"one"), metadata(153, header=False), chunk(153, b"two")
        )
        async with browsing(service) as client:
            # Twice, so that the trailers of the first are seen not to be in the way of the second.
            for _ in range(2):
                async with client.get("/a/journal") as response:
                    assert await response.read() == b"onetwo"

    in_loop(test)


def test_a_connection_goes_on_after_trailers() -> None:
    async def test() -> None:
        service = FakeService()
        service.to_read = lambda: answers(metadata(), chunk(150, b"hello"))
        async with serving(service) as port, connected(port) as client:
            for _ in range(3):
                await client.send(b"GET /a/journal HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert "206" in await client.head()
                assert await client.reader.readuntil(b"X-Close-Error: broker terminated RPC\r\n\r\n")

    in_loop(test)


def test_HTTP_1_0_gets_the_bare_body() -> None:
    async def test() -> None:
        service = FakeService()
        service.to_read = lambda: answers(metadata(), chunk(150, b"hello"), chunk(155, b", world"))
        async with serving(service) as port:
            answer = await exchange(port, b"GET /a/journal HTTP/1.0\r\nHost: localhost\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"206" in head
        assert b"Trailer" not in head
        assert body == b"hello, world"

    in_loop(test)


def test_HEAD_asks_for_metadata_only() -> None:
    async def test() -> None:
        service = FakeService()
        async with serving(service) as port, connected(port) as client:
            await client.send(b"HEAD /a/journal?offset=-1&block=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = await client.head()
            assert head.startswith("HTTP/1.1 206 ")
            assert f"Content-Range: bytes 150-{MAX}/{MAX}\r\n" in head
            await client.send(b"HEAD /a/journal HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert (await client.rest()).startswith(b"HTTP/1.1 206 ")
        request = service.reads[0][0]
        assert (request.metadata_only, request.offset, request.block) == (True, -1, True)

    in_loop(test)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "status, code",
    [
        (Status.JOURNAL_NOT_FOUND, 404),
        (Status.INSUFFICIENT_JOURNAL_BROKERS, 503),
        (Status.OFFSET_NOT_YET_AVAILABLE, 416),
        (Status.NOT_ALLOWED, 500),
        (Status.SUSPENDED, 500),
        (Status.NOT_JOURNAL_BROKER, 500),
    ],
)
def test_a_read_that_is_not_ok_has_a_code_of_HTTP(method: str, status: Status, code: int) -> None:
    async def test() -> None:
        service = FakeService()
        service.to_read = lambda: answers(metadata(7, status=status))
        async with browsing(service) as client, client.request(method, "/a/journal") as response:
            assert response.status == code
            assert await response.text() == (Status.Name(status) if method == "GET" else "")
            assert response.headers["X-Write-Head"] == "200"
            assert "Content-Range" not in response.headers

    in_loop(test)


def test_a_journal_without_a_primary_has_no_location() -> None:
    async def test() -> None:
        service = FakeService()
        missing = ReadResponse(status=Status.JOURNAL_NOT_FOUND, header=NO_ROUTE)
        service.to_read = lambda: answers(missing)
        async with browsing(service) as client, client.get("/a/journal") as response:
            assert response.headers["X-Route-Token"] == "primary: -1"
            assert "Location" not in response.headers

    in_loop(test)


@pytest.mark.parametrize(
    "error, code, body",
    [
        (PenstockError("no replica"), 500, "no replica"),
        (ValidationError("too big", field="Offset"), 400, "Offset: too big"),
        (None, 500, "broker terminated RPC"),
    ],
)
def test_a_read_that_fails_at_once_tells_why(error: Exception | None, code: int, body: str) -> None:
    async def test() -> None:
        service = FakeService()
        service.to_read = lambda: answers(error) if error else answers()
        async with browsing(service) as client, client.get("/a/journal") as response:
            assert (response.status, await response.text()) == (code, body)

    in_loop(test)


def test_what_should_not_happen_is_not_told_to_clients() -> None:
    async def test() -> None:
        service = FakeService()
        service.to_read = lambda: answers(metadata(), RuntimeError("internals"))
        service.append_error = RuntimeError("internals")
        async with serving(service) as port:
            broken = await exchange(
                port, b"GET /a/journal HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
            failed = await exchange(
                port, b"PUT /a/journal HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
            )
        assert b"internals" not in broken + failed
        assert not broken.endswith(b"0\r\n\r\n"), "a client could take the body for whole"
        assert b" 500 " in failed

    in_loop(test)


@pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "SEARCH"])
def test_other_methods_are_refused(method: str) -> None:
    async def test() -> None:
        service = FakeService()
        async with browsing(service) as client, client.request(method, "/a/journal") as response:
            assert response.status == 400
            assert "expected GET, HEAD or PUT" in await response.text()
        assert service.untouched

    in_loop(test)


@pytest.mark.parametrize(
    ("query", "offset", "block"),
    [
        ("Offset=1&BLOCK=t", 1, True),
        ("offset=&block=on", 0, True),
        ("block", 0, False),
        ("offset=-1&block=", -1, False),
    ],
)
def test_arguments_are_read_as_by_the_original(query: str, offset: int, block: bool) -> None:
    async def test() -> None:
        service = FakeService()
        async with browsing(service) as client, client.get(f"/a/journal?{query}") as response:
            assert response.status == 206
        ((request, _),) = service.reads
        assert (request.offset, request.block) == (offset, block)

    in_loop(test)


@pytest.mark.parametrize(
    "query",
    [
        "foo=1",
        "offset=x",
        "offset=1.5",
        "offset=0x10",
        "offset=9223372036854775808",
        "offset=-2",
        "offset=1&offset=2",
        "offset=1&Offset=2",
        "offset=&offset=2",
        "block=maybe",
        "block=ON",
        "offset=1&endOffset=2",
        "&".join(["block=true"] * 50),
    ],
)
def test_arguments_that_are_unknown_or_wrong_are_refused(query: str) -> None:
    async def test() -> None:
        service = FakeService()
        async with browsing(service) as client:
            for method in ("GET", "HEAD", "PUT"):
                async with client.request(method, f"/a/journal?{query}") as response:
                    assert response.status == 400
        assert service.untouched

    in_loop(test)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/abc",
        "/../x/y",
        "/../../etc/passwd",
        "/a/../../b/c",
        "/a/b/../c",
        "/a//b/c",
        "//a/b/c",
        "/a/b/c/",
        "/./a/b",
        "/%2e%2e/x/y",
        "/%2E%2E%2Fx",
        "/a%2fb/c",
        "/a%2Fjournal",
        "/a/%zz/c",
        "/a/journal%",
        "/a/%00/b",
        "/a/%ff/b",
        "/a/\xff/b",
        "/a/jour%20nal",
        "/a/journal;",
        "/a/journal;../x",
        "/a/journal#x",
        "/" + "x" * 513,
        "http://elsewhere/a/journal",
        "*",
        "a/journal",
    ],
)
def test_names_that_are_not_of_journals_reach_nothing(path: str) -> None:
    async def test() -> None:
        service = FakeService()
        async with serving(service) as port:
            for method in ("GET", "HEAD", "PUT"):
                line = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                answer = await exchange(port, line.encode("latin-1"))
                assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")), answer
        assert service.untouched

    in_loop(test)


@pytest.mark.parametrize(
    "path, journal",
    [
        ("/a/journal;meta/data", "a/journal;meta/data"),
        ("/a/%6aournal", "a/journal"),
        ("/a/gr%C3%B6%C3%9Fe=1+2", "a/größe=1+2"),
        ("/a/100%25", "a/100%"),
        ("/v1/journals", "v1/journals"),
    ],
)
def test_names_are_decoded_once(path: str, journal: str) -> None:
    async def test() -> None:
        service = FakeService()
        async with serving(service) as port:
            line = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            answer = await exchange(port, line.encode())
        assert answer.startswith(b"HTTP/1.1 206 ")
        assert service.reads[0][0].journal == journal
        location = next(line for line in answer.split(b"\r\n") if line.startswith(b"Location: "))
        assert location.isascii()

    in_loop(test)


async def _pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def test_PUT_appends_its_body_as_one_transaction() -> None:
    async def test() -> None:
        service = FakeService()
        body = bytes(range(256)) * 16384
        async with browsing(service) as client:
            for data in (body, _pieces(body[:1], body[1:7], body[7:])):
                service.appended.clear()
                service.committed = False
                async with client.put("/a/journal", data=data) as response:
                    assert response.status == 204
                    assert await response.read() == b""
                    assert response.headers["X-Commit-Begin"] == "100"
                    assert response.headers["X-Commit-End"] == "200"
                    assert response.headers["X-Commit-SHA1-Sum"] == bytes(range(20)).hex()
                    assert response.headers["X-Write-Head"] == "200"
                    assert response.headers["Location"] == "http://broker.test:8080/a/journal"
                    assert response.headers["X-Route-Token"]
                first, *contents, last = service.appended
                assert (first, last) == (AppendRequest(journal="a/journal"), AppendRequest())
                assert b"".join(request.content for request in contents) == body
                assert all(0 < len(request.content) <= PUT_CHUNK for request in contents)
                assert service.committed

    in_loop(test)


def test_an_empty_PUT_is_a_barrier() -> None:
    async def test() -> None:
        service = FakeService()
        async with browsing(service) as client, client.put("/a/journal") as response:
            assert response.status == 204
        assert service.appended == [AppendRequest(journal="a/journal"), AppendRequest()]

    in_loop(test)


def test_a_compressed_body_is_appended_as_it_came() -> None:
    async def test() -> None:
        service = FakeService()
        content = gzip.compress(b"hello" * 1000)
        async with browsing(service) as client:
            headers = {"Content-Encoding": "gzip"}
            async with client.put("/a/journal", data=content, headers=headers) as response:
                assert response.status == 204
        assert b"".join(request.content for request in service.appended) == content

    in_loop(test)


@pytest.mark.parametrize(
    "status", [Status.JOURNAL_NOT_FOUND, Status.NOT_ALLOWED, Status.INSUFFICIENT_JOURNAL_BROKERS]
)
def test_an_append_that_is_not_ok_is_always_500(status: Status) -> None:
    async def test() -> None:
        service = FakeService()
        service.append_response = AppendResponse(status=status, header=HEADER)
        async with browsing(service) as client, client.put("/a/journal", data=b"hello") as response:
            assert (response.status, await response.text()) == (500, Status.Name(status))
            assert "X-Commit-Begin" not in response.headers

    in_loop(test)


def test_the_gateway_follows_a_journal_as_it_grows() -> None:
    async def test() -> None:
        service = FakeService()
        more: asyncio.Queue[ReadResponse] = asyncio.Queue()

        async def follow() -> AsyncIterator[ReadResponse]:
            yield metadata()
            while True:
                yield await more.get()

        service.to_read = follow
        async with serving(service) as port, connected(port) as client:
            await client.send(b"GET /a/journal?block=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert "206" in await client.head()  # before there is any content
            for offset, content in ((150, b"one"), (153, b"two")):
                more.put_nowait(chunk(offset, content))
                assert await client.reader.readexactly(8) == b"3\r\n" + content + b"\r\n"
            assert service.reads[0][0].block
            client.abort()
            await service.read_closed.wait()

    in_loop(test)


# Authorization: the caller's own, for every request (reference, 24, quirk 1).


@pytest.mark.parametrize(
    "method, path",
    [
        ("GET", "/a/journal"),
        ("HEAD", "/a/journal"),
        ("PUT", "/a/journal"),
        ("POST", "/v1/journals/list"),
        ("POST", "/v1/journals/read"),
    ],
)
def test_with_keys_nothing_is_served_without_a_good_token(method: str, path: str) -> None:
    needed = {"PUT": Capability.APPEND}.get(method, Capability.READ)
    if path.endswith("list"):
        needed = Capability.LIST
    data = b'{"journal": "a/journal"}' if path.endswith("read") else b""

    async def test() -> None:
        service = FakeService()
        async with browsing(service, _keyed()) as client:
            for headers in (
                {},
                {"Authorization": "Bearer nonsense"},
                {"Authorization": "Basic eDp5"},
                _token(Capability.ALL & ~needed),
            ):
                async with client.request(method, path, headers=headers, data=data) as response:
                    assert response.status == 401
                    assert response.headers["WWW-Authenticate"] == "Bearer"
            assert service.untouched
            headers = _token(needed, "name=a/journal")
            async with client.request(method, path, headers=headers, data=data) as response:
                assert response.status in (200, 204, 206)
        given = [claims for _, claims in (*service.reads, *service.lists)] + service.appends
        assert [claims.capability for claims in given] == [needed]
        assert format_selector(given[0].selector) == "name=a/journal"
        assert given[0].expires == pytest.approx(time.time() + 3600, abs=60)

    in_loop(test)


def test_the_reason_of_a_refusal_is_told() -> None:
    async def test() -> None:
        async with browsing(FakeService(), _keyed()) as client:
            async with client.put("/a/journal", headers=_token(Capability.READ)) as response:
                assert await response.text() == "authorization is missing required APPEND capability"
            async with client.get("/a/journal") as response:
                assert await response.text() == "missing or empty Authorization token"

    in_loop(test)


def test_two_authorizations_are_none() -> None:
    async def test() -> None:
        service = FakeService()
        token = _token(Capability.ALL)["Authorization"]
        async with serving(service, _keyed()) as port:
            twice = f"Authorization: {token}\r\nAuthorization: {token}\r\n"
            lines = f"GET /a/journal HTTP/1.1\r\nHost: localhost\r\n{twice}Connection: close\r\n\r\n"
            answer = await exchange(port, lines.encode())
        assert b" 400 " in answer.partition(b"\r\n")[0]
        assert service.untouched

    in_loop(test)


def test_a_client_that_asks_first_is_invited_only_if_it_is_authorized() -> None:
    async def test() -> None:
        service = FakeService()
        ask = "PUT /a/journal HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n"
        async with serving(service, _keyed()) as port:
            async with connected(port) as client:
                await client.send(f"{ask}\r\n".encode())
                assert (await client.head()).startswith("HTTP/1.1 401 ")
            assert service.untouched
            async with connected(port) as client:
                token = _token(Capability.APPEND)["Authorization"]
                await client.send(f"{ask}Authorization: {token}\r\n\r\n".encode())
                assert await client.head() == "HTTP/1.1 100 Continue\r\n\r\n"
                await client.send(b"hello")
                assert (await client.head()).startswith("HTTP/1.1 204 ")
        assert service.committed

    in_loop(test)


def test_a_read_ends_with_the_token_it_was_allowed_by() -> None:
    async def waits() -> AsyncIterator[ReadResponse]:
        yield metadata()
        yield chunk(150, b"hello")
        await asyncio.sleep(60)

    async def test() -> None:
        service = FakeService()
        service.to_read = waits
        claims = Claims(Capability.READ, parse_selector(""))
        token = bearer(sign(KEYS, claims, now=time.time() - 3599, lifetime=3600))
        async with serving(service, _keyed()) as port:
            lines = f"GET /a/journal?block=true HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n"
            answer = await exchange(port, f"{lines}Connection: close\r\n\r\n".encode())
        assert b" 206 " in answer.partition(b"\r\n")[0]
        assert b"hello" in answer

    in_loop(test)
