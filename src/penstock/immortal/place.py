"""Where an instance's journals are: a broker's address, or a data directory.

A data directory has one owner, whose broker serves everybody. Here that is a process of its own, started by the first
coordinator that finds the directory without an owner; it ends with that coordinator, and another one's takes over. So
any number of coordinators share a directory, and each may be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.base.disk import Disk
from penstock.base.errors import InUseError, PenstockError
from penstock.journal.client import AsyncClient, BrokerGoneError, TimedOutError
from penstock.journal.client.connection import Tls, Tokens
from penstock.journal.datadir import DataDir, Lock

_ADDRESS = re.compile(r"(https?://|unix:)")
_POLL = 0.1
_ENDING = 0.01
_PATIENCE = 60.0
# Others keep their streams of appends open. The sooner we are gone, the sooner one of them serves what they ask again.
_GRACE = 0.2


def is_address(place: str) -> bool:
    """Whether a place is a broker's address, and not a directory."""
    return _ADDRESS.match(place) is not None


class Place:
    """A way to the journals, for as long as it is open."""

    def __init__(self, client: AsyncClient, directory: DataDir | None) -> None:
        self.client = client
        self._directory = directory
        self._broker: subprocess.Popen[bytes] | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def reach(self) -> None:
        """Return when a broker answers."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while True:
            if self._directory is not None:
                self._own_if_nobody_does(self._directory)
            try:
                await self.client.list()
                return
            except (BrokerGoneError, TimedOutError):
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(_POLL)

    def _own_if_nobody_does(self, directory: DataDir) -> None:
        # Nothing is awaited here: who waits for a broker and who keeps one would start two, and forget one of them.
        is_ours = self._broker is not None and self._broker.poll() is None
        if is_ours or directory.owner() is not None:
            return
        self._let_go()
        self._broker = subprocess.Popen(
            [sys.executable, "-m", "penstock.immortal.place", str(directory.path)], stdin=subprocess.PIPE
        )

    async def _keep(self, directory: DataDir) -> None:
        while True:
            self._own_if_nobody_does(directory)
            await asyncio.sleep(0.3)

    async def open(self) -> None:
        if self._directory is not None:
            self._keeping = asyncio.create_task(self._keep(self._directory), name="broker of the directory")
        await self.reach()

    async def close(self) -> None:
        """Return when our broker has ended; it ends as well for one who does not wait so long."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        await self.client.close()
        self._let_go()
        while self._broker is not None and self._broker.poll() is None:  # noqa: ASYNC110 - a process sets no event
            await asyncio.sleep(_ENDING)

    def _let_go(self) -> None:
        """A broker whose standard input is closed ends."""
        if self._broker is not None and self._broker.stdin is not None:
            self._broker.stdin.close()


@asynccontextmanager
async def opened(place: str, *, tls: Tls | None = None, tokens: Tokens | None = None) -> AsyncIterator[Place]:
    """Open a place: `http://HOST:PORT`, `https://…`, `unix:/PATH`, or a directory."""
    if is_address(place):
        made = Place(AsyncClient(place, tls=tls, tokens=tokens, follow_routes=True), None)
    else:
        directory = DataDir(Path(place))
        _check(directory)
        made = Place(AsyncClient(f"unix:{directory.socket}"), directory)
    try:
        await made.open()
        yield made
    finally:
        await made.close()


def _check(directory: DataDir) -> None:
    """Refuse a directory that no broker could own, in words, before one is started for it again and again."""
    disk = Disk()
    try:
        lock = Lock(directory, disk, passing=True)
    except InUseError:
        return
    try:
        directory.create(disk)
    finally:
        lock.release()


def serve(path: Path) -> int:
    """Own the directory until the coordinator that started us is gone: its end of our standard input closes."""
    from penstock.journal.embedded import EmbeddedBroker  # only the broker's own process needs all of it

    try:
        broker = EmbeddedBroker(path, patience=0.0, grace=_GRACE)
    except InUseError:
        return 0  # another one was faster, and serves as well
    except PenstockError as error:
        sys.stderr.write(f"the broker of {path} did not start: {error}\n")
        return error.exit_code
    with broker:
        sys.stdin.buffer.read()
    return 0


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1])))
