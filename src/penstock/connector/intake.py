"""What a worker reads from one connection: runs of messages, taken whole from the bytes that came, and other frames.

Messages are most of what comes. They are looked at in one pass over the buffer, without an object for each: tag, stream
and id, against the last id of the stream. Those that are new stay in `Run.pieces` as they came, ready for the log; a
message that was seen before (its id is not above the last one) ends a piece and is left out. Whatever is no message on
an open stream is handed out as a frame, for the session to judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from penstock.connector.frames import (
    HEAD_AFTER_LENGTH,
    MAX_FRAME,
    NOTHING_SEEN,
    SHORT_LIMIT,
    Frame,
    FrameError,
    Tag,
    frame_of,
    greeting_of,
)
from penstock.connector.session import IllegalFrameError

_HEAD: Final = Struct(">IBQQ8xH")
"""As `frames.HEAD`, without the time, which is nothing to a worker."""
_UNPACK_HEAD = _HEAD.unpack_from
_SMALLEST: Final = _HEAD.size
_NO_STREAM: Final = -1
LONGEST_HELLO: Final = 1 + 5 * (2 + SHORT_LIMIT)
"""What a peer that has shown no cookie yet may make us keep."""
_FRESH: Final = -1
"""In `Intake.last`: nothing was seen of this stream."""


class Run:
    """Messages of one partition that came in a row: `spent` of them, `count` new.

    `lasts` has the last new id of each stream.
    """

    __slots__ = ("count", "lasts", "partition", "pieces", "size", "spent")

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []
        self.lasts: dict[int, int] = {}
        self.partition = 0
        self.count = 0
        self.spent = 0
        self.size = 0


class Intake:
    """The bytes of one connection. `last` has the last id of every stream that is open on it; -1: none yet."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self.last: dict[int, int] = {}
        self._partition: dict[int, int] = {}
        self._part = bytearray()
        self._wanted = 0
        self._data = b""
        self._at = 0

    def open(self, stream: int, point: int, partition: int = 0) -> None:
        """Messages of this stream are taken from now on, those behind `point`."""
        self.last[stream] = _FRESH if point == NOTHING_SEEN else point
        self._partition[stream] = partition

    def close(self, stream: int) -> int:
        """No more messages of this stream; its last id."""
        last = self.last.pop(stream)
        del self._partition[stream]
        return NOTHING_SEEN if last == _FRESH else last

    def feed(self, data: bytes) -> None:
        """Bytes that came; `items` has what they hold. `data` must not change afterwards."""
        if self._part or self._at < len(self._data):
            if not self._part:
                self._part = bytearray(memoryview(self._data)[self._at :])
            self._part += data
            self._data, self._at = b"", 0
            if len(self._part) < self._wanted:
                return
            data, self._part = bytes(self._part), bytearray()
        self._data, self._at, self._wanted = data, 0, 0

    @property
    def pending(self) -> int:
        """Bytes that no item has been made of."""
        return len(self._part) + len(self._data) - self._at

    def items(self) -> Iterator[Run | Frame]:
        """What can be made of the bytes now. Raises `FrameError` where they are no frames.

        What comes after a frame is looked at only when the next item is asked for, so that the frame may open or
        close streams first.
        """
        while True:
            while (run := self._run()) is not None:
                yield run
            frame = self._frame()
            if frame is None:
                return
            yield frame

    def payload(self, limit: int | None = None) -> memoryview | None:
        """The next frame as it came, tag first; None if it is not complete."""
        limit = self.limit if limit is None else min(limit, self.limit)
        data, at, have = self._data, self._at, len(self._data) - self._at
        if have < 4:
            self._wanted = 4
            return None
        length = int.from_bytes(data[at : at + 4], "big")
        if length == 0:
            raise FrameError("a frame of length 0")
        if length > limit:
            raise FrameError(f"a frame of {length:,} bytes, the limit is {limit:,}")
        if have < 4 + length:
            self._wanted = 4 + length
            return None
        self._at = at + 4 + length
        return memoryview(data)[at + 4 : self._at]

    def greeting(self) -> tuple[str, bytes, memoryview] | None:
        """Version, cookie and all of the first frame, which must be a HELLO; None if it is not complete."""
        payload = self.payload(LONGEST_HELLO)
        if payload is None:
            return None
        if payload[0] != Tag.HELLO:
            frame_of(payload)
            raise IllegalFrameError(f"Bad protocol FSM state: {Tag(payload[0]).name} before HELLO")
        return *greeting_of(payload), payload

    def _frame(self) -> Frame | None:
        payload = self.payload()
        return None if payload is None else frame_of(payload)

    def _run(self) -> Run | None:
        """All messages from here on that need no judging. Every message passes here, so this is kept tight."""
        data, at, end, limit = self._data, self._at, len(self._data), self.limit
        known, partition, message = self.last, self._partition, Tag.MESSAGE.value
        begin = piece = at
        run = Run()
        current, last = _NO_STREAM, _FRESH
        spent = dropped = 0
        while end - at >= _SMALLEST:
            length, tag, stream, number, key = _UNPACK_HEAD(data, at)
            if stream != current:
                if stream not in known:
                    break
                if current == _NO_STREAM:
                    run.partition = partition[stream]
                elif partition[stream] == run.partition:
                    self._reached(current, last, run)
                else:
                    break
                current, last = stream, known[stream]
            behind = at + 4 + length
            if (
                tag != message
                or behind > end
                or length > limit
                or length < HEAD_AFTER_LENGTH + key
                or number == NOTHING_SEEN
            ):
                break
            spent += 1
            if number > last:
                last = number
            else:
                dropped += 1
                if piece < at:
                    run.pieces.append(memoryview(data)[piece:at])
                piece = behind
            at = behind
        if at == begin:
            return None
        self._reached(current, last, run)
        if piece < at:
            run.pieces.append(memoryview(data)[piece:at])
        run.size = sum(map(len, run.pieces))
        run.count, run.spent = spent - dropped, spent
        self._at = at
        return run

    def _reached(self, stream: int, last: int, run: Run) -> None:
        if last != self.last[stream]:
            self.last[stream] = run.lasts[stream] = last
