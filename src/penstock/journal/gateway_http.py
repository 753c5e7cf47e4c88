"""What the parts of the HTTP gateway share: one exchange, its answers, and a body that is streamed.

A streamed body goes out chunk by chunk as it is written, and a write waits until the client has taken most of what
was written before. Where the client speaks HTTP/1.1 the body's end can carry trailers.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from penstock.base.errors import PenstockError, UsageError
from penstock.journal.claims import Claims

try:
    # The gateway's other modules take what they need of aiohttp from here, where its absence is told.
    from aiohttp import StreamReader as StreamReader
    from aiohttp import hdrs
    from aiohttp import web as web
    from aiohttp.http import HttpVersion11, StreamWriter
    from aiohttp.http_exceptions import HttpProcessingError as HttpProcessingError
except ImportError:
    raise UsageError("the HTTP gateway needs aiohttp", hint="pip install 'penstock[broker]'") from None

STALLED = 600.0
"""Seconds after which a client that takes nothing of a body is dropped."""

_UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")
_MAX_TRAILER = 1000

T = TypeVar("T")


async def until_expired(responses: AsyncIterator[T], claims: Claims) -> AsyncGenerator[T, None]:
    """The same responses, until the caller's authorization ends."""
    left = claims.left(time.time())
    deadline = None if left is None else asyncio.get_running_loop().time() + left
    async with closing(responses):
        while True:
            try:
                async with asyncio.timeout_at(deadline) as limit:
                    response = await anext(responses, None)
            except TimeoutError:
                if not limit.expired():
                    raise
                return
            if response is None:
                return
            yield response


class HttpError(PenstockError):
    """A request that is answered with this status and text."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, and the headers that every answer to it has."""

    request: web.BaseRequest
    headers: Mapping[str, str]

    @property
    def authorization(self) -> str | None:
        """The Authorization header; of several, none can be trusted to be the caller's."""
        given = self.request.headers.getall(hdrs.AUTHORIZATION, [])
        if len(given) > 1:
            raise HttpError(400, "expected at most one Authorization header")
        return given[0] if given else None

    async def invite_body(self) -> None:
        """Tell a client that asked first to send its body."""
        request = self.request
        if (
            request.headers.get(hdrs.EXPECT, "").lower() == "100-continue"
            and request.version >= HttpVersion11
        ):
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # nothing of the answer itself has gone out

    def answer(
        self,
        status: int,
        body: str | bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        content_type: str = "text/plain; charset=utf-8",
    ) -> web.Response:
        content = body.encode("utf-8", "replace") if isinstance(body, str) else body
        all_headers = {**self.headers, **(headers or {})}
        if content:
            all_headers |= {hdrs.CONTENT_TYPE: content_type, "X-Content-Type-Options": "nosniff"}
        return web.Response(status=status, body=content, headers=all_headers)

    async def stream(self, status: int, headers: Mapping[str, str], *, trailer: str | None = None) -> Body:
        """Send the headers of an answer whose body follows, and with it the named trailer."""
        response = web.StreamResponse(status=status, headers={**self.headers, **headers})
        if trailer and self.request.version >= HttpVersion11:
            response.headers[hdrs.TRAILER] = trailer
        writer = await response.prepare(self.request)
        if not isinstance(writer, StreamWriter):
            raise ConnectionResetError("the client has gone")
        return Body(self.request, response, writer)


class Body:
    """The body of an answer under way."""

    def __init__(self, request: web.BaseRequest, response: web.StreamResponse, writer: StreamWriter) -> None:
        self._request = request
        self._response = response
        self._writer = writer

    async def write(self, content: bytes) -> None:
        try:
            async with asyncio.timeout(STALLED):
                await self._response.write(content)
        except TimeoutError:
            # Closing would wait for the client to take what is still buffered.
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client takes nothing of the body") from None

    async def end(self, trailers: Mapping[str, str] | None = None) -> web.StreamResponse:
        """End the body. Trailers are left out where the client's HTTP has none."""
        if self._writer.chunked and trailers:
            lines = "".join(f"{name}: {_one_line(value)}\r\n" for name, value in trailers.items())
            # aiohttp ends a chunked body without trailers. From here on it frames nothing: this is the last chunk.
            self._writer.chunked = False
            await self.write(f"0\r\n{lines}\r\n".encode("ascii"))
        await self._response.write_eof()
        return self._response


def _one_line(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text)[:_MAX_TRAILER].strip()


@asynccontextmanager
async def closing(items: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close the iterator at the end, if it is one that can be closed."""
    try:
        yield items
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()
