"""One value of a message as the text that PostgreSQL reads, for a column of any type.

    column                    takes                                      and refuses, in the task
    any                       null; the text of a string, for the        what the server cannot read as the type
                              server to read
    smallint … bigint, oid    a number                                   a fraction
    numeric                   a number, with all its digits              more digits than `numeric(p,s)` keeps
    real, double precision    a number, "NaN", "Infinity"
    text, varchar, char       a string; any other value as its JSON
                              text, extended JSON as what it holds
    bytea                     binary                                     a binary with a subtype
    date, time, timestamp …   theirs, as far as nothing is lost: a       finer than the column keeps; a timestamp as
                              moment into `timestamp` as UTC, a local    a date; a time with an offset into `time`
                              timestamp into `timestamptz` as of UTC
    uuid                      uuid; a binary of subtype 3 or 4
    json, jsonb               any value, its text as it is; `$literal` is taken off
    arrays                    lists, of lists for more dimensions
    all others                strings, numbers, booleans; lists and maps as JSON

Strings go to the server as they are, which reads them as the type, where it cuts nothing off. It is asked to read
nothing that it would round, or of which it would drop a part.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from uuid import UUID

import msgspec

from penstock.log import extended
from penstock.log.extended import Binary
from penstock.log.values import Value, ValuesError, decode, is_float, to_json

INTEGERS = frozenset({"int2", "int4", "int8", "oid"})
FLOATS = frozenset({"float4", "float8"})
JSONS = frozenset({"json", "jsonb"})
TEMPORAL = frozenset({"date", "time", "timetz", "timestamp", "timestamptz"})

DAY = r"\d{4,}-\d\d-\d\d(?: BC)?|-?infinity"

_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_exact = msgspec.json.Decoder(float_hook=Decimal).decode
_plain = msgspec.json.Encoder(decimal_format="number").encode
_FINE = re.compile(r"\.(\d+)")
_ZONED = re.compile(r"(?:[zZ]|[+-]\d\d(?::?\d\d)*)$")
_DAY = re.compile(DAY)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that can be written. `base` is the type's own name below any domain, `mod` its modifier, -1 for none.

    A type that is not the server's own has its schema in `base`, whatever it is called.
    """

    name: str
    number: int
    type: str
    base: str
    mod: int = -1
    element: str = ""
    """Of an array: the base type of what it holds."""
    always: bool = False
    """GENERATED ALWAYS AS IDENTITY."""
    collation: str = ""
    stored: str = ""
    """The type below any domain, in full: what rows are staged in."""


def scale_of(column: Column) -> int:
    """Digits behind the point that `numeric(p,s)` keeps; negative ones before it."""
    scale = (column.mod - 4) & 0x7FF
    return scale - 0x800 if scale & 0x400 else scale


def text_of(column: Column, raw: bytes) -> str | None:
    """The text of one value, before `escaped`; None for null. Raises ValueError with what is wrong."""
    text = _text_of(column, raw) if raw != b"null" else None
    if text is not None and "\0" in text:
        raise ValueError("a text with the character NUL, which PostgreSQL does not keep")
    return text


def _text_of(column: Column, raw: bytes) -> str:
    if column.element:
        return _array_text(column, raw)
    if column.base in JSONS:
        return _json_text(raw)
    try:
        value = decode(raw)
    except ValuesError as error:
        raise ValueError(str(error)) from None
    special = _SPECIAL.get(column.base)
    if special is not None:
        return special(column, value, raw)
    if column.base in INTEGERS:
        return _integer_text(column, value)
    return _plain_text(value, raw)


def _plain_text(value: Value, raw: bytes) -> str:
    """For texts and types that this module knows nothing of."""
    if isinstance(value, str):
        return value
    if isinstance(value, dt.datetime | dt.date | dt.time | extended.ObjectId | UUID):
        ((_, inner),) = msgspec.json.decode(_plain(to_json(value)), type=dict[str, str]).items()
        return inner
    if isinstance(value, float | Decimal) and raw[:1] == b"{":
        return str(value).replace("inf", "Infinity").replace("nan", "NaN")
    return raw.decode()


def _integer_text(column: Column, value: Value) -> str:
    # One that no float can be is no integer of the server's either, and may have a thousand million digits.
    if isinstance(value, float | Decimal) and math.isfinite(value) and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _wrong(column, value)
    return str(value)


def _number_text(column: Column, value: Value, raw: bytes) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise _wrong(column, value)
    text = _plain_text(value, raw)
    if column.base in FLOATS and isinstance(value, int) and not is_float(value):
        raise ValueError(f"{value} has more digits than {column.type} keeps")
    if column.base == "numeric" and column.mod >= 0:
        try:
            number = Decimal(text)
        except InvalidOperation:
            return text
        if number.is_finite():
            # As many digits as there are, whatever the context of this thread: none may be lost by looking.
            exponent = _shortest(number)
            if exponent < -scale_of(column):
                raise ValueError(f"{text} has more digits than {column.type} keeps")
    return text


