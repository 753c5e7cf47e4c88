"""The data directory: who owns it, where its socket is, and what a crash while it is made may leave."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.base.disk import Disk, DiskFile
from penstock.base.errors import CorruptError, InUseError, PenstockError, UsageError
from penstock.journal.client import Client
from penstock.journal.datadir import DataDir, Lock
from penstock.journal.embedded import EmbeddedBroker, connect
from penstock.log.commitlog import journal_spec
from penstock.log.journals import ensure
from penstock.testing.powerloss import BrokenPromiseError, Mark, RecordingDisk, check, sync_sites


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_a_lock_is_held_until_it_is_released_and_tells_its_holder(tmp_path: Path) -> None:
    directory = DataDir(tmp_path / "data")
    assert directory.owner() is None
    lock = Lock(directory, Disk())
    owner = directory.owner()
    assert owner is not None
    assert owner.pid == os.getpid()
    with pytest.raises(InUseError, match=f"process {os.getpid()}"):
        Lock(directory, Disk())
    lock.release()
    assert directory.owner() is None
    Lock(directory, Disk()).release()


def test_a_lock_released_twice_touches_nobody_elses_file(tmp_path: Path) -> None:
    """The number of its descriptor may belong to another file by then."""
    lock = Lock(DataDir(tmp_path / "data"), Disk())
    lock.release()
    (tmp_path / "precious").write_bytes(b"content")
    with (tmp_path / "precious").open("r+b"):
        lock.release()
    assert (tmp_path / "precious").read_bytes() == b"content"


def test_a_command_may_have_arguments_that_are_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["penstock", os.fsdecode(b"caf\xe9")])
    directory = DataDir(tmp_path / "data")
    lock = Lock(directory, Disk())
    owner = directory.owner()
    assert owner is not None
    assert owner.command == r"penstock caf\udce9"
    lock.release()


@pytest.mark.parametrize("call", ["ftruncate", "pwrite"])
def test_a_full_disk_does_not_keep_the_owner_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    directory = DataDir(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        lock = Lock(directory, Disk())
    with pytest.raises(InUseError, match="another process"):
        Lock(directory, Disk())
    lock.release()


def test_a_lock_that_cannot_be_taken_leaves_no_descriptor(tmp_path: Path) -> None:
    directory = DataDir(tmp_path / "data")
    lock = Lock(directory, Disk())
    before = descriptors()
    with pytest.raises(InUseError):
        Lock(directory, Disk())
    assert descriptors() == before
    lock.release()


@pytest.mark.parametrize("place", ["a file", "a file/below it", "/proc/none"])
def test_a_place_where_no_directory_can_be_is_refused_in_words(tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").write_text("mine")
    with pytest.raises(UsageError, match=r"cannot use .* as a data directory: ") as refused:
        Lock(DataDir(tmp_path / place), Disk())
    assert refused.value.hint is not None
    assert "--data-dir" in refused.value.hint


def test_a_directory_of_somebody_else_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, mode: int) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "mkdir", refused)
    with pytest.raises(UsageError, match="data: Permission denied"):
        Lock(DataDir(tmp_path / "data"), Disk())


def test_a_file_that_another_user_has_left_is_refused_in_words(tmp_path: Path) -> None:
    """As root does, for one who looks at the directory of a service."""

    class Foreign(Disk):
        def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
            if path.name == "keyspace":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return super().open(path, create=create, mode=mode)

    EmbeddedBroker(tmp_path / "data").stop()
    with pytest.raises(UsageError, match="keyspace: Permission denied") as refused:
        EmbeddedBroker(tmp_path / "data", disk=Foreign())
    assert "chown" in str(refused.value.hint)


def test_a_directory_whose_key_space_is_gone_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker, broker.client() as client:
        ensure(client, journal_spec("some/journal", 1 << 20, {}))
        client.append("some/journal", b"x")
    (tmp_path / "data" / "keyspace").unlink()
    for _ in range(2):
        with pytest.raises(CorruptError, match="the key space is gone"):
            EmbeddedBroker(tmp_path / "data")


def test_a_full_disk_is_no_fault_of_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(OSError, match="No space left"):
        Lock(DataDir(tmp_path / "data"), Disk())


def test_a_broker_stopped_twice_is_stopped(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "data")
    broker.stop()
    broker.stop()


def test_a_broker_that_fails_to_start_lets_the_directory_go(tmp_path: Path) -> None:
    EmbeddedBroker(tmp_path / "data").stop()
    (tmp_path / "data/keyspace").write_bytes(b"\x00\x00\x00\x05garbage garbage garbage")
    EmbeddedBroker(tmp_path / "data").stop()
    (tmp_path / "data/VERSION").write_bytes(b"garbage")
    for _ in range(2):
        with pytest.raises(CorruptError, match="not a version file"):
            EmbeddedBroker(tmp_path / "data")
        assert DataDir(tmp_path / "data").owner() is None


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary directory whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="p-") as path:
        yield Path(path)


def test_a_socket_outside_goes_only_where_nobody_else_can_reach(
    tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared temporary directory is everyone's: somebody may have made the folder before us."""
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    folder = DataDir(deep).socket.parent
    assert folder.parent == short_path
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(PenstockError, match="others can write to it"):
        EmbeddedBroker(deep)
    assert DataDir(deep).owner() is None
    folder.chmod(0o700)
    with EmbeddedBroker(deep) as broker, Client(broker.address) as client:
        assert client.list() == []


def test_a_directory_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no data directory"), connect(tmp_path / "none"):
        pass
    assert not (tmp_path / "none").exists()


def test_every_folder_down_to_a_new_directory_survives_power_loss() -> None:
    """Also those above it, which the lock makes before anything else."""
    below = Path("some") / "where" / "data"

    def record(disk: RecordingDisk, root: Path) -> None:
        with EmbeddedBroker(root / below, disk=disk) as broker, Client(broker.address) as client:
            client.create(journal_spec("a/journal", 1024, {}))
            client.append("a/journal", b"promised")
            disk.mark("appended")

    def verify(root: Path, marks: Sequence[Mark]) -> None:
        if marks:
            with connect(root / below) as client:
                assert client.read_bytes("a/journal", 0, 0) == b"promised"

    checked = check(record, verify, seed=1, per_cut=0, untracked=["*/LOCK"])
    [site] = [
        site for site in sync_sites(checked.log) if site.label == "datadir.py:Lock.__init__ Disk.make_dirs"
    ]
    with pytest.raises(BrokenPromiseError):
        check(record, verify, seed=1, per_cut=0, untracked=["*/LOCK"], drop_sync=site)


@pytest.mark.parametrize("steps", range(9))
def test_a_directory_whose_maker_was_killed_can_be_opened_whatever_was_lost(steps: int) -> None:
    """A successor builds on what it finds; after a power cut that must not be half of a directory."""

    def record(disk: RecordingDisk, root: Path) -> None:
        with disk.killed_after(steps):
            DataDir(root / "data").create(disk)
        version = DataDir(root / "data").create(disk)
        disk.mark(version.id)
        disk.open(root / "data" / "keyspace", create=True).close()

    def verify(root: Path, marks: Sequence[Mark]) -> None:
        version = DataDir(root / "data").create(Disk())
        assert all(version.id == mark.value for mark in marks)

    check(record, verify, seed=steps)


def test_a_path_that_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not UTF-8"):
        DataDir(tmp_path / "caf\udce9").create(Disk())
    assert not (tmp_path / "caf\udce9").exists()
