"""Columns of documents that are alike: Arrow reads their values as text, without an object for any of them.

A quick way to what `columnreaders` does, for the kinds whose values stand in a document as they are (`alike`). What a
`TextReader` does not take, it raises an error for, or gives the same column as the other way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.log.schema import Kind

if TYPE_CHECKING:
    import pyarrow as pa

PLAIN, STRING = "", '"'
"""How a value may be written, beside null: without quotes, or as a string. A form is told by its name, as `$date`."""

_INTEGER = "^(?:0|-?[1-9][0-9]*)$"
_NUMBER = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$"
_LONG_INTEGER = "^-?[0-9]{16,}$"
"""Shorter ones are floats, all of them."""
_BOOL = "^(?:true|false)$"


class TextReader(NamedTuple):
    """`spelt` is how the values are written; `read` makes a column of their texts, of which any may be null."""

    spelt: str
    read: Callable[[pa.Array], pa.Array]


def text_reader_of(
    arrow: pa.DataType, kind: Kind, form: tuple[str, Callable[[pa.Array, pa.DataType], pa.Array]] | None
) -> TextReader | None:
    """How to read values of this kind into a column of this type; None where only the other way does.

    A kind that is written as a form has its name, and what reads the texts inside.
    """
    import pyarrow.types as pt

    if form is not None:
        name, parse = form
        return TextReader(name, lambda texts: parse(texts, arrow))
    if kind is Kind.STRING and (pt.is_string(arrow) or pt.is_large_string(arrow)):
        return TextReader(STRING, lambda texts: texts.cast(arrow))
    if kind is Kind.INT and pt.is_integer(arrow):
        return TextReader(PLAIN, partial(_integers, arrow))
    if kind is Kind.FLOAT and pt.is_float64(arrow):
        return TextReader(PLAIN, _floats)
    if kind is Kind.DECIMAL:
        return TextReader(PLAIN, lambda texts: _matching(texts, _NUMBER).cast(arrow))
    if kind is Kind.BOOL and pt.is_boolean(arrow):
        return TextReader(PLAIN, _bools)
    return None


def _matching(texts: pa.Array, pattern: str) -> pa.Array:
    import pyarrow.compute as pc

    if pc.all(pc.match_substring_regex(texts, pattern)).as_py() is False:
        raise ValueError("a value is written otherwise")
    return texts


def _integers(arrow: pa.DataType, texts: pa.Array) -> pa.Array:
    import pyarrow as pa

    return _matching(texts, _INTEGER).cast(pa.int64()).cast(arrow)


def _floats(texts: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = _matching(texts, _NUMBER).cast(pa.float64())
    if pc.any(pc.is_inf(found)).as_py():
        raise ValueError("a number is too large")
    if pc.any(pc.match_substring_regex(texts, _LONG_INTEGER)).as_py():
        raise ValueError("a whole number may have more digits than a float")
    return found


def _bools(texts: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.equal(_matching(texts, _BOOL), "true")
