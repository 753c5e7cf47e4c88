"""The power-loss harness: toy logs whose promises hold, and whose planted bugs are found."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.base.disk import Disk
from penstock.testing.powerloss import (
    BrokenPromiseError,
    Mark,
    RecordingDisk,
    check,
    every_sync_matters,
    marked,
)

from .toylogs import (
    NoChecksum,
    NoFolderForTheFolder,
    NoFolderSync,
    NoRecordSync,
    NoSyncOnOpen,
    Record,
    SyncBeforeWrite,
    ToyLog,
    TwoSyncs,
    appends,
    go_on,
    reads,
    restarts,
)


@pytest.mark.parametrize("run", [appends, restarts])
def test_a_correct_log_keeps_its_promises(run: Callable[[type[ToyLog]], Record]) -> None:
    done = check(run(ToyLog), reads(ToyLog), seed=1)
    assert done.images > 30


@pytest.mark.parametrize("steps", range(16))
def test_a_correct_log_keeps_its_promises_after_a_kill_at_any_step(steps: int) -> None:
    def record(disk: RecordingDisk, root: Path) -> None:
        with disk.killed_after(steps):
            appends(ToyLog)(disk, root)
        assert len(disk.log.events) == steps
        go_on(ToyLog, disk, root)

    def prepare(root: Path) -> None:
        (root / "data").mkdir(parents=True)

    check(record, reads(ToyLog), seed=steps, prepare=prepare)


def test_what_a_killed_process_left_is_not_durable_for_its_successor() -> None:
    check(appends(NoSyncOnOpen), reads(NoSyncOnOpen), seed=1)
    with pytest.raises(BrokenPromiseError, match="the last b'first'"):
        check(restarts(NoSyncOnOpen), reads(NoSyncOnOpen), seed=1)


@pytest.mark.parametrize(
    "kind", [NoRecordSync, NoFolderSync, NoFolderForTheFolder, SyncBeforeWrite, NoChecksum]
)
def test_a_log_with_a_planted_bug_breaks_them(kind: type[ToyLog]) -> None:
    with pytest.raises(BrokenPromiseError):
        check(appends(kind), reads(kind), seed=1)


def test_every_sync_of_the_correct_log_matters() -> None:
    failures = every_sync_matters(restarts(ToyLog), reads(ToyLog), seed=1)
    assert sorted(site.label for site in failures) == [
        "toylogs.py:ToyLog.cut_tail",
        "toylogs.py:ToyLog.made_durable",
        "toylogs.py:ToyLog.make_folder Disk.make_dirs",
        "toylogs.py:ToyLog.opened",
    ]
    assert all(failure.dropped == site for site, failure in failures.items())


def test_several_recordings_prove_together_what_none_proves_alone() -> None:
    """The sync on open matters only after a kill, which the run that goes well does not have."""
    runs = [appends(ToyLog), restarts(ToyLog)]
    with pytest.raises(AssertionError, match=r"toylogs\.py:ToyLog\.cut_tail"):
        every_sync_matters(runs[:1], reads(ToyLog), seed=1)
    assert len(every_sync_matters(runs, reads(ToyLog), seed=1)) == 4
    with pytest.raises(BrokenPromiseError):
        every_sync_matters([*runs, appends(NoRecordSync)], reads(ToyLog), seed=1)


def test_a_redundant_sync_is_named() -> None:
    with pytest.raises(AssertionError, match="no failure found") as caught:
        every_sync_matters(restarts(TwoSyncs), reads(TwoSyncs), seed=1)
    named = [line for line in str(caught.value).splitlines() if "TwoSyncs.made_durable" in line]
    assert len(named) == 2
    assert "ToyLog.opened" not in str(caught.value)
    done = every_sync_matters(
        restarts(TwoSyncs), reads(TwoSyncs), seed=1, exempt=["toylogs.py:TwoSyncs.made_durable"]
    )
    assert len(done) == 3


def test_an_exemption_that_fits_nothing_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"fit no sync: no\.py:such"):
        every_sync_matters(appends(ToyLog), reads(ToyLog), seed=1, exempt=["no.py:such"])


def test_every_sync_matters_wants_the_promises_kept_first() -> None:
    with pytest.raises(BrokenPromiseError) as caught:
        every_sync_matters(appends(NoRecordSync), reads(NoRecordSync), seed=1)
    assert caught.value.dropped is None


def test_both_syncs_of_replace_file_matter() -> None:
    def record(disk: RecordingDisk, root: Path) -> None:
        for number in range(3):
            disk.replace_file(root / "f", b"%03d" % number * 300)
            disk.mark(number)

    def verify(root: Path, marks: Sequence[Mark]) -> None:
        path = root / "f"
        content = path.read_bytes() if path.exists() else None
        valid = [b"%03d" % number * 300 for number in range(3)]
        assert content in valid[len(marks) - 1 :] if marks else content in (None, *valid)

    failures = every_sync_matters(record, verify, seed=1)
    assert len({site.helper for site in failures}) == 2


class PointerLast:
    """Data in one file, its length in another; `ordered` syncs the data before the pointer tells of it."""

    def __init__(self, disk: Disk, root: Path, ordered: bool) -> None:
        self.disk, self.root, self.ordered, self.size = disk, root, ordered, 0
        self.data = disk.open(root / "data", create=True)
        disk.sync_dir(root)

    def put(self, data: bytes) -> None:
        self.data.write_at(data, self.size)
        self.size += len(data)
        if self.ordered:
            self.data.sync()
        self.disk.replace_file(self.root / "size", b"%d" % self.size)
        if not self.ordered:
            self.data.sync()


@pytest.mark.parametrize("ordered", [True, False])
def test_a_planted_ordering_bug_is_found(ordered: bool) -> None:
    def record(disk: RecordingDisk, root: Path) -> None:
        store = PointerLast(disk, root, ordered)
        for number in range(1, 5):
            store.put(bytes([number]) * 100)
            disk.mark(number)
        store.data.close()

    def verify(root: Path, marks: Sequence[Mark]) -> None:
        size = int((root / "size").read_bytes()) if (root / "size").exists() else 0
        assert size >= 100 * len(marks)
        if size:
            expected = b"".join(bytes([number]) * 100 for number in range(1, 5))
            assert (root / "data").read_bytes()[:size] == expected[:size]

    with contextlib.nullcontext() if ordered else pytest.raises(BrokenPromiseError, match="PointerLast"):
        check(record, verify, seed=1)


class GroupCommit:
    """One sync for all appends that came before it; `early` acknowledges those that came during it, too."""

    def __init__(self, disk: RecordingDisk, root: Path, early: bool) -> None:
        self.disk, self.early, self.end = disk, early, 0
        self.file = disk.open(root / "log", create=True)
        disk.sync_dir(root)
        self.waiting: list[int] = []

    def write(self, number: int) -> None:
        self.file.write_at(bytes([number]), self.end)
        self.end += 1
        self.waiting.append(number)

    async def commit(self) -> None:
        group = self.waiting
        if not self.early:
            self.waiting = []
        await asyncio.to_thread(self.file.sync)
        if self.early:
            self.waiting = []
        for number in group:
            self.disk.mark(number)


@pytest.mark.parametrize("early", [False, True])
def test_a_group_commit_in_a_thread_acknowledges_only_what_came_before_the_sync(early: bool) -> None:
    async def run(disk: RecordingDisk, root: Path) -> None:
        log = GroupCommit(disk, root, early)
        started, go_on = threading.Event(), threading.Event()

        def wait_inside(_: Path) -> None:
            started.set()
            go_on.wait(10)

        disk.during_sync = wait_inside
        for number in range(1, 9, 2):
            started.clear()
            go_on.clear()
            log.write(number)
            async with asyncio.TaskGroup() as group:
                group.create_task(log.commit())
                await asyncio.to_thread(started.wait, 10)
                log.write(number + 1)
                go_on.set()
        log.file.close()

    def verify(root: Path, marks: Sequence[Mark]) -> None:
        path = root / "log"
        content = path.read_bytes() if path.exists() else b""
        assert all(content[number - 1 : number] == bytes([number]) for number in marked(marks, int))

    def record(disk: RecordingDisk, root: Path) -> None:
        asyncio.run(run(disk, root))

    if early:
        with pytest.raises(BrokenPromiseError):
            check(record, verify, seed=1)
    else:
        failures = every_sync_matters(record, verify, seed=1)
        assert any(site.function == "GroupCommit.commit" for site in failures)
