"""Messages of one stream that lie side by side, of any lengths, looked at together.

Where each begins is only known from the one before it: a walk, one step a message. The bytes that all of them share,
tag and stream, show most of the places at once, though: where one of these bytes occurs, with the others around it, and
each such place is where the frame at the one before it ends, the walk would have gone the same way. It goes on where
they do not agree, as where a body looks like the head of a message. All else that a worker checks of a message is a
column over those places (as in `alike`, where lengths are equal and there is nothing to search for): tag and stream
must be those of the first, the key must fit the frame, the ids must grow.
"""

from __future__ import annotations

import sys
from array import array
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.connector.frames import HEAD, HEAD_AFTER_LENGTH, NOTHING_SEEN, U32

LEAST: Final = 64
"""So many are looked at in the first place, and fewer one by one."""
MOST: Final = 1 << 12
_PROBED: Final = 4
_LENGTH, _TAG, _STREAM, _ID, _KEY = 0, 4, 5, 13, HEAD.size - 2
_MARK: Final = 9
"""Tag and stream."""
_SAMPLE: Final = 1 << 10
"""Bytes that show which of the mark's is seldom met elsewhere."""
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
        found = _found(data, at, searched, mark)[:left]
        if found.size and found[0] == at:
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


def _found(data: bytearray, at: int, end: int, mark: bytearray) -> NDArray[np.int64]:
    """Where heads with this mark are, as long as each begins where the frame of the one before it ends."""
    heads = end - at - HEAD.size + 1
    if heads <= 0:
        return np.empty(0, np.int64)
    seen = np.bincount(np.frombuffer(data, np.uint8, min(end - at, _SAMPLE), at), minlength=256)
    rare = min(range(_MARK), key=lambda place: int(seen[mark[place]]))
    places: NDArray[np.int64] = (
        np.flatnonzero(np.frombuffer(data, np.uint8, heads, at + _TAG + rare) == mark[rare]) + at
    )
    stream = int.from_bytes(mark[1:], sys.byteorder)
    places = places[
        (_field(data, places, _STREAM, "=u8") == stream) & (_field(data, places, _TAG, "u1") == mark[0])
    ]
    ends = places + 4 + _field(data, places, _LENGTH, ">u4")
    apart = np.flatnonzero(places[1:] != ends[:-1])
    return places[: apart[0] + 1] if apart.size else places


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
