"""Extended JSON: the objects that stand for values which JSON has no form of its own for.

Each form is a map of one or two names that begin with `$`. What Penstock writes:

    {"$numberDouble": "NaN"}                              also "Infinity", "-Infinity"
    {"$numberDecimal": "NaN"}                             and the other decimals that are no numbers
    {"$binary": {"base64": "AP8=", "subType": "00"}}
    {"$localDate": "2026-11-16"}
    {"$localTime": "02:14:14.123456"}                     {"$time": "02:14:14+01:00"} with an offset
    {"$localTimestamp": "2026-11-16T02:14:14.123456"}
    {"$date": "2026-11-16T02:14:14.123456Z"}              a moment, with its offset if that is not UTC
    {"$uuid": "…"}   {"$oid": "<24 hex>"}   {"$timestamp": {"t": 1, "i": 2}}   {"$regex": "…", "$options": "i"}
    {"$literal": {"$oid": "…"}}                           a map that only looks like one of these

It reads these, the other forms of MongoDB's extended JSON for the same values (milliseconds in `$date`,
`$numberLong`, `$regularExpression`, …), and those of the Transporter reference, section 4, with a binary of any
kind. A map that looks like a form and does not read as one, or holds what its Python type cannot hold exactly
(nanoseconds, the year 10000), is the map it is: nothing is lost by reading.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from uuid import UUID

import msgspec

LITERAL = "$literal"

_HEX_ID = re.compile(r"[0-9a-fA-F]{24}")
_HEX_BYTE = re.compile(r"[0-9a-fA-F]{1,2}")
_INTEGER = re.compile(r"-?[0-9]{1,4300}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"(\d\d:\d\d:\d\d)(?:\.(\d+))?", re.ASCII)
_OFFSET = re.compile(r"[Zz]|[+-]\d\d:?[0-5]\d(?::[0-5]\d(?:\.\d{6})?)?", re.ASCII)
_MOMENT = re.compile(rf"({_DATE.pattern})[Tt ]({_TIME.pattern})({_OFFSET.pattern})?", re.ASCII)
_TIME_WITH_OFFSET = re.compile(rf"({_TIME.pattern})({_OFFSET.pattern})", re.ASCII)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True, order=True)
class ObjectId:
    """MongoDB's twelve bytes that name a document, as 24 hexadecimal digits."""

    hex: str

    def __post_init__(self) -> None:
        if not _HEX_ID.fullmatch(self.hex):
            raise ValueError(f"an object id has 24 hexadecimal digits, got {self.hex!r}")
        object.__setattr__(self, "hex", self.hex.lower())

    def __str__(self) -> str:
        return self.hex


