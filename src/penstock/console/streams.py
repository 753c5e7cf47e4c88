"""What is told as it happens, as server-sent events: the live picture, and messages as they pass a node.

How many wait for news or tap a node at once is limited; one that is slow holds nobody up. Who logs out is told nothing
more.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from aiohttp import web

from penstock.base.errors import PenstockError
from penstock.console.answers import HEADERS, event, problem
from penstock.console.lookout import Lookout, Subscriber
from penstock.console.questions import Questions

log = logging.getLogger(__name__)

_MOST_STREAMS = 64
_MOST_TAPS = 16
_KEEP_ALIVE = 10.0
_TAP_EVERY = 0.5
_OFFSET = re.compile(r"[0-9]{1,19}")

T = TypeVar("T")


class InThread(Protocol):
    """Does blocking work elsewhere."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]: ...


class Streams:
    """Of one console. Lives in one event loop."""

    def __init__(
        self,
        lookout: Lookout,
        questions: Questions,
        work: InThread,
        still_in: Callable[[web.Request], bool],
    ) -> None:
        """`still_in` tells whether who asked may still be answered."""
        self._lookout = lookout
        self._questions = questions
        self._work = work
        self._still_in = still_in
        self._streams = self._taps = 0
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Have all of them end."""
        self._ending.set()

    async def events(self, request: web.Request) -> web.StreamResponse:
        if self._streams >= _MOST_STREAMS:
            return problem(503, f"{_MOST_STREAMS} pages are open already", "close one")
        self._streams += 1
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        subscriber = Subscriber(lambda: loop.call_soon_threadsafe(news.set))
        self._lookout.subscribe(subscriber)
        try:
            response = await self._stream(request)
            await response.write(event("place", self._lookout.place_text()))
            await self._send(response, set(self._lookout.names()))
            await response.write(event("ready", b"{}"))
            while not self._ending.is_set():
                told = await self._news(news, subscriber)
                if not self._still_in(request):
                    break
                await self._send(response, told)
            if self._ending.is_set():
                await response.write(event("end", b"{}"))
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
                parts.append(event("place", self._lookout.place_text()))
            elif text is not None:
                parts.append(event("pipeline", text))
            else:
                parts.append(event("gone", msgspec.json.encode(name)))
        if parts:
            await response.write(b"".join(parts))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        headers = {**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        return response

    async def tap(self, request: web.Request) -> web.StreamResponse:
        """Messages as they pass a node, from now on or from an offset on."""
        if self._taps >= _MOST_TAPS:
            return problem(503, f"{_MOST_TAPS} taps are open already", "close one")
        pipeline, node = request.match_info["pipeline"], request.query.get("node", "")
        at = await self._work(lambda: self._questions.tap(pipeline, node, request.query.get("side") or None))
        given = request.query.get("from", "")
        start: int | None = int(given) if _OFFSET.fullmatch(given) else None
        self._taps += 1
        try:
            response = await self._stream(request)
            quiet = time.monotonic()
            while not self._ending.is_set() and self._still_in(request):
                before = start
                try:
                    upcoming, rows, refused = await self._work(
                        partial(self._questions.passed, pipeline, at, start)
                    )
                except PenstockError as error:  # the owner of the journals changes, or is away for a while
                    log.debug("a tap of %s waits: %s", pipeline, error)
                    await asyncio.sleep(_TAP_EVERY)
                    continue
                start = upcoming
                if rows or refused:
                    told = {"rows": rows, "refused": {str(n): why for n, why in refused.items()}}
                    await response.write(event("rows", msgspec.json.encode(told)))
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
