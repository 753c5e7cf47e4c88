"""A sink and power loss: what was voted is kept, what was decided holds, and no sync is there for nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.base.disk import Disk
from penstock.base.errors import CorruptError
from penstock.connector.inner import Phase1, Phase2
from penstock.connector.sink.files import FileStorage, committed_of, file_of
from penstock.connector.sink.keeper import Keeper
from penstock.connector.sink.ledger import Decided, Kept, Voted
from penstock.connector.sink.txnlog import TransactionLog, read_ledger
from penstock.connector.sink.workers import Workers, log_path
from penstock.testing.powerloss import Mark, RecordingDisk, check, every_sync_matters, marked

WORKER = "w"
LOCK = ("state/logs/.lock",)
PIECES = (b"one\n", b"two and more\n", b"three\n", b"four\n", b"five\n")


@dataclass(frozen=True)
class VotedCommit:
    """A promise: this transaction can be committed, with these bytes, whatever happens."""

    transaction: str
    start: int
    content: bytes


@dataclass(frozen=True)
class Told:
    """From here on the decision may be carried out, or be asked for again."""

    transaction: str
    commit: bool


@dataclass(frozen=True)
class Done:
    """A promise: the decision was carried out, and the transaction is open no more."""

    transaction: str
    commit: bool
    committed: bytes


@dataclass(frozen=True)
class Leaving:
    """From here on the worker's files may have another name."""


@dataclass(frozen=True)
class Promised:
    """A promise: so many bytes were committed before, and are still there, under whatever name."""

    content: bytes


def workers_at(disk: Disk, root: Path) -> Workers:
    return Workers(
        root / "state" / "logs",
        lambda worker: FileStorage(file_of(root / "out" / "x", worker), disk),
        disk=disk,
        clock=lambda: 7,
    )


def one(keeper: Keeper, disk: RecordingDisk, number: int, committed: bytes, *, commit: bool) -> bytes:
    """A transaction, with its promises; what is committed afterwards."""
    transaction, piece = f"t{number}", PIECES[number]
    start = len(committed)
    keeper.data(start, memoryview(piece))
    assert keeper.phase1(Phase1(transaction, ((1, start, start + len(piece)),)))
    disk.mark(VotedCommit(transaction, start, committed + piece))
    disk.mark(Told(transaction, commit))
    keeper.phase2(Phase2(transaction, commit))
    committed += piece if commit else b""
    disk.mark(Done(transaction, commit, committed))
    return committed


def several(disk: RecordingDisk, root: Path) -> None:
    workers = workers_at(disk, root)
    with closing(workers):  # the lock goes with a process that is killed, too
        keeper = workers.attach(WORKER)
        committed = b""
        for number, commit in enumerate((True, False, True)):
            committed = one(keeper, disk, number, committed, commit=commit)
        workers.detach(keeper)


def after_a_kill(disk: RecordingDisk, root: Path, steps: int) -> None:
    """A sink is killed at any step; the next one tells what it finds, which is a promise again."""
    with disk.killed_after(steps):
        several(disk, root)
    again = workers_at(disk, root)
    keeper = again.attach(WORKER)
    content = file_of(root / "out" / "x", WORKER).read_bytes()
    prepared = keeper.ledger.prepared
    if prepared is not None:
        disk.mark(VotedCommit(prepared.transaction, prepared.start, content[: prepared.end]))
        disk.mark(Told(prepared.transaction, True))
        keeper.phase2(Phase2(prepared.transaction, True))
    committed = content[: keeper.ledger.committed]
    disk.mark(Done("", True, committed))
    one(keeper, disk, 3, committed, commit=True)
    again.detach(keeper)
    again.close()


def with_a_full_disk(disk: RecordingDisk, root: Path, turn: int) -> None:
    """A record of the log cannot be synced for want of room; when there is some, the sink goes on without it."""
    left = turn

    def full(path: Path) -> None:
        nonlocal left
        if path.suffix == ".txnlog":
            left -= 1
            if left == 0:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with closing(workers_at(disk, root)) as workers:
        keeper, committed = workers.attach(WORKER), b""
        disk.during_sync = full
        for number in range(3):
            try:
                committed = one(keeper, disk, number, committed, commit=True)
            except OSError:
                workers.detach(keeper)
                keeper = workers.attach(WORKER)
                if (open_now := keeper.ledger.prepared) is not None:  # it was the decision that was not noted
                    keeper.phase2(Phase2(open_now.transaction, True))
                    committed += PIECES[number]
                    disk.mark(Done(open_now.transaction, True, committed))
                else:
                    committed = one(keeper, disk, number, committed, commit=True)
        disk.during_sync = None
        workers.detach(keeper)


