"""The power-loss harness: a table of what may survive, toy logs with planted bugs, threads, properties."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.base.disk import Disk, DiskFile
from penstock.testing.powerloss import (
    BrokenPromiseError,
    Log,
    Mark,
    RecordingDisk,
    check,
    every_sync_matters,
    images,
    marked,
    sync_sites,
)
from penstock.testing.powerloss.events import SyncEnd

Files = dict[str, bytes]
Record = Callable[[RecordingDisk, Path], None]


def recorded(tmp_path: Path, steps: Record, before: Files | None = None) -> Log:
    root = tmp_path / "disk"
    root.mkdir()
    for name, data in (before or {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    disk = RecordingDisk(root)
    steps(disk, root)
    return disk.log


def left(log: Log, *, in_order: bool = False) -> list[Files]:
    """What may be left if the power goes after the last step."""
    cut = len(log.events)
    found: list[Files] = []
    for image in images(log, seed=1, cuts=[cut], per_cut=300, entries_in_order=in_order):
        if image.files not in found:
            found.append(image.files)
    return found


def by_name(outcomes: Sequence[Files]) -> list[Files]:
    return sorted(outcomes, key=lambda files: sorted(files.items()))


def of_f(*contents: bytes) -> list[Files]:
    return [{"f": content} for content in contents]


# What may survive


@dataclass
class Row:
    """After `steps` on a disk with the files `before`, exactly `possible` may be found."""

    steps: Record
    possible: Sequence[Files]
    before: Files | None = None


def write_only(disk: RecordingDisk, root: Path) -> None:
    disk.open(root / "f").write_at(b"x", 0)


def write_and_sync(disk: RecordingDisk, root: Path) -> None:
    with disk.open(root / "f") as file:
        file.write_at(b"x", 0)
        file.sync()


def create_and_sync_without_folder(disk: RecordingDisk, root: Path) -> None:
    with disk.open(root / "g", create=True) as file:
        file.write_at(b"x", 0)
        file.sync()


def create_and_sync_folder_only(disk: RecordingDisk, root: Path) -> None:
    disk.open(root / "g", create=True).write_at(b"xy", 0)
    disk.sync_dir(root)


def create_durably(disk: RecordingDisk, root: Path) -> None:
    create_and_sync_without_folder(disk, root)
    disk.sync_dir(root)


def sync_then_write(disk: RecordingDisk, root: Path) -> None:
    with disk.open(root / "f") as file:
        file.sync()
        file.write_at(b"x", 0)


def two_writes(disk: RecordingDisk, root: Path) -> None:
    with disk.open(root / "f") as file:
        file.write_at(b"x", 0)
        file.write_at(b"y", 1)


def rename(disk: RecordingDisk, root: Path) -> None:
    disk.rename(root / "f", root / "g")


def rename_durably(disk: RecordingDisk, root: Path) -> None:
    disk.rename(root / "f", root / "g")
    disk.sync_dir(root)


def remove(disk: RecordingDisk, root: Path) -> None:
    disk.remove(root / "f")


def remove_durably(disk: RecordingDisk, root: Path) -> None:
    disk.remove(root / "f")
    disk.sync_dir(root)


def shrink(disk: RecordingDisk, root: Path) -> None:
    disk.open(root / "f").truncate(1)


def shrink_and_append(disk: RecordingDisk, root: Path) -> None:
    with disk.open(root / "f") as file:
        file.truncate(1)
        file.write_at(b"Z", 1)


def grow(disk: RecordingDisk, root: Path) -> None:
    disk.open(root / "f").truncate(3)


def make_dirs(disk: RecordingDisk, root: Path) -> None:
    disk.make_dirs(root / "a" / "b")
    create_durably(disk, root / "a" / "b")


def unsynced_folder_with_synced_file(disk: RecordingDisk, root: Path) -> None:
    disk.make_dir(root / "a", 0o750)
    create_durably(disk, root / "a")


def replace(disk: RecordingDisk, root: Path) -> None:
    disk.replace_file(root / "f", b"new")


def replace_by_rename_without_sync(disk: RecordingDisk, root: Path) -> None:
    disk.open(root / "g", create=True).write_at(b"n", 0)
    disk.rename(root / "g", root / "f")


def move_between_folders(disk: RecordingDisk, root: Path) -> None:
    disk.rename(root / "a" / "f", root / "b" / "f")


def move_and_sync_target(disk: RecordingDisk, root: Path) -> None:
    move_between_folders(disk, root)
    disk.sync_dir(root / "b")


def move_and_sync_source(disk: RecordingDisk, root: Path) -> None:
    move_between_folders(disk, root)
    disk.sync_dir(root / "a")


def move_folder_and_sync_target(disk: RecordingDisk, root: Path) -> None:
    disk.rename(root / "a", root / "b" / "a")
    disk.sync_dir(root / "b")


def remove_two(disk: RecordingDisk, root: Path) -> None:
    disk.remove(root / "f")
    disk.remove(root / "g")


def rename_and_create_anew(disk: RecordingDisk, root: Path) -> None:
    disk.rename(root / "f", root / "g")
    disk.open(root / "f", create=True)


def remove_and_write_on(disk: RecordingDisk, root: Path) -> None:
    with disk.open(root / "f") as file:
        disk.remove(root / "f")
        disk.sync_dir(root)
        file.write_at(b"x", 0)


def copy(disk: RecordingDisk, root: Path) -> None:
    disk.open(root / "f").copy_from(root / "g", 1)


UNMOVED: Files = {"a/f": b"o", "b/x": b""}
BOTH_NAMES: Files = {"a/f": b"o", "b/f": b"o", "b/x": b""}
MOVED: Files = {"b/f": b"o", "b/x": b""}

WHAT_MAY_SURVIVE = {
    "a write without sync may vanish": Row(write_only, of_f(b"", b"x", b"\0"), {"f": b""}),
    "a write over old bytes leaves the old or the new": Row(write_only, of_f(b"o", b"x"), {"f": b"o"}),
    "a synced write survives": Row(write_and_sync, of_f(b"x"), {"f": b"o"}),
    "a sync covers nothing that comes after it": Row(sync_then_write, of_f(b"o", b"x"), {"f": b"o"}),
    "a synced file without a synced folder may be missing": Row(
        create_and_sync_without_folder, [{}, {"g": b"x"}]
    ),
    "an entry may be there without the data": Row(
        create_and_sync_folder_only,
        [{"g": content} for content in (b"", b"x", b"xy", b"x\0", b"\0y", b"\0\0")],
    ),
    "data and entry synced survive": Row(create_durably, [{"g": b"x"}]),
    "writes arrive in any order": Row(
        two_writes, of_f(b"", b"x", b"xy", b"\0y", b"\0", b"\0\0", b"x\0"), {"f": b""}
    ),
    "a rename shows the old or the new name": Row(rename, [{"f": b"o"}, {"g": b"o"}], {"f": b"o"}),
    "a rename with the folder synced is done": Row(rename_durably, [{"g": b"o"}], {"f": b"o"}),
    "a removal may be undone": Row(remove, [{"f": b"o"}, {}], {"f": b"o"}),
    "a removal with the folder synced is done": Row(remove_durably, [{}], {"f": b"o"}),
    "a truncate may be undone": Row(shrink, of_f(b"old", b"o"), {"f": b"old"}),
    "a truncate and a write are independent": Row(
        shrink_and_append, of_f(b"old", b"o", b"oZd", b"oZ", b"o\0"), {"f": b"old"}
    ),
    "growth by truncate may be undone": Row(grow, of_f(b"o", b"o\0\0"), {"f": b"o"}),
    "make_dirs makes every level durable": Row(make_dirs, [{"a/b/g": b"x"}]),
    "what is in a folder that was never made durable may be missing": Row(
        unsynced_folder_with_synced_file, [{}, {"a/g": b"x"}]
    ),
    "replace_file is done when it returns": Row(replace, of_f(b"new"), {"f": b"old!"}),
    "a rename does not bring the data": Row(
        replace_by_rename_without_sync,
        of_f(b"o", b"", b"n", b"\0") + [{"f": b"o", "g": content} for content in (b"", b"n", b"\0")],
        {"f": b"o"},
    ),
    "a move between folders never loses the file": Row(
        move_between_folders, [UNMOVED, BOTH_NAMES, MOVED], UNMOVED
    ),
    "a move with the target folder synced may leave the old name": Row(
        move_and_sync_target, [BOTH_NAMES, MOVED], UNMOVED
    ),
    "a move with the source folder synced is done": Row(move_and_sync_source, [MOVED], UNMOVED),
    "a folder has one name only": Row(move_folder_and_sync_target, [{"b/a/f": b"o", "b/x": b""}], UNMOVED),
    "removals arrive in any order": Row(
        remove_two, [{"f": b"", "g": b""}, {"f": b""}, {"g": b""}, {}], {"f": b"", "g": b""}
    ),
    "a new file never shadows one whose rename was lost": Row(
        rename_and_create_anew, [{"f": b"o"}, {"g": b"o"}, {"g": b"o", "f": b""}], {"f": b"o"}
    ),
    "writes to a removed file touch nothing": Row(remove_and_write_on, [{}], {"f": b"o"}),
    "a copy is a write of the bytes": Row(
        copy,
        [{"f": content, "g": b"12"} for content in (b"o", b"o12", b"o1", b"o\0\0", b"o1\0", b"o\x002")],
        {"f": b"o", "g": b"12"},
    ),
}


@pytest.mark.parametrize("rule", WHAT_MAY_SURVIVE)
def test_what_may_survive(rule: str, tmp_path: Path) -> None:
    row = WHAT_MAY_SURVIVE[rule]
    outcomes = left(recorded(tmp_path, row.steps, row.before))
    assert by_name(outcomes) == by_name(row.possible)


def test_on_a_journalling_file_system_entries_survive_in_order(tmp_path: Path) -> None:
    log = recorded(tmp_path, remove_two, {"f": b"", "g": b""})
    assert left(log, in_order=True) == [{"f": b"", "g": b""}, {}, {"g": b""}]


def test_replace_file_leaves_the_old_or_the_new_content_whole_at_every_cut(tmp_path: Path) -> None:
    log = recorded(tmp_path, replace, {"f": b"old!"})
    seen = {image.files["f"] for image in images(log, seed=1, per_cut=100)}
    assert seen == {b"old!", b"new"}


def test_a_large_write_is_torn_at_sectors_and_in_between(tmp_path: Path) -> None:
    def steps(disk: RecordingDisk, root: Path) -> None:
        disk.open(root / "f").write_at(b"x" * 2000, 100)

    outcomes = [files["f"] for files in left(recorded(tmp_path, steps, {"f": b"o" * 50}))]
    assert {content[:100] for content in outcomes} == {b"o" * 50, b"o" * 50 + b"\0" * 50}
    assert all(len(content) == 50 or 100 < len(content) <= 2100 for content in outcomes)
    ends = {len(content.rstrip(b"\0")) for content in outcomes}
    assert ends >= {50, 512, 1024, 1536, 2048, 2100}
    assert any(end > 100 and end % 512 for end in ends - {2100})
    assert any(b"x\0" in content and b"\0x" in content[100:] for content in outcomes)


def test_two_names_left_by_a_move_are_one_file(tmp_path: Path) -> None:
    log = recorded(tmp_path, move_between_folders, UNMOVED)
    [image] = [image for image in images(log, seed=1, cuts=[1]) if image.files == BOTH_NAMES]
    image.build(tmp_path / "image")
    assert (tmp_path / "image" / "a" / "f").samefile(tmp_path / "image" / "b" / "f")


def test_a_preallocated_file_takes_no_memory_and_little_io(tmp_path: Path) -> None:
    def steps(disk: RecordingDisk, root: Path) -> None:
        with disk.open(root / "f", create=True) as file:
            file.truncate(1 << 34)
            file.write_at(b"x", 0)
            file.sync()
        disk.sync_dir(root)

    log = recorded(tmp_path, steps)
    image = next(images(log, seed=1, cuts=[len(log.events)]))
    image.build(tmp_path / "image")
    status = (tmp_path / "image" / "f").stat()
    assert status.st_size == 1 << 34
    assert status.st_blocks * 512 < 1 << 20


# Recording


def test_the_log_has_every_step_with_its_site(tmp_path: Path) -> None:
    def steps(disk: RecordingDisk, root: Path) -> None:
        disk.make_dir(root / "d", 0o750)
        with disk.open(root / "d" / "f", create=True) as file:
            file.write_at(b"abc", 5)
            file.write_at(b"", 5)
            file.truncate(6)
            file.sync()
        disk.rename(root / "d" / "f", root / "g")
        disk.remove(root / "g")
        disk.sync_dir(root)
        disk.mark("promise")

    log = recorded(tmp_path, steps)
    assert [str(event) for event in log.events] == [
        "make_dir d",
        "create d/f",
        "write d/f [5:8]",
        "truncate d/f to 6",
        "sync d/f starts",
        "sync d/f (started as #4) returns",
        "rename d/f to g",
        "remove g",
        "sync_dir . starts",
        "sync_dir . (started as #8) returns",
        "mark 'promise'",
    ]
    assert {event.site.file for event in log.events} == {__file__}
    first = steps.__code__.co_firstlineno
    assert [event.site.line - first for event in log.events] == [1, 2, 3, 5, 6, 6, 7, 8, 9, 9, 10]
    assert all(event.site.function.endswith("<locals>.steps") for event in log.events)


def test_the_code_under_test_sees_a_working_disk(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    disk.make_dirs(tmp_path / "a" / "b")
    disk.replace_file(tmp_path / "a" / "b" / "f", b"content")
    with disk.open(tmp_path / "a" / "b" / "f") as file:
        assert file.read_at(100, 3) == b"tent"
        assert file.size() == 7
    assert list(disk.entries(tmp_path / "a")) == [tmp_path / "a" / "b"]
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "no" / "f", create=True)
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "f")
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.sync()


def test_syncs_inside_helpers_are_told_apart_by_helper_line_and_caller(tmp_path: Path) -> None:
    def steps(disk: RecordingDisk, root: Path) -> None:
        disk.replace_file(root / "f", b"1")
        disk.replace_file(root / "f", b"2")
        disk.make_dirs(root / "a" / "b" / "c")

    sites = sync_sites(recorded(tmp_path, steps))
    first = steps.__code__.co_firstlineno
    assert [(site.line - first, site.helper.partition(":")[0]) for site in sites] == [
        (1, "replace_file"),
        (1, "replace_file"),
        (2, "replace_file"),
        (2, "replace_file"),
        (3, "make_dirs"),
    ]
    assert len({site.helper for site in sites}) == 3
    assert sites[0].label == "test_powerloss.py:" + steps.__qualname__ + " Disk.replace_file"


def test_a_sync_handed_to_a_thread_keeps_the_site_that_handed_it_over(tmp_path: Path) -> None:
    def steps(disk: RecordingDisk, root: Path) -> None:
        async def run(file: DiskFile) -> None:
            await asyncio.to_thread(file.sync)
            await asyncio.get_running_loop().run_in_executor(None, file.sync)
            await asyncio.to_thread(disk.replace_file, root / "g", b"")

        with disk.open(root / "f", create=True) as file:
            asyncio.run(run(file))

    sites = sync_sites(recorded(tmp_path, steps))
    first = steps.__code__.co_firstlineno
    assert [(site.line - first, bool(site.helper)) for site in sites] == [
        (2, False),
        (3, False),
        (4, True),
        (4, True),
    ]


def test_a_write_that_fails_halfway_is_recorded_as_far_as_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(self: DiskFile, data: bytes, position: int) -> None:
        os.pwrite(self.fileno(), data[: len(data) // 2], position)
        raise OSError(28, "No space left on device")

    def steps(disk: RecordingDisk, root: Path) -> None:
        with disk.open(root / "f") as file:
            with pytest.raises(OSError, match="No space"):
                file.write_at(b"abcd", 0)
            file.sync()

    with monkeypatch.context() as patch:
        patch.setattr(DiskFile, "write_at", half)
        log = recorded(tmp_path, steps, {"f": b""})
    assert left(log) == [{"f": b"ab"}]


def test_a_failed_sync_makes_nothing_durable(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    def steps(disk: RecordingDisk, root: Path) -> None:
        disk.during_sync = fail
        with disk.open(root / "f") as file:
            file.write_at(b"x", 0)
            with pytest.raises(OSError, match="Input/output"):
                file.sync()

    log = recorded(tmp_path, steps, {"f": b"o"})
    assert not any(isinstance(event, SyncEnd) for event in log.events)
    assert {"f": b"o"} in left(log)


def test_a_dropped_sync_is_recorded_but_makes_nothing_durable(tmp_path: Path) -> None:
    first = tmp_path / "first"
    second = tmp_path / "second"
    logs: list[Log] = []
    for root, drop in ((first, False), (second, True)):
        root.mkdir()
        (root / "f").write_bytes(b"o")
        disk = RecordingDisk(root, drop_sync=sync_sites(logs[0])[0] if drop else None)
        write_and_sync(disk, root)
        logs.append(disk.log)
    assert [str(event) for event in logs[0].events] == [str(event) for event in logs[1].events]
    assert left(logs[0]) == [{"f": b"x"}]
    assert left(logs[1]) == [{"f": b"o"}, {"f": b"x"}]


def test_steps_outside_the_recorded_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    disk = RecordingDisk(tmp_path / "disk")
    with pytest.raises(ValueError, match="outside"):
        disk.open(tmp_path / "f", create=True)
    with pytest.raises(ValueError, match="outside"):
        disk.sync_dir(tmp_path)


def test_the_harness_knows_every_method_of_the_disk() -> None:
    """A new primitive must be recorded and modelled before a promise may rest on it."""
    recorded_steps = {"open", "make_dir", "rename", "remove", "sync_dir"}
    made_of_these = {"make_dirs", "replace_file", "entries"}
    assert {name for name in vars(Disk) if not name.startswith("_")} == recorded_steps | made_of_these
    recorded_steps = {"write_at", "copy_from", "truncate", "sync"}
    harmless = {"fileno", "read_at", "size", "close", "closed"}
    assert {name for name in vars(DiskFile) if not name.startswith("_")} == recorded_steps | harmless


# Threads


def test_a_write_during_a_sync_is_not_covered_by_it(tmp_path: Path) -> None:
    def steps(disk: RecordingDisk, root: Path) -> None:
        file = disk.open(root / "f")

        def other_thread(_: Path) -> None:
            thread = threading.Thread(target=file.write_at, args=(b"y", 1))
            thread.start()
            thread.join()

        file.write_at(b"x", 0)
        disk.during_sync = other_thread
        file.sync()

    log = recorded(tmp_path, steps, {"f": b"oo"})
    assert sorted(files["f"] for files in left(log)) == [b"xo", b"xy"]


def test_an_entry_made_during_a_sync_of_its_folder_is_not_covered_by_it(tmp_path: Path) -> None:
    def steps(disk: RecordingDisk, root: Path) -> None:
        disk.during_sync = lambda _: disk.open(root / "late", create=True).close()
        disk.open(root / "early", create=True).close()
        disk.sync_dir(root)

    log = recorded(tmp_path, steps)
    assert left(log) == [{"early": b""}, {"early": b"", "late": b""}]


def test_overlapping_syncs_cover_what_came_before_their_own_start(tmp_path: Path) -> None:
    def steps(disk: RecordingDisk, root: Path) -> None:
        file = disk.open(root / "f")

        def write_and_sync_inside(_: Path) -> None:
            disk.during_sync = None
            file.write_at(b"y", 1)
            file.sync()
            file.write_at(b"z", 2)

        disk.during_sync = write_and_sync_inside
        file.write_at(b"x", 0)
        file.sync()

    log = recorded(tmp_path, steps, {"f": b"ooo"})
    assert sorted(files["f"] for files in left(log)) == [b"xyo", b"xyz"]


def test_threads_leave_a_log_that_agrees_with_the_disk(tmp_path: Path) -> None:
    def steps(disk: RecordingDisk, root: Path) -> None:
        def work(number: int) -> None:
            with disk.open(root / "shared", create=True) as shared:
                for turn in range(20):
                    shared.write_at(bytes([number, turn]), draws[number][turn])
                    disk.replace_file(root / f"own{number}", bytes([turn]))
                    shared.sync()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))

    draws = [[(number * 7 + turn * 3) % 40 for turn in range(20)] for number in range(4)]
    log = recorded(tmp_path, steps)
    actual = {path.name: path.read_bytes() for path in (tmp_path / "disk").iterdir()}
    assert actual in left(log)


# Toy logs


class ToyLog:
    """Records `length, checksum, bytes` one after the other; a torn tail is cut on open.

    What it finds on open may not be durable yet, if only the process died: file and folder are synced again.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.disk = disk
        disk.make_dirs(path.parent)
        self.file = disk.open(path, create=True)
        self.records, self.end = self.recover()
        self.cut_tail()
        self.opened()

    def opened(self) -> None:
        self.disk.sync_dir(self.file.path.parent)

    def recover(self) -> tuple[list[bytes], int]:
        records: list[bytes] = []
        end = 0
        while len(header := self.file.read_at(8, end)) == 8:
            length, checksum = struct.unpack("<II", header)
            data = self.file.read_at(length, end + 8)
            if length == 0 or len(data) < length or zlib.crc32(data) != checksum:
                break
            records.append(data)
            end += 8 + length
        return records, end

    def cut_tail(self) -> None:
        self.file.truncate(self.end)
        self.file.sync()

    def append(self, data: bytes) -> None:
        self.write(struct.pack("<II", len(data), zlib.crc32(data)) + data)
        self.made_durable()

    def write(self, record: bytes) -> None:
        self.file.write_at(record, self.end)
        self.end += len(record)

    def made_durable(self) -> None:
        self.file.sync()


