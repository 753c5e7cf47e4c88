"""The disk: what its helpers leave after power loss, after a kill, and when a call of the kernel fails."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from penstock.base.disk import Disk, DiskFile
from penstock.testing.powerloss import Mark, RecordingDisk, check, every_sync_matters, images


@pytest.fixture
def file(tmp_path: Path) -> DiskFile:
    return Disk().open(tmp_path / "f", create=True)


# Reading and writing


@pytest.mark.parametrize(
    ("size", "position", "expected"),
    [(3, 0, b"012"), (3, 7, b"789"), (9, 7, b"789"), (5, 10, b""), (5, 99, b""), (0, 3, b"")],
)
def test_reads_are_short_only_at_the_end(file: DiskFile, size: int, position: int, expected: bytes) -> None:
    file.write_at(b"0123456789", 0)
    assert file.read_at(size, position) == expected


@pytest.mark.parametrize(
    "data", [b"abcdef", bytearray(b"abcdef"), memoryview(b"abcdef"), memoryview(b"abcdef").cast("H")]
)
def test_any_buffer_is_written_whole(file: DiskFile, data: bytes | bytearray | memoryview) -> None:
    file.write_at(data, 2)
    assert file.read_at(100, 0) == b"\0\0abcdef"
    assert file.size() == 8


def test_calls_that_do_less_than_asked_are_repeated(file: DiskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: read(fd, min(size, 3), at))
    file.write_at(b"0123456789", 0)
    assert file.read_at(8, 1) == b"12345678"


def test_a_closed_file_is_nobodys_and_can_be_closed_again(file: DiskFile, tmp_path: Path) -> None:
    file.close()
    assert file.closed
    with (tmp_path / "other").open("wb"):
        file.close()
        for call in (lambda: file.write_at(b"x", 0), file.sync, lambda: file.truncate(0), file.size):
            with pytest.raises(OSError, match="Bad file descriptor"):
                call()
    assert (tmp_path / "other").read_bytes() == b""


# Copying

SIZES = [0, 1, (1 << 20) - 1, (1 << 20) + 1, 3 << 20]


def refused(*_: object) -> int:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


def idle(*_: object) -> int:
    return 0


def refused_half_way() -> Callable[..., int]:
    real = os.copy_file_range
    calls: list[int] = []

    def once(source: int, target: int, count: int, at: int, to: int) -> int:
        calls.append(count)
        if len(calls) > 1:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(source, target, min(count, 1000), at, to)

    return once


@pytest.mark.parametrize(
    "kernel", [None, refused, idle, refused_half_way], ids=["works", "refuses", "idles", "stops"]
)
@pytest.mark.parametrize("size", SIZES)
def test_a_file_is_copied_whole_whatever_the_kernel_can(
    file: DiskFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kernel: Callable[..., object] | None,
    size: int,
) -> None:
    content = os.urandom(size)
    (tmp_path / "source").write_bytes(content)
    if kernel is not None:
        monkeypatch.setattr(os, "copy_file_range", kernel() if kernel is refused_half_way else kernel)
    file.write_at(b"head", 0)
    assert file.copy_from(tmp_path / "source", 4) == size
    assert file.read_at(size + 10, 0) == b"head" + content


def test_a_copy_that_finds_the_disk_full_says_so(
    file: DiskFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "source").write_bytes(b"x" * 1000)
    monkeypatch.setattr(os, "copy_file_range", full)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        file.copy_from(tmp_path / "source", 0)


def test_a_source_that_is_not_there_is_an_error(file: DiskFile, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file.copy_from(tmp_path / "none", 0)


# Syncing


def test_a_sync_that_failed_once_fails_for_good(file: DiskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel drops pages it could not write, and the next sync would succeed without them."""

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    file.write_at(b"x", 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
    again = Disk().open(file.path)
    again.sync()
    again.close()


def test_a_folder_whose_sync_fails_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        Disk().sync_dir(tmp_path)
    assert os.listdir("/proc/self/fd") == before


# replace_file


def replace_twice(disk: RecordingDisk, root: Path) -> None:
    for number, content in enumerate((b"first" * 300, b"second" * 300)):
        disk.replace_file(root / "f", content)
        disk.mark(number)


def replace_after_a_kill(disk: RecordingDisk, root: Path, steps: int) -> None:
    with disk.killed_after(steps):
        disk.replace_file(root / "f", b"first" * 300)
    disk.replace_file(root / "f", b"second" * 300)
    disk.mark(1)


def verify_replaced(root: Path, marks: Sequence[Mark]) -> None:
    path = root / "f"
    content = path.read_bytes() if path.exists() else None
    assert content in (None, b"first" * 300, b"second" * 300)
    if marks:
        assert content in (b"first" * 300, b"second" * 300)[int(str(marks[-1].value)) :]


REPLACING = [replace_twice, *(partial(replace_after_a_kill, steps=steps) for steps in range(8))]


@pytest.mark.parametrize("recording", REPLACING)
def test_a_replaced_file_holds_the_old_or_the_new_whole(
    recording: Callable[[RecordingDisk, Path], None],
) -> None:
    check(recording, verify_replaced, seed=1)


def test_both_syncs_of_replace_file_matter() -> None:
    assert len(every_sync_matters(replace_twice, verify_replaced, seed=1)) == 2


@pytest.mark.parametrize("left_with", [0o600, 0o666, 0o400, 0o000])
def test_a_leftover_of_a_crash_gives_the_new_file_neither_its_mode_nor_its_content(
    tmp_path: Path, left_with: int
) -> None:
    leftover = tmp_path / ".f.partial"
    leftover.write_bytes(b"longer than the new content")
    leftover.chmod(left_with)
    Disk().replace_file(tmp_path / "f", b"new", mode=0o640)
    assert (tmp_path / "f").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_leftover_that_is_still_open_elsewhere_is_not_written_to(tmp_path: Path) -> None:
    with (tmp_path / ".f.partial").open("w+b") as elsewhere:
        Disk().replace_file(tmp_path / "f", b"new")
        elsewhere.write(b"late")
        elsewhere.flush()
    assert (tmp_path / "f").read_bytes() == b"new"


def test_a_replacement_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    disk = Disk()
    disk.replace_file(tmp_path / "f", b"old")
    for call in ("pwrite", "fdatasync", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(OSError, match="No space"):
                disk.replace_file(tmp_path / "f", b"new")
        assert (tmp_path / "f").read_bytes() == b"old"
    disk.replace_file(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"


# make_dirs


def make_after_a_kill(disk: RecordingDisk, root: Path, steps: int, below: str) -> None:
    """Killed between making a folder and syncing it; the next one finds it there, and relies on it."""
    with disk.killed_after(steps):
        disk.make_dirs(root / below)
    disk.make_dirs(root / below)
    disk.replace_file(root / below / "f", b"x")
    disk.mark(1)


def verify_made(root: Path, marks: Sequence[Mark], below: str) -> None:
    if marks:
        assert (root / below / "f").read_bytes() == b"x"


@pytest.mark.parametrize("below", ["a", "a/b", "a/b/c"])
@pytest.mark.parametrize("steps", range(7))
def test_a_folder_that_a_killed_process_made_is_durable_before_anything_rests_on_it(
    below: str, steps: int
) -> None:
    check(partial(make_after_a_kill, steps=steps, below=below), partial(verify_made, below=below), seed=1)


def test_the_sync_of_make_dirs_matters() -> None:
    recordings = [partial(make_after_a_kill, steps=steps, below="a/b") for steps in range(7)]
    every_sync_matters(recordings, partial(verify_made, below="a/b"), seed=1)


def test_all_levels_are_there_after_any_cut_that_comes_later(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    disk.make_dirs(tmp_path / "a" / "b" / "c")
    cut = len(disk.log.events)
    assert all(image.folders == ["a", "a/b", "a/b/c"] for image in images(disk.log, seed=1, cuts=[cut]))


def test_folders_get_the_mode_asked_for(tmp_path: Path) -> None:
    Disk().make_dirs(tmp_path / "a" / "b", 0o700)
    for name in ("a", "a/b"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            Disk().make_dirs(path)


def test_a_folder_made_meanwhile_by_another_is_no_error(tmp_path: Path) -> None:
    class Overtaken(Disk):
        def make_dir(self, path: Path, mode: int) -> None:
            path.mkdir()
            super().make_dir(path, mode)

    Overtaken().make_dirs(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_folders_above_that_are_not_ours_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).is_relative_to(tmp_path / "a"))
    synced: list[Path] = []

    class Watched(Disk):
        def sync_dir(self, path: Path) -> None:
            synced.append(path)

    Watched().make_dirs(tmp_path / "a" / "b")
    assert synced == [tmp_path / "a"]


def test_entries_come_in_order_and_a_missing_folder_has_none(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()
    assert [path.name for path in Disk().entries(tmp_path)] == ["a", "b", "c"]
    assert list(Disk().entries(tmp_path / "none")) == []
