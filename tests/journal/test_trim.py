"""Trim, Roll and retention: whole fragments go, from the front, and nothing else; finished in the end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from penstock.journal import maintenance
from penstock.journal.broker import Broker, BrokerOptions
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.index import Index
from penstock.journal.labels import label_set
from penstock.journal.protocol import (
    AppendRequest,
    ApplyRequest,
    JournalSpec,
    ReadRequest,
    ReadResponse,
    RollRequest,
    Status,
    TrimRequest,
    TrimResponse,
)
from penstock.journal.stores import PARTIAL
from penstock.journal.tokens import ValidationError
from penstock.log.commitlog import journal_spec

from .brokers import (
    CLAIMS,
    JOURNAL,
    HookedDisk,
    append,
    applied,
    content,
    in_loop,
    opened,
    persisted,
    read,
    replica,
    until,
)


async def roll(broker: Broker) -> int:
    response = await broker.roll(RollRequest(journal=JOURNAL), CLAIMS)
    assert response.status == Status.OK
    return response.offset


async def trim(broker: Broker, offset: int) -> TrimResponse:
    return await broker.trim(TrimRequest(journal=JOURNAL, offset=offset), CLAIMS)


async def three_fragments(broker: Broker) -> None:
    """[0, 4), [4, 8) and [8, 12), all in the store; registers that say so."""
    for number in range(3):
        await append(broker, b"%04d" % number, registers={f"number{number}": "x"})
        assert await roll(broker) == 4 * (number + 1)
    await persisted(broker)


def stored(path: Path) -> list[str]:
    """The spans of the fragments in the store, as their names have them."""
    return sorted(
        "-".join(str(int(part, 16)) for part in file.name.split("-")[:2])
        for file in (path / "fragments").rglob("*-*")
        if ".test" not in file.parts and not file.name.startswith(PARTIAL)
    )


def spooled(path: Path) -> list[int]:
    return sorted(int(file.name[:16], 16) for file in (path / "spools").rglob("*.spool"))


def register_names(broker: Broker) -> list[str]:
    return [label.name for label in replica(broker).spool.registers.labels]


def test_whole_fragments_go_and_a_read_below_jumps_forward(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(path := tmp_path / "data") as broker:
            await three_fragments(broker)
            trimmed = await trim(broker, 7)
            assert (trimmed.status, trimmed.begin, trimmed.fragments, trimmed.bytes) == (Status.OK, 4, 1, 4)
            assert stored(path) == ["4-8", "8-12"]
            [first, *_] = await read(broker, ReadRequest(journal=JOURNAL, offset=1))
            assert (first.offset, first.fragment.begin) == (4, 4)
            assert await content(broker) == b"00010002"
            assert (await trim(broker, 7)).fragments == 0
            assert (await trim(broker, 0)).begin == 4

    in_loop(test)


def test_fragments_that_are_in_no_store_yet_go_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(path := tmp_path / "data", disk := HookedDisk()) as broker:

            def down(step: str, at: Path) -> None:
                if "fragments" in at.parts and step != "remove":
                    raise OSError("the store is down")

            disk.before = down
            for number in range(3):
                await append(broker, b"%04d" % number)
                await roll(broker)
            assert spooled(path) == [0, 4, 8, 12]
            assert (await trim(broker, 8)).fragments == 2
            assert spooled(path) == [8, 12]
            disk.before = lambda step, at: None
            await persisted(broker)
            assert stored(path) == ["8-12"]
            assert await content(broker) == b"0002"

    in_loop(test)


def test_everything_may_go_and_head_and_registers_stay(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(path := tmp_path / "data") as broker:
            await three_fragments(broker)
            await append(broker, b"last")  # in the spool, which trimming closes
            trimmed = await trim(broker, 16)
            assert (trimmed.begin, trimmed.fragments) == (16, 4)
            await until(lambda: stored(path) == [])  # one was being stored when it was trimmed
            [answer] = await read(broker, ReadRequest(journal=JOURNAL, offset=0))
            assert (answer.status, answer.offset) == (Status.OFFSET_NOT_YET_AVAILABLE, 16)
            assert answer.write_head == 16
        async with opened(path) as broker:
            assert replica(broker).write_head == 16
            assert register_names(broker) == ["number0", "number1", "number2"]
            assert await append(broker, b"next") == (16, 20)
            assert await content(broker) == b"next"

    in_loop(test)


def test_a_blocking_read_below_gets_what_is_next(tmp_path: Path) -> None:
    """One that is below the trim point from the start, and one that waits at a head that is then trimmed."""

    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await three_fragments(broker)
            waiting = asyncio.create_task(first_content(broker, 12))
            await trim(broker, 12)
            late = asyncio.create_task(first_content(broker, 3))
            await asyncio.sleep(0)
            await append(broker, b"next")
            assert (await waiting).content == (await late).content == b"next"
            assert waiting.result().offset == late.result().offset == 12

    async def first_content(broker: Broker, offset: int) -> ReadResponse:
        async for response in broker.read(ReadRequest(journal=JOURNAL, offset=offset, block=True), CLAIMS):
            if response.content:
                return response
        raise AssertionError("the read ended")

    in_loop(test)


@pytest.mark.parametrize("offset", [-1, 13])
def test_a_trim_beyond_the_head_is_refused(tmp_path: Path, offset: int) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await three_fragments(broker)
            with pytest.raises(ValidationError, match="write head 12"):
                await trim(broker, offset)
            assert await content(broker) == b"000000010002"

    in_loop(test)


def test_a_trim_survives_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(path := tmp_path / "data") as broker:
            await three_fragments(broker)
            await trim(broker, 8)
        async with opened(path) as broker:
            assert replica(broker).trimmed == 8
            [first, *_] = await read(broker, ReadRequest(journal=JOURNAL, offset=0))
            assert first.offset == 8

    in_loop(test)


def test_a_trim_that_is_interrupted_is_finished_by_the_next_refresh(tmp_path: Path) -> None:
    """Also by that of the next broker: here the second of two fragments cannot be removed at first."""

    async def test() -> None:
        def fail(step: str, at: Path) -> None:
            if step == "remove" and at.name.startswith(f"{4:016x}-"):
                raise OSError("not now")

        async with opened(path := tmp_path / "data", disk := HookedDisk()) as broker:
            await three_fragments(broker)
            disk.before = fail
            with pytest.raises(OSError, match="not now"):
                await trim(broker, 8)
            assert stored(path) == ["4-8", "8-12"]
        async with opened(path) as broker:
            assert (await content(broker)) == b"0002", "what was to go is seen again"
            await until(lambda: stored(path) == ["8-12"])

    in_loop(test)


def test_a_failure_of_upkeep_does_not_end_upkeep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh that enforces retention and fails comes again."""
    monkeypatch.setattr("penstock.journal.rounds._AFTER_A_FAILURE", 0.01)

    async def test() -> None:
        failures = 0

        def fail(step: str, at: Path) -> None:
            nonlocal failures
            if step == "remove" and at.name.startswith(f"{0:016x}-") and not failures:
                failures += 1
                raise OSError("not now")

        async with opened(path := tmp_path / "data", disk := HookedDisk()) as broker:
            await three_fragments(broker)
            disk.before = fail
            await retain(broker, path)
            await until(lambda: stored(path) == ["8-12"])
            assert failures == 1

    in_loop(test)


