"""A slot: something that one task owns at a time (the seed's pipeline, the seed's spool).

First come, first served. A slot can be closed: whoever waits, or comes later, is turned away at once and looks
for another; the owner keeps what it has until it lets go.
"""

from __future__ import annotations

import asyncio
from collections import deque

from penstock.base.errors import PenstockError


class SlotClosedError(PenstockError):
    """What the slot belongs to is no longer in charge; resolve again."""


class Slot:
    """Owned by one task at a time."""

    __slots__ = ("_closed", "_closing", "_owned", "_waiting")

    def __init__(self) -> None:
        self._owned = False
        self._closed = False
        self._closing = asyncio.Event()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def owned(self) -> bool:
        return self._owned

    @property
    def closed(self) -> bool:
        return self._closed

    async def acquire(self) -> None:
        """Wait for the turn; SlotClosedError if there will be none."""
        if self._closed:
            raise SlotClosedError("the slot is closed")
        if not self._owned:
            self._owned = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release()  # our turn had just come
            raise

    def release(self) -> None:
        """Let the next one have it."""
        assert self._owned
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._owned = False

    def wake(self) -> None:
        """Turn away who waits now: what they wait for may have changed. They may come again."""
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_exception(SlotClosedError("what was waited for has changed"))

    def close(self) -> None:
        """Turn away who waits, and all who come."""
        self._closed = True
        self._closing.set()
        self.wake()

    async def drained(self) -> None:
        """Take a closed slot over from its last owner."""
        assert self._closed
        if not self._owned:
            self._owned = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    async def until_closed(self) -> None:
        """Wait until somebody closes the slot; for an owner that would keep it for long."""
        await self._closing.wait()
