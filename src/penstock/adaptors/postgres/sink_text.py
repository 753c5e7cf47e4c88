"""From the text of JSON values to the text that PostgreSQL's COPY reads, column by column.

Rows are read many at a time by a struct that has the usual form of each column; a row that it does not fit is read
value by value, which takes ten times as long and names what is wrong. The server is the judge of the rest: the rows
are copied into columns of the very types, and what it refuses is refused with its words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.adaptors.changes import UNFIT
from penstock.adaptors.postgres.sink_values import DAY, FLOATS, INTEGERS, JSONS, Column, scale_of, text_of

NULL = r"\N"

_ESCAPES = {"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\b": r"\b", "\f": r"\f", "\v": r"\v"}
_TABLE = str.maketrans(_ESCAPES)

WHOLE = r"-?(?:0|[1-9][0-9]*)"
"""A whole number of JSON."""

_CLOCK = r"[0-2]\d:[0-5]\d:[0-5]\d(?:\.\d{1,6})?"
_MOMENT = r"\d{4,}-\d\d-\d\d[T ](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?"
_OFFSET = r"(?:Z|[+-]\d\d:\d\d(?::\d\d)?)"

FORMS: Mapping[str, tuple[str, str]] = {
    "date": ("$localDate", DAY),
    "time": ("$localTime", _CLOCK),
    "timetz": ("$time", _CLOCK + _OFFSET),
    "timestamp": ("$localTimestamp", _MOMENT),
    "timestamptz": ("$date", _MOMENT + _OFFSET),
    "uuid": ("$uuid", r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
}
"""Types whose values are objects with one text: its name, and what of it goes to the server unread."""


class _Careful(Exception):  # noqa: N818 - says that the rows want a closer look, not that they are wrong
    """Some value has not the usual form of its column."""


class _Bytes(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    base64: bytes
    subType: str  # noqa: N815 - the name in the text


def _form(name: str) -> Any:
    """A struct for `{"$name": "…"}`."""
    return msgspec.defstruct(
        "Form", [("text", str)], rename={"text": name}, forbid_unknown_fields=True, gc=False
    )


_FORM_TYPES = {base: _form(name) for base, (name, _) in FORMS.items()}
_BINARY: Any = msgspec.defstruct(
    "Form", [("binary", _Bytes)], rename={"binary": "$binary"}, forbid_unknown_fields=True, gc=False
)


def wanted(column: Column) -> Any:
    """What a column's values usually are."""
    if column.element or column.base in JSONS or column.base in FLOATS or column.base == "numeric":
        return msgspec.Raw
    if column.base in INTEGERS:
        return int | None
    if column.base == "bool":
        return bool | None
    if column.base == "bytea":
        return _BINARY | None
    if column.base in _FORM_TYPES:
        return _FORM_TYPES[column.base] | None
    return str | None


def texts(column: Column, values: Sequence[Any]) -> list[str]:
    """The texts of values that are as `wanted`; raises `_Careful` if one is not what it seems."""
    if column.base in INTEGERS:
        return [str(value) if value is not None else NULL for value in values]
    if column.base == "bool":
        return [("t" if value else "f") if value is not None else NULL for value in values]
    if column.base == "bytea":
        return [_hex(value.binary) if value is not None else NULL for value in values]
    if column.base in FORMS:
        return _form_texts(column, values)
    if wanted(column) is msgspec.Raw:
        return _raw_texts(column, values)
    return escaped(values)


def _hex(value: _Bytes) -> str:
    if value.subType not in ("00", "0"):
        raise _Careful
    return r"\\x" + value.base64.hex()


def _form_texts(column: Column, values: Sequence[Any]) -> list[str]:
    found = [value.text if value is not None else None for value in values]
    if column.mod >= 0 or not _all_match(found, FORMS[column.base][1]):
        raise _Careful
    return [text if text is not None else NULL for text in found]


