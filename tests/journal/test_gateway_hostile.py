"""HTTP clients that dawdle, lie, flood or leave: each costs little, and nothing half-sent is appended."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import cast

import psutil
import pytest

from penstock.base.errors import UsageError
from penstock.journal import gateway_http
from penstock.journal.auth import OpenAuthorizer
from penstock.journal.gateway import Gateway
from penstock.journal.protocol import ReadResponse
from penstock.journal.service import Service

from .gateways import FakeService, RawClient, answers, chunk, connected, exchange, in_loop, metadata, serving

GET = b"GET /a/journal HTTP/1.1\r\nHost: localhost\r\n\r\n"
PUT = b"PUT /a/journal HTTP/1.1\r\nHost: localhost\r\n"


async def _trickle(client: RawClient, content: bytes, pause: float) -> float:
    """Send byte by byte until the gateway closes; how long that took."""
    began = asyncio.get_running_loop().time()
    closed = asyncio.ensure_future(client.rest())
    for byte in content:
        client.writer.write(bytes([byte]))
        await asyncio.wait((closed,), timeout=pause)
        if closed.done():
            break
    assert await closed == b""
    return asyncio.get_running_loop().time() - began


@pytest.mark.parametrize("first", [b"", b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_request_that_never_comes_whole_is_dropped(first: bytes) -> None:
    async def test() -> None:
        async with serving(FakeService(), request_timeout=0.3) as port, connected(port) as client:
            if first:
                await client.send(first)
                await client.head()
                await client.reader.readexactly(6)
            assert await _trickle(client, b"GET /a/journal HTTP/1.1\r\nX-Slow: " + b"x" * 1000, 0.02) < 3

    in_loop(test)


def test_a_connection_without_a_request_is_dropped() -> None:
    async def test() -> None:
        async with serving(FakeService(), request_timeout=0.2) as port, connected(port) as client:
            assert await client.rest() == b""

    in_loop(test)


def test_the_body_of_a_json_request_has_to_come_in_time() -> None:
    async def test() -> None:
        service = FakeService()
        async with serving(service, request_timeout=0.2) as port, connected(port) as client:
            await client.send(
                b"POST /v1/journals/list HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
            )
            assert (await client.head()).startswith("HTTP/1.1 408 ")
        assert service.untouched

    in_loop(test)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /a/journal HTTP/1.1\r\nHost: localhost\r\nX-Big: " + b"x" * 10_000_000 + b"\r\n\r\n",
        b"GET /a/journal HTTP/1.1\r\nHost: localhost\r\n" + b"X-Many: x\r\n" * 100_000 + b"\r\n",
        b"GET /a/" + b"x" * 10_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n" * 1_000_000,
        PUT + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        PUT + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        PUT + b"Content-Length: -5\r\n\r\n",
        PUT + b"Transfer-Encoding: gzip, identity\r\n\r\nhello",
    ],
    ids=["field", "fields", "path", "tls", "h2", "newlines", "smuggle", "lengths", "negative", "encoding"],
)
def test_requests_that_are_too_large_or_no_http_reach_nothing(request_bytes: bytes) -> None:
    async def test() -> None:
        service = FakeService()
        async with serving(service, request_timeout=0.5) as port:
            async with connected(port) as client:
                client.writer.write(request_bytes)
                answer = await client.rest()
            assert not answer or b" 400 " in answer.partition(b"\r\n")[0]
            assert service.untouched
            assert b" 206 " in await exchange(
                port, GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            )

    in_loop(test)


@pytest.mark.parametrize(
    "begun",
    [
        PUT + b"Content-Length: 10\r\n\r\nhello",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    ],
    ids=["length", "chunked", "almost"],
)
@pytest.mark.parametrize("leave", ["reset", "close", "half-close"])
def test_a_PUT_whose_client_leaves_before_its_end_is_not_committed(begun: bytes, leave: str) -> None:
    async def test() -> None:
        service = FakeService()
        async with serving(service) as port, connected(port) as client:
            await client.send(begun)
            await service.first_content.wait()
            if leave == "reset":
                client.abort()
            elif leave == "close":
                client.writer.close()
            else:
                client.writer.write_eof()
            await service.append_ended.wait()
            assert not service.committed
            assert service.appended[-1].content

    in_loop(test)


def test_a_client_that_leaves_while_its_append_waits_cancels_it() -> None:
    async def test() -> None:
        service = FakeService()
        service.takes_appends.clear()
        async with serving(service) as port, connected(port) as client:
            await client.send(PUT + b"Content-Length: 5\r\n\r\nhello")
            await service.first_content.wait()
            client.abort()
            await service.append_ended.wait()
            assert not service.committed

    in_loop(test)


@pytest.mark.parametrize(
    "rest", [b"xyz\r\nworld\r\n0\r\n\r\n", b"-1\r\n\r\n", b"5\r\nhello!!\r\n0\r\n\r\n", b""]
)
def test_a_PUT_with_a_malformed_or_stalled_body_is_refused_and_not_committed(rest: bytes) -> None:
    async def test() -> None:
        service = FakeService()
        async with serving(service, request_timeout=0.2) as port, connected(port) as client:
            await client.send(PUT + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            await service.first_content.wait()
            await client.send(rest)
            assert (await client.head()).startswith(("HTTP/1.1 400 ", "HTTP/1.1 408 "))
            await service.append_ended.wait()
            assert not service.committed

    in_loop(test)


def test_a_body_waits_for_an_append_that_takes_nothing() -> None:
    async def test() -> None:
        service = FakeService()
        service.takes_appends.clear()
        async with serving(service) as port:
            sender = socket.create_connection(("127.0.0.1", port))
            with sender:
                sender.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(
                    sender, PUT + b"Content-Length: 1000000000\r\n\r\n"
                )
                sent = await _flood(sender)
            assert sent < 32 << 20, "the gateway reads on, into memory"
            assert sum(len(request.content) for request in service.appended) <= 1 << 20
            service.takes_appends.set()
            await service.append_ended.wait()
            assert not service.committed

    in_loop(test)


async def _flood(sender: socket.socket) -> int:
    """Send until the other side has taken nothing for half a second; how much that was."""
    sent, idle = 0, 0
    while idle < 10 and sent < 64 << 20:
        try:
            sent += sender.send(bytes(1 << 16))
            idle = 0
            await asyncio.sleep(0)
        except BlockingIOError:
            idle += 1
            await asyncio.sleep(0.05)
    return sent


class _Endless:
    """A journal without end; counts what was taken of it."""

    def __init__(self) -> None:
        self.taken = 0

    async def __call__(self) -> AsyncIterator[ReadResponse]:
        yield metadata()
        while True:
            yield chunk(150 + self.taken, bytes(32736))
            self.taken += 32736

    async def at_rest(self) -> int:
        """How much was taken once nothing more is."""
        before = -1
        while before != self.taken or not self.taken:
            before = self.taken
            await asyncio.sleep(0.2)
        return self.taken


def test_a_read_waits_for_a_client_that_takes_nothing_and_ends_when_it_leaves() -> None:
    async def test() -> None:
        service, endless = FakeService(), _Endless()
        service.to_read = endless
        async with serving(service) as port:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(GET)
                assert 0 < await endless.at_rest() < 32 << 20
                assert not service.read_closed.is_set()
            await service.read_closed.wait()

    in_loop(test)


def test_a_client_that_takes_nothing_is_dropped_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_http, "STALLED", 0.3)

    async def test() -> None:
        service = FakeService()
        service.to_read = _Endless()
        async with serving(service) as port:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(GET)
                await service.read_closed.wait()
                while _served(port):  # noqa: ASYNC110 - the system brings it about
                    await asyncio.sleep(0.01)

    in_loop(test)


def _served(port: int) -> int:
    """How many connections the gateway at this port still has."""
    connections = psutil.Process().net_connections("tcp")
    return sum(found.laddr.port == port and found.status != psutil.CONN_LISTEN for found in connections)


def test_a_client_that_has_read_half_and_leaves_ends_the_read() -> None:
    async def test() -> None:
        service = FakeService()
        service.to_read = _Endless()
        async with serving(service) as port, connected(port) as client:
            await client.send(GET)
            await client.head()
            await client.reader.readexactly(100_000)
            client.abort()
            await service.read_closed.wait()

    in_loop(test)


async def _waiting() -> AsyncIterator[ReadResponse]:
    yield metadata()
    await asyncio.Event().wait()


def test_stopping_waits_for_the_grace_then_drops_everyone() -> None:
    async def test() -> None:
        follower, stalled = FakeService(), FakeService()
        follower.to_read, stalled.to_read = _waiting, _Endless()
        for service in (follower, stalled):
            gateway = Gateway(
                cast("Service", service), OpenAuthorizer(), metrics=None, ready=lambda: (True, "ready")
            )
            port = await gateway.start("127.0.0.1", 0, None)
            async with connected(port) as silent, connected(port) as client:
                await client.send(GET)
                await client.head()
                began = asyncio.get_running_loop().time()
                await gateway.stop(0.4)
                assert 0.1 < asyncio.get_running_loop().time() - began < 2
                await service.read_closed.wait()
                await asyncio.sleep(0)
                assert _served(port) == 0
                assert await silent.rest() == b""
                assert not (await client.rest()).endswith(b"0\r\n\r\n")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            await gateway.stop(0.4)

    in_loop(test)


def test_stopping_lets_what_is_under_way_end() -> None:
    async def test() -> None:
        service = FakeService()
        service.takes_appends.clear()
        gateway = Gateway(
            cast("Service", service), OpenAuthorizer(), metrics=None, ready=lambda: (True, "ready")
        )
        port = await gateway.start("127.0.0.1", 0, None)
        async with connected(port) as client:
            await client.send(PUT + b"Content-Length: 5\r\n\r\nhello")
            await service.first_content.wait()
            stopping = asyncio.ensure_future(gateway.stop(10))
            await asyncio.sleep(0.05)
            service.takes_appends.set()
            assert (await client.head()).startswith("HTTP/1.1 204 ")
            await stopping
        assert service.committed

    in_loop(test)


def test_an_address_of_IPv6_stands_in_brackets() -> None:
    async def test() -> None:
        gateway = Gateway(
            cast("Service", FakeService()),
            OpenAuthorizer(),
            ready=lambda: (True, "ready"),
            request_timeout=1.0,
        )
        port = await gateway.start("[::1]", 0, None)
        try:
            _, writer = await asyncio.open_connection("::1", port)
            writer.close()
        finally:
            await gateway.stop(0.1)

    in_loop(test)


def test_a_port_in_use_is_told() -> None:
    async def test() -> None:
        async with serving(FakeService()) as port:
            gateway = Gateway(
                cast("Service", FakeService()), OpenAuthorizer(), metrics=None, ready=lambda: (True, "")
            )
            with pytest.raises(UsageError, match=rf"cannot serve HTTP on 127\.0\.0\.1:{port}: "):
                await gateway.start("127.0.0.1", port, None)

    in_loop(test)


def test_many_clients_at_once_leave_no_task_behind() -> None:
    async def test() -> None:
        service = FakeService()
        service.to_read = lambda: answers(metadata(), chunk(150, b"hello"))
        before = asyncio.all_tasks()
        async with serving(service) as port:

            async def one(number: int) -> None:
                async with connected(port) as client:
                    await client.send((GET, PUT + b"Content-Length: 9\r\n\r\nx", b"GET /", b"")[number % 4])
                    if number % 4 == 0:
                        await client.head()

            async with asyncio.TaskGroup() as group:
                for number in range(100):
                    group.create_task(one(number))
        assert asyncio.all_tasks() <= before
        assert not service.committed

    in_loop(test)
