"""The endpoint of `http` as a source that listens: what a sender meets.

    answer   means
    200      in the log, durably; or it was there already, by its id. `GET /healthz`: posts are taken
    400      not JSON, or a document that cannot be a message; tells where, and nothing of the post is kept
    401      no token or signature, or a wrong one
    404      a path or namespace that is not taken here; 405 for anything but POST
    408      the body does not come in within the time limit
    413      a body above the limit; 415 not JSON by its content type, or compressed otherwise than with gzip
    422      the id of an earlier post, with another body
    503      no room, stopping, or not in the log within the time limit: send again, as `Retry-After` says

Whoever sends no token learns nothing about paths. A connection has the time limit for each request to come in; there
are no more than the settings say at once, further ones wait to be accepted. What bodies hold of memory is counted as
they come in. Whatever a client does wrong costs its own connection alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from ssl import SSLContext
from urllib.parse import unquote

import msgspec

from penstock.adaptors.http import Http
from penstock.adaptors.http.bodies import TooLongError, is_lines, unpacked
from penstock.adaptors.http.inbox import ClosedError, Inbox, OtherBodyError, Post
from penstock.journal.gateway_http import Exchange, HttpError, HttpProcessingError, web

HEALTH = "/healthz"
MOST_NAMESPACES = 10_000
"""Above it, a name that is new is a sender's mistake, or worse."""

_LONGEST_NAMESPACE = 255
_LINE, _HEADERS = 8190, 64
_LINGER = 2.0
_GRACE = 0.3
"""Seconds for the answers to go out when the endpoint stops."""
_AGAIN = {"Retry-After": "1"}

Made = Callable[[str, str, bool, bytes], Post]
"""Makes a post of a namespace, an id (or none), whether the body is lines, and the body. Raises HttpError."""


