"""The power-loss harness: a table of what may survive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.testing.powerloss import RecordingDisk, images

from .toylogs import (
    Files,
    Record,
    create_and_sync_without_folder,
    create_durably,
    left,
    recorded,
    write_and_sync,
)


def by_name(outcomes: Sequence[Files]) -> list[Files]:
    return sorted(outcomes, key=lambda files: sorted(files.items()))


def of_f(*contents: bytes) -> list[Files]:
    return [{"f": content} for content in contents]


@dataclass
class Row:
    """After `steps` on a disk with the files `before`, exactly `possible` may be found."""

    steps: Record
    possible: Sequence[Files]
    before: Files | None = None


def write_only(disk: RecordingDisk, root: Path) -> None:
    disk.open(root / "f").write_at(b"x", 0)


def create_and_sync_folder_only(disk: RecordingDisk, root: Path) -> None:
    disk.open(root / "g", create=True).write_at(b"xy", 0)
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


def link(disk: RecordingDisk, root: Path) -> None:
    disk.link(root / "f", root / "g")


def link_durably_and_remove(disk: RecordingDisk, root: Path) -> None:
    disk.link(root / "f", root / "g")
    disk.sync_dir(root)
    disk.remove(root / "f")


def link_unsynced_content_durably(disk: RecordingDisk, root: Path) -> None:
    with disk.open(root / "f") as file:
        file.write_at(b"x", 0)
    disk.link(root / "f", root / "g")
    disk.sync_dir(root)


def free(disk: RecordingDisk, root: Path) -> None:
    disk.open(root / "f").free(1, 1)


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
    "a link may be missing": Row(link, [{"f": b"o"}, {"f": b"o", "g": b"o"}], {"f": b"o"}),
    "a link with the folder synced outlives the first name": Row(
        link_durably_and_remove, [{"f": b"o", "g": b"o"}, {"g": b"o"}], {"f": b"o"}
    ),
    "both names show the same content": Row(
        link_unsynced_content_durably, [{"f": b"o", "g": b"o"}, {"f": b"x", "g": b"x"}], {"f": b"o"}
    ),
    "room that was given back may have its content again": Row(free, of_f(b"old", b"o\0d"), {"f": b"old"}),
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
