"""The power-loss harness: recording, what counts as a site, threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.base.disk import Disk, DiskFile
from penstock.testing.powerloss import Log, RecordingDisk, sync_sites
from penstock.testing.powerloss.events import SyncEnd

from .toylogs import left, recorded, write_and_sync


def test_the_log_has_every_step_with_its_site(tmp_path: Path) -> None:
    def steps(disk: RecordingDisk, root: Path) -> None:
        disk.make_dir(root / "d", 0o750)
        with disk.open(root / "d" / "f", create=True) as file:
            file.write_at(b"abc", 5)
            file.write_at(b"", 5)
            file.truncate(6)
            file.sync()
        disk.rename(root / "d" / "f", root / "g")
        disk.link(root / "g", root / "d" / "h")
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
        "link g as d/h",
        "remove g",
        "sync_dir . starts",
        "sync_dir . (started as #9) returns",
        "mark 'promise'",
    ]
    assert {event.site.file for event in log.events} == {__file__}
    first = steps.__code__.co_firstlineno
    assert [event.site.line - first for event in log.events] == [1, 2, 3, 5, 6, 6, 7, 8, 9, 10, 10, 11]
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
    assert sites[0].label == "test_powerloss_recording.py:" + steps.__qualname__ + " Disk.replace_file"


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
    (tmp_path / "beside").mkdir()
    with pytest.raises(ValueError, match="outside"):
        disk.sync_dir(tmp_path / "beside")


def test_folders_above_the_recorded_directory_count_as_durable(tmp_path: Path) -> None:
    """Code that makes its folder syncs the one above, too; that is not ours to judge."""
    (tmp_path / "disk").mkdir()
    disk = RecordingDisk(tmp_path / "disk")
    disk.make_dirs(tmp_path / "disk")
    disk.sync_dir(tmp_path)
    assert disk.log.events == ()


def test_the_harness_knows_every_method_of_the_disk() -> None:
    """A new primitive must be recorded and modelled before a promise may rest on it."""
    recorded_steps = {"open", "make_dir", "rename", "link", "remove", "sync_dir"}
    made_of_these = {"make_dirs", "replace_file", "entries"}
    assert {name for name in vars(Disk) if not name.startswith("_")} == recorded_steps | made_of_these
    recorded_steps = {"write_at", "copy_from", "truncate", "free", "sync"}
    harmless = {"fileno", "read_at", "read_anew", "size", "close", "closed", "start_writing_out"}
    assert {name for name in vars(DiskFile) if not name.startswith("_")} == recorded_steps | harmless


def test_a_killed_process_cannot_write_on(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    with disk.killed_after(3):  # the first finds no leftover to remove
        with contextlib.suppress(Exception):
            disk.replace_file(tmp_path / "f", b"x")
        raise AssertionError("a dead process goes on")
    assert [str(event) for event in disk.log.events] == ["create .f.partial", "write .f.partial [0:1]"]
    disk.replace_file(tmp_path / "f", b"y")
    assert (tmp_path / "f").read_bytes() == b"y"


def test_the_files_of_a_killed_process_are_closed_and_those_of_others_not(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    before = disk.open(tmp_path / "before", create=True)
    with disk.killed_after(1):
        inside = disk.open(tmp_path / "inside", create=True)
        inside.write_at(b"x", 0)
    after = disk.open(tmp_path / "inside")
    assert [file.closed for file in (before, inside, after)] == [False, True, False]
    before.close()
    after.close()


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
