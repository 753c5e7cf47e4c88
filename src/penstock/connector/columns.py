"""Many messages of a stream at once, in columns: what `read` may give instead of a list of records, and their bytes.

    Columns(range(1, 1001), lines)                      ids and bodies
    Columns(ids, bodies, keys=keys, times=times)        as lists, ranges or arrays of numpy

A list of records costs an object and a call for each message. Here a column is looked at as a whole, and the frames are
one join: the head of a MESSAGE stands between the bodies, alike before each, and then lengths, ids, times and lengths
of keys are written into the places where they differ. The bytes are those that the records would make, one by one.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from penstock.connector.frames import HEAD, HEAD_AFTER_LENGTH, SHORT_LIMIT, Tag, Unsendable
from penstock.connector.stream import Record

NOT_BYTES: Final = "bodies and keys are bytes, or views whose items are bytes"
Numbers: TypeAlias = "Sequence[int] | NDArray[np.integer]"
_Column: TypeAlias = "NDArray[np.integer]"

_U64: Final = np.dtype(np.uint64)
_I64: Final = np.dtype(np.int64)
_LENGTH, _ID, _TIME, _KEY = 0, 13, 21, HEAD.size - 2
"""Where the fields of a head stand that differ from message to message."""


def sizes_of(values: Sequence[bytes]) -> NDArray[np.int64]:
    """How long each of them is."""
    return np.fromiter(map(len, values), np.int64, len(values))


class Columns(Sequence[Record]):
    """Messages as columns of one length; a part of them is columns again, and one of them a `Record`."""

    __slots__ = ("bodies", "ids", "keys", "sizes", "times")

    def __init__(
        self,
        ids: Numbers,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[bytes] | None = None,
        times: Numbers | None = None,
        sizes: NDArray[np.int64] | None = None,
    ) -> None:
        """`sizes`: how long the bodies are, for those who know. Raises `Unsendable` for what fits no column."""
        count = len(bodies)
        for what, column in (("ids", ids), ("keys", keys), ("times", times), ("sizes", sizes)):
            if column is not None and len(column) != count:
                raise Unsendable(f"{count:,} bodies and {len(column):,} {what} make no columns")
        self.ids = _column(ids, _U64, "ids")
        self.bodies = bodies
        self.keys = keys
        self.times = None if times is None else _column(times, _I64, "times")
        self.sizes = sizes_of(bodies) if sizes is None else sizes

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, at: int) -> Record: ...

    @overload
    def __getitem__(self, at: slice) -> Columns: ...

    def __getitem__(self, at: int | slice) -> Record | Columns:
        keys, times = self.keys, self.times
        if isinstance(at, slice):
            return Columns(
                self.ids[at],
                self.bodies[at],
                keys=None if keys is None else keys[at],
                times=None if times is None else times[at],
                sizes=self.sizes[at],
            )
        time = 0 if times is None else int(times[at])
        return Record(int(self.ids[at]), self.bodies[at], b"" if keys is None else keys[at], time)

    def too_large(self, limit: int) -> int | None:
        """The id of the first message that fits no frame of `limit`."""
        bad = self.sizes > limit - HEAD_AFTER_LENGTH
        if self.keys is not None:
            keys = sizes_of(self.keys)
            bad = (self.sizes + keys > limit - HEAD_AFTER_LENGTH) | (keys > SHORT_LIMIT)
        return int(self.ids[bad.argmax()]) if bad.any() else None

    def parts(self, size: int) -> Iterator[Columns]:
        """The same in parts whose frames have about so many bytes."""
        rest = self.sizes if self.keys is None else self.sizes + sizes_of(self.keys)
        behind, at = np.cumsum(rest + HEAD.size), 0
        while at < len(self):
            before = int(behind[at - 1]) if at else 0
            end = max(at + 1, int(np.searchsorted(behind, before + size, "right")))
            yield self if end - at == len(self) else self[at:end]
            at = end

    def encoded(self, stream: int) -> bytearray:
        """The frames of all messages, one behind the other."""
        rest, bodies = self.sizes, self.bodies
        if self.keys is not None:
            keys = sizes_of(self.keys)
            rest, bodies = rest + keys, list(map(b"".join, zip(self.keys, bodies, strict=True)))
        frames = bytearray(HEAD.pack(0, Tag.MESSAGE, stream, 0, 0, 0)).join((b"", *bodies))
        behind = np.cumsum(rest + HEAD.size)
        if len(frames) != (behind[-1] if len(self) else 0):
            raise Unsendable(NOT_BYTES)
        begins = behind - rest - HEAD.size
        _write(frames, begins, _LENGTH, ">u4", rest + HEAD_AFTER_LENGTH)
        _write(frames, begins, _ID, ">u8", self.ids)
        if self.times is not None:
            _write(frames, begins, _TIME, ">i8", self.times)
        if self.keys is not None:
            _write(frames, begins, _KEY, ">u2", keys)
        return frames


def _column(values: Numbers, kind: np.dtype[np.integer], what: str) -> _Column:
    """As an array of that type. Nothing is rounded or wrapped around: what does not fit is refused."""
    if isinstance(values, np.ndarray) and values.dtype == kind:
        return values
    if isinstance(values, range) and values:
        ends = (values[0], values[-1], abs(values.step))
        if all(0 <= number < 1 << 63 for number in ends):  # numpy takes what is beyond for floats
            return (values[0] + np.arange(len(values)) * values.step).astype(kind)
    try:
        listed = values.tolist() if isinstance(values, np.ndarray) else values
        if isinstance(listed, (bytes, bytearray)):
            listed = list(listed)  # an array would take them for its memory
        return np.frombuffer(array("Q" if kind == _U64 else "q", listed), kind)
    except (OverflowError, TypeError) as error:
        odd = next(
            (f"{value!r} at place {at}" for at, value in enumerate(listed) if not _fits(value, kind)), error
        )
        raise Unsendable(f"{what} that are no whole numbers of 64 bits: {odd}") from None


def _fits(value: object, kind: np.dtype[np.integer]) -> bool:
    limits = np.iinfo(kind)
    try:
        return int(limits.min) <= operator.index(value) <= int(limits.max)  # type: ignore[arg-type]
    except TypeError:
        return False


def _write(frames: bytearray, begins: _Column, field: int, kind: str, values: _Column) -> None:
    """Put a column into the frames, each value `field` bytes behind the begin of its frame."""
    if len(begins):
        size = np.dtype(kind).itemsize
        # Every byte is the first of a place for such a value; the values go to some of them.
        places = np.ndarray(len(frames) - field - size + 1, kind, frames, field, (1,))
        places[begins] = values
