"""What a broker has besides its service (`broker.py`): the replicas that the key space assigns to it, their stores,
threads and tasks, and what is done for them again and again.

A replica is there from the moment at which the key space says so, and goes when it says otherwise. What differs
between a broker that is alone and one of several is in the methods that `cluster/broker.py` replaces.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, cast

from penstock.base.disk import Disk
from penstock.base.errors import CorruptError, PenstockError
from penstock.journal import keys, maintenance
from penstock.journal.append import Appending
from penstock.journal.claims import EVERYTHING
from penstock.journal.datadir import DataDir, Version
from penstock.journal.flow import FlowLimits
from penstock.journal.heads import Heads
from penstock.journal.keys import MemberId
from penstock.journal.keyspace import LocalKeySpace
from penstock.journal.localspool import Workshop
from penstock.journal.metrics import Metrics
from penstock.journal.protocol import Header, JournalSpec
from penstock.journal.replica import Replica, Surroundings
from penstock.journal.replication import equivalent
from penstock.journal.resolver import Identity, KeySpace, Resolution, Resolver
from penstock.journal.rounds import Rounds
from penstock.journal.storeset import Stores
from penstock.journal.topology import LocalTopology, Topology

log = logging.getLogger(__name__)

EMBEDDED = MemberId("local", "embedded")
MAX_REPLICATION = 9
PULSE_INTERVAL = 60.0
STABLE_PULSES = 15
"""A journal is suspended by itself only after so many pulses without a change."""
_COMMIT_THREADS = 8
_STORE_THREADS = 4
_UPLOAD_THREADS = 8
_READ_THREADS = 8
_PULSES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """How a broker differs from the embedded default."""

    member: MemberId = EMBEDDED
    file_root: Path | None = None
    """Where `file:` stores lie; the data directory's own folder of fragments if not given."""
    file_only: bool = False
    stores: tuple[str, ...] = ()
    """If any: the only stores that journals may name, watched from the start."""
    flow: FlowLimits = field(default_factory=lambda: FlowLimits(grace=10.0))
    max_replication: int = MAX_REPLICATION
    first_alone: bool = False
    """As `Appending.first_alone`; of no use where spools and store are on one disk."""
    auto_suspend: bool = False
    pulse_interval: float = PULSE_INTERVAL