class NoRecordSync(ToyLog):
    def made_durable(self) -> None:
        pass


class NoFolderSync(ToyLog):
    def opened(self) -> None:
        pass


class NoFolderForTheFolder(ToyLog):
    def __init__(self, disk: Disk, path: Path) -> None:
        if not path.parent.is_dir():
            disk.make_dir(path.parent, 0o750)
        super().__init__(disk, path)


class NoSyncOnOpen(ToyLog):
    def cut_tail(self) -> None:
        if self.file.size() > self.end:
            super().cut_tail()


class SyncBeforeWrite(ToyLog):
    def append(self, data: bytes) -> None:
        self.made_durable()
        self.write(struct.pack("<II", len(data), zlib.crc32(data)) + data)


class NoChecksum(ToyLog):
    """Trusts the length: a torn record is read as if it were whole."""

    def recover(self) -> tuple[list[bytes], int]:
        records: list[bytes] = []
        end = 0
        while len(header := self.file.read_at(8, end)) == 8:
            length = struct.unpack("<II", header)[0]
            data = self.file.read_at(length, end + 8)
            if length == 0 or len(data) < length:
                break
            records.append(data)
            end += 8 + length
        return records, end


class TwoSyncs(ToyLog):
    def made_durable(self) -> None:
        self.file.sync()
        self.file.sync()


