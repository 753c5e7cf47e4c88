"""The columns of a MySQL table: what their types are, and what becomes of their values.

    type                                       kind                text of a value
    tinyint … int, bigint, year, bit(1 … 63)   int                 a number; bit as the number that its bits are
    bigint unsigned, bit(64)                   decimal             a number
    float, double                              float               a number; float as the same number in 64 bits
    decimal                                    decimal             a number with all its digits
    date                                       date                {"$localDate": …}
    datetime                                   local timestamp     {"$localTimestamp": …}
    timestamp                                  timestamp           {"$date": …Z}, a moment
    time                                       time                {"$localTime": …}; below 0 and from 24 h on a string
    char, varchar, text, enum, set, inet       string              whatever the character set; a set as `a,b`
    binary, varbinary, blob, vector            binary
    geometry and its kinds                     binary              WKB; with the SRID in it (EWKB) if there is one
    json                                       any                 the document itself; MariaDB's is a longtext
    uuid                                       uuid

A date or time that no calendar has (`0000-00-00`, `2026-02-00`) is the string that the server prints. `native` is
the type in one spelling, whoever told it: `int unsigned`, `varchar(20)`, `enum('a','b')`.

A value has the same text whether it was copied or read from the binlog: `texts_of` makes it of what a query gives,
`penstock.adaptors.mysql.rows` of bytes in the binlog, and both end in the functions here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache

import msgspec

from penstock.log import extended
from penstock.log.schema import Field, Kind, Schema
from penstock.log.values import ValuesError, encode

Text = Callable[[bytes], bytes]
"""Makes the JSON text of a value of what a query gives for it."""

_KINDS = {
    "tinyint": Kind.INT, "smallint": Kind.INT, "mediumint": Kind.INT, "int": Kind.INT, "bigint": Kind.INT,
    "year": Kind.INT, "bit": Kind.INT, "float": Kind.FLOAT, "double": Kind.FLOAT, "decimal": Kind.DECIMAL,
    "date": Kind.DATE, "time": Kind.TIME, "datetime": Kind.LOCAL_TIMESTAMP, "timestamp": Kind.TIMESTAMP,
    "char": Kind.STRING, "varchar": Kind.STRING, "tinytext": Kind.STRING, "text": Kind.STRING,
    "mediumtext": Kind.STRING, "longtext": Kind.STRING, "enum": Kind.STRING, "set": Kind.STRING,
    "inet4": Kind.STRING, "inet6": Kind.STRING, "json": Kind.ANY, "uuid": Kind.UUID,
}  # fmt: skip

GEOMETRIES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geometrycollection",
)  # fmt: skip

INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})

UNLOGGED = frozenset({"uuid", "inet4", "inet6"})
"""Types that stand in the binlog as plain bytes, whatever metadata it has."""

_LITERAL = re.compile(r"'((?:[^']|'')*)'")


class Column(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One column. `charset` is the character set of its texts; None where it has none, as binaries."""

    name: str
    native: str
    charset: str | None = None
    nullable: bool = True

    @property
    def type(self) -> str:
        """The first word of the type."""
        return re.split(r"[ (]", self.native, maxsplit=1)[0]

    @property
    def unsigned(self) -> bool:
        return self.native.endswith(" unsigned")

    @property
    def length(self) -> int:
        """The first number in brackets; 0 if there is none."""
        found = re.search(r"\((\d+)", self.native)
        return int(found[1]) if found else 0

    @property
    def words(self) -> list[str]:
        """What an enum or a set is made of."""
        return [word.replace("''", "'") for word in _LITERAL.findall(self.native)]

    @property
    def kind(self) -> Kind:
        if self.native == "bigint unsigned" or self.native == "bit(64)":
            return Kind.DECIMAL
        return _KINDS.get(self.type, Kind.BINARY)