def leaving(disk: RecordingDisk, root: Path) -> None:
    """A worker leaves after a commit, and one of its name comes back."""
    with closing(workers_at(disk, root)) as workers:
        keeper = workers.attach(WORKER)
        committed = one(keeper, disk, 0, b"", commit=True)
        disk.mark(Promised(committed))
        workers.detach(keeper)
        disk.mark(Leaving())
        workers.left("somebody", [WORKER])
        reborn(disk, workers)


def leaving_after_a_kill(disk: RecordingDisk, root: Path, steps: int) -> None:
    with disk.killed_after(steps):
        leaving(disk, root)
    with closing(workers_at(disk, root)) as workers:
        disk.mark(Leaving())
        workers.left("somebody", [WORKER])
        reborn(disk, workers)


def reborn(disk: RecordingDisk, workers: Workers) -> None:
    keeper = workers.attach(WORKER)
    assert keeper.offset == 0
    keeper.data(0, memoryview(b"new life\n"))
    keeper.phase1(Phase1("n1", ((1, 0, 9),)))
    keeper.phase2(Phase2("n1", True))
    disk.mark(Promised(b"new life\n"))
    workers.detach(keeper)


def verify(root: Path, marks: Sequence[Mark]) -> None:
    if marked(marks, Leaving):
        verify_left(root, marks)
        return
    votes = {mark.transaction: mark for mark in marked(marks, VotedCommit)}
    told = {mark.transaction: mark.commit for mark in marked(marks, Told)}
    done = marked(marks, Done)
    if not votes and not done:
        return
    path = file_of(root / "out" / "x", WORKER)
    if done and not done[-1].commit:
        assert PIECES[int(done[-1].transaction[1:])] not in path.read_bytes(), "what was aborted came back"
    before = committed_of(path)
    workers = workers_at(Disk(), root)
    keeper = workers.attach(WORKER)
    assert before <= keeper.ledger.promised, "consumers were told too much"
    try:
        for transaction in list(keeper.ledger.unresolved):
            if transaction in votes:  # whoever voted to commit can
                keeper.phase2(Phase2(transaction, told.get(transaction, True)))
        content = path.read_bytes()[: keeper.ledger.committed]
        assert committed_of(path) == keeper.ledger.committed
        if done:
            assert content.startswith(done[-1].committed), "what was committed is gone"
        last = marked(marks, VotedCommit)[-1:]
        if last and told.get(last[0].transaction, True) and last[0].transaction in votes:
            assert content.startswith(last[0].content), "what was voted for is gone"
    finally:
        workers.detach(keeper)
        workers.close()


def verify_left(root: Path, marks: Sequence[Mark]) -> None:
    """Every committed byte is in some file, and a log that is there has its bytes."""
    workers = workers_at(Disk(), root)
    keeper = workers.attach(WORKER)
    workers.detach(keeper)
    workers.close()
    contents = [path.read_bytes() for path in (root / "out").glob("x.w*")]
    for promise in marked(marks, Promised):
        assert any(promise.content in content for content in contents), f"{promise} is gone"


RECORDINGS: list[Callable[[RecordingDisk, Path], None]] = [
    several,
    *(partial(after_a_kill, steps=steps) for steps in range(0, 40, 2)),
    leaving,
    *(partial(leaving_after_a_kill, steps=steps) for steps in range(16, 40, 2)),
]


def test_what_was_voted_is_kept_and_what_was_decided_holds() -> None:
    check(several, verify, seed=1, untracked=LOCK)
    check(leaving, verify, seed=2, untracked=LOCK)
    for steps in range(0, 40, 3):
        check(partial(after_a_kill, steps=steps), verify, seed=steps, untracked=LOCK)


@pytest.mark.parametrize("turn", [1, 2, 3, 4])
def test_power_loss_after_a_record_that_failed_for_want_of_room(turn: int) -> None:
    check(partial(with_a_full_disk, turn=turn), verify, seed=turn, untracked=LOCK)


