"""What a worker tells over HTTP, and the one thing it can be asked to do there.

    GET /status      the worker, its sessions and streams, as JSON       GET /metrics    for Prometheus
    POST /migrate    {"what": STREAM or INSTANCE, "to": HOST:PORT}; `Authorization: Bearer` with the cookie in hex

Requests are small and answered at once; a client that is slow or says too much is cut off.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from penstock.base.errors import PenstockError, UsageError
from penstock.connector import status
from penstock.connector.settings import NotHereError, dialable, dialled, split

if TYPE_CHECKING:
    from penstock.connector.worker import Worker

log = logging.getLogger(__name__)

_LIMIT = 64 << 10
_TIMEOUT = 5.0
_AT_ONCE = 32
_CUT_OFF = (
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
    ValueError,
    asyncio.CancelledError,  # by the end of the worker
)
Answer = tuple[int, str, bytes]
_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 503: "Service Unavailable"}


class Move(msgspec.Struct, frozen=True):
    """The body of POST /migrate."""

    what: str
    to: str


async def serve(worker: Worker, listen: str) -> asyncio.Server:
    """Serve until the server is closed; `worker.http` is the address then."""
    host, port = split(listen)
    open_now = 0

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now
        open_now += 1
        try:
            if open_now <= _AT_ONCE:
                with suppress(*_CUT_OFF):
                    async with asyncio.timeout(_TIMEOUT):
                        await _exchange(worker, reader, writer)
        finally:
            open_now -= 1
            writer.transport.abort()  # a close waits for a client that takes nothing

    try:
        server = await asyncio.start_server(connected, host, port, limit=_LIMIT)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {listen}: {error.strerror}",
            hint="give another --http HOST:PORT, or --http off",
        ) from None
    worker.http = dialled(host, server.sockets[0].getsockname()[1])
    return server


async def _exchange(worker: Worker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, _, rest = head[0].partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
    }
    length = int(headers.get("content-length", "0"))
    body = await reader.readexactly(length) if 0 < length <= _LIMIT else b""
    handler = _HANDLERS.get((method, path))
    code, kind, content = (
        await handler(worker, headers, body) if handler else (404, "text/plain", b"not here\n")
    )
    writer.write(
        f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
        f"Connection: close\r\n\r\n".encode()
    )
    writer.write(content)
    writer.transport.set_write_buffer_limits(0)  # so that it waits for all of it
    await writer.drain()


async def _status(worker: Worker, headers: dict[str, str], body: bytes) -> Answer:
    return 200, "application/json", msgspec.json.encode(status.snapshot(worker))


async def _metrics(worker: Worker, headers: dict[str, str], body: bytes) -> Answer:
    return 200, "text/plain; version=0.0.4", status.metrics(status.snapshot(worker)).encode()


async def _migrate(worker: Worker, headers: dict[str, str], body: bytes) -> Answer:
    given = headers.get("authorization", "").removeprefix("Bearer ").strip()
    if not hmac.compare_digest(given.encode(), worker.settings.cookie.hex().encode()):
        return 403, "text/plain", b"the cookie of this worker is wanted\n"
    try:
        move = msgspec.json.decode(body, type=Move)
        dialable(move.to)
        name = await worker.migrate(move.what, move.to)
    except NotHereError as error:
        return 404, "text/plain", f"{error}\n".encode()
    except (msgspec.DecodeError, PenstockError) as error:
        return 400, "text/plain", f"{error}\n".encode()
    return 200, "application/json", msgspec.json.encode({"instance": name, "to": move.to})


_HANDLERS: dict[tuple[str, str], Callable[[Worker, dict[str, str], bytes], Awaitable[Answer]]] = {
    ("GET", "/status"): _status,
    ("GET", "/metrics"): _metrics,
    ("POST", "/migrate"): _migrate,
}
