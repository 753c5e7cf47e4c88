"""What a column of the target takes: values of messages made ready for it, and the column for a field that has none.

A value that the column would change in silence, such as digits behind its last one, is refused here; what the server
refuses by itself (a text that its character set does not have) is left to it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Hashable
from decimal import Decimal
from uuid import UUID

import msgspec

from penstock.adaptors.mysql.types import GEOMETRIES, INTEGERS, Column, stored_geometry
from penstock.log.schema import Field, Kind
from penstock.log.values import Binary, ObjectId, Value, ValuesError, decode

_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TEXTS = {"tinytext": 255, "text": 65_535, "mediumtext": 16_777_215, "longtext": 4_294_967_295}
_BLOBS = {"tinyblob": 255, "blob": 65_535, "mediumblob": 16_777_215, "longblob": 4_294_967_295}
JSON_TEXT = "json text"
"""What MariaDB makes of a column of JSON: a text that is checked."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.(\d{1,6}))?")
_TIME = re.compile(r"-?\d{2,3}:\d\d:\d\d(?:\.(\d{1,6}))?")
_DECIMAL = re.compile(r"\((\d+),(\d+)\)")


def bound(column: Column, raw: bytes) -> Hashable:
    """What the driver is given for the text of a value. ValueError: the column cannot take it."""
    if raw == b"null":
        if column.type == "timestamp" and not column.nullable:
            raise ValueError(f"null where {column.native} is wanted, which may make it the time of now")
        return None
    try:
        if column.type == "decimal":
            return _decimal(column, raw)
        if column.native == JSON_TEXT:
            return _json_text(raw)
        if column.type == "json":
            return _json(raw)
        value = decode(raw)
    except ValuesError as error:
        raise ValueError(str(error)) from None
    if column.type in INTEGERS or column.type == "bit":
        return _integer(column, value)
    if column.type in ("float", "double"):
        return _float(column, value)
    if column.type in ("date", "datetime", "timestamp"):
        return _moment(column, value)
    if column.type == "time":
        return _time(column, value)
    if column.kind is Kind.BINARY:
        return _binary(column, value)
    return _text(column, value)


def _unfit(value: object, wanted: str) -> ValueError:
    shown = repr(value)
    return ValueError(f"{shown[:60]}{'…' if len(shown) > 60 else ''} where {wanted} is wanted")


def _integer(column: Column, value: Value) -> int:
    if not isinstance(value, int):  # a bool is one
        raise _unfit(value, column.native)
    if column.type == "year":
        low, high = (0, 0) if value == 0 else (1901, 2155)  # a year of two digits becomes another one
    elif column.type == "bit":
        low, high = 0, (1 << column.length) - 1
    else:
        bits = _BITS[column.type]
        low, high = (0, (1 << bits) - 1) if column.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if not low <= value <= high:
        raise _unfit(value, column.native)
    return int(value)


def _float(column: Column, value: Value) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise _unfit(value, "a number")
    number = float(value)
    if number - number != 0.0:
        raise _unfit(value, "a number that is finite")
    if isinstance(value, int) and value not in (int(number), Decimal(repr(number))):
        raise ValueError(f"{value} has more digits than a column of the type {column.native} keeps")
    return number


def _decimal(column: Column, raw: bytes) -> Decimal:
    if raw[:1] not in b"-0123456789":
        raise _unfit(raw.decode("utf-8", "replace"), column.native)
    number = Decimal(raw.decode())
    found = _DECIMAL.search(column.native)
    precision, scale = (int(found[1]), int(found[2])) if found else (65, 30)
    _, digits, exponent = number.as_tuple()
    shown = "".join(map(str, digits)).lstrip("0")
    power = int(exponent)
    behind = max(0, -power - (len(shown) - len(shown.rstrip("0")))) if shown else 0
    if behind > scale or len(shown) + power > precision - scale:
        raise _unfit(number, column.native)
    return number


def _moment(column: Column, value: Value) -> str:
    if isinstance(value, dt.datetime):
        if value.utcoffset() is not None:
            value = value.astimezone(dt.UTC).replace(tzinfo=None)
        if column.type == "date":
            raise _unfit(value, column.native)
        _must_hold(column, value.microsecond)
        return value.isoformat(" ")
    if isinstance(value, dt.date):
        return value.isoformat()
    # What no calendar has comes as a text.
    found = isinstance(value, str) and (_DATE if column.type == "date" else _MOMENT).fullmatch(value)
    if not found:
        raise _unfit(value, column.native)
    if column.type != "date":
        _must_hold(column, int((found[1] or "").ljust(6, "0") or 0))
    return str(value)


def _time(column: Column, value: Value) -> str:
    if isinstance(value, dt.time) and value.tzinfo is None:
        _must_hold(column, value.microsecond)
        return value.isoformat()
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise _unfit(value, column.native)
    _must_hold(column, int((found[1] or "").ljust(6, "0") or 0))
    return str(value)


