"""Arrow columns and the text of messages: the same text as value by value, and back without a loss."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.adaptors.columns.rowcolumns import arrow_of, columns_of
from penstock.adaptors.columns.rowtext import NoTextError, key_texts, row_texts, schema_of
from penstock.log import values
from penstock.log.schema import Field, Kind, Schema

text = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ['"', "\\", "\n\t", "$oid", "é\x00", "\x7f"]
)
moments = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
ELEMENTS: list[tuple[pa.DataType, st.SearchStrategy[object]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.decimal128(12, 4), st.decimals(-(10**7), 10**7, places=4)),
    (pa.decimal128(20, 15), st.decimals(-1, 1, places=15)),
    (pa.decimal256(60, 2), st.decimals(-(10**20), 10**20, places=2)),
    (pa.string(), text),
    (pa.large_string(), text),
    (pa.binary(), st.binary(max_size=9)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.time32("s"), st.times().map(lambda one: one.replace(microsecond=0))),
    (pa.timestamp("us"), moments),
    (pa.timestamp("s"), moments.map(lambda one: one.replace(microsecond=0))),
    (pa.timestamp("us", "UTC"), moments.map(lambda one: one.replace(tzinfo=dt.UTC))),
    (pa.uuid(), st.uuids()),
    (pa.null(), st.none()),
    (pa.dictionary(pa.int32(), pa.string()), text),
]  # fmt: skip


def nested(
    of: tuple[pa.DataType, st.SearchStrategy[object]],
) -> list[tuple[pa.DataType, st.SearchStrategy[object]]]:
    arrow, inner = of
    some = st.none() | inner
    return [
        (pa.list_(arrow), st.lists(some, max_size=3)),
        (pa.large_list(arrow), st.lists(some, max_size=3)),
        (pa.list_(arrow, 2), st.lists(some, min_size=2, max_size=2)),
        (
            pa.struct([("a", arrow), ("b c", pa.int64())]),
            st.fixed_dictionaries({"a": some, "b c": st.just(7)}),
        ),
        (
            pa.map_(pa.string(), arrow),
            st.dictionaries(text, some, max_size=2).map(lambda one: list(one.items())),
        ),
    ]


columns = st.sampled_from(ELEMENTS) | st.sampled_from(
    [one for element in ELEMENTS if element[0] not in (pa.null(), pa.uuid()) and not pa.types.is_dictionary(element[0])
     for one in nested(element)]
)  # fmt: skip


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.integers(0, 6))
    arrays, names = [], draw(st.lists(text, unique=True, min_size=1, max_size=4))
    for _ in names:
        arrow, element = draw(columns)
        given_values = draw(st.lists(st.none() | element, min_size=rows + 2, max_size=rows + 2))
        arrays.append(column_of(given_values, arrow))
    return pa.RecordBatch.from_arrays(arrays, names=names).slice(1, rows)


def column_of(given_values: list[object], arrow: pa.DataType) -> pa.Array:
    if arrow == pa.uuid():
        raw = [None if one is None else one.bytes for one in given_values]  # type: ignore[attr-defined]
        return pa.ExtensionArray.from_storage(arrow, pa.array(raw, pa.binary(16)))
    return pa.array(given_values, arrow)


def as_value(arrow: pa.DataType, one: object) -> values.Value:
    """A value of Arrow as `values` has it."""
    if one is None:
        return None
    if pa.types.is_map(arrow):
        return {key: as_value(arrow.item_type, item) for key, item in one}  # type: ignore[attr-defined]
    if pa.types.is_struct(arrow):
        return {field.name: as_value(field.type, one[field.name]) for field in arrow}  # type: ignore[index]
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        return [as_value(arrow.value_type, item) for item in one]  # type: ignore[attr-defined]
    if isinstance(one, dt.datetime) and one.tzinfo is not None:
        return one.astimezone(dt.UTC)
    return one  # type: ignore[return-value]


def one_by_one(batch: pa.RecordBatch) -> list[bytes]:
    return [
        values.encode_document({field.name: as_value(field.type, row[field.name]) for field in batch.schema})
        for row in batch.to_pylist()
    ]


@settings(deadline=None, max_examples=120)
@given(batches())
def test_the_text_is_that_of_the_values_one_by_one(batch: pa.RecordBatch) -> None:
    assert row_texts(batch).to_pylist() == one_by_one(batch)


@settings(deadline=None, max_examples=120)
@given(batches())
def test_columns_come_back_as_they_were(batch: pa.RecordBatch) -> None:
    found = columns_of(row_texts(batch), schema_of(batch.schema), batch.schema)
    held_apart = {row for row, one in enumerate(one_by_one(batch)) if b'{"$literal"' in one}
    assert set(found.refused) <= held_apart
    keep = pa.array([row not in found.refused for row in range(batch.num_rows)], pa.bool_())
    back, before = found.batch.filter(keep), batch.filter(keep)
    for name in batch.schema.names:
        assert same(back.column(name).to_pylist(), before.column(name).to_pylist())
        assert back.column(name).type == before.column(name).type


def same(one: object, other: object) -> bool:
    return repr(one) == repr(other)


@pytest.mark.parametrize(
    "array, expected",
    [
        (pa.array([1794795254123456789], pa.timestamp("ns")), '{"$localTimestamp":"2026-11-16T02:14:14.123456789"}'),
        (pa.array([1794795254123456000], pa.timestamp("ns", "Asia/Tokyo")), '{"$date":"2026-11-16T02:14:14.123456Z"}'),
        (pa.array([1794795254000], pa.timestamp("ms", "UTC")), '{"$date":"2026-11-16T02:14:14Z"}'),
        (pa.array([253402300800], pa.timestamp("s")), '{"$localTimestamp":"10000-01-01T00:00:00"}'),
        (pa.array([1001], pa.time64("ns")), '{"$localTime":"00:00:00.000001001"}'),
        (pa.array([86399999], pa.time32("ms")), '{"$localTime":"23:59:59.999000"}'),
        (pa.array([-1], pa.timestamp("us")), '{"$localTimestamp":"1969-12-31T23:59:59.999999"}'),
        (pa.array([-5], pa.duration("ms")), "-5"),
        (pa.array([math.nan]), '{"$numberDouble":"NaN"}'),
        (pa.array([-math.inf], pa.float32()), '{"$numberDouble":"-Infinity"}'),
        (pa.array([1.5], pa.float16()), "1.5"),
        (pa.array([[(1, "x")]], pa.map_(pa.int32(), pa.string())), '{"1":"x"}'),
        (pa.array([[("$oid", "507f1f77bcf86cd799439011")]], pa.map_(pa.string(), pa.string())),
         '{"$literal":{"$oid":"507f1f77bcf86cd799439011"}}'),
        (pa.array([{"$uuid": "1a2f65b0-ef76-4981-8290-2f6ea12912d6"}]),
         '{"$literal":{"$uuid":"1a2f65b0-ef76-4981-8290-2f6ea12912d6"}}'),
        (pa.array([{"$uuid": "none"}]), '{"$uuid":"none"}'),
        (pa.array([{}], pa.struct([])), "{}"),
        (pa.array(["ab"], pa.string_view()), '"ab"'),
        (pa.RunEndEncodedArray.from_arrays([1], pa.array([3])), "3"),
        (pa.array([0], pa.date64()), '{"$localDate":"1970-01-01"}'),
    ],
)  # fmt: skip
def test_what_arrow_has_beyond_the_values(array: pa.Array, expected: str) -> None:
    assert row_texts(pa.record_batch({"x": array})).to_pylist() == [f'{{"x":{expected}}}'.encode()]


def test_nanoseconds_come_back_into_a_column_that_counts_them() -> None:
    batch = pa.record_batch({"at": pa.array([1794795254123456789, None], pa.timestamp("ns", "UTC"))})
    assert columns_of(row_texts(batch), schema_of(batch.schema), batch.schema).batch == batch
    found = columns_of(row_texts(batch), schema_of(batch.schema))
    assert "does not fit timestamp[us, tz=UTC]" in found.refused[0]


def test_text_that_is_not_utf8_is_an_error_that_names_the_column() -> None:
    column = pa.array([b"ok", b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(NoTextError, match=r"column 'x': text that is not UTF-8"):
        row_texts(pa.record_batch({"x": column}))


def test_two_columns_of_one_name_are_an_error() -> None:
    with pytest.raises(NoTextError, match="two columns have the name 'a'"):
        row_texts(pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))


def test_keys_are_objects_of_their_columns() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": ["x", "y"], "c": [0.5, 1.0]})
    assert key_texts(batch, ["b", "a"]).to_pylist() == [b'{"b":"x","a":1}', b'{"b":"y","a":2}']
    assert schema_of(batch.schema, ["b"]).key == ("b",)


def test_columns_of_text_can_stand_for_what_the_schema_says() -> None:
    schema = Schema(
        (Field("n", Kind.DECIMAL), Field("j", Kind.ANY), Field("u", Kind.UUID), Field("s", Kind.STRING))
    )
    batch = pa.record_batch(
        {
            "n": ["1.50", "NaN", None],
            "j": ['{"a": 1.50}', '{"x":{"$oid":"507f1f77bcf86cd799439011"},\n"y":2.50}', "null"],
            "u": ["1a2f65b0-ef76-4981-8290-2f6ea12912d6", None, None],
            "s": ["1", "2", "3"],
        }
    )
    assert row_texts(batch, schema).to_pylist() == [
        b'{"n":1.50,"j":{"a": 1.50},"u":{"$uuid":"1a2f65b0-ef76-4981-8290-2f6ea12912d6"},"s":"1"}',
        b'{"n":{"$numberDecimal":"NaN"},"j":{"x":{"$literal":{"$oid":"507f1f77bcf86cd799439011"}},"y":2.50},'
        b'"u":null,"s":"2"}',
        b'{"n":null,"j":null,"u":null,"s":"3"}',
    ]
    for bad in ("{", "1,2", ""):
        with pytest.raises(NoTextError, match="column 'j': text that is not JSON"):
            row_texts(pa.record_batch({"j": ["1", bad]}), schema)
    with pytest.raises(NoTextError, match="column 'n': text that is not a number"):
        row_texts(pa.record_batch({"n": ["x"]}), schema)


ALL = Schema(
    (
        Field("b", Kind.BOOL), Field("i", Kind.INT), Field("f", Kind.FLOAT), Field("d", Kind.DECIMAL),
        Field("d2", Kind.DECIMAL, native="numeric(10,2)"), Field("s", Kind.STRING), Field("raw", Kind.BINARY),
        Field("day", Kind.DATE), Field("time", Kind.TIME), Field("at", Kind.TIMESTAMP),
        Field("local", Kind.LOCAL_TIMESTAMP), Field("id", Kind.UUID), Field("oid", Kind.OBJECT_ID),
        Field("l", Kind.LIST, items=Kind.INT), Field("any", Kind.ANY), Field("m", Kind.MAP),
        Field('od"d', Kind.INT),
    )
)  # fmt: skip
DOCUMENT: values.Document = {
    "b": True, "i": -5, "f": math.inf, "d": Decimal("1.2300"), "d2": Decimal("7.50"), "s": 'x"y', "raw": b"\x00\xff",
    "day": dt.date(2026, 11, 16), "time": dt.time(2, 14, 14, 5), "at": dt.datetime(2026, 11, 16, 2, tzinfo=dt.UTC),
    "local": dt.datetime(2026, 11, 16, 2, 14), "id": UUID("1a2f65b0-ef76-4981-8290-2f6ea12912d6"),
    "oid": values.ObjectId("507f1f77bcf86cd799439011"), "l": [1, None, 3], "any": {"x": [1.5]}, "m": {"k": "v"},
    'od"d': 4,
}  # fmt: skip


@pytest.mark.parametrize("odd_names", [False, True])
def test_every_kind_has_a_column_of_its_own(odd_names: bool) -> None:
    schema = ALL if odd_names else Schema(ALL.fields[:-1])
    document = DOCUMENT if odd_names else {name: one for name, one in DOCUMENT.items() if name != 'od"d'}
    texts = pa.array([values.encode_document(document), b"{}"], pa.large_binary())
    batch, refused = columns_of(texts, schema)
    assert not refused
    assert batch.schema == arrow_of(schema)
    expected = {**document, "d": "1.2300", "id": str(document["id"]), "oid": str(document["oid"]),
                "any": '{"x":[1.5]}', "m": '{"k":"v"}'}  # fmt: skip
    assert batch.to_pylist() == [expected, dict.fromkeys(expected)]


@pytest.mark.parametrize(
    "text, reason",
    [
        ('{"i":"5"}', "field 'i': '5' (string) does not fit int64"),
        ('{"i":9223372036854775808}', "field 'i': 9223372036854775808 (decimal) does not fit int64"),
        ('{"i":1.5}', "field 'i': 1.5 (float) does not fit int64"),
        ('{"d2":1.555}', "field 'd2': Decimal('1.555') (decimal) does not fit decimal128(10, 2)"),
        ('{"d2":123456789012}', "field 'd2': Decimal('123456789012') (decimal) does not fit"),
        ('{"s":5}', "field 's': 5 (int) does not fit large_string"),
        ('{"day":"2026-11-16"}', "(string) does not fit date32"),
        ('{"day":{"$localDate":"2026-02-30"}}', "(map) does not fit date32"),
        ('{"f":1e999}', "does not fit double"),
        ('{"f":9007199254740993}', "field 'f': 9007199254740993 (int) does not fit double"),
        ('{"new":1}', "field 'new' is not in the schema"),
        ("[]", "not a document"),
        ("{", "not JSON"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_by_its_index_and_the_others_are_taken(
    text: str, reason: str
) -> None:
    texts = [b'{"i":%d}' % row for row in range(9)]
    texts[5] = text.encode()
    batch, refused = columns_of(pa.array(texts, pa.large_binary()), Schema(ALL.fields[:-1]))
    assert list(refused) == [5]
    assert reason in refused[5]
    assert batch.column("i").to_pylist() == [0, 1, 2, 3, 4, None, 6, 7, 8]
    assert batch.num_rows == 9


def test_unknown_fields_can_be_ignored() -> None:
    texts = pa.array([b'{"i":1,"new":2}'], pa.large_binary())
    batch, refused = columns_of(texts, Schema((Field("i", Kind.INT),)), unknown="ignore")
    assert (batch.to_pylist(), refused) == ([{"i": 1}], {})


@pytest.mark.parametrize(
    "text, expected",
    [
        ('{"at":{"$date":0}}', dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
        ('{"at":{"$date":{"$numberLong":"1"}}}', dt.datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=dt.UTC)),
        ('{"at":{"$date":"1970-01-01T02:00:00+02:00"}}', dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
        ('{"i":{"$numberLong":"7"}}', 7),
        ('{"raw":{"$binary":"AP8=","$type":"00"}}', b"\x00\xff"),
        ('{"f":3}', 3.0),
        ('{"f":123456789012345680000}', 123456789012345680000.0),
    ],
)
def test_other_spellings_of_a_value_are_the_same_value(text: str, expected: object) -> None:
    texts = pa.array([b'{"i":1}', text.encode()], pa.large_binary())
    batch, refused = columns_of(texts, Schema(ALL.fields[:-1]))
    assert not refused
    assert next(one for one in batch.to_pylist()[1].values() if one is not None) == expected


@pytest.mark.parametrize("other", ["[1,2]", '"1,2"', '{"a":1,"b":2}', "true", '"7.50"'])
def test_decimals_among_others_that_are_none(other: str) -> None:
    texts = pa.array(['{"d":1.50}', '{"d":null}', "{}", f'{{"d":{other}}}', '{"d":-2}', '{"d":null}'])
    batch, refused = columns_of(texts, Schema((Field("d", Kind.DECIMAL, native="numeric(10,2)"),)))
    assert list(refused) == [3]
    assert batch.column("d").to_pylist() == [Decimal("1.50"), None, None, None, Decimal("-2.00"), None]


def test_a_row_without_data_is_refused() -> None:
    found = columns_of(pa.array([None, b"{}"], pa.large_binary()), Schema((Field("i", Kind.INT),)))
    assert found.refused == {0: "there is no data"}


def test_no_rows_are_no_columns_lost() -> None:
    schema = Schema((Field("i", Kind.INT),))
    assert columns_of(pa.array([], pa.large_binary()), schema).batch.schema == arrow_of(schema)
    assert row_texts(pa.record_batch({"i": pa.array([], pa.int64())})).to_pylist() == []


def test_many_rows_are_the_same_as_few() -> None:
    """Offsets and slices: pieces of one batch say what the whole says."""
    rng = np.random.default_rng(1)
    words = ["plain", 'quo"te', "new\nline", "", None]
    batch = pa.record_batch(
        {
            "i": pa.array(rng.integers(-(10**9), 10**9, 1000)),
            "s": pa.array([words[n] for n in rng.integers(0, 5, 1000)]),
            "f": pa.array(rng.random(1000)),
            "l": pa.array([list(range(n)) for n in rng.integers(0, 4, 1000)]),
        }
    )
    whole = row_texts(batch).to_pylist()
    assert [one for at in range(0, 1000, 7) for one in row_texts(batch.slice(at, 7)).to_pylist()] == whole
    assert [json.loads(one) for one in whole] == batch.to_pylist()
