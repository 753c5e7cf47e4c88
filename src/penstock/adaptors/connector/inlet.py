"""Between the event loop that serves connectors and the thread that a source is read in: runs of messages, in order.

The loop puts what came; the reader takes it, makes batches of it, and says when they are in the log. Then the loop
hears of it, and the connectors get their ACKs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.base.errors import PenstockError, UsageError
from penstock.connector import directory, web
from penstock.connector.instancelog import InstanceLog, OnDurable
from penstock.connector.instances import Instance
from penstock.connector.intake import Run
from penstock.connector.records import Points
from penstock.connector.serving import Peer
from penstock.connector.settings import JOURNALS, WorkerSettings, WorkerTls
from penstock.connector.threaded import Threaded
from penstock.connector.worker import Worker
from penstock.journal.client import Client


@dataclass(frozen=True, slots=True)
class Item:
    """Messages, or the end of a stream."""

    run: Run | None
    ended: int | None
    on_durable: OnDurable

    @property
    def size(self) -> int:
        return self.run.size if self.run is not None else 0


class Inlet(InstanceLog):
    """The log of the one instance, as the worker sees it."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self.names = {stream: point.name for stream, point in points.items()}
        self._lock = threading.Condition()
        self._items: deque[Item] = deque()
        self._pending = 0
        self._put_ever = self._told_ever = 0
        self._open = {stream for stream, point in points.items() if not point.ended}
        self._any = bool(points)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._closed = False

    # The worker's side, in the event loop.

    def messages(self, run: Run, on_durable: OnDurable) -> None:
        with self._lock:
            self._open |= run.lasts.keys()
        self._put(Item(run, None, on_durable))

    def opened(self, stream: int, name: str) -> None:
        with self._lock:
            self.names[stream] = name
            self._open.add(stream)
            self._any = True

    def ended(self, stream: int, on_durable: OnDurable) -> None:
        self._put(Item(None, stream, on_durable))

    @property
    def pending_bytes(self) -> int:
        return self._pending

    async def flush(self) -> None:
        before = self._put_ever
        while self._told_ever < before and not self._closed:
            self._news.clear()
            await self._news.wait()
        if self._told_ever < before:
            raise PenstockError("the pipeline does not read any more")

    async def close(self) -> None:
        self.shut()

    def shut(self) -> None:
        """Nothing more becomes durable."""
        self._closed = True
        self._news.set()

    def _put(self, item: Item) -> None:
        self._loop = asyncio.get_running_loop()
        with self._lock:
            self._items.append(item)
            self._put_ever += 1
            self._pending += max(item.size, 1)
            self._lock.notify()

    def _durable(self, items: Sequence[Item]) -> None:
        for item in items:
            self._pending -= max(item.size, 1)
            self._told_ever += 1
            item.on_durable()
        self._news.set()

    # The reader's side, in its thread.

    def take(self, most_bytes: int, wait: float) -> list[Item]:
        """What came, up to about so much; waits a while if nothing did."""
        with self._lock:
            if not self._items:
                self._lock.wait(wait)
            taken, size = [], 0
            while self._items and size < most_bytes:
                taken.append(self._items.popleft())
                size += taken[-1].size
            return taken

    def logged(self, items: Sequence[Item]) -> None:
        """These are in the log."""
        if self._loop is not None and not self._loop.is_closed():
            with self._lock:
                for item in items:
                    if item.ended is not None:
                        self._open.discard(item.ended)
            self._loop.call_soon_threadsafe(self._durable, list(items))

    @property
    def finished(self) -> bool:
        """Whether there were streams, and all of them have ended."""
        with self._lock:
            return self._any and not self._open and not self._items


@dataclass(frozen=True, slots=True)
class Listing:
    """Where the source of a pipeline is to be found by those who ask for workers: under which name, at which broker.

    `http` is where it tells of its sessions and streams; empty for nowhere.
    """

    client: Client
    pipeline: str
    name: str
    http: str


class InletWorker(Worker):
    """A worker whose only instance ends in an inlet. It is in a directory if it is given a `listing`."""

    def __init__(
        self,
        settings: WorkerSettings,
        inlet: Inlet,
        instance: str,
        tls: WorkerTls | None = None,
        listing: Listing | None = None,
    ) -> None:
        prefix = directory.pipeline_prefix(listing.pipeline) if listing is not None else JOURNALS
        super().__init__(
            settings, journals=prefix, name=listing.name if listing is not None else "pipeline", tls=tls
        )
        self._inlet = inlet
        self._instance = instance
        self._listing = listing
        self._calls: Threaded | None = None
        self._web: asyncio.Server | None = None
        if listing is not None:
            self.pipeline = listing.pipeline
            self.listing = self._calls = Threaded(listing.client)

    async def begin(self, listen: str) -> None:
        """Listen, and be found."""
        await self.start(listen)
        if self._listing is not None:
            if self._listing.http:
                self._web = await web.serve(self, self._listing.http)
            self.announce()

    async def stop(self, patience: float = 10.0) -> None:
        try:
            await super().stop(patience)
        finally:
            if self._web is not None:
                self._web.close()
            if self._calls is not None:
                self._calls.close()

    async def join(self, peer: Peer, name: str) -> Instance | str:
        if name != self._instance:
            raise PenstockError(f"this worker takes the instance '{self._instance}', not '{name}'")
        return await super().join(peer, name)

    async def open_log(self, instance: Instance) -> InstanceLog:
        return self._inlet

    async def migrate(self, what: str, address: str) -> str:
        """Refused: what its streams have sent is in the log of this pipeline, and another one knows nothing of it."""
        self.instance_of(what)
        raise UsageError(f"this is the source of pipeline '{self.pipeline}', whose streams cannot move")
