"""A file for each worker: bytes are appended as they come, and cut off again on abort.

    OUT.WORKER             the bytes; beyond the mark they may still vanish
    OUT.WORKER.committed   how many of them hold for good, as a decimal number and a newline

Consumers read below the mark (`committed_of`), which never goes back. The mark follows the transaction log: after a
crash it may be too low for a moment, never too high.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from penstock.base.disk import Disk, DiskFile
from penstock.base.errors import CorruptError
from penstock.connector.sink.storage import Storage, Transaction
from penstock.connector.sink.workers import file_name

_MARK = ".committed"


class FileStorage(Storage):
    """The output of one worker."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self._path = path
        self._disk = disk or Disk()
        self._disk.make_dirs(path.parent)
        self._file: DiskFile | None = None
        self._told = -1

    def recover(self, committed: int, prepared: Transaction | None) -> int:
        file = self._opened()
        wanted = committed if prepared is None else prepared.end
        size = file.size()
        if size < committed:
            raise CorruptError(
                f"{committed} bytes were committed, the file has {size}", where=str(self._path), position=size,
                hint="bring the file back, or tell the sink that the worker has left",
            )  # fmt: skip
        if size > wanted:
            self._cut(file, wanted)
        return min(size, wanted)

    def write(self, offset: int, data: memoryview) -> None:
        self._opened().write_at(data, offset)

    def prepare(self, transaction: Transaction) -> None:
        self._opened().sync()

    def commit(self, transaction: Transaction) -> None:
        """The transaction log says so: there is nothing else to do."""

    def discard(self, offset: int) -> None:
        self._cut(self._opened(), offset)

    def retire(self, mark: str) -> None:
        self.close()
        for path in (self._path, _mark_of(self._path)):
            with contextlib.suppress(FileNotFoundError):
                self._disk.rename(path, path.with_name(f"{path.name}.{mark}"))
        self._disk.sync_dir(self._path.parent)

    def holds(self, offset: int, data: memoryview) -> bool:
        return self._opened().read_at(len(data), offset) == data

    def advertise(self, committed: int) -> None:
        """Not synced: the transaction log is what counts, and the next start tells anew."""
        if committed == self._told:
            return
        mark = _mark_of(self._path)
        aside = mark.with_name(f".{mark.name}.partial")
        with self._disk.open(aside, create=True) as file:
            text = f"{committed}\n".encode()
            file.write_at(text, 0)
            file.truncate(len(text))
        self._disk.rename(aside, mark)
        self._told = committed

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> DiskFile:
        if self._file is None:
            self._file = self._disk.open(self._path, create=True)
            self._disk.sync_dir(self._path.parent)
        return self._file

    @staticmethod
    def _cut(file: DiskFile, size: int) -> None:
        """What is gone stays gone: it does not come back with a power loss."""
        file.truncate(size)
        file.sync()


def file_of(out: Path, worker: str) -> Path:
    """Where the bytes of a worker are."""
    return out.with_name(f"{out.name}.{file_name(worker)}")


def committed_of(path: Path) -> int:
    """How many bytes of a worker's file consumers may read; 0 if nobody has said yet."""
    try:
        text = _mark_of(path).read_text()
    except FileNotFoundError:
        return 0
    return int(text) if text.endswith("\n") and text.strip().isdecimal() else 0


def committed_bytes(path: Path) -> bytes:
    """What consumers may read."""
    size = committed_of(path)
    with path.open("rb") as file:
        return file.read(size)


def _mark_of(path: Path) -> Path:
    return path.with_name(path.name + _MARK)
