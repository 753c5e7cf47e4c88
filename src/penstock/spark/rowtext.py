"""Rows to the bytes of a journal, the reverse of `formats.py`.

    lines   the column `value`, a newline behind each; a value with a newline in it is refused
    raw     the column `value`, one behind the other
    json    all columns as one JSON object a line, in the order of the schema

JSON text: numbers as numbers (NaN and the infinities as strings), DECIMAL with all its digits, times in ISO 8601 with
microseconds (TIMESTAMP in UTC), BINARY in base64, maps as objects, VARIANT as the document that it holds, and null as
null. Read back with the same schema (content=json) it gives the same rows.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import types as st

from penstock.base.errors import PenstockError, UsageError
from penstock.spark.options import Content

if TYPE_CHECKING:
    import pyarrow as pa

VALUE = "value"

Convert = Callable[[Any], Any]

_encoder = msgspec.json.Encoder(decimal_format="number")


class RowError(PenstockError):
    """A row that cannot be written as it is."""


class Rows:
    """Turns batches into bytes. Pickled, so it holds the schema alone."""

    def __init__(self, schema: st.StructType, content: Content) -> None:
        self._schema = schema
        self._content = content
        if content is Content.JSON:
            for field in schema.fields:
                _converter(field.dataType, field.name)
        elif VALUE not in schema.names or schema[VALUE].dataType.simpleString() not in ("string", "binary"):
            raise UsageError(
                f"data source penstock: content '{content}' is written from a column '{VALUE}' of STRING or BINARY, "
                f"the frame has {schema.simpleString()}",
                hint="select one, for example to_json(struct(*)) AS value; or use content=json",
            )

    def encode(self, batch: pa.RecordBatch) -> Iterator[memoryview]:
        if not batch.num_rows:
            return
        if self._content is Content.JSON:
            yield memoryview(self._json(batch))
        else:
            yield from self._values(batch.column(VALUE))

    def _values(self, column: pa.Array) -> Iterator[memoryview]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if column.null_count:
            raise RowError(
                f"a row whose column '{VALUE}' is null",
                hint="leave such rows out: .where('value IS NOT NULL')",
            )
        column = column.cast(pa.large_binary())
        nothing, newline = (pa.scalar(text, pa.large_binary()) for text in (b"", b"\n"))
        if self._content is Content.LINES:
            if pc.any(pc.match_substring(column, b"\n")).as_py():
                raise RowError(
                    f"a row whose column '{VALUE}' has a newline in it, which would become two lines",
                    hint="content=json escapes it, content=raw appends the bytes as they are",
                )
            column = pc.binary_join_element_wise(column, nothing, newline)
        _, offsets, data = column.buffers()
        ends = memoryview(offsets).cast("q")
        yield memoryview(data)[ends[column.offset] : ends[column.offset + len(column)]]

    def _json(self, batch: pa.RecordBatch) -> bytes:
        names = [field.name for field in self._schema.fields]
        columns = []
        for field in self._schema.fields:
            values = batch.column(field.name).to_pylist()
            convert = _converter(field.dataType, field.name)
            columns.append(values if convert is None else [None if v is None else convert(v) for v in values])
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        return _encoder.encode_lines(rows)


_AS_THEY_ARE = (st.BooleanType, st.ByteType, st.ShortType, st.IntegerType, st.LongType, st.StringType,
                st.BinaryType, st.DateType, st.TimestampNTZType, st.DecimalType)  # fmt: skip


def _converter(kind: st.DataType, column: str) -> Convert | None:
    """What makes of a value of this type one that the encoder writes; None if it is one already."""
    if isinstance(kind, _AS_THEY_ARE):
        return None
    if isinstance(kind, (st.FloatType, st.DoubleType)):
        return _number
    if isinstance(kind, st.TimestampType):
        return _utc
    if isinstance(kind, st.VariantType):
        return _document
    if isinstance(kind, st.ArrayType):
        element = _converter(kind.elementType, column) or _same
        return lambda value: [None if v is None else element(v) for v in value]
    if isinstance(kind, st.MapType) and isinstance(kind.keyType, st.StringType):
        inner = _converter(kind.valueType, column) or _same
        return lambda value: {k: None if v is None else inner(v) for k, v in value}
    if isinstance(kind, st.StructType):
        fields = {f.name: _converter(f.dataType, column) or _same for f in kind.fields}
        return lambda value: {k: None if value[k] is None else f(value[k]) for k, f in fields.items()}
    raise UsageError(
        f"data source penstock: column '{column}' of type {kind.simpleString()} has no JSON form",
        hint="cast it to STRING first",
    )


def _same(value: Any) -> Any:
    return value


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _utc(value: datetime.datetime) -> datetime.datetime:
    return value.astimezone(datetime.UTC)


def _document(value: dict[str, bytes]) -> msgspec.Raw:
    return msgspec.Raw(st.VariantVal(value["value"], value["metadata"]).toJson().encode())
