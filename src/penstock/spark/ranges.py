"""Ranges of a journal: what a task is given to read, and how its bytes come.

Tasks read stored fragments and the committed part of spools from their files, where these lie on the same machine; if
a file has gone (a spool moves into the store), they ask again, and what is in no local file comes through the broker.
A range was committed when it was planned: a broker that has less of the journal than that is waited for, since it may
be a replica that is behind, but not for ever, since the journal may have been set back.

Bytes pass through a `Window`, one buffer that is filled again and again, so that a range of any size costs the same
memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from penstock.base.errors import PenstockError
from penstock.spark.access import Access
from penstock.spark.options import DataLossError

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds for which a broker may have less of a journal than was planned."""

WINDOW = 2 << 20
"""Small enough that what was read is still in the processor's cache when it is decoded."""


def set_back(journal: str, head: int, end: int) -> PenstockError:
    """What is wrong with a journal that has ended at `head` for too long, though it had the bytes up to `end`."""
    return PenstockError(
        f"journal {journal} ends at byte {head}; it had the bytes up to {end} before",
        hint="its head was set back, or its brokers are far behind each other; start the query anew",
    )


class LocalFile(NamedTuple):
    """Bytes [begin, end) of a journal as they are, from `position` on in a file of this machine."""

    begin: int
    end: int
    path: str
    position: int


class JournalRange(InputPartition):
    """What one task reads: bytes [begin, end) of a journal, and the files they lay in at planning."""

    def __init__(self, journal: str, begin: int, end: int, files: Sequence[LocalFile] = ()) -> None:
        super().__init__((begin, end))
        self.journal = journal
        self.begin = begin
        self.end = end
        self.files = tuple(files)


class CompactedRange(InputPartition):
    """Messages [first, last] of a commit log, as far as compaction has kept them."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__((first, last))
        self.first = first
        self.last = last


def locate(access: Access, journal: str, begin: int, end: int) -> list[LocalFile]:
    """The local files with these bytes, as far as they are not compressed.

    A broker that is reached by TCP may be on another machine, where the same path is another file: none then.
    """
    from penstock.journal.fragment import Codec

    if not access.address.startswith("unix:"):
        return []
    spans = access.client().locate(journal, begin, end)
    return [
        LocalFile(span.begin, span.end, str(span.path), span.position)
        for span in spans
        if span.codec is Codec.NONE
    ]


class RangeReader:
    """The bytes of a range, in order. `position` is where the next one lies in the journal."""

    def __init__(self, access: Access, wanted: JournalRange, *, skip_lost: bool = False) -> None:
        self.journal = wanted.journal
        self.position = wanted.begin
        self._end = wanted.end
        self._access = access
        self._files: Sequence[LocalFile] = wanted.files
        self._skip_lost = skip_lost
        self._file: FileIO | None = None
        self._file_end = 0
        self._damaged = False
        self._broker: Iterator[tuple[int, bytes]] | None = None
        self._rest = memoryview(b"")
        self._lacking_since: float | None = None

    def readinto(self, target: memoryview) -> int:
        """Fill some of `target`; 0 at the end. Bytes that are gone are an error, or jumped if so asked.

        After a jump `position` is beyond where it was expected; nothing was read then, and 0 is not the end.
        """
        while self.position < self._end:
            if self._broker is None and self._file is None and not self._open():
                self._broker = self._access.client().read(self.journal, self.position, self._end)
            if self._file is not None:
                size = self._from_file(target)
            else:
                before = self.position
                size = self._from_broker(target)
                if self.position != before + size:
                    return 0
            if size:
                return size
        return 0

    @property
    def ended(self) -> bool:
        return self.position >= self._end

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._broker = None

    def _open(self) -> bool:
        """Open the file that has the next byte, if there is one; look it up anew once."""
        if self._damaged:
            return False
        for files in (self._files, None):
            if files is None:
                self._files = files = locate(self._access, self.journal, self.position, self._end)
            for file in files:
                if file.begin <= self.position < file.end:
                    try:
                        self._file = FileIO(file.path)
                    except OSError:
                        break
                    self._file.seek(file.position + self.position - file.begin)
                    self._file_end = min(file.end, self._end)
                    return True
        return False

    def _from_file(self, target: memoryview) -> int:
        assert self._file is not None
        size = self._file.readinto(target[: self._file_end - self.position]) or 0
        self.position += size
        if not size or self.position >= self._file_end:
            self._file.close()
            self._file = None
        if not size:
            self._damaged = (
                True  # shorter than it was told to be: the broker knows more, or says what is wrong
            )
        return size

    def _from_broker(self, target: memoryview) -> int:
        if not self._rest:
            self._next_of_broker()
            return 0
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        self.position += size
        return size

    def _next_of_broker(self) -> None:
        from penstock.journal.client import HoleError

        assert self._broker is not None
        try:
            offset, chunk = next(self._broker)
        except StopIteration:
            self._broker = None
            self._wait_for_more()
            return
        except HoleError as error:
            raise DataLossError(self.journal, error.offset, self._end) from None
        if offset != self.position:
            if not self._skip_lost:
                raise DataLossError(self.journal, self.position, offset)
            log.warning("journal %s: bytes %d to %d are gone", self.journal, self.position, offset)
            self.position = offset
        self._rest = memoryview(chunk)
        self._lacking_since = None

    def _wait_for_more(self) -> None:
        """The broker's journal ends before the range does."""
        now = time.monotonic()
        if self._lacking_since is None:
            self._lacking_since = now
        elif now - self._lacking_since > PATIENCE:
            raise set_back(self.journal, self.position, self._end)
        time.sleep(0.05)


class Window:
    """A buffer through which a range passes. What was not consumed stays in front of what comes next."""

    def __init__(self, reader: RangeReader, limit: int, size: int = WINDOW) -> None:
        """`limit` is the most that may stay unconsumed: the largest thing that a decoder waits for."""
        self._reader = reader
        self._limit = limit
        self._size = size
        self._buffer = bytearray(size)
        self._filled = 0
        self.base = reader.position
        """Where the window begins in the journal."""

    @property
    def view(self) -> memoryview:
        """What is there. Valid until the next `fill`, and nothing that is kept may refer to it."""
        return memoryview(self._buffer)[: self._filled]

    def consume(self, size: int) -> None:
        """Say how many bytes of the front are done with."""
        rest = bytes(self.view[size:])
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)
        self.base += size

    def fill(self) -> bool:
        """Get more bytes; False at the end of the range, with what is left over in `view`."""
        if self._filled >= len(self._buffer):
            self._grow()
        while True:
            size = self._reader.readinto(memoryview(self._buffer)[self._filled :])
            if self._reader.position != self.base + self._filled + size:
                self._filled, self.base = (
                    0,
                    self._reader.position,
                )  # behind lost bytes, with nothing of before
                continue
            self._filled += size
            return size > 0

    def _grow(self) -> None:
        if self._filled > self._limit:
            raise PenstockError(
                f"journal {self._reader.journal}: from byte {self.base} on {self._filled:,} bytes do not end, "
                f"the limit is {self._limit:,}",
                hint="raise maxLineBytes, or read the journal as content=raw",
            )
        larger = bytearray(2 * len(self._buffer))
        larger[: self._filled] = self._buffer[: self._filled]
        self._buffer = larger
