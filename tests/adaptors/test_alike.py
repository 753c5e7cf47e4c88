"""Documents that are taken apart as columns: nothing but their own values come out, and odd ones are left alone."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.adaptors.columns.alike import apart
from penstock.adaptors.columns.textcolumns import PLAIN, STRING
from penstock.adaptors.postgres.sink_rows import Converter, Lines
from penstock.adaptors.postgres.sink_table import Name, Table
from penstock.adaptors.postgres.sink_values import Column

SPELT = {"id": PLAIN, "name": STRING, "at": "$date", "sum": PLAIN, "ñ": STRING}


def texts(*documents: str) -> pa.Array:
    return pa.array([document.encode() for document in documents], pa.large_binary())


def written(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)


def test_the_values_of_each_field_come_without_their_quotes() -> None:
    found = apart(
        texts(
            '{"id":1,"name":"a","at":{"$date":"2026-01-01T00:00:00Z"},"sum":1.50}',
            '{"id":-22,"name":null,"at":null,"sum":null}',
            '{"id":null,"name":"","at":{"$date":"x"},"sum":0}',
        ),
        SPELT,
    )
    assert found is not None
    assert {name: column.to_pylist() for name, column in found.columns.items()} == {
        "id": [b"1", b"-22", None],
        "name": [b"a", None, b""],
        "at": [b"2026-01-01T00:00:00Z", None, b"x"],
        "sum": [b"1.50", None, b"0"],
    }
    assert not len(found.odd)


@pytest.mark.parametrize(
    "odd",
    [
        '{"id":2,"name":"a\\"b"}',
        '{"id":2,"name":"a\\u0041"}',
        '{"name":"b","id":2}',
        '{"id":2}',
        '{"id":2,"name":"b","name":"c"}',
        '{"id":2, "name":"b"}',
        '{"id":2,"name":"b"} ',
        '{"id":2,"name":"b"}}',
        '{"id":,"name":"b"}',
        '{"id":2,"name":3}',
        '{"id":2,"name":nul}',
        '{"id":2,"name":{"$date":"b"}}',
        '{"id":"2","name":"b"}',
        '{"id":{"$numberDouble":"NaN"},"name":"b"}',
        '{"id":2,"name":"b\tc"}',
        '{"id":2,"naem":"b"}',
        "{}",
        '"',
        "",
    ],
)
def test_a_row_that_is_written_otherwise_is_odd_and_moves_no_other(odd: str) -> None:
    found = apart(texts('{"id":1,"name":"a"}', odd, odd, '{"id":3,"name":"c"}'), SPELT)
    assert found is not None
    assert found.odd.tolist() == [1, 2]
    assert found.columns["id"].to_pylist() == [b"1", b"3"]
    assert found.columns["name"].to_pylist() == [b"a", b"c"]


@pytest.mark.parametrize(
    "first",
    [
        '{"other":1}',
        '{"id":1, "name":"a"}',
        '{"id":1,"name":"\\n"}',
        "[1]",
        "{}",
        "nothing",
        '{"id":[1,2],"name":3}',
    ],
)
def test_a_batch_that_begins_with_an_odd_row_is_left_alone(first: str) -> None:
    assert apart(texts(first, '{"id":1,"name":"a"}'), SPELT) is None


def test_what_is_plain_is_left_to_be_checked() -> None:
    found = apart(texts('{"id":1,"sum":true}', '{"id":1,2,"sum":{}}', '{"id": 3,"sum":4,"name":"5"}'), SPELT)
    assert found is not None
    assert found.columns["id"].to_pylist() == [b"1", b"1,2"]
    assert found.odd.tolist() == [2]


value = st.one_of(st.none(), st.integers(), st.text(max_size=8), st.booleans())
row = st.fixed_dictionaries(
    {
        "id": st.one_of(st.none(), st.integers()),
        "name": st.one_of(st.none(), st.text(max_size=20)),
        "at": st.one_of(st.none(), st.builds(lambda text: {"$date": text}, st.text(max_size=8))),
        "sum": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        "ñ": st.one_of(st.none(), st.text(max_size=3)),
    }
)
other = st.dictionaries(st.sampled_from([*SPELT, "else"]), value, max_size=5)


@given(st.lists(st.one_of(row, row, row, other), max_size=12), st.booleans())
def test_what_is_taken_apart_is_what_a_parser_reads(rows: list[dict[str, Any]], sliced: bool) -> None:
    documents = texts(*([written({"id": 0})] if sliced else []), *map(written, rows))
    found = apart(documents[1:] if sliced else documents, SPELT)
    if found is None:
        return
    left = set(found.odd.tolist())
    kept = [one for place, one in enumerate(rows) if place not in left]
    for name, column in found.columns.items():
        given_text = [None if one is None else one.decode() for one in column.to_pylist()]
        if SPELT[name] == PLAIN:
            read = [None if text is None else json.loads(text) for text in given_text]
            assert read == [one[name] for one in kept]
        elif SPELT[name] == STRING:
            assert given_text == [one[name] for one in kept]
        else:
            assert given_text == [one[name] and one[name]["$date"] for one in kept]
    assert all(list(one) == list(found.columns) for one in kept)


COLUMNS = [
    Column("id", 1, "bigint", "int8"),
    Column("good", 2, "boolean", "bool"),
    Column("sum", 3, "numeric(12,2)", "numeric", mod=(12 << 16 | 2) + 4),
    Column("ratio", 4, "double precision", "float8"),
    Column("at", 5, "timestamp with time zone", "timestamptz"),
    Column("note", 6, "text", "text"),
]
TABLE = Table(
    Name("public", "t"), 1, "r", COLUMNS, frozenset(), ("id",), False, True, frozenset(), frozenset()
)  # fmt: skip

moment = st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.25+01:00", "infinity", "soon"])
mostly_plain = st.text(alphabet=st.sampled_from("abcñ \\\t\"'\n\x00"), max_size=6)
staged = st.fixed_dictionaries(
    {
        "id": st.one_of(st.integers(-(2**63), 2**63), st.sampled_from([0, 1, None, "x"])),
        "good": st.one_of(st.none(), st.booleans()),
        "sum": st.one_of(st.none(), st.sampled_from([1, 1.5, 10.25, 0.125, "NaN"])),
        "ratio": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        "at": st.one_of(st.none(), st.builds(lambda text: {"$date": text}, moment)),
        "note": st.one_of(st.none(), mostly_plain),
    }
)
usual = st.builds(
    lambda number, note: {"id": number, "good": True, "sum": 1.25, "ratio": 0.5, "at": None, "note": note},
    st.integers(0, 99),
    mostly_plain,
)


def _meant(text: str) -> str:
    """What the server takes a text for, where that may be written in several ways."""
    if text in ("true", "false"):
        return text[0]
    try:
        return str(dt.datetime.fromisoformat(text).astimezone(dt.UTC))
    except ValueError:
        return text


def converted(rows: list[dict[str, Any]], op: str, *, together: bool, append: bool) -> Any:
    converter = Converter(TABLE, append=append, metadata=False, unknown="error")
    if not together:
        converter._together.read = lambda documents: None  # type: ignore[method-assign]
    count = len(rows)
    batch = pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(range(count), pa.int64()),
            "op": pa.array([op] * count, pa.string()),
            "ns": ["public.t"] * count,
            "origin": ["public.t"] * count,
            "key": pa.nulls(count, pa.string()),
            "data": pa.array([written(row) for row in rows], pa.string()),
        }
    )
    found = converter.convert(Lines.of(batch, 20), grow=False)
    assert found is not None
    lines = {
        place: (
            block.op,
            block.shape,
            {name: _meant(text) for name, text in zip(("n", *block.columns), line.split("\t"), strict=True)},
        )
        for block in found.blocks
        for place, line in zip(block.places, block.lines, strict=True)
    }
    return lines, sorted(found.refused)


@given(
    st.lists(st.one_of(usual, usual, staged), min_size=1, max_size=8),
    st.sampled_from(["insert", "update"]),
    st.booleans(),
)
@example(
    [
        {
            "id": 0,
            "good": None,
            "sum": None,
            "ratio": None,
            "at": {"$date": "2026-01-01T00:00:00Z"},
            "note": None,
        },
        {"id": 0, "good": True, "sum": 1.25, "ratio": 0.5, "at": None, "note": "\0"},
    ],
    "insert",
    False,
)
def test_rows_as_columns_become_the_lines_that_they_become_one_by_one(
    rows: list[dict[str, Any]], op: str, append: bool
) -> None:
    as_columns = converted(rows, op, together=True, append=append)
    assert as_columns == converted(rows, op, together=False, append=append)


def test_rows_that_are_alike_are_read_as_columns() -> None:
    row = {"id": 1, "good": False, "sum": 1.25, "ratio": 1e300, "at": None, "note": "ñ"}
    converter = Converter(TABLE, append=False, metadata=False, unknown="error")
    found = converter._together.read(pa.array([written(row), written({**row, "note": "\n"})], pa.string()))
    assert found is not None
    assert [column.to_pylist() for column in found.columns.values()] == [
        ["1"],
        ["f"],
        ["1.25"],
        ["1e+300"],
        [None],
        ["ñ"],
    ]
    assert found.odd == [1]
