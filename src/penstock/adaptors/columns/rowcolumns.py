"""The text of messages to Arrow columns, the reverse of `rowtext`.

    kind                                       column, if nobody asks for another
    bool, int, float, string, binary           bool, int64, double, large_string, large_binary
    decimal                                    decimal(p, s) if the native type says so, as `numeric(10,2)` does;
                                               else large_string: its digits
    date, time, timestamp, local timestamp     date32, time64[us], timestamp[us, UTC], timestamp[us]
    uuid, object id                            large_string
    list                                       a list, if it is known of what; else as `any`
    map, any, regex, mongo timestamp           large_string: their JSON text

A field that a row does not have is null. A row that does not fit is *refused*, with the reason: a value of another kind
than the schema says, a number that the column cannot hold exactly, a field that the schema does not know (unless such
are to be ignored). Nothing is rounded or cut.

Rows are read a batch at a time: as text if they are all alike (`alike`), which most are, else by msgspec. Only if one
of them does not fit, halves of the batch are tried until it stands alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from penstock.adaptors.columns import textarrays as ta
from penstock.adaptors.columns.columnreaders import FIT_ERRORS, Reader, reader_of, texts_reader_of
from penstock.adaptors.columns.textcolumns import TextReader
from penstock.log import values
from penstock.log.schema import Field, Kind, Schema

if TYPE_CHECKING:
    import pyarrow as pa

Unknown = Literal["refuse", "ignore"]

_DIGITS = re.compile(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")

_MINUS_ZERO = re.compile(rb"-0(?=[\s,\]}])(?<=[\s,:\[]-0)")
"""Written as a whole number, which msgspec takes for one: as a float it would lose its sign."""


class Columns(NamedTuple):
    """A row for each text, in order; refused ones are null in every column. `refused` says why, by index."""

    batch: pa.RecordBatch
    refused: Mapping[int, str]


def arrow_of(schema: Schema) -> pa.Schema:
    """The columns that a schema asks for."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, _type_of(field)) for field in schema.fields])


def columns_of(
    texts: pa.Array, schema: Schema, arrow: pa.Schema | None = None, *, unknown: Unknown = "refuse"
) -> Columns:
    """The fields of each text as columns: those of `arrow_of(schema)`, or of `arrow`, which has the same names."""
    rows = _Rows(schema, arrow_of(schema) if arrow is None else arrow, unknown)
    return rows.read(ta.as_texts(texts))


def _type_of(field: Field) -> pa.DataType:
    import pyarrow as pa

    if field.kind is Kind.DECIMAL:
        return _decimal(field.native)
    if field.kind is Kind.LIST and field.items not in (None, Kind.ANY, Kind.LIST, Kind.MAP, Kind.NULL):
        return pa.list_(_plain_types()[field.items])
    return _plain_types()[field.kind]


def _decimal(native: str) -> pa.DataType:
    import pyarrow as pa

    found = _DIGITS.search(native)
    if found is None:
        return pa.uint64() if native == "uint64" else pa.large_string()
    precision, scale = int(found[1]), int(found[2] or 0)
    if not 0 < precision <= 76 or scale > precision:
        return pa.large_string()
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


@lru_cache(maxsize=1)
def _plain_types() -> Mapping[Kind | None, pa.DataType]:
    import pyarrow as pa

    text = pa.large_string()
    return {
        Kind.NULL: pa.null(), Kind.BOOL: pa.bool_(), Kind.INT: pa.int64(), Kind.FLOAT: pa.float64(),
        Kind.DECIMAL: text, Kind.STRING: text, Kind.BINARY: pa.large_binary(), Kind.DATE: pa.date32(),
        Kind.TIME: pa.time64("us"), Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
        Kind.LOCAL_TIMESTAMP: pa.timestamp("us"), Kind.UUID: text, Kind.OBJECT_ID: text,
        Kind.MONGO_TIMESTAMP: text, Kind.REGEX: text, Kind.LIST: text, Kind.MAP: text, Kind.ANY: text,
    }  # fmt: skip


_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@lru_cache(maxsize=64)
def _reading(schema: Schema, arrow: pa.Schema, *, strict: bool) -> tuple[list[Reader], Any]:
    """The readers of the columns, and what reads many rows at once; None if the names of the fields do not allow it.

    Made once for all batches of a namespace: to make them takes as long as to read a thousand rows.
    """
    kinds = {field.name: field.kind for field in schema.fields}
    readers = [reader_of(field.type, kinds[field.name]) for field in arrow]
    members = [
        (f"f{i}", reader.optional, msgspec.field(default=None, name=field.name))
        for i, (field, reader) in enumerate(zip(arrow, readers, strict=True))
    ]
    try:
        row = msgspec.defstruct("Row", members, gc=False, forbid_unknown_fields=strict)
    except ValueError:
        return readers, None
    return readers, msgspec.json.Decoder(row).decode_lines