RECORDS = [b"first", b"second" * 20, b"third", b"fourth" * 200, b"fifth"]


def appends(kind: type[ToyLog]) -> Record:
    def record(disk: RecordingDisk, root: Path) -> None:
        log = kind(disk, root / "data" / "log")
        for data in RECORDS:
            log.append(data)
            disk.mark(data)
        log.file.close()

    return record


def reads(kind: type[ToyLog]) -> Callable[[Path, Sequence[Mark]], None]:
    def verify(root: Path, marks: Sequence[Mark]) -> None:
        promised = list(dict.fromkeys(marked(marks, bytes)))
        log = kind(Disk(), root / "data" / "log")
        log.file.close()
        assert log.records[: len(promised)] == promised
        assert log.records == RECORDS[: len(log.records)]

    return verify


def restarts(kind: type[ToyLog]) -> Record:
    """The process is killed after an append that it did not acknowledge; the next one finds the record."""

    def record(disk: RecordingDisk, root: Path) -> None:
        log = kind(disk, root / "data" / "log")
        with disk.killed_after(1):
            log.append(RECORDS[0])
        log.file.close()
        go_on(kind, disk, root)

    return record


def go_on(kind: type[ToyLog], disk: RecordingDisk, root: Path) -> None:
    """Open the log, promise what is found, append the rest."""
    log = kind(disk, root / "data" / "log")
    for data in log.records:
        disk.mark(data)
    for data in RECORDS[len(log.records) :]:
        log.append(data)
        disk.mark(data)
    log.file.close()


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


