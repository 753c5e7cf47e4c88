"""Rounds: every journal is visited again and again, each at its own interval, a few at a time.

One task serves all journals of a broker, so an idle journal costs an entry in a heap and nothing else.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from itertools import count

log = logging.getLogger(__name__)

_AFTER_A_FAILURE = 10.0


class Rounds:
    """`visit` is called with a journal's name and says in how many seconds it wants to come again; None: never."""

    def __init__(self, visit: Callable[[str], Awaitable[float | None]], at_once: int) -> None:
        self._visit = visit
        self._turns = asyncio.Semaphore(at_once)
        self._due: list[tuple[float, int, str]] = []
        self._wanted: dict[str, int] = {}
        self._numbers = count()
        self._sooner = asyncio.Event()
        self._active: set[str] = set()
        self._again: set[str] = set()
        """Journals whose next visit came due during a visit."""
        self._visits: set[asyncio.Task[None]] = set()

    def add(self, name: str, delay: float) -> None:
        """Visit a journal after so many seconds; an earlier plan for it is forgotten."""
        number = next(self._numbers)
        self._wanted[name] = number
        heapq.heappush(self._due, (asyncio.get_running_loop().time() + delay, number, name))
        self._sooner.set()

    def remove(self, name: str) -> None:
        self._wanted.pop(name, None)

    async def run(self) -> None:
        """Go round until cancelled; visits under way are cancelled and waited for."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._sooner.clear()
                wait = self._due[0][0] - loop.time() if self._due else None
                if wait is None or wait > 0:
                    await _wait(self._sooner, wait)
                    continue
                _, number, name = heapq.heappop(self._due)
                if self._wanted.get(name) != number:
                    continue
                if name in self._active:
                    self._again.add(name)  # one visit of a journal at a time
                    continue
                self._active.add(name)
                await self._turns.acquire()
                task = loop.create_task(self._one(name, number), name=f"visit {name}")
                self._visits.add(task)
                task.add_done_callback(self._visits.discard)
        finally:
            visits = tuple(self._visits)
            for task in visits:
                task.cancel()
            await asyncio.gather(*visits, return_exceptions=True)

    async def _one(self, name: str, number: int) -> None:
        again: float | None = _AFTER_A_FAILURE
        try:
            again = await self._visit(name)
        except Exception:
            log.exception("%s: a visit failed; it is tried again", name)
        finally:
            self._turns.release()
            self._active.discard(name)
        if name in self._again:
            self._again.discard(name)
            if name in self._wanted:
                self.add(name, 0.0)
        elif again is not None and self._wanted.get(name) == number:
            self.add(name, again)


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