class Structure(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a table as they were at some time, and its key."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    primary: bool = True
    """Whether the key is the primary one; another unique key does not stand in the binlog."""

    @property
    def schema(self) -> Schema:
        return Schema(
            tuple(Field(c.name, c.kind, nullable=c.nullable, native=c.native) for c in self.columns), self.key
        )

    @property
    def is_told_by_log(self) -> bool:
        """Whether full metadata of the binlog says all of this."""
        return self.primary and not any(column.type in UNLOGGED for column in self.columns)


def enum_of(kind: str, words: Sequence[str]) -> str:
    """The type of an enum or a set."""
    return f"{kind}({','.join(_quoted(word) for word in words)})"


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"


def selected(column: Column, name: str) -> str:
    """The SQL that gives the whole value: a float is printed with six digits otherwise."""
    return f"CAST({name} AS DOUBLE)" if column.type == "float" else name


def text_of(column: Column) -> Text:
    """How a value that a query gave becomes text."""
    found = _TEXTS.get(column.type)
    if found is not None:
        return found
    if column.type in GEOMETRIES:
        return geometry
    return string if column.kind is Kind.STRING else binary


def texts_of(columns: Sequence[Column]) -> list[Text]:
    return [text_of(column) for column in columns]


class RowWriter:
    """Makes the text of an object of the texts of its values."""

    def __init__(self, names: Sequence[str]) -> None:
        marks = [b"," * bool(i) + msgspec.json.encode(name) + b":" for i, name in enumerate(names)]
        # One format for the whole row; a name may hold what a format would take for its own.
        self._format = b"{" + b"".join(mark.replace(b"%", b"%%") + b"%b" for mark in marks) + b"}"

    def __call__(self, values: Sequence[bytes]) -> bytes:
        return self._format % tuple(values)


def integer(value: bytes) -> bytes:
    # Zeros that fill a column are no part of the number.
    return value if value[:1] != b"0" or len(value) == 1 else value.lstrip(b"0") or b"0"


def decimal(value: bytes) -> bytes:
    if value[:1] == b"0" and value[1:2] not in (b"", b"."):
        value = value.lstrip(b"0")
        return b"0" + value if value[:1] in (b"", b".") else value
    return value


def number(value: float) -> bytes:
    return encode(value)


def bits(value: bytes) -> bytes:
    return b"%d" % int.from_bytes(value, "big")


def string(value: bytes) -> bytes:
    return msgspec.json.encode(value.decode())


def text(value: str) -> bytes:
    return msgspec.json.encode(value)


def binary(value: bytes) -> bytes:
    return b'{"$binary":{"base64":"%b","subType":"00"}}' % base64.b64encode(value)


def geometry(value: bytes) -> bytes:
    """WKB, which the server keeps behind four bytes of SRID; with an SRID it is PostGIS's EWKB."""
    srid, wkb = value[:4], value[4:]
    if srid == b"\0\0\0\0" or len(wkb) < 5:
        return binary(wkb)
    flagged = bytearray(wkb[1:5])
    flagged[3 if wkb[0] else 0] |= 0x20
    return binary(wkb[:1] + bytes(flagged) + (srid if wkb[0] else srid[::-1]) + wkb[5:])


def stored_geometry(wkb: bytes) -> bytes:
    """The other way: what the server takes for WKB or EWKB."""
    if len(wkb) >= 9 and wkb[4 if wkb[0] else 1] & 0x20:
        flags = bytearray(wkb[1:5])
        flags[3 if wkb[0] else 0] &= ~0x20
        srid = wkb[5:9] if wkb[0] else wkb[5:9][::-1]
        return srid + wkb[:1] + bytes(flags) + wkb[9:]
    return b"\0\0\0\0" + wkb


def json(value: bytes) -> bytes:
    """A document in one spelling: compact, floats as the shortest number, maps as they are."""
    if not value:
        return b"null"  # what a column holds that was made NOT NULL without a default
    try:
        return encode(_read(value))
    except (ValuesError, msgspec.DecodeError):
        return string(value)


def _exact(digits: str) -> float | Decimal:
    shortest = float(digits)
    return shortest if Decimal(repr(shortest)) == Decimal(digits) else Decimal(digits)


_read = msgspec.json.Decoder(float_hook=_exact).decode


@lru_cache(maxsize=4096)
def date(value: bytes) -> bytes:
    shown = value.decode()
    try:
        extended.read_date(shown)
    except ValueError:
        return msgspec.json.encode(shown)
    return b'{"$localDate":"%b"}' % value


def local_timestamp(value: bytes) -> bytes:
    return _moment(value, b'{"$localTimestamp":"%bT%b"}')


def timestamp(value: bytes) -> bytes:
    return _moment(value, b'{"$date":"%bT%bZ"}')


@lru_cache(maxsize=4096)
def _exists(day: bytes) -> bool:
    try:
        extended.read_date(day.decode())
    except ValueError:
        return False
    return True


def _moment(value: bytes, form: bytes) -> bytes:
    """`2026-11-16 02:14:14[.5]`; digits of a second are six or none."""
    time = value[11:19] + _fraction(value[20:])
    if not _exists(value[:10]):
        return b'"%b %b"' % (value[:10], time)
    return form % (value[:10], time)


def time(value: bytes) -> bytes:
    whole, _, digits = value.partition(b".")
    shown = whole + _fraction(digits)
    if len(whole) == 8 and b"00" <= whole[:2] < b"24" and whole[:1] != b"-":
        return b'{"$localTime":"%b"}' % shown
    return b'"%b"' % shown


def _fraction(digits: bytes) -> bytes:
    return b"." + digits.ljust(6, b"0") if digits.strip(b"0") else b""


def uuid(value: bytes) -> bytes:
    return b'{"$uuid":"%b"}' % value.lower()


def _float(value: bytes) -> bytes:
    return encode(float(value))


_TEXTS: dict[str, Text] = {
    **dict.fromkeys(INTEGERS, integer),
    "bit": bits, "float": _float, "double": _float, "decimal": decimal, "date": date, "time": time,
    "datetime": local_timestamp, "timestamp": timestamp, "json": json, "uuid": uuid,
}  # fmt: skip