class _Server(web.Server):
    """Tells when a connection has ended."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        left: Callable[[], None],
        timeout: float,
    ) -> None:
        # A sender that goes away cancels its handler: nobody waits for the answer.
        super().__init__(
            handler, handler_cancellation=True, keepalive_timeout=timeout, lingering_time=_LINGER,
            max_line_size=_LINE, max_field_size=_LINE, max_headers=_HEADERS, auto_decompress=False,
            access_log=None, logger=_log,
        )  # fmt: skip
        self._left = left

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._left()


class Endpoint:
    """Serves one inbox, in the event loop that `start` runs in."""

    def __init__(
        self,
        settings: Http,
        listener: socket.socket,
        tls: SSLContext | None,
        inbox: Inbox,
        accept: Callable[[str], bool],
        made: Made,
    ) -> None:
        """`listener` listens already; it is the endpoint's from now on."""
        self._settings = settings
        self._listener = listener
        self._tls = tls
        self._inbox = inbox
        self._accept = accept
        self._made = made
        self._room = asyncio.Semaphore(settings.max_connections)
        self._server: _Server | None = None
        self._accepting: asyncio.Task[None] | None = None
        self.held = 0
        """Bytes of bodies."""

    @property
    def connections(self) -> int:
        return 0 if self._server is None else len(self._server.connections)

    @property
    def failure(self) -> BaseException | None:
        """Why no connections are accepted any more; None while they are."""
        over = self._accepting is not None and self._accepting.done() and not self._accepting.cancelled()
        return self._accepting.exception() if self._accepting is not None and over else None

    async def start(self) -> None:
        self._listener.setblocking(False)
        self._server = _Server(self._handle, self._room.release, self._settings.timeout)
        self._accepting = asyncio.create_task(self._accept_all(self._server))

    async def stop(self) -> None:
        """Accept no more, let answers go out, and drop all connections. The inbox is closed by then."""
        if self._server is None or self._accepting is None:
            self._listener.close()
            return
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
        self._listener.close()
        transports = [connection.transport for connection in self._server.connections]
        self._server.pre_shutdown()
        await self._server.shutdown(_GRACE)
        for transport in transports:
            if transport is not None:
                transport.abort()  # a close waits for a client that takes nothing

    async def _accept_all(self, server: _Server) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                await self._room.acquire()
                try:
                    connection, _ = await loop.sock_accept(self._listener)
                except OSError as error:  # no descriptors left, or the client has gone
                    self._room.release()
                    _log.warning("cannot accept a connection at %s: %s", self._settings.place, error)
                    await asyncio.sleep(0.2)
                else:
                    group.create_task(self._welcome(server, connection))

    async def _welcome(self, server: _Server, connection: socket.socket) -> None:
        limit = self._settings.timeout if self._tls else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                server, connection, ssl=self._tls, ssl_handshake_timeout=limit
            )
        except OSError as error:  # of the handshake: then the server never hears of the connection
            _log.debug("a connection at %s ended in its handshake: %s", self._settings.place, error)
            self._room.release()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = Exchange(request, {"Server": "penstock"})
        try:
            return await self._answer(exchange)
        except HttpError as error:
            answer = exchange.answer(error.status, f"{error.message}\n", error.headers)
            if error.status in (408, 503):
                answer.force_close()  # make room for others
            return answer

    async def _answer(self, exchange: Exchange) -> web.Response:
        request, settings = exchange.request, self._settings
        path = request.raw_path.partition("?")[0]
        if path == HEALTH and request.method in ("GET", "HEAD"):
            return self._health(exchange)
        self._check_token(exchange)
        ns = self._namespace(path)
        if request.method != "POST":
            raise HttpError(405, "expected POST", {"Allow": "POST"})
        lines = self._lines(request)
        with self._holding() as hold:
            body = await self._body(exchange, hold)
            self._check_signature(request, body)
            post = self._made(
                ns, request.headers.get(settings.delivery_id, ""), lines, self._plain(request, body)
            )
            repeated = await self._logged(post)
        found = {"taken": 0 if repeated else len(post.messages), "dead": 0 if repeated else len(post.bad)}
        found |= {"repeated": True} if repeated else {}
        return exchange.answer(200, msgspec.json.encode(found) + b"\n", content_type="application/json")

    def _health(self, exchange: Exchange) -> web.Response:
        if self._inbox.closed:
            return exchange.answer(503, "stopping\n")
        full = self.held >= self._settings.max_waiting
        return exchange.answer(503, "full\n") if full else exchange.answer(200, "ok\n")

    def _check_token(self, exchange: Exchange) -> None:
        if self._settings.token:
            expected = f"Bearer {self._settings.token}".encode()
            given = (exchange.authorization or "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, expected):
                raise HttpError(401, "expected another token", {"WWW-Authenticate": "Bearer"})

    def _check_signature(self, request: web.BaseRequest, body: bytes) -> None:
        if self._settings.secret:
            name = self._settings.signature
            given = request.headers.get(name, "").removeprefix("sha256=").lower()
            expected = hmac.new(self._settings.secret.encode(), body, hashlib.sha256).hexdigest()
            if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode()):
                raise HttpError(
                    401, f"expected {name}: sha256=, and the HMAC-SHA256 of the body in hexadecimal digits"
                )

    def _namespace(self, path: str) -> str:
        """The namespace that a path stands for, if it is one that is taken."""
        settings = self._settings
        before, pattern, after = settings.path.partition("{ns}")
        ns = settings.ns if path == settings.path else ""
        if pattern:
            whole = path.startswith(before) and path.endswith(after)
            ns = _name(path[len(before) : len(path) - len(after)]) if whole else ""
        if not ns or (settings.namespaces and ns not in settings.namespaces) or not self._accept(ns):
            raise HttpError(404, f"expected a post to {settings.path}, of a namespace that is taken here")
        known = self._inbox.namespaces()
        if ns not in known and len(known) >= MOST_NAMESPACES:
            raise HttpError(403, f"there are {len(known)} namespaces already")
        return ns

    def _lines(self, request: web.BaseRequest) -> bool:
        kind = request.content_type if "Content-Type" in request.headers else ""
        charset = (request.charset or "utf-8").lower()
        if charset not in ("utf-8", "utf8", "us-ascii"):
            raise HttpError(415, f"expected UTF-8, got {charset[:100]}")
        try:
            return is_lines(kind)
        except ValueError as error:
            raise HttpError(415, str(error)) from None

    async def _body(self, exchange: Exchange, hold: Callable[[int], None]) -> bytes:
        """The body as it was sent."""
        request, most = exchange.request, self._settings.max_body
        too_large = HttpError(413, f"expected a body of at most {most} bytes")
        if (request.content_length or 0) > most:
            raise too_large
        pieces, size = list[bytes](), 0
        try:
            async with asyncio.timeout(self._settings.timeout):
                await exchange.invite_body()
                while piece := await request.content.readany():
                    hold(len(piece))
                    pieces.append(piece)
                    size += len(piece)
                    if size > most:
                        raise too_large
        except TimeoutError:
            raise HttpError(408, f"the body did not come in within {self._settings.timeout} s") from None
        return b"".join(pieces)

    def _plain(self, request: web.BaseRequest, body: bytes) -> bytes:
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        try:
            return unpacked(body, encoding, self._settings.max_body)
        except TooLongError:
            most = self._settings.max_body
            raise HttpError(413, f"expected a body of at most {most} bytes once it is unpacked") from None
        except ValueError as error:
            raise HttpError(400 if "gzip" in encoding else 415, str(error)) from None

    async def _logged(self, post: Post) -> bool:
        """Wait until the log has a post; whether it had it before."""
        if not post.messages and not post.bad:
            return False
        try:
            waited = self._inbox.offer(post)
            if waited is None:
                return True
            async with asyncio.timeout(self._settings.timeout):
                await asyncio.shield(asyncio.wrap_future(waited.done))
        except OtherBodyError:
            raise HttpError(422, "the id is that of an earlier post, which had another body") from None
        except ClosedError:
            raise HttpError(503, "not taken: send again", _AGAIN) from None
        except TimeoutError:
            raise HttpError(503, "not in the log yet: send again", _AGAIN) from None
        finally:
            self._inbox.withdraw(post)
        return waited is not post

    @contextmanager
    def _holding(self) -> Iterator[Callable[[int], None]]:
        """Counts what a body holds of memory. Raises HttpError where there is no room for more."""
        mine = 0

        def hold(size: int) -> None:
            nonlocal mine
            if self.held + size > self._settings.max_waiting:
                raise HttpError(503, "too many bodies wait: send again", _AGAIN)
            mine += size
            self.held += size

        try:
            yield hold
        finally:
            self.held -= mine


def _name(segment: str) -> str:
    """The namespace in one segment of a path; empty if it is none."""
    try:
        ns = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        return ""
    plain = "/" not in segment and ns.isprintable() and len(ns.encode()) <= _LONGEST_NAMESPACE
    return ns if plain else ""


class _NotOfClients(logging.Filter):
    """Keeps what senders send wrongly out of the log, where aiohttp writes each as an error with a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log = logging.getLogger(__name__)
_log.addFilter(_NotOfClients())
