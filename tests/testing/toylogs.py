"""What the tests of the power-loss harness record: single steps, and toy logs, some with planted bugs."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.base.disk import Disk
from penstock.testing.powerloss import Log, Mark, RecordingDisk, images, marked

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


def write_and_sync(disk: RecordingDisk, root: Path) -> None:
    with disk.open(root / "f") as file:
        file.write_at(b"x", 0)
        file.sync()


def create_and_sync_without_folder(disk: RecordingDisk, root: Path) -> None:
    with disk.open(root / "g", create=True) as file:
        file.write_at(b"x", 0)
        file.sync()


def create_durably(disk: RecordingDisk, root: Path) -> None:
    create_and_sync_without_folder(disk, root)
    disk.sync_dir(root)


class ToyLog:
    """Records `length, checksum, bytes` one after the other; a torn tail is cut on open.

    What it finds on open may not be durable yet, if only the process died: file and folder are synced again.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.disk = disk
        self.make_folder(path.parent)
        self.file = disk.open(path, create=True)
        self.records, self.end = self.recover()
        self.cut_tail()
        self.opened()

    def make_folder(self, path: Path) -> None:
        self.disk.make_dirs(path)

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
    def make_folder(self, path: Path) -> None:
        if not path.is_dir():
            self.disk.make_dir(path, 0o750)


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