def test_a_killed_process_cannot_write_on(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    with disk.killed_after(2):
        with contextlib.suppress(Exception):
            disk.replace_file(tmp_path / "f", b"x")
        raise AssertionError("a dead process goes on")
    assert [str(event) for event in disk.log.events] == ["create .f.partial", "truncate .f.partial to 0"]
    disk.replace_file(tmp_path / "f", b"y")
    assert (tmp_path / "f").read_bytes() == b"y"


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
        "test_powerloss.py:ToyLog.__init__ Disk.make_dirs",
        "test_powerloss.py:ToyLog.cut_tail",
        "test_powerloss.py:ToyLog.made_durable",
        "test_powerloss.py:ToyLog.opened",
    ]
    assert all(failure.dropped == site for site, failure in failures.items())


def test_a_redundant_sync_is_named() -> None:
    with pytest.raises(AssertionError, match="no failure found") as caught:
        every_sync_matters(restarts(TwoSyncs), reads(TwoSyncs), seed=1)
    named = [line for line in str(caught.value).splitlines() if "TwoSyncs.made_durable" in line]
    assert len(named) == 2
    assert "ToyLog.opened" not in str(caught.value)
    done = every_sync_matters(
        restarts(TwoSyncs), reads(TwoSyncs), seed=1, exempt=["test_powerloss.py:TwoSyncs.made_durable"]
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


# The check itself


def test_a_failure_says_where_and_how_to_see_it_again(tmp_path: Path) -> None:
    with pytest.raises(BrokenPromiseError) as caught:
        check(appends(NoRecordSync), reads(NoRecordSync), seed=7, keep=tmp_path / "kept")
    failure = caught.value
    text = str(failure)
    assert "seed 7" in text
    assert f"cuts=[{failure.image.cut}]" in text
    assert "test_powerloss.py:" in text
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


def test_two_hundred_steps_take_seconds() -> None:
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

    started = time.process_time()
    done = check(record, verify, seed=1, per_cut=30)
    assert len(done.log.events) > 200
    assert done.images > 3000
    assert time.process_time() - started < 10


# Properties, on runs that hypothesis makes up

NAMES = st.sampled_from(["a", "b", "c", "d/a", "d/b"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, st.integers(0, 6), st.binary(min_size=1, max_size=5)),
        st.tuples(st.just("truncate"), NAMES, st.integers(0, 8), st.just(b"")),
        st.tuples(st.just("sync"), NAMES, st.just(0), st.just(b"")),
        st.tuples(st.just("rename"), NAMES, st.integers(0, 4), st.just(b"")),
        st.tuples(st.just("remove"), NAMES, st.just(0), st.just(b"")),
        st.tuples(st.just("sync_dir"), st.sampled_from([".", "d"]), st.just(0), st.just(b"")),
        st.tuples(st.just("replace"), NAMES, st.just(0), st.binary(max_size=5)),
    ),
    max_size=14,
)
ALL_NAMES = ["a", "b", "c", "d/a", "d/b"]


