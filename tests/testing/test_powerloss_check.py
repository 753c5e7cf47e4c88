"""The power-loss harness: the check itself, its reports, and the images it looks at."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.base.disk import Disk
from penstock.testing.powerloss import (
    BrokenPromiseError,
    Mark,
    RecordingDisk,
    check,
    every_sync_matters,
    images,
    marked,
)

from .toylogs import (
    NoRecordSync,
    ToyLog,
    appends,
    create_durably,
    reads,
    recorded,
    restarts,
    write_and_sync,
)


def test_a_failure_says_where_and_how_to_see_it_again(tmp_path: Path) -> None:
    with pytest.raises(BrokenPromiseError) as caught:
        check(appends(NoRecordSync), reads(NoRecordSync), seed=7, keep=tmp_path / "kept")
    failure = caught.value
    text = str(failure)
    assert "seed 7" in text
    assert f"cuts=[{failure.image.cut}]" in text
    assert "toylogs.py:" in text
    assert "the last b'first'" in text
    assert isinstance(failure.__cause__, AssertionError)
    built = {path.name: path.read_bytes() for path in (tmp_path / "kept" / "data").iterdir()}
    assert {f"data/{name}": data for name, data in built.items()} == failure.image.files
    with pytest.raises(BrokenPromiseError) as again:
        check(appends(NoRecordSync), reads(NoRecordSync), seed=7, cuts=[failure.image.cut])
    assert again.value.image.digest == failure.image.digest


def test_a_failure_without_a_sync_can_be_seen_again() -> None:
    for site, failure in every_sync_matters(restarts(ToyLog), reads(ToyLog), seed=3).items():
        with pytest.raises(BrokenPromiseError):
            check(restarts(ToyLog), reads(ToyLog), seed=3, cuts=[failure.image.cut], drop_sync=site)


def test_whatever_verify_raises_is_a_broken_promise() -> None:
    def verify(root: Path, marks: Sequence[Mark]) -> None:
        with pytest.raises(KeyError):
            pass

    with pytest.raises(BrokenPromiseError, match="DID NOT RAISE"):
        check(create_durably, verify, seed=1)


def test_an_interrupt_is_not_a_broken_promise() -> None:
    def verify(root: Path, marks: Sequence[Mark]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(create_durably, verify, seed=1)


def test_a_file_written_beside_the_disk_is_an_error_unless_named() -> None:
    def record(disk: RecordingDisk, root: Path) -> None:
        create_durably(disk, root)
        (root / "lock").write_bytes(b"")

    def verify(root: Path, marks: Sequence[Mark]) -> None:
        assert not (root / "lock").exists()

    with pytest.raises(AssertionError, match="beside the disk under recording: lock"):
        check(record, verify, seed=1)
    check(record, verify, seed=1, untracked=["*lock"])


def test_bytes_written_through_the_descriptor_are_an_error() -> None:
    def record(disk: RecordingDisk, root: Path) -> None:
        with disk.open(root / "f", create=True) as file:
            os.pwrite(file.fileno(), b"x", 0)

    with pytest.raises(AssertionError, match="beside the disk under recording: f;"):
        check(record, lambda root, marks: None, seed=1)


def test_a_file_removed_beside_the_disk_is_an_error() -> None:
    def record(disk: RecordingDisk, root: Path) -> None:
        create_durably(disk, root)
        (root / "g").unlink()
        (root / "folder").mkdir()

    with pytest.raises(AssertionError, match="beside the disk under recording: folder, g;"):
        check(record, lambda root, marks: None, seed=1)


def test_opening_a_file_made_beside_the_disk_is_an_error(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    (tmp_path / "f").touch()
    with pytest.raises(AssertionError, match="beside the disk"):
        disk.open(tmp_path / "f")


def test_power_loss_during_recovery_from_power_loss() -> None:
    """Cutting the torn tail is itself a step that the power may interrupt; `prepare` starts from an image."""

    def recover_and_append(disk: RecordingDisk, root: Path) -> None:
        log = ToyLog(disk, root / "data" / "log")
        for data in log.records:
            disk.mark(data)
        log.append(b"later")
        disk.mark(b"later")
        log.file.close()

    def verify(root: Path, marks: Sequence[Mark]) -> None:
        log = ToyLog(Disk(), root / "data" / "log")
        log.file.close()
        assert log.records[: len(marks)] == marked(marks, bytes)

    first = check(appends(ToyLog), reads(ToyLog), seed=1)
    torn = [image for image in images(first.log, seed=1) if "torn" in image.choice]
    for image in torn[:10]:
        check(recover_and_append, verify, seed=1, prepare=image.build)


def test_verify_may_change_its_directory() -> None:
    def prepare(root: Path) -> None:
        root.mkdir()
        (root / "f").write_bytes(b"o")

    def verify(root: Path, marks: Sequence[Mark]) -> None:
        assert [path.name for path in root.iterdir()] == ["f"]
        (root / "f").unlink()
        (root / "trace").touch()

    assert check(write_and_sync, verify, seed=1, prepare=prepare).images == 2


def test_the_same_seed_gives_the_same_images_and_another_seed_others(tmp_path: Path) -> None:
    log = recorded(tmp_path, appends(NoRecordSync))

    def digests(seed: int) -> list[bytes]:
        return [image.digest for image in images(log, seed=seed)]

    assert digests(1) == digests(1)
    assert digests(1) != digests(2)


def test_images_at_one_cut_do_not_depend_on_the_other_cuts(tmp_path: Path) -> None:
    log = recorded(tmp_path, appends(NoRecordSync))
    everywhere = [image for image in images(log, seed=1) if image.cut == len(log.events) - 1]
    there = {image.digest for image in images(log, seed=1, cuts=[len(log.events) - 1])}
    assert everywhere
    assert {image.digest for image in everywhere} <= there


def test_identical_images_come_once_for_each_set_of_promises(tmp_path: Path) -> None:
    def steps(disk: RecordingDisk, root: Path) -> None:
        create_durably(disk, root)
        disk.mark(1)
        disk.sync_dir(root)
        disk.mark(2)

    log = recorded(tmp_path, steps)
    settled = [len(image.marks) for image in images(log, seed=1) if image.files == {"g": b"x"}]
    assert settled == [0, 1, 2]


def test_two_hundred_steps_give_thousands_of_disks() -> None:
    def record(disk: RecordingDisk, root: Path) -> None:
        log = NoRecordSync(disk, root / "data" / "log")
        for number in range(128):
            log.append(b"%d" % number * 20)
            if number % 8 == 7:
                log.file.sync()
                disk.mark(number)
                disk.replace_file(root / "data" / "state", b"%d" % number)
        log.file.close()

    def verify(root: Path, marks: Sequence[Mark]) -> None:
        log = ToyLog(Disk(), root / "data" / "log")
        log.file.close()
        assert len(log.records) >= 8 * len(marks)

    done = check(record, verify, seed=1, per_cut=30)
    assert len(done.log.events) > 200
    assert done.images > 3000
