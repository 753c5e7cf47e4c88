"""Rows that are alike, from JSON text to lines for COPY without an object for each of their values.

Most batches of a copied table are nothing else: documents with the same fields, whose values have the usual form of
their columns. They are taken apart as columns (`columns.alike`), each column is looked at once, and the lines are put
together. What goes to the server is, byte for byte, what `sink_text` makes of the same rows. Whatever is not as usual
is left to that: a row with escapes, or the whole batch if some value of it is not what it seems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.adaptors.columns import textarrays as ta
from penstock.adaptors.columns.alike import apart
from penstock.adaptors.columns.textcolumns import PLAIN, STRING
from penstock.adaptors.postgres.sink_text import FORMS, NULL, kept, wanted
from penstock.adaptors.postgres.sink_values import FLOATS, INTEGERS, Column

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Alike:
    """The columns of rows as the server reads them (`string`), null for NULL; and the places of rows not among them."""

    columns: Mapping[str, pa.Array]
    odd: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Usual:
    """How the values of a column are usually written, and what they then match; None if there is nothing to see."""

    spelt: str
    pattern: str | None


class AlikeReader:
    """Reads documents into the texts of these columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        found = {column.name: _usual(column) for column in columns}
        self._usual = {name: usual for name, usual in found.items() if usual is not None}
        self._bools = {column.name for column in columns if column.base == "bool"}

    def read(self, documents: pa.Array) -> Alike | None:
        """None if these documents have to be looked at one by one."""
        texts = ta.as_texts(documents)
        found = apart(texts, {name: usual.spelt for name, usual in self._usual.items()})
        if found is None or 2 * len(found.odd) > len(texts):  # not alike at all
            return None
        columns = {}
        for name, values in found.columns.items():
            column = _checked(values, self._usual[name].pattern)
            if column is None:
                return None
            columns[name] = _letters(column) if name in self._bools else column
        return Alike(columns, found.odd.tolist())


def lines_of(order: npt.NDArray[np.int64], columns: Sequence[pa.Array]) -> list[str]:
    """The lines of rows: their numbers, then the columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [pa.array(order).cast(pa.large_string()), *(column.cast(pa.large_string()) for column in columns)]
    tab = pa.scalar("\t", pa.large_string())
    joined = pc.binary_join_element_wise(*parts, tab, null_handling="replace", null_replacement=NULL)
    found: list[str] = joined.to_pylist()
    return found


def _usual(column: Column) -> _Usual | None:
    """None for columns whose values only `sink_text` reads."""
    if column.element:
        return None
    if column.base in INTEGERS:
        return _Usual(PLAIN, "0|-?[1-9][0-9]*")
    if column.base == "bool":
        return _Usual(PLAIN, "true|false")
    if column.base in FLOATS or column.base == "numeric":
        return _Usual(PLAIN, kept(column))
    if column.base in FORMS:
        name, pattern = FORMS[column.base]
        return _Usual(name, pattern) if column.mod < 0 else None
    return _Usual(STRING, None) if wanted(column) == str | None else None


def _checked(values: pa.Array, pattern: str | None) -> pa.Array | None:
    """The values as text, if all of them match."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = values.cast(pa.string())
    if pattern is None:
        return texts
    matched = pc.all(pc.match_substring_regex(texts, f"^(?:{pattern})$")).as_py()
    return texts if matched is not False else None


def _letters(words: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.utf8_slice_codeunits(words, 0, 1)
