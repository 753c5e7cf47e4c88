"""What stands in the journal of a connector instance: the frames that came, as they came, and a few of ours.

      3 NOTIFY        a stream was opened for the first time: its name
      5 MESSAGE       a message, once
      8 EOS_MESSAGE   the stream ended here, behind its last message
    240 CLAIM         a worker took the journal over: short name of the worker
    241 POINTS        what is durable so far: u32 n | n x (u64 stream, u64 last id, u8 ended, short name)

So a message is not written anew on its way into the log, and whoever knows the protocol can read it. Every append holds
whole frames, hence each fragment of the journal begins with one. POINTS repeats what stands before it; it is written
every few MiB, so that finding the points of reference means reading the end of the log and not all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from penstock.base.errors import CorruptError
from penstock.connector.frames import (
    HEAD,
    HEAD_AFTER_LENGTH,
    NOTHING_SEEN,
    TAG,
    U32,
    U64,
    Cursor,
    FrameError,
    Tag,
    short,
)

FORMAT: Final = 1
FORMAT_LABEL: Final = "penstock.dev/connector-format"
INSTANCE_LABEL: Final = "penstock.dev/connector"
PLACE_LABEL: Final = "penstock.dev/connector-place"
"""Of a directory of workers: what it is known by."""
MAX_RECORD: Final = 64 << 20
"""Longer frames are in no journal of ours: it would be damaged."""

_POINT = Struct(">QQB")
_UNPACK_HEAD = HEAD.unpack_from


class Mark(IntEnum):
    """Tags of frames that are only ever in a journal."""

    CLAIM = 240
    POINTS = 241


class Point(NamedTuple):
    """What is durable of a stream: the last id (`NOTHING_SEEN` if none), whether it has ended since, its name."""

    last: int = NOTHING_SEEN
    ended: bool = False
    name: str = ""


Points = dict[int, Point]


class CorruptJournalError(CorruptError):
    """Bytes of a connector's journal that are not its frames."""


def claim(worker: str) -> bytes:
    """The record of a claim."""
    body = short(worker.encode(), "a worker's name")
    return TAG.pack(len(body) + 1, Mark.CLAIM) + body


def points(known: Points) -> bytes:
    """The record that repeats all points of reference."""
    entries: Iterable[bytes] = (
        _POINT.pack(stream, point.last, point.ended) + short(point.name.encode(), "a stream's name")
        for stream, point in known.items()
    )
    body = U32.pack(len(known)) + b"".join(entries)
    return TAG.pack(len(body) + 1, Mark.POINTS) + body


def point_size(name: str) -> int:
    """What a stream of this name takes of the record of all points."""
    return _POINT.size + 2 + len(name.encode())


class Walk:
    """Goes through the bytes of a journal and keeps the points of reference; feed it from a frame's beginning."""

    def __init__(self, journal: str, at: int, known: Points | None = None) -> None:
        self.journal = journal
        self.at = at
        self.points: Points = {} if known is None else known
        self.complete = at == 0
        """Whether every stream of the journal is known: from its very beginning, or since a POINTS record."""
        self._rest = b""
        self._lasts: dict[int, int] = {}

    def feed(self, data: bytes) -> None:
        """More bytes, from where the last ones ended."""
        data = self._rest + data if self._rest else data
        at, end, lasts, start = 0, len(data), self._lasts, self.at
        while end - at >= TAG.size:
            length, tag = TAG.unpack_from(data, at)
            if not 0 < length <= MAX_RECORD:
                raise CorruptJournalError(
                    f"a frame of {length} bytes", where=self.journal, position=start + at
                )
            behind = at + 4 + length
            if behind > end:
                break
            if tag == Tag.MESSAGE and length >= HEAD_AFTER_LENGTH:
                _, _, stream, number, _, _ = _UNPACK_HEAD(data, at)
                lasts[stream] = number
            else:
                self._settle()
                try:
                    self._other(tag, memoryview(data)[at + 4 : behind])
                except FrameError as error:
                    raise CorruptJournalError(error.what, where=self.journal, position=start + at) from None
            at = behind
        self._settle()
        self._rest = data[at:]
        self.at = start + at

    def finish(self) -> Points:
        """The points, once all was fed."""
        if self._rest:
            raise CorruptJournalError("a frame that does not end", where=self.journal, position=self.at)
        return self.points

    def _settle(self) -> None:
        for stream, number in self._lasts.items():
            known = self.points.get(stream)
            self.points[stream] = Point(number, False, known.name if known is not None else "")
        self._lasts.clear()

    def _other(self, tag: int, payload: memoryview) -> None:
        cursor = Cursor(payload, f"frame {tag}")
        if tag == Tag.NOTIFY:
            stream, name = cursor.unpack(U64)[0], cursor.text()
            known = self.points.get(stream, Point())
            self.points[stream] = known._replace(name=name)
        elif tag == Tag.EOS_MESSAGE:
            stream = cursor.unpack(U64)[0]
            self.points[stream] = self.points.get(stream, Point())._replace(ended=True)
        elif tag == Mark.POINTS:
            self.points.clear()
            for _ in range(cursor.count(_POINT.size + 2)):
                stream, last, ended = cursor.unpack(_POINT)
                self.points[stream] = Point(last, bool(ended), cursor.text())
            self.complete = True
        elif tag != Mark.CLAIM:
            raise FrameError(f"no frame of a journal has the tag {tag}")
