"""Row images of a binlog, read into the texts of their values.

    row image    null bits, one for each column that is present | the values of those that are not null, in their order

How a value stands there follows from its column's layout in the table map; what it means (sign, character set, the
words of an enum) from its `Column`. A value is read by a `Take`, made once for each column of a table: it is given
the bytes and a place, and tells the text and the place behind it.
"""

from __future__ import annotations

import datetime as dt
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from uuid import UUID

from penstock.adaptors.mysql import types as t
from penstock.adaptors.mysql.binlog import UPDATES, BinlogError, Event, RowsHead
from penstock.adaptors.mysql.decimal import decimal_at
from penstock.adaptors.mysql.jsonb import json_text
from penstock.adaptors.mysql.tablemap import BIT, ENUM, NEWDECIMAL, SET, STRING, VARCHAR, ColumnLayout
from penstock.adaptors.mysql.types import Column

Take = Callable[[bytes, int], tuple[bytes, int]]
"""Reads a value at a place: its text, and the place behind it."""

Decode = Callable[[bytes], str]
"""Makes text of bytes in some character set."""

Image = list[bytes | None]
"""The texts of a row's values; None for a column that is not present."""

NULL = b"null"


def images(
    event: Event, head: RowsHead, takes: Sequence[Take], shown: int
) -> Iterator[tuple[Image | None, Image | None]]:
    """The rows of an event: before and after; one of them is None for inserts and deletes.

    Of each the first `shown` values are told; behind them are those that no query gives.
    """
    place, body, size = head.start, head.body, len(head.body)
    both = event.type in UPDATES
    first = _present(head.before, takes)
    second = _present(head.after, takes) if both else first
    while place < size:
        one, place = _image(body, place, first, len(takes))
        del one[shown:]
        if both:
            other, place = _image(body, place, second, len(takes))
            del other[shown:]
            yield one, other
        else:
            yield one, one


