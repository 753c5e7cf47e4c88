"""The append state machine (seed 003, "Append State Machine"; reference 14), one `on_*` method a state.

Each method does what its state is for and names the next one; `run` steps until a terminal state. Whatever goes
wrong before the commit proposal rolls back; after it the append is in the journal, acknowledged or not. A broker
that is the only replica passes through the same states as one with peers; its acknowledgement is its own disk's.

Small appends that came whole, one right behind the other and under the same conditions, may go through the states
together, as a *run*: what the states find out for the first holds for the others, since nobody gets in between. One
proposal commits them, and each has its own span of what was committed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

from penstock.base.disk import Buffer
from penstock.base.errors import PenstockError
from penstock.journal import registers, validation
from penstock.journal.chunks import Content
from penstock.journal.claims import Claims
from penstock.journal.flow import FlowLimits, MinimumRate
from penstock.journal.fragment import ZERO_SUM, Codec, Fragment
from penstock.journal.index import Summary
from penstock.journal.inflow import Inflow
from penstock.journal.localspool import proposal_to_extend
from penstock.journal.protocol import AppendRequest, Header, JournalSpec, LabelSet, Status
from penstock.journal.replica import Replica
from penstock.journal.replication import Pipeline, equivalent
from penstock.journal.resolver import Resolution, Resolver, desired_replication
from penstock.journal.slots import SlotClosedError
from penstock.journal.suspension import FULL, NO_RESUME, NONE, PARTIAL, RESUME, Verdict, verdict

LARGE = 128 << 10
"""From this size on a chunk is worth the way to a thread and back."""
RUN = 512 << 10
"""A run has no more content than this, so that nobody waits longer for it than for one large append."""
HEALTH_TURNS = 5
"""So many looks at an unhealthy store an append takes before it gives up."""
_IDLE_BEFORE_SUSPENSION = 24 * 3600
_OK = Status.OK
_LEVELS = {Verdict.RESUME: NONE, Verdict.SUSPEND_IN_PART: PARTIAL, Verdict.SUSPEND: FULL}
_SUM_OF_NOTHING = hashlib.sha1().digest()


class State(Enum):
    """The seed's states, and UPDATE_SUSPEND, which came after it."""

    __hash__ = object.__hash__  # members are unique, and a table of them is looked up at every step

    RESOLVE = auto()
    ACQUIRE_PIPELINE = auto()
    START_PIPELINE = auto()
    SEND_PIPELINE_SYNC = auto()
    RECV_PIPELINE_SYNC = auto()
    UPDATE_ASSIGNMENTS = auto()
    AWAIT_DESIRED_REPLICAS = auto()
    VALIDATE_PRECONDITIONS = auto()
    UPDATE_SUSPEND = auto()
    STREAM_CONTENT = auto()
    READ_ACKNOWLEDGEMENTS = auto()
    ERROR = auto()
    PROXY = auto()
    FINISHED = auto()


TERMINAL = frozenset((State.ERROR, State.PROXY, State.FINISHED))


class AppendStreamError(PenstockError):
    """The client's stream broke the contract of Append (reference 14)."""

    def __init__(self, complaint: str) -> None:
        super().__init__(f"append stream: {complaint}")


@dataclass(frozen=True, slots=True)
class Appending:
    """What the machines of one broker need of it."""

    resolver: Resolver
    update_assignments: Callable[[Resolution], Awaitable[int | None]]
    """Advertise that the replicas of this route agree: None if that stands already, else a revision to read through."""
    update_suspend: Callable[[Resolution, JournalSpec.Suspend], Awaitable[int]]
    """Write a journal's suspension, if nothing changed meanwhile; the revision to read through, won or lost."""
    flow: FlowLimits
    max_replication: int
    first_alone: bool
    """Whether a journal's first append gets a fragment of its own, so that its store soon tells that it is not new."""
    clock: Callable[[], float]
    """Seconds, for flow control only."""
    threads: Executor
    """For chunks of content that are worth it."""


