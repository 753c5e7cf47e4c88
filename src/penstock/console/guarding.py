"""Who may come in: every request passes here first.

Everybody needs a session, shows a token, or has a connection of one who may use the console (`access.py`). What a
browser asks for on behalf of another page is not answered, be it from the same machine: other ports may be other
users'. Every change needs the secret of its session and the page's own origin. What goes wrong behind becomes an
answer here, with secrets masked.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from aiohttp import web

from penstock.base.errors import AwayError, InUseError, PenstockError, UsageError
from penstock.base.secrets import mask
from penstock.base.webpages import is_loopback
from penstock.console.access import Access, Session, User
from penstock.console.answers import HEADERS, problem

log = logging.getLogger(__name__)

_COOKIE = "penstock-console-{port}"
"""Browsers send the cookies of a host to all of its ports: each console needs a name of its own."""
_CSRF = "X-Penstock-Csrf"
_OPEN = ("/login", "/static/", "/favicon.svg")
"""What somebody gets who is not let in yet."""

_STATUSES = ((InUseError, 409), (UsageError, 400), (AwayError, 503))
"""What an error of ours is to a browser; any other is 502."""

_SESSION = web.RequestKey("session", object)
_PAGES = ("/", "/login")
"""What a link on another page may lead to."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Options:
    """Where to listen, and with what."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class Guard:
    """Of one console."""

    def __init__(self, access: Access, options: Options) -> None:
        self._access = access
        self._options = options
        self._local: WeakKeyDictionary[asyncio.BaseTransport, Session] = WeakKeyDictionary()

    @web.middleware
    async def guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            refusal = self._refusal(request)
            response = refusal if refusal is not None else await self._handled(request, handler)
        except web.HTTPException as error:
            response = problem(error.status, error.reason)
        if not response.prepared:
            response.headers.update({**HEADERS, **dict(response.headers)})
        return response

    async def _handled(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except PenstockError as error:
            status = next((code for kind, code in _STATUSES if isinstance(error, kind)), 502)
            return problem(status, mask(error.message), mask(error.hint) if error.hint else None)
        except (web.HTTPException, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            return problem(500, mask(f"unexpected {type(error).__name__}: {error}"))

    def _refusal(self, request: web.Request) -> web.Response | None:
        """Why a request is not answered; None if it is. Notes who asks."""
        try:
            host = urlsplit(f"//{request.host}").hostname or ""
            origin = urlsplit(request.headers.get("Origin", f"//{request.host}")).netloc
        except ValueError:
            return problem(400, "the request does not say where it goes to, or comes from")
        if is_loopback(self._options.host) and not is_loopback(host):
            return problem(421, f"this console is not '{host}'", "open it under the address that it printed")
        if _for_another_page(request):
            return problem(403, "the request comes from another page", "open the console itself")
        session, bearer = self._who(request)
        request[_SESSION] = session
        if session is None and not request.path.startswith(_OPEN):
            if request.path == "/" and request.method == "GET":
                return web.Response(status=303, headers={"Location": "/login"})
            return problem(401, "not logged in", "open the page again and log in")
        if request.method not in ("GET", "HEAD"):
            return self._refused_change(request, origin, bearer)
        return None

    def _who(self, request: web.Request) -> tuple[Session | None, bool]:
        """The session of a request, and whether it showed a token, which no other page can make a browser do."""
        shown = request.headers.get("Authorization", "")
        if shown.startswith("Bearer "):
            user = self._by_secret(request, shown.removeprefix("Bearer ").strip())
            return (Session("", "", user, 0.0) if user else None), True
        session = self._access.session(request.cookies.get(self._cookie(request)))
        if session is None and not request.path.startswith(_OPEN):
            session = self._by_connection(request)
        return session, False

    def _by_connection(self, request: web.Request) -> Session | None:
        """The kernel is asked once for each connection: whose it is does not change."""
        transport, ends = request.transport, _ends(request)
        if transport is None or ends is None:
            return None
        if transport not in self._local:
            found = self._access.by_connection(*ends)
            if found is None:
                return None
            self._local[transport] = found
        return self._local[transport]

    def _by_secret(self, request: web.Request, secret: str) -> User | None:
        host = _from(request)
        user = self._access.by_secret(secret, host)
        if user is None:
            log.warning("a wrong secret came from %s", host)
        return user

    def _cookie(self, request: web.Request) -> str:
        ends = _ends(request)
        return _COOKIE.format(port=ends[1][1] if ends else self._options.port)

    def still_in(self, request: web.Request) -> bool:
        """Whether who asked may still be answered: an answer can take as long as a page is open."""
        return self._access.holds(session_of(request))

    def _refused_change(self, request: web.Request, origin: str, bearer: bool) -> web.Response | None:
        if origin != request.host:
            return problem(403, "the request comes from another page")
        if request.path == "/login" or bearer:
            return None
        session = request[_SESSION]
        given = request.headers.get(_CSRF, "")
        if not isinstance(session, Session) or not session.csrf or not _same(given, session.csrf):
            return problem(403, "the request does not carry the secret of its session", "reload the page")
        return None

    async def login(self, request: web.Request) -> web.StreamResponse:
        given = await request.post()
        secret = given.get("secret")
        user = self._by_secret(request, secret) if isinstance(secret, str) else None
        if user is None:
            wait = "locked" if self._access.locked(_from(request)) else "wrong"
            return web.Response(status=303, headers={"Location": f"/login?{wait}"})
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(
            self._cookie(request),
            self._access.begin(user).id,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._options.tls is not None,
        )
        return response

    async def logout(self, request: web.Request) -> web.StreamResponse:
        self._access.end(session_of(request))
        response = web.json_response({})
        response.del_cookie(self._cookie(request), path="/")
        return response


def session_of(request: web.Request) -> Session:
    """Whose request it is; only behind the guard."""
    session = request[_SESSION]
    assert isinstance(session, Session)
    return session


def _for_another_page(request: web.Request) -> bool:
    """Whether a browser says that another page wants this, be it to show a picture. A link may lead to the console."""
    if request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
        return False
    opened = request.headers.get("Sec-Fetch-Mode") == "navigate" and request.method == "GET"
    return not (opened and request.path in _PAGES and request.headers.get("Sec-Fetch-Dest") == "document")


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())


def _from(request: web.Request) -> str:
    ends = _ends(request)
    return ends[0][0] if ends else ""


def _ends(request: web.Request) -> tuple[tuple[str, int], tuple[str, int]] | None:
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport else None
    here = transport.get_extra_info("sockname") if transport else None
    return ((peer[0], peer[1]), (here[0], here[1])) if peer and here else None
