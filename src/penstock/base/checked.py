"""Records of a file that is only appended to, each synced by itself.

    length u32 | crc32 of the body u32 | body                                              big-endian

So no more than the last one can be torn, and it was never told to anybody: whoever opens the file cuts it off. A
damaged record that another one follows is something else: the disk has lost what it had confirmed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct

_HEAD = Struct(">II")


class CheckedRecords:
    """The layout, for bodies of up to `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most

    def encode(self, body: bytes) -> bytes:
        return _HEAD.pack(len(body), zlib.crc32(body)) + body

    def walk(self, content: bytes) -> Iterator[tuple[int, bytes]]:
        """Each whole body, with where its record ends; up to the first that is not whole."""
        at = 0
        while (body := self._body_at(content, at)) is not None:
            at += _HEAD.size + len(body)
            yield at, body

    def is_followed(self, content: bytes, at: int) -> bool:
        """Whether a whole record begins where the damaged one at `at` says that it ends."""
        if at + _HEAD.size > len(content):
            return False
        length, _ = _HEAD.unpack_from(content, at)
        return 0 < length <= self._most and self._body_at(content, at + _HEAD.size + length) is not None

    def _body_at(self, content: bytes, at: int) -> bytes | None:
        if at + _HEAD.size > len(content):
            return None
        length, crc = _HEAD.unpack_from(content, at)
        start = at + _HEAD.size
        body = content[start : start + length]
        if not 0 < length <= self._most or len(body) < length or zlib.crc32(body) != crc:
            return None
        return body