def play(disk: Disk, root: Path, steps: Sequence[tuple[str, str, int, bytes]]) -> None:
    for kind, name, number, data in steps:
        path = root / name
        match kind:
            case "write":
                with disk.open(path, create=True) as file:
                    file.write_at(data, number)
            case "truncate" | "sync" if path.exists():
                with disk.open(path) as file:
                    if kind == "sync":
                        file.sync()
                    else:
                        file.truncate(number)
            case "rename" if path.exists():
                disk.rename(path, root / ALL_NAMES[number])
            case "remove" if path.exists():
                disk.remove(path)
            case "sync_dir":
                disk.sync_dir(path)
            case "replace":
                disk.replace_file(path, data)


def seen_on(root: Path) -> Files:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, seed=st.integers(0, 3))
def test_one_image_is_the_real_directory_and_each_can_be_built(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int, bytes]], seed: int
) -> None:
    root = tmp_path_factory.mktemp("run")
    (root / "d").mkdir()
    disk = RecordingDisk(root)
    play(disk, root, steps)
    log = disk.log
    at_the_end = list(images(log, seed=seed, cuts=[len(log.events)]))
    assert seen_on(root) in [image.files for image in at_the_end]
    for number, image in enumerate(at_the_end):
        built = root.with_name(f"{root.name}-{number}")
        image.build(built)
        assert seen_on(built) == image.files


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, seed=st.integers(0, 3))
def test_after_everything_is_synced_only_the_real_directory_is_possible(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int, bytes]], seed: int
) -> None:
    root = tmp_path_factory.mktemp("run")
    (root / "d").mkdir()
    disk = RecordingDisk(root)
    play(disk, root, steps)
    play(disk, root, [("sync", name, 0, b"") for name in ALL_NAMES])
    play(disk, root, [("sync_dir", name, 0, b"") for name in (".", "d")])
    log = disk.log
    assert [image.files for image in images(log, seed=seed, cuts=[len(log.events)])] == [seen_on(root)]


