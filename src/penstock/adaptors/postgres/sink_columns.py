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
from penstock.adaptors.postgres import sink_sure
from penstock.adaptors.postgres.sink_text import FORMS, NULL, kept, wanted
from penstock.adaptors.postgres.sink_values import FLOATS, INTEGERS, Column

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Alike:
    """The columns of rows as the server reads them (`large_string`), null for NULL; and the places of all other rows.

    `sure` says whether the server takes each of their values (`sink_sure`).
    """

    columns: Mapping[str, pa.Array]
    odd: Sequence[int]
    sure: bool


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows as columns, by name, which become lines when they are wanted. `order` are their numbers."""

    order: npt.NDArray[np.int64]
    values: Mapping[str, pa.Array]
    sure: bool

    def lines(self) -> list[str]:
        """Of each row its number and its values."""
        import pyarrow as pa

        found: list[str] = _joined([pa.array(self.order), *self.values.values()], end=False).to_pylist()
        return found

    def content(self) -> memoryview:
        """The values alone, as COPY takes them: a line for each row, with its end."""
        return ta.content_of(_joined(list(self.values.values()), end=True)).data


@dataclass(frozen=True, slots=True)
class _Usual:
    """How the values of a column are usually written, and what they then match; None if there is nothing to see.

    Whatever matches `sure` matches `pattern`, too.
    """

    column: Column
    spelt: str
    pattern: str | None
    sure: str | None


class AlikeReader:
    """Reads documents into the texts of these columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        found = {column.name: _usual(column) for column in columns}
        self._usual = {name: usual for name, usual in found.items() if usual is not None}
        self._bools = {column.name for column in columns if column.base == "bool"}

    def read(self, documents: pa.Array) -> Alike | None:
        """None if these documents have to be looked at one by one."""
        import pyarrow as pa

        texts = ta.as_texts(documents)
        spelt = {name: usual.spelt for name, usual in self._usual.items()}
        found = apart(texts, spelt, as_strings=documents.type in (pa.string(), pa.large_string()))
        if found is None or 2 * len(found.odd) > len(texts):  # not alike at all
            return None
        columns = {}
        sure = True
        for name, values in found.columns.items():
            looked_at = _looked_at(self._usual[name], values)
            if looked_at is None:
                return None
            column, taken = looked_at
            columns[name] = _letters(column) if name in self._bools else column
            sure = sure and taken
        return Alike(columns, found.odd.tolist(), sure)


def _joined(columns: Sequence[pa.Array], *, end: bool) -> pa.Array:
    """Lines of columns (`large_string`), with or without the end of the line."""
    import pyarrow as pa
    import pyarrow.compute as pc

    tab, empty = pa.scalar("\t", pa.large_string()), pa.scalar("", pa.large_string())
    parts = [column.cast(pa.large_string()) for column in columns]
    if not end:
        return pc.binary_join_element_wise(*parts, tab, null_handling="replace", null_replacement=NULL)
    between = [part for column in parts for part in (column, tab)][:-1]
    newline = pa.scalar("\n", pa.large_string())
    return pc.binary_join_element_wise(
        *between, newline, empty, null_handling="replace", null_replacement=NULL
    )


def _usual(column: Column) -> _Usual | None:
    """None for columns whose values only `sink_text` reads."""
    if column.element:
        return None
    sure = sink_sure.pattern_of(column)
    if column.base in INTEGERS:
        return _Usual(column, PLAIN, "0|-?[1-9][0-9]*", sure)
    if column.base == "bool":
        return _Usual(column, PLAIN, "true|false", sure)
    if column.base in FLOATS or column.base == "numeric":
        return _Usual(column, PLAIN, kept(column), sure)
    if column.base in FORMS:
        name, pattern = FORMS[column.base]
        return _Usual(column, name, pattern, sure) if column.mod < 0 else None
    return _Usual(column, STRING, None, None) if wanted(column) == str | None else None


def _looked_at(usual: _Usual, values: pa.Array) -> tuple[pa.Array, bool] | None:
    """The values as text, and whether the server takes them for sure; None if some are not as usual."""
    import pyarrow as pa

    texts = values.cast(pa.large_string())
    if usual.sure is not None and _all_match(texts, usual.sure):
        return texts, True
    if usual.pattern is not None and not _all_match(texts, usual.pattern):
        return None
    return texts, sink_sure.takes(usual.column, texts)


def _all_match(texts: pa.Array, pattern: str) -> bool:
    import pyarrow.compute as pc

    return pc.all(pc.match_substring_regex(texts, f"^(?:{pattern})$")).as_py() is not False


def _letters(words: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.utf8_slice_codeunits(words, 0, 1)
