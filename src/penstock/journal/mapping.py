"""From a stream of records to journals: how a stream is cut into records, and which journal each goes to
(reference, 25 "Framings" and "Mappings").

Mappings look at the journals of a listing, in the order of their names. `modulo` and `rendezvous` send equal keys
to the same journal; when journals are added, `rendezvous` moves the fewest keys. Pure, but for reading the stream
it is given.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import BinaryIO, NamedTuple

from penstock.base.errors import CorruptError, UsageError, did_you_mean

MAX_RECORD = 64 << 20
_FEW = 20

_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193

# A fixed frame: the magic word, the payload's length, little-endian, and the payload.
_MAGIC = bytes.fromhex("66339336")
_HEADER = struct.Struct("<4sI")


class Frame(NamedTuple):
    """A record as it is appended, and what is inside."""

    record: bytes
    payload: bytes


def lines(stream: BinaryIO, where: str) -> Iterator[Frame]:
    """Lines. One at the end without a newline gets one, so that nothing is ever glued to it."""
    position = 0
    while line := stream.readline(MAX_RECORD + 1):
        if len(line) > MAX_RECORD:
            raise CorruptError(f"a line of more than {MAX_RECORD >> 20} MiB", where=where, position=position)
        position += len(line)
        payload = line.removesuffix(b"\n")
        yield Frame(payload + b"\n", payload)


def fixed_frames(stream: BinaryIO, where: str) -> Iterator[Frame]:
    """Frames with a header that tells their length."""
    position = 0
    while header := _exactly(stream, _HEADER.size, where, position):
        magic, length = _HEADER.unpack(header)
        if magic != _MAGIC:
            raise CorruptError(
                f"expected a frame, which begins with {_MAGIC.hex()} (found {magic.hex()})",
                where=where,
                position=position,
            )
        if length > MAX_RECORD:
            raise CorruptError(f"a frame of more than {MAX_RECORD >> 20} MiB", where=where, position=position)
        payload = _exactly(stream, length, where, position + _HEADER.size)
        if len(payload) < length:
            raise _cut_short(length, 0, where, position + _HEADER.size)
        yield Frame(header + payload, payload)
        position += _HEADER.size + length


def fixed_frame(payload: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, len(payload)) + payload


def _exactly(stream: BinaryIO, size: int, where: str, position: int) -> bytes:
    """So many bytes; none at the end of the stream."""
    chunks: list[bytes] = []
    missing = size
    while missing and (chunk := stream.read(missing)):
        chunks.append(chunk)
        missing -= len(chunk)
    if chunks and missing:
        raise _cut_short(size, size - missing, where, position)
    return b"".join(chunks)


def _cut_short(size: int, found: int, where: str, position: int) -> CorruptError:
    return CorruptError(f"cut short: {found} of {size} bytes of a frame", where=where, position=position)


# Mappings: the journal of a key.

Choose = Callable[[bytes, Sequence[str]], str]


def fnv1a(data: bytes) -> int:
    """FNV-1a of 32 bits."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def modulo(key: bytes, journals: Sequence[str]) -> str:
    return journals[fnv1a(key) % len(journals)]


def rendezvous(key: bytes, journals: Sequence[str]) -> str:
    """The first of the journals whose hash, mixed with the key's, is the largest."""
    hashed = fnv1a(key)
    return max(journals, key=lambda name: hashed ^ _hash_of(name))


@lru_cache(maxsize=1 << 16)
def _hash_of(name: str) -> int:
    return fnv1a(name.encode())


def direct(key: bytes, journals: Sequence[str]) -> str:
    """The key is the journal's name."""
    name = key.decode(errors="replace")
    at = bisect_left(journals, name)
    if at == len(journals) or journals[at] != name:
        suggestion = did_you_mean(name, journals) if len(journals) <= _FEW else ""
        raise UsageError(
            f"a record is for the journal '{name}', which is not among those selected{suggestion}"
        )
    return name
