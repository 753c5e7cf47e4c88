"""The broker: a data directory opened for serving, and the journal service on top of it (`service.py`).

Shutdown, in this order: reads, watches and streams of appends that wait end; the server stops taking calls and
those under way get a moment; each replica waits for its commits, gives up storing and closes its files; threads
end. A fragment not yet in the store is found again at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from penstock.base.disk import Disk
from penstock.base.errors import CorruptError, PenstockError
from penstock.journal import batches, chunks, keys, listing, maintenance, read, replicate, validation
from penstock.journal.append import Appending, AppendMachine
from penstock.journal.chunks import Content
from penstock.journal.claims import EVERYTHING, Claims
from penstock.journal.datadir import DataDir, Version
from penstock.journal.flow import FlowLimits
from penstock.journal.health import probe_delete
from penstock.journal.keys import MemberId
from penstock.journal.keyspace import LocalKeySpace
from penstock.journal.localspool import Workshop
from penstock.journal.metrics import Metrics
from penstock.journal.protocol import (
    AppendBatch,
    AppendBatchResult,
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    ApplyResponse,
    FragmentsRequest,
    FragmentsResponse,
    FragmentStoreHealthRequest,
    FragmentStoreHealthResponse,
    Header,
    JournalSpec,
    ListRequest,
    ListResponse,
    LocateRequest,
    LocateResponse,
    ReadRequest,
    ReadResponse,
    ReplicateRequest,
    ReplicateResponse,
    RollRequest,
    RollResponse,
    Status,
    TrimRequest,
    TrimResponse,
)
from penstock.journal.replica import Replica, Surroundings
from penstock.journal.replication import equivalent
from penstock.journal.resolver import Identity, Resolution, Resolver
from penstock.journal.rounds import Rounds
from penstock.journal.storeset import Stores
from penstock.journal.tokens import ValidationError
from penstock.journal.topology import LocalTopology

log = logging.getLogger(__name__)

STORE_URL = "file:///"
EMBEDDED = MemberId("local", "embedded")
MAX_REPLICATION = 9
PULSE_INTERVAL = 60.0
FIRST_MESSAGE = 60.0
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


class Broker:
    """An open data directory. Made on the event loop that will serve it; the caller holds the lock."""

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
        self._keyspace = LocalKeySpace(disk, directory.keyspace)
        try:
            if options.file_root is None:
                disk.make_dirs(directory.fragments)
            self.stores = Stores(
                options.file_root or directory.fragments,
                disk,
                self._storing,
                self.metrics,
                file_only=options.file_only,
                spawn=self._spawn,
            )
            self._surroundings = Surroundings(
                Workshop(disk, self._commits, self._spawn, self.metrics, lambda: time.time_ns() // 1000),
                self.stores,
                self._storing,
                self._uploading,
                lambda url: options.file_root is not None or not url.startswith("file:"),
                self._nested,
            )
            self.topology = LocalTopology(self._keyspace, options.member, self._commits)
            self.topology.settle(f"unix://localhost{directory.socket}")
            self.resolver = Resolver(self._keyspace, _identity(options.member, version), self._replica)
            self._appending = Appending(
                self.resolver,
                self._update_assignments,
                self._update_suspend,
                options.flow,
                options.max_replication,
                options.first_alone,
                asyncio.get_running_loop().time,
                self._commits,
            )
            self._refreshes = Rounds(self._refresh, _STORE_THREADS)
            self._pulses = Rounds(self._pulse, _PULSES_AT_ONCE)
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

    async def announce(self, endpoint: str) -> None:
        """Tell clients where they reach us; before that it is the directory's own socket."""
        async with self._changing:
            await self.topology.announce(endpoint)
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
        replicas, self._replicas = self._replicas, {}
        try:
            await asyncio.gather(*(replica.close() for replica in replicas.values()), *self._closing.values())
            await self.stores.close()
        finally:
            self._replicas = replicas
            self._abandon()

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
        self._keyspace.close()

    # The service's methods.

    def list(self, request: ListRequest, claims: Claims) -> AsyncIterator[ListResponse]:
        validation.validate_list_request(request)
        return listing.list_journals(request, claims, self._keyspace, self.resolver, self._waits_ended)

    async def apply(self, request: ApplyRequest, claims: Claims) -> ApplyResponse:
        validation.validate_apply_request(request)
        names = [change.upsert.name or change.delete for change in request.changes]
        for change in request.changes:
            self._require_allowed(change, claims)
        if len(set(names)) < len(names):
            raise ValidationError("two changes of one journal in one request", field="Changes")
        closing: list[asyncio.Task[None]] = []
        async with self._settled(names):
            applied = await self.topology.apply(request.changes)
            response = ApplyResponse(header=self.resolver.header())
            if applied:
                closing = [self._closing[name] for name in names if name in self._closing]
            else:
                response.status = Status.ETCD_TRANSACTION_FAILED
        for task in closing:
            await asyncio.shield(task)
        return response

    async def read(
        self, request: ReadRequest, claims: Claims, chunk: int = read.CHUNK
    ) -> AsyncGenerator[ReadResponse, None]:
        validation.validate_read_request(request)
        resolution = await self.resolver.resolve(
            request.journal,
            claims,
            may_proxy=not request.do_not_proxy,
            min_revision=request.min_etcd_revision,
            header=request.header if request.HasField("header") else None,
        )
        if resolution.status != Status.OK:
            yield ReadResponse(status=resolution.status, header=resolution.header)
            return
        replica = _served(resolution)
        answers = read.read(request, replica, resolution.header, self._reading, min(chunk, read.MAX_CHUNK))
        async with aclosing(answers):
            async for response in answers:
                yield response

    async def append(
        self, requests: AsyncIterator[AppendRequest | Content], claims: Claims
    ) -> AppendResponse:
        try:
            async with asyncio.timeout(FIRST_MESSAGE):
                message = await anext(requests, None)
        except TimeoutError:
            raise PenstockError(f"append stream: no request came for {FIRST_MESSAGE:g} s") from None
        if message is None:
            raise PenstockError("append stream: unexpected EOF")
        first = chunks.whole(message)
        validation.validate_append_request(first)
        machine = AppendMachine(first, requests, self._appending, claims)
        await machine.run()
        return batches.response_of(machine)

    async def append_whole(self, request: AppendRequest, claims: Claims) -> AppendResponse:
        machine = batches.whole((request,), self._appending, claims)
        await machine.run()
        return batches.response_of(machine)

    def appends(
        self, requests: AsyncIterator[AppendBatch], claims: Claims
    ) -> AsyncIterator[AppendBatchResult]:
        return batches.appends(requests, self._appending, claims, self._waits_ended)

    def replicate(
        self, requests: AsyncIterator[ReplicateRequest], claims: Claims
    ) -> AsyncIterator[ReplicateResponse]:
        return replicate.replicate(requests, claims, self.resolver)

    async def list_fragments(self, request: FragmentsRequest, claims: Claims) -> FragmentsResponse:
        validation.validate_fragments_request(request)
        resolution = await self.resolver.resolve(
            request.journal,
            claims,
            may_proxy=not request.do_not_proxy,
            header=request.header if request.HasField("header") else None,
        )
        if resolution.status != Status.OK:
            return FragmentsResponse(status=resolution.status, header=resolution.header)
        return await listing.list_fragments(request, _served(resolution), resolution.header, self._storing)

    async def fragment_store_health(
        self, request: FragmentStoreHealthRequest, claims: Claims
    ) -> FragmentStoreHealthResponse:
        validation.validate_fragment_store_health_request(request)
        response = FragmentStoreHealthResponse(header=self.resolver.header())
        try:
            health = self.stores.health(request.fragment_store)
            await health.first_check()
            error = health.error or self.stores.trouble(request.fragment_store)
            if not error and request.check_delete:
                store = self.stores.as_used(request.fragment_store)
                await probe_delete(store, request.check_delete_prefix)
        except (PenstockError, OSError) as failure:
            error = str(failure)
        if error:
            response.status, response.store_health_error = Status.FRAGMENT_STORE_UNHEALTHY, error
        return response

    async def locate(self, request: LocateRequest, claims: Claims) -> LocateResponse:
        resolution = await self.resolver.resolve(request.journal, claims, may_proxy=False)
        if resolution.status != Status.OK:
            return LocateResponse(status=resolution.status)
        return await listing.locate(request, _served(resolution))

    async def trim(self, request: TrimRequest, claims: Claims) -> TrimResponse:
        resolution = await self._maintained(request.journal, claims)
        if resolution.status != Status.OK:
            return TrimResponse(status=resolution.status, header=resolution.header)
        replica = _served(resolution)
        if replica.read_only:
            return TrimResponse(status=Status.NOT_ALLOWED, header=resolution.header)
        if not 0 <= request.offset <= replica.write_head:
            raise ValidationError(
                f"expected 0 <= Offset <= write head ({request.offset}; write head {replica.write_head})"
            )
        if replica.local.fragment.length and request.offset >= replica.local.committed_end:
            await maintenance.roll(request.journal, self._appending, claims)
        fragments, size = await self._trim(replica, request.offset)
        begin = replica.index.begin if len(replica.index) else replica.write_head
        return TrimResponse(header=resolution.header, begin=begin, fragments=fragments, bytes=size)

    async def roll(self, request: RollRequest, claims: Claims) -> RollResponse:
        resolution = await self._maintained(request.journal, claims)
        status, offset = resolution.status, 0
        if status == Status.OK:
            status, offset = await maintenance.roll(request.journal, self._appending, claims)
        return RollResponse(status=status, header=resolution.header, offset=offset)

    # What the append machine asks for.

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

    # Journals come and go.

    def _replica(self, journal: str) -> Replica | None:
        broken = self._broken.get(journal)
        if broken is not None:
            raise broken
        return self._replicas.get(journal)

    def _settled(self, names: Iterable[str]) -> _Settled:
        return _Settled(self._changing, self._closing, tuple(names))

    def _follow(self, changed: Sequence[str]) -> None:
        """Serve what the key space says from the moment it says so, until we close."""
        for key in () if self._closed else changed:
            if key.startswith(keys.ITEMS):
                journal = key.removeprefix(keys.ITEMS)
                self._converge(journal, self.resolver.spec(journal))

    def _converge(self, journal: str, spec: JournalSpec | None) -> None:
        """Have a replica if the journal is assigned to us, and none otherwise."""
        assigned = spec is not None and any(True for _ in self._keyspace.under(keys.assignments_of(journal)))
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
            self._replicas[journal] = Replica(
                spec,
                self.directory.spools(journal),
                self._surroundings,
                trimmed=self.topology.trimmed(journal),
            )
        except (CorruptError, OSError) as error:
            # One journal that is damaged must not keep the others from being served.
            log.error("%s: not served: %s", journal, error)
            unreadable = PenstockError(
                f"{journal}: its spools cannot be read: {error}", hint="see to the disk"
            )
            self._broken[journal] = error if isinstance(error, CorruptError) else unreadable
            return
        self._refreshes.add(journal, 0.0)
        self._pulses.add(journal, self.options.pulse_interval * random.random())

    def _let_go(self, journal: str, replica: Replica) -> None:
        """Stop serving a journal. Its fragments and spools stay: deleting a journal deletes no data."""
        del self._replicas[journal]
        self._agreed.pop(journal, None)
        self._refreshes.remove(journal)
        self._pulses.remove(journal)
        replica.retire()
        task = self._closing[journal] = self._spawn(replica.close(), f"close {journal}")
        task.add_done_callback(lambda _: self._closing.pop(journal, None))

    def _nested(self, journal: str) -> Iterable[str]:
        return [key.removeprefix(keys.ITEMS) for key, _ in self._keyspace.under(f"{keys.ITEMS}{journal}/")]

    # What is done again and again.

    async def _refresh(self, journal: str) -> float | None:
        replica = self._replicas.get(journal)
        if replica is None:
            return None
        await replica.refresh()
        if replica.listed:
            begin = maintenance.retained_from(replica.spec, replica.index, replica.now_seconds())
            if begin > replica.trimmed:
                await self._trim(replica, begin)
        seconds: float = replica.spec.fragment.refresh_interval.ToSeconds() if replica.listed else 1
        return max(1.0, seconds) * random.uniform(0.9, 1.1)

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

    async def _maintained(self, journal: str, claims: Claims) -> Resolution:
        validation.validate_request_journal(journal)
        resolution = await self.resolver.resolve(journal, claims, require_primary=True)
        if resolution.replica is not None:
            await resolution.replica.until_listed_once()
        return resolution

    def _require_allowed(self, change: ApplyRequest.Change, claims: Claims) -> None:
        from penstock.journal.auth import UnauthenticatedError

        spec = change.upsert
        if change.HasField("upsert") and not claims.allows(spec):
            raise UnauthenticatedError(f"not authorized to {spec.name}")
        if not change.HasField("upsert") and not claims.allows_name(change.delete):
            raise UnauthenticatedError(f"not authorized to {change.delete}")
        allowed = self.options.stores
        for url in spec.fragment.stores:
            if allowed and url not in allowed:
                raise ValidationError(
                    f"this broker serves the stores {', '.join(allowed)}, not {url}",
                    field=f"{spec.name}: Stores",
                )

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


class _Settled:
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


def _identity(member: MemberId, version: Version) -> Identity:
    return Identity(member, int(version.id[:15], 16) | 1, int(version.id[15:30], 16) | 1)


def _served(resolution: Resolution) -> Replica:
    if resolution.replica is None:
        raise PenstockError(f"{resolution.journal}: this broker has stopped serving the journal")
    return resolution.replica
