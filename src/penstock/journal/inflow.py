"""Large content on its way into a spool: written and hashed in a thread, while the next chunk is received.

The interpreter's lock is held for neither. A thread is used only while there is something to write, so that clients
that trickle hold none; and no more than `LIMIT` bytes wait, which holds the client back.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress

from penstock.journal.uncancelled import uncancelled

LIMIT = 2 << 20


class Inflow:
    """The chunks of one append, in order. After an error nothing more is written, and the error is told by `put`."""

    __slots__ = ("_bytes", "_chunks", "_draining", "_lock", "_room", "_threads", "_write")

    def __init__(self, write: Callable[[bytes], None], threads: Executor) -> None:
        self._write = write
        self._threads = threads
        self._chunks: deque[bytes] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._room: asyncio.Event | None = None
        self._draining: asyncio.Future[None] | None = None

    async def put(self, chunk: bytes) -> None:
        """Have a chunk written after those before it; waits while too much is waiting."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._chunks.append(chunk)
            self._bytes += len(chunk)
            idle = self._draining is None
        if idle:
            self._start(loop)
        while self._bytes > LIMIT and self._draining is not None:
            room = self._room = asyncio.Event()
            if self._draining.done():
                await self.drained()  # it failed, or is about to be started again
            elif self._bytes > LIMIT:
                await room.wait()

    async def drained(self) -> None:
        """Wait until everything is written; raises what went wrong."""
        while self._draining is not None:
            draining = self._draining
            await uncancelled(draining)
            if self._draining is draining:
                self._draining = None

    async def abandoned(self) -> None:
        """Wait until the thread has let go; what was not written will not be."""
        with self._lock:
            self._chunks.clear()
        with suppress(Exception):
            await self.drained()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._draining = loop.run_in_executor(self._threads, self._drain, loop)
        self._draining.add_done_callback(self._ended)

    def _ended(self, draining: asyncio.Future[None]) -> None:
        """On the loop: go on if chunks came while the thread was leaving."""
        if self._room is not None:
            self._room.set()
        if draining is not self._draining or draining.exception() is not None:
            return
        with self._lock:
            more = bool(self._chunks)
        if more:
            self._start(draining.get_loop())
        else:
            self._draining = None

    def _drain(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._lock:
                if not self._chunks:
                    return
                chunk = self._chunks.popleft()
            self._write(chunk)
            with self._lock:
                waits = self._bytes > LIMIT
                self._bytes -= len(chunk)
                waits = waits and self._bytes <= LIMIT
            if waits and self._room is not None:
                loop.call_soon_threadsafe(self._room.set)
