"""Messages of one stream that lie side by side, of any lengths, looked at together.

Where each begins is only known from the one before it, but most of the places are found at once, by the stream that all
of them name (`base.chained`). What is left is a walk, one step a message, as where a body looks like the head of one.
All else that a worker checks of a message is a column over those places (as in `alike`, where lengths are equal and
there is nothing to search for): tag and stream must be those of the first, the key must fit the frame, the ids must
grow.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.base import chained
from penstock.connector.frames import HEAD, HEAD_AFTER_LENGTH, NOTHING_SEEN, U32

LEAST: Final = 64
"""So many are looked at in the first place, and fewer one by one."""
MOST: Final = 1 << 12
_PROBED: Final = 4
_LENGTH, _TAG, _STREAM, _ID, _KEY = 0, 4, 5, 13, HEAD.size - 2
_MARK: Final = 9
"""Tag and stream."""
_SEARCHED: Final = 1 << 20
_LONG: Final = 4 << 10
"""Where frames are longer than that, a walk is nothing beside the bytes that would have to be searched."""


class Streak(NamedTuple):
    """How many messages are as they should be, the last of their ids, and where they end."""

    number: int
    last: int
    end: int


def begins(data: bytearray, at: int, end: int, most: int) -> NDArray[np.int64]:
    """Where the frames begin that are whole, as many as `most`, and where the last of them ends.

    Nothing if the first few are not of one stream: then a look at more of them is seldom worth it.
    """
    first, mark, places = at, data[at + _TAG : at + _TAG + _MARK], array("q")
    add, length, stop = places.append, U32.unpack_from, end - HEAD.size
    while at <= stop and len(places) < _PROBED and data.startswith(mark, at + _TAG):
        add(at)
        at += 4 + length(data, at)[0]
    if len(places) < _PROBED:
        return np.empty(0, np.int64)
    left = most - _PROBED
    usual = (at - first) // _PROBED
    if at <= stop and left >= LEAST // 2 and usual <= _LONG:
        searched = min(end, at + min(left * usual * 5 // 4, _SEARCHED))
        found = chained.alike(
            np.frombuffer(data, np.uint8), at, searched, HEAD.size, _STREAM,
            lambda places: places + 4 + _field(data, places, _LENGTH, ">u4"),
        )[:left]  # fmt: skip
        if found.size:
            places.frombytes(found.tobytes())
            left -= found.size
            at = int(found[-1])
            at += 4 + length(data, at)[0]
    while at <= stop and left:
        left -= 1
        add(at)
        at += 4 + length(data, at)[0]
    if at <= end:
        add(at)
    return np.frombuffer(places, np.int64)


def grown(data: bytearray, bounds: NDArray[np.int64], limit: int, last: int) -> Streak:
    """Of frames that begin at these places, and end at the last of them: those from the first on that are like it."""
    at, lengths = bounds[:-1], np.diff(bounds) - 4
    tags, streams = _field(data, at, _TAG, "u1"), _field(data, at, _STREAM, "=u8")
    ids = _field(data, at, _ID, ">u8").astype(np.uint64)
    fine = (tags == tags[0]) & (streams == streams[0]) & (lengths <= limit) & (ids != NOTHING_SEEN)
    fine &= lengths >= HEAD_AFTER_LENGTH + _field(data, at, _KEY, ">u2").astype(np.int64)
    fine[1:] &= ids[1:] > ids[:-1]
    fine[0] &= int(ids[0]) > last
    count = len(at) if fine.all() else int(fine.argmin())
    return Streak(count, int(ids[count - 1]) if count else last, int(bounds[count]))


def _field(data: bytearray, at: NDArray[np.int64], field: int, kind: str) -> NDArray[np.integer]:
    """A column: of each frame the value that stands `field` bytes behind its begin."""
    places = np.ndarray(len(data) - field - np.dtype(kind).itemsize + 1, kind, data, field, (1,))
    return places[at]
