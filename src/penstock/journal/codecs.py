"""Compression of stored fragments (reference, 3 `CompressionCodec` and 19 "Codecs on disk").

Everything streams: no call holds more than a block of either side in memory, however large the fragment and
however well it was compressed. Damage is never taken for an end: input that is cut short or does not check
raises CorruptError with the position in the stored bytes. One cut is invisible from here, that between two
whole gzip members, zstandard frames or snappy chunks; whoever reads knows the fragment's length.

Content decompressed by the store itself (`GZIP_OFFLOAD_DECOMPRESSION`) is passed through.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from penstock.base.disk import Buffer
from penstock.base.errors import CorruptError, UsageError
from penstock.journal.fragment import Codec

if TYPE_CHECKING:
    from types import ModuleType


BLOCK = 1 << 18
GZIP_LEVEL = 1
WHERE = "a stored fragment"
_GZIP_FORMAT = 31  # zlib's number for a gzip header and trailer

_SNAPPY_HEADER = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_BLOCK = 1 << 16
_SNAPPY_LONGEST = 4 + 76490
"""The longest data chunk: a checksum, and what 64 KiB of the worst content become."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK = 1 << 17


def content_encoding(codec: Codec) -> str:
    """What a store is told about a file of this codec, for whoever fetches it over HTTP."""
    return "gzip" if codec is Codec.GZIP_OFFLOAD_DECOMPRESSION else ""


def compressed(codec: Codec, chunks: Iterable[Buffer]) -> Iterator[bytes]:
    """The stored form of `chunks`, as they come."""
    match codec:
        case Codec.NONE:
            return (bytes(chunk) for chunk in chunks)
        case Codec.GZIP | Codec.GZIP_OFFLOAD_DECOMPRESSION:
            return _gzip(chunks)
        case Codec.ZSTANDARD:
            return _zstd(_zstandard(), chunks)
        case Codec.SNAPPY:
            return _snap(_cramjam(), chunks)
    raise UsageError(f"nothing is stored with the codec {codec.name}")


def decompressed_chunks(
    codec: Codec, chunks: Iterable[Buffer], *, encoding: str = "gzip", where: str = WHERE
) -> Iterator[bytes]:
    """The content of stored `chunks` (of an HTTP body, say), in pieces of at most BLOCK bytes.

    `encoding` is the Content-Encoding that the store answered with. It matters to
    GZIP_OFFLOAD_DECOMPRESSION alone: without gzip in the answer, the store has decompressed already.
    """
    match codec:
        case Codec.NONE:
            return (bytes(chunk) for chunk in chunks)
        case Codec.GZIP_OFFLOAD_DECOMPRESSION if encoding != "gzip":
            return (bytes(chunk) for chunk in chunks)
        case Codec.GZIP | Codec.GZIP_OFFLOAD_DECOMPRESSION:
            return _gunzip(_Input(chunks, where))
        case Codec.ZSTANDARD:
            return _unzstd(_zstandard(), _Input(chunks, where))
        case Codec.SNAPPY:
            return _unsnap(_cramjam(), _Input(chunks, where))
    raise UsageError(f"nothing is stored with the codec {codec.name}")


def decompressed(codec: Codec, raw: BinaryIO, *, where: str = WHERE) -> BinaryIO:
    """The content of a stored file, for reading. Closing it closes `raw`.

    A failure stays: reading on after it raises it again.
    """
    if codec is Codec.NONE:
        return raw
    # Files of object stores know what the store answered; what is kept elsewhere is as it was written.
    encoding = getattr(raw, "content_encoding", "gzip")
    chunks = iter(lambda: raw.read(BLOCK), b"")
    content = decompressed_chunks(codec, chunks, encoding=encoding, where=where)
    return io.BufferedReader(_Content(content, raw.close), BLOCK)


