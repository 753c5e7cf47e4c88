"""The reader: what ends it, what it tries again, holes, and fragments fetched from their store."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.journal.client import (
    AsyncClient,
    BrokerGoneError,
    JournalError,
    OffsetJumpError,
    ProtocolError,
    Reader,
    UnauthenticatedError,
    backoff,
)
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.protocol import Header, ReadResponse, Route, Status
from penstock.journal.tokens import ValidationError
from penstock.log.commitlog import journal_spec

from .brokers import until
from .client_servers import JOURNAL, AbortError, MemoryBroker, chunk, metadata, not_yet, run

GONE = AbortError(grpc.StatusCode.UNAVAILABLE)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "DELAYS", (0.005,) * 7)


def refused(value: int) -> ReadResponse:
    response = ReadResponse(header=Header(route=Route(primary=-1)))
    response.status = value  # type: ignore[assignment]
    return response


async def everything(reader: Reader) -> list[tuple[int, bytes]]:
    return [piece async for piece in reader]


def test_the_waits_are_those_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [backoff.delay(attempt) for attempt in range(1, 10)] == [
        0.05, 0.05, 0.1, 0.1, 1.0, 1.0, 5.0, 5.0, 5.0
    ]  # fmt: skip


def test_a_broken_read_goes_on_where_it_had_come_to() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.content += b"0123456789"
            broker.reads.extend(
                [
                    [GONE],
                    [metadata(0, 0, 10), chunk(0, b"0123"), GONE],
                    [refused(Status.INSUFFICIENT_JOURNAL_BROKERS)],
                    [AbortError(grpc.StatusCode.UNKNOWN)],
                    [metadata(4, 0, 10), chunk(4, b"45")],  # ended by the broker, as when it shuts down
                    [],
                ]
            )
            reader = client.read(JOURNAL)
            assert await everything(reader) == [(0, b"0123"), (4, b"45"), (6, b"6789")]
            assert [request.offset for request in broker.read_requests] == [0, 0, 4, 4, 4, 6, 6]
            assert reader.offset == reader.write_head == 10
            assert reader.last_error is None
            assert reader.last_jump is None

    run(test())


@pytest.mark.parametrize("value", [value for value in Status.values() if value != Status.OK])
def test_of_all_statuses_only_these_end_a_reader(value: int) -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.content += b"content"
            broker.reads.append([refused(value)])
            reader = client.read(JOURNAL)
            if value == Status.OFFSET_NOT_YET_AVAILABLE:
                assert await everything(reader) == []
            elif value == Status.SUSPENDED:
                with pytest.raises(JournalError, match="SUSPENDED"):
                    await everything(reader)
            else:
                assert await everything(reader) == [(0, b"content")]

    run(test())


def test_a_journal_that_is_not_found_five_times_in_a_row_is_not_there() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.content += b"content"
            missing = [refused(Status.JOURNAL_NOT_FOUND)]
            broker.reads.extend([missing] * 4)
            assert await everything(client.read(JOURNAL)) == [(0, b"content")]
            broker.read_requests.clear()
            broker.reads.extend([missing] * 9)
            with pytest.raises(JournalError, match="JOURNAL_NOT_FOUND"):
                await everything(client.read(JOURNAL))
            assert len(broker.read_requests) == 5

    run(test())


def test_a_refused_token_and_a_malformed_request_end_it_at_once() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.reads.append([AbortError(grpc.StatusCode.UNAUTHENTICATED)])
            with pytest.raises(UnauthenticatedError):
                await everything(client.read(JOURNAL))
            with pytest.raises(ValidationError, match="EndOffset"):
                client.read(JOURNAL, 10, 5)
            with pytest.raises(ValidationError, match="Journal"):
                client.read("/rooted")

    run(test())


def test_an_outage_ends_it_only_at_its_limit() -> None:
    async def test() -> None:
        async with MemoryBroker() as gone:
            pass
        async with AsyncClient(gone.address) as client:
            reader = client.read(JOURNAL, outage_limit=0.2)
            with pytest.raises(BrokerGoneError):
                await everything(reader)
            assert isinstance(reader.last_error, BrokerGoneError)

    run(test())


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ([metadata(5, 0, 10), chunk(4, b"x")], "offset 4 after 5"),
        ([metadata(4, 0, 10)], "offset 4 after 5"),
        ([metadata(5, 0, 10), chunk(5, b"xx"), chunk(6, b"x")], "offset 6 after 7"),
        ([metadata(5, 6, 10)], "offset 5 in a fragment from 6 to 10"),
        ([metadata(12, 0, 10)], "offset 12 in a fragment"),
        ([ReadResponse(offset=5, content=b"x", header=Header())], "content together with"),
        ([ReadResponse(offset=5, write_head=10)], "offset 5, but no fragment"),
        ([metadata(5, 0, 10), chunk(5, b"much more than asked for")], "beyond 9"),
    ],
)
def test_nonsense_is_refused(answers: list[ReadResponse], complaint: str) -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.reads.append(answers)
            with pytest.raises(ProtocolError, match=complaint):
                await everything(client.read(JOURNAL, 5, 9))

    run(test())


def test_a_hole_is_noted_or_raised_once_and_then_read_across() -> None:
    answers = [metadata(0, 0, 3), chunk(0, b"abc"), metadata(10, 10, 13), chunk(10, b"xyz"), not_yet(13, 13)]

    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.reads.append(answers)
            reader = client.read(JOURNAL)
            assert await everything(reader) == [(0, b"abc"), (10, b"xyz")]
            assert reader.last_jump is not None
            assert (reader.last_jump.begin, reader.last_jump.end) == (3, 10)

            broker.reads.append(answers)
            reader = client.read(JOURNAL, raise_jumps=True)
            assert await anext(reader) == (0, b"abc")
            with pytest.raises(OffsetJumpError, match="bytes 3 to 10 are gone"):
                await anext(reader)
            assert await everything(reader) == [(10, b"xyz")]

            # From the write head, wherever that is, is no jump.
            broker.reads.append(answers[2:])
            reader = client.read(JOURNAL, -1)
            assert await everything(reader) == [(10, b"xyz")]
            assert reader.last_jump is None

    run(test())


def test_a_blocking_reader_follows_the_embedded_broker_across_fragments(broker: EmbeddedBroker) -> None:
    async def test() -> None:
        async with AsyncClient(broker.address) as client:
            await client.create(journal_spec(JOURNAL, 1024, {}))
            reader = client.read(JOURNAL, 0, 6000, block=True)
            reading = asyncio.create_task(everything(reader))
            for number in range(10):
                await client.append(JOURNAL, b"%d" % number * 600)
            pieces = await reading
            assert b"".join(piece for _, piece in pieces) == b"".join(b"%d" % n * 600 for n in range(10))
            async with client.read(JOURNAL, -1, block=True) as waiting:
                next_piece = asyncio.create_task(anext(waiting))
                await asyncio.sleep(0.05)
                await client.append(JOURNAL, b"later")
                assert await next_piece == (6000, b"later")

    run(test())


# Fragments from their store.


@dataclass
class Shelf:
    """A web server with files; says what was asked for."""

    url: str = ""
    files: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    accepted: list[tuple[str, str]] = field(default_factory=list)


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.partition("?")[0]
            shelf.accepted.append((name, self.headers["Accept-Encoding"]))
            if name not in shelf.files:
                self.send_error(404)
                return
            content, encoding = shelf.files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            if encoding:
                self.send_header("Content-Encoding", encoding)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        shelf.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield shelf
        server.shutdown()
        thread.join()


CONTENT = bytes(range(256)) * 4000


@pytest.mark.parametrize(
    ("codec", "stored", "encoding", "asked"),
    [
        ("NONE", CONTENT, "", "identity"),
        ("GZIP", gzip.compress(CONTENT[:1000]) + gzip.compress(CONTENT[1000:]), "", "gzip"),
        ("GZIP", gzip.compress(CONTENT), "gzip", "gzip"),
        ("GZIP_OFFLOAD_DECOMPRESSION", gzip.compress(CONTENT), "gzip", "identity"),
        ("GZIP_OFFLOAD_DECOMPRESSION", CONTENT, "", "identity"),
    ],
    ids=["as it is", "two members", "told by the store", "packed after all", "unpacked by the store"],
)
def test_a_stored_fragment_is_fetched_unpacked_and_cut(
    shelf: Shelf, codec: str, stored: bytes, encoding: str, asked: str
) -> None:
    shelf.files["/fragment"] = (stored, encoding)
    begin, end = 100, 100 + len(CONTENT)

    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            url = f"{shelf.url}/fragment?signature=secret"
            broker.reads.append([metadata(5000, begin, end, url=url, codec=codec)])
            broker.reads.append([metadata(end, end, end + 3), chunk(end, b"abc"), not_yet(end + 3, end + 3)])
            pieces = await everything(client.read(JOURNAL, 5000, direct=True))
            assert pieces[0][0] == 5000
            assert b"".join(piece for _, piece in pieces) == CONTENT[4900:] + b"abc"
            assert [request.do_not_proxy for request in broker.read_requests] == [True, True]
            assert shelf.accepted == [("/fragment", asked)]

            broker.reads.append([metadata(5000, begin, end, url=url, codec=codec)])
            pieces = await everything(client.read(JOURNAL, 5000, 6000, direct=True))
            assert b"".join(piece for _, piece in pieces) == CONTENT[4900:5900]

    run(test())


@pytest.mark.parametrize(
    "stored",
    [None, CONTENT[:-1], CONTENT + b"x", b""],
    ids=["missing", "too short", "too long", "empty"],
)
def test_where_the_store_fails_the_broker_is_asked(
    shelf: Shelf, stored: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if stored is not None:
        shelf.files["/fragment"] = (stored, "")

    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.content += CONTENT
            url = f"{shelf.url}/fragment?signature=secret"
            broker.reads.append([metadata(0, 0, len(CONTENT), url=url)])
            pieces = await everything(client.read(JOURNAL, direct=True))
            assert b"".join(piece for _, piece in pieces) == CONTENT
            assert [request.do_not_proxy for request in broker.read_requests][:2] == [True, False]

    run(test())
    assert "asking the broker" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    "url", ["file:///../outside", "file:///%2e%2e/outside", "file:///missing", "ftp://x/y"]
)
def test_files_are_read_below_the_root_and_nowhere_else(tmp_path: Path, url: str) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a/fragment").write_bytes(b"inside")
    (tmp_path / "outside").write_bytes(b"secret")

    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.content += b"broker"
            broker.reads.append([metadata(0, 0, 6, url="file:///a/fragment")])
            assert await everything(client.read(JOURNAL, 0, 6, direct=True, file_root=root)) == [
                (0, b"inside")
            ]
            for given in (root, None):
                broker.reads.append([metadata(0, 0, 6, url=url)])
                reader = client.read(JOURNAL, 0, 6, direct=True, file_root=given)
                assert await everything(reader) == [(0, b"broker")]

    run(test())


def test_a_broker_that_has_not_got_the_journal_is_asked_to_pass_the_read_on() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.content += b"content"
            broker.reads.append([refused(Status.NOT_JOURNAL_BROKER)])
            assert await everything(client.read(JOURNAL, direct=True)) == [(0, b"content")]
            assert [request.do_not_proxy for request in broker.read_requests] == [True, False]

    run(test())


def test_a_reader_that_is_cancelled_while_it_fetches_leaves_nothing_behind(shelf: Shelf) -> None:
    shelf.files["/fragment"] = (CONTENT, "")

    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            broker.reads.append([metadata(0, 0, len(CONTENT), url=f"{shelf.url}/fragment")])
            reader = client.read(JOURNAL, direct=True)
            task = asyncio.create_task(everything(reader))
            await until(lambda: bool(shelf.accepted))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(test())