def _must_hold(column: Column, micros: int) -> None:
    """Digits that a column does not have are rounded by the server, without a word."""
    if micros % 10 ** (6 - column.length):
        raise ValueError(f"{micros} microseconds where {column.native} is wanted, which rounds them")


def _binary(column: Column, value: Value) -> bytes:
    if isinstance(value, Binary):
        value = value.data
    if not isinstance(value, bytes):
        raise _unfit(value, "a binary")
    if column.type in GEOMETRIES:
        return stored_geometry(value)
    most = _BLOBS.get(column.type) or column.length
    if most and len(value) > most:
        raise ValueError(f"{len(value):,} bytes where {column.native} is wanted")
    return value


def _text(column: Column, value: Value) -> str:
    if isinstance(value, (UUID, ObjectId)):
        value = str(value)
    if column.type == "longtext" and isinstance(value, (dict, list)):
        return _json(msgspec.json.encode(value)) if _is_plain(value) else _unfit_document(value)
    if not isinstance(value, str):
        raise _unfit(value, "a text")
    if column.type in ("char", "varchar") and len(value) > column.length:
        raise ValueError(f"{len(value):,} characters where {column.native} is wanted")
    if column.type in _TEXTS and len(value.encode()) > _TEXTS[column.type]:
        raise ValueError(f"{len(value.encode()):,} bytes where {column.native} is wanted")
    if column.type == "enum" and value and value not in column.words:
        raise _unfit(value, column.native)
    if column.type == "set" and value and not set(value.split(",")) <= set(column.words):
        raise _unfit(value, column.native)
    return value


def _unfit_document(value: object) -> str:
    raise _unfit(value, "a text")


def _json(raw: bytes) -> str:
    """The document itself; one that holds what JSON has no form for stays in extended JSON."""
    if b'"$' not in raw and b"\\u0024" not in raw:
        return raw.decode()
    value = decode(raw)
    return msgspec.json.encode(value).decode() if _is_plain(value) else raw.decode()


def _json_text(raw: bytes) -> str:
    """For MariaDB, whose JSON is text: that of a document as it is, all other text as a JSON string."""
    if raw[:1] != b'"':
        return _json(raw)
    text: str = msgspec.json.decode(raw, type=str)
    if text.lstrip()[:1] in ("{", "[", '"'):
        return text
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return raw.decode()
    return text


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


_TYPES = {
    Kind.BOOL: "TINYINT(1)", Kind.INT: "BIGINT", Kind.FLOAT: "DOUBLE", Kind.DECIMAL: "DECIMAL(65,30)",
    Kind.STRING: "LONGTEXT", Kind.BINARY: "LONGBLOB", Kind.DATE: "DATE", Kind.TIME: "TIME(6)",
    Kind.TIMESTAMP: "DATETIME(6)", Kind.LOCAL_TIMESTAMP: "DATETIME(6)", Kind.OBJECT_ID: "CHAR(24)",
    Kind.UUID: "CHAR(36)",
}  # fmt: skip
"""What holds the values of a kind; all others are JSON."""

KEY_CHARACTERS = 255
"""Of a text in a key that is made: what several of them may have together is limited."""


def declared(field: Field, *, in_key: bool, maria: bool) -> str:
    """The column for a field: texts in a key are told apart to the last blank and letter."""
    if in_key and field.kind is Kind.STRING:
        collation = "utf8mb4_nopad_bin" if maria else "utf8mb4_0900_bin"
        return f"VARCHAR({KEY_CHARACTERS}) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL"
    if in_key and field.kind is Kind.BINARY:
        return "VARBINARY(767) NOT NULL"
    if field.kind is Kind.DECIMAL and field.native == "bigint unsigned":
        return "BIGINT UNSIGNED" + " NOT NULL" * in_key
    precise = re.fullmatch(r"(?:decimal|numeric)\((\d{1,2}),(\d{1,2})\)(?: unsigned)?", field.native)
    if field.kind is Kind.DECIMAL and precise and int(precise[1]) <= 65 and int(precise[2]) <= 30:
        return f"DECIMAL({precise[1]},{precise[2]})" + " NOT NULL" * in_key
    if field.kind is Kind.BINARY and field.native in GEOMETRIES:
        return field.native.upper()
    if field.kind is Kind.TIMESTAMP and re.fullmatch(r"timestamp(\(\d\))?", field.native):
        return "TIMESTAMP(6)" + (" NOT NULL DEFAULT CURRENT_TIMESTAMP(6)" if in_key else " NULL")
    text = " CHARACTER SET utf8mb4" if field.kind in (Kind.STRING, Kind.UUID, Kind.OBJECT_ID) else ""
    return _TYPES.get(field.kind, "JSON") + text + (" NOT NULL" if in_key else " NULL")