class _Content(io.RawIOBase):
    """The read side over an iterator of pieces."""

    def __init__(self, pieces: Iterator[bytes], close: Callable[[], None]) -> None:
        self._pieces = pieces
        self._close = close
        self._piece = memoryview(b"")
        self._failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, target: Buffer) -> int:  # type: ignore[override]
        if self._failure is not None:
            raise self._failure
        try:
            while not self._piece:
                self._piece = memoryview(next(self._pieces))
        except StopIteration:
            return 0
        except Exception as error:
            self._failure = error  # an iterator that has failed would end quietly when asked again
            raise
        size = min(len(self._piece), len(target))
        memoryview(target)[:size] = self._piece[:size]
        self._piece = self._piece[size:]
        return size

    def close(self) -> None:
        if not self.closed:
            self._close()
        super().close()


class _Input:
    """Stored chunks as one run of bytes, taken by exact lengths; knows the position of what it gave last."""

    def __init__(self, chunks: Iterable[Buffer], where: str) -> None:
        self._chunks = iter(chunks)
        self._chunk = memoryview(b"")
        self._where = where
        self.position = 0
        self._end = 0

    def some(self) -> memoryview:
        """The rest of the chunk at hand, or the next one; empty at the end."""
        while not self._chunk:
            chunk = next(self._chunks, None)
            if chunk is None:
                self.position = self._end
                return self._chunk
            self._chunk = memoryview(chunk).cast("B")
        given, self._chunk = self._chunk, memoryview(b"")
        self.position, self._end = self._end, self._end + len(given)
        return given

    def back(self, rest: Buffer) -> None:
        """Return the unused end of what was given last."""
        self._chunk = memoryview(rest).cast("B")
        self._end -= len(self._chunk)

    def take(self, size: int) -> bytes:
        """Exactly `size` bytes."""
        start, taken = self._end, bytearray()
        while len(taken) < size:
            some = self.some()
            if not some:
                raise self.corrupt(f"the file ends here, {size - len(taken)} bytes early")
            wanted = size - len(taken)
            taken += some[:wanted]
            self.back(some[wanted:])
        self.position = start
        return bytes(taken)

    def at_end(self) -> bool:
        some = self.some()
        self.back(some)
        return not some

    def corrupt(self, what: str) -> CorruptError:
        return CorruptError(what, where=self._where, position=self.position)


def _regrouped(chunks: Iterable[Buffer], size: int) -> Iterator[memoryview]:
    """The same bytes in pieces of `size`, the last one shorter: tiny chunks compress badly, huge ones at once."""
    kept = bytearray()
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while view:
            if not kept and len(view) >= size:
                yield view[:size]
                view = view[size:]
                continue
            wanted = size - len(kept)
            kept += view[:wanted]
            view = view[wanted:]
            if len(kept) == size:
                yield memoryview(kept)
                kept = bytearray()
    if kept:
        yield memoryview(kept)


def _gzip(chunks: Iterable[Buffer]) -> Iterator[bytes]:
    member = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)
    for block in _regrouped(chunks, BLOCK):
        if out := member.compress(block):
            yield out
    yield member.flush()


def _gunzip(stored: _Input) -> Iterator[bytes]:
    if stored.at_end():
        raise stored.corrupt("the file is empty; expected a gzip member")
    while not stored.at_end():
        yield from _gunzip_member(stored)


def _gunzip_member(stored: _Input) -> Iterator[bytes]:
    member = zlib.decompressobj(_GZIP_FORMAT)
    data, full = b"", False
    while not member.eof:
        if not data and not full:
            data = bytes(stored.some())
            if not data:
                raise stored.corrupt("the file ends inside this part of a gzip member")
        try:
            out = member.decompress(data, BLOCK)
        except zlib.error as error:
            raise stored.corrupt(f"not a gzip member, or damaged: {error}") from None
        data = member.unconsumed_tail
        full = len(out) == BLOCK  # zlib may hold more output though it has taken all input
        if out:
            yield out
    stored.back(member.unused_data)


def _zstd(zstandard: ModuleType, chunks: Iterable[Buffer]) -> Iterator[bytes]:
    frame = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    for block in _regrouped(chunks, BLOCK):
        if out := frame.compress(block):
            yield out
    yield frame.flush()


