"""The console's server: the page's files, questions and actions as JSON, and what happens as events (`streams.py`).

What blocks runs in a few threads. Everything is limited: the size of a request, how many wait for news at once, how
long an answer may take. Who asks is seen to first (`guarding.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from aiohttp import web

from penstock import __version__
from penstock.base.errors import UNREADABLE, AwayError, UsageError
from penstock.console.access import Access
from penstock.console.actions import Actions, Outcome, Plan, Wish
from penstock.console.answers import json_answer, problem
from penstock.console.cluster import Cluster
from penstock.console.connectors import Connectors
from penstock.console.guarding import Guard, Handler, Options, session_of
from penstock.console.immortals import Immortals
from penstock.console.journals import JournalQuestions
from penstock.console.lookout import Lookout
from penstock.console.questions import Questions
from penstock.console.streams import Streams
from penstock.journal.client import BrokerGoneError, TimedOutError

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
_MOST_BODY = 64 << 10
_THREADS = 8
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

T = TypeVar("T")


class Acting(Protocol):
    """Something that can be done to what a page shows: planned first, then carried out."""

    def plan(self, wish: Wish) -> Plan: ...

    def carry_out(self, wish: Wish, who: str) -> Outcome: ...


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
        cookie: bytes = b"",
        beside: str = "",
    ) -> None:
        """`cookie` is what workers of connectors want of who moves their instances; `beside` the pipeline that runs."""
        self._beside = beside
        self._lookout = lookout
        self._questions = questions
        self._actions = actions
        self._journals = JournalQuestions(lookout.reaching, cluster)
        self._immortals = Immortals(lookout.reaching)
        self._connectors = Connectors(lookout.reaching, cookie)
        self._guard = Guard(access, options)
        self._threads = ThreadPoolExecutor(_THREADS, "console")
        self._streams = Streams(lookout, questions, self._in_thread, self._guard.still_in)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=_MOST_BODY, middlewares=[self._guard.guarded])
        app.router.add_get("/", self._page)
        app.router.add_get("/favicon.svg", partial(self._file, name="favicon.svg"))
        app.router.add_get("/static/{name:[a-z0-9_/-]+\\.[a-z]+}", self._asset)
        app.router.add_get("/login", self._login_page)
        app.router.add_post("/login", self._guard.login)
        app.router.add_post("/logout", self._guard.logout)
        app.router.add_get("/api/session", self._session)
        app.router.add_get("/api/events", self._streams.events)
        app.router.add_get("/api/history", self._history)
        base = "/api/pipelines/{pipeline}"
        app.router.add_get(f"{base}/log", self._answer(lambda r, p: self._questions.log(p, r.query)))
        app.router.add_get(
            f"{base}/trace/{{offset:[0-9]{{1,19}}}}",
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
            f"{base}/dead/{{number:[0-9]{{1,19}}}}",
            self._answer(lambda r, p: self._questions.letter(p, int(r.match_info["number"]))),
        )
        app.router.add_get(f"{base}/audit", self._answer(lambda r, p: self._questions.audit(p)))
        app.router.add_get(f"{base}/tap", self._streams.tap)
        app.router.add_get("/api/journals", self._answer(lambda r, _: self._journals.list(r.query)))
        app.router.add_get(
            "/api/journal", self._answer(lambda r, _: self._journals.detail(r.query.get("name", "")))
        )
        app.router.add_get("/api/connectors", self._answer(lambda r, _: self._connectors.list()))
        app.router.add_get("/api/immortals", self._answer(lambda r, _: self._immortals.list()))
        app.router.add_get("/api/health", self._answer(lambda r, _: self._journals.health()))
        for path, acting in (("/api/journals", self._journals), ("/api/connectors", self._connectors)):
            app.router.add_post(f"{path}/plan", partial(self._plan, acting=acting))
            app.router.add_post(f"{path}/do", partial(self._do, acting=acting))
        app.router.add_post(f"{base}/plan", self._plan)
        app.router.add_post(f"{base}/do", self._do)
        return app

    def end(self) -> None:
        """Have the streams end, so that the server can."""
        self._streams.end()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # The page

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return await self._file(request, name="index.html")

    async def _login_page(self, request: web.Request) -> web.StreamResponse:
        return await self._file(request, name="login.html")

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        return await self._file(request, name=request.match_info["name"])

    async def _file(self, request: web.Request, name: str) -> web.StreamResponse:
        path = (STATIC / name).resolve()
        if STATIC not in path.parents or path.suffix not in _TYPES or not path.is_file():
            return problem(404, f"there is no {name}")
        state = path.stat()
        tag = f'"{state.st_mtime_ns:x}-{state.st_size:x}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(
            body=path.read_bytes(), content_type=_TYPES[path.suffix], charset="utf-8", headers=headers
        )

    async def _session(self, request: web.Request) -> web.StreamResponse:
        session = session_of(request)
        return json_answer(
            {
                "user": session.user.name,
                "role": session.user.role,
                "csrf": session.csrf,
                "place": self._lookout.reaching.place,
                "options": self._lookout.reaching.options,
                "version": __version__,
                "beside": self._beside,
                "logout": bool(session.id),
            }
        )

    async def _history(self, request: web.Request) -> web.StreamResponse:
        return json_answer(self._lookout.histories())

    # Questions and actions

    def _answer(self, ask: Callable[[web.Request, str], dict[str, object]]) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            pipeline = request.match_info.get("pipeline", "")
            return json_answer(await self._in_thread(lambda: ask(request, pipeline)))

        return answer

    async def _plan(self, request: web.Request, acting: Acting | None = None) -> web.StreamResponse:
        wish = await _wish(request)
        return json_answer(await self._in_thread(lambda: self._acting(request, acting).plan(wish)))

    async def _do(self, request: web.Request, acting: Acting | None = None) -> web.StreamResponse:
        session = session_of(request)
        if not session.user.may_change:
            return problem(403, f"{session.user.name} may look, and change nothing")
        wish, who = await _wish(request), f"{session.user.name} (console)"
        log.info("%s: %s", who, wish)
        try:
            done = await self._in_thread(lambda: self._acting(request, acting).carry_out(wish, who))
        finally:
            self._lookout.nudge()
        return json_answer(done)

    def _acting(self, request: web.Request, acting: Acting | None) -> Acting:
        """What the request is about, unless it is said: the pipeline that its path names."""
        return acting or self._actions.of(request.match_info["pipeline"])

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Blocking work. A broker that went away while it was asked is asked once more by its next owner."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work)
        except (BrokerGoneError, TimedOutError) as error:
            raise AwayError(
                f"the broker does not answer: {error.message}",
                hint="the console goes on by itself when it is back",
            ) from None


async def _wish(request: web.Request) -> Wish:
    try:
        return msgspec.json.decode(await request.read(), type=Wish)
    except UNREADABLE as error:
        raise UsageError(f"the request does not read: {error}") from None
