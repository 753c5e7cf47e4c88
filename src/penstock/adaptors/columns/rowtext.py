"""Arrow columns to the text of messages, without an object for each row.

`row_texts` gives, for each row of a batch, the text that `penstock.log.values` gives for it value by value; the kinds
are told by `schema_of`. What Arrow has and `values` has not:

    uint64                   a number; of the kind decimal, since half of its range is beyond an int
    float16, float32         the double that is the same number
    timestamp with a zone    a moment, written in UTC; the zone is a matter of the column
    nanoseconds              nine digits where six do not do; read back as text by what knows microseconds only
    fixed-size binary        binary; `arrow.uuid` a uuid, `arrow.json` the document that it holds
    duration                 an int, which counts what its native type says
    struct, map              a map; keys that are no strings become their text
    dictionary, run-end      what they stand for

A column of text can stand for another kind if the schema that is given says so: a decimal, a uuid, an object id, or any
value as JSON text. That is how sources hand on what their system gives them as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from penstock.adaptors.columns import textarrays as ta
from penstock.adaptors.columns.textarrays import Piece
from penstock.adaptors.columns.texttimes import dates, moments, times
from penstock.base.errors import PenstockError
from penstock.log import extended, values
from penstock.log.schema import Field, Kind, Schema

if TYPE_CHECKING:
    import pyarrow as pa

Writer: TypeAlias = "Callable[[pa.Array], list[Piece]]"

_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"


class NoTextError(PenstockError):
    """A column whose values have no text."""


def schema_of(arrow: pa.Schema, key: Sequence[str] = ()) -> Schema:
    """What the columns are, in the words of the log."""
    return Schema(tuple(_field_of(field) for field in arrow), tuple(key))


def row_texts(batch: pa.RecordBatch, schema: Schema | None = None) -> pa.Array:
    """The text of each row, an object with all columns in their order, as `large_binary`."""
    kinds = {field.name: field.kind for field in schema.fields} if schema is not None else {}
    names = batch.schema.names
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise NoTextError(f"two columns have the name '{twice}'", hint="give one of them another name")
    columns = [_named(name, batch.column(name), kinds.get(name)) for name in names]
    return ta.joined(_object(names, columns), batch.num_rows)


def key_texts(batch: pa.RecordBatch, key: Sequence[str], schema: Schema | None = None) -> pa.Array:
    """The text of each row's key: an object with these columns."""
    return row_texts(batch.select(list(key)), schema)


def kind_of(arrow: pa.DataType) -> Kind:
    """The kind of the values of an Arrow type."""
    return _lookup(arrow)[0]


def _field_of(field: pa.Field) -> Field:
    import pyarrow.types as pt

    items = None
    if pt.is_list(field.type) or pt.is_large_list(field.type) or pt.is_fixed_size_list(field.type):
        items = kind_of(field.type.value_type)
    return Field(field.name, kind_of(field.type), field.nullable, str(field.type), items)


def _object(names: Sequence[str], columns: Sequence[Sequence[Piece]]) -> list[Piece]:
    pieces: list[Piece] = []
    for index, (name, column) in enumerate(zip(names, columns, strict=True)):
        pieces += [b",%s:" % msgspec.json.encode(name) if index else b"{%s:" % msgspec.json.encode(name)]
        pieces += column
    return [*pieces, b"}"] if names else [b"{}"]


def _named(name: str, column: pa.Array, kind: Kind | None) -> list[Piece]:
    try:
        return _pieces(column, kind)
    except NoTextError as error:
        raise NoTextError(f"column '{name}': {error.message}", hint=error.hint) from None


def _pieces(array: pa.Array, kind: Kind | None = None) -> list[Piece]:
    """The text of each value; of nulls as well."""
    import pyarrow.compute as pc

    writer = _lookup(array.type)[1]
    if writer is _strings and kind in _AS_TEXT:
        writer = _AS_TEXT[kind]
    pieces = writer(array)
    if not array.null_count:
        return pieces
    return [pc.if_else(array.is_valid(), ta.joined(pieces, len(array)), ta.constant(b"null"))]


def _texts(array: pa.Array) -> pa.Array:
    return ta.joined(_pieces(array), len(array))