def _all_match(found: Sequence[str | None], pattern: str) -> bool:
    """Whether all texts that there are match as a whole; for a column, Arrow is several times as fast as `re`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    matched = pc.match_substring_regex(pa.array(found, pa.string()), f"^(?:{pattern})$")
    return pc.all(matched).as_py() is not False


def _raw_texts(column: Column, values: Sequence[msgspec.Raw]) -> list[str]:
    found = [bytes(value) for value in values]
    if column.base in FLOATS or column.base == "numeric":
        numbers = [None if raw == b"null" else str(raw, "ascii", "replace") for raw in found]
        if not _all_match(numbers, kept(column)):
            raise _Careful
        return [NULL if number is None else number for number in numbers]
    if column.base in JSONS:
        if any(b"$literal" in raw or b"\\u0024" in raw for raw in found):
            raise _Careful
        return escaped([None if raw == b"null" else str(raw, "utf-8") for raw in found])
    try:
        return escaped([text_of(column, raw) for raw in found])
    except UNFIT:
        raise _Careful from None


def kept(column: Column) -> str:
    """Numbers of JSON that a column keeps all digits of, as far as their length shows it."""
    if column.base in FLOATS:
        exponent = r"[eE][+-]?[0-9]+"
        return rf"-?(?:0|[1-9][0-9]{{0,14}})|{WHOLE}(?:\.[0-9]+(?:{exponent})?|{exponent})"
    if column.mod < 0:
        return WHOLE + r"(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
    scale = scale_of(column)
    return WHOLE if scale <= 0 else rf"{WHOLE}(?:\.[0-9]{{1,{scale}}})?"


def escaped(found: Sequence[str | None]) -> list[str]:
    """Texts as COPY reads them."""
    given = found if None not in found else [text for text in found if text is not None]
    everything = "".join(given)  # type: ignore[arg-type]
    if "\0" in everything:
        raise _Careful
    if not any(character in everything for character in _ESCAPES):
        return list(given) if given is found else [NULL if text is None else text for text in found]  # type: ignore[arg-type]
    return [NULL if text is None else text.translate(_TABLE) for text in found]


@dataclass(frozen=True)
class Reader:
    """Reads documents into the texts of these columns, many at a time."""

    columns: Sequence[Column]
    strict: bool
    """Whether a field that is none of the columns makes a row odd."""
    passed: Sequence[str] = ()
    """Fields that are passed over."""
    _decode: Callable[[bytes | str], Any] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_decode", _decoder(self.columns, self.strict, self.passed))

    def read(self, documents: Sequence[str]) -> tuple[dict[str, list[str]], list[int]]:
        """The columns of those documents that are as usual, by name, and the places of the others.

        A column that no document has is left out. If some have it and some have not, all of them are odd.
        """
        if self._decode is None:
            return {}, list(range(len(documents)))
        odd: list[int] = []
        rows = []
        decode_one = self._decode
        for place, document in enumerate(documents):
            try:
                rows.append(decode_one(document))
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                odd.append(place)
        try:
            return self._columns(rows), odd
        except _Careful:
            return {}, list(range(len(documents)))

    def _columns(self, rows: Sequence[Any]) -> dict[str, list[str]]:
        found = {}
        for column, values in zip(
            self.columns, zip(*map(msgspec.structs.astuple, rows), strict=True), strict=False
        ):
            unset = values.count(msgspec.UNSET)
            if unset == len(values):
                continue
            if unset:
                raise _Careful
            found[column.name] = texts(column, values)
        return found


_AWKWARD = re.compile(r'[\x00-\x1f"\\]')


def _decoder(
    columns: Sequence[Column], strict: bool, passed: Sequence[str]
) -> Callable[[bytes | str], Any] | None:
    """None if msgspec cannot have these names in a struct."""
    names = {f"c{index}": column.name for index, column in enumerate(columns)}
    names |= {f"p{index}": name for index, name in enumerate(passed)}
    if any(map(_AWKWARD.search, names.values())):
        return None
    fields = [
        (f"c{index}", wanted(column) | msgspec.UnsetType, msgspec.UNSET)
        for index, column in enumerate(columns)
    ]
    fields += [(f"p{index}", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for index in range(len(passed))]
    row = msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=strict, gc=False)
    return msgspec.json.Decoder(row).decode
