"""What a SQLite column is given for the JSON text of a value, so that it can be read back as what it was.

SQLite decides by the declared type of a column what it makes of a value (*affinity*). Numbers and texts are given so
that it has nothing to convert; where it would cut something off, the value is refused:

    value                           column                        stored
    int up to 64 bit, bool          any; TEXT                     integer; text
    other numbers                   TEXT                          text, all digits
                                    any other                     real, if that is the same number; else refused
    NaN                             TEXT                          text; in any other refused: SQLite makes null of it
    string                          any                           text; in a column for numbers refused if it would be
                                                                  read as one
    binary                          any                           blob
    date, time, timestamps, uuid    any                           text as ISO 8601 has it, a blank for the T
    lists, maps, others             any                           their JSON text
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Hashable
from decimal import Decimal
from uuid import UUID

from penstock.log.extended import ObjectId
from penstock.log.schema import Field, Kind
from penstock.log.values import Value, ValuesError, decode

_NUMERIC = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE)

_DECLARED = {
    Kind.BOOL: "BOOLEAN", Kind.INT: "INTEGER", Kind.FLOAT: "REAL", Kind.DECIMAL: "DECIMAL_TEXT", Kind.STRING: "TEXT",
    Kind.BINARY: "BLOB", Kind.DATE: "DATE", Kind.TIME: "TIME", Kind.TIMESTAMP: "TIMESTAMPTZ",
    Kind.LOCAL_TIMESTAMP: "DATETIME", Kind.UUID: "UUID", Kind.OBJECT_ID: "TEXT", Kind.ANY: "", Kind.NULL: "",
}  # fmt: skip


def declared(field: Field) -> str:
    """The type of a column that is made for a field; `sqlite` as a source reads the values back as they were."""
    return _DECLARED.get(field.kind, "JSON_TEXT")


def is_text(declaration: str) -> bool:
    """Whether a column keeps texts, and makes texts of numbers, by SQLite's rules."""
    name = declaration.upper()
    return "INT" not in name and any(word in name for word in ("CHAR", "CLOB", "TEXT"))


def is_numeric(declaration: str) -> bool:
    """Whether a column makes numbers of texts that look like one."""
    name = declaration.upper()
    if "INT" in name:
        return True
    return bool(name) and not is_text(name) and "BLOB" not in name


def stored(declaration: str, raw: bytes) -> Hashable:
    """What to give SQLite for a value. Raises ValueError for one that it would not keep."""
    try:
        value = decode(raw)
    except ValuesError as error:
        raise ValueError(str(error)) from None
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return int(value) if not is_text(declaration) else raw.decode()
    if isinstance(value, int | float | Decimal):
        return _number(declaration, value, raw)
    if isinstance(value, str):
        if is_numeric(declaration) and _NUMERIC.fullmatch(value):
            raise ValueError(
                f"the text '{value}' would become a number in a column of the type {declaration}"
            )
        return value
    return _text(value, raw)


def _number(declaration: str, value: int | float | Decimal, raw: bytes) -> Hashable:
    if is_text(declaration):
        return raw.decode() if raw[:1] != b"{" else str(value)
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return value
    number = float(value)
    if number != number:
        raise ValueError(f"NaN, which SQLite does not keep in a column of the type {declaration or 'none'}")
    if isinstance(value, float) or Decimal(repr(number)) == value:
        return number
    raise ValueError(f"{value} has more digits than a column of the type {declaration or 'none'} keeps")


def _text(value: Value, raw: bytes) -> str:
    if isinstance(value, dt.datetime):
        text = value.isoformat(" ")
        return (
            text.removesuffix("+00:00") + "Z" if value.tzinfo is not None and not value.utcoffset() else text
        )
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, UUID | ObjectId):
        return str(value)
    return raw.decode()
