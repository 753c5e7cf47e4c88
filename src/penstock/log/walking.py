"""Walking over the records of a journal: in order, in bounded memory, from one record border to another.

Most walks look at a record or two, so the first step is small; those that go on take larger and larger steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from penstock.base.errors import CorruptError
from penstock.journal.client import Client, HoleError
from penstock.log import record as rec
from penstock.log.journals import read_whole
from penstock.log.message import ByteOffset, MessageOffset
from penstock.log.positions import LogPoint
from penstock.log.record import Record
from penstock.log.units import Borders, mark_at

FIRST_CHUNK = 32 << 10
CHUNK = 4 << 20

T = TypeVar("T")


def chunks(
    client: Client, journal: str, begin: int, end: int, split: Callable[[bytes, str, int], tuple[T, int]]
) -> Iterator[tuple[int, bytes, T]]:
    """Bytes [begin, end), both being record borders, a buffer at a time: its byte, the buffer, and what `split` says.

    `split` gets a buffer that begins with a record, the journal and the buffer's place in it. It returns what
    it found in the whole records, and how many bytes they take; the rest is looked at again with the next buffer.
    """
    carry, position, size = b"", begin, FIRST_CHUNK
    while position + len(carry) < end:
        at = position + len(carry)
        try:
            buffer = carry + read_whole(client, journal, at, min(end, at + size))
        except HoleError as error:
            raise CorruptError(
                f"bytes up to {end} are missing", where=journal, position=error.offset
            ) from None
        found, consumed = split(buffer, journal, position)
        yield position, buffer, found
        position += consumed
        carry = buffer[consumed:]
        size = min(4 * size, CHUNK)
    if carry:
        raise CorruptError("a record that does not end", where=journal, position=position)


def walk(client: Client, journal: str, begin: int, end: int) -> Iterator[tuple[int, Record]]:
    """The records in bytes [begin, end), with their byte offsets."""
    for position, buffer, starts in chunks(client, journal, begin, end, rec.boundaries):
        for start in starts:
            yield position + start, rec.decode(buffer, start, journal, position)


def borders(client: Client, journal: str, begin: int, end: int) -> Iterator[LogPoint]:
    """The borders between records of bytes [begin, end) that lie outside of units, behind the first message."""
    outside, upcoming = Borders(), -1
    for position, buffer, starts in chunks(client, journal, begin, end, rec.boundaries):
        for start in starts:
            byte = position + start
            if upcoming >= 0 and outside.outside(byte):
                yield LogPoint(MessageOffset(upcoming), ByteOffset(byte))
            offset = rec.offset_at(buffer, start)
            upcoming = offset + 1 if offset >= 0 else upcoming
            mark = mark_at(buffer, start, journal, position) if offset < 0 else None
            if mark is not None:
                outside.see(byte + rec.length_at(buffer, start), mark)


def places(client: Client, journal: str, begin: int, end: int) -> Iterator[LogPoint]:
    """The messages in bytes [begin, end): each at its record, or at the mark of the unit that it begins."""
    marked = -1
    for position, buffer, starts in chunks(client, journal, begin, end, rec.boundaries):
        for start in starts:
            offset = rec.offset_at(buffer, start)
            if offset >= 0:
                byte = marked if marked >= 0 else position + start
                yield LogPoint(MessageOffset(offset), ByteOffset(byte))
                marked = -1
            elif marked < 0 and mark_at(buffer, start, journal, position) is not None:
                marked = position + start


def offsets(client: Client, journal: str, begin: int, end: int) -> Iterator[tuple[int, int, bytes, int]]:
    """The messages in bytes [begin, end), undecoded: offset, byte, and in which buffer they are, and where in it."""
    for position, buffer, starts in chunks(client, journal, begin, end, rec.boundaries):
        for start in starts:
            offset = rec.offset_at(buffer, start)
            if offset >= 0:
                yield offset, position + start, buffer, start
