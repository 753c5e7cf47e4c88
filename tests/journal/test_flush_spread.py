"""When closed fragments are put into the store: at once, but for those that the end of a flush interval has closed."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.journal import maintenance
from penstock.journal.broker import Broker
from penstock.journal.protocol import ApplyRequest
from penstock.log.commitlog import journal_spec

from .brokers import CLAIMS, JOURNAL, append, applied, in_loop, opened, persisted, replica, until

Advance = Callable[[int], None]


@asynccontextmanager
async def flushing(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Broker, Advance]]:
    """A journal that is flushed once an hour, and a hand on the clock; who draws lots for a wait draws a long one."""
    seconds = 3600 * 1000

    def advance(by: int) -> None:
        nonlocal seconds
        seconds += by

    monkeypatch.setattr(random, "uniform", lambda low, high: 3600.0)
    monkeypatch.setattr(time, "time_ns", lambda: seconds * 1_000_000_000)
    async with opened(path) as broker:
        spec = journal_spec(JOURNAL, 1024, {})
        spec.fragment.flush_interval.FromSeconds(3600)
        await applied(broker, ApplyRequest.Change(expect_mod_revision=-1, upsert=spec))
        await until(lambda: replica(broker).listed)
        yield broker, advance


def in_store(broker: Broker) -> list[int]:
    return [entry.fragment.end for entry in replica(broker).index if not entry.fragment.is_local]


def test_what_the_end_of_an_interval_closes_waits_for_its_lot_and_a_broker_that_leaves_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with flushing(tmp_path / "data", monkeypatch) as (broker, advance):
            await append(broker, b"in the first hour")
            advance(3600)
            await append(broker, b"in the second")
            assert len(replica(broker)._persisting) == 1
            assert in_store(broker) == []
            await replica(broker).persisted()
            assert in_store(broker) == [17]

    in_loop(test)


@pytest.mark.parametrize("why", ["it has grown", "it is told to", "nothing flushes"])
def test_what_is_closed_for_another_reason_is_stored_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    async def test() -> None:
        async with flushing(tmp_path / "data", monkeypatch) as (broker, advance):
            await append(broker, b"x" * (1100 if why == "it has grown" else 11))
            if why == "it has grown":
                advance(3600)
                await append(broker, b"more")
            else:
                if why == "nothing flushes":
                    replica(broker).spec.fragment.ClearField("flush_interval")
                    advance(3600)
                await maintenance.roll(JOURNAL, broker._appending, CLAIMS)
            await persisted(broker)
            assert len(in_store(broker)) == 1

    in_loop(test)
