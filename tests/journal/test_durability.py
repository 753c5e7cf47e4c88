"""Power loss and the journal: appends, registers, closing of fragments, upkeep, full disks, the directory itself.

The broker runs on a recording disk; every disk that a power cut at any step may leave is opened again, and
what was acknowledged by then must be there, once, in place, with nothing unacknowledged visible in part.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.base.disk import Disk
from penstock.journal import spoolfile, spoollayout
from penstock.journal.append import AppendMachine
from penstock.journal.broker import Broker
from penstock.journal.datadir import DataDir
from penstock.journal.fragment import Codec, parse_path
from penstock.journal.localspool import JournalFailedError
from penstock.journal.protocol import (
    AppendRequest,
    ApplyRequest,
    JournalSpec,
    ReadRequest,
    RollRequest,
    TrimRequest,
)
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

from .brokers import (
    CLAIMS,
    JOURNAL,
    append,
    applied,
    create,
    listed,
    persisted,
    read,
    replica,
    stream,
)
from .brokers import content as everything_in


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


IN_DOUBT = 500
"""An append that failed. It may be there if nothing came after it, since nobody was told that it is not."""


UNIT = 600
"""Bytes of an append."""
LENGTH = 1024
"""Of a fragment, at least."""


def content_of(number: int) -> bytes:
    return b"%03d" % number * (UNIT // 3)


async def open_broker(disk: Disk, root: Path) -> Broker:
    """Open the data directory and its journal, both made if they are not there."""
    directory = DataDir(root / "data")
    broker = Broker(directory, directory.create(disk), disk)
    if JOURNAL not in broker._replicas:
        await create(broker, JOURNAL, LENGTH)
    await listed(broker)
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


def go_on(disk: RecordingDisk, root: Path, *, store: bool = True) -> None:
    """Open what there is, promise what a reader would be shown, append a little more."""

    async def work() -> None:
        broker = await open_broker(disk, root)
        disk.mark(Made(broker.directory.version().id))
        disk.mark(Created(JOURNAL))
        head = replica(broker).write_head
        if head:
            disk.mark(Acknowledged(head // UNIT - 1, head))
        for number in range(head // UNIT, head // UNIT + 2):
            disk.mark(Acknowledged(number, await append_number(broker, number)))
        if store:
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
    verify_stored(directory.fragments / JOURNAL)

    async def look() -> None:
        broker = Broker(directory, directory.create(Disk()), Disk())
        try:
            assert all(created.name in broker._replicas for created in marked(marks, Created))
            if JOURNAL in broker._replicas:
                await verify_content(broker, marked(marks, Acknowledged))
        finally:
            await broker.close()

    asyncio.run(look())


def verify_stored(folder: Path) -> None:
    """What has its name in the store is what the name says, and nothing more."""
    for path in folder.rglob("*-*-*"):
        fragment = parse_path(JOURNAL, path.name, backing_store="file:///", mod_time=1)
        assert fragment.codec is not Codec.NONE or hashlib.sha1(path.read_bytes()).digest() == fragment.sum


async def verify_content(broker: Broker, promised: Sequence[Acknowledged]) -> None:
    journal = replica(broker)
    await listed(broker)
    head = journal.write_head
    assert head >= max((promise.end for promise in promised), default=0)
    content = await everything_in(broker)
    assert len(content) == head, "committed bytes are missing"
    numbers = [int(content[at : at + 3]) for at in range(0, head, UNIT)]
    assert content == b"".join(map(content_of, numbers)), "an append is visible in part"
    known = numbers[:-1] if numbers[-1:] == [IN_DOUBT] else numbers
    assert sorted(known) == list(range(len(known))), "an append is there twice, or one is missing"
    if numbers:
        values = {label.name: label.value for label in journal.spool.registers.labels}
        assert values == {"number": str(numbers[-1])}, "the registers are not those of the last append"
    assert await append_number(broker, 999) == head + UNIT


def test_acknowledged_appends_survive_power_loss() -> None:
    check(record, verify, seed=3, per_cut=6)


@pytest.mark.parametrize("steps", range(0, 90, 8))
def test_what_a_killed_broker_left_in_the_page_cache_is_made_durable_before_it_is_shown(steps: int) -> None:
    check(partial(record_after_a_kill, steps=steps), verify, seed=steps, per_cut=4)


def record_settled(disk: RecordingDisk, root: Path) -> None:
    """Brokers that leave their spool settled, one after the other; the last one finds it so and adds nothing."""
    for _ in range(3):
        go_on(disk, root, store=False)

    async def work() -> None:
        broker = await open_broker(disk, root)
        assert not replica(broker).spool.takes_content, "it was not gone through"
        await broker.close()

    asyncio.run(work())


def test_a_settled_spool_survives_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spoolfile, "WORTH_SETTLING", 1)
    check(record_settled, verify, seed=3, per_cut=6)


@pytest.mark.parametrize("steps", range(4, 90, 16))
def test_what_a_killed_broker_left_is_settled_only_once_it_is_durable(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(spoolfile, "WORTH_SETTLING", 1)
    check(partial(record_after_a_kill, steps=steps), verify, seed=steps, per_cut=4)


def test_two_records_of_different_fragments_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule that a spool is settled by, taken away: power loss then shows content that was never synced."""
    monkeypatch.setattr(spoolfile, "WORTH_SETTLING", 1)
    monkeypatch.setattr(spoolfile, "_repeats", lambda newer, older: True)
    with pytest.raises(BrokenPromiseError):
        check(partial(go_on, store=False), verify, seed=3, per_cut=6)


