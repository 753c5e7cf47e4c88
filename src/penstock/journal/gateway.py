"""The broker over HTTP/1.1: journals as resources, two calls as JSON, `/ready` and `/metrics` (reference, 21).

Every request for a journal is authorized by the caller's own `Authorization` header, which the original leaves out
(reference, 24, quirk 1); without a good one the answer is 401. `/ready`, `/metrics` and their `/debug` names are open:
they tell names of journals and numbers, never content. These paths, and those below `/v1/journals`, hide journals
that are called the same. A broker without keys answers no web page but those of `allow_origins` (`base.webpages`).

Nothing is buffered whole: bodies are passed on as they come, in both directions, at the pace of the slower side. A
client that goes away ends what it had asked for; one that sends no complete request, or takes nothing of its answer, is
dropped after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from ssl import SSLContext
from typing import Final

from penstock.base.errors import PenstockError, UsageError
from penstock.base.webpages import refusal
from penstock.journal.auth import Authorizer, OpenAuthorizer, UnauthenticatedError
from penstock.journal.gateway_http import Exchange, HttpError, HttpProcessingError, web
from penstock.journal.gateway_journals import CLOSE_ERROR, Journals
from penstock.journal.gateway_rest import LIST, READ, Rest
from penstock.journal.service import Service
from penstock.journal.tokens import ValidationError

REQUEST_TIMEOUT: Final = 30.0
"""Seconds a connection has for the headers of its next request, for a JSON body, and for each piece of a PUT's."""
MAX_LINE: Final = 8190
MAX_HEADERS: Final = 64
_LINGER = 2.0

_PAGES = ("/ready", "/debug/ready", "/metrics", "/debug/metrics")
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CORS = {
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Cache-Control, Content-Language, Content-Type, Expires, Pragma",
    "Access-Control-Expose-Headers": "Content-Range, Location, X-Fragment-Last-Modified, X-Fragment-Location, "
    f"X-Fragment-Name, X-Route-Token, X-Write-Head, {CLOSE_ERROR}",
    "Access-Control-Max-Age": "600",
}


class Gateway:
    """One HTTP listener in front of a service.

    `metrics` gives the page of `/metrics`, which is 404 without it; `ready` tells whether the broker serves, and a
    word on it. `allow_origins` are the web origins whose pages may call (`*`: all).
    """

    def __init__(
        self,
        service: Service,
        authorizer: Authorizer,
        *,
        allow_origins: Sequence[str] = (),
        metrics: Callable[[], bytes] | None = None,
        ready: Callable[[], tuple[bool, str]],
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> None:
        self._journals = Journals(service, authorizer, body_timeout=request_timeout)
        self._rest = Rest(service, authorizer, body_timeout=request_timeout)
        self._origins = frozenset(allow_origins)
        self._open = isinstance(authorizer, OpenAuthorizer)
        self._host = ""
        self._metrics = metrics
        self._ready = ready
        self._request_timeout = request_timeout
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None

    def translate(self, endpoint_of: Callable[[str], str]) -> None:
        """Have `Location` point where HTTP is spoken, if that is not where gRPC is."""
        self._journals.endpoint_of = endpoint_of

    async def start(self, host: str, port: int, ssl: SSLContext | None = None) -> int:
        """Listen, and return the port, which matters if 0 was asked for."""
        self._host = host
        # A request that goes away cancels its handler, and with it the call. What a client compressed, it reads
        # compressed: the body is the content.
        self._server = web.Server(
            self._handle,
            handler_cancellation=True,
            keepalive_timeout=self._request_timeout,
            lingering_time=_LINGER,
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
            max_headers=MAX_HEADERS,
            auto_decompress=False,
            access_log=None,
            logger=_log,
        )
        handshake = self._request_timeout if ssl else None
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                self._server,
                host.strip("[]") or None,
                port,
                ssl=ssl,
                ssl_handshake_timeout=handshake,
                backlog=512,
            )
        except OSError as error:
            raise UsageError(f"cannot serve HTTP on {host}:{port}: {error.strerror or error}") from None
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def stop(self, grace: float) -> None:
        """Accept no more, let what is under way end for `grace` seconds, then cancel it and drop all connections."""
        if self._server is None or self._listener is None:
            return
        server, listener = self._server, self._listener
        self._server = self._listener = None
        listener.close()
        transports = [connection.transport for connection in server.connections]
        server.pre_shutdown()
        # aiohttp waits this long twice: for the handler, then for what the end of its request's body makes of it.
        await server.shutdown(max(grace / 2, 0.01))
        for transport in transports:
            if transport is not None:
                transport.abort()  # a close waits for a client that takes nothing
        await listener.wait_closed()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = Exchange(request, {"Server": "penstock", **self._cors(request)})
        path, _, query = request.raw_path.partition("?")
        try:
            if request.method == "OPTIONS" and "Access-Control-Allow-Origin" in exchange.headers:
                return exchange.answer(204)
            if path in _PAGES:
                return self._page(exchange, path)
            if self._open and (refused := refusal(self._host, request.headers, self._origins)) is not None:
                raise HttpError(refused.status, f"{refused.why}\n")
            if path in (LIST, READ):
                return await self._rest.answer(exchange, path)
            return await self._journals.answer(exchange, path, query)
        except HttpError as error:
            return exchange.answer(error.status, error.message, error.headers)
        except UnauthenticatedError as error:
            return exchange.answer(401, error.message, {"WWW-Authenticate": "Bearer"})
        except ValidationError as error:
            return exchange.answer(400, error.message)
        except PenstockError as error:
            return exchange.answer(500, error.message)

    def _page(self, exchange: Exchange, path: str) -> web.Response:
        if exchange.request.method not in ("GET", "HEAD"):
            raise HttpError(405, "expected GET", {"Allow": "GET, HEAD"})
        if path.endswith("/metrics"):
            if self._metrics is None:
                raise HttpError(404, "this broker tells no metrics")
            return exchange.answer(200, self._metrics(), content_type=_METRICS_TYPE)
        ready, word = self._ready()
        # The original's name says only that there is a process, and probes rely on it.
        return exchange.answer(200 if ready or path == "/debug/ready" else 503, f"{word}\n")

    def _cors(self, request: web.BaseRequest) -> Mapping[str, str]:
        origin = request.headers.get("Origin")
        if not self._origins or origin is None:
            return {}
        if "*" in self._origins:
            return {"Access-Control-Allow-Origin": "*", **_CORS}
        if origin in self._origins:
            return {"Access-Control-Allow-Origin": origin, "Vary": "Origin", **_CORS}
        return {"Vary": "Origin"}


class _NotOfClients(logging.Filter):
    """Keeps what clients send wrongly out of the log, where aiohttp writes each as an error with a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log = logging.getLogger(__name__)
_log.addFilter(_NotOfClients())
