"""Suspension (reference 18): which appends change a journal's level, and that offsets never go back."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.base.disk import Disk
from penstock.journal import hosting
from penstock.journal.broker import Broker, BrokerOptions
from penstock.journal.datadir import DataDir
from penstock.journal.labels import label_set
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    JournalSpec,
    RollRequest,
    Status,
)

from .brokers import (
    CLAIMS,
    JOURNAL,
    append,
    applied,
    content,
    in_loop,
    listed,
    opened,
    persisted,
    replica,
    until,
)
from .foreign import journal
from .foreign_rules import checked

Level = JournalSpec.Suspend.Level
DAY = 24 * 3600


@asynccontextmanager
async def reopened(path: Path) -> AsyncIterator[Broker]:
    """The broker again, its journals as they are."""
    directory, disk = DataDir(path), Disk()
    broker = Broker(directory, directory.create(disk), disk, BrokerOptions(pulse_interval=3600))
    try:
        yield broker
    finally:
        await broker.close()


async def sent(broker: Broker, suspend: str, **fields: object) -> AppendResponse:
    """An empty append with a suspend option."""
    request = AppendRequest(journal=JOURNAL, suspend=suspend, **fields)  # type: ignore[arg-type]
    return checked(await broker.append_whole(request, CLAIMS))


def level(broker: Broker) -> tuple[str, int]:
    spec = broker.resolver.spec(JOURNAL)
    assert spec is not None
    return Level.Name(spec.suspend.level), spec.suspend.offset


async def with_spec(broker: Broker, **fields: object) -> None:
    spec = journal(**fields)  # type: ignore[arg-type]
    await applied(broker, ApplyRequest.Change(expect_mod_revision=-1, upsert=spec))
    await listed(broker)


async def flushed(broker: Broker, age: float) -> None:
    """Everything is in the store, and has been there for so long."""
    await append(broker, b"abc")
    assert (await broker.roll(RollRequest(journal=JOURNAL), CLAIMS)).status == Status.OK
    await persisted(broker)
    then = time.time() - age
    for path in (broker.directory.fragments / JOURNAL).iterdir():
        os.utime(path, (then, then))
    await replica(broker).refresh()


@pytest.mark.parametrize("suspend", ["SUSPEND_IF_FLUSHED", "SUSPEND_NOW"])
def test_a_journal_without_content_is_suspended_in_full(tmp_path: Path, suspend: str) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            assert (await sent(broker, suspend)).status == Status.SUSPENDED
            assert level(broker) == ("FULL", 0)
            assert not broker.resolver.route(JOURNAL).members
            await until(lambda: not broker._replicas and not broker._closing)
            assert await append(broker, b"abc") == (0, 3)
            assert level(broker) == ("NONE", 0)

    in_loop(test)


def test_NOW_suspends_in_part_and_closes_the_fragment(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await append(broker, b"abc")
            response = await sent(broker, "SUSPEND_NOW")
            assert (response.status, response.commit.end) == (Status.SUSPENDED, 3)
            assert level(broker) == ("PARTIAL", 3)
            await persisted(broker)
            (entry,) = replica(broker).index
            assert not entry.fragment.is_local, "closed, and on its way to the store"
            # Again: it is what it is.
            assert (await sent(broker, "SUSPEND_NOW")).status == Status.SUSPENDED
            assert level(broker) == ("PARTIAL", 3)
            assert await content(broker) == b"abc"

    in_loop(test)


@pytest.mark.parametrize(
    ("age", "interval", "suspended"),
    [(DAY + 60, 0, True), (DAY - 60, 0, False), (3700, 3600, True), (3500, 3600, False)],
)
def test_IF_FLUSHED_suspends_what_has_been_in_the_store_for_long_enough(
    tmp_path: Path, age: float, interval: int, suspended: bool
) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await with_spec(broker)
            await flushed(broker, age)
            spec = journal()
            spec.fragment.flush_interval.FromSeconds(interval)
            await applied(broker, ApplyRequest.Change(expect_mod_revision=-1, upsert=spec))
            response = await sent(broker, "SUSPEND_IF_FLUSHED")
            assert response.status == (Status.SUSPENDED if suspended else Status.OK)
            assert level(broker) == (("PARTIAL", 3) if suspended else ("NONE", 0))

    in_loop(test)


def test_IF_FLUSHED_leaves_a_journal_alone_whose_content_is_still_here(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await flushed(broker, 2 * DAY)
            await append(broker, b"fresh")
            assert (await sent(broker, "SUSPEND_IF_FLUSHED")).status == Status.OK
            assert level(broker) == ("NONE", 0)

    in_loop(test)


def test_an_append_resumes_where_the_journal_ended(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await append(broker, b"abc", registers={"AA": "1"})
            await sent(broker, "SUSPEND_NOW")
            assert (await sent(broker, "SUSPEND_NO_RESUME")).status == Status.SUSPENDED
            kept = await sent(broker, "SUSPEND_KEEP")
            assert (kept.status, kept.registers) == (Status.OK, label_set({"AA": "1"}))
            assert level(broker) == ("PARTIAL", 3)
            assert await append(broker, b"def") == (3, 6)
            assert level(broker) == ("NONE", 3)
            assert await content(broker) == b"abcdef"

    in_loop(test)


def test_after_a_full_suspension_offsets_go_on_though_all_fragments_are_gone(tmp_path: Path) -> None:
    """Content was pruned from the store, the journal suspended: what comes next must not reuse offsets."""

    async def test() -> None:
        async with opened(tmp_path) as broker:
            await flushed(broker, 2 * DAY)
            for path in (broker.directory.fragments / JOURNAL).iterdir():
                path.unlink()
            await replica(broker).refresh()
            assert (await sent(broker, "SUSPEND_IF_FLUSHED")).status == Status.SUSPENDED
            assert level(broker) == ("FULL", 3)
            await until(lambda: not broker._replicas and not broker._closing)
            for path in broker.directory.spools(JOURNAL).iterdir():
                path.unlink()  # as on another broker
            assert await append(broker, b"next") == (3, 7)

    in_loop(test)


def test_a_suspension_and_its_resumption_outlive_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:
            await append(broker, b"abc")
            await sent(broker, "SUSPEND_NOW")
        async with reopened(tmp_path) as broker:
            assert level(broker) == ("PARTIAL", 3)
            assert await append(broker, b"def") == (3, 6)
        async with reopened(tmp_path) as broker:
            assert level(broker) == ("NONE", 3)
            assert await content(broker) == b"abcdef"

    in_loop(test)


def test_many_suspend_and_resume_at_once_and_no_byte_is_lost(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as broker:

            async def suspender() -> None:
                for i in range(12):
                    response = await sent(broker, ("SUSPEND_NOW", "SUSPEND_IF_FLUSHED")[i % 2])
                    assert response.status in (Status.OK, Status.SUSPENDED)
                    await asyncio.sleep(0.001)

            async def appender(i: int) -> list[tuple[int, bytes]]:
                return [((await append(broker, b"%d" % i * 10))[0], b"%d" % i * 10) for _ in range(12)]

            done = await asyncio.gather(*(appender(i) for i in range(4)), suspender(), suspender())
            spans = sorted(span for landed in done if landed for span in landed)
            assert [begin for begin, _ in spans] == [10 * i for i in range(48)]
            await append(broker, b"end")
            assert await content(broker) == b"".join(body for _, body in spans) + b"end"

    in_loop(test)


def test_a_broker_that_suspends_by_itself_waits_for_many_quiet_pulses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hosting.STABLE_PULSES == 15
    monkeypatch.setattr(hosting, "STABLE_PULSES", 3)

    async def test() -> None:
        options = BrokerOptions(pulse_interval=3600, auto_suspend=True)
        async with opened(tmp_path, options=options) as broker:
            await flushed(broker, 2 * DAY)
            for _ in range(3):
                await broker._pulse(JOURNAL)
                assert level(broker) == ("NONE", 0)
            await broker._pulse(JOURNAL)
            assert level(broker) == ("PARTIAL", 3)

    in_loop(test)
