"""The transaction log of one worker: every vote and every decision, on the disk before anybody hears of it.

Its records (`penstock.base.checked`) hold one entry of the ledger each, as JSON. A torn last one is cut off when the
log is opened, and was never told to anybody. A damaged record with another one behind it is an error. A log that has
grown, in a connection however long, is written anew as one record, beside the old one, and takes its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.checked import CheckedRecords
from penstock.base.disk import Disk, DiskFile
from penstock.base.errors import CorruptError
from penstock.connector.sink.ledger import Entry, Ledger

_RECORDS: Final = CheckedRecords(64 << 10)
_REWRITE_ABOVE: Final = 256 << 10

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Entry)


class TransactionLog:
    """The log and what it adds up to. One owner at a time; not for several threads at once."""

    def __init__(self, disk: Disk, path: Path) -> None:
        """Open, making it if it is new. What is read here is durable from then on."""
        self.path = path
        self.ledger = Ledger()
        self._disk = disk
        self._doubtful = False
        self._file = disk.open(path, create=True)
        try:
            self._file.sync()
            disk.sync_dir(path.parent)
            self._end = _loaded(self._file, self.ledger, path)
            self._file.truncate(self._end)
        except BaseException:
            self._file.close()
            raise

    def append(self, entry: Entry) -> None:
        """Durable on return. After one that failed the log is written anew: nobody knows what its end holds."""
        if self._doubtful or self._end > _REWRITE_ABOVE:
            self._rewrite()
        record = _encoded(entry)
        self._doubtful = True
        try:
            self._file.write_at(record, self._end)
            self._file.sync()
        except OSError:
            with contextlib.suppress(OSError):  # who opens it next would take it for durable
                self._file.truncate(self._end)
            raise
        self._doubtful = False
        self._end += len(record)
        self.ledger.apply(entry)

    def close(self) -> None:
        self._file.close()

    def _rewrite(self) -> None:
        content = _encoded(self.ledger.kept())
        self._disk.replace_file(self.path, content)
        self._file.close()
        self._file = self._disk.open(self.path)
        self._end, self._doubtful = len(content), False


def read_ledger(path: Path) -> Ledger:
    """The ledger of a log that somebody else may be writing."""
    ledger = Ledger()
    for _, entry in _entries(path.read_bytes(), path):
        ledger.apply(entry)
    return ledger


def _loaded(file: DiskFile, ledger: Ledger, path: Path) -> int:
    """Apply what the file holds; where its last whole record ends."""
    end = 0
    for after, entry in _entries(file.read_at(file.size(), 0), path):
        ledger.apply(entry)
        end = after
    return end


def _entries(content: bytes, path: Path) -> Iterator[tuple[int, Entry]]:
    """Each whole entry with where it ends."""
    at = 0
    for end, body in _RECORDS.walk(content):
        try:
            entry = _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise CorruptError(
                f"not a record of a transaction log ({error})", where=str(path), position=at,
                hint="it may be of a newer version",
            ) from None  # fmt: skip
        yield end, entry
        at = end
    if _RECORDS.is_followed(content, at):
        raise CorruptError(
            "a damaged record with others behind it",
            where=str(path),
            position=at,
            hint="restore the file from a copy: what it says of open transactions is lost",
        )


def _encoded(entry: Entry) -> bytes:
    return _RECORDS.encode(_encoder.encode(entry))
