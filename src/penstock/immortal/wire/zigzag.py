"""ZigZag integers: the sign in the lowest bit, then base 128, low group first, high bit = "more" (seed 002).

    n >= 0   z = 2n          n < 0   z = -2n - 1

Ints take 1 to 5 bytes, longs 1 to 10; a value in reach of both is the same bytes as either. The shortest form is always
written. Padded forms are read, as others read them; too many bytes, or a value that does not fit, is an error.
"""

from __future__ import annotations

from penstock.base.disk import Buffer
from penstock.base.errors import CorruptError

INT_BYTES, LONG_BYTES = 5, 10
_INT_MAX, _LONG_MAX = (1 << 32) - 1, (1 << 64) - 1
_SMALL = tuple(bytes([z]) for z in range(0x80))


class CorruptWireError(CorruptError):
    """Bytes that do not read as what the protocol allows at this place."""

    def __init__(self, what: str, *, position: int, where: str = "message") -> None:
        super().__init__(what, where=where, position=position)


class ShortWireError(CorruptWireError):
    """The bytes end inside a field; of a stream, more may come."""


def _encode(z: int) -> bytes:
    if z < 0x80:
        return _SMALL[z]
    out = bytearray()
    while z >= 0x80:
        out.append(z & 0x7F | 0x80)
        z >>= 7
    out.append(z)
    return bytes(out)


def encode_int(n: int) -> bytes:
    """The bytes of a ZigZagInt."""
    z = n << 1 if n >= 0 else (-n << 1) - 1
    if z > _INT_MAX:
        raise ValueError(f"{n} does not fit in 32 bits")
    return _SMALL[z] if z < 0x80 else _encode(z)


def encode_long(n: int) -> bytes:
    """The bytes of a ZigZagLong."""
    z = n << 1 if n >= 0 else (-n << 1) - 1
    if z > _LONG_MAX:
        raise ValueError(f"{n} does not fit in 64 bits")
    return _encode(z)


def decode_int(data: Buffer, position: int) -> tuple[int, int]:
    """The ZigZagInt at `position`, and where it ends."""
    return _decode(data, position, INT_BYTES, _INT_MAX)


def decode_long(data: Buffer, position: int) -> tuple[int, int]:
    """The ZigZagLong at `position`, and where it ends."""
    return _decode(data, position, LONG_BYTES, _LONG_MAX)


def _decode(data: Buffer, position: int, most: int, largest: int) -> tuple[int, int]:
    z = shift = 0
    for at in range(position, min(position + most, len(data))):
        byte = data[at]
        z |= (byte & 0x7F) << shift
        if byte < 0x80:
            if z > largest:
                raise CorruptWireError(f"an integer that does not fit in {most} groups", position=position)
            return (z >> 1) ^ -(z & 1), at + 1
        shift += 7
    if position + most > len(data):
        raise ShortWireError("the bytes end inside an integer", position=position)
    raise CorruptWireError(f"an integer of more than {most} bytes", position=position)
