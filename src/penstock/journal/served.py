"""The broker of a data directory, for a program with an event loop that stays.

Whoever owns the directory answers on its socket. If nobody does, this program takes it, with a broker in its own event
loop (gRPC does not like two of them in one process); later as well, when the owner of before has gone: a command that
looked in for a moment, a run that has ended, another worker that was killed. The socket has the same address all the
while, so clients see their broker come back, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
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

_POLL = 0.2
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

    def near(self) -> NearCall | None:
        """A stream of appends without a socket; None while somebody else owns the directory."""
        return NearCall(self._broker) if self._broker is not None else None

    async def take(self) -> None:
        """Own the directory, unless somebody does."""
        with suppress(InUseError):
            owned = _owned(self._directory, self._disk)
            self._broker = await self._owning.enter_async_context(owned)

    async def follow(self) -> None:
        """Take the directory as soon as nobody has it."""
        while self._broker is None:
            await asyncio.sleep(_POLL)
            try:
                await self.take()
            except (PenstockError, OSError) as error:
                log.warning("%s has no owner, and cannot be opened: %s", self._directory.path, error)
                await asyncio.sleep(_PAUSE)

    async def release(self) -> None:
        self._broker = None
        await self._owning.aclose()


@asynccontextmanager
async def served(path: Path, *, disk: Disk | None = None) -> AsyncIterator[Served]:
    """The data directory's broker, whoever has it, for the time of the block."""
    here = Served(DataDir(path), disk or Disk())
    await here.take()
    following = asyncio.create_task(here.follow(), name="follow the directory's owner")
    try:
        yield here
    finally:
        following.cancel()
        await asyncio.wait({following})
        await here.release()


@asynccontextmanager
async def _owned(directory: DataDir, disk: Disk) -> AsyncIterator[Broker]:
    """A broker of ours; an `InUseError` if somebody has the directory."""
    lock = Lock(directory, disk)
    try:
        broker = Broker(directory, directory.create(disk), disk)
        ready, stop = asyncio.Event(), asyncio.Event()
        serving = asyncio.create_task(serve_socket(broker, ready.set, stop))
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
            await broker.close()
    finally:
        lock.release()
