"""Messages of one length and one stream that lie side by side, looked at all at once.

Records of a fixed layout make frames of equal length. Then every head is as far from the one before it as the first two
are from each other, and what a worker checks of each message is a column: the bytes up to the id must be those of the
first, the key must fit the frame, the ids must grow. Nothing is taken on trust: `grown` looks at every head, and tells
how many of them are as they should be.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from penstock.connector.frames import HEAD, HEAD_AFTER_LENGTH, NOTHING_SEEN, U32

LEAST: Final = 64
"""Fewer than this are looked at faster one by one."""
MOST: Final = 1 << 14
_PROBED: Final = 5 + 8
"""Length, tag and stream."""
_LENGTH_AND_TAG, _STREAM, _ID, _KEY = 0, 5, 13, HEAD.size - 2


@lru_cache(64)
def _heads(stride: int) -> np.dtype[np.void]:
    """A frame of `stride` bytes as columns. The first two are only ever compared, so their order does not matter."""
    return np.dtype(
        {
            "names": ["begin", "stream", "id", "key"],
            "formats": ["=u8", "=u8", ">u8", ">u2"],
            "offsets": [_LENGTH_AND_TAG, _STREAM, _ID, _KEY],
            "itemsize": stride,
        }
    )


def likely(data: bytes | bytearray, at: int, end: int) -> tuple[int, int]:
    """How long the frame at `at` is, its own length included, and how many there may be like it up to `end`.

    None if there are fewer than `LEAST`.

    A guess from some of the heads, which costs next to nothing where frames differ.
    """
    stride = 4 + U32.unpack_from(data, at)[0]
    count = min((end - at) // stride, MOST)
    if count < LEAST or stride < HEAD.size:
        return stride, 0
    head = data[at : at + _PROBED]
    for probe in (1, 2, 3, count // 2, count - 1):
        if not data.startswith(head, at + probe * stride):
            return stride, 0
    return stride, count


def grown(data: bytes | bytearray, at: int, stride: int, count: int, last: int) -> tuple[int, int]:
    """Of `count` frames of `stride` bytes: how many from the first on are like it, with ids that grow from `last` on.

    And the last of those ids. The first frame's tag, stream and length are for the caller to judge.
    """
    heads = np.frombuffer(data, _heads(stride), count, at)
    begin, stream, key = heads["begin"], heads["stream"], heads["key"]
    ids = heads["id"].astype(np.uint64)
    fine = (begin == begin[0]) & (stream == stream[0]) & (key <= stride - 4 - HEAD_AFTER_LENGTH)
    fine[1:] &= ids[1:] > ids[:-1]
    fine[0] &= int(ids[0]) > last
    reached = count if fine.all() else int(fine.argmin())
    if reached and ids[reached - 1] == NOTHING_SEEN:
        reached -= 1  # they grow, so none before it is
    return reached, int(ids[reached - 1]) if reached else last