def _lookup(arrow: pa.DataType) -> tuple[Kind, Writer]:
    import pyarrow as pa
    import pyarrow.types as pt

    if isinstance(arrow, pa.BaseExtensionType):
        name = arrow.extension_name
        if name in ("arrow.uuid", "arrow.json"):
            return (Kind.UUID, _uuids) if name == "arrow.uuid" else (Kind.ANY, lambda one: _json(one.storage))
        return _lookup(arrow.storage_type)[0], lambda one: _pieces(one.storage)
    if pt.is_dictionary(arrow):
        return _lookup(arrow.value_type)[0], _dictionary
    if pt.is_run_end_encoded(arrow):
        return _lookup(arrow.value_type)[0], _run_ends
    for is_one, kind, writer in _table():
        if is_one(arrow):
            return kind, writer
    raise NoTextError(f"values of the Arrow type {arrow} have no text", hint="cast it, or leave it out")


def _table() -> list[tuple[Callable[[pa.DataType], bool], Kind, Writer]]:
    import pyarrow.types as pt

    def any_of(*tests: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
        return lambda arrow: any(test(arrow) for test in tests)

    return [
        (any_of(pt.is_string, pt.is_large_string, pt.is_string_view), Kind.STRING, _strings),
        (pt.is_uint64, Kind.DECIMAL, _digits),
        (pt.is_integer, Kind.INT, _digits),
        (pt.is_floating, Kind.FLOAT, _floats),
        (pt.is_boolean, Kind.BOOL, _digits),
        (pt.is_null, Kind.NULL, lambda array: [b"null"]),
        (pt.is_decimal, Kind.DECIMAL, _digits),
        (lambda arrow: pt.is_timestamp(arrow) and arrow.tz is not None, Kind.TIMESTAMP, _zoned),
        (pt.is_timestamp, Kind.LOCAL_TIMESTAMP, _local),
        (pt.is_date, Kind.DATE, _form("$localDate", dates)),
        (pt.is_time, Kind.TIME, _form("$localTime", times)),
        (any_of(pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary), Kind.BINARY, _binary),
        (pt.is_duration, Kind.INT, _durations),
        (pt.is_map, Kind.MAP, _maps),
        (any_of(pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view),
         Kind.LIST, _lists),
        (pt.is_struct, Kind.MAP, _structs),
    ]  # fmt: skip


def _digits(array: pa.Array) -> list[Piece]:
    return [ta.as_texts(array)]


def _durations(array: pa.Array) -> list[Piece]:
    import pyarrow as pa

    return [ta.as_texts(array.cast(pa.int64()))]


def _floats(array: pa.Array) -> list[Piece]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pc.fill_null(array.cast(pa.float64()), 0.0).to_numpy()
    texts = ta.split(msgspec.json.encode(numbers.tolist()), len(numbers))
    special = np.flatnonzero(~np.isfinite(numbers))
    if len(special):
        forms = [msgspec.json.encode(extended.write_float(float(numbers[row]))) for row in special]
        texts = ta.chosen(texts, special, forms)
    return [texts]


def _strings(array: pa.Array) -> list[Piece]:
    return ta.quoted(_utf8(array))


def _utf8(array: pa.Array) -> pa.Array:
    """The texts of a column of strings, which Arrow takes for UTF-8 without having looked."""
    import pyarrow as pa

    texts = ta.as_texts(array)
    if (ta.content_of(texts) >= 0x80).any():
        try:
            texts.view(pa.large_string()).validate(full=True)
        except pa.ArrowInvalid as error:
            raise NoTextError(f"text that is not UTF-8 ({error})", hint="mend it at the source") from None
    return texts


def _binary(array: pa.Array) -> list[Piece]:
    encoded = ta.split(msgspec.json.encode(array.to_pylist()), len(array))
    return [b'{"$binary":{"base64":', encoded, b',"subType":"00"}}']


def _uuids(array: pa.Array) -> list[Piece]:
    import numpy as np

    storage = array.storage
    data = np.frombuffer(storage.buffers()[1] or b"", np.uint8)
    rows = data[storage.offset * 16 : (storage.offset + len(storage)) * 16].reshape(-1, 16)
    return [b'{"$uuid":"', ta.uuids(rows), b'"}']


def _form(name: str, texts: Callable[[pa.Array], pa.Array]) -> Writer:
    before = b'{"%s":"' % name.encode()
    return lambda array: [before, texts(array), b'"}']


def _zoned(array: pa.Array) -> list[Piece]:
    return [b'{"$date":"', moments(array), b'Z"}']


def _local(array: pa.Array) -> list[Piece]:
    return [b'{"$localTimestamp":"', moments(array), b'"}']


def _dictionary(array: pa.Array) -> list[Piece]:
    import pyarrow.compute as pc

    return [pc.fill_null(_texts(array.dictionary).take(array.indices), b"null")]


def _run_ends(array: pa.Array) -> list[Piece]:
    import pyarrow.compute as pc

    return _pieces(pc.run_end_decode(array))


def _lists(array: pa.Array) -> list[Piece]:
    import pyarrow.types as pt

    if pt.is_list_view(array.type) or pt.is_large_list_view(array.type):
        import pyarrow as pa

        array = array.cast(pa.large_list(array.type.value_type))
    return [b"[", _with_commas(array, _texts(array.flatten())), b"]"]


def _with_commas(array: pa.Array, items: pa.Array) -> pa.Array:
    """The texts of the items of each list, with commas between them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.if_else(array.is_valid(), pc.list_value_length(array), 0).to_numpy()
    ends = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), items), ta.constant(b","))


def _maps(array: pa.Array) -> list[Piece]:
    import pyarrow as pa

    entry = pa.struct([pa.field("key", array.type.key_type, False), pa.field("value", array.type.item_type)])
    array = array.cast(pa.list_(entry))
    keys, items = array.flatten().flatten()
    if _lookup(keys.type)[0] is not Kind.STRING:
        keys = _texts(keys)
    entries = ta.joined([*ta.quoted(_utf8(keys)), b":", *_pieces(items)], len(keys))
    return _as_maps([b"{", _with_commas(array, entries), b"}"], len(array))


def _structs(array: pa.Array) -> list[Piece]:
    names = [field.name for field in array.type]
    pieces = _object(names, [_pieces(column) for column in array.flatten()])
    first = names[0] if names else ""
    return _as_maps(pieces, len(array)) if first.startswith("$") and len(names) <= 2 else pieces


def _as_maps(pieces: Sequence[Piece], rows: int) -> list[Piece]:
    """Maps; each put in a literal that would be read as something else."""
    import numpy as np
    import pyarrow.compute as pc

    texts = ta.joined(pieces, rows)
    asked = np.flatnonzero(pc.fill_null(pc.starts_with(texts, b'{"$'), False).to_numpy(zero_copy_only=False))
    forms = {int(row): text for row in asked if _is_form(text := texts[int(row)].as_py())}
    if not forms:
        return [texts]
    return [ta.chosen(texts, np.array(list(forms)), [b'{"$literal":%s}' % text for text in forms.values()])]


def _is_form(text: bytes) -> bool:
    tree = msgspec.json.decode(text)
    return extended.looks_extended(tree) and (
        extended.is_literal(tree) or extended.read(tree) is not extended.NO_FORM
    )


def _json(array: pa.Array) -> list[Piece]:
    """Values that come as JSON text. Those in which something may look like a form are written anew."""
    import numpy as np
    import pyarrow.compute as pc

    texts = _utf8(array)
    doubtful = pc.fill_null(pc.match_substring_regex(texts, rb'"\$|\\u0024|[\n\r]'), False)
    rows = np.flatnonzero(doubtful.to_numpy(zero_copy_only=False))
    try:
        for text in texts.filter(pc.and_(texts.is_valid(), pc.invert(doubtful))).to_pylist():
            msgspec.json.decode(text)
        return [ta.chosen(texts, rows, [_rewritten(texts[int(row)].as_py()) for row in rows])]
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise NoTextError(f"text that is not JSON ({error})", hint="mend it at the source") from None


def _rewritten(text: bytes) -> bytes:
    """The text of what plain JSON says, all digits kept, maps that look like a form put in literals."""
    return values.encode(json.loads(text, parse_float=Decimal, parse_constant=_no_constant))


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _decimals(array: pa.Array) -> list[Piece]:
    import numpy as np
    import pyarrow.compute as pc

    texts = _utf8(array)
    odd = pc.invert(pc.fill_null(pc.match_substring_regex(texts, _NUMBER), True))
    rows = np.flatnonzero(odd.to_numpy(zero_copy_only=False))
    if not len(rows):
        return [texts]
    try:
        numbers = [Decimal(texts[int(row)].as_py().decode()) for row in rows]
        return [ta.chosen(texts, rows, [values.encode(number) for number in numbers])]
    except InvalidOperation:
        raise NoTextError("text that is not a number", hint="mend it at the source") from None


def _object_ids(array: pa.Array) -> list[Piece]:
    return [b'{"$oid":"', _utf8(array), b'"}']


def _uuid_texts(array: pa.Array) -> list[Piece]:
    return [b'{"$uuid":"', _utf8(array), b'"}']


_AS_TEXT: dict[Kind | None, Writer] = {
    Kind.DECIMAL: _decimals,
    Kind.UUID: _uuid_texts,
    Kind.OBJECT_ID: _object_ids,
    Kind.ANY: _json,
    Kind.MAP: _json,
    Kind.LIST: _json,
}
