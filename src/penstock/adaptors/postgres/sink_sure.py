"""Values that the server takes for sure: it need not see them before the batch that they are in is published.

A row that is staged at the server is refused there, by itself, if the server cannot read it. Rows that are handed over
when they are published have no such second chance: a value that is not taken would be the end of its whole batch. So
only values go that way of which it is known here that they can be read as what their column is. What is left out is
not wrong, but is for the server to judge: dates before the year 1000, numbers with many digits, types of other kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.adaptors.postgres.sink_text import FORMS
from penstock.adaptors.postgres.sink_values import Column, scale_of

if TYPE_CHECKING:
    import pyarrow as pa

_TEXTS = frozenset({"text", "varchar"})

_DATE = (
    r"(?:[1-9]\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))"
    r"|(?:[1-9]\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)"
)
_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?"
_ZONE = r"(?:Z|[+-](?:0\d|1[0-4]):[0-5]\d)"

_PATTERNS: Mapping[str, str] = {
    "bool": "true|false",
    "int2": r"0|-?[1-9]\d{0,3}", "int4": r"0|-?[1-9]\d{0,8}", "int8": r"0|-?[1-9]\d{0,17}", "oid": r"0|[1-9]\d{0,8}",
    "float4": r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,20})?",
    "float8": r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,20})?(?:[eE][+-]?\d{1,2})?",
    "date": _DATE, "time": _CLOCK, "timetz": _CLOCK + _ZONE,
    "timestamp": f"{_DATE}[T ]{_CLOCK}", "timestamptz": f"{_DATE}[T ]{_CLOCK}{_ZONE}",
    "uuid": FORMS["uuid"][1],
}  # fmt: skip

_LONGEST = 100
"""Digits before and behind the point: the length of a pattern grows with them."""


def pattern_of(column: Column) -> str | None:
    """What texts of numbers and times match that the column takes for sure; None if there is nothing to go by."""
    if column.base == "numeric":
        return _numeric(column)
    return _PATTERNS.get(column.base) if column.mod < 0 else None


def _numeric(column: Column) -> str | None:
    if column.mod < 0:
        return rf"-?(?:0|[1-9]\d{{0,{_LONGEST}}})(?:\.\d{{1,{_LONGEST}}})?"
    scale = scale_of(column)
    whole = (column.mod - 4 >> 16 & 0xFFFF) - scale
    if not (0 <= scale <= _LONGEST and 0 < whole <= _LONGEST):
        return None
    return rf"-?(?:0|[1-9]\d{{0,{whole - 1}}})" + (rf"(?:\.\d{{1,{scale}}})?" if scale else "")


def takes(column: Column, texts: pa.Array) -> bool:
    """Whether a column takes all of these texts, which are those of whole numbers, or any text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.base in _TEXTS:
        longest = pc.max(pc.utf8_length(texts)).as_py() if column.mod >= 0 else None
        return longest is None or longest <= column.mod - 4
    wide = {"int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64()}.get(column.base)
    if wide is None:
        return False
    try:
        texts.cast(wide)
    except pa.ArrowInvalid:
        return False
    return True
