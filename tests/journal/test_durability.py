"""Power loss and the journal: appends, registers, closing of fragments, the directory itself.

The broker runs on a recording disk; every disk that a power cut at any step may leave is opened again, and
what was acknowledged by then must be there, once, in place, with nothing unacknowledged visible in part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.base.disk import Disk
from penstock.journal.broker import ITEMS, Broker
from penstock.journal.datadir import DataDir
from penstock.journal.replica import JournalFailedError
from penstock.log.commitlog import journal_spec
from penstock.testing.powerloss import (
    BrokenPromiseError,
    Mark,
    RecordingDisk,
    check,
    every_sync_matters,
    images,
    marked,
    sync_sites,
)

from .brokers import JOURNAL, append, persisted, replica


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


async def open_broker(disk: Disk, root: Path) -> Broker:
    """Open the data directory and its journal, both made if they are not there."""
    directory = DataDir(root / "data")
    broker = Broker(directory, directory.create(disk), disk)
    key = f"{ITEMS}{JOURNAL}"
    if broker._keyspace.get(key) is None:
        spec = journal_spec(JOURNAL, 1024, {})
        assert broker._keyspace.transact({}, [(key, spec.SerializeToString())], [])
        broker._open(JOURNAL, spec)
    return broker


async def append_number(broker: Broker, number: int) -> int:
    """One append of the given number, which also sets the register; returns where it ends."""
    return (await append(broker, content_of(number), registers={"number": str(number)}))[1]


def record(disk: RecordingDisk, root: Path) -> None:
    """A run that goes well: the directory is made, fragments close and are stored, appends share syncs."""

    async def work() -> None:
        disk.mark(Made(DataDir(root / "data").create(disk).id))
        broker = await open_broker(disk, root)
        disk.mark(Created(JOURNAL))

        async def acknowledged(number: int) -> None:
            disk.mark(Acknowledged(number, await append_number(broker, number)))

        for number in range(3):
            await acknowledged(number)
        await asyncio.gather(*(acknowledged(number) for number in range(3, 6)))
        await persisted(broker)
        await acknowledged(6)
        await broker.close()

    asyncio.run(work())


def go_on(disk: RecordingDisk, root: Path) -> None:
    """Open what there is, promise what a reader would be shown, append a little more."""

    async def work() -> None:
        broker = await open_broker(disk, root)
        disk.mark(Made(broker._version.id))
        disk.mark(Created(JOURNAL))
        head = replica(broker).write_head
        if head:
            disk.mark(Acknowledged(head // 600 - 1, head))
        for number in range(head // 600, head // 600 + 2):
            disk.mark(Acknowledged(number, await append_number(broker, number)))
        await persisted(broker)
        await broker.close()

    asyncio.run(work())


def record_after_a_kill(disk: RecordingDisk, root: Path, steps: int) -> None:
    """A broker is killed after some steps; its successor finds what the page cache kept, and goes on."""

    async def work() -> None:
        broker = await open_broker(disk, root)
        try:
            for number in range(3):
                await append_number(broker, number)
                await persisted(broker)
        finally:
            await broker.close()

    with disk.killed_after(steps), suppress(JournalFailedError):
        asyncio.run(work())
    go_on(disk, root)


def verify(root: Path, marks: Sequence[Mark]) -> None:
    directory = DataDir(root / "data")
    for made in marked(marks, Made):
        assert directory.version().id == made.id

    async def look() -> None:
        broker = Broker(directory, directory.create(Disk()), Disk())
        try:
            assert all(created.name in broker._replicas for created in marked(marks, Created))
            if JOURNAL in broker._replicas:
                await verify_content(broker, marked(marks, Acknowledged))
        finally:
            await broker.close()

    asyncio.run(look())


async def verify_content(broker: Broker, promised: Sequence[Acknowledged]) -> None:
    journal = replica(broker)
    head = journal.write_head
    assert head >= max((promise.end for promise in promised), default=0)
    content = b"".join(
        file.path.read_bytes()[file.position :][: fragment.length]
        for fragment, file in journal.locate(0, head)
    )
    assert len(content) == head, "committed bytes are missing"
    numbers = [int(content[at : at + 3]) for at in range(0, head, 600)]
    assert content == b"".join(map(content_of, numbers)), "an append is visible in part"
    assert sorted(numbers) == list(range(len(numbers))), "an append is there twice, or one is missing"
    if numbers:
        values = {label.name: label.value for label in journal.spool.registers.labels}
        assert values == {"number": str(numbers[-1])}, "the registers are not those of the last append"
    assert await append_number(broker, 999) == head + 600


def test_acknowledged_appends_survive_power_loss() -> None:
    check(record, verify, seed=3, per_cut=6)


@pytest.mark.parametrize("steps", range(0, 90, 4))
def test_what_a_killed_broker_left_in_the_page_cache_is_made_durable_before_it_is_shown(steps: int) -> None:
    check(partial(record_after_a_kill, steps=steps), verify, seed=steps, per_cut=4)


def test_power_loss_during_recovery_from_power_loss() -> None:
    first = check(record, verify, seed=3, per_cut=6)
    torn = [image for image in images(first.log, seed=3, per_cut=6) if "torn" in image.choice]
    assert len(torn) > 20
    for image in torn[:: len(torn) // 10]:
        check(go_on, verify, seed=3, prepare=image.build, per_cut=2)


# Of the steps of a broker that is killed, those before the first fragment closes: no other thread runs yet, so
# the same number always means the same moment.
KILLED_EARLY = range(4, 44)
MAKES_FRAGMENTS = "broker.py:Broker.__init__ Disk.make_dirs"


def test_no_sync_of_the_journal_is_there_for_nothing() -> None:
    every_sync_matters(
        [record, *(partial(record_after_a_kill, steps=steps) for steps in KILLED_EARLY)],
        verify,
        seed=3,
        per_cut=4,
        exempt=[
            # Needed when `spools` is there and `fragments` is not: below, where a person took it away.
            MAKES_FRAGMENTS,
            # One line of it syncs the data directory, as the next step, which makes `fragments`, does again: proved
            # in test_keyspace, where nothing comes next.
            "keyspace.py:LocalKeySpace.__init__",
        ],
    )


def test_the_folder_of_fragments_is_made_durable_before_a_spool_goes() -> None:
    """In a new directory the first spool's folder would do that by the way; in an old one nothing else does."""

    def without_fragments(root: Path) -> None:
        async def work() -> None:
            broker = await open_broker(Disk(), root)
            await append_number(broker, 0)
            await broker.close()

        root.mkdir()
        asyncio.run(work())
        (root / "data" / "fragments").rmdir()

    checked = check(go_on, verify, seed=1, prepare=without_fragments)
    [site] = [site for site in sync_sites(checked.log) if site.label == MAKES_FRAGMENTS]
    with pytest.raises(BrokenPromiseError):
        check(go_on, verify, seed=1, prepare=without_fragments, drop_sync=site)
