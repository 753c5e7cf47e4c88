"""The file store and power loss: what is promised by a put, a look, a listing and a removal, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from penstock.base.disk import Disk
from penstock.journal.stores import FileStore
from penstock.testing.powerloss import Mark, RecordingDisk, check, every_sync_matters, marked

PATHS = [f"foo/bar/{number}.raw" for number in range(3)] + ["foo/bar/date=1/3.raw"]


@dataclass(frozen=True)
class Stored:
    """A promise: the file is there, whole."""

    path: str


@dataclass(frozen=True)
class Removing:
    """From here on the file may be there or not."""

    path: str


@dataclass(frozen=True)
class Removed:
    """A promise: the file is not there any more."""

    path: str


def content_of(path: str) -> bytes:
    return path.encode() * 100


def a_store(disk: Disk, root: Path) -> FileStore:
    return FileStore("file:///", root, disk)


def put_all(disk: RecordingDisk, root: Path, paths: Sequence[str] = PATHS) -> None:
    store = a_store(disk, root)
    for path in paths:
        store.put(path, [content_of(path)])
        disk.mark(Stored(path))


def put_and_remove(disk: RecordingDisk, root: Path) -> None:
    put_all(disk, root)
    store = a_store(disk, root)
    for path in PATHS:
        disk.mark(Removing(path))
        store.remove(path)
        disk.mark(Removed(path))


def look_after_a_kill(disk: RecordingDisk, root: Path, steps: int, listing: bool) -> None:
    """A put is killed; whoever looks next may free its own copy of what it finds."""
    with disk.killed_after(steps):
        put_all(disk, root, PATHS[-1:])
    store = a_store(disk, root)
    if listing:
        for listed in store.list("foo/bar"):
            disk.mark(Stored(f"foo/bar/{listed.path}"))
    elif store.exists(PATHS[-1]):
        disk.mark(Stored(PATHS[-1]))


def remove_after_a_kill(disk: RecordingDisk, root: Path, steps: int) -> None:
    """A removal is killed; the next one finds nothing to remove, and promises the same."""
    put_all(disk, root, PATHS[:1])
    disk.mark(Removing(PATHS[0]))
    with disk.killed_after(steps):
        a_store(disk, root).remove(PATHS[0])
    a_store(disk, root).remove(PATHS[0])
    disk.mark(Removed(PATHS[0]))


def verify(root: Path, marks: Sequence[Mark]) -> None:
    store = a_store(Disk(), root)
    stored = {promise.path for promise in marked(marks, Stored)}
    removing = {promise.path for promise in marked(marks, Removing)}
    removed = {promise.path for promise in marked(marks, Removed)}
    listed = {f"foo/bar/{file.path}": file.size for file in store.list("foo/bar")}
    for path, size in listed.items():
        assert path in PATHS
        assert size == len(content_of(path))
        with store.open(path) as file:
            assert file.read() == content_of(path), "a file is there in part"
    assert not removed & set(listed)
    assert stored - removing <= set(listed)


RECORDINGS: list[Callable[[RecordingDisk, Path], None]] = [
    put_all,
    put_and_remove,
    *(partial(look_after_a_kill, steps=steps, listing=True) for steps in range(20)),
    *(partial(look_after_a_kill, steps=steps, listing=False) for steps in range(20)),
    *(partial(remove_after_a_kill, steps=steps) for steps in range(3)),
]


@pytest.mark.parametrize("recording", [put_all, put_and_remove])
def test_what_was_stored_is_there_and_what_was_removed_is_not(
    recording: Callable[[RecordingDisk, Path], None],
) -> None:
    check(recording, verify, seed=1)


def test_no_sync_of_the_store_is_there_for_nothing() -> None:
    failures = every_sync_matters(RECORDINGS, verify, seed=1)
    assert {site.label for site in failures} == {
        "stores.py:FileStore.put",
        "stores.py:FileStore._sync_up",
        "stores.py:FileStore.list",
        "stores.py:FileStore.remove",
    }
