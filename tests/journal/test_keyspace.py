"""The local key space: revisions like etcd's, and a file that a crash cannot confuse."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.disk import Disk
from penstock.base.errors import CorruptError
from penstock.journal import keyspace
from penstock.journal.keyspace import Entry, LocalKeySpace
from penstock.testing.powerloss import Mark, RecordingDisk, check, every_sync_matters, images, marked


def opened(path: Path) -> LocalKeySpace:
    return LocalKeySpace(Disk(), path / "keyspace")


def test_revisions_count_transactions_and_create_revisions_stay(tmp_path: Path) -> None:
    space = opened(tmp_path)
    start = space.revision
    assert space.transact({"a": 0}, [("a", b"1")], [])
    assert space.transact({"a": start + 1}, [("a", b"2"), ("b", b"3")], [])
    assert space.get("a") == Entry(b"2", start + 1, start + 2)
    assert space.get("b") == Entry(b"3", start + 2, start + 2)


@pytest.mark.parametrize("expected", [{"a": 0}, {"a": 99}, {"missing": 1}])
def test_a_transaction_whose_compare_fails_changes_nothing(tmp_path: Path, expected: dict[str, int]) -> None:
    space = opened(tmp_path)
    space.transact({}, [("a", b"1")], [])
    revision = space.revision
    assert not space.transact(expected, [("a", b"2")], [])
    assert (space.revision, space.get("a")) == (revision, Entry(b"1", revision, revision))


def test_deleted_and_made_again_a_key_has_a_new_create_revision(tmp_path: Path) -> None:
    space = opened(tmp_path)
    space.transact({}, [("a", b"1")], [])
    space.transact({}, [], ["a"])
    space.transact({"a": 0}, [("a", b"2")], [])
    assert space.get("a") == Entry(b"2", space.revision, space.revision)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    space = opened(tmp_path)
    for i in range(20):
        space.transact({}, [(f"k/{i % 7}", b"%d" % i)], [f"k/{i % 3}"] if i % 5 == 0 else [])
    before = (space.revision, dict(space.under("k/")))
    space.close()
    again = opened(tmp_path)
    assert (again.revision, dict(again.under("k/"))) == before


def test_history_is_left_behind_when_the_file_is_mostly_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyspace, "_REWRITE_ABOVE", 1000)
    space = opened(tmp_path)
    for i in range(100):
        space.transact({}, [("a", b"%d" % i), (f"b/{i % 2}", bytes(20))], [])
    before = (space.revision, dict(space.under("")))
    space.close()
    size = (tmp_path / "keyspace").stat().st_size
    again = opened(tmp_path)
    assert (again.revision, dict(again.under(""))) == before
    assert (tmp_path / "keyspace").stat().st_size < size / 10
    again.transact({}, [("c", b"")], [])
    assert again.revision == before[0] + 1


def test_a_torn_last_transaction_is_cut_at_every_byte(tmp_path: Path) -> None:
    space = opened(tmp_path)
    space.transact({}, [("a", b"1")], [])
    first = (tmp_path / "keyspace").stat().st_size
    space.transact({}, [("a", b"2")], [])
    space.close()
    whole = (tmp_path / "keyspace").read_bytes()
    for length in range(first, len(whole)):
        (tmp_path / "keyspace").write_bytes(whole[:length] + bytes(length % 3))
        again = opened(tmp_path)
        entry = again.get("a")
        assert entry is not None
        assert entry.value == b"1"
        again.transact({}, [("a", b"3")], [])
        again.close()
        entry = opened(tmp_path).get("a")
        assert entry is not None
        assert entry.value == b"3"


def test_damage_with_others_behind_it_is_reported_not_cut(tmp_path: Path) -> None:
    space = opened(tmp_path)
    space.transact({}, [("a", b"1111")], [])
    space.transact({}, [("b", b"2222")], [])
    space.close()
    content = bytearray((tmp_path / "keyspace").read_bytes())
    content[12] ^= 1
    (tmp_path / "keyspace").write_bytes(content)
    with pytest.raises(CorruptError, match="others behind it"):
        opened(tmp_path)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=8), st.booleans()), max_size=30))
def test_it_agrees_with_a_dict(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, bytes, bool]]
) -> None:
    path = tmp_path_factory.mktemp("keyspace")
    space, model = opened(path), dict[str, bytes]()
    for key, value, delete in changes:
        space.transact({}, [] if delete else [(key, value)], [key] if delete else [])
        model.pop(key, None) if delete else model.update({key: value})
    space.close()
    assert {key: entry.value for key, entry in opened(path).under("")} == model


def transact(disk: RecordingDisk, space: LocalKeySpace, numbers: range) -> None:
    """Transactions that say so when they are acknowledged; each makes most of the one before it history."""
    for i in numbers:
        space.transact({}, [("a", b"%d" % i), ("large", bytes(200))], [])
        disk.mark(i)


def record(disk: RecordingDisk, root: Path) -> None:
    disk.make_dirs(root / "data")
    space = LocalKeySpace(disk, root / "data" / "keyspace")
    transact(disk, space, range(4))
    space.close()


def record_with_successor(disk: RecordingDisk, root: Path, killed_after: int) -> None:
    """The process dies somewhere; the next one promises what it finds, leaves history behind, and goes on."""
    disk.make_dirs(root / "data")
    path = root / "data" / "keyspace"
    with disk.killed_after(killed_after):
        transact(disk, LocalKeySpace(disk, path), range(6))
    go_on(disk, root)


def go_on(disk: RecordingDisk, root: Path) -> None:
    space = LocalKeySpace(disk, root / "data" / "keyspace")
    found = space.get("a")
    last = int(found.value) if found else -1
    if found:
        disk.mark(last)
    transact(disk, space, range(last + 1, last + 3))
    space.close()


def verify(root: Path, marks: Sequence[Mark]) -> None:
    promised = marked(marks, int)
    if not promised:
        return
    space = LocalKeySpace(Disk(), root / "data" / "keyspace")
    entry = space.get("a")
    assert entry is not None
    assert int(entry.value) >= promised[-1]
    assert space.revision >= promised[-1] + 2
    space.transact({}, [("after", b"crash")], [])
    space.close()
    again = LocalKeySpace(Disk(), root / "data" / "keyspace")
    assert again.get("after") is not None
    again.close()


@pytest.fixture
def rewritten_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyspace, "_REWRITE_ABOVE", 900)


KILLED = [partial(record_with_successor, killed_after=steps) for steps in range(5, 30)]
RECORDINGS: list[Callable[[RecordingDisk, Path], None]] = [record, *KILLED]


def test_an_acknowledged_transaction_survives_power_loss() -> None:
    check(record, verify, seed=1)


@pytest.mark.usefixtures("rewritten_early")
def test_no_sync_of_the_key_space_is_there_for_nothing() -> None:
    failures = every_sync_matters(RECORDINGS, verify, seed=1)
    assert {site.label for site in failures} >= {
        "keyspace.py:LocalKeySpace.__init__",
        "keyspace.py:LocalKeySpace.write",
        "keyspace.py:LocalKeySpace._rewrite Disk.replace_file",
    }


def test_power_loss_while_a_torn_transaction_is_cut_is_survived_too() -> None:
    """Cutting is not synced by itself: a tail that comes back must be cut again, whatever was written over it."""
    first = check(record, verify, seed=1)
    torn = [image for image in images(first.log, seed=1) if "torn" in image.choice and image.marks]
    for image in torn[:30]:
        check(go_on, verify, seed=1, prepare=image.build, per_cut=4)


def test_a_key_space_that_cannot_be_opened_leaves_no_descriptor(tmp_path: Path) -> None:
    space = opened(tmp_path)
    for value in (b"1111", b"2222"):
        space.transact({}, [("a", value)], [])
    space.close()
    content = bytearray((tmp_path / "keyspace").read_bytes())
    content[12] ^= 1
    (tmp_path / "keyspace").write_bytes(content)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(CorruptError):
        opened(tmp_path)
    assert os.listdir("/proc/self/fd") == before
