"""The broker of a data directory, for a program with an event loop that stays.

Whoever owns the directory answers on its socket. If nobody does, this program takes it, with a broker in its own event
loop (gRPC does not like two of them in one process). A command that has it for a moment is waited for, however many
come one behind the other. An owner that stays is left to it; when it has gone (a run that ended, another worker that
was killed) and is not back after a while, the directory is taken over. The socket has the same address all the while,
so clients see their broker come back, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from penstock.base.disk import Disk
from penstock.base.errors import InUseError, PenstockError
from penstock.journal.broker import Broker
from penstock.journal.datadir import DataDir, Lock
from penstock.journal.embedded import address
from penstock.journal.near import NearCall
from penstock.journal.server import serve_socket

log = logging.getLogger(__name__)

PATIENCE = 2.0
"""Seconds that whoever has the directory at the start may take to be gone: longer than a command has it."""
ABSENCE = 15.0
"""Seconds without an owner after which none is expected back: a run that is started anew finds the directory free."""
_POLL = 0.1
_PAUSE = 5.0
"""Seconds until a directory that could not be opened is tried again."""


class Served:
    """Where the broker is, and a way to it without a socket while it is in this event loop."""

    def __init__(self, directory: DataDir, disk: Disk) -> None:
        self.address = address(directory)
        self._directory = directory
        self._disk = disk
        self._owning = AsyncExitStack()
        self._broker: Broker | None = None
        self._seen: float | None = None
        """When the directory last had an owner that stays."""

    def near(self) -> NearCall | None:
        """A stream of appends without a socket; None while somebody else owns the directory."""
        return NearCall(self._broker) if self._broker is not None else None

    async def begin(self) -> None:
        """Own the directory, unless somebody has it and keeps it."""
        deadline = time.monotonic() + PATIENCE
        while not await self._take() and time.monotonic() < deadline:
            self._look()
            await asyncio.sleep(_POLL)
        self._look()

    def _look(self) -> None:
        owner = self._directory.owner()
        if owner is not None and owner.pid and not owner.passing:  # one that is nameless is coming, or going
            self._seen = time.monotonic()

    async def follow(self) -> None:
        """Take the directory when nobody who stays has had it for a while, or ever."""
        while self._broker is None:
            await asyncio.sleep(_POLL)
            self._look()
            if self._seen is not None and time.monotonic() - self._seen < ABSENCE:
                continue
            try:
                await self._take()
            except (PenstockError, OSError) as error:
                log.warning("%s has no owner, and cannot be opened: %s", self._directory.path, error)
                await asyncio.sleep(_PAUSE)

    async def _take(self) -> bool:
        with suppress(InUseError):
            owned = _owned(self._directory, self._disk)
            self._broker = await self._owning.enter_async_context(owned)
        return self._broker is not None

    async def release(self) -> None:
        self._broker = None
        await self._owning.aclose()


@asynccontextmanager
async def served(path: Path, *, disk: Disk | None = None) -> AsyncIterator[Served]:
    """The data directory's broker, whoever has it, for the time of the block."""
    here = Served(DataDir(path), disk or Disk())
    await here.begin()
    following = asyncio.create_task(here.follow(), name="follow the directory's owner")
    try:
        yield here
    finally:
        following.cancel()
        try:
            await asyncio.wait({following})
        finally:
            await here.release()


@asynccontextmanager
async def _owned(directory: DataDir, disk: Disk) -> AsyncIterator[Broker]:
    """A broker of ours; an `InUseError` if somebody has the directory."""
    lock = Lock(directory, disk)
    try:
        broker = Broker(directory, directory.create(disk), disk)
        ready, stop = asyncio.Event(), asyncio.Event()
        serving = asyncio.create_task(_served(broker, ready, stop))
        try:
            waiting = asyncio.create_task(ready.wait())
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if serving.done():
                serving.result()
            yield broker
        finally:
            stop.set()
            await serving
    finally:
        lock.release()


async def _served(broker: Broker, ready: asyncio.Event, stop: asyncio.Event) -> None:
    """Serve until the end, and close with it: who appends without a socket is not to go on alone."""
    try:
        await serve_socket(broker, ready.set, stop)
    finally:
        await broker.close()
