"""Columns read as text from documents that are alike: the same as by reading each document, whatever is in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.adaptors.columns import rowcolumns
from penstock.adaptors.columns.rowcolumns import Columns, columns_of
from penstock.log.schema import Field, Kind, Schema

VALUES: dict[Kind, list[str]] = {
    Kind.INT: [
        "0", "7", "-12", "-0", "007", "+1", "1.0", "1e3", "0x1F", "9223372036854775807", "9223372036854775808",
        "-9223372036854775808", "123456789012345678901234567890", "-", "1 ", "1,2", "[1]",
    ],
    Kind.FLOAT: [
        "0", "1.5", "-2.5e-3", "-0", "-0.0", "-0e5", "1e308", "1e400", "1e999", "-1e400", "1e-400", "4.9e-324",
        "2e-324", "1e23", "9007199254740993", "1.7976931348623159e308", "123456789012345678901234567890",
        "0.30000000000000004", "1.", ".5", "01", "NaN", "Infinity", '{"$numberDouble":"NaN"}',
        '{"$numberDouble":"1.5"}',
    ],
    Kind.DECIMAL: [
        "0", "1.50", "-3", "-0", "12345678901.99", "0.001", "1E2", "1e-1", "1.0", "1234567890123456789.12",
        "12345678901234567890", "00", "--1", "1-1", '{"$numberDecimal":"NaN"}', '{"$numberDecimal":"1.5"}',
    ],
    Kind.BOOL: ["true", "false", "True", "1", "0", "t", "truefalse"],
    Kind.STRING: [
        '"a"', '""', '"ä🙂"', '"a\\"b"', '"\\u0041"', '"\\u0000"', '"\\ud800"', '"\\ud83d\\ude42"', '"\\\\"',
        '"a,b:{}"', '"a\nb"', '"\0"', '"\x7f\u2028\ufeff"', '"x","f1":"y"', '"a', "1", "true", "{}", "[]",
    ],
    Kind.TIMESTAMP: [
        '{"$date":"2026-01-01T00:00:00Z"}', '{"$date":"2026-01-01T00:00:00.123456Z"}', '{"$date":"x"}', '{"$date":""}',
        '{"$date":{"$numberLong":"1"}}', '"2026-01-01"', '{"$localDate":"2026-01-01"}',
        '{"$date":"9999-12-31T00:00:00Z"}', '{"$date":"2026-01-01T00:00:00+01:00"}', '{"$date":"2026-01-01T00:00:00"}',
        '{"$date":"2026-01-01T00:00:00Z","x":1}', '{"$date": "2026-01-01T00:00:00Z"}', '{"$date":null}',
        '{"$d\\u0061te":"2026-01-01T00:00:00Z"}', '{"$literal":{"$date":"2026-01-01T00:00:00Z"}}',
    ],
    Kind.DATE: ['{"$localDate":"2026-02-28"}', '{"$localDate":"2026-02-30"}', '{"$localDate":"1-1-1"}'],
    Kind.TIME: ['{"$localTime":"12:34:56"}', '{"$localTime":"12:34:56.5"}', '{"$localTime":"24:00:00"}'],
    Kind.UUID: ['{"$uuid":"01234567-89ab-cdef-0123-456789abcdef"}', '{"$uuid":"no"}'],
    Kind.ANY: ["1", '{"a":[1]}', '"x"'],
}  # fmt: skip
"""How values may be written that somebody could take for one of this kind; those of usual documents are first."""

NATIVE = {Kind.DECIMAL: "numeric(12,2)"}


def schema_of(kinds: Sequence[Kind]) -> Schema:
    return Schema(tuple(Field(f"f{i}", kind, True, NATIVE.get(kind, "")) for i, kind in enumerate(kinds)))


def document(written: Sequence[str | None], names: Sequence[str] = ()) -> str:
    names = names or [f"f{i}" for i in range(len(written))]
    pairs = zip(names, written, strict=True)
    return "{" + ",".join(f"{json.dumps(name)}:{value or 'null'}" for name, value in pairs) + "}"


def texts(documents: list[str]) -> pa.Array:
    return pa.array([one.encode() for one in documents], pa.large_binary())


def same(documents: list[str], schema: Schema, **settings: Any) -> Columns:
    """What both ways agree on."""
    quick = columns_of(texts(documents), schema, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowcolumns._Rows, "_alike", lambda *_: None)
        slow = columns_of(texts(documents), schema, **settings)
    assert quick.refused == slow.refused
    assert quick.batch.schema == slow.batch.schema
    assert repr(quick.batch.to_pylist()) == repr(slow.batch.to_pylist())
    return quick


@pytest.mark.parametrize("kind", VALUES)
def test_each_way_of_writing_a_value_is_read_as_before(kind: Kind) -> None:
    usual = VALUES[kind][0]
    for value in [*VALUES[kind], None]:
        same([document([usual]), document([value])], schema_of([kind]))
        same([document([value])] * 3, schema_of([kind]))


def value(kind: Kind) -> st.SearchStrategy[str | None]:
    return st.sampled_from([*VALUES[kind][:2], None]) | st.sampled_from(VALUES[kind])


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Kind], list[str]]:
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    names = [f"f{i}" for i in range(len(kinds))]
    if draw(st.booleans()):
        names = draw(st.permutations(names))
    rows = draw(st.lists(st.tuples(*(value(kinds[int(name[1:])]) for name in names)), min_size=1, max_size=6))
    return kinds, [document(row, names) for row in rows]


@pytest.mark.parametrize(
    "odd",
    [
        '{"f1":"b","f0":2}',
        '{"f0":2,"f0":3,"f1":"b"}',
        '{"f0":2,"f1":"b","f1":"c"}',
        '{"f\\u0030":2,"f1":"b"}',
        '{"f0":2}',
        '{"f0":2,"f1":null}',
        '{"f0":2,"f1":"b","else":1}',
        '{"f0":{"f0":2},"f1":"b"}',
        '{"f0":[2,"f1"],"f1":"b"}',
        '{"f0":2 ,"f1":"b"}',
        ' {"f0":2,"f1":"b"}',
        '{"f0":2,"f1":"b"}\n',
        '\ufeff{"f0":2,"f1":"b"}',
        '{"f0":2,"f1":"b"}\0',
        '{"f0":2,"f1":"b"}{"f0":3,"f1":"c"}',
        '{"f0":2,"f1":"b",}',
        '{"f0":2,"f1":"b"',
        "{}",
        "[]",
        "null",
        "",
    ],
)
@pytest.mark.parametrize("unknown", ["refuse", "ignore"])
def test_a_document_that_is_nearly_alike_is_read_as_before(odd: str, unknown: Any) -> None:
    usual, schema = '{"f0":1,"f1":"a"}', schema_of([Kind.INT, Kind.STRING])
    for documents in ([usual, odd], [odd, usual], [odd, odd], [usual, odd, usual]):
        same(documents, schema, unknown=unknown)


@given(batches(), st.sampled_from(["refuse", "ignore"]))
def test_any_documents_are_read_as_before(given: tuple[list[Kind], list[str]], unknown: Any) -> None:
    kinds, documents = given
    same(documents, schema_of(kinds), unknown=unknown)


def test_fields_that_no_row_has_are_null_and_unknown_ones_refused() -> None:
    schema = schema_of([Kind.INT, Kind.STRING])
    assert same(['{"f0":1}', '{"f0":2}'], schema).batch.to_pylist() == [
        {"f0": 1, "f1": None}, {"f0": 2, "f1": None},
    ]  # fmt: skip
    found = same(['{"f0":1,"x":1}', '{"f0":2,"x":1}'], schema)
    assert set(found.refused) == {0, 1}
    assert same(['{"f0":1,"x":1}', '{"f0":2,"x":1}'], schema, unknown="ignore").batch.num_rows == 2


@pytest.mark.parametrize(
    ("kind", "arrow", "values"),
    [
        (Kind.INT, pa.int8(), ["1", "300"]),
        (Kind.INT, pa.uint64(), ["1", str(2**64 - 1), "-1"]),
        (Kind.INT, pa.float64(), ["1", "2"]),
        (Kind.STRING, pa.dictionary(pa.int32(), pa.string()), ['"a"', '"b"', '"a"']),
        (Kind.FLOAT, pa.float32(), ["1.5", "2.25"]),
        (Kind.TIMESTAMP, pa.timestamp("s", "UTC"), VALUES[Kind.TIMESTAMP][:2]),
        (Kind.DECIMAL, pa.large_string(), ["1.50", "2"]),
    ],
)
def test_columns_of_other_types_hold_the_same(kind: Kind, arrow: pa.DataType, values: list[str]) -> None:
    documents = [document([value]) for value in values]
    same(documents, schema_of([kind]), arrow=pa.schema([pa.field("f0", arrow)]))


def test_a_zero_has_its_sign_in_floats_of_any_depth_and_its_digits_in_text() -> None:
    rows = ['{"a":-0,"b":[-0,1],"c":"x"}', '{"c":"y","b":[0],"a":0}']
    schema = Schema(
        (Field("a", Kind.FLOAT), Field("b", Kind.LIST, items=Kind.FLOAT), Field("c", Kind.STRING))
    )
    assert repr(columns_of(texts(rows), schema).batch.column("a").to_pylist()) == "[-0.0, 0.0]"
    assert repr(columns_of(texts(rows), schema).batch.column("b").to_pylist()) == "[[-0.0, 1.0], [0.0]]"
    digits = Schema((Field("a", Kind.DECIMAL), Field("c", Kind.STRING)))
    found = same(['{"a":-0,"c":"x"}', '{"c":"y","a":-0}'], digits)
    assert found.batch.column("a").to_pylist() == ["-0", "-0"]


def test_rows_of_a_table_are_read_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests above would compare a way with itself."""
    monkeypatch.setattr(rowcolumns._Rows, "_together", lambda *_: pytest.fail("read one by one"))
    kinds = [kind for kind in VALUES if kind is not Kind.ANY]
    documents = [document([VALUES[kind][at] for kind in kinds]) for at in (0, 1)]
    for odd in ('{"$localDate":"2026-02-30"}', '{"$uuid":"no"}'):
        documents[1] = documents[1].replace(odd, "null")
    assert not columns_of(texts(documents), schema_of(kinds)).refused


@pytest.mark.parametrize("kind", [*VALUES, Kind.MAP, Kind.LIST])
def test_a_document_alone_is_read_as_among_others(kind: Kind) -> None:
    nested = ['{"a":[1.50, null]}', "[1.50,1e400]", '{"b" : -0}']
    for value in [*VALUES.get(kind, []), *nested]:
        alone, *among = (
            columns_of(texts([document([value])] * rows), schema_of([kind])) for rows in (1, 2, 3)
        )
        for found in among:
            assert repr(found.batch.to_pylist()[0]) == repr(alone.batch.to_pylist()[0])
            assert set(found.refused.values()) == set(alone.refused.values())
