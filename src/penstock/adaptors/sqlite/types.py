"""What the declared type of a SQLite column says about its values.

SQLite stores null, integer, real, text and blob, in any column, whatever it is declared as. A value is therefore
taken as it is stored, with these exceptions, in which declaration and content agree and nothing is guessed:

    declared                              stored                                becomes
    BOOL, BOOLEAN                         0 or 1                                bool
    DATE                                  text YYYY-MM-DD                       date
    TIME                                  text HH:MM:SS[.ffffff]                time
    DATETIME, TIMESTAMP, TIMESTAMPTZ      text YYYY-MM-DD HH:MM:SS[.ffffff]     timestamp without zone;
                                          … with Z or an offset behind it       timestamp with zone
    UUID, GUID                            text of 36 characters                 uuid

Numbers in a column for dates stay numbers: they may be seconds, milliseconds or Julian days.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from penstock.log import extended
from penstock.log.schema import Kind
from penstock.log.values import Value, to_json

Stored = int | float | str | bytes | None
"""What SQLite gives."""

_BY_NAME: Mapping[str, Kind] = {
    "BOOL": Kind.BOOL, "BOOLEAN": Kind.BOOL,
    "DATE": Kind.DATE, "TIME": Kind.TIME,
    "DATETIME": Kind.LOCAL_TIMESTAMP, "TIMESTAMP": Kind.LOCAL_TIMESTAMP,
    "TIMESTAMP WITHOUT TIME ZONE": Kind.LOCAL_TIMESTAMP,
    "TIMESTAMPTZ": Kind.TIMESTAMP, "TIMESTAMP WITH TIME ZONE": Kind.TIMESTAMP,
    "UUID": Kind.UUID, "GUID": Kind.UUID,
    "DECIMAL": Kind.DECIMAL, "NUMERIC": Kind.DECIMAL, "NUMBER": Kind.DECIMAL,
}  # fmt: skip

_BY_AFFINITY = (
    ("INT", Kind.INT),
    ("CHAR", Kind.STRING),
    ("CLOB", Kind.STRING),
    ("TEXT", Kind.STRING),
    ("BLOB", Kind.BINARY),
    ("REAL", Kind.FLOAT),
    ("FLOA", Kind.FLOAT),
    ("DOUB", Kind.FLOAT),
)
"""SQLite's own rules: which word in a declared type decides how values are stored, the first that is found."""


def kind_of(declared: str) -> Kind:
    """The kind that most values of a column have; `ANY` where the declaration does not say."""
    name = " ".join(re.sub(r"\([^)]*\)", " ", declared.upper()).split())
    if name in _BY_NAME:
        return _BY_NAME[name]
    return next((kind for word, kind in _BY_AFFINITY if word in name), Kind.ANY)


def reader_of(kind: Kind) -> Callable[[Stored], object] | None:
    """How values of a column become JSON if their declaration matters; None if they are what they are."""
    if kind is Kind.BOOL:
        return _as_bool
    reader = _READERS.get(kind)
    return None if reader is None else lambda value: _as_declared(value, reader)


def _as_bool(value: Stored) -> object:
    return bool(value) if type(value) is int and value in (0, 1) else to_json(value)


def _as_declared(value: Stored, read: Callable[[str], Value]) -> object:
    if type(value) is not str:
        return to_json(value)
    try:
        return to_json(read(value))
    except ValueError:
        return value


def _timestamp(text: str) -> Value:
    try:
        return extended.read_local_timestamp(text)
    except ValueError:
        return extended.read_moment(text)


_READERS: Mapping[Kind, Callable[[str], Value]] = {
    Kind.DATE: extended.read_date,
    Kind.TIME: extended.read_time,
    Kind.LOCAL_TIMESTAMP: _timestamp,
    Kind.TIMESTAMP: _timestamp,
    Kind.UUID: extended.read_uuid,
}
