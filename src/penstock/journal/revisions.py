"""Waiting for a revision of a key space, whichever kind it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class RevisionWaits:
    """Who waits for which revision of a key space, which says by `current` where it is, and wakes them when it moves.

    Belongs to one event loop.
    """

    def __init__(self, current: Callable[[], int]) -> None:
        self._current = current
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def wake(self) -> None:
        """The key space has moved."""
        waiting, self._waiting = self._waiting, []
        for wanted, future in waiting:
            if wanted > self._current():
                self._waiting.append((wanted, future))
            elif not future.done():
                future.set_result(None)

    async def until(self, revision: int) -> None:
        """Return once that revision is there; a future one may take for ever."""
        while self._current() < revision:
            waiting = (revision, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            try:
                await waiting[1]
            except asyncio.CancelledError:
                with suppress(ValueError):  # the revision came at the same moment
                    self._waiting.remove(waiting)
                raise