def test_a_record_that_was_not_synced_is_not_found_when_the_log_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have dropped its pages: a sync that succeeds later says nothing about them."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = TransactionLog(Disk(), log_path(tmp_path, WORKER))
    log.append(Decided("t0", True, 5))
    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(OSError, match="No space left"):
        log.append(Voted("t1", 5, 9, True))
    monkeypatch.undo()
    log.close()
    with closing(TransactionLog(Disk(), log_path(tmp_path, WORKER))) as again:
        assert (again.ledger.committed, dict(again.ledger.unresolved)) == (5, {})


def test_no_sync_of_the_sink_is_there_for_nothing() -> None:
    failures = every_sync_matters(RECORDINGS, verify, seed=1, untracked=LOCK)
    assert {site.label for site in failures} == {
        "workers.py:Workers.__init__ Disk.make_dirs",
        "txnlog.py:TransactionLog.__init__",
        "txnlog.py:TransactionLog.append",
        "files.py:FileStorage.__init__ Disk.make_dirs",
        "files.py:FileStorage.prepare",
        "files.py:FileStorage._cut",
        "files.py:FileStorage.retire",
        "files.py:FileStorage._opened",
    }


def test_a_torn_last_record_is_cut_and_a_damaged_one_before_others_is_refused(tmp_path: Path) -> None:
    path = log_path(tmp_path, WORKER)
    log = TransactionLog(Disk(), path)
    log.append(Voted("t1", 0, 5, True))
    log.append(Decided("t1", True, 5))
    log.close()
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        again = TransactionLog(Disk(), path)
        assert again.ledger.committed == 0
        again.append(Decided("t9", True, 9))
        again.close()
        assert read_ledger(path).committed == 9
    damaged = bytearray(whole)
    damaged[12] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptError, match="a damaged record with others behind it"):
        TransactionLog(Disk(), path)


def test_a_log_does_not_grow_without_end_while_a_worker_is_connected(tmp_path: Path) -> None:
    path = log_path(tmp_path, WORKER)
    log = TransactionLog(_Quick(), path)
    sizes = []
    for number in range(3000):
        log.append(Voted(f"transaction-{number:060d}", number, number + 1, True))
        log.append(Decided(f"transaction-{number:060d}", True, number + 1))
        sizes.append(path.stat().st_size)
    assert max(sizes) < 270 << 10
    assert sum(later < before for before, later in pairwise(sizes)) > 2, "it was written anew"
    log.append(Voted("open", 3000, 3005, False, "no"))
    log.close()
    with closing(TransactionLog(Disk(), path)) as again:
        assert again.ledger.kept() == Kept(3000, (Voted("open", 3000, 3005, False, "no"),), None)
        assert read_ledger(path).kept() == again.ledger.kept()


class _Quick(Disk):
    """For a long history that nobody needs after a power loss."""

    def open(self, path: Path, *, create: bool = False, mode: int = 0o640):  # type: ignore[no-untyped-def]
        file = super().open(path, create=create, mode=mode)
        file.sync = lambda: None  # type: ignore[method-assign]
        return file


def rewriting(disk: RecordingDisk, root: Path) -> None:
    """A log grows until it is written anew, and tells what it told before."""
    disk.make_dirs(root / "logs")
    path = log_path(root / "logs", WORKER)
    log = TransactionLog(disk, path)
    for number in range(5):
        log.append(Voted(f"{number:0>60000}", number, number + 1, True))
        log.append(Decided(f"{number:0>60000}", True, number + 1))
        disk.mark(Done("", True, b"x" * (number + 1)))
    log.close()
    log = TransactionLog(disk, path)
    log.append(Decided("last", True, 6))
    disk.mark(Done("", True, b"x" * 6))
    log.close()


def verify_rewritten(root: Path, marks: Sequence[Mark]) -> None:
    done = marked(marks, Done)
    if done:
        assert read_ledger(log_path(root / "logs", WORKER)).committed >= len(done[-1].committed)


def test_a_log_that_is_written_anew_loses_nothing() -> None:
    check(rewriting, verify_rewritten, seed=1)
    failures = every_sync_matters(
        [rewriting], verify_rewritten, seed=1, exempt=("txnlog.py:TransactionLog.__init__",)
    )
    assert any("_rewrite" in site.label for site in failures)