class Hosting:
    """An open data directory. Made on the event loop that will serve it; the caller holds the lock."""

    clustered: ClassVar[bool] = False
    """Whether other brokers have replicas, too."""

    def __init__(
        self, directory: DataDir, version: Version, disk: Disk, options: BrokerOptions | None = None
    ) -> None:
        """Recover everything in the directory. Blocks until it is ready to serve."""
        self.options = options = options or BrokerOptions()
        self.metrics = Metrics()
        self.directory = directory
        self._tasks: set[asyncio.Task[None]] = set()
        self._commits = ThreadPoolExecutor(_COMMIT_THREADS, thread_name_prefix="commit")
        self._storing = ThreadPoolExecutor(_STORE_THREADS, thread_name_prefix="store")
        self._uploading = ThreadPoolExecutor(_UPLOAD_THREADS, thread_name_prefix="upload")
        self._reading = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="read")
        self._changing = asyncio.Lock()
        self._replicas: dict[str, Replica] = {}
        self._broken: dict[str, PenstockError] = {}
        self._agreed: dict[str, Header] = {}
        """Headers whose routes the assignments bear out, so that this is looked at once a revision."""
        self._stable: Counter[str] = Counter()
        """Pulses since a journal last changed."""
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        self._waits_ended = asyncio.Event()
        self._refreshes = Rounds(self._refresh, _STORE_THREADS)
        self._pulses = Rounds(self._pulse, _PULSES_AT_ONCE)
        self._keyspace: KeySpace = self._open_keyspace(disk)
        try:
            if options.file_root is None:
                disk.make_dirs(directory.fragments)
            self.stores = Stores(
                options.file_root or directory.fragments,
                disk,
                self._storing,
                self.metrics,
                file_only=options.file_only,
                shared=options.file_root is not None,
                spawn=self._spawn,
            )
            self._surroundings = Surroundings(
                Workshop(disk, self._commits, self._spawn, self.metrics, lambda: time.time_ns() // 1000),
                self.stores,
                self._storing,
                self._uploading,
                lambda url: options.file_root is not None or not url.startswith("file:"),
                self._nested,
                clustered=self.clustered,
            )
            self.topology: Topology = self._open_topology()
            self.resolver = Resolver(self._keyspace, self._identity(version), self._replica)
            self._heads = Heads(self._keyspace, self.resolver, lambda journal: self._replicas.get(journal))
            self._appending = self._make_appending()
            for journal, spec in self.topology.journals():
                self._converge(journal, spec)
            self._keyspace.observe(self._follow)
        except BaseException:
            self._abandon()
            raise
        self._rounds = [
            self._spawn(self._refreshes.run(), "refreshes"),
            self._spawn(self._pulses.run(), "pulses"),
        ]

    # What a broker among others does otherwise.

    def _open_keyspace(self, disk: Disk) -> KeySpace:
        self.directory.refuse_lost_keyspace()
        try:
            self._local = LocalKeySpace(disk, self.directory.keyspace)
        except OSError as error:
            self.directory.refuse(error)
            raise
        return self._local

    def _close_keyspace(self) -> None:
        self._local.close()

    def _open_topology(self) -> Topology:
        """Take over every journal, also those of our earlier names. Blocks."""
        topology = LocalTopology(self._local, self.options.member, self._commits)
        topology.settle(f"unix://localhost{self.directory.socket}")
        return topology

    def _identity(self, version: Version) -> Identity:
        return Identity(self.options.member, int(version.id[:15], 16) | 1, int(version.id[15:30], 16) | 1)

    def _make_appending(self) -> Appending:
        return Appending(
            self.resolver,
            self._update_assignments,
            self._update_suspend,
            self.options.flow,
            self.options.max_replication,
            self.options.first_alone,
            asyncio.get_running_loop().time,
            self._commits,
        )

    async def _update_assignments(self, resolution: Resolution) -> int | None:
        route = resolution.header.route
        if self._agreed.get(resolution.journal) is resolution.header:
            return None
        for _, entry in self._keyspace.under(keys.assignments_of(resolution.journal)):
            if not equivalent(type(route).FromString(entry.value), route):
                raise PenstockError(f"{resolution.journal}: its assignment names another route")
        self._agreed[resolution.journal] = resolution.header
        return None

    async def _update_suspend(self, resolution: Resolution, suspend: JournalSpec.Suspend) -> int:
        assert resolution.spec is not None
        journal, held = resolution.journal, resolution.replica
        # Who holds the replica must not wait until it is let go: that waits for the holder.
        async with self._changing if held is not None else self._settled([journal]):
            if self._replicas.get(journal) is held:
                await self.topology.suspend(resolution.spec, suspend)
            return self._keyspace.revision

    def _follow(self, changed: Sequence[str]) -> None:
        """Serve what the key space says from the moment it says so, until we close."""
        for key in () if self._closed else changed:
            if key.startswith(keys.ITEMS):
                journal = key.removeprefix(keys.ITEMS)
                self._converge(journal, self.resolver.spec(journal))

    # From start to end.

    async def announce(self, endpoint: str) -> None:
        """Tell clients where they reach us; before that it is the directory's own socket."""
        async with self._changing:
            await self.topology.announce(endpoint)
        self.watch_stores()

    def watch_stores(self) -> None:
        """Begin to look after the stores that were named at the start."""
        for url in self.options.stores:
            users = [replica for replica in self._replicas.values() if url in replica.spec.fragment.stores]
            # One that only read-only journals name is another cluster's: its health is told by a listing.
            self.stores.get(url, read_only=bool(users) and all(replica.read_only for replica in users))
            self.stores.health(url)

    def replicas(self) -> Iterable[Replica]:
        return tuple(self._replicas.values())

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.end_waits()
        for task in self._rounds:
            task.cancel()
        await asyncio.gather(*self._rounds, return_exceptions=True)
        # From here on the resolver finds no replica, so that an append that looks again does not do so for ever.
        replicas, self._replicas = self._replicas, {}
        try:
            await asyncio.gather(*(replica.close() for replica in replicas.values()), *self._closing.values())
            await self.stores.close()
        finally:
            self._replicas = replicas
            self._abandon()
            self._replicas = {}  # a stream of appends without a socket may outlive us

    def end_waits(self) -> None:
        """Have reads, watches and streams of appends that wait for something end, so that nobody waits for them."""
        self._waits_ended.set()
        for replica in self._replicas.values():
            replica.end_waits()

    def _abandon(self) -> None:
        for task in self._tasks:
            task.cancel()
        for threads in (self._commits, self._storing, self._uploading, self._reading):
            threads.shutdown(wait=True)
        for replica in self._replicas.values():
            replica.abandon()
        self._close_keyspace()

    # Journals come and go.

    def _replica(self, journal: str) -> Replica | None:
        broken = self._broken.get(journal)
        if broken is not None:
            raise broken
        return self._replicas.get(journal)

    def _settled(self, names: Iterable[str]) -> Settled:
        return Settled(self._changing, self._closing, tuple(names))

    def _converge(self, journal: str, spec: JournalSpec | None) -> None:
        """Have a replica if the journal is assigned to us, and none otherwise."""
        assigned = spec is not None and self.topology.serves(journal)
        replica = self._replicas.get(journal)
        self._stable.pop(journal, None)
        if replica is not None and not assigned:
            self._let_go(journal, replica)
        elif replica is not None and spec is not None:
            replica.respecify(spec)
            replica.invalidate()
            self._refreshes.add(journal, 0.0)
        elif assigned and spec is not None:
            self._open(journal, spec)

    def _open(self, journal: str, spec: JournalSpec) -> None:
        self._broken.pop(journal, None)
        try:
            self._replicas[journal] = self._made(journal, spec)
        except (CorruptError, OSError) as error:
            self._unreadable(journal, error)
            return
        self._refreshes.add(journal, 0.0)
        self._pulses.add(journal, self.options.pulse_interval * random.random())

    def _made(self, journal: str, spec: JournalSpec) -> Replica:
        """Blocks, if there is something to recover."""
        return Replica(
            spec,
            self.directory.spools(journal),
            self._surroundings,
            trimmed=self.topology.trimmed(journal),
        )

    def _unreadable(self, journal: str, error: CorruptError | OSError) -> None:
        """One journal that is damaged must not keep the others from being served."""
        log.error("%s: not served: %s", journal, error)
        unreadable = PenstockError(f"{journal}: its spools cannot be read: {error}", hint="see to the disk")
        self._broken[journal] = error if isinstance(error, CorruptError) else unreadable

    def _let_go(self, journal: str, replica: Replica) -> None:
        """Stop serving a journal. Its fragments and spools stay: deleting a journal deletes no data."""
        del self._replicas[journal]
        self._agreed.pop(journal, None)
        self._refreshes.remove(journal)
        self._pulses.remove(journal)
        replica.retire()
        task = self._closing[journal] = self._spawn(self._parted(replica), f"close {journal}")
        task.add_done_callback(lambda _: self._closing.pop(journal, None))

    async def _parted(self, replica: Replica) -> None:
        """The end of a replica that was let go."""
        await replica.close()

    def _nested(self, journal: str) -> Iterable[str]:
        return [key.removeprefix(keys.ITEMS) for key, _ in self._keyspace.under(f"{keys.ITEMS}{journal}/")]

    # What is done again and again.

    async def _refresh(self, journal: str) -> float | None:
        replica = self._replicas.get(journal)
        if replica is None:
            return None
        await replica.refresh()
        if replica.listed and self._enforces(replica):
            begin = maintenance.retained_from(replica.spec, replica.index, replica.now_seconds())
            if begin > replica.trimmed:
                await self._trim(replica, begin)
        seconds: float = replica.spec.fragment.refresh_interval.ToSeconds() if replica.listed else 1
        return max(1.0, seconds) * random.uniform(0.9, 1.1)

    def _enforces(self, replica: Replica) -> bool:
        """Whether it is ours to delete what a journal's retention no longer keeps."""
        return True

    async def _pulse(self, journal: str) -> float | None:
        replica = self._replicas.get(journal)
        if replica is None:
            return None
        self._stable[journal] += 1
        idle = self.options.auto_suspend and self._stable[journal] > STABLE_PULSES
        await maintenance.pulse(journal, self._appending, EVERYTHING, suspend=idle)
        replica.park(time.monotonic())
        return self.options.pulse_interval

    async def _trim(self, replica: Replica, offset: int) -> tuple[int, int]:
        """First what is to go is written down; then it goes. A crash between the two is finished by a refresh."""
        async with self._changing:
            await self.topology.trim(replica.spec.name, offset)
        return await replica.delete_below(offset)

    def _spawn(self, work: Awaitable[None], name: str) -> asyncio.Task[None]:
        task = asyncio.ensure_future(cast("Coroutine[None, None, None]", work))
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: %s", task.get_name(), error, exc_info=error)


class Settled:
    """Holds the lock on the topology, once none of these journals is still being let go.

    The waiting is done without the lock: an append that holds a journal may need it before it can let go.
    """

    def __init__(
        self, lock: asyncio.Lock, closing: dict[str, asyncio.Task[None]], names: tuple[str, ...]
    ) -> None:
        self._lock = lock
        self._closing = closing
        self._names = names

    async def __aenter__(self) -> None:
        while True:
            waits = [self._closing[name] for name in self._names if name in self._closing]
            if waits:
                await asyncio.wait(waits)
                continue
            await self._lock.acquire()
            if not any(name in self._closing for name in self._names):
                return
            self._lock.release()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
