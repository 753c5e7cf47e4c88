"""What the decoders of both directions share: a stream that is cut anywhere, with blobs between its parts.

A blob is not gathered: its bytes are handed on as they come, whatever its length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from penstock.base.disk import Buffer
from penstock.immortal.wire.zigzag import CorruptWireError, decode_long

PartT = TypeVar("PartT")


class Blob(NamedTuple):
    """A piece of the blob that was announced last; `left` bytes of it are still to come.

    A blob of no bytes is one empty piece, so that every blob ends with a piece of which nothing is left.
    """

    piece: bytes
    left: int


def checkpoint_length(data: Buffer, *, fixed: bool = False) -> int:
    """The length that a Checkpoint message announces; `fixed`: as eight bytes, the way of old bindings."""
    if fixed and len(data) == 8:
        length, end = int.from_bytes(data, "little", signed=True), 8
    else:
        length, end = decode_long(data, 0)
    if end != len(data) or length < 0:
        raise CorruptWireError(f"a checkpoint of {length} bytes, announced in {len(data)} bytes", position=0)
    return length


class Decoder(ABC, Generic[PartT]):
    """Parts and blobs out of a stream. What a part is, `_part` knows; it calls `_begin_blob` when one follows."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left: int | None = None
        self._position = 0

    @property
    def is_between(self) -> bool:
        """Whether the stream may end here: nothing has begun that is not whole."""
        return not self._buffer and self._left is None

    def feed(self, data: Buffer) -> list[PartT | Blob]:
        """What is whole with these bytes."""
        events: list[PartT | Blob] = []
        if self._left is not None and not self._buffer:
            taken = self._take_blob(data, events.append)
            self._position += taken
            data = memoryview(data)[taken:]
        self._buffer += data
        with memoryview(self._buffer) as view:
            used = self._walk(view, events.append)
        del self._buffer[:used]
        self._position += used
        return events

    def _walk(self, view: memoryview, out: Callable[[PartT | Blob], None]) -> int:
        at = 0
        while at < len(view) or self._left == 0:
            if self._left is not None:
                at += self._take_blob(view[at:], out)
                continue
            if (found := self._part(view, at)) is None:
                break
            part, at = found
            out(part)
        return at

    def _take_blob(self, data: Buffer, out: Callable[[PartT | Blob], None]) -> int:
        """Hand on what the front of `data` holds of the open blob; how much that is."""
        assert self._left is not None
        taken = min(self._left, len(data))
        left = self._left - taken
        self._left = left or None
        out(Blob(bytes(data[:taken]), left))
        return taken

    def _begin_blob(self, length: int) -> None:
        self._left = length

    @abstractmethod
    def _part(self, view: memoryview, at: int) -> tuple[PartT, int] | None:
        """The part that begins at `at`, and where it ends; None if it is not whole."""