@lru_cache(maxsize=64)
def _as_texts(schema: Schema, arrow: pa.Schema) -> Mapping[str, TextReader]:
    """How to read columns as text, of the fields that can be."""
    kinds = {field.name: field.kind for field in schema.fields}
    readers = {field.name: texts_reader_of(field.type, kinds[field.name]) for field in arrow}
    return {name: reader for name, reader in readers.items() if reader is not None}


def _holds_floats(arrow: pa.DataType) -> bool:
    import pyarrow.types as pt

    inside = (arrow.field(index).type for index in range(arrow.num_fields))
    return pt.is_floating(arrow) or any(map(_holds_floats, inside))


class _Rows:
    """Reads rows of one schema into columns."""

    def __init__(self, schema: Schema, arrow: pa.Schema, unknown: Unknown) -> None:
        self._schema = schema
        self._arrow = arrow
        self._unknown = unknown
        self._refused: dict[int, str] = {}
        self._readers, self._decode_lines = _reading(schema, arrow, strict=unknown == "refuse")
        self._texts = _as_texts(schema, arrow)
        self._floats = any(_holds_floats(field.type) for field in arrow)

    def read(self, texts: pa.Array) -> Columns:
        import pyarrow as pa

        self._refused = {}
        pieces = self._range(texts, 0) or [[pa.array([], field.type) for field in self._arrow]]
        columns = pieces[0]
        if len(pieces) > 1:
            columns = [pa.concat_arrays(parts) for parts in zip(*pieces, strict=True)]
        if not columns:
            return Columns(_without_columns(self._arrow, len(texts)), self._refused)
        return Columns(pa.RecordBatch.from_arrays(columns, schema=self._arrow), self._refused)

    def _range(self, texts: pa.Array, first: int) -> list[list[pa.Array]]:
        """The columns of some rows, piece by piece; `first` is the index of the first of them."""
        if not len(texts):
            return []
        for read in (self._alike, self._together) if len(texts) > 1 else (self._together,):
            try:
                found = read(texts)
            except FIT_ERRORS:
                continue
            if found is not None:
                return [found]
        if len(texts) == 1:
            return [self._alone(texts[0].as_py(), first)]
        half = len(texts) // 2
        return self._range(texts[:half], first) + self._range(texts[half:], first + half)

    def _alike(self, texts: pa.Array) -> list[pa.Array] | None:
        """The columns of rows that have the same fields, all of them of kinds that can be read as text."""
        import pyarrow as pa

        from penstock.adaptors.columns.alike import apart

        readers = self._texts
        taken = apart(texts, {name: reader.spelt for name, reader in readers.items()})
        if taken is None or len(taken.odd):
            return None
        return [
            readers[field.name].read(taken.columns[field.name].cast(pa.string()))
            if field.name in taken.columns
            else pa.nulls(len(texts), field.type)
            for field in self._arrow
        ]

    def _together(self, texts: pa.Array) -> list[pa.Array] | None:
        if self._decode_lines is None:
            return None
        lines = ta.content_of(ta.joined([texts, b"\n"], len(texts)))
        if texts.null_count:
            raise ValueError("a row without data")
        if self._floats and _MINUS_ZERO.search(lines.data):
            raise ValueError("a zero with a sign")
        rows = self._decode_lines(lines.data)
        if len(rows) != len(texts):
            raise ValueError("not one object a row")
        return [reader.gather(list(map(attrgetter(f"f{i}"), rows))) for i, reader in enumerate(self._readers)]

    def _alone(self, text: bytes | None, index: int) -> list[pa.Array]:
        """One row, by its values rather than its spelling; says what is wrong with it."""
        import pyarrow as pa

        try:
            if text is None:
                raise values.ValuesError("there is no data")
            document = values.decode_document(text, self._schema)
            given = _read_fields(values.encode_document(document))
            if self._unknown == "refuse":
                self._refuse_unknown(given)
            return [
                _one(reader, field, given.get(field.name), document.get(field.name))
                for reader, field in zip(self._readers, self._arrow, strict=True)
            ]
        except values.ValuesError as error:
            self._refused[index] = error.message
            return [pa.nulls(1, field.type) for field in self._arrow]

    def _refuse_unknown(self, given: Mapping[str, msgspec.Raw]) -> None:
        for name in given:
            if name not in self._arrow.names:
                raise values.ValuesError(f"field '{name}' is not in the schema")


def _one(reader: Reader, field: pa.Field, raw: msgspec.Raw | None, value: values.Value) -> pa.Array:
    if raw is None or value is None:
        return reader.gather([None])
    try:
        return reader.gather([msgspec.json.decode(raw, type=reader.optional)])
    except FIT_ERRORS:
        shown = repr(value)[:60]
        raise values.ValuesError(
            f"field '{field.name}': {shown} ({values.kind_of(value).value}) does not fit {field.type}"
        ) from None


def _without_columns(arrow: pa.Schema, rows: int) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
