"""The append state machine (seed 003, "Append State Machine"; reference 14), one `on_*` method a state.

Each method does what its state is for and names the next one; `run` steps until a terminal state. Whatever goes
wrong before the commit proposal rolls back; after it the append is in the journal, acknowledged or not. A broker
that is the only replica passes through the same states as one with peers; its acknowledgement is its own disk's.

Appends that came whole, one right behind the other and under the same conditions, may go through the states together,
as a *run*: what the states find out for the first holds for the others, since nobody gets in between. One proposal
commits them, and each has its own span of what was committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from penstock.base.errors import PenstockError
from penstock.journal import registers
from penstock.journal.appendcontent import LARGE, RUN, ContentStates
from penstock.journal.appending import TERMINAL, Appending, AppendStreamError, State, StoppedServingError
from penstock.journal.index import Summary
from penstock.journal.protocol import JournalSpec, Status
from penstock.journal.replication import NotSynchronisedError, RouteChangedError, equivalent, keeps_members
from penstock.journal.resolver import desired_replication
from penstock.journal.slots import SlotClosedError
from penstock.journal.suspension import FULL, NONE, PARTIAL, RESUME, Verdict, verdict

__all__ = ["LARGE", "RUN", "AppendMachine", "AppendStreamError", "Appending", "State"]

SYNC_ROUNDS = 8
"""So many proposals replicas are made before it is plain that they will not agree."""
HEALTH_TURNS = 5
"""So many looks at an unhealthy store an append takes before it gives up."""
_IDLE_BEFORE_SUSPENSION = 24 * 3600
_OK = Status.OK
_LEVELS = {Verdict.RESUME: NONE, Verdict.SUSPEND_IN_PART: PARTIAL, Verdict.SUSPEND: FULL}


class AppendMachine(ContentStates):
    """One Append RPC. `run` steps through the states; the result stands in the attributes."""

    __slots__ = ()

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
            raise StoppedServingError(self._first.journal)
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
        if replica.pipeline is not None and replica.pipeline.serves(route):
            await replica.local.mended()
            self._pipeline = replica.pipeline
            self.state = State.UPDATE_ASSIGNMENTS
            return
        if replica.pipeline is not None:
            if keeps_members(replica.pipeline.route, route):
                await replica.pipeline.settled()  # the new streams would cut the old ones off
            replica.pipeline.close()
            replica.pipeline = None
        if replica.guest is not None and not equivalent(replica.guest.route, route):
            replica.guest.leave()  # the stream of who was primary before us
        try:
            await replica.spool_slot.acquire()
        except SlotClosedError:
            self.state = State.RESOLVE
            return
        try:
            pipeline = self._with.pipeline_of(resolution, replica)
        except BaseException:
            replica.spool_slot.release()
            raise
        self._pipeline = replica.pipeline = pipeline
        replica.following = False
        self._rounds = 0
        await replica.local.mended()
        with self._tearing_down():
            await pipeline.start()
        if self._pipeline is not None:
            self.state = State.SEND_PIPELINE_SYNC

    async def on_send_pipeline_sync(self) -> None:
        """Propose what is to be extended. A roll that was asked for is done with this."""
        assert self._resolution is not None
        pipeline = self._held()
        proposal = self._proposal()
        after = self._sync_registers if self._sync_registers is not None else pipeline.local.registers
        self._roll_to = self._sync_registers = None
        with self._tearing_down():
            self._ticket = await pipeline.synchronise(self._resolution.header, proposal, after)
            self.state = State.RECV_PIPELINE_SYNC

    async def on_recv_pipeline_sync(self) -> None:
        """All replicas agree, or one is ahead of us or cannot continue the fragment: then another one is begun."""
        with self._tearing_down():
            disagreement = await self._held().synchronised(self._ticket)
            if disagreement is None:
                self.state = State.UPDATE_ASSIGNMENTS
                return
            self._rounds += 1
            if self._rounds > SYNC_ROUNDS:
                raise NotSynchronisedError(
                    f"{self._first.journal}: its replicas cannot agree, after {SYNC_ROUNDS} proposals"
                )
            self._roll_to, self._sync_registers = disagreement.offset, disagreement.registers
            self.state = State.SEND_PIPELINE_SYNC

    @contextmanager
    def _tearing_down(self) -> Iterator[None]:
        """Whatever goes wrong on the way to an agreement, the pipeline goes; a newer route is waited for."""
        try:
            yield
        except RouteChangedError as changed:
            self._tear_down()
            self._read_through = changed.revision
            self.state = State.RESOLVE
        except BaseException:
            self._tear_down()
            raise

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

    async def on_read_acknowledgements(self) -> None:
        """Let the next append stream, and wait for the replicas. A barrier waits for all before it."""
        pipeline = self._held()
        self.release()
        await pipeline.gather(self._ticket)
        self._require_in_charge()
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