@dataclass(frozen=True, slots=True)
class Binary:
    """Bytes with one of MongoDB's subtypes. Plain bytes, subtype 0, are `bytes`."""

    data: bytes
    subtype: int

    def __post_init__(self) -> None:
        if not 1 <= self.subtype <= 0xFF:
            raise ValueError(f"the subtype of a binary is 1 to 255, got {self.subtype}; for 0 use bytes")


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """MongoDB's timestamp: seconds since 1970, and a counter within the second."""

    t: int
    i: int

    def __post_init__(self) -> None:
        if not (0 <= self.t <= 0xFFFF_FFFF and 0 <= self.i <= 0xFFFF_FFFF):
            raise ValueError(f"t and i of a timestamp have 32 bits, got {self.t} and {self.i}")


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression as MongoDB stores it. Nothing here runs it."""

    pattern: str
    options: str = ""


class _NoForm:
    """What `read` gives for a map that is just a map."""


NO_FORM = _NoForm()

Form = Mapping[str, object]


def write_float(value: float) -> object:
    if value - value == 0.0:
        return value
    return {"$numberDouble": "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"}


def write_decimal(value: Decimal) -> object:
    if not value.is_finite():
        return {"$numberDecimal": str(value)}
    if not value and value.is_signed() and value.as_tuple().exponent == 0:
        return msgspec.Raw(b"-0e0")  # -0 would be read as an integer, which has no sign at zero
    return value


def write_bytes(value: bytes) -> object:
    return {"$binary": {"base64": base64.b64encode(value).decode(), "subType": "00"}}


def write_moment(value: dt.datetime) -> object:
    offset = value.utcoffset()
    if offset is None:
        return {"$localTimestamp": value.replace(tzinfo=None).isoformat()}
    if not offset:
        return {"$date": value.replace(tzinfo=None).isoformat() + "Z"}
    return {"$date": value.isoformat()}


def write_time(value: dt.time) -> object:
    if value.tzinfo is None:
        return {"$localTime": value.isoformat()}
    if value.utcoffset() is None:
        raise ValueError(f"the offset of the time {value} depends on a date")
    return {"$time": value.isoformat()}


def _write_binary(value: Binary) -> object:
    return {"$binary": {"base64": base64.b64encode(value.data).decode(), "subType": f"{value.subtype:02x}"}}


WRITERS: Mapping[type, Callable[..., object]] = {
    float: write_float,
    Decimal: write_decimal,
    bytes: write_bytes,
    Binary: _write_binary,
    dt.date: lambda value: {"$localDate": value.isoformat()},
    dt.time: write_time,
    dt.datetime: write_moment,
    UUID: lambda value: {"$uuid": str(value)},
    ObjectId: lambda value: {"$oid": value.hex},
    Timestamp: lambda value: {"$timestamp": {"t": value.t, "i": value.i}},
    Regex: lambda value: {"$regex": value.pattern, "$options": value.options},
}
"""How each type that is no JSON is written. Exact types: a subclass may hold more than its form can."""


def looks_extended(form: Form) -> bool:
    """Whether `read` has to be asked."""
    return 0 < len(form) <= 2 and next(iter(form))[:1] == "$"


def read(form: Form) -> object:
    """The value that a form stands for, or `NO_FORM`. `{"$literal": …}` is not for this to read."""
    if len(form) == 1:
        ((name, content),) = form.items()
        reader = _READERS.get(name)
    else:
        content, reader = form, _TWO_NAMES.get(frozenset(form))
    if reader is None:
        return NO_FORM
    try:
        return reader(content)
    except (ValueError, TypeError, KeyError, OverflowError, InvalidOperation):
        return NO_FORM


def is_literal(form: Form) -> bool:
    return len(form) == 1 and isinstance(form.get(LITERAL), dict)


def read_date(text: str) -> dt.date:
    """A date as ISO 8601 has it, and no other text."""
    _must(_DATE.fullmatch(text))
    return dt.date.fromisoformat(text)


def read_time(text: str) -> dt.time:
    """A time of day down to the second at least; more digits than microseconds are refused."""
    return dt.time.fromisoformat(_no_finer(_TIME.fullmatch(text), text))


def read_local_timestamp(text: str) -> dt.datetime:
    """A date and a time without a zone."""
    found = _must(_MOMENT.fullmatch(text))
    if found[5] is not None:
        raise ValueError("a zone where none is wanted")
    return dt.datetime.fromisoformat(f"{found[1]}T{_no_finer(_TIME.fullmatch(found[2]), found[2])}")


def read_moment(text: str) -> dt.datetime:
    """A date and a time with a zone, RFC 3339 or the like; the offset is kept."""
    found = _must(_MOMENT.fullmatch(text))
    if found[5] is None:
        raise ValueError("no zone where one is wanted")
    time = _no_finer(_TIME.fullmatch(found[2]), found[2])
    return dt.datetime.fromisoformat(f"{found[1]}T{time}").replace(tzinfo=_zone(found[5]))


def read_uuid(text: str) -> UUID:
    """A UUID with its four hyphens, and in no other spelling."""
    found = UUID(text)
    if str(found) != text.lower():
        raise ValueError("a UUID in another spelling")
    return found


def _zone(offset: str) -> dt.timezone:
    """Read by hand, since Python takes an offset of less than a second for none."""
    if offset in "Zz":
        return dt.UTC
    digits = f"{re.sub('[^0-9]', '', offset):0<12}"
    hours, minutes, seconds, microseconds = (
        int(digits[:2]),
        int(digits[2:4]),
        int(digits[4:6]),
        int(digits[6:]),
    )
    east = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds, microseconds=microseconds)
    return dt.timezone(-east if offset[0] == "-" else east) if east else dt.UTC


def _must(found: re.Match[str] | None) -> re.Match[str]:
    if found is None:
        raise ValueError("not of this form")
    return found


def _no_finer(found: re.Match[str] | None, text: str) -> str:
    """A time as Python reads it without dropping digits."""
    digits = _must(found)[2] or ""
    if digits[6:].strip("0"):
        raise ValueError(f"{text} is finer than microseconds")
    return f"{_must(found)[1]}.{digits[:6]:0<6}"


def _text(content: object) -> str:
    if not isinstance(content, str):
        raise TypeError("not a text")
    return content


def _fields(content: object, *names: str) -> list[object]:
    """The values of a map that has these names and no others."""
    if not isinstance(content, dict) or len(content) != len(names):
        raise TypeError("not such a map")
    return [content[name] for name in names]


def _number(content: object) -> int:
    if type(content) is not int:
        raise TypeError("not an integer")
    return content


def _integer(content: object) -> int:
    return int(_must(_INTEGER.fullmatch(_text(content)))[0])


def _float(content: object) -> float:
    text = _text(content)
    if text in ("NaN", "Infinity", "-Infinity"):
        return float(text)
    msgspec.json.decode(text, type=float)  # a number as JSON has it, where Python takes more
    number = float(text)
    if number - number != 0.0:
        raise ValueError("too large for a float")
    return number


def _moment(content: object) -> dt.datetime:
    if isinstance(content, str):
        return read_moment(content)
    if isinstance(content, dict):
        (content,) = map(_integer, _fields(content, "$numberLong"))
    return _EPOCH + dt.timedelta(milliseconds=_number(content))


def _time_with_offset(content: object) -> dt.time:
    found = _must(_TIME_WITH_OFFSET.fullmatch(_text(content)))
    time = _no_finer(_TIME.fullmatch(found[1]), found[1])
    return dt.time.fromisoformat(time).replace(tzinfo=_zone(found[4]))


def _binary(content: object) -> bytes | Binary:
    return _bytes(*_fields(content, "base64", "subType"))


def _bytes(content: object, subtype: object) -> bytes | Binary:
    data = base64.b64decode(_text(content), validate=True)
    kind = int(_must(_HEX_BYTE.fullmatch(_text(subtype)))[0], 16)
    return Binary(data, kind) if kind else data


def _timestamp(content: object) -> Timestamp:
    t, i = _fields(content, "t", "i")
    return Timestamp(_number(t), _number(i))


def _regex(pattern: object, options: object) -> Regex:
    return Regex(_text(pattern), _text(options))


_READERS: Mapping[str, Callable[[object], object]] = {
    "$numberDouble": _float,
    "$numberDecimal": lambda content: Decimal(_text(content)),
    "$numberLong": _integer,
    "$numberInt": _integer,
    "$binary": _binary,
    "$localDate": lambda content: read_date(_text(content)),
    "$localTime": lambda content: read_time(_text(content)),
    "$time": _time_with_offset,
    "$localTimestamp": lambda content: read_local_timestamp(_text(content)),
    "$date": _moment,
    "$uuid": lambda content: read_uuid(_text(content)),
    "$oid": lambda content: ObjectId(_text(content)),
    "$timestamp": _timestamp,
    "$regularExpression": lambda content: _regex(*_fields(content, "pattern", "options")),
}
_TWO_NAMES: Mapping[frozenset[str], Callable[[object], object]] = {
    frozenset({"$regex", "$options"}): lambda form: _regex(*_fields(form, "$regex", "$options")),
    frozenset({"$binary", "$type"}): lambda form: _bytes(*_fields(form, "$binary", "$type")),
}