def _shortest(number: Decimal) -> int:
    """The exponent of a number without the zeros at its end."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return exponent + zeros if any(digits) else 0


def _bool_text(column: Column, value: Value, raw: bytes) -> str:
    if isinstance(value, bool | str) or value in (0, 1):
        return _plain_text(value, raw)
    raise _wrong(column, value)


def _bytes_text(column: Column, value: Value, raw: bytes) -> str:
    if isinstance(value, Binary):
        raise ValueError(f"a binary of subtype {value.subtype}, which {column.type} does not keep")
    if isinstance(value, bytes):
        return r"\x" + value.hex()
    if isinstance(value, str):
        return value
    raise _wrong(column, value)


def _uuid_text(column: Column, value: Value, raw: bytes) -> str:
    if isinstance(value, Binary) and value.subtype in (3, 4) and len(value.data) == 16:
        return value.data.hex()
    if isinstance(value, str | UUID):
        return str(value)
    raise _wrong(column, value)


def _temporal_text(column: Column, value: Value, raw: bytes) -> str:
    kind = type(value)
    base = column.base
    if kind is str:
        text = str(value)
    elif kind is dt.datetime and isinstance(value, dt.datetime) and base in ("timestamp", "timestamptz"):
        if value.tzinfo is not None:
            value = value.astimezone(dt.UTC)
        text = value.replace(tzinfo=None).isoformat(" ") + ("+00" if base == "timestamptz" else "")
    elif (kind is dt.date and base in ("date", "timestamp", "timestamptz")) or (
        isinstance(value, dt.time)
        and base in ("time", "timetz")
        and (value.tzinfo is None or base == "timetz")
    ):
        text = str(value)
    else:
        raise _wrong(column, value)
    _check_temporal(column, text)
    return text


def _check_temporal(column: Column, text: str) -> None:
    """Refuse what the server would take and cut off."""
    fine = _FINE.search(text)
    places = 6 if column.mod < 0 else column.mod
    if fine and fine[1].rstrip("0")[places:]:
        raise ValueError(f"'{text}' is finer than {column.type} keeps")
    if column.base == "date" and not _DAY.fullmatch(text):
        raise ValueError(f"'{text}' is more than {column.type} keeps, or not a date")
    if column.base in ("timestamp", "time") and ":" in text and _ZONED.search(text.partition(":")[2]):
        raise ValueError(f"'{text}' has an offset, which {column.type} does not keep")


def _json_text(raw: bytes) -> str:
    if b"$" not in raw and b"\\u0024" not in raw:
        return raw.decode()
    tree = _exact(raw)
    return _plain(_unliteral(tree)).decode() if b"literal" in raw else raw.decode()


def _is_form(tree: dict[str, object]) -> bool:
    """Whether a map would be read as something else; others are not put in a literal, and one around them is theirs."""
    if not extended.looks_extended(tree):
        return False
    return extended.is_literal(tree) or extended.read(tree) is not extended.NO_FORM


def _unliteral(tree: object) -> object:
    if isinstance(tree, list):
        return [_unliteral(one) for one in tree]
    if not isinstance(tree, dict):
        return tree
    literal = extended.is_literal(tree) and _is_form(tree[extended.LITERAL])
    inside: dict[str, object] = tree[extended.LITERAL] if literal else tree
    return {name: _unliteral(one) for name, one in inside.items()}


def _array_text(column: Column, raw: bytes) -> str:
    if raw[:1] == b'"':
        return str(msgspec.json.decode(raw, type=str))  # as the server prints it, with bounds
    if raw[:1] != b"[":
        raise ValueError(f"{_shown(raw)} is not a list, which {column.type} wants")
    item = Column(column.name, column.number, column.type.removesuffix("[]"), column.element, column.mod)
    delimiter = ";" if column.element == "box" else ","
    return _braces(item, raw, delimiter)


def _braces(item: Column, raw: bytes, delimiter: str) -> str:
    inside = []
    for one in _items(raw):
        text = bytes(one)
        if text == b"null":
            inside.append("NULL")
        elif text[:1] == b"[" and item.base not in JSONS:
            inside.append(_braces(item, text, delimiter))
        else:
            content = text_of(item, text) or ""
            inside.append('"' + content.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return "{" + delimiter.join(inside) + "}"


def _wrong(column: Column, value: Value) -> ValueError:
    return ValueError(f"{_shown(value)} is not of the type {column.type}")


def _shown(value: object) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


_SPECIAL: Mapping[str, Callable[[Column, Value, bytes], str]] = {
    "numeric": _number_text, "float4": _number_text, "float8": _number_text,
    "bool": _bool_text, "bytea": _bytes_text, "uuid": _uuid_text,
    **dict.fromkeys(TEMPORAL, _temporal_text),
}  # fmt: skip
