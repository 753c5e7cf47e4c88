"""Power loss and the journal: appends, registers, closing of fragments, the directory itself.

The broker runs on a recording disk; every disk that a power cut at any step may leave is opened again, and
what was acknowledged by then must be there, once, in place, with nothing unacknowledged visible in part.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.base.disk import Disk
from penstock.journal.append import AppendMachine
from penstock.journal.broker import ITEMS, Broker
from penstock.journal.datadir import DataDir
from penstock.journal.labels import label_set
from penstock.journal.protocol import AppendRequest, Status
from penstock.log.commitlog import journal_spec
from penstock.testing.powerloss import Mark, RecordingDisk, check, every_sync_matters, marked

JOURNAL = "a/journal"


class Acknowledged(NamedTuple):
    """A promise: content ends at `end`, and the register says `number`."""

    number: int
    end: int


class Created(NamedTuple):
    """A promise: the journal is there."""

    name: str


class Made(NamedTuple):
    """A promise: the data directory is there, with this identity."""

    id: str


def content_of(number: int) -> bytes:
    return b"%03d" % number * 200


async def append(broker: Broker, number: int) -> int:
    """One append of the given number, which also sets the register; returns where it ends."""
    first = AppendRequest(journal=JOURNAL, union_registers=label_set({"number": str(number)}))

    async def stream() -> AsyncIterator[AppendRequest]:
        yield AppendRequest(content=content_of(number))
        yield AppendRequest()

    machine = AppendMachine(first, stream(), broker._replicas.get)
    await machine.run()
    assert machine.status == Status.OK
    assert machine.commit is not None
    return machine.commit.end


def record(disk: RecordingDisk, root: Path) -> None:
    async def work() -> None:
        directory = DataDir(root / "data")
        version = directory.create(disk)
        disk.mark(Made(version.id))
        broker = Broker(directory, version, disk)
        spec = journal_spec(JOURNAL, 1024, {})
        assert broker._keyspace.transact({}, [(f"{ITEMS}{JOURNAL}", spec.SerializeToString())], [])
        disk.mark(Created(JOURNAL))
        broker._open(JOURNAL, spec)

        async def acknowledged(number: int) -> None:
            disk.mark(Acknowledged(number, await append(broker, number)))

        for number in range(3):
            await acknowledged(number)
        await asyncio.gather(*(acknowledged(number) for number in range(3, 6)))
        while broker._replicas[JOURNAL]._unpersisted:
            await asyncio.sleep(0.001)
        await acknowledged(6)
        await broker.close()

    asyncio.run(work())


def verify(root: Path, marks: Sequence[Mark]) -> None:
    directory = DataDir(root / "data")
    for made in marked(marks, Made):
        assert directory.version().id == made.id
    if not marked(marks, Created):
        return

    async def look() -> None:
        broker = Broker(directory, directory.version(), Disk())
        try:
            replica = broker._replicas[JOURNAL]
            promised = marked(marks, Acknowledged)
            head = replica.write_head
            assert head >= max((promise.end for promise in promised), default=0)
            content = b"".join(
                file.path.read_bytes()[file.position :][: fragment.length]
                for fragment, file in replica.locate(0, head)
            )
            assert len(content) == head, "committed bytes are missing"
            numbers = [int(content[at : at + 3]) for at in range(0, head, 600)]
            assert content == b"".join(map(content_of, numbers)), "an append is visible in part"
            assert sorted(numbers) == list(range(len(numbers))), "an append is there twice, or one is missing"
            if numbers:
                values = {label.name: label.value for label in replica.spool.registers.labels}
                assert values == {"number": str(numbers[-1])}, "the registers are not those of the last append"
            assert await append(broker, 999) == head + 600
        finally:
            await broker.close()

    asyncio.run(look())


def test_acknowledged_appends_survive_power_loss() -> None:
    check(record, verify, seed=3, per_cut=6)


def test_no_sync_of_the_journal_is_there_for_nothing() -> None:
    every_sync_matters(
        record,
        verify,
        seed=3,
        exempt=[
            # Both sync the data directory itself, as does the first append when it makes `spools` there, so each
            # is covered by the others in this recording. The first is proved in test_keyspace; the second counts
            # when somebody removed an empty `fragments` from an old directory.
            "keyspace.py:LocalKeySpace.__init__",
            "broker.py:Broker.__init__ Disk.make_dirs",
        ],
    )


def record_after_a_kill(disk: RecordingDisk, root: Path, steps: int) -> None:
    """A broker is killed after some steps; its successor finds what the page cache kept, and goes on."""

    async def work(numbers: range, promise: bool) -> None:
        directory = DataDir(root / "data")
        broker = Broker(directory, directory.create(disk), disk)
        key = f"{ITEMS}{JOURNAL}"
        if broker._keyspace.get(key) is None:
            spec = journal_spec(JOURNAL, 1024, {})
            broker._keyspace.transact({}, [(key, spec.SerializeToString())], [])
            broker._open(JOURNAL, spec)
        if promise:
            disk.mark(Created(JOURNAL))
            # What a restarted broker shows to a reader it must still have after the next power cut.
            head = broker._replicas[JOURNAL].write_head
            if head:
                disk.mark(Acknowledged(head // 600 - 1, head))
            numbers = range(head // 600, head // 600 + 2)
        for number in numbers:
            end = await append(broker, number)
            if promise:
                disk.mark(Acknowledged(number, end))
        await broker.close()

    with disk.killed_after(steps):
        asyncio.run(work(range(3), promise=False))
    asyncio.run(work(range(0), promise=True))


@pytest.mark.parametrize("steps", range(4, 60, 5))
def test_what_a_killed_broker_left_in_the_page_cache_is_made_durable_before_it_is_shown(steps: int) -> None:
    check(lambda disk, root: record_after_a_kill(disk, root, steps), verify, seed=steps, per_cut=4)
