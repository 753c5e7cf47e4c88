"""The append machine stepped by hand: every state, what leads to it, and what is left if the append ends there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.journal.append import LARGE, AppendMachine, AppendStreamError, State
from penstock.journal.broker import Broker, BrokerOptions
from penstock.journal.flow import FlowLimits
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.labels import label_set, parse_selector
from penstock.journal.protocol import AppendRequest, ApplyRequest, JournalSpec, Status
from penstock.journal.rolling import proposal_to_extend
from penstock.journal.spool import empty_fragment

from .brokers import (
    CLAIMS,
    JOURNAL,
    Gate,
    HookedDisk,
    Streaming,
    append,
    applied,
    content,
    delete,
    in_loop,
    listed,
    opened,
    replica,
    stream,
    until,
)
from .foreign import journal

BUILDING = [
    State.RESOLVE,
    State.ACQUIRE_PIPELINE,
    State.START_PIPELINE,
    State.SEND_PIPELINE_SYNC,
    State.RECV_PIPELINE_SYNC,
    State.UPDATE_ASSIGNMENTS,
    State.AWAIT_DESIRED_REPLICAS,
    State.VALIDATE_PRECONDITIONS,
]
REUSING = [state for state in BUILDING if state not in (State.SEND_PIPELINE_SYNC, State.RECV_PIPELINE_SYNC)]
STREAMING = [State.STREAM_CONTENT] * 3
NOT_TERMINAL = set(State) - {State.ERROR, State.PROXY, State.FINISHED}
ENDING = [State.READ_ACKNOWLEDGEMENTS, State.FINISHED]


def machine_of(
    broker: Broker, *chunks: bytes, requests: AsyncIterator[AppendRequest] | None = None, **fields: object
) -> AppendMachine:
    first = AppendRequest(**{"journal": JOURNAL, **fields})  # type: ignore[arg-type]
    return AppendMachine(first, requests or stream(*chunks), broker._appending, CLAIMS)


async def walked(machine: AppendMachine) -> list[State]:
    """The states an append passes through, to its end."""
    states = [machine.state]
    while machine.state in NOT_TERMINAL:
        await machine.step()
        states.append(machine.state)
    machine.release()
    return states


async def at(machine: AppendMachine, state: State) -> None:
    """Step until `state` is the next one."""
    for _ in range(50):
        if machine.state is state:
            return
        await machine.step()
    raise AssertionError(f"never at {state}, but at {machine.state}")


async def respecified(broker: Broker, **fields: object) -> None:
    spec = journal(**fields)  # type: ignore[arg-type]
    await applied(broker, ApplyRequest.Change(expect_mod_revision=-1, upsert=spec))
    await listed(broker)


def test_the_first_append_builds_the_pipeline_and_later_ones_use_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            assert await walked(machine_of(broker, b"one")) == [*BUILDING, *STREAMING, *ENDING]
            assert await walked(machine_of(broker, b"two")) == [*REUSING, *STREAMING, *ENDING]
            # A barrier has one message less.
            assert await walked(machine_of(broker)) == [*REUSING, *STREAMING[:2], *ENDING]
            assert await content(broker) == b"onetwo"

    in_loop(test)


@pytest.mark.parametrize(
    ("state", "warm"),
    [(state, False) for state in [*BUILDING[1:], State.STREAM_CONTENT]]
    + [(state, True) for state in [*REUSING[1:], State.STREAM_CONTENT]],
)
def test_an_append_given_up_in_any_state_leaves_the_journal_to_the_next(
    tmp_path: Path, state: State, warm: bool
) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            if warm:
                await append(broker, b"before")
            machine = machine_of(broker, b"given", b"up")
            await at(machine, state)
            if state is State.STREAM_CONTENT:
                await machine.step()
                assert replica(broker).spool.delta == 5
            machine.release()
            assert not replica(broker).pipeline_slot.owned
            assert replica(broker).spool.delta == 0
            begin = 6 if warm else 0
            assert await append(broker, b"after") == (begin, begin + 5)
            assert await content(broker) == (b"beforeafter" if warm else b"after")

    in_loop(test)


def test_an_append_given_up_after_its_proposal_is_in_the_journal(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            machine = machine_of(broker, b"adopted")
            await at(machine, State.READ_ACKNOWLEDGEMENTS)
            machine.release()
            assert await append(broker, b"next") == (7, 11)
            assert await content(broker) == b"adoptednext"

    in_loop(test)


def test_a_journal_deleted_while_an_append_waits_for_its_turn_is_resolved_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            owner = machine_of(broker, b"owner")
            await at(owner, State.STREAM_CONTENT)
            waiting = machine_of(broker, b"waiting")
            await at(waiting, State.ACQUIRE_PIPELINE)
            step = asyncio.create_task(waiting.step())
            await asyncio.sleep(0)
            deleting = asyncio.create_task(delete(broker, JOURNAL))
            await step
            assert waiting.state is State.RESOLVE
            await waiting.step()
            assert (waiting.state, waiting.status) == (State.ERROR, Status.JOURNAL_NOT_FOUND)
            assert not waiting.header.route.members
            # The owner is told as soon as it sends something.
            await owner.step()
            assert (owner.state, owner.status) == (State.ERROR, Status.JOURNAL_NOT_FOUND)
            owner.release()
            await deleting

    in_loop(test)


def test_a_changed_spec_sends_who_waits_to_resolve_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            owner = machine_of(broker, b"owner")
            await at(owner, State.STREAM_CONTENT)
            waiting = machine_of(broker, b"waiting")
            await at(waiting, State.ACQUIRE_PIPELINE)
            step = asyncio.create_task(waiting.step())
            await asyncio.sleep(0)
            await respecified(broker, replication=2)
            await step
            assert waiting.state is State.RESOLVE
            # Whoever streams already goes on under the spec it began with.
            assert (await walked(owner))[-1] is State.FINISHED
            assert (await walked(waiting))[-1] is State.ERROR
            assert waiting.status == Status.INSUFFICIENT_JOURNAL_BROKERS
            await respecified(broker)
            assert await append(broker, b"next") == (5, 9)

    in_loop(test)


def test_a_journal_made_again_while_an_append_holds_the_old_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            machine = machine_of(broker, b"one")
            await at(machine, State.STREAM_CONTENT)
            changing = asyncio.create_task(_deleted_and_made(broker))
            await until(lambda: replica_gone(broker))
            await machine.step()
            assert machine.status == Status.JOURNAL_NOT_FOUND
            machine.release()
            await changing
            assert await append(broker, b"two") == (0, 3)

    in_loop(test)


async def _deleted_and_made(broker: Broker) -> None:
    await delete(broker, JOURNAL)
    await respecified(broker)


def replica_gone(broker: Broker) -> bool:
    return JOURNAL not in broker._replicas and JOURNAL in broker._closing


def test_a_suspension_while_streaming_does_not_touch_the_append(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            machine = machine_of(broker, b"one", suspend=AppendRequest.SUSPEND_NO_RESUME)
            await at(machine, State.STREAM_CONTENT)
            await respecified(broker, suspend=JournalSpec.Suspend(level=JournalSpec.Suspend.PARTIAL))
            assert (await walked(machine))[-1] is State.FINISHED
            assert machine.status == Status.OK
            late = machine_of(broker, b"two", suspend=AppendRequest.SUSPEND_NO_RESUME)
            assert (await walked(late))[-1] is State.ERROR
            assert late.status == Status.SUSPENDED

    in_loop(test)


def test_a_full_suspension_while_streaming_refuses_what_comes_next(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            machine = machine_of(broker, b"one", b"two")
            await at(machine, State.STREAM_CONTENT)
            await machine.step()
            full = JournalSpec.Suspend(level=JournalSpec.Suspend.FULL)
            change = ApplyRequest.Change(expect_mod_revision=-1, upsert=journal(suspend=full))
            changing = asyncio.create_task(applied(broker, change))
            await until(lambda: replica_gone(broker))
            await machine.step()
            assert machine.state is State.ERROR
            machine.release()
            await changing
            assert await append(broker, b"after") == (0, 5)

    in_loop(test)


def test_suspending_and_resuming_go_through_UPDATE_SUSPEND(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await append(broker, b"abc")
            again = [State.START_PIPELINE, *REUSING[3:]]
            suspending = machine_of(broker, suspend=AppendRequest.SUSPEND_NOW)
            assert await walked(suspending) == [
                *REUSING,
                State.UPDATE_SUSPEND,
                State.RESOLVE,
                *again,
                *STREAMING[:2],
                *ENDING,
            ]
            assert suspending.status == Status.SUSPENDED
            assert replica(broker).spec.suspend.offset == 3
            resuming = machine_of(broker, b"d")
            assert await walked(resuming) == [
                *REUSING,
                State.UPDATE_SUSPEND,
                State.RESOLVE,
                *again,
                *STREAMING,
                *ENDING,
            ]
            assert resuming.status == Status.OK
            assert replica(broker).spec.suspend.level == JournalSpec.Suspend.NONE
            assert await content(broker) == b"abcd"

    in_loop(test)


def test_a_full_suspension_lets_the_replica_go_and_a_resumption_brings_it_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            suspending = machine_of(broker, suspend=AppendRequest.SUSPEND_NOW)
            states = await walked(suspending)
            assert states == [*BUILDING, State.UPDATE_SUSPEND, State.RESOLVE, State.ERROR]
            assert suspending.status == Status.SUSPENDED
            await until(lambda: not broker._closing and not broker._replicas)
            resuming = machine_of(broker, b"abc")
            states = await walked(resuming)
            assert states == [State.RESOLVE, State.UPDATE_SUSPEND, *BUILDING, *STREAMING, *ENDING]

    in_loop(test)


@pytest.mark.parametrize("made_again", [False, True])
def test_a_journal_deleted_before_its_suspension_is_written(tmp_path: Path, made_again: bool) -> None:
    """The append holds the journal, and who deletes it waits for that: neither may wait for the other."""

    async def test() -> None:
        async with opened(tmp_path) as broker:
            await append(broker, b"abc")
            machine = machine_of(broker, suspend=AppendRequest.SUSPEND_NOW)
            await at(machine, State.UPDATE_SUSPEND)
            changes = _deleted_and_made(broker) if made_again else delete(broker, JOURNAL)
            changing = asyncio.create_task(changes)
            await until(lambda: replica_gone(broker))
            async with asyncio.timeout(5):
                await machine.run()
                await changing
            assert machine.status == Status.JOURNAL_NOT_FOUND
            assert (JOURNAL in broker._replicas) == made_again

    in_loop(test)


def test_a_suspension_that_lost_the_race_looks_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await append(broker, b"abc")
            machine = machine_of(broker, suspend=AppendRequest.SUSPEND_NOW)
            await at(machine, State.UPDATE_SUSPEND)
            await respecified(broker, length=4096)
            await machine.step()
            assert machine.state is State.RESOLVE
            assert replica(broker).spec.suspend.level == JournalSpec.Suspend.NONE
            await machine.run()
            assert machine.status == Status.SUSPENDED
            assert replica(broker).spec.suspend.level == JournalSpec.Suspend.PARTIAL
            assert replica(broker).spec.fragment.length == 4096

    in_loop(test)


def test_a_read_only_journal_takes_barriers_and_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await respecified(broker, flags=JournalSpec.O_RDONLY)
            assert (await walked(machine_of(broker)))[-1] is State.FINISHED
            refused = machine_of(broker, b"x")
            assert (await walked(refused))[-1] is State.ERROR
            assert refused.status == Status.NOT_ALLOWED
            for fields in ({"offset": 7}, {"check_registers": parse_selector("AA=1")}):
                machine = machine_of(broker, **fields)
                await machine.run()
                assert machine.status == (Status.WRONG_APPEND_OFFSET if "offset" in fields else Status.OK)

    in_loop(test)


def test_too_few_brokers_is_told_before_the_preconditions(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await respecified(broker, replication=2)
            states = await walked(machine_of(broker, b"x", offset=99))
            assert states == [*BUILDING[:-1], State.ERROR]

    in_loop(test)


def test_a_primary_elsewhere_is_where_the_append_is_to_be_proxied(tmp_path: Path) -> None:
    """With one broker that cannot happen; the machine says so all the same when its resolver does."""

    async def test() -> None:
        async with opened(tmp_path) as broker:
            machine = machine_of(broker, b"x")
            resolver = broker.resolver
            broker.resolver.identity = replace(
                resolver.identity, member=type(resolver.identity.member)("z", "elsewhere")
            )
            states = await walked(machine)
            assert states == [State.RESOLVE, State.AWAIT_DESIRED_REPLICAS, State.PROXY]
            refused = machine_of(broker, b"x", do_not_proxy=True)
            assert await walked(refused) == [State.RESOLVE, State.ERROR]
            assert refused.status == Status.NOT_JOURNAL_PRIMARY_BROKER

    in_loop(test)


def test_an_offset_reset_goes_back_to_the_synchronisation(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await append(broker, b"abc", registers={"AA": "1"})
            spec = JournalSpec.Suspend(offset=10)
            await respecified(broker, suspend=spec)
            states = await walked(machine_of(broker, b"d"))
            sync = [State.SEND_PIPELINE_SYNC, State.RECV_PIPELINE_SYNC, *REUSING[3:]]
            assert states == [*REUSING, *sync, *STREAMING, *ENDING]
            assert replica(broker).write_head == 11
            barrier = machine_of(broker)
            await barrier.run()
            assert barrier.registers == label_set({"AA": "1"}), "registers outlive the jump"

    in_loop(test)


def test_a_broken_stream_raises_in_STREAM_CONTENT_and_is_rolled_back(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[AppendRequest]:
        yield AppendRequest(content=b"half")

    async def test() -> None:
        async with opened(tmp_path) as broker:
            machine = machine_of(broker, requests=broken())
            await at(machine, State.STREAM_CONTENT)
            with pytest.raises(AppendStreamError, match="unexpected EOF"):
                await machine.run()
            assert not replica(broker).pipeline_slot.owned
            assert await append(broker, b"whole") == (0, 5)

    in_loop(test)


def test_a_delayed_chunk_does_not_keep_a_journal_from_being_deleted(tmp_path: Path) -> None:
    """A debt at the maximum rate can be hours; nobody else waits for it."""

    async def test() -> None:
        async with opened(tmp_path) as broker:
            await respecified(broker, max_append_rate=10)
            machine = machine_of(broker, bytes(50), bytes(50_000), b"late")
            appending = asyncio.create_task(machine.run())
            await until(lambda: machine.delayed_chunks > 0)
            async with asyncio.timeout(60):
                await delete(broker, JOURNAL)
                await appending
            assert machine.status == Status.JOURNAL_NOT_FOUND

    in_loop(test)


def test_an_append_under_way_when_its_journal_changes_is_held_to_no_maximum_rate_any_more(
    tmp_path: Path,
) -> None:
    """What has changed takes effect when it is done, a new route among it."""

    async def test() -> None:
        async with opened(tmp_path) as broker:
            await respecified(broker, max_append_rate=10)
            machine = machine_of(broker, bytes(50), bytes(50_000), bytes(50_000))
            appending = asyncio.create_task(machine.run())
            await until(lambda: machine.delayed_chunks > 0)
            async with asyncio.timeout(60):
                await respecified(broker, max_append_rate=1000)
                await appending
                assert (machine.status, machine.commits[0].end) == (Status.OK, 100_050)
                assert await append(broker, b"x") == (100_050, 100_051)

    in_loop(test)


@pytest.mark.parametrize("cancels", [1, 2])
def test_a_large_chunk_still_being_written_is_waited_for(tmp_path: Path, cancels: int) -> None:
    """A thread cannot be cancelled; the next append must not find it at work on the same file."""

    async def test() -> None:
        disk, gate = HookedDisk(), Gate()
        async with opened(tmp_path, disk, length=1 << 20) as broker:
            await append(broker, b"before")
            client = Streaming(broker)
            disk.before = lambda step, path: gate.wait() if step == "write" else None
            client.send(bytes(LARGE))
            await asyncio.to_thread(gate.reached.wait, 10)
            for _ in range(cancels):
                client.task.cancel()
                await asyncio.sleep(0.01)
            assert replica(broker).pipeline_slot.owned
            disk.before = lambda step, path: None
            gate.open()
            await asyncio.wait((client.task,))
            assert not replica(broker).pipeline_slot.owned
            assert await append(broker, b"after") == (6, 11)
            assert await content(broker) == b"beforeafter"

    in_loop(test)


def test_a_large_chunk_that_the_disk_refuses_fails_the_append_alone(tmp_path: Path) -> None:
    def full(step: str, path: Path) -> None:
        if step == "write":
            raise OSError(28, "No space left on device")

    async def test() -> None:
        disk = HookedDisk()
        async with opened(tmp_path, disk, length=1 << 20) as broker:
            await append(broker, b"before")
            disk.before = full
            machine = machine_of(broker, bytes(LARGE), b"more")
            with pytest.raises(OSError, match="No space left"):
                await machine.run()
            disk.before = lambda step, path: None
            assert await append(broker, b"after") == (6, 11)

    in_loop(test)


@asynccontextmanager
async def _alone(path: Path) -> AsyncIterator[Broker]:
    options = BrokerOptions(first_alone=True, pulse_interval=3600, flow=FlowLimits(grace=10))
    async with opened(path, length=1 << 20, options=options) as broker:
        yield broker


def test_the_first_append_of_a_journal_gets_its_own_fragment(tmp_path: Path) -> None:
    async def test() -> None:
        async with _alone(tmp_path) as broker:
            for i in range(4):
                await append(broker, b"%d" % i)
            await until(lambda: not replica(broker)._persisting)
            found = [(entry.fragment.begin, entry.fragment.end) for entry in replica(broker).index]
            assert found == [(0, 1), (1, 4)]

    in_loop(test)


EMPTY = empty_fragment(JOURNAL, 100, Codec.NONE)
OLD = Fragment(JOURNAL, 100, 600, bytes(range(20)), Codec.GZIP)
OTHERWISE = replace(OLD, codec=Codec.NONE)

ROLLS: list[tuple[str, Fragment, dict[str, int | None], int | None]] = [
    ("an empty one is always begun anew", EMPTY, {}, 100),
    ("one that may grow is extended", OLD, {}, None),
    ("one of another codec closes, as the seed has it", OTHERWISE, {}, 600),
    ("one of just the length grows once more", OLD, {"length": 500}, None),
    ("one above the length closes", OLD, {"length": 499}, 600),
    ("a roll that is asked for", OLD, {"roll_to": 600}, 600),
    ("a roll beyond the end", OLD, {"roll_to": 1000}, 1000),
    ("a roll to its own begin is none", OLD, {"roll_to": 100}, None),
    ("an empty one rolls ahead", EMPTY, {"roll_to": 1000}, 1000),
    ("no flush interval", OLD, {"now": 1 << 40}, None),
    ("in the same interval", OLD, {"flush_seconds": 60, "first_append": 120, "now": 179}, None),
    ("in the next interval", OLD, {"flush_seconds": 60, "first_append": 120, "now": 180}, 600),
    ("in the next by a second", OLD, {"flush_seconds": 60, "first_append": 179, "now": 180}, 600),
    (
        "a clock that went back into the interval before",
        OLD,
        {"flush_seconds": 60, "first_append": 120, "now": 119},
        600,
    ),
]


@pytest.mark.parametrize(
    ("fragment", "fields", "rolls_at"), [row[1:] for row in ROLLS], ids=[row[0] for row in ROLLS]
)
def test_when_a_fragment_rolls(
    fragment: Fragment, fields: dict[str, int | None], rolls_at: int | None
) -> None:
    defaults: dict[str, int | None] = {
        "length": 1024,
        "flush_seconds": 0,
        "first_append": 0,
        "now": 0,
        "roll_to": None,
    }
    proposal = proposal_to_extend(fragment, codec=Codec.GZIP, **{**defaults, **fields})  # type: ignore[arg-type]
    if rolls_at is None:
        assert proposal == fragment
    else:
        assert proposal == empty_fragment(JOURNAL, rolls_at, Codec.GZIP)
