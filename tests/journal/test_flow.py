"""Flow control of appends (reference 17): tables, properties, and the two rates met by real appends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.journal.append import AppendMachine, AppendStreamError
from penstock.journal.broker import BrokerOptions
from penstock.journal.flow import BANKED, GRACE, MINIMUM_RATE, FlowLimits, MaximumRate, MinimumRate
from penstock.journal.protocol import AppendRequest, ApplyRequest, Status

from .brokers import CLAIMS, JOURNAL, HookedDisk, Streaming, append, applied, in_loop, listed, opened, replica
from .foreign import journal

seconds = st.floats(0, 20, allow_nan=False)
sizes = st.integers(0, 1 << 20)


@pytest.mark.parametrize(
    ("of_journal", "of_broker", "held_to"),
    [
        (0, 0, 0),
        (10, 0, 10),
        (10, 5, 5),
        (3, 5, 3),
        (0, 5, 0),  # a journal without a rate stays without (quirk 3)
    ],
)
def test_the_brokers_maximum_lowers_a_journals_own(of_journal: int, of_broker: int, held_to: int) -> None:
    assert FlowLimits(maximum_rate=of_broker).maximum_of(of_journal) == held_to


# The minimum rate


def test_the_defaults_are_64_KiB_a_second_and_a_second_of_grace() -> None:
    assert (MINIMUM_RATE, GRACE, BANKED) == (65536, 1.0, 10.0)
    assert MinimumRate(FlowLimits(), 100.0).deadline == 101.0


@pytest.mark.parametrize(
    ("steps", "deadline"),
    [
        ([], 1.0),
        ([(0, 0.5)], 1.0),  # an empty chunk brings nothing
        ([(500, 0.5)], 1.5),
        ([(1_000_000, 0.5)], 1.5),  # more than the grace cannot be saved
        ([(500, 0.5), (500, 1.0)], 2.0),
        ([(100, 0.5), (100, 0.9)], 1.2),
        ([(100, 0.9), (0, 1.05)], 1.1),
    ],
)
def test_the_deadline_of_the_next_chunk(steps: list[tuple[int, float]], deadline: float) -> None:
    """At a rate of 1000 bytes a second and a second of grace, from 0."""
    police = MinimumRate(FlowLimits(minimum_rate=1000), 0.0)
    for size, now in steps:
        police.chunk(size, now)
    assert police.deadline == pytest.approx(deadline)


def test_without_a_minimum_there_is_no_deadline() -> None:
    police = MinimumRate(FlowLimits(minimum_rate=0), 0.0)
    police.chunk(1, 5.0)
    police.excuse(9.0)
    assert police.deadline is None


@given(st.lists(st.tuples(sizes, seconds)), st.floats(0.1, 10))
def test_credit_is_never_negative_and_never_above_the_grace(
    steps: list[tuple[int, float]], grace: float
) -> None:
    police, now = MinimumRate(FlowLimits(grace=grace), 0.0), 0.0
    for size, elapsed in steps:
        now += elapsed
        police.chunk(size, now)
        assert police.deadline is not None
        assert now - 1e-6 <= police.deadline <= now + grace + 1e-6


@given(st.lists(st.floats(0.001, 0.9), max_size=50))
def test_a_client_that_keeps_the_rate_is_never_late(pauses: list[float]) -> None:
    police, now = MinimumRate(FlowLimits(), 0.0), 0.0
    for pause in pauses:
        assert police.deadline is not None
        now += pause
        assert now <= police.deadline
        police.chunk(int(pause * MINIMUM_RATE) + 1, now)


@given(st.floats(0.02, 0.9))
def test_a_client_at_half_the_rate_is_late_in_the_end(pause: float) -> None:
    police, now = MinimumRate(FlowLimits(), 0.0), 0.0
    for _ in range(120):
        assert police.deadline is not None
        now += pause
        if now > police.deadline:
            return
        police.chunk(int(pause * MINIMUM_RATE / 2), now)
    raise AssertionError("never late")


@given(st.lists(st.tuples(sizes, st.floats(-20, 20))))
def test_a_clock_that_runs_backwards_stands_still_for_the_minimum(steps: list[tuple[int, float]]) -> None:
    police, still, now, furthest = MinimumRate(FlowLimits(), 0.0), MinimumRate(FlowLimits(), 0.0), 0.0, 0.0
    for size, elapsed in steps:
        now += elapsed
        furthest = max(furthest, now)
        police.chunk(size, now)
        still.chunk(size, furthest)
        assert police.deadline == still.deadline


def test_excused_time_is_not_the_clients() -> None:
    police = MinimumRate(FlowLimits(minimum_rate=1000), 0.0)
    police.chunk(0, 0.4)
    police.excuse(5.0)
    assert police.deadline == pytest.approx(5.6)
    police.excuse(1.0)
    assert police.deadline == pytest.approx(5.6)


# The maximum rate


@pytest.mark.parametrize(
    ("steps", "delays"),
    [
        ([(1000, 0.0)], [0.0]),  # a second's worth is there at the start
        ([(1500, 0.0)], [0.5]),
        ([(500, 0.0), (500, 0.0), (250, 0.0)], [0.0, 0.0, 0.25]),
        ([(1000, 0.0), (1000, 0.5), (1000, 2.0)], [0.0, 0.5, 0.0]),
        ([(1, 0.0), (9999, 9.0)], [0.0, 0.0]),
        ([(1, 0.0), (10_000, 1000.0), (1, 1000.0)], [0.0, 0.0, 0.001]),  # no more than ten seconds are saved
        ([(50_000, 0.0), (1, 9.0)], [9.0, 40.001]),  # more than can be saved: on credit
        ([(1000, 5.0), (100, 1.0)], [0.0, 0.1]),  # a clock that runs backwards stands still
    ],
)
def test_how_long_a_chunk_waits(steps: list[tuple[int, float]], delays: list[float]) -> None:
    """At 1000 bytes a second."""
    balance = MaximumRate()
    assert [balance.delay(size, 1000, now) for size, now in steps] == pytest.approx(delays)


def test_without_a_maximum_nothing_waits_and_a_new_one_begins_afresh() -> None:
    balance = MaximumRate()
    assert balance.delay(1 << 30, 0, 0.0) == 0.0
    assert balance.delay(1000, 1000, 1.0) == 0.0
    assert balance.delay(1 << 30, 0, 1.0) == 0.0
    assert balance.delay(1000, 1000, 1.0) == 0.0


def test_a_changed_rate_keeps_the_balance() -> None:
    balance = MaximumRate()
    assert balance.delay(1000, 1000, 0.0) == 0.0
    assert balance.delay(1000, 2000, 0.0) == pytest.approx(0.5)


@given(st.lists(st.tuples(st.integers(0, 10_000), seconds), min_size=1, max_size=60))
def test_never_more_than_the_rate_and_its_first_second(steps: list[tuple[int, float]]) -> None:
    """Chunks that can be saved up for, each taken when its wait is over."""
    balance, now, taken = MaximumRate(), 0.0, 0
    for size, pause in steps:
        now += pause
        wait = balance.delay(size, 1000, now)
        assert wait >= 0
        now += wait
        taken += size
        began = steps[0][1]
        assert taken <= 1000 * (1 + now - began) + 1e-3


@given(st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 0.5)), min_size=1, max_size=15))
def test_no_chunk_waits_without_need(steps: list[tuple[int, float]]) -> None:
    """Up to ten seconds nothing saved is lost, so a wait ends just when the rate allows the chunk."""
    balance, now, taken = MaximumRate(), 0.0, 0
    began = steps[0][1]
    for size, pause in steps:
        now += pause
        wait = balance.delay(size, 1000, now)
        taken += size
        if wait:
            assert taken == pytest.approx(1000 * (1 + now + wait - began), abs=1e-3)
        now += wait


# Both, met by appends


def test_a_silent_client_is_dropped_after_its_grace_and_not_before(tmp_path: Path) -> None:
    async def test() -> None:
        options = BrokerOptions(flow=FlowLimits(grace=0.3), pulse_interval=3600)
        async with opened(tmp_path, options=options) as broker:
            client = Streaming(broker)
            began = time.monotonic()
            client.send(b"half")
            with pytest.raises(AppendStreamError, match="minimum append data rate"):
                await client.task
            assert time.monotonic() - began >= 0.29
            assert await append(broker, b"whole") == (0, 5)

    in_loop(test)


def test_a_client_is_policed_until_its_end_of_stream(tmp_path: Path) -> None:
    async def test() -> None:
        options = BrokerOptions(flow=FlowLimits(grace=0.1), pulse_interval=3600)
        async with opened(tmp_path, options=options) as broker:
            client = Streaming(broker)
            client.send(b"content", b"")  # means to commit, and does not
            with pytest.raises(AppendStreamError, match="minimum append data rate"):
                await client.task
            assert await append(broker, b"whole") == (0, 5)

    in_loop(test)


@pytest.mark.parametrize("chunk", [1 << 10, 1 << 18], ids=["small", "written by a thread"])
def test_a_client_is_not_blamed_for_a_slow_disk(tmp_path: Path, chunk: int) -> None:
    async def arriving() -> AsyncIterator[AppendRequest]:
        for _ in range(3):
            await asyncio.sleep(0)  # as a message of a socket comes, a turn of the loop later
            yield AppendRequest(content=bytes(chunk))
        await asyncio.sleep(0)
        yield AppendRequest()
        await asyncio.sleep(0)

    async def test() -> None:
        disk = HookedDisk()
        options = BrokerOptions(flow=FlowLimits(grace=0.1), pulse_interval=3600)
        async with opened(tmp_path, disk, length=1 << 20, options=options) as broker:
            await append(broker, b"before")
            disk.before = lambda step, path: time.sleep(0.15) if step == "write" else None
            machine = AppendMachine(AppendRequest(journal=JOURNAL), arriving(), broker._appending, CLAIMS)
            await machine.run()
            assert [commit.end for commit in machine.commits] == [6 + 3 * chunk]

    in_loop(test)


def test_a_client_is_not_blamed_for_waiting_for_its_turn_or_its_delays(tmp_path: Path) -> None:
    async def test() -> None:
        options = BrokerOptions(flow=FlowLimits(grace=0.15), pulse_interval=3600)
        async with opened(tmp_path, options=options) as broker:
            spec = journal(max_append_rate=1000)
            await applied(broker, ApplyRequest.Change(expect_mod_revision=-1, upsert=spec))
            await listed(broker)
            await replica(broker).pipeline_slot.acquire()
            client = Streaming(broker)
            client.send(bytes(1000), bytes(200), b"x")
            client.commit()
            await asyncio.sleep(0.3)
            replica(broker).pipeline_slot.release()
            await client.task
            assert client.machine.status == Status.OK
            assert client.machine.total_chunks == 4
            # The first 1000 bytes are a second's worth; how many of the others wait depends on how slow we are.
            assert client.machine.delayed_chunks in (1, 2)

    in_loop(test)
