"""MySQL's binary JSON, as it stands in the binlog, made into the text of the same document.

    document        type u8 | value
    object, array   count | size | [a key for each: place, length u16] | an entry for each: type u8, value or place | …
                    numbers of 2 bytes if the type is small, of 4 if it is large; places count from behind the type
    literal         0 null, 1 true, 2 false                integers and double   little endian
    string          length (7 bits a byte, low first) | UTF-8
    opaque          type u8 of a column | length | value: a decimal, a date, a time, or bytes

What has no JSON of its own is printed as the server prints it: dates and times with six digits, bytes as
`base64:type15:…`.
"""

from __future__ import annotations

import base64
import struct

import msgspec

from penstock.adaptors.mysql.binlog import BinlogError
from penstock.adaptors.mysql.decimal import decimal_at

_LITERALS = {0: b"null", 1: b"true", 2: b"false"}
_NUMBERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q", 11: "<d"}
_INLINE = {4, 5, 6}
_SMALL = {0: (False, True), 1: (True, True), 2: (False, False), 3: (True, False)}
"""Of each kind of container: whether it is large, and an object."""


def json_text(data: bytes) -> bytes:
    """The text of a document; empty bytes are what an empty column holds."""
    if not data:
        return b"null"
    try:
        return _value(data[0], data, 1)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise BinlogError(f"a JSON document that does not read: {error}") from None


def _value(kind: int, data: bytes, place: int) -> bytes:
    if kind in _SMALL:
        return _container(kind, data[place:])
    if kind == 4:
        return _LITERALS[data[place]]
    if kind in _NUMBERS:
        (number,) = struct.unpack_from(_NUMBERS[kind], data, place)
        return msgspec.json.encode(number)
    if kind == 12:
        length, place = _length(data, place)
        return msgspec.json.encode(data[place : place + length].decode())
    if kind == 15:
        length, start = _length(data, place + 1)
        return _opaque(data[place], data[start : start + length])
    raise BinlogError(f"a JSON value of the type {kind}, which is not known")


def _container(kind: int, data: bytes) -> bytes:
    large, is_object = _SMALL[kind]
    width = 4 if large else 2
    count = _number(data, 0, width)
    place = 2 * width
    names = []
    for _ in range(count if is_object else 0):
        start = _number(data, place, width)
        names.append(data[start : start + _number(data, place + width, 2)])
        place += width + 2
    values = []
    for _ in range(count):
        inside = data[place]
        here = inside in _INLINE or (large and inside in (7, 8))
        values.append(_value(inside, data, place + 1 if here else _number(data, place + 1, width)))
        place += 1 + width
    if not is_object:
        return b"[" + b",".join(values) + b"]"
    shown = [msgspec.json.encode(name.decode()) for name in names]
    return b"{" + b",".join(name + b":" + value for name, value in zip(shown, values, strict=True)) + b"}"


def _number(data: bytes, place: int, width: int) -> int:
    if place + width > len(data):
        raise IndexError("a number behind the end")
    return int.from_bytes(data[place : place + width], "little")


def _length(data: bytes, place: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        found |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not data[place - 1] & 0x80:
            return found, place


def _opaque(kind: int, value: bytes) -> bytes:
    if kind == 246:
        return decimal_at(value[0], value[1])(value, 2)[0]
    if kind in (7, 10, 12):
        return _moment(kind, int.from_bytes(value, "little"))
    if kind == 11:
        packed = int.from_bytes(value, "little", signed=True)
        sign, packed = ("-", -packed) if packed < 0 else ("", packed)
        whole, micro = packed >> 24, packed & 0xFFFFFF
        return f'"{sign}{whole >> 12 & 1023:02}:{whole >> 6 & 63:02}:{whole & 63:02}.{micro:06}"'.encode()
    return b'"base64:type%d:%b"' % (kind, base64.b64encode(value))


def _moment(kind: int, packed: int) -> bytes:
    """A date or a datetime: date and time in bits, microseconds in the lowest 24."""
    whole, micro = packed >> 24, packed & 0xFFFFFF
    days, seconds = whole >> 17, whole & 0x1FFFF
    year, month = divmod(days >> 5, 13)
    shown = f"{year:04}-{month:02}-{days & 31:02}"
    if kind != 10:
        shown += f" {seconds >> 12:02}:{seconds >> 6 & 63:02}:{seconds & 63:02}.{micro:06}"
    return f'"{shown}"'.encode()