@settings(max_examples=100, deadline=None)
@given(
    writes=st.lists(
        st.tuples(st.integers(0, 8), st.binary(min_size=1, max_size=6)) | st.just("sync"),
        min_size=1,
        max_size=8,
    )
)
def test_each_byte_is_durable_or_from_an_unsynced_write_or_zero_past_the_end(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, bytes] | str]
) -> None:
    root = tmp_path_factory.mktemp("run")
    (root / "f").write_bytes(b"old")
    disk = RecordingDisk(root)
    durable, unsynced = bytearray(b"old"), list[tuple[int, bytes]]()
    with disk.open(root / "f") as file:
        for write in writes:
            if isinstance(write, tuple):
                file.write_at(write[1], write[0])
                unsynced.append(write)
                continue
            file.sync()
            for position, data in unsynced:
                durable.extend(bytes(max(0, position - len(durable))))
                durable[position : position + len(data)] = data
            unsynced.clear()
    log = disk.log
    longest = max([len(durable), *(position + len(data) for position, data in unsynced)])
    for image in images(log, seed=1, cuts=[len(log.events)], per_cut=40):
        content = image.files["f"]
        assert len(durable) <= len(content) <= longest
        for at, byte in enumerate(content):
            sources = {data[at - position] for position, data in unsynced if 0 <= at - position < len(data)}
            assert byte in sources | {durable[at] if at < len(durable) else 0}


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_dropping_a_sync_adds_only_disks_that_lost_something_it_had_covered(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int, bytes]]
) -> None:
    root = tmp_path_factory.mktemp("run")
    (root / "d").mkdir()
    disk = RecordingDisk(root)
    play(disk, root, steps)
    log = disk.log
    cut = len(log.events)
    for site in sync_sites(log):
        added = list(images(log, seed=1, cuts=[cut], drop=site))
        honest = next(iter(images(log, seed=1, cuts=[cut])))
        for image in added:
            covered = {atom.key for atom in image.unsynced} - {atom.key for atom in honest.unsynced}
            assert any(image.made_by.fates[key] is not True for key in covered)