def _present(bits: bytes, takes: Sequence[Take]) -> list[tuple[int, Take]]:
    return [(i, take) for i, take in enumerate(takes) if bits[i // 8] >> i % 8 & 1]


def _image(body: bytes, place: int, present: Sequence[tuple[int, Take]], width: int) -> tuple[Image, int]:
    found: Image = [None] * width
    nulls = int.from_bytes(body[place : place + (len(present) + 7) // 8], "little")
    place += (len(present) + 7) // 8
    for index, take in present:
        if nulls & 1:
            found[index] = NULL
        else:
            found[index], place = take(body, place)
        nulls >>= 1
    return found, place


def take_of(layout: ColumnLayout, column: Column, decode: Decode | None) -> Take:
    """How to read a column; `decode` is of its character set, None for bytes."""
    kind = layout.type
    if kind in _WHOLE:
        size = _WHOLE[kind]
        return partial(_integer, size, not column.unsigned)
    if kind in _SPECIAL:
        return _SPECIAL[kind](layout.meta)
    if kind == STRING and column.type in t.UNLOGGED:
        return partial(_unlogged, column.type)
    if kind in (STRING, VARCHAR, 253):
        padded = column.type == "binary"
        return _string(2 if layout.meta > 255 else 1, decode, layout.meta if padded else 0)
    if kind in _BLOBS:
        return _string(_BLOBS[kind] or layout.meta, decode, 0)
    if kind == 255:
        return partial(_geometry, layout.meta)
    if kind == 245:
        return partial(_json, layout.meta)
    if kind == ENUM:
        return partial(_enum, layout.meta & 0xFF, [t.text(word) for word in ["", *column.words]])
    if kind == SET:
        return partial(_set, layout.meta & 0xFF, column.words)
    raise BinlogError(f"column '{column.name}' has the type {kind} in the binlog, which is not known")


def _integer(size: int, signed: bool, data: bytes, place: int) -> tuple[bytes, int]:
    return b"%d" % int.from_bytes(data[place : place + size], "little", signed=signed), place + size


_WHOLE: Mapping[int, int] = {1: 1, 2: 2, 9: 3, 3: 4, 8: 8}
_BLOBS: Mapping[int, int] = {252: 0, 249: 1, 250: 3, 251: 4, 242: 0}


def _floats(meta: int) -> Take:
    form = struct.Struct("<f")
    return lambda data, place: (t.number(form.unpack_from(data, place)[0]), place + 4)


def _doubles(meta: int) -> Take:
    form = struct.Struct("<d")
    return lambda data, place: (t.number(form.unpack_from(data, place)[0]), place + 8)


def _year(data: bytes, place: int) -> tuple[bytes, int]:
    return b"%d" % (data[place] + 1900 if data[place] else 0), place + 1


def _bit(meta: int) -> Take:
    size = (meta + 7) // 8
    return lambda data, place: (t.bits(data[place : place + size]), place + size)


def _date(data: bytes, place: int) -> tuple[bytes, int]:
    value = int.from_bytes(data[place : place + 3], "little")
    return t.date(b"%04d-%02d-%02d" % (value >> 9, value >> 5 & 15, value & 31)), place + 3


def _digits(data: bytes, place: int, size: int) -> bytes:
    """The fraction of a second, of which a byte holds two digits."""
    return b".%0*d" % (2 * size, int.from_bytes(data[place : place + size], "big")) if size else b""


def _datetime2(meta: int) -> Take:
    size = (meta + 1) // 2

    def take(data: bytes, place: int) -> tuple[bytes, int]:
        value = int.from_bytes(data[place : place + 5], "big") & 0x7F_FFFF_FFFF
        year, month = divmod(value >> 22, 13)
        shown = b"%04d-%02d-%02d %02d:%02d:%02d" % (
            year, month, value >> 17 & 31, value >> 12 & 31, value >> 6 & 63, value & 63
        )  # fmt: skip
        return t.local_timestamp(shown + _digits(data, place + 5, size)), place + 5 + size

    return take


def _timestamp2(meta: int) -> Take:
    size = (meta + 1) // 2

    def take(data: bytes, place: int) -> tuple[bytes, int]:
        shown = _moment(int.from_bytes(data[place : place + 4], "big"))
        return t.timestamp(shown + _digits(data, place + 4, size)), place + 4 + size

    return take


def _moment(seconds: int) -> bytes:
    """Zero is no moment but the date that is none."""
    if not seconds:
        return b"0000-00-00 00:00:00"
    return (dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)).isoformat(" ").encode()


def _time2(meta: int) -> Take:
    size = (meta + 1) // 2

    def take(data: bytes, place: int) -> tuple[bytes, int]:
        # Kept so that bytes sort as times do: the middle is zero.
        value = int.from_bytes(data[place : place + 3 + size], "big") - (0x800000 << 8 * size)
        sign, value = (b"-", -value) if value < 0 else (b"", value)
        whole, digits = value >> 8 * size, value & (1 << 8 * size) - 1
        shown = b"%b%02d:%02d:%02d" % (sign, whole >> 12 & 1023, whole >> 6 & 63, whole & 63)
        return t.time(shown + (b".%0*d" % (2 * size, digits) if size else b"")), place + 3 + size

    return take


def _old_datetime(data: bytes, place: int) -> tuple[bytes, int]:
    value = b"%014d" % int.from_bytes(data[place : place + 8], "little")
    parts = (value[:4], value[4:6], value[6:8], value[8:10], value[10:12], value[12:])
    return t.local_timestamp(b"%b-%b-%b %b:%b:%b" % parts), place + 8


def _old_timestamp(data: bytes, place: int) -> tuple[bytes, int]:
    return t.timestamp(_moment(int.from_bytes(data[place : place + 4], "little"))), place + 4


def _old_time(data: bytes, place: int) -> tuple[bytes, int]:
    value = int.from_bytes(data[place : place + 3], "little", signed=True)
    sign, value = (b"-", -value) if value < 0 else (b"", value)
    return t.time(b"%b%02d:%02d:%02d" % (sign, value // 10000, value // 100 % 100, value % 100)), place + 3


def _decimal(meta: int) -> Take:
    return decimal_at(meta >> 8, meta & 0xFF)


def _string(prefix: int, decode: Decode | None, padded: int) -> Take:
    def take(data: bytes, place: int) -> tuple[bytes, int]:
        start = place + prefix
        end = start + int.from_bytes(data[place:start], "little")
        value = data[start:end]
        if decode is not None:
            return t.text(decode(value)), end
        # Zeros at the end of a binary(n) are not logged.
        return t.binary(value.ljust(padded, b"\0")), end

    return take


def _geometry(prefix: int, data: bytes, place: int) -> tuple[bytes, int]:
    start = place + prefix
    end = start + int.from_bytes(data[place:start], "little")
    return t.geometry(data[start:end]), end


def _json(prefix: int, data: bytes, place: int) -> tuple[bytes, int]:
    start = place + prefix
    end = start + int.from_bytes(data[place:start], "little")
    return t.json(json_text(data[start:end])), end


def _enum(size: int, words: Sequence[bytes], data: bytes, place: int) -> tuple[bytes, int]:
    index = int.from_bytes(data[place : place + size], "little")
    if index >= len(words):
        raise BinlogError(f"word {index} of an enum that has {len(words) - 1}")
    return words[index], place + size


def _set(size: int, words: Sequence[str], data: bytes, place: int) -> tuple[bytes, int]:
    chosen = int.from_bytes(data[place : place + size], "little")
    if chosen >> len(words):
        raise BinlogError(f"word {chosen.bit_length()} of a set that has {len(words)}")
    return t.text(",".join(word for i, word in enumerate(words) if chosen >> i & 1)), place + size


def _unlogged(kind: str, data: bytes, place: int) -> tuple[bytes, int]:
    """Types of MariaDB that stand in the binlog as the bytes they are kept in, without zeros at the end."""
    start = place + 1
    end = start + data[place]
    value = data[start:end].ljust(4 if kind == "inet4" else 16, b"\0")
    if kind == "inet4":
        return t.text(socket.inet_ntop(socket.AF_INET, value)), end
    if kind == "inet6":
        return t.text(socket.inet_ntop(socket.AF_INET6, value)), end
    return t.uuid(str(UUID(bytes=value)).encode()), end


_SPECIAL: Mapping[int, Callable[[int], Take]] = {
    4: _floats, 5: _doubles, NEWDECIMAL: _decimal, BIT: _bit, 13: lambda meta: _year,
    10: lambda meta: _date, 14: lambda meta: _date, 18: _datetime2, 17: _timestamp2, 19: _time2,
    12: lambda meta: _old_datetime, 7: lambda meta: _old_timestamp, 11: lambda meta: _old_time,
}  # fmt: skip
"""Of layouts that are told by type and meta alone."""