class AppendMachine:
    """One Append RPC. `run` steps through the states; the result stands in the attributes."""

    __slots__ = (
        "_began",
        "_changing",
        "_claims",
        "_committing",
        "_first",
        "_health_turns",
        "_inflow",
        "_live",
        "_minimum",
        "_next_suspend",
        "_pipeline",
        "_read_through",
        "_replica",
        "_requests",
        "_resolution",
        "_roll_to",
        "_rolling",
        "_spec",
        "_summed",
        "_summer",
        "_ticket",
        "_with",
        "begin",
        "commits",
        "delayed_chunks",
        "era",
        "header",
        "registers",
        "state",
        "status",
        "store_health_error",
        "taken",
        "total_chunks",
    )

    def __init__(
        self,
        first: AppendRequest,
        requests: AsyncIterator[AppendRequest | Content] | tuple[bytes, ...],
        surroundings: Appending,
        claims: Claims,
        *,
        rolling: bool = False,
        summed: bool = True,
        era: int | None = None,
    ) -> None:
        """`requests` are what the client sends after the first; or the whole contents of a run of appends, of which
        all but the first are small and not empty. As many as go together are `taken`, at least one.

        `rolling` closes the fragment first. Unless `summed`, nobody wants to know the sum of this append. With an
        `era` (`LocalSpool.era`) it is refused if commits were given up since.
        """
        self.state = State.RESOLVE
        self.status: int = _OK
        self.header = Header()
        self.commits: list[Fragment] = []
        """Where the append landed, or each append of the run."""
        self.taken = 1
        self.registers = LabelSet()
        self.begin = -1
        self.total_chunks = 0
        self.delayed_chunks = 0
        self.store_health_error = ""
        self._first = first
        self._requests = requests
        self._with = surroundings
        self._claims = claims
        self._read_through = first.min_etcd_revision
        self._resolution: Resolution | None = None
        self._replica: Replica | None = None
        self._spec: JournalSpec | None = None
        self._pipeline: Pipeline | None = None
        self._live = False
        """Whether we own the replica's pipeline slot."""
        self._rolling = rolling
        self._roll_to: int | None = None
        self._next_suspend: JournalSpec.Suspend | None = None
        self._health_turns = 0
        self._changing = first.HasField("union_registers") or first.HasField("subtract_registers")
        self._committing = False
        self._minimum: MinimumRate | None = None
        self._summer: hashlib._Hash | None = None
        self._summed = summed
        self.era = era
        self._inflow: Inflow | None = None
        """Large chunks on their way into the file, while the next one is received."""
        self._began = False
        self._ticket = 0

    async def run(self) -> None:
        """Step to the end. The pipeline is given back and uncommitted content rolled back in any case."""
        try:
            while self.state not in TERMINAL:
                await self.step()
        finally:
            await self._end()

    async def run_to(self, state: State) -> None:
        """Step until this state is the next one, or a terminal one is reached; an error rolls back what was begun."""
        try:
            while self.state is not state and self.state not in TERMINAL:
                await self.step()
        except BaseException:
            await self._end()
            raise
        if self.state in TERMINAL:
            await self._end()

    async def _end(self) -> None:
        """Nobody may have the pipeline while a thread of ours still writes to it."""
        try:
            if self._inflow is not None:
                await self._inflow.abandoned()
        finally:  # a second cancellation is told after the write
            self._inflow = None
            self.release()

    async def step(self) -> None:
        """Do what the state is for."""
        await _STEPS[self.state](self)

    async def on_resolve(self) -> None:
        first = self._first
        resolution = await self._with.resolver.resolve(
            first.journal,
            self._claims,
            may_proxy=not first.do_not_proxy,
            require_primary=True,
            min_revision=self._read_through,
            header=first.header if first.HasField("header") else None,
        )
        self._resolution, self.header, self._spec = resolution, resolution.header, resolution.spec
        if self._live and resolution.replica is not self._replica:
            self.release()
        if resolution.status == Status.SUSPENDED and first.suspend == RESUME:
            assert resolution.spec is not None
            self._next_suspend = JournalSpec.Suspend(level=NONE, offset=resolution.spec.suspend.offset)
            self.state = State.UPDATE_SUSPEND
        elif resolution.status != _OK:
            self._fail(resolution.status)
        elif not self._with.resolver.is_ours(resolution.header):
            self.release()
            self.state = State.AWAIT_DESIRED_REPLICAS
        elif self._live:
            self.state = State.START_PIPELINE
        else:
            self._replica = resolution.replica
            self.state = State.ACQUIRE_PIPELINE

    async def on_acquire_pipeline(self) -> None:
        replica = self._replica
        if replica is None:
            raise PenstockError(f"{self._first.journal}: this broker has stopped serving the journal")
        try:
            await replica.pipeline_slot.acquire()
        except SlotClosedError:
            self.state = State.RESOLVE
            await asyncio.sleep(0)
            return
        self._live = True
        self.state = State.RESOLVE if replica.closed else State.START_PIPELINE

    async def on_start_pipeline(self) -> None:
        replica, resolution = self._owned(), self._resolution
        assert resolution is not None
        route = resolution.header.route
        if replica.pipeline is not None and equivalent(replica.pipeline.route, route):
            await replica.local.mended()
            self._pipeline = replica.pipeline
            self.state = State.UPDATE_ASSIGNMENTS
            return
        if replica.pipeline is not None:
            replica.pipeline.close()
            replica.pipeline = None
        try:
            await replica.spool_slot.acquire()
        except SlotClosedError:
            self.state = State.RESOLVE
            return
        self._pipeline = replica.pipeline = Pipeline(route, replica.local, replica.spool_slot)
        await replica.local.mended()
        self.state = State.SEND_PIPELINE_SYNC

    async def on_send_pipeline_sync(self) -> None:
        """Propose what is to be extended. A roll that was asked for is done with this."""
        pipeline = self._held()
        proposal = self._proposal()
        self._roll_to = None
        self._ticket = await pipeline.propose(proposal, pipeline.local.registers)
        self.state = State.RECV_PIPELINE_SYNC

    async def on_recv_pipeline_sync(self) -> None:
        await self._held().gather(self._ticket)
        self.state = State.UPDATE_ASSIGNMENTS

    async def on_update_assignments(self) -> None:
        assert self._resolution is not None
        revision = await self._with.update_assignments(self._resolution)
        if revision is None:
            self.state = State.AWAIT_DESIRED_REPLICAS
        else:
            self._read_through = revision
            self.state = State.RESOLVE

    async def on_await_desired_replicas(self) -> None:
        resolution = self._resolution
        assert resolution is not None
        assert resolution.spec is not None
        members = len(resolution.header.route.members)
        desired = desired_replication(resolution.spec, self._with.max_replication)
        if members > desired:
            self._read_through = resolution.header.etcd.revision + 1
            self.state = State.RESOLVE
        elif members < desired:
            self._fail(Status.INSUFFICIENT_JOURNAL_BROKERS)
        elif not self._live:
            self.state = State.PROXY
        else:
            self.state = State.VALIDATE_PRECONDITIONS

    async def on_validate_preconditions(self) -> None:
        """Registers, then the offset: bytes go to the furthest known end of the journal, and nowhere else."""
        replica, spec = self._owned(), self._spec
        assert spec is not None
        if not await self._store_is_known():
            return
        local, summary = replica.local, replica.index.summary()
        offset, furthest = self._first.offset, max(local.spool.end, summary.end)
        writable = not replica.read_only
        check = self._first.check_registers if self._first.HasField("check_registers") else None
        self.registers = local.registers
        if not registers.check(local.registers, check):
            self._fail(Status.REGISTER_MISMATCH)
        elif local.spool.end < spec.suspend.offset and writable:
            self._roll_to = spec.suspend.offset
            self.state = State.SEND_PIPELINE_SYNC
        elif local.spool.end != furthest and not offset and writable:
            self._fail(Status.INDEX_HAS_GREATER_OFFSET)
        elif offset and offset != furthest:
            self._fail(Status.WRONG_APPEND_OFFSET)
        elif offset and local.spool.end != furthest and writable:
            self._roll_to = furthest
            self.state = State.SEND_PIPELINE_SYNC
        elif self._suspension_stands(spec, summary):
            first_alone = self._with.first_alone and local.fragment.begin == summary.begin
            if writable and (self._rolling or first_alone):
                self._roll_to = local.spool.end
            self.state = State.STREAM_CONTENT

    def _suspension_stands(self, spec: JournalSpec, summary: Summary) -> bool:
        """Whether the append may proceed at the journal's level; otherwise the next state is set."""
        replica = self._owned()
        # The index does not have yet what the disk has not: the spool has.
        unflushed = bool(replica.local.fragment.length)
        patience = spec.fragment.flush_interval.ToSeconds() or _IDLE_BEFORE_SUSPENSION
        aged = bool(summary.mod_time) and replica.now_seconds() - summary.mod_time > patience
        judged = verdict(
            self._first.suspend,
            spec.suspend.level,
            empty=summary.begin == summary.end and not unflushed,
            idle=aged and not unflushed,
        )
        if judged is Verdict.REFUSE:
            self._fail(Status.SUSPENDED)
        elif judged in _LEVELS:
            self._next_suspend = JournalSpec.Suspend(level=_LEVELS[judged], offset=replica.local.spool.end)
            self.state = State.UPDATE_SUSPEND
        if judged is Verdict.SUSPEND_IN_PART:
            self._roll_to = replica.local.spool.end
        elif judged is Verdict.PROCEED_AS_SUSPENDED:
            self.status = Status.SUSPENDED
        return judged in (Verdict.PROCEED, Verdict.PROCEED_AS_SUSPENDED)

    async def on_update_suspend(self) -> None:
        assert self._resolution is not None
        assert self._next_suspend is not None
        self._read_through = await self._with.update_suspend(self._resolution, self._next_suspend)
        self.state = State.RESOLVE

    async def on_stream_content(self) -> None:
        """One message of the client, or its end. The first call may roll the fragment."""
        if self._minimum is None:
            await self._begin_content()
        if isinstance(self._requests, tuple):
            await self._take_whole(self._requests)
            return
        request = await self._next(self._requests)
        if request is None:
            if not self._committing:
                raise AppendStreamError("unexpected EOF")
            await self._written()
            await self._propose()
            return
        self.total_chunks += 1
        if self._committing:
            raise AppendStreamError("expected EOF after empty Content chunk")
        _require_only_content(request)
        if not request.content:
            self._committing = True
        else:
            await self._take(request.content)

    async def _take_whole(self, contents: tuple[bytes, ...]) -> None:
        """As if the client had sent one chunk, the empty message, and its end; and so for each append of the run."""
        run = contents[: self._length_of_run(contents)]
        self.taken = len(run)
        self.total_chunks = 1 + bool(run[0])
        self._requests = ()  # nobody holds it until the disk has it
        if run[0]:
            await self._take(run[0] if self.taken == 1 else b"".join(run))
        await self._written()
        if self.state is State.STREAM_CONTENT:
            await self._propose()
        if self.taken > 1:
            self.commits = [part for commit in self.commits for part in self._parts(commit, run)]

    def _length_of_run(self, contents: tuple[bytes, ...]) -> int:
        """How many appends extend the fragment as it stands: up to the first that would begin another, or wait."""
        replica, local, spec = self._owned(), self._held().local, self._spec
        assert spec is not None
        first_alone = self._with.first_alone and local.fragment.begin == replica.index.begin
        if len(contents) == 1 or first_alone or self._with.flow.maximum_of(spec.max_append_rate):
            return 1
        room = spec.fragment.length - local.fragment.length
        size = 0
        for at, content in enumerate(contents):
            if at and (size > room or size + len(content) > RUN):
                return at
            size += len(content)
        return len(contents)

    def _parts(self, commit: Fragment, run: tuple[bytes, ...]) -> Iterator[Fragment]:
        """Where each append of a run landed."""
        end = commit.begin
        for content in run:
            begin, end = end, end + len(content)
            digest = hashlib.sha1(content).digest() if self._summed else ZERO_SUM
            yield Fragment(commit.journal, begin, end, digest, commit.codec)

    async def _begin_content(self) -> None:
        """Roll if it is time to; from here on the client is policed."""
        replica, pipeline = self._owned(), self._held()
        proposal = self._proposal()
        if proposal != pipeline.local.fragment and not replica.read_only:
            await pipeline.propose(proposal, pipeline.local.registers)
        self.begin = max(pipeline.local.spool.end, replica.index.end if replica.read_only else 0)
        self._minimum = MinimumRate(self._with.flow, self._with.clock())

    async def _take(self, content: Buffer) -> None:
        replica, local = self._owned(), self._held().local
        if replica.read_only or self._first.suspend not in (RESUME, NO_RESUME):
            self._fail(Status.NOT_ALLOWED)
            return
        if not self._began:
            self._began = True
            await local.ready()
            # The first append of a fragment has the fragment's own sum.
            summed = self._summed and self.taken == 1 and local.fragment.length
            self._summer = hashlib.sha1() if summed else None
        if replica.closed:
            self._fail(Status.JOURNAL_NOT_FOUND)
            return
        assert self._spec is not None
        assert self._minimum is not None
        rate = self._with.flow.maximum_of(self._spec.max_append_rate)
        delay = replica.rate.delay(len(content), rate, self._with.clock())
        if delay:
            self.delayed_chunks += 1
            await self._wait_for_balance(self._with.clock() + delay)
            self._minimum.excuse(self._with.clock())
        if self._inflow is None and len(content) < LARGE:
            self._write(content)
            return
        if self._inflow is None:
            self._inflow = Inflow(self._write, self._with.threads)
        await self._inflow.put(content)

    def _write(self, content: Buffer) -> None:
        self._held().content(content)
        if self._summer is not None:
            self._summer.update(content)

    async def _written(self) -> None:
        if self._inflow is not None:
            await self._inflow.drained()

    async def _wait_for_balance(self, until: float) -> None:
        """Let time pass, unless the journal goes: a debt may be of hours, and who deletes the journal waits for us."""
        replica = self._owned()
        while not replica.closed and (rest := until - self._with.clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await replica.changed().wait()

    async def _propose(self) -> None:
        """Commit what was streamed, and the registers with it."""
        replica, pipeline, first = self._owned(), self._held(), self._first
        if replica.closed:
            self._fail(Status.JOURNAL_NOT_FOUND)
            return
        local = pipeline.local
        local.require_sound()
        if self.era is not None and self.era != local.era:
            raise AppendStreamError("an earlier append of this stream was given up")
        self.era = local.era
        if self._changing and not local.spool.delta:
            raise AppendStreamError("register modification requires non-empty Append")
        end, digest, after = self.begin + local.spool.delta, _SUM_OF_NOTHING, local.registers
        if self._changing:
            after = registers.apply(
                local.registers,
                first.union_registers if first.HasField("union_registers") else None,
                first.subtract_registers if first.HasField("subtract_registers") else None,
            )
        self._ticket = await pipeline.commit(after, appends=self.taken)
        if end > self.begin and self._summed:
            digest = self._summer.digest() if self._summer is not None else local.fragment.sum
        elif not self._summed:
            digest = ZERO_SUM
        self.registers = local.registers
        self.commits = [Fragment(replica.spec.name, self.begin, end, digest, local.fragment.codec)]
        self.state = State.READ_ACKNOWLEDGEMENTS

    async def on_read_acknowledgements(self) -> None:
        """Let the next append stream, and wait for the replicas. A barrier waits for all before it."""
        pipeline = self._held()
        self.release()
        await pipeline.gather(self._ticket)
        self.state = State.FINISHED

    async def _store_is_known(self) -> bool:
        """Wait for the first listing, and for the store to be healthy; False if the next state has been set."""
        replica = self._owned()
        while True:
            try:
                health = replica.health()
            except (PenstockError, OSError) as failure:  # there can be no such store
                self.store_health_error = str(failure)
                self._fail(Status.FRAGMENT_STORE_UNHEALTHY)
                return False
            unhealthy = health is not None and (not health.checked or bool(health.error))
            if replica.listed and not unhealthy:
                return True
            error = (health.error if health is not None else "") or replica.listing_error
            if error:
                self._health_turns += 1
            # Of a store that has failed for long the next check may be far off.
            failures = health.failures if health is not None else 0
            if max(self._health_turns, failures) > HEALTH_TURNS:
                self.store_health_error = error
                self._fail(Status.FRAGMENT_STORE_UNHEALTHY)
                return False
            if replica.closed:
                self.state = State.RESOLVE
                return False
            waits = [replica.changed()]
            if unhealthy and health is not None:
                waits.append(health.changed())
            await _any(waits)

    def _proposal(self) -> Fragment:
        local, spec = self._held().local, self._spec
        assert spec is not None
        return proposal_to_extend(
            local.fragment,
            codec=Codec(spec.fragment.compression_codec),
            length=spec.fragment.length,
            flush_seconds=spec.fragment.flush_interval.ToSeconds(),
            first_append=local.first_append // 1_000_000,
            now=self._owned().now_seconds(),
            roll_to=self._roll_to,
        )

    async def _next(self, requests: AsyncIterator[AppendRequest | Content]) -> AppendRequest | Content | None:
        assert self._minimum is not None
        self._minimum.excuse(self._with.clock())  # since the last chunk came it was we who were busy
        try:
            async with asyncio.timeout_at(self._minimum.deadline):
                request = await anext(requests, None)
        except TimeoutError:
            raise AppendStreamError("client stream didn't sustain the minimum append data rate") from None
        if request is not None:
            self._minimum.chunk(len(request.content), self._with.clock())
        return request

    def _owned(self) -> Replica:
        assert self._live
        assert self._replica is not None
        return self._replica

    def _held(self) -> Pipeline:
        assert self._pipeline is not None
        return self._pipeline

    def _fail(self, status: int) -> None:
        self.status = status
        self.state = State.ERROR

    def release(self) -> None:
        """Give the pipeline back, if we have it; what was not committed is rolled back."""
        if self._live:
            assert self._replica is not None
            if self._pipeline is not None:
                self._pipeline.roll_back()
            self._live = False
            self._replica.pipeline_slot.release()


_STEPS: dict[State, Callable[[AppendMachine], Awaitable[None]]] = {
    State.RESOLVE: AppendMachine.on_resolve,
    State.ACQUIRE_PIPELINE: AppendMachine.on_acquire_pipeline,
    State.START_PIPELINE: AppendMachine.on_start_pipeline,
    State.SEND_PIPELINE_SYNC: AppendMachine.on_send_pipeline_sync,
    State.RECV_PIPELINE_SYNC: AppendMachine.on_recv_pipeline_sync,
    State.UPDATE_ASSIGNMENTS: AppendMachine.on_update_assignments,
    State.AWAIT_DESIRED_REPLICAS: AppendMachine.on_await_desired_replicas,
    State.VALIDATE_PRECONDITIONS: AppendMachine.on_validate_preconditions,
    State.UPDATE_SUSPEND: AppendMachine.on_update_suspend,
    State.STREAM_CONTENT: AppendMachine.on_stream_content,
    State.READ_ACKNOWLEDGEMENTS: AppendMachine.on_read_acknowledgements,
}


def _require_only_content(request: AppendRequest | Content) -> None:
    """Later messages carry content, and nothing else (reference 6)."""
    if isinstance(request, Content):
        return
    try:
        validation.validate_append_request(request, first=False)
    except validation.ValidationError:
        raise AppendStreamError("expected Content chunk") from None


async def _any(events: list[asyncio.Event]) -> None:
    """Return once one of the events is set."""
    if len(events) == 1:
        await events[0].wait()
        return
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
