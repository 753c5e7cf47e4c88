"""JSON documents to columns of a schema that the user gave.

Each line is one document, decoded straight into the schema's types. Fields that the schema does not name are skipped,
fields that a document lacks are null. A document fits if every field has the schema's type, with three allowances: what
is no string is its JSON text where the schema says STRING, the strings "NaN", "Infinity" and "-Infinity" are numbers
where it says DOUBLE or FLOAT; and a DECIMAL is rounded to its scale. What becomes of one
that does not fit is the `mode`, in Spark's words: PERMISSIVE gives a row of nulls, with the text in the column
`_corrupt_record` if the schema has it; DROPMALFORMED leaves it out; FAILFAST is an error that names it.

A column `_offset BIGINT` is where the document begins in the journal.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypedDict

import msgspec
from pyspark.sql import types as st

from penstock.base.errors import CorruptError, UsageError
from penstock.spark.options import Mode

if TYPE_CHECKING:
    import pyarrow as pa

OFFSET = "_offset"
CORRUPT = "_corrupt_record"

_INTEGERS: dict[type[st.DataType], int] = {
    st.ByteType: 8,
    st.ShortType: 16,
    st.IntegerType: 32,
    st.LongType: 64,
}
_PLAIN: dict[type[st.DataType], object] = {
    st.BooleanType: bool,
    st.FloatType: float,
    st.DoubleType: float,
    st.StringType: str,
    st.BinaryType: bytes,
    st.DateType: datetime.date,
    st.TimestampType: datetime.datetime,
    st.TimestampNTZType: Annotated[datetime.datetime, msgspec.Meta(tz=False)],
    st.DecimalType: decimal.Decimal,
}
_SPECIAL = {b'"NaN"': math.nan, b'"Infinity"': math.inf, b'"-Infinity"': -math.inf}
_ERRORS = (msgspec.DecodeError, ValueError, decimal.InvalidOperation)


def check_json_schema(schema: st.StructType) -> None:
    for field in schema.fields:
        expected = {OFFSET: "bigint", CORRUPT: "string"}.get(field.name)
        if expected is not None and field.dataType.simpleString() != expected:
            raise UsageError(f"data source penstock: column '{field.name}' is {expected.upper()}")
        if expected is None:
            _python_type(field.dataType, field.name)


def _python_type(kind: st.DataType, column: str) -> object:
    """What a value is decoded as. Nested documents become plain dicts, which Arrow understands."""
    bits = _INTEGERS.get(type(kind))
    if bits is not None:
        return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]
    if isinstance(kind, st.ArrayType):
        return list[Optional[_python_type(kind.elementType, column)]]  # type: ignore[misc]  # noqa: UP045
    if isinstance(kind, st.MapType) and isinstance(kind.keyType, st.StringType):
        return dict[str, Optional[_python_type(kind.valueType, column)]]  # type: ignore[misc]  # noqa: UP045
    if isinstance(kind, st.StructType):
        fields = {f.name: Optional[_python_type(f.dataType, column)] for f in kind.fields}  # noqa: UP045
        return TypedDict("Nested", fields, total=False)  # type: ignore[operator]
    found = _PLAIN.get(type(kind))
    if found is None:
        raise UsageError(
            f"data source penstock: column '{column}' cannot be {kind.simpleString().upper()}",
            hint="read it as STRING, and let Spark convert the text",
        )
    return found


class JsonRows:
    """Makes batches of documents."""

    def __init__(self, schema: st.StructType, mode: Mode, journal: str) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._mode = mode
        self._journal = journal
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        self._fields = [field for field in schema.fields if field.name not in (OFFSET, CORRUPT)]
        members = [
            (
                f"f{i}",
                Optional[_python_type(field.dataType, field.name)],  # noqa: UP045
                msgspec.field(default=None, name=field.name),
            )
            for i, field in enumerate(self._fields)
        ]
        row = msgspec.defstruct("Row", members, gc=False)
        self._empty = row()
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(row).decode
        self._raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
        self._decoders = [
            msgspec.json.Decoder(Optional[_python_type(field.dataType, field.name)])  # noqa: UP045
            for field in self._fields
        ]

    def batch(self, offsets: Sequence[int], documents: Sequence[bytes]) -> pa.RecordBatch:
        """The documents that begin at these offsets, as one batch."""
        try:
            return self._columns(offsets, [self._decode(document) for document in documents], None)
        except (*_ERRORS, _arrow_error()):
            return self._leniently(offsets, documents)

    def _leniently(self, offsets: Sequence[int], documents: Sequence[bytes]) -> pa.RecordBatch:
        """One by one, with the allowances; those that still do not fit go by the mode."""
        places: list[int] = []
        rows: list[Any] = []
        corrupt: list[str | None] = []
        for offset, document in zip(offsets, documents, strict=True):
            text = None
            try:
                row = self._fitted(document)
            except (*_ERRORS, _arrow_error()) as error:
                if self._mode is Mode.FAILFAST:
                    raise CorruptError(
                        f"a document that does not fit the schema ({error})",
                        where=self._journal,
                        position=offset,
                        hint="mode=PERMISSIVE gives nulls instead, mode=DROPMALFORMED leaves it out",
                    ) from None
                if self._mode is Mode.DROPMALFORMED:
                    continue
                row, text = self._empty, document.decode(errors="replace")
            places.append(offset)
            rows.append(row)
            corrupt.append(text)
        return self._columns(places, rows, corrupt)

    def _fitted(self, document: bytes) -> Any:
        given = self._raw_fields(document)
        row = type(self._empty)()
        for i, (field, decoder) in enumerate(zip(self._fields, self._decoders, strict=True)):
            raw = given.get(field.name)
            if raw is None:
                continue
            text = bytes(raw)
            if isinstance(field.dataType, st.StringType) and text[:1] not in (b'"', b"n"):
                setattr(row, f"f{i}", text.decode())
            elif isinstance(field.dataType, (st.FloatType, st.DoubleType)) and text in _SPECIAL:
                setattr(row, f"f{i}", _SPECIAL[text])
            else:
                setattr(row, f"f{i}", decoder.decode(text))
        self._columns([0], [row], [None])  # Arrow may have a complaint of its own
        return row

    def _columns(
        self, offsets: Sequence[int], rows: Sequence[Any], corrupt: Sequence[str | None] | None
    ) -> pa.RecordBatch:
        import pyarrow as pa

        given: dict[str, list[Any]] = {
            field.name: _values(field.dataType, [getattr(row, f"f{i}") for row in rows])
            for i, field in enumerate(self._fields)
        }
        given[OFFSET] = list(offsets)
        given[CORRUPT] = list(corrupt) if corrupt is not None else [None] * len(rows)
        arrays = [pa.array(given[field.name], field.type) for field in self._arrow]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)


def _values(kind: st.DataType, values: list[Any]) -> list[Any]:
    """The values of a column as Arrow takes them."""
    if isinstance(kind, st.DecimalType):
        unit = decimal.Decimal(1).scaleb(-kind.scale)
        wide = decimal.Context(prec=76)
        return [None if v is None else v.quantize(unit, decimal.ROUND_HALF_UP, context=wide) for v in values]
    if isinstance(kind, st.TimestampType):
        utc = datetime.UTC
        return [v.replace(tzinfo=utc) if v is not None and v.tzinfo is None else v for v in values]
    return values


def _arrow_error() -> type[Exception]:
    import pyarrow as pa

    error: type[Exception] = pa.ArrowException
    return error
