"""What a worker reads from one connection: runs of messages, taken whole from the bytes that came, and other frames.

Messages are most of what comes. They are looked at in one pass over the buffer, without an object for each: tag, stream
and id, against the last id of the stream; where many in a row are of one stream, all at once (`alike`, `streak`). Those
that are new stay in `Run.pieces` where they were received, ready for the log; a message that was seen before (its id is
not above the last one) ends a piece and is left out. Whatever is no message on an open stream is handed out as a frame,
for the session to judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from penstock.connector import streak
from penstock.connector.alike import LEAST, grown, likely
from penstock.connector.buffers import SIZE, Buffers
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

_HEAD: Final = Struct(">I9sQ8xH")
"""As `frames.HEAD`, tag and stream in one, and without the time, which is nothing to a worker."""
_UNPACK_HEAD = _HEAD.unpack_from
_SMALLEST: Final = _HEAD.size
_NO_STREAM: Final = -1
_NO_PARTITION: Final = -1
_WHILE: Final = 32 << 10
"""Bytes that are read message by message before it is looked whether those that follow are alike."""
_LENGTH: Final = 4
_SMALL: Final = 32 << 10
"""The buffer of a connection that sends little."""
_FEW: Final = _SMALL // 2
"""There is room for so many bytes at least; whoever sends as many at once gets a large buffer."""
_WORTH_KEEPING: Final = SIZE // 8
"""Less than this is copied out of a large buffer, rather than have it wait for the log with all that is around it."""
LONGEST_HELLO: Final = 1 + 5 * (2 + SHORT_LIMIT)
"""What a peer that has shown no cookie yet may make us keep, however long frames may be later."""
_TLS: Final = b"\x16\x03"
"""So begins whoever speaks TLS."""
_FRESH: Final = -1
"""In `Intake.last`: nothing was seen of this stream."""


class Greeting(NamedTuple):
    """A HELLO of which no more was looked at than shows whether to look further."""

    version: str
    cookie: bytes
    payload: memoryview


class Run:
    """Messages of one partition that came in a row: `spent` of them, `count` new.

    `lasts` has the last new id of each stream.
    """

    __slots__ = ("count", "lasts", "partition", "pieces", "size", "spent")

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []
        self.lasts: dict[int, int] = {}
        self.partition = _NO_PARTITION
        self.count = 0
        self.spent = 0
        self.size = 0


class Intake:
    """The bytes of one connection. `last` has the last id of every stream that is open on it; -1: none yet."""

    def __init__(self, limit: int = MAX_FRAME, buffers: Buffers | None = None) -> None:
        self.limit = limit
        self.last: dict[int, int] = {}
        self._partition: dict[int, int] = {}
        self._buffers = buffers or Buffers()
        self._wanted = 0
        self._data = bytearray()
        """What came, from `_at` to `_end` not looked at yet; new bytes go behind that, so the others never move."""
        self._at = self._end = 0
        self._flows = False
        """Whether much came last time."""
        self._stretch = streak.LEAST
        """How many messages are looked at together next; 0: none, for once."""
        self._piece = 0
        """Where the new messages begin that are not in the run's pieces yet."""

    def open(self, stream: int, point: int, partition: int = 0) -> None:
        """Messages of this stream are taken from now on, those behind `point`."""
        self.last[stream] = _FRESH if point == NOTHING_SEEN else point
        self._partition[stream] = partition

    def close(self, stream: int) -> int:
        """No more messages of this stream; its last id."""
        last = self.last.pop(stream)
        del self._partition[stream]
        return NOTHING_SEEN if last == _FRESH else last

    def room(self) -> memoryview:
        """Where the next bytes are to be put; `filled` is told how many were."""
        missing = self._at + self._wanted - self._end
        least = min(missing, _FEW) if self._wanted > _LENGTH else _FEW
        if len(self._data) - self._end < least:
            self._renew()
        return memoryview(self._data)[self._end :]

    def filled(self, count: int) -> None:
        """So many bytes were put into `room`; `items` has what they hold."""
        self._end += count
        self._wanted = 0
        self._flows = count >= _FEW

    def _renew(self) -> None:
        """Another buffer. For a frame that fits none it grows as its bytes come, so what is announced costs nothing."""
        rest = memoryview(self._data)[self._at : self._end]
        size = max(min(2 * len(rest), self._wanted), len(rest) + _FEW, _SMALL)
        large = self.last and size <= SIZE and (self._flows or size > _SMALL)
        data = self._buffers.take() if large else bytearray(size)
        data[: len(rest)] = rest
        self._data, self._at, self._end = data, 0, len(rest)

    @property
    def pending(self) -> int:
        """Bytes that no item has been made of."""
        return self._end - self._at

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
                break
            yield frame
        used_up = len(self._data) - self._end < _FEW
        if self._at == self._end and (used_up or not self._flows) and len(self._data) > _SMALL:
            self._data, self._at, self._end = bytearray(), 0, 0  # others have more use for it

    def payload(self, limit: int | None = None) -> memoryview | None:
        """The next frame as it came, tag first; None if it is not complete."""
        limit = self.limit if limit is None else limit
        data, at, have = self._data, self._at, self._end - self._at
        if have < _LENGTH:
            self._wanted = _LENGTH
            return None
        length = int.from_bytes(data[at : at + _LENGTH], "big")
        if length == 0:
            raise FrameError("a frame of length 0")
        if length > limit:
            raise FrameError(f"a frame of {length:,} bytes, the limit is {limit:,}")
        if have < _LENGTH + length:
            self._wanted = _LENGTH + length
            return None
        self._at = at + _LENGTH + length
        return memoryview(data)[at + _LENGTH : self._at]

    def greeting(self) -> Greeting | Frame | None:
        """What a HELLO says, or the frame that came in its place; None if it is not complete."""
        if self._data.startswith(_TLS, self._at, self._end):  # as a length, far above any limit
            raise FrameError("this looks like TLS, and this worker has no certificate")
        payload = self.payload(LONGEST_HELLO)
        if payload is None:
            return None
        return frame_of(payload) if payload[0] != Tag.HELLO else Greeting(*greeting_of(payload), payload)

    def _frame(self) -> Frame | None:
        payload = self.payload()
        return None if payload is None else frame_of(payload)

    def _run(self) -> Run | None:
        """All messages from here on that need no judging."""
        run = Run()
        begin = self._piece = self._at
        while self._take_alike(run) or self._take_streak(run) or self._take(run):
            pass
        if self._at == begin:
            return None
        self._end_piece(run, self._at)
        run.size = sum(map(len, run.pieces))
        if 0 < run.size < _WORTH_KEEPING and len(self._data) > _SMALL:
            run.pieces = [memoryview(b"".join(run.pieces))]
        return run

    def _take_alike(self, run: Run) -> bool:
        """Many new messages at once, if they are of one stream and length; False if there are few or none here.

        Where the guess was that far off, those behind them are read one by one: it may be as far off there.
        """
        data, at = self._data, self._at
        if self._end - at < LEAST * _SMALLEST:
            return False
        stride, count = likely(data, at, self._end)
        if not count:
            return False
        length, mark, _, _ = _UNPACK_HEAD(data, at)
        stream = self._stream_of(mark, run)
        if stream is None or length > self.limit:
            return False
        count, last = grown(data, at, stride, count, self.last[stream])
        if not count:
            return False
        run.spent += count
        run.count += count
        self.last[stream] = run.lasts[stream] = last
        self._at = at + count * stride
        return count >= LEAST

    def _take_streak(self, run: Run) -> bool:
        """Some new messages of one stream at once, of any lengths; False if there are none here.

        More each time, while it is worth it. After it was not, the next ones are read one by one for a while.
        """
        data, at, stretch = self._data, self._at, self._stretch
        self._stretch = streak.LEAST
        if not stretch or self._end - at < streak.LEAST * _SMALLEST:
            return False
        _, mark, number, _ = _UNPACK_HEAD(data, at)
        stream = self._stream_of(mark, run)
        if stream is None or number <= self.last[stream]:
            return False
        places = streak.begins(data, at, self._end, stretch)
        if len(places) <= streak.LEAST // 2:
            return False
        count, last, end = streak.grown(data, places, self.limit, self.last[stream])
        self._stretch = min(2 * stretch, streak.MOST) if count == len(places) - 1 else 0
        if not count:
            return False
        run.spent += count
        run.count += count
        self.last[stream] = run.lasts[stream] = last
        self._at = end
        return True

    def _take(self, run: Run) -> bool:
        """Messages, one by one, for a while; False if the next one is not there, or is to be judged.

        Messages of all lengths pass here, so this is kept tight.
        """
        data, at, end, limit = self._data, self._at, self._end, self.limit
        stop = min(end - _SMALLEST + 1, at + _WHILE)
        current, stream, last = b"", _NO_STREAM, _FRESH
        spent = dropped = 0
        more = False
        while at < stop:
            length, mark, number, key = _UNPACK_HEAD(data, at)
            if mark != current:
                self._reached(stream, last, run)
                found = self._stream_of(mark, run)
                if found is None:
                    stream = _NO_STREAM
                    break
                current, stream, last = mark, found, self.last[found]
            behind = at + 4 + length
            if behind > end or length > limit or length < HEAD_AFTER_LENGTH + key:
                break
            if last < number < NOTHING_SEEN:
                last = number
            elif number == NOTHING_SEEN:
                break
            else:
                dropped += 1
                self._end_piece(run, at)
                self._piece = behind
            spent += 1
            at = behind
        else:
            more = spent > 0
        self._reached(stream, last, run)
        run.spent += spent
        run.count += spent - dropped
        self._at = at
        return more

    def _stream_of(self, mark: bytes, run: Run) -> int | None:
        """The stream of a message that begins with this, if it is open and of the run's partition."""
        stream = int.from_bytes(mark[1:], "big")
        if mark[0] != Tag.MESSAGE or stream not in self.last:
            return None
        partition = self._partition[stream]
        if run.partition == _NO_PARTITION:
            run.partition = partition
        return stream if partition == run.partition else None

    def _end_piece(self, run: Run, at: int) -> None:
        if self._piece < at:
            run.pieces.append(memoryview(self._data)[self._piece : at])

    def _reached(self, stream: int, last: int, run: Run) -> None:
        if stream != _NO_STREAM and last != self.last[stream]:
            self.last[stream] = run.lasts[stream] = last
