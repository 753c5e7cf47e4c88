"""The file store when a step fails: what is promised before which step, and what is left behind."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.base.disk import Disk
from penstock.journal.stores import FileStore

from .storing import PATH, Power, StepDisk, files_below, read


def test_content_is_synced_before_it_gets_its_name_and_names_up_to_the_root_after(root: Path) -> None:
    disk = StepDisk()
    FileStore("file:///", root, disk).put(PATH, [b"foo", b"bar"])
    steps = disk.steps()
    rename = steps.index("rename")
    opened = disk.taken[steps.index("open")][1]
    assert opened.parent == (root / PATH).parent
    assert opened.name.startswith(".partial-")
    assert steps[rename - 3 : rename] == ["write", "write", "sync"]
    assert disk.taken[rename][1] == root / PATH
    after = disk.taken[rename + 1 :]
    assert after == [("sync_dir", root / path) for path in ("foo/bar/date=1", "foo/bar", "foo", "")]


def test_a_file_that_is_adopted_gets_its_name_and_then_names_are_synced_up_to_the_root(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for found in (False, True):  # put there by another broker, perhaps, that has not synced it yet
        disk = StepDisk()
        store = FileStore("file:///", root, disk)
        assert store.can_adopt(tmp_path / "file")
        assert store.adopt(PATH, tmp_path / "file")
        assert ("link", root / PATH) in disk.taken
        after = disk.taken[disk.steps().index("link") + 1 :]
        assert after == [("sync_dir", root / path) for path in ("foo/bar/date=1", "foo/bar", "foo", "")], (
            found
        )
        assert read(store, PATH) == b"x"
    assert (root / PATH).samefile(tmp_path / "file")


def test_a_file_elsewhere_cannot_be_adopted(root: Path, store: FileStore) -> None:
    elsewhere = Path("/dev/shm")
    if elsewhere.stat().st_dev == root.stat().st_dev:
        pytest.skip("there is one disk only")
    with tempfile.NamedTemporaryFile(dir=elsewhere) as file:
        assert not store.can_adopt(Path(file.name))
        assert not store.adopt(PATH, Path(file.name))
    assert not store.exists(PATH)


def test_a_file_that_has_gone_cannot_be_adopted(tmp_path: Path, store: FileStore) -> None:
    with pytest.raises(FileNotFoundError):
        store.adopt(PATH, tmp_path / "nothing")


def test_directories_that_were_there_are_synced_again(root: Path) -> None:
    # An earlier put may have made them and failed before the sync.
    (root / PATH).parent.mkdir(parents=True)
    disk = StepDisk()
    FileStore("file:///", root, disk).put(PATH, [b"x"])
    assert ("sync_dir", root) in disk.taken
    assert ("sync_dir", root / "foo") in disk.taken


def test_what_exists_is_made_durable_before_it_is_told(root: Path) -> None:
    # Whoever put it may have died between its rename and its sync; the caller will free its own copy.
    Disk().make_dirs((root / PATH).parent)
    (root / PATH).write_bytes(b"x")
    disk = StepDisk()
    assert FileStore("file:///", root, disk).exists(PATH)
    assert disk.taken == [("sync_dir", root / path) for path in ("foo/bar/date=1", "foo/bar", "foo", "")]
    failing = FileStore("file:///", root, StepDisk(fail_at=2))
    with pytest.raises(OSError, match="sync_dir"):
        failing.exists(PATH)


def test_what_is_listed_is_made_durable_before_it_is_told(root: Path) -> None:
    FileStore("file:///", root, Disk()).put(PATH, [b"x"])
    disk = StepDisk()
    listing = FileStore("file:///", root, disk).list("foo/bar")
    assert next(listing).path == "date=1/part.raw"
    synced = {path for step, path in disk.taken if step == "sync_dir"}
    assert synced == {root / path for path in ("foo/bar/date=1", "foo/bar", "foo", "")}


@pytest.mark.parametrize("unread", ["foo/bar", "foo/bar/date=1"])
def test_a_directory_that_cannot_be_read_is_not_taken_for_an_empty_one(
    root: Path, monkeypatch: pytest.MonkeyPatch, unread: str
) -> None:
    store = FileStore("file:///", root, Disk())
    store.put(PATH, [b"x"])
    scandir = os.scandir

    def failing(path: Path) -> object:
        if Path(path) == root / unread:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(OSError, match="Input/output error"):
        list(store.list("foo/bar"))


def test_a_directory_that_goes_while_others_are_listed_has_nothing(root: Path) -> None:
    store = FileStore("file:///", root, Disk())
    for day in (1, 2, 3):
        store.put(f"foo/bar/date={day}/{day}", [b"x"])
    listed = store.list("foo/bar")
    found = [next(listed).path]
    shutil.rmtree(root / "foo/bar/date=2")
    found += [one.path for one in listed]
    assert found == ["date=1/1", "date=3/3"]


def test_a_removal_is_durable_even_if_an_earlier_one_was_not(root: Path) -> None:
    FileStore("file:///", root, Disk()).put(PATH, [b"x"])
    disk = StepDisk()
    store = FileStore("file:///", root, disk)
    store.remove(PATH)
    store.remove(PATH)
    parent = (root / PATH).parent
    assert disk.taken == [("remove", root / PATH), ("sync_dir", parent)] * 2


def steps_of_a_put(root: Path) -> int:
    disk = StepDisk()
    FileStore("file:///", root, disk).put(PATH, [b"foo", b"bar"])
    return len(disk.taken)


def each_failure(tmp_path: Path, prepare: Callable[[Path], object]) -> Iterator[tuple[int, Path]]:
    """A fresh root for each step of a put that could fail."""
    count = tmp_path / "count"
    count.mkdir()
    prepare(count)
    for step in range(steps_of_a_put(count)):
        root = tmp_path / str(step)
        root.mkdir()
        prepare(root)
        yield step, root


def with_old_version(root: Path) -> None:
    FileStore("file:///", root, Disk()).put(PATH, [b"old"])


@pytest.mark.parametrize("prepare", [lambda root: None, with_old_version])
def test_a_put_that_fails_at_any_step_leaves_the_old_or_the_whole_new(
    tmp_path: Path, prepare: Callable[[Path], object]
) -> None:
    for step, root in each_failure(tmp_path, prepare):
        before = files_below(root)
        disk = StepDisk(fail_at=step)
        with pytest.raises(OSError, match=str(root)):
            FileStore("file:///", root, disk).put(PATH, [b"foo", b"bar"])
        assert files_below(root) in (before, [PATH]), f"step {step} left something behind"
        if (root / PATH).exists():
            assert (root / PATH).read_bytes() in (b"old", b"foobar")
            was_renamed = "rename" in disk.steps()[:-1]
            assert was_renamed or before
        again = FileStore("file:///", root, Disk())
        again.put(PATH, [b"foo", b"bar"])
        assert read(again, PATH) == b"foobar"
        assert files_below(root) == [PATH]


@pytest.mark.parametrize("prepare", [lambda root: None, with_old_version])
def test_a_kill_at_any_step_leaves_nothing_that_is_listed_and_the_next_start_sweeps(
    tmp_path: Path, prepare: Callable[[Path], object]
) -> None:
    left_behind = 0
    for step, root in each_failure(tmp_path, prepare):
        with pytest.raises(Power):
            FileStore("file:///", root, StepDisk(step, Power, dead=True)).put(PATH, [b"foo", b"bar"])
        left_behind += any(".partial-" in name for name in files_below(root))
        reader = FileStore("file:///", root, Disk(), sweep=False)
        assert [listed.path for listed in reader.list("foo/bar")] in ([], ["date=1/part.raw"])
        store = FileStore("file:///", root, Disk())
        assert files_below(root) in ([], [PATH])
        if store.exists(PATH):
            assert read(store, PATH) in (b"old", b"foobar")
        store.put(PATH, [b"foo", b"bar"])
        assert read(store, PATH) == b"foobar"
    assert left_behind, "the test never saw a leftover to sweep"


def test_a_source_that_fails_leaves_nothing(store: FileStore, root: Path) -> None:
    def source() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("the compressor broke")

    with pytest.raises(RuntimeError, match="the compressor broke"):
        store.put(PATH, source())
    assert files_below(root) == []


def test_sweeping_spares_a_put_that_is_under_way(root: Path) -> None:
    store = FileStore("file:///", root, Disk())
    started, go_on = threading.Event(), threading.Event()

    def source() -> Iterator[bytes]:
        yield b"foo"
        started.set()
        assert go_on.wait(10)
        yield b"bar"

    put = threading.Thread(target=store.put, args=(PATH, source()))
    put.start()
    assert started.wait(10)
    FileStore("file:///foo/", root, Disk())
    assert list(store.list("foo/bar")) == []
    go_on.set()
    put.join()
    assert read(store, PATH) == b"foobar"


def test_sweeping_takes_only_what_puts_leave(root: Path) -> None:
    kept = ["foo/bar/notes.txt", "foo/.partial-journal/0-1-x.raw", "foo/partial-x"]
    for path in [*kept, "foo/bar/.partial-dead", ".partial-dead"]:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    FileStore("file:///", root, Disk(), sweep=False)
    assert len(files_below(root)) == 5
    FileStore("file:///", root, Disk())
    assert files_below(root) == sorted(kept)
