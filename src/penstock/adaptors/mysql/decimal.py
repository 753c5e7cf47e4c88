"""MySQL's binary decimals: nine digits in four bytes, the rest in as few as it takes, big endian.

The first bit is the sign, turned over; of a number below zero all other bits are turned over too. So bytes sort as
numbers.
"""

from __future__ import annotations

from collections.abc import Callable

_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes that so many digits of a decimal take."""


def decimal_at(precision: int, scale: int) -> Callable[[bytes, int], tuple[bytes, int]]:
    """Reads decimals of this kind: given bytes and a place, the text and the place behind it."""
    whole, rest = divmod(precision - scale, 9)
    groups = [rest] * bool(rest) + [9] * whole
    after, rest = divmod(scale, 9)
    fraction = [9] * after + [rest] * bool(rest)
    size = sum(_DIGITS[count] for count in (*groups, *fraction))

    def take(data: bytes, place: int) -> tuple[bytes, int]:
        raw = bytearray(data[place : place + size])
        negative = not raw[0] & 0x80
        raw[0] ^= 0x80
        if negative:
            raw = bytearray(byte ^ 0xFF for byte in raw)
        at, parts = 0, []
        for count in (*groups, *fraction):
            width = _DIGITS[count]
            parts.append(b"%0*d" % (count, int.from_bytes(raw[at : at + width], "big")))
            at += width
        front = b"".join(parts[: len(groups)]).lstrip(b"0") or b"0"
        back = b"." + b"".join(parts[len(groups) :]) if fraction else b""
        sign = b"-" if negative and (front != b"0" or back.strip(b".0")) else b""
        return sign + front + back, place + size

    return take