async def retain(broker: Broker, path: Path, *, label: str = maintenance.ENFORCED) -> None:
    """Have what is older than a day deleted, and all that is stored be older."""
    spec = journal_spec(JOURNAL, 1024, {maintenance.RETENTION: label} if label else {})
    spec.fragment.retention.CopyFrom(Duration(seconds=86400))
    age(path)
    await applied(broker, ApplyRequest.Change(expect_mod_revision=-1, upsert=spec))


def age(path: Path) -> None:
    for file in (path / "fragments").rglob("*-*"):
        os.utime(file, (1_000_000_000, 1_000_000_000))


def test_retention_deletes_from_the_front_but_never_the_last_fragment(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(path := tmp_path / "data") as broker:
            await three_fragments(broker)
            await retain(broker, path)
            await until(lambda: stored(path) == ["8-12"])
            assert replica(broker).trimmed == 8
            assert await content(broker) == b"0002"
        async with opened(path) as broker:
            assert await append(broker, b"next") == (12, 16)

    in_loop(test)


@pytest.mark.parametrize("label", ["", "advise"])
def test_retention_that_is_not_asked_for_deletes_nothing(tmp_path: Path, label: str) -> None:
    async def test() -> None:
        async with opened(path := tmp_path / "data") as broker:
            await three_fragments(broker)
            await retain(broker, path, label=label)
            await broker._refresh(JOURNAL)
            assert stored(path) == ["0-4", "4-8", "8-12"]
            assert replica(broker).trimmed == 0

    in_loop(test)


def spec_retained(seconds: int, flags: int = 0) -> JournalSpec:
    spec = JournalSpec(
        name=JOURNAL, flags=flags, labels=label_set({maintenance.RETENTION: maintenance.ENFORCED})
    )
    spec.fragment.retention.CopyFrom(Duration(seconds=seconds))
    return spec


def fragments(*mod_times: int) -> Index[object]:
    """Of ten bytes each; 0 is one that is in no store yet."""
    index: Index[object] = Index()
    for number, mod_time in enumerate(mod_times):
        store = "file:///" if mod_time else ""
        begin = 10 * number
        index.add(
            Fragment(
                JOURNAL, begin, begin + 10, b"x" * 20, Codec.NONE, backing_store=store, mod_time=mod_time
            ),
            None,
        )
    return index


@pytest.mark.parametrize(
    ("seconds", "flags", "mod_times", "begin"),
    [
        (100, 0, (10, 20, 30), 20),
        (100, 0, (10, 950, 30), 10),  # an old one behind a young one stays: no hole is made
        (100, 0, (10, 0, 30), 10),  # one that is in no store yet
        (100, 0, (10,), 0),  # the last one
        (100, 0, (), 0),
        (0, 0, (10, 20), 0),  # for ever
        (100, 1, (10, 20), 0),  # another cluster's store
        (990, 0, (10, 11, 12), 10),
        (991, 0, (10, 11, 12), 0),
    ],
)
def test_what_retention_would_keep(seconds: int, flags: int, mod_times: tuple[int, ...], begin: int) -> None:
    index = fragments(*mod_times)
    assert maintenance.retained_from(spec_retained(seconds, flags), index, 1000) == begin  # type: ignore[arg-type]


def test_a_roll_closes_the_fragment_and_one_of_nothing_changes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(path := tmp_path / "data") as broker:
            assert await roll(broker) == 0
            await append(broker, b"abc", registers={"kept": "x"})
            assert [await roll(broker) for _ in range(3)] == [3, 3, 3]
            await persisted(broker)
            assert stored(path) == ["0-3"]
            assert register_names(broker) == ["kept"]
            assert await append(broker, b"d") == (3, 4)

    in_loop(test)


def test_trims_rolls_and_appends_at_once_lose_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data", options=BrokerOptions(pulse_interval=0.05)) as broker:

            async def appends() -> int:
                end = 0
                for _ in range(100):
                    _, end = await append(broker, b"0123456789")
                return end

            async def upkeep() -> None:
                while not appending.done():
                    head = await roll(broker)
                    await trim(broker, head // 2 // 10 * 10)
                    await asyncio.sleep(0)

            appending = asyncio.create_task(appends())
            await upkeep()
            end = await appending
            begin = (await trim(broker, 0)).begin
            assert await content(broker) == b"0123456789" * ((end - begin) // 10)
            assert end == 1000

    in_loop(test)


def test_a_trim_of_a_journal_that_is_not_there_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            answer = await broker.trim(TrimRequest(journal="no/such"), CLAIMS)
            assert answer.status == Status.JOURNAL_NOT_FOUND
            rolled = await broker.roll(RollRequest(journal="no/such"), CLAIMS)
            assert rolled.status == Status.JOURNAL_NOT_FOUND

    in_loop(test)


def test_a_suspended_journal_can_be_trimmed(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path / "data") as broker:
            await three_fragments(broker)
            await broker.append_whole(
                AppendRequest(journal=JOURNAL, suspend=AppendRequest.SUSPEND_NOW), CLAIMS
            )
            assert (await trim(broker, 8)).begin == 8
            assert await append(broker, b"next") == (12, 16)
            assert await content(broker) == b"0002next"

    in_loop(test)