def test_power_loss_during_recovery_from_power_loss() -> None:
    first = check(record, verify, seed=3, cuts=())
    torn = [image for image in images(first.log, seed=3, per_cut=6) if "torn" in image.choice]
    assert len(torn) > 20
    for image in torn[:: len(torn) // 3]:
        check(go_on, verify, seed=3, prepare=image.build, per_cut=2)


def record_with_a_full_disk(disk: RecordingDisk, root: Path, first: int, *, stored: bool = True) -> None:
    """A commit cannot be synced for want of room; when there is some the journal goes on without it.

    Unless it is `stored`, the file of that commit keeps its records.
    """

    async def work() -> None:
        broker = await open_broker(disk, root)
        if not stored:
            change = changed(Codec.NONE)
            del change.upsert.fragment.stores[:]
            await applied(broker, change)
        for number in range(first):
            disk.mark(Acknowledged(number, await append_number(broker, number)))
        with full(disk), pytest.raises(JournalFailedError, match="No space left"):
            await append_number(broker, IN_DOUBT)
        for number in range(first, first + 2):
            disk.mark(Acknowledged(number, await append_number(broker, number)))
        if stored:
            await persisted(broker)
        await broker.close()

    asyncio.run(work())


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends that soon need more room than a file is made with."""
    monkeypatch.setattr(spoollayout, "FIRST_ROOM", 32 << 10)
    monkeypatch.setitem(globals(), "UNIT", 12_000)
    monkeypatch.setitem(globals(), "LENGTH", 60_000)


@pytest.mark.usefixtures("little_room")
def test_power_loss_while_commit_records_make_room_for_content() -> None:
    checked = check(record, verify, seed=3, per_cut=4)
    [move] = [site for site in sync_sites(checked.log) if site.function == "SpoolFile._move_slots"]
    with pytest.raises(BrokenPromiseError):
        check(record, verify, seed=3, per_cut=4, drop_sync=move)


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize("steps", range(40, 100, 12))
def test_a_broker_that_was_killed_while_records_made_room(steps: int) -> None:
    check(partial(record_after_a_kill, steps=steps), verify, seed=steps, per_cut=2)


def record_without_room_for_records(disk: RecordingDisk, root: Path) -> None:
    """Records cannot be moved for want of room; what comes then goes into another file."""

    async def work() -> None:
        broker = await open_broker(disk, root)
        for number in range(2):
            disk.mark(Acknowledged(number, await append_number(broker, number)))
        with full(disk), pytest.raises(OSError, match="No space left"):
            await append_number(broker, IN_DOUBT)
        for number in range(2, 6):
            with suppress(JournalFailedError):
                disk.mark(Acknowledged(number, await append_number(broker, number)))
                continue
            disk.mark(Acknowledged(number, await append_number(broker, number)))
        await persisted(broker)
        await broker.close()

    asyncio.run(work())


@pytest.mark.usefixtures("little_room")
def test_power_loss_after_records_could_not_be_moved() -> None:
    check(record_without_room_for_records, verify, seed=3, per_cut=3)


@contextmanager
def full(disk: RecordingDisk) -> Iterator[None]:
    """Syncs of content fail; nobody knows what they brought to the disk."""

    def fail(path: Path) -> None:
        if path.suffix == ".spool" and path.read_bytes()[:1] != b"\0":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    disk.during_sync = fail
    try:
        yield
    finally:
        disk.during_sync = None


WITH_A_FULL_DISK = [
    *(partial(record_with_a_full_disk, first=first) for first in (0, 1, 2)),
    partial(record_with_a_full_disk, first=1, stored=False),
]


@pytest.mark.parametrize("record", WITH_A_FULL_DISK)
def test_power_loss_after_a_commit_that_failed_for_want_of_room(
    record: Callable[[RecordingDisk, Path], None],
) -> None:
    check(record, verify, seed=5, per_cut=6)


# Of the steps of a broker that is killed, those around the making of the directory, of the spool's folders and file,
# and the first commits. They come before the first fragment closes: no other thread runs yet, so the same number
# always means the same moment.
KILLED_EARLY = (*range(8, 12), *range(28, 40, 3), *range(43, 56))
MAKES_FRAGMENTS = "hosting.py:Hosting.__init__ Disk.make_dirs"


@pytest.mark.soak
def test_no_sync_of_the_journal_is_there_for_nothing() -> None:
    every_sync_matters(
        [
            record,
            *(partial(record_after_a_kill, steps=steps) for steps in KILLED_EARLY),
            *WITH_A_FULL_DISK,
        ],
        verify,
        seed=3,
        per_cut=3,
        exempt=[
            # Needed when `spools` is there and `fragments` is not: below, where a person took it away.
            MAKES_FRAGMENTS,
            # One line of it syncs the data directory, as the next step, which makes `fragments`, does again: proved
            # in test_keyspace, where nothing comes next.
            "keyspace.py:LocalKeySpace.__init__",
        ],
    )


@pytest.mark.soak
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


class Trimming(NamedTuple):
    """Someone asked to have everything below an offset deleted."""

    offset: int


class Trimmed(NamedTuple):
    """A promise: it is gone, and does not come back."""

    offset: int


class Applied(NamedTuple):
    """A promise: journals have come and gone as asked."""

    there: tuple[str, ...]


APPLIED = [(), ("b/one", "b/two"), ("b/three", "b/two")]
"""The other journals, as two transactions change them."""


class Suspended(NamedTuple):
    """A promise: the journal's spec says so."""

    level: int


def changed(codec: Codec, length: int = 1024) -> ApplyRequest.Change:
    """The journal with another codec."""
    spec = journal_spec(JOURNAL, length, {})
    spec.fragment.compression_codec = codec.to_proto()
    return ApplyRequest.Change(expect_mod_revision=-1, upsert=spec)


def of_others(there: Sequence[str], gone: Sequence[str]) -> list[ApplyRequest.Change]:
    """One transaction that makes some journals and deletes others."""
    return [
        *(ApplyRequest.Change(expect_mod_revision=0, upsert=journal_spec(name, 1024, {})) for name in there),
        *(ApplyRequest.Change(expect_mod_revision=-1, delete=name) for name in gone),
    ]


async def suspend_now(broker: Broker) -> int:
    """Suspend the journal as far as it goes; returns its level."""
    request = AppendRequest(journal=JOURNAL, suspend=AppendRequest.SUSPEND_NOW)
    await AppendMachine(request, stream(b""), broker._appending, CLAIMS).run()
    return listed_level(broker)


def listed_level(broker: Broker) -> int:
    spec = broker.resolver.spec(JOURNAL)
    assert spec is not None
    return spec.suspend.level


def record_upkeep(disk: RecordingDisk, root: Path) -> None:
    """Codecs change, fragments close compressed, the front is trimmed, journals come and go, ours is suspended."""

    async def work() -> None:
        broker = await open_broker(disk, root)

        async def acknowledged(*numbers: int) -> None:
            for number in numbers:
                disk.mark(Acknowledged(number, await append_number(broker, number)))

        async def trimmed(offset: int) -> None:
            disk.mark(Trimming(offset))
            await broker.trim(TrimRequest(journal=JOURNAL, offset=offset), CLAIMS)
            disk.mark(Trimmed(offset))

        await applied(broker, changed(Codec.ZSTANDARD))
        await acknowledged(0, 1, 2)
        await broker.roll(RollRequest(journal=JOURNAL), CLAIMS)
        await persisted(broker)
        await applied(broker, changed(Codec.GZIP))  # of a fragment that is empty and carries the registers
        await acknowledged(3)
        await trimmed(1200)
        await applied(broker, *of_others(["b/one", "b/two"], []))
        disk.mark(Applied(APPLIED[1]))
        await trimmed(replica(broker).write_head)
        await applied(broker, *of_others(["b/three"], ["b/one"]))
        disk.mark(Applied(APPLIED[2]))
        await acknowledged(4)
        disk.mark(Suspended(await suspend_now(broker)))
        await broker.close()

    asyncio.run(work())


def verify_upkeep(root: Path, marks: Sequence[Mark]) -> None:
    async def look() -> None:
        directory = DataDir(root / "data")
        broker = Broker(directory, directory.create(Disk()), Disk())
        try:
            others = tuple(name for name, _ in broker.topology.journals() if name != JOURNAL)
            done = len(marked(marks, Applied))
            assert others in APPLIED[done : done + 2], "a transaction is there in part, or not at all"
            for suspended in marked(marks, Suspended):
                assert listed_level(broker) == suspended.level == JournalSpec.Suspend.PARTIAL
            if JOURNAL in broker._replicas:
                await verify_trimmed(broker, marks)
        finally:
            await broker.close()

    asyncio.run(look())


async def verify_trimmed(broker: Broker, marks: Sequence[Mark]) -> None:
    """What is there is whole, from a point that someone asked for up to the head."""
    await listed(broker)
    head = replica(broker).write_head
    assert head >= max((promise.end for promise in marked(marks, Acknowledged)), default=0)
    answers = await read(broker, ReadRequest(journal=JOURNAL))
    found = b"".join(answer.content for answer in answers)
    begin = head - len(found)
    wanted = [0, *(asked.offset for asked in marked(marks, Trimming))]
    assert begin >= max((trimmed.offset for trimmed in marked(marks, Trimmed)), default=0), (
        "deleted bytes are back"
    )
    assert begin <= wanted[-1], "more is gone than was asked for"
    assert found == b"".join(content_of(number) for number in range(begin // UNIT, head // UNIT))
    assert all(answer.offset >= begin for answer in answers), "a read below did not jump forward"
    values = {label.name: label.value for label in replica(broker).spool.registers.labels}
    assert values == ({"number": str(head // UNIT - 1)} if head else {})
    assert await append_number(broker, head // UNIT) == head + UNIT


def test_trims_codecs_and_changes_of_journals_survive_power_loss() -> None:
    """The trim point is durable before anything goes: no power cut leaves a journal with a hole at its front."""
    check(record_upkeep, verify_upkeep, seed=7, per_cut=4)


def test_the_trim_point_rests_on_its_sync() -> None:
    """The same run with the key space's syncs disregarded breaks a promise, or the check above proves nothing."""
    log = check(record_upkeep, verify_upkeep, seed=7, cuts=()).log
    [site] = [site for site in sync_sites(log) if site.label == "keyspace.py:LocalKeySpace.write"]
    late = range(len(log.events) - 90, len(log.events))
    with pytest.raises(BrokenPromiseError):
        check(record_upkeep, verify_upkeep, seed=7, per_cut=4, cuts=late, drop_sync=site)
