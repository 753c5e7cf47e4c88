"""The embedded broker: a data directory opened by this process, or the broker of the process that has it.

`EmbeddedBroker` owns the directory: it takes the lock, recovers, and serves the socket from a thread with an
event loop of its own. `connect` is for commands: whoever owns the directory answers; if nobody does, this
process owns it for the moment. Programs with an event loop that stay have `journal.served`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from penstock.base.disk import Disk
from penstock.base.errors import InUseError, PenstockError
from penstock.journal.broker import Broker
from penstock.journal.client import BrokerGoneError, Client
from penstock.journal.datadir import DataDir, Lock
from penstock.journal.near import NearBroker
from penstock.journal.server import EMBEDDED_GRACE, serve_socket

_PATIENCE = 5.0
_POLL = 0.05


class EmbeddedBroker:
    """Owns a data directory from `start` to `stop`."""

    def __init__(
        self,
        path: Path,
        *,
        create: bool = True,
        patience: float = _PATIENCE,
        grace: float = EMBEDDED_GRACE,
        passing: bool = False,
        disk: Disk | None = None,
    ) -> None:
        """`patience` is for the owner that the directory may have, `grace` for whoever asks us when we are to end.

        `passing` is for commands, which have the directory for a moment: who wants to have it waits for them.
        """
        self.directory = DataDir(path)
        self._grace = grace
        self._disk = disk or Disk()
        if not create:
            self.directory.version()
        self._lock = Lock(self.directory, self._disk, patience, passing=passing)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._near: NearBroker | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            self._lock.release()
            raise self._error

    @property
    def address(self) -> str:
        return address(self.directory)

    def client(self) -> Client:
        """A client for the other threads of this process, most of whose calls need no socket."""
        return Client(self.address, near=self._near)

    def stop(self) -> None:
        """Stop serving and let the directory go; once is enough."""
        assert self._loop is not None
        assert self._stop is not None
        if self._thread.is_alive():
            with suppress(RuntimeError):  # its loop has just ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._lock.release()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        version = self.directory.create(self._disk)
        broker = Broker(self.directory, version, self._disk)
        self._near = NearBroker(broker, self._loop)
        try:
            await serve_socket(broker, self._ready.set, self._stop, self._grace)
        finally:
            await broker.close()


def address(directory: DataDir) -> str:
    return f"unix:{directory.socket}"


@contextmanager
def connect(path: Path) -> Iterator[Client]:
    """A client of whoever owns the data directory; of ourselves if nobody does. Makes no directory."""
    directory = DataDir(path)
    directory.version()
    deadline = time.monotonic() + _PATIENCE
    while True:
        if directory.owner() is not None:
            with Client(address(directory)) as client:
                if _answers(client):
                    yield client
                    return
            if time.monotonic() > deadline:
                raise PenstockError(
                    f"the owner of {directory.path} does not answer on its socket",
                    hint="it may still be starting, or hang; see `ps`",
                )
            time.sleep(_POLL)
            continue
        try:
            broker = EmbeddedBroker(path, create=False, patience=0.0, passing=True)
        except InUseError:
            time.sleep(_POLL)
            continue
        with broker, Client(broker.address) as client:
            yield client
        return


def _answers(client: Client) -> bool:
    try:
        client.list()
    except BrokerGoneError:
        return False
    return True
