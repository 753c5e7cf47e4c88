"""Slices of a buffer as Arrow columns, whatever the buffer is made of.

Texts are Arrow *views* into the buffer (16 bytes each: length, then the text itself up to 12 bytes, or its prefix and
place), which Arrow copies into an ordinary column in one go. So nothing that is returned refers to the buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.base.disk import Buffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]

_INLINE = 12


class Texts:
    """Slices of a buffer as columns."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._bytes = np.frombuffer(buffer, dtype=np.uint8)

    def items(self, at: Positions, kind: np.dtype[np.void]) -> NDArray[np.void]:
        """What stands at these places, each of which must be whole; as plain bytes, since those copy fastest."""
        shape = (max(len(self._bytes) - kind.itemsize + 1, 0),)
        raw = np.ndarray(shape, f"V{kind.itemsize}", self._bytes, strides=(1,))
        return raw[at].view(kind)

    def slice(self, begin: int, end: int) -> memoryview:
        return memoryview(self._buffer)[begin:end]

    def u32(self, at: Positions) -> Positions:
        shape = (max(len(self._bytes) - 3, 0),)
        everywhere: NDArray[np.uint32] = np.ndarray(shape, ">u4", self._bytes, strides=(1,))
        return everywhere[at].astype(np.int64)

    def strings(self, at: Positions, length: Positions) -> pa.Array:
        """A string column of these slices; a negative length is a null. ArrowInvalid if they are not UTF-8."""
        return self.binaries(at, length).cast(pa.string())

    def binaries(self, at: Positions, length: Positions) -> pa.Array:
        """A binary column of these slices; a negative length is a null."""
        return self._views(at, length, pa.binary_view()).cast(pa.binary())

    def known_strings(self, at: Positions, length: Positions) -> pa.Array:
        """A column (`large_string`) of slices that are known to be UTF-8, which nobody looks at again."""
        return self._views(at, length, pa.string_view()).cast(pa.large_string())

    def _views(self, at: Positions, length: Positions, kind: pa.DataType) -> pa.Array:
        views = np.zeros((len(at), 4), dtype=np.int32)
        views[:, 0] = np.maximum(length, 0)
        views[:, 3] = at
        short = length <= _INLINE
        if short.all():
            views[:, 1:] = self._inline(at, length)
        elif short.any():
            views[short, 1:] = self._inline(at[short], length[short])
        nulls = None
        if (length < 0).any():
            nulls = pa.py_buffer(np.packbits(length >= 0, bitorder="little"))
        buffers = [nulls, pa.py_buffer(views), pa.py_buffer(self._bytes)]
        return pa.Array.from_buffers(kind, len(at), buffers)

    def _inline(self, at: Positions, length: Positions) -> NDArray[np.int32]:
        """The texts themselves, filled up with zeros; those near the end of the buffer by themselves."""
        if len(self._bytes) < _INLINE:
            self._bytes = np.append(self._bytes, np.zeros(_INLINE, np.uint8))
        room = len(self._bytes) - _INLINE
        content = self.items(np.minimum(at, room), _TWELVE).view(np.int32).reshape(-1, 3)
        for i in np.flatnonzero(at > room):
            tail = bytes(self._bytes[at[i] :]).ljust(_INLINE, b"\0")
            content[i] = np.frombuffer(tail, np.int32)
        masked: NDArray[np.int32] = content & _MASKS[np.maximum(length, 0)]
        return masked


_TWELVE = np.dtype(f"V{_INLINE}")
_MASKS = np.tril(np.full((_INLINE + 1, _INLINE), 0xFF, np.uint8), -1).view(np.int32)
"""For each length up to 12, ones where the text is."""
