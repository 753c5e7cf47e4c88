"""The console's server: the page's files, questions and actions as JSON, and the live picture as server-sent events.

What blocks runs in a few threads. Everything is limited: the size of a request, how many wait for news or tap a node
at once, how long an answer may take. Every answer carries a policy by which the page loads nothing from elsewhere and
no other page can show it in a frame; every change needs the secret of its session and the page's own origin.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from penstock import __version__
from penstock.base.errors import InUseError, PenstockError, UsageError
from penstock.base.secrets import mask
from penstock.console.access import Access, Session, is_loopback
from penstock.console.actions import Actions, Wish
from penstock.console.cluster import Cluster
from penstock.console.connectors import Connectors
from penstock.console.immortals import Immortals
from penstock.console.journals import JournalQuestions
from penstock.console.lookout import Lookout, Subscriber
from penstock.console.questions import Questions
from penstock.journal.client import BrokerGoneError, TimedOutError

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
_COOKIE = "penstock-console"
_CSRF = "X-Penstock-Csrf"
_MOST_BODY = 64 << 10
_MOST_STREAMS = 64
_MOST_TAPS = 16
_KEEP_ALIVE = 10.0
_TAP_EVERY = 0.5
_THREADS = 8
_FIRST_LOOK = 0.5
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_OPEN = ("/login", "/static/", "/favicon.svg")
"""What somebody gets who is not let in yet."""

_SESSION = web.RequestKey("session", object)
_BEGUN = web.RequestKey("begun", object)

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Options:
    """Where to listen, and with what."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class Console:
    """The application. Lives in one event loop."""

    def __init__(
        self,
        lookout: Lookout,
        questions: Questions,
        actions: Actions,
        access: Access,
        options: Options,
        cluster: Cluster | None = None,
    ) -> None:
        self._lookout = lookout
        self._questions = questions
        self._actions = actions
        self._journals = JournalQuestions(lookout.reaching, cluster)
        self._immortals = Immortals(lookout.reaching)
        self._connectors = Connectors(lookout.reaching)
        self._access = access
        self._options = options
        self._threads = ThreadPoolExecutor(_THREADS, "console")
        self._streams = self._taps = 0
        self._ending = asyncio.Event()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=_MOST_BODY, middlewares=[self._guarded])
        app.router.add_get("/", self._page)
        app.router.add_get("/favicon.svg", partial(self._file, name="favicon.svg"))
        app.router.add_get("/static/{name:[a-z0-9_/-]+\\.[a-z]+}", self._asset)
        app.router.add_get("/login", self._login_page)
        app.router.add_post("/login", self._login)
        app.router.add_post("/logout", self._logout)
        app.router.add_get("/api/session", self._session)
        app.router.add_get("/api/events", self._events)
        app.router.add_get("/api/history", self._history)
        base = "/api/pipelines/{pipeline}"
        app.router.add_get(f"{base}/log", self._answer(lambda r, p: self._questions.log(p, r.query)))
        app.router.add_get(
            f"{base}/trace/{{offset:\\d+}}",
            self._answer(lambda r, p: self._questions.trace(p, int(r.match_info["offset"]))),
        )
        app.router.add_get(
            f"{base}/sinks/{{sink}}", self._answer(lambda r, p: self._questions.sink(p, r.match_info["sink"]))
        )
        app.router.add_get(
            f"{base}/dead",
            self._answer(lambda r, p: self._questions.letters(p, settled=r.query.get("settled") == "1")),
        )
        app.router.add_get(
            f"{base}/dead/{{number:\\d+}}",
            self._answer(lambda r, p: self._questions.letter(p, int(r.match_info["number"]))),
        )
        app.router.add_get(f"{base}/audit", self._answer(lambda r, p: self._questions.audit(p)))
        app.router.add_get(f"{base}/tap", self._tap)
        app.router.add_get("/api/journals", self._answer(lambda r, _: self._journals.list(r.query)))
        app.router.add_get(
            "/api/journal", self._answer(lambda r, _: self._journals.detail(r.query.get("name", "")))
        )
        app.router.add_get("/api/connectors", self._answer(lambda r, _: self._connectors.list()))
        app.router.add_get("/api/immortals", self._answer(lambda r, _: self._immortals.list()))
        app.router.add_get("/api/health", self._answer(lambda r, _: self._journals.health()))
        app.router.add_post("/api/journals/plan", self._plan)
        app.router.add_post("/api/journals/do", self._do)
        app.router.add_post(f"{base}/plan", self._plan)
        app.router.add_post(f"{base}/do", self._do)
        return app

    def end(self) -> None:
        """Have the streams end, so that the server can."""
        self._ending.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Who may come in

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            refusal = self._refusal(request)
            response = refusal if refusal is not None else await self._handled(request, handler)
        except web.HTTPException as error:
            response = _problem(error.status, error.reason)
        if not response.prepared:
            response.headers.update({**_HEADERS, **dict(response.headers)})
        return response

    async def _handled(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except PenstockError as error:
            status = 409 if isinstance(error, InUseError) else 400 if isinstance(error, UsageError) else 502
            return _problem(status, mask(error.message), mask(error.hint) if error.hint else None)
        except (web.HTTPException, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            return _problem(500, mask(f"unexpected {type(error).__name__}: {error}"))

    def _refusal(self, request: web.Request) -> web.Response | None:
        """Why a request is not answered; None if it is. Notes who asks."""
        host = urlsplit(f"//{request.host}").hostname or ""
        if is_loopback(self._options.host) and not is_loopback(host):
            return _problem(421, f"this console is not '{host}'", "open it under the address that it printed")
        session, bearer = self._who(request)
        request[_SESSION] = session
        if session is None and not request.path.startswith(_OPEN):
            if request.path == "/" and request.method == "GET":
                return web.Response(status=303, headers={"Location": "/login"})
            return _problem(401, "not logged in", "open the page again and log in")
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
            return _problem(403, "the request comes from another page")
        if request.path == "/login" or bearer:
            return None
        session = request[_SESSION]
        if not isinstance(session, Session) or request.headers.get(_CSRF) != session.csrf:
            return _problem(403, "the request does not carry the secret of its session", "reload the page")
        return None

    # The page

    async def _page(self, request: web.Request) -> web.StreamResponse:
        response = await self._file(request, name="index.html")
        begun = request.get(_BEGUN)
        if isinstance(begun, Session):
            self._give_cookie(response, begun)
        return response

    async def _login_page(self, request: web.Request) -> web.StreamResponse:
        return await self._file(request, name="login.html")

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        return await self._file(request, name=request.match_info["name"])

    async def _file(self, request: web.Request, name: str) -> web.StreamResponse:
        path = (STATIC / name).resolve()
        if STATIC not in path.parents or path.suffix not in _TYPES or not path.is_file():
            return _problem(404, f"there is no {name}")
        state = path.stat()
        tag = f'"{state.st_mtime_ns:x}-{state.st_size:x}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(
            body=path.read_bytes(), content_type=_TYPES[path.suffix], charset="utf-8", headers=headers
        )

    async def _login(self, request: web.Request) -> web.StreamResponse:
        given = await request.post()
        secret = given.get("secret")
        user = self._access.by_secret(secret) if isinstance(secret, str) else None
        if user is None:
            wait = "locked" if self._access.locked else "wrong"
            return web.Response(status=303, headers={"Location": f"/login?{wait}"})
        response = web.Response(status=303, headers={"Location": "/"})
        self._give_cookie(response, self._access.begin(user))
        return response

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        self._access.end(_session_of(request))
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

    async def _session(self, request: web.Request) -> web.StreamResponse:
        session = _session_of(request)
        return _json(
            {
                "user": session.user.name,
                "role": session.user.role,
                "csrf": session.csrf,
                "place": self._lookout.reaching.place,
                "options": self._lookout.reaching.options,
                "version": __version__,
                "logout": bool(self._access.credentials),
            }
        )

    # The live picture

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._streams >= _MOST_STREAMS:
            return _problem(503, f"{_MOST_STREAMS} pages are open already", "close one")
        self._streams += 1
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        subscriber = Subscriber(lambda: loop.call_soon_threadsafe(news.set))
        self._lookout.subscribe(subscriber)
        try:
            await self._in_thread(lambda: self._lookout.wait_for_first(_FIRST_LOOK))
            response = await self._stream(request)
            await response.write(_event("place", self._lookout.place_text()))
            await self._send(response, set(self._lookout.names()))
            await response.write(_event("ready", b"{}"))
            while not self._ending.is_set():
                await self._send(response, await self._news(news, subscriber))
            return response
        except (ConnectionError, asyncio.CancelledError):
            return web.Response()
        finally:
            self._lookout.unsubscribe(subscriber)
            self._streams -= 1

    async def _news(self, news: asyncio.Event, subscriber: Subscriber) -> set[str] | None:
        """The names that have news; None if there are none for a while."""
        waiting = {asyncio.create_task(news.wait()), asyncio.create_task(self._ending.wait())}
        _, pending = await asyncio.wait(waiting, timeout=_KEEP_ALIVE, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if not news.is_set():
            return None
        news.clear()
        return subscriber.take()

    async def _send(self, response: web.StreamResponse, names: set[str] | None) -> None:
        if names is None:
            await response.write(b": still here\n\n")
            return
        parts = []
        for name in sorted(names):
            text = self._lookout.text(name) if name else None
            if not name:
                parts.append(_event("place", self._lookout.place_text()))
            elif text is not None:
                parts.append(_event("pipeline", text))
            else:
                parts.append(_event("gone", msgspec.json.encode(name)))
        if parts:
            await response.write(b"".join(parts))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        headers = {**_HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        return response

    async def _history(self, request: web.Request) -> web.StreamResponse:
        return _json(self._lookout.histories())

    async def _tap(self, request: web.Request) -> web.StreamResponse:
        """Messages as they pass a node, from now on or from an offset on."""
        if self._taps >= _MOST_TAPS:
            return _problem(503, f"{_MOST_TAPS} taps are open already", "close one")
        pipeline, node = request.match_info["pipeline"], request.query.get("node", "")
        at = await self._in_thread(
            lambda: self._questions.tap(pipeline, node, request.query.get("side") or None)
        )
        given = request.query.get("from", "")
        start: int | None = int(given) if given.isdigit() else None
        self._taps += 1
        try:
            response = await self._stream(request)
            quiet = time.monotonic()
            while not self._ending.is_set():
                before = start
                try:
                    upcoming, rows, refused = await self._in_thread(
                        partial(self._questions.passed, pipeline, at, start)
                    )
                except PenstockError as error:  # the owner of the journals changes, or is away for a while
                    log.debug("a tap of %s waits: %s", pipeline, error)
                    await asyncio.sleep(_TAP_EVERY)
                    continue
                start = upcoming
                if rows or refused:
                    told = {"rows": rows, "refused": {str(n): why for n, why in refused.items()}}
                    await response.write(_event("rows", msgspec.json.encode(told)))
                elif time.monotonic() - quiet > _KEEP_ALIVE:
                    quiet = time.monotonic()
                    await response.write(b": still here\n\n")
                if upcoming == before or before is None:
                    await self._until_moved(pipeline, upcoming)
            return response
        except (ConnectionError, asyncio.CancelledError):
            return web.Response()
        finally:
            self._taps -= 1

    async def _until_moved(self, pipeline: str, start: int) -> None:
        """Wait until the lookout has seen more of the log, so that a tap asks nothing in vain."""
        for _ in range(int(_KEEP_ALIVE / _TAP_EVERY)):
            view = self._lookout.view(pipeline) or {}
            seen = view.get("log")
            if self._ending.is_set() or (isinstance(seen, dict) and seen["next"] > start):
                return
            await asyncio.sleep(_TAP_EVERY)

    # Questions and actions

    def _answer(self, ask: Callable[[web.Request, str], dict[str, object]]) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            pipeline = request.match_info.get("pipeline", "")
            return _json(await self._in_thread(lambda: ask(request, pipeline)))

        return answer

    async def _plan(self, request: web.Request) -> web.StreamResponse:
        wish, pipeline = await _wish(request), request.match_info.get("pipeline")
        if pipeline is None:
            return _json(await self._in_thread(lambda: self._journals.plan(wish)))
        return _json(await self._in_thread(lambda: self._actions.plan(pipeline, wish)))

    async def _do(self, request: web.Request) -> web.StreamResponse:
        session = _session_of(request)
        if not session.user.may_change:
            return _problem(403, f"{session.user.name} may look, and change nothing")
        wish, pipeline = await _wish(request), request.match_info.get("pipeline")
        who = f"{session.user.name} (console)"
        log.info("%s: %s", who, wish)
        try:
            if pipeline is None:
                done = await self._in_thread(lambda: self._journals.carry_out(wish))
            else:
                done = await self._in_thread(lambda: self._actions.carry_out(pipeline, wish, who))
        finally:
            self._lookout.nudge()
        return _json(done)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Blocking work. A broker that went away while it was asked is asked once more by its next owner."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work)
        except (BrokerGoneError, TimedOutError) as error:
            raise PenstockError(
                f"the broker does not answer: {error.message}",
                hint="the console goes on by itself when it is back",
            ) from None


async def _wish(request: web.Request) -> Wish:
    try:
        return msgspec.json.decode(await request.read(), type=Wish)
    except msgspec.DecodeError as error:
        raise UsageError(f"the request does not read: {error}") from None


def _session_of(request: web.Request) -> Session:
    session = request[_SESSION]
    assert isinstance(session, Session)
    return session


def _ends(request: web.Request) -> tuple[tuple[str, int], tuple[str, int]] | None:
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport else None
    here = transport.get_extra_info("sockname") if transport else None
    return ((peer[0], peer[1]), (here[0], here[1])) if peer and here else None


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value, enc_hook=str), content_type="application/json")


def _problem(status: int, message: str, hint: str | None = None) -> web.Response:
    response = _json({"error": message, "hint": hint})
    response.set_status(status)
    return response
