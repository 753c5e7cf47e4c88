"""Partitioned sinks killed at any step, and after a loss of power."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.adaptors.test_partition_sink import at, files_of

from penstock.adaptors.base import Staged
from penstock.adaptors.file.partition_local import LocalTarget
from penstock.adaptors.formats.partition_sink import PartitionedSink, PartitionPublisher
from penstock.adaptors.formats.partition_stage import Layout
from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.testing.powerloss import (
    BrokenPromiseError,
    Mark,
    RecordingDisk,
    check,
    every_sync_matters,
    marked,
    sync_sites,
)


class KillingDisk(Disk):
    """The process dies by SIGKILL at the n-th step that changes the disk."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def sync_dir(self, path: Path) -> None:
        self._step()
        super().sync_dir(path)

    def replace_file(self, path: Path, content: Buffer, mode: int = 0o640) -> None:
        self._step()
        super().replace_file(path, content, mode)

    def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
        self._step()
        return super().open(path, create=create, mode=mode)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A directory on which a sync costs nothing."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)


def staged_file(directory: Path, number: int, ns: str = "orders") -> Staged:
    """What a task would have staged: two files of one row."""
    part = directory / f"part{number}"
    for side in ("a", "b"):
        where = part / f"ns={ns}{side}"
        where.mkdir(parents=True, exist_ok=True)
        (where / "00000.jsonl").write_text(f"{number}\n")
    return Staged(str(part), 2, 1, 4, number, number, True, {ns: number})


def made(root: Path, disk: Disk) -> PartitionPublisher:
    layout = Layout("jsonl")
    sink = PartitionedSink(LocalTarget(root / "lake", disk), layout, "refuse")
    publisher = sink.publisher()
    assert isinstance(publisher, PartitionPublisher)
    return publisher


def visible(root: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"a": [], "b": []}
    for name in files_of(root / "lake"):
        side = name.partition("/")[0][-1]
        found[side] += [int(one) for one in (root / "lake" / name).read_text().split()]
    return {side: sorted(numbers) for side, numbers in found.items()}


def test_kill_9_at_any_step_neither_loses_nor_doubles(in_memory: Path) -> None:
    for steps in itertools.count():
        root = in_memory / str(steps)
        staged = [staged_file(root / "scratch", number) for number in range(2)]
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                publisher = made(root, KillingDisk(steps))
                publisher.open(at(0))
                for number, part in enumerate(staged):
                    publisher.publish([part], at(number + 1))
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        publisher = made(root, Disk())
        watermark = publisher.open(at(0)).watermark
        assert visible(root) == {"a": list(range(watermark)), "b": list(range(watermark))}, steps
        for number in range(watermark, 2):
            publisher.publish([staged_file(root / "again", number)], at(number + 1))
        publisher.close()
        assert visible(root) == {"a": [0, 1], "b": [0, 1]}
        if not os.WIFSIGNALED(status):
            assert steps > 20
            return


def publish_some(disk: RecordingDisk, root: Path) -> None:
    for start in (0, 2):
        publisher = made(root, disk)
        publisher.open(at(start))
        disk.mark(start)
        for number in range(start, start + 2):
            part = root / "staged" / f"part{number}"
            where = part / "ns=ordersa"
            disk.make_dirs(where)
            with disk.open(where / "00000.jsonl", create=True) as file:
                file.write_at(b"%d\n" % number, 0)
            publisher.publish([Staged(str(part), 1, 1, 2, number, number, True, {})], at(number + 1))
            disk.mark(number + 1)
        publisher.close()


def verify(root: Path, marks: Sequence[Mark]) -> None:
    promised = max(marked(marks, int), default=0)
    publisher = made(root, Disk())
    position = publisher.open(at(promised))
    publisher.close()
    assert position.watermark >= promised
    assert visible(root)["a"] == list(range(position.watermark))


def test_power_loss_neither_loses_nor_doubles_and_no_sync_is_needless() -> None:
    # The syncs in `open` and `load` are for what a killed process left in memory.
    exempt = [
        "partition_local.py:LocalTarget.open *",
        "partition_local.py:LocalTarget.load",
        "test_partition_crashes.py:*",
    ]
    every_sync_matters(publish_some, verify, seed=1, untracked=["staged/*"], exempt=exempt)


def killed_publishers(steps: int) -> Callable[[RecordingDisk, Path], None]:
    """A publisher that is killed after so many steps, and one that opens what it left and says what it has."""

    def record(disk: RecordingDisk, root: Path) -> None:
        part = root / "staged" / "part0"
        disk.make_dirs(part / "ns=ordersa")
        with disk.open(part / "ns=ordersa" / "00000.jsonl", create=True) as file:
            file.write_at(b"0\n", 0)
        with disk.killed_after(steps):
            first = made(root, disk)
            first.open(at(0))
            first.publish([Staged(str(part), 1, 1, 2, 0, 0, True, {})], at(1))
        with contextlib.suppress(OSError):
            first.close()
        second = made(root, disk)
        disk.mark(second.open(at(0)).watermark)
        second.close()

    return record


def broken_without(
    site: str,
    record: Callable[[RecordingDisk, Path], None],
    verify: Callable[[Path, Sequence[Mark]], None],
    seed: int,
) -> bool:
    """Whether a promise that holds does not when this one sync is left out."""
    log = check(record, verify, seed=seed, untracked=["staged/*"]).log
    for found in sync_sites(log):
        if found.label == f"partition_local.py:{site}":
            try:
                check(record, verify, seed=seed, untracked=["staged/*"], drop_sync=found)
            except BrokenPromiseError:
                return True
    return False


@pytest.mark.soak
def test_what_a_killed_publisher_left_is_durable_before_it_is_told() -> None:
    site = "LocalTarget.load"
    needed = [broken_without(site, killed_publishers(steps), verify, seed=steps) for steps in range(40, 80)]
    assert any(needed), f"no promise is broken without the sync in {site}"


def test_a_position_without_files_is_durable_from_the_first_one_on() -> None:
    def record(disk: RecordingDisk, root: Path) -> None:
        publisher = made(root, disk)
        publisher.open(at(0))
        publisher.publish([], at(1))
        disk.mark(1)
        publisher.close()

    def kept(root: Path, marks: Sequence[Mark]) -> None:
        publisher = made(root, Disk())
        position = publisher.open(at(0))
        publisher.close()
        assert position.watermark >= max(marked(marks, int), default=0)

    assert broken_without("LocalTarget.open Disk.make_dirs", record, kept, seed=1)
