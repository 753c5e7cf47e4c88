"""The bytes of a file or an object, from any place on, as they are or as they were before they were compressed.

Places count the bytes that a reader sees. Inside what is compressed one gets to a place by reading what is before it;
going on from the last place costs nothing.
"""

from __future__ import annotations

import hashlib
import io
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal

from penstock.base.errors import CorruptError

if TYPE_CHECKING:
    import pyarrow as pa

Codec = Literal["none", "gzip", "zstd"]

MARKED = 1024
"""Bytes at the front of a file, and in front of a place in it, of which a mark is made."""

_ENDINGS: dict[str, Codec] = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_STEP = 1 << 20
_GZIP, _ZSTD, _ZSTD_SKIPPABLE = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"
FRONT = 4
"""Bytes at the front of a file that tell how it is compressed."""


def codec_of(name: str) -> Codec:
    """How a file of this name is compressed."""
    return next((codec for ending, codec in _ENDINGS.items() if name.lower().endswith(ending)), "none")


def bare_name(name: str) -> str:
    """The name without what tells of compression."""
    return next((name[: -len(ending)] for ending in _ENDINGS if name.lower().endswith(ending)), name)


def codec_at(front: bytes) -> Codec:
    """How a file that begins so is compressed."""
    if front.startswith(_GZIP):
        return "gzip"
    return "zstd" if front.startswith(_ZSTD) or front[1:FRONT] == _ZSTD_SKIPPABLE else "none"


class Content(ABC):
    """Something that can be read at places."""

    name: str
    """What errors call it."""

    @abstractmethod
    def read_at(self, size: int, byte: int) -> bytes:
        """Up to `size` bytes from `byte` on; fewer only at the end."""

    @abstractmethod
    def size(self) -> int:
        """How many bytes there are now."""


class LocalContent(Content):
    """An open file of this machine."""

    def __init__(self, name: str, fd: int) -> None:
        self.name = name
        self._fd = fd

    def read_at(self, size: int, byte: int) -> bytes:
        return os.pread(self._fd, size, byte)

    def size(self) -> int:
        return os.fstat(self._fd).st_size


class Decompressed(Content):
    """What was compressed, whole files and nothing that still grows."""

    def __init__(self, inner: Content, codec: Codec) -> None:
        self.name = inner.name
        self._inner = inner
        self._codec = codec
        self._begin()

    def read_at(self, size: int, byte: int) -> bytes:
        if byte < self._start:
            self._begin()
        while byte + size > self._start + len(self._held) and (piece := self._more()):
            self._held += piece
            skipped = min(byte - self._start, len(self._held))
            if skipped > 0:
                del self._held[:skipped]
                self._start += skipped
        skipped = min(byte - self._start, len(self._held))
        del self._held[:skipped]
        self._start += skipped
        return bytes(self._held[:size]) if byte == self._start else b""

    def size(self) -> int:
        raise io.UnsupportedOperation("nobody knows before it was read")

    def _begin(self) -> None:
        import pyarrow as pa

        self._start = 0
        self._held = bytearray()
        self._stream = pa.CompressedInputStream(as_file(self._inner), self._codec)

    def _more(self) -> bytes:
        import pyarrow as pa

        try:
            piece: bytes = self._stream.read(_STEP)
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise CorruptError(
                f"not what {self._codec} has written, or cut off ({error})",
                where=self.name,
                position=self._start + len(self._held),
                hint="bring the whole file",
            ) from None
        return piece


class _File(io.RawIOBase):
    """A content as a file of Python's."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._at = 0
        self._size = content.size()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        wanted = self._size - self._at if size < 0 else min(size, self._size - self._at)
        parts = []
        while wanted > 0 and (part := self._content.read_at(wanted, self._at)):
            parts.append(part)
            wanted -= len(part)
            self._at += len(part)
        return b"".join(parts)


def as_file(content: Content) -> pa.PythonFile:
    """A content as Arrow reads files."""
    import pyarrow as pa

    return pa.PythonFile(_File(content), mode="r")


def mark_at(content: Content, byte: int) -> str:
    """A digest by which the part in front of `byte` is known again."""
    size = min(byte, MARKED)
    ends = content.read_at(size, 0) + content.read_at(size, byte - size)
    return hashlib.blake2b(ends, digest_size=8).hexdigest()


def mark_of_whole(content: Content) -> str:
    """A digest by which a file that does not grow is known again."""
    return f"{content.size()}-{mark_at(content, content.size())}"
