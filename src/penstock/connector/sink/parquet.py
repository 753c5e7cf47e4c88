"""A directory of Parquet files: a transaction is a file, staged under another name and published by renaming it.

    DIR/WORKER-START-END.parquet           what is committed; the numbers are byte offsets of the worker's output
    DIR/_staged/WORKER-START-END.parquet   what is prepared; readers of Parquet directories leave `_` names out

Each line is a row with the columns `at`, its byte offset, and `data`.
"""

from __future__ import annotations

import contextlib
import glob
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.base.errors import CorruptError, RefusedError
from penstock.connector.sink.rows import Row, RowStorage
from penstock.connector.sink.storage import Transaction
from penstock.connector.sink.workers import file_name

STAGED: Final = "_staged"
_ROWS: Final = 50_000


class ParquetStorage(RowStorage):
    """The files of one worker."""

    def __init__(self, directory: Path, worker: str, disk: Disk | None = None) -> None:
        super().__init__()
        self._directory = directory
        self._prefix = file_name(worker)
        self._disk = disk or Disk()
        self._disk.make_dirs(directory / STAGED)

    def staged(self, committed: int, prepared: Transaction | None) -> bool:
        wanted = None if prepared is None else self._name(prepared)
        for path in self._mine(self._directory / STAGED):
            if path.name != wanted:
                self._disk.remove(path)
        if prepared is None or prepared.start == prepared.end:
            return prepared is not None
        return any((place / self._name(prepared)).exists() for place in self._places)

    def stage(self, transaction: Transaction, rows: Iterator[Row]) -> None:
        if transaction.start == transaction.end:
            return
        path = self._directory / STAGED / self._name(transaction)
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(path)  # of an attempt that was interrupted
        with self._disk.open(path, create=True) as file:
            _write(_Growing(file), rows)
            file.sync()
        self._disk.sync_dir(path.parent)

    def publish(self, transaction: Transaction) -> None:
        if transaction.start == transaction.end:
            return
        staged, published = (place / self._name(transaction) for place in reversed(self._places))
        if staged.exists():
            self._disk.rename(staged, published)
        elif not published.exists():
            raise CorruptError(
                f"the file of {transaction.id} is gone", where=str(staged), position=0,
                hint="something else removes files there",
            )  # fmt: skip
        self._disk.sync_dir(self._directory)

    def drop(self) -> None:
        for path in self._mine(self._directory / STAGED):
            self._disk.remove(path)

    def retire(self, mark: str) -> None:
        """Files keep their content; the name of the worker is another one from now on."""
        self.drop()
        for path in self._mine(self._directory):
            renamed = f"{self._prefix}.{mark}{path.name.removeprefix(self._prefix)}"
            # Synced when the next storage of this name is made.
            self._disk.rename(path, path.with_name(renamed))

    @property
    def _places(self) -> tuple[Path, Path]:
        return self._directory, self._directory / STAGED

    def _mine(self, place: Path) -> list[Path]:
        return sorted(place.glob(f"{glob.escape(self._prefix)}-{'[0-9]' * 20}-{'[0-9]' * 20}.parquet"))

    def _name(self, transaction: Transaction) -> str:
        return f"{self._prefix}-{transaction.start:020d}-{transaction.end:020d}.parquet"


class _Growing(io.RawIOBase):
    """A file of the disk as one that is written from its beginning."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:  # type: ignore[override]
        self._file.write_at(data, self._at)
        self._at += len(memoryview(data).cast("B"))
        return len(memoryview(data).cast("B"))

    def tell(self) -> int:
        return self._at


def _write(file: _Growing, rows: Iterator[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("at", pa.int64()), ("data", pa.string())])
    with pq.ParquetWriter(file, schema) as writer:
        while some := list(islice(rows, _ROWS)):
            try:
                texts = pa.array([line.decode() for _, line in some], pa.string())
            except UnicodeDecodeError as error:
                raise RefusedError(f"a line that is not UTF-8: {error}") from None
            writer.write_batch(
                pa.record_batch([pa.array([at for at, _ in some], pa.int64()), texts], schema=schema)
            )
