"""Large content on its way into a spool: written and hashed in a thread, while the next chunk is received.

The interpreter's lock is held for neither. A thread is used only while there is something to write, so that clients
that trickle hold none; and no more than `LIMIT` bytes wait, which holds the client back.

The thread decides to leave under the same lock under which chunks are added: a chunk is either seen by the thread
that is there, or starts another. So when the last thread that was started has ended, everything has been written.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress

from penstock.base.disk import Buffer
from penstock.journal.uncancelled import uncancelled

LIMIT = 2 << 20


class Inflow:
    """The chunks of one append, in order. After an error nothing more is written, and every call tells it."""

    __slots__ = ("_bytes", "_chunks", "_failed", "_last", "_lock", "_room", "_running", "_threads", "_write")

    def __init__(self, write: Callable[[Buffer], None], threads: Executor) -> None:
        self._write = write
        self._threads = threads
        self._lock = threading.Lock()
        self._chunks: deque[Buffer] = deque()
        self._bytes = 0
        self._running = False
        self._failed = False
        self._room: asyncio.Event | None = None
        self._last: asyncio.Future[None] | None = None
        """The last thread that was started."""

    async def put(self, chunk: Buffer) -> None:
        """Have a chunk written after those before it; waits while too much is waiting."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._chunks.append(chunk)
            self._bytes += len(chunk)
            starts, self._running = not self._running, True
        if starts:
            self._last = loop.run_in_executor(self._threads, self._drain, loop)
        while self._bytes > LIMIT and not self._failed:
            room = self._room = asyncio.Event()
            if self._bytes > LIMIT and not self._failed:
                await room.wait()
        if self._failed:
            await self.drained()

    async def drained(self) -> None:
        """Wait until everything is written; raises what went wrong."""
        if self._last is not None:
            await uncancelled(self._last)

    async def abandoned(self) -> None:
        """Wait until the thread has let go; what was not written will not be."""
        with self._lock:
            self._chunks.clear()
        with suppress(Exception):
            await self.drained()

    def _drain(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while (chunk := self._next()) is not None:
                self._write(chunk)
                with self._lock:
                    self._bytes -= len(chunk)
                self._make_room(loop)
        except BaseException:
            self._failed = True  # `_running` stays: nobody starts another
            raise
        finally:
            self._make_room(loop)

    def _next(self) -> Buffer | None:
        with self._lock:
            if not self._chunks:
                self._running = False
                return None
            return self._chunks.popleft()

    def _make_room(self, loop: asyncio.AbstractEventLoop) -> None:
        room = self._room
        if room is not None and (self._bytes <= LIMIT or self._failed):
            self._room = None
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(room.set)
