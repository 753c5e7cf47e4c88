"""For storages that keep rows: the bytes of a worker are lines, each line is a row.

Bytes wait in a spool of a few megabytes of memory, then of a temporary file, until PHASE1 says that they are all there;
only then the rows go to the store, in one transaction of its own. A store that `feeds` gets them while more are on
their way. A transaction that ends within a line is refused, which is a vote to abort. What an author writes works on
rows alone: `stage`, `publish`, `drop`, `staged`, `retire`.
"""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Iterator
from typing import Final

from penstock.base.errors import RefusedError
from penstock.connector.sink.storage import Storage, Transaction

IN_MEMORY: Final = 8 << 20
FEED: Final = 1 << 20
"""Bytes that are fed at once."""
_READ: Final = 1 << 20

Row = tuple[int, bytes]
"""The offset of a line's first byte, and the line without its newline."""


class RowStorage(Storage):
    """The rows of one worker."""

    def __init__(self) -> None:
        self._spool = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - closed by `close`
        self._start = self._end = self._fed = 0

    @property
    def feeds(self) -> bool:
        """Whether `feed` is to be called."""
        return False

    def feed(self, rows: Iterator[Row]) -> None:
        """Take rows ahead of `stage`, which gets the rest; gone with `drop`, and when the connection ends."""

    @abstractmethod
    def staged(self, committed: int, prepared: Transaction | None) -> bool:
        """Drop what is staged, except `prepared`; whether that is there, staged or published.

        Raises `CorruptError` if the store has less than `committed`.
        """

    @abstractmethod
    def stage(self, transaction: Transaction, rows: Iterator[Row]) -> None:
        """Keep the rows, durably, where nobody sees them; `RefusedError` for what the store will never take."""

    @abstractmethod
    def publish(self, transaction: Transaction) -> None:
        """Show them; does nothing if they are shown already."""

    @abstractmethod
    def drop(self) -> None:
        """Forget what is staged."""

    def recover(self, committed: int, prepared: Transaction | None) -> int:
        there = self.staged(committed, prepared)
        end = committed if prepared is None or not there else prepared.end
        self._empty(end)
        return end

    def write(self, offset: int, data: memoryview) -> None:
        self._spool.seek(offset - self._start)
        self._spool.write(data)
        self._end = offset + len(data)
        if self.feeds and self._end - self._fed >= FEED and b"\n" in bytes(data):
            self.feed(self._rows())

    def holds(self, offset: int, data: memoryview) -> bool:
        if offset < self._start or offset + len(data) > self._end:
            return False
        self._spool.seek(offset - self._start)
        return self._spool.read(len(data)) == data

    def prepare(self, transaction: Transaction) -> None:
        if self._end > self._start:
            self._spool.seek(self._end - self._start - 1)
            if self._spool.read(1) != b"\n":
                raise RefusedError(f"the bytes up to {transaction.end} end within a line")
        self.stage(transaction, self._rows())

    def commit(self, transaction: Transaction) -> None:
        self.publish(transaction)
        self._empty(transaction.end)

    def discard(self, offset: int) -> None:
        self.drop()
        self._empty(offset)

    def close(self) -> None:
        self._spool.close()

    def once_more(self) -> Iterator[Row]:
        """All lines since the last decision, also those that were handed on before."""
        self._fed = self._start
        return self._rows()

    def _rows(self) -> Iterator[Row]:
        """The lines that were not handed on before."""
        self._spool.seek(self._fed - self._start)
        rest = b""
        while chunk := self._spool.read(_READ):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield self._fed, line
                self._fed += len(line) + 1

    def _empty(self, offset: int) -> None:
        self._spool.seek(0)
        self._spool.truncate()
        self._start = self._end = self._fed = offset
