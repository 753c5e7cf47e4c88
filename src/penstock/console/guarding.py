"""Who may come in: every request passes here first.

Everybody needs a session, or shows a token. Every change needs the secret of its session and the page's own origin.
What goes wrong behind becomes an answer here, with secrets masked.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp import web

from penstock.base.errors import InUseError, PenstockError, UsageError
from penstock.base.secrets import mask
from penstock.console.access import Access, Session, is_loopback
from penstock.console.answers import HEADERS, problem

log = logging.getLogger(__name__)

_COOKIE = "penstock-console"
_CSRF = "X-Penstock-Csrf"
_OPEN = ("/login", "/static/", "/favicon.svg")
"""What somebody gets who is not let in yet."""

_SESSION = web.RequestKey("session", object)
_BEGUN = web.RequestKey("begun", object)

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

    @property
    def has_logins(self) -> bool:
        """Whether anybody can log in, and so out."""
        return bool(self._access.credentials)

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
            status = 409 if isinstance(error, InUseError) else 400 if isinstance(error, UsageError) else 502
            return problem(status, mask(error.message), mask(error.hint) if error.hint else None)
        except (web.HTTPException, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            return problem(500, mask(f"unexpected {type(error).__name__}: {error}"))

    def _refusal(self, request: web.Request) -> web.Response | None:
        """Why a request is not answered; None if it is. Notes who asks."""
        host = urlsplit(f"//{request.host}").hostname or ""
        if is_loopback(self._options.host) and not is_loopback(host):
            return problem(421, f"this console is not '{host}'", "open it under the address that it printed")
        session, bearer = self._who(request)
        request[_SESSION] = session
        if session is None and not request.path.startswith(_OPEN):
            if request.path == "/" and request.method == "GET":
                return web.Response(status=303, headers={"Location": "/login"})
            return problem(401, "not logged in", "open the page again and log in")
        if request.method not in ("GET", "HEAD"):
            return self._refused_change(request, bearer)
        return None

    def _who(self, request: web.Request) -> tuple[Session | None, bool]:
        """The session of a request, and whether it showed a token, which no other page can make a browser do."""
        shown = request.headers.get("Authorization", "")
        if shown.startswith("Bearer "):
            user = self._access.by_secret(shown.removeprefix("Bearer ").strip())
            return (Session("", "", user, 0.0) if user else None), True
        session = self._access.session(request.cookies.get(_COOKIE))
        if session is None and not request.path.startswith(_OPEN):
            ends = _ends(request)
            user = self._access.by_connection(*ends) if ends else None
            session = self._access.begin(user) if user else None
            request[_BEGUN] = session
        return session, False

    def _refused_change(self, request: web.Request, bearer: bool) -> web.Response | None:
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            return problem(403, "the request comes from another page")
        if request.path == "/login" or bearer:
            return None
        session = request[_SESSION]
        if not isinstance(session, Session) or request.headers.get(_CSRF) != session.csrf:
            return problem(403, "the request does not carry the secret of its session", "reload the page")
        return None

    async def login(self, request: web.Request) -> web.StreamResponse:
        given = await request.post()
        secret = given.get("secret")
        user = self._access.by_secret(secret) if isinstance(secret, str) else None
        if user is None:
            wait = "locked" if self._access.locked else "wrong"
            return web.Response(status=303, headers={"Location": f"/login?{wait}"})
        response = web.Response(status=303, headers={"Location": "/"})
        self._give_cookie(response, self._access.begin(user))
        return response

    async def logout(self, request: web.Request) -> web.StreamResponse:
        self._access.end(session_of(request))
        response = web.json_response({})
        response.del_cookie(_COOKIE, path="/")
        return response

    def _give_cookie(self, response: web.StreamResponse, session: Session) -> None:
        response.set_cookie(
            _COOKIE,
            session.id,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._options.tls is not None,
        )

    def welcome(self, request: web.Request, response: web.StreamResponse) -> None:
        """Give the cookie of a session that began with this request."""
        begun = request.get(_BEGUN)
        if isinstance(begun, Session):
            self._give_cookie(response, begun)


def session_of(request: web.Request) -> Session:
    """Whose request it is; only behind the guard."""
    session = request[_SESSION]
    assert isinstance(session, Session)
    return session


def _ends(request: web.Request) -> tuple[tuple[str, int], tuple[str, int]] | None:
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport else None
    here = transport.get_extra_info("sockname") if transport else None
    return ((peer[0], peer[1]), (here[0], here[1])) if peer and here else None
