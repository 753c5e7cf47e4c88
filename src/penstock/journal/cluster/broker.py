"""A broker among others: the service of `broker.py` over etcd's key space, with replicas elsewhere.

What it does besides: it serves the journals that the allocator assigns to it, and when it leads, runs the allocator;
appends go through pipelines to all replicas; what others have to answer is passed on to them. What a crash left is
recovered in a thread, since the lease has to be kept meanwhile.

Out: `drain` has others take over, `leave` gives the lease back, `close` ends the rest. Each may be left out, as by a
crash: then others take over when the lease has run out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

from penstock.base.disk import Disk
from penstock.base.errors import CorruptError
from penstock.journal import batches, keys, maintenance, replicate
from penstock.journal.append import Appending, AppendMachine
from penstock.journal.appending import StoppedServingError
from penstock.journal.broker import Broker
from penstock.journal.chunks import Content
from penstock.journal.claims import EVERYTHING, Claims
from penstock.journal.cluster import proxy
from penstock.journal.cluster.advertise import Advertising
from penstock.journal.cluster.allocate import Allocation
from penstock.journal.cluster.etcd_errors import EtcdError
from penstock.journal.cluster.membership import Membership
from penstock.journal.cluster.peers import Peers
from penstock.journal.cluster.pipeline import Pipelines
from penstock.journal.cluster.proxy import ProxyError
from penstock.journal.cluster.reading import Reading
from penstock.journal.cluster.survey import Surveyor
from penstock.journal.cluster.topology import EtcdTopology
from penstock.journal.datadir import DataDir, Version
from penstock.journal.hosting import STABLE_PULSES, BrokerOptions
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    BrokerSpec,
    FragmentsRequest,
    FragmentsResponse,
    Head,
    Header,
    HeadsRequest,
    JournalSpec,
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
from penstock.journal.replica import Replica
from penstock.journal.resolver import Identity, KeySpace, Resolution
from penstock.journal.tokens import ValidationError

log = logging.getLogger(__name__)

SOON = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
"""Seconds after which a pulse that came to nothing is sent again."""
_LOOK_FOR_GAPS = 0.5
_LOOK_AROUND = 0.2
_HOPELESS = 5
"""So many looks around at which there was no room with others, and a broker leaves all the same."""
_LAST_APPENDS = 10.0
"""Seconds that appends under way have to be acknowledged, when the broker leaves."""


class ClusterBroker(Broker):
    """Made when the membership has been joined."""

    clustered: ClassVar[bool] = True

    def __init__(
        self,
        directory: DataDir,
        version: Version,
        disk: Disk,
        options: BrokerOptions,
        membership: Membership,
    ) -> None:
        self.membership = membership
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._created: dict[str, int] = {}
        """The revisions at which the journals were made that our replicas are of."""
        self._faltering: dict[str, int] = {}
        """Pulses in a row that came to nothing."""
        self._trimming: set[str] = set()
        """Journals that we trim ourselves."""
        self.peers = Peers(tls=membership.options.peer_tls, keys=membership.options.keys)
        super().__init__(directory, version, disk, options)
        self.allocation = Allocation(
            membership.mirror, membership.me, max_replication=options.max_replication
        )
        self._rounds.append(self._spawn(self.allocation.run(), "allocation"))
        self._meet_peers()
        self.watch_stores()

    # What is otherwise than at a broker that is alone (`Hosting`).

    def _open_keyspace(self, disk: Disk) -> KeySpace:
        return self.membership.mirror

    def _close_keyspace(self) -> None:
        """Whoever joined leaves."""

    def _open_topology(self) -> EtcdTopology:
        self._space = EtcdTopology(self.membership.mirror, self.membership.me)
        return self._space

    def _identity(self, version: Version) -> Identity:
        return self.membership.identity()

    def _make_appending(self) -> Appending:
        self.pipelines = Pipelines(
            self.peers, self.membership.me, self._spawn, self._commits, self._pulse_soon
        )
        self.surveyor = Surveyor(self.resolver, self._reading)
        self._advertising = Advertising(self._keyspace, self._space.advertise)
        self._reads = Reading(self.peers, self.membership.me, self._reading, self._waits_ended)
        return Appending(
            self.resolver,
            self._advertising,
            self._space.update_suspend,
            self.options.flow,
            self.options.max_replication,
            self.options.first_alone,
            asyncio.get_running_loop().time,
            self._commits,
            pipeline_of=self.pipelines,
            may_act=self.membership.session.is_alive,
            pass_on=self._append_whole_elsewhere,
        )

    def _require_allowed(self, change: ApplyRequest.Change, claims: Claims) -> None:
        super()._require_allowed(change, claims)
        require_shared(change.upsert, self.options)

    def _enforces(self, replica: Replica) -> bool:
        return self._space.leads(replica.spec.name)

    # Journals come and go.

    def _follow(self, changed: Sequence[str]) -> None:
        journals: dict[str, None] = {}
        for key in () if self._closed else changed:
            if key.startswith(keys.ASSIGN):
                journals[keys.parse_assignment(key).journal] = None
            elif key.startswith(keys.ITEMS):
                journals[key.removeprefix(keys.ITEMS)] = None
            elif key.startswith(keys.TRIMS):
                self._trimmed_elsewhere(key.removeprefix(keys.TRIMS))
            elif key.startswith(keys.MEMBERS):
                self._meet_peers()
        for journal in journals:
            self.resolver.forget(journal)
            self._converge(journal, self.resolver.spec(journal))

    def _converge(self, journal: str, spec: JournalSpec | None) -> None:
        assigned = spec is not None and self._space.serves(journal)
        replica = self._replicas.get(journal)
        self._stable.pop(journal, None)
        item = self._keyspace.get(keys.item_key(journal))
        made = item.create_revision if item is not None else 0
        if replica is not None and (not assigned or self._created.get(journal) != made):
            self._let_go(journal, replica)
            replica = None
        if not assigned or spec is None:
            return
        if replica is None:
            self._created[journal] = made
            self._open(journal, spec)
            return
        replica.respecify(spec)
        replica.invalidate()
        if not replica.listed:
            self._refreshes.add(journal, 0.0)
        if self._space.leads(journal):
            self._pulses.add(journal, 0.0)

    def _replica(self, journal: str) -> Replica | None:
        if journal in self._opening:
            raise StoppedServingError(journal, "this broker still recovers the journal")
        return super()._replica(journal)

    def _open(self, journal: str, spec: JournalSpec) -> None:
        if journal in self._opening:
            return  # it looks at what is assigned when it is done
        if journal not in self._closing and not self.directory.spools(journal).exists():
            super()._open(journal, spec)
            if journal in self._replicas:
                self._begin(journal)
            return
        self._broken.pop(journal, None)
        task = self._opening[journal] = self._spawn(self._recovered(journal), f"recover {journal}")
        task.add_done_callback(lambda done: self._opened(journal, done))

    def _opened(self, journal: str, task: asyncio.Task[None]) -> None:
        if self._opening.get(journal) is task:
            del self._opening[journal]

    def _begin(self, journal: str) -> None:
        """A replica is there: have it listed, and synchronised if that is ours to do."""
        self._replicas[journal].on_agreed = lambda: self._look_for_gap(journal)
        self._refreshes.add(journal, 0.0)
        self._pulses.add(journal, 0.0)

    def _look_for_gap(self, journal: str) -> None:
        """What others closed for our sake will be in the store soon."""
        replica = self._replicas.get(journal)
        if replica is not None and replica.has_gap:
            self._refreshes.add(journal, _LOOK_FOR_GAPS)

    async def _recovered(self, journal: str) -> None:
        """Recover what is on our disk, once whoever had it before has closed it."""
        if journal in self._closing:
            await asyncio.wait((self._closing[journal],))
        spec = self.resolver.spec(journal)
        if spec is None or self._closed:
            return
        try:
            replica = await asyncio.get_running_loop().run_in_executor(
                self._commits, self._made, journal, spec
            )
        except (CorruptError, OSError) as error:
            self._unreadable(journal, error)
            return
        self._opening.pop(journal, None)
        spec = self.resolver.spec(journal)
        if spec is None or self._closed or not self._space.serves(journal):
            replica.abandon()
            return
        replica.respecify(spec)
        self._replicas[journal] = replica
        self.resolver.forget(journal)
        self._begin(journal)

    def _let_go(self, journal: str, replica: Replica) -> None:
        self._advertising.forget(journal)
        self._created.pop(journal, None)
        self._faltering.pop(journal, None)
        super()._let_go(journal, replica)

    async def _parted(self, replica: Replica) -> None:
        """What is complete gets into the store first, unless the journal has been deleted: our disk may go with us."""
        await replica.close(persist=self.resolver.spec(replica.spec.name) is not None)

    async def _trim(self, replica: Replica, offset: int) -> tuple[int, int]:
        journal = replica.spec.name
        self._trimming.add(journal)
        try:
            return await super()._trim(replica, offset)
        finally:
            self._trimming.discard(journal)
            self._trimmed_elsewhere(journal)

    def _trimmed_elsewhere(self, journal: str) -> None:
        """The primary has trimmed a journal; what we have below that goes as well. Who trims deletes it itself."""
        replica = self._replicas.get(journal)
        offset = self._space.trimmed(journal)
        if replica is not None and offset > replica.trimmed and journal not in self._trimming:
            replica.forget_below(offset)

    def _meet_peers(self) -> None:
        """See who is there, and of what make; connections to brokers that have gone are closed."""
        members = [BrokerSpec.FromString(entry.value) for _, entry in self._keyspace.under(keys.MEMBERS)]
        self.peers.foreign = {member.process_spec.endpoint for member in members if not member.penstock}
        endpoints = {member.process_spec.endpoint for member in members}
        self._spawn(self.peers.retain(endpoints), "connections")

    # Pulses.

    def _pulse_soon(self, journal: str) -> None:
        """Something came in the way of a journal's replication."""
        if journal in self._replicas and not self._closed:
            self._pulses.add(journal, SOON[0])

    async def _pulse(self, journal: str) -> float | None:
        replica = self._replicas.get(journal)
        if replica is None:
            return None
        if not self._space.leads(journal):
            replica.park(time.monotonic())
            return self.options.pulse_interval
        self._stable[journal] += 1
        idle = self.options.auto_suspend and self._stable[journal] > STABLE_PULSES
        went_well = await maintenance.pulse(journal, self._appending, EVERYTHING, suspend=idle)
        if went_well:
            self._faltering.pop(journal, None)
            replica.park(time.monotonic())
            return self.options.pulse_interval
        failures = self._faltering[journal] = self._faltering.get(journal, 0) + 1
        return SOON[min(failures, len(SOON)) - 1]

    async def _refresh(self, journal: str) -> float | None:
        again = await super()._refresh(journal)
        replica = self._replicas.get(journal)
        if replica is not None and replica.has_gap:
            return _LOOK_FOR_GAPS  # what another replica has closed will be in the store soon
        return again

    # What others have to answer.

    async def _reading_of(
        self, resolution: Resolution, request: ReadRequest, chunk: int
    ) -> AsyncGenerator[ReadResponse, None]:
        replica = resolution.replica
        if replica is None:
            return self._reads.elsewhere(resolution, request, chunk)
        await self._reads.until_known(replica, request)
        return await super()._reading_of(resolution, request, chunk)

    async def _fragments_of(self, resolution: Resolution, request: FragmentsRequest) -> FragmentsResponse:
        if resolution.replica is None:
            return await proxy.list_fragments(self.peers, resolution.header, request)
        await self._reads.until_known(resolution.replica, None)
        return await super()._fragments_of(resolution, request)

    async def _heads_elsewhere(
        self, request: HeadsRequest, journals: Mapping[str, frozenset[str]]
    ) -> Sequence[Head]:
        return await proxy.heads(self.peers, request, journals)

    async def _append(
        self, first: AppendRequest, requests: AsyncIterator[AppendRequest | Content], claims: Claims
    ) -> AppendResponse:
        machine = AppendMachine(first, requests, self._appending, claims)
        try:
            return await batches.answered(machine)
        except batches.ElsewhereError:
            pass
        try:
            return await proxy.append(self.peers, machine.header, first, requests)
        except ProxyError as error:
            return _not_done(machine.header, error)

    async def _append_whole_elsewhere(self, header: Header, request: AppendRequest) -> AppendResponse:
        try:
            return await proxy.append_whole(self.peers, header, request)
        except ProxyError as error:
            return _not_done(header, error)

    async def _trim_elsewhere(self, resolution: Resolution, request: TrimRequest) -> TrimResponse:
        return await proxy.trim(self.peers, resolution.header, request)

    async def _roll_elsewhere(self, resolution: Resolution, request: RollRequest) -> RollResponse:
        return await proxy.roll(self.peers, resolution.header, request)

    def replicate(
        self, requests: AsyncIterator[ReplicateRequest], claims: Claims
    ) -> AsyncIterator[ReplicateResponse]:
        return replicate.replicate(requests, claims, self.resolver, self.pipelines.examine)

    # Out.

    async def drain(self) -> bool:
        """Have others take over all that we serve; False if they do not, for want of room or of time."""
        with suppress(TimeoutError, EtcdError):
            async with asyncio.timeout(self.membership.options.drain):
                await self.membership.exit()
                hopeless = 0
                while hopeless < _HOPELESS and not await self._drained_for(_LOOK_AROUND):
                    hopeless = 0 if self.allocation.may_drain else hopeless + 1
        return self.allocation.holds_nothing

    async def _drained_for(self, seconds: float) -> bool:
        """Whether we are rid of all journals, within a moment."""
        try:
            async with asyncio.timeout(seconds):
                await self.allocation.drained()
        except TimeoutError:
            return False
        return True

    async def retire(self) -> None:
        """Let go of all that we still serve, when what is under way is done; whoever comes is told to go elsewhere."""
        if self._replicas:
            log.warning("%d journals are left by this broker: nobody took over", len(self._replicas))
        for journal, replica in tuple(self._replicas.items()):
            self._let_go(journal, replica)
        if self._closing:
            await asyncio.wait(tuple(self._closing.values()), timeout=_LAST_APPENDS)

    async def close(self) -> None:
        self._closed = True
        for task in (*self._opening.values(), *self._closing.values()):
            task.cancel()
        waits = (*self._opening.values(), *self._closing.values())
        if waits:
            await asyncio.wait(waits)
        self._closed = False
        await super().close()
        await self.peers.close()


def require_shared(spec: JournalSpec, options: BrokerOptions) -> None:
    """Stores are to be the same for all brokers; a folder in the data directory of one is not."""
    if options.file_root is not None:
        return
    for url in spec.fragment.stores:
        if url.startswith("file:") or options.file_only:
            raise ValidationError(
                f"{url} would be another directory at each broker: start them with --file-root, and the same directory",
                field=f"{spec.name}: Stores",
            )


def _not_done(header: Header, error: ProxyError) -> AppendResponse:
    """The primary could not be reached, which is a reason to try again; what else went wrong leaves it in doubt."""
    if not error.harmless:
        raise error
    log.info("an append was not passed on: %s", error)
    return AppendResponse(status=Status.NO_JOURNAL_PRIMARY_BROKER, header=header)