def _unzstd(zstandard: ModuleType, stored: _Input) -> Iterator[bytes]:
    if stored.at_end():
        raise stored.corrupt("the file is empty; expected a zstandard frame")
    while not stored.at_end():
        magic = stored.take(4)
        if magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5:
            _skip(stored, int.from_bytes(stored.take(4), "little"))
        elif magic == _ZSTD_MAGIC:
            yield from _unzstd_frame(zstandard, stored)
        else:
            raise stored.corrupt(f"expected a zstandard frame, found {magic.hex()}")


def _unzstd_frame(zstandard: ModuleType, stored: _Input) -> Iterator[bytes]:
    """One frame, a block at a time: the library alone would expand all the input it is given at once.

    A frame is a header of a descriptor byte and what that byte announces, then blocks (3 bytes: 1 bit "last",
    2 bits kind, 21 bits size), then a checksum if the descriptor says so.
    """
    frame = zstandard.ZstdDecompressor().decompressobj()
    descriptor = stored.take(1)[0]
    single = descriptor >> 5 & 1
    size_of_size = (single, 2, 4, 8)[descriptor >> 6]
    rest = stored.take(1 - single + (0, 1, 2, 4)[descriptor & 3] + size_of_size)
    pending, last = _ZSTD_MAGIC + bytes((descriptor,)) + rest, False
    while not last:
        block = stored.take(3)
        header = int.from_bytes(block, "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if size > _ZSTD_BLOCK:
            raise stored.corrupt(f"a zstandard block of {size} bytes; at most {_ZSTD_BLOCK} are allowed")
        pending += block + stored.take(1 if kind == 1 else size)
        if last and descriptor >> 2 & 1:
            pending += stored.take(4)
        try:
            out = frame.decompress(pending)
        except zstandard.ZstdError as error:
            raise stored.corrupt(f"damaged zstandard frame: {error}") from None
        pending = b""
        if out:
            yield out
    if not frame.eof:
        raise stored.corrupt("the last block did not complete the zstandard frame")


def _snap(cramjam: ModuleType, chunks: Iterable[Buffer]) -> Iterator[bytes]:
    yield _SNAPPY_HEADER
    for block in _regrouped(chunks, _SNAPPY_BLOCK):
        yield bytes(cramjam.snappy.compress(block))[len(_SNAPPY_HEADER) :]


def _unsnap(cramjam: ModuleType, stored: _Input) -> Iterator[bytes]:
    """The framing format: chunks of 1 byte kind, 3 bytes length, and that many bytes.

    Kinds 0x00 and 0x01 are data with a checksum, which the library verifies; 0x80 to 0xfe may be skipped; 0xff
    is the header, at the start and wherever two files were joined; the rest must be refused.
    """
    if stored.take(len(_SNAPPY_HEADER)) != _SNAPPY_HEADER:
        raise stored.corrupt("expected the header of a framed snappy stream")
    while not stored.at_end():
        head = stored.take(4)
        kind, size = head[0], int.from_bytes(head[1:], "little")
        if 0x80 <= kind < 0xFF:
            _skip(stored, size)
            continue
        if kind not in (0x00, 0x01, 0xFF) or size > _SNAPPY_LONGEST:
            raise stored.corrupt(f"unknown snappy chunk of kind 0x{kind:02x} and {size} bytes")
        chunk = head + stored.take(size)
        try:
            out = bytes(cramjam.snappy.decompress(_SNAPPY_HEADER + chunk))
        except cramjam.DecompressionError as error:
            raise stored.corrupt(f"damaged snappy chunk: {error}") from None
        if out:
            yield out


def _skip(stored: _Input, size: int) -> None:
    while size:
        size -= len(stored.take(min(size, BLOCK)))


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise _missing(Codec.ZSTANDARD) from error
    return zstandard


def _cramjam() -> ModuleType:
    try:
        import cramjam
    except ImportError as error:
        raise _missing(Codec.SNAPPY) from error
    return cramjam


def _missing(codec: Codec) -> UsageError:
    return UsageError(
        f"fragments of the codec {codec.name} need a package that is not installed",
        hint="pip install 'penstock[broker]'",
    )
