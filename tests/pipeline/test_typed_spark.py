"""Typed values on their way through Spark: any document comes out byte for byte, and reads as the matrix says.

The matrix is in docs/types.md; the other legs of the way are in tests/log/test_values.py and
tests/adaptors/test_typed_text.py.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from pyspark.sql import DataFrame, SparkSession
from tests.log.value_strategies import documents, same

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.functions.python import MutableMessage
from penstock.log import values
from penstock.log.schema import Kind
from penstock.log.values import Document, Value
from penstock.pipeline.runner import run
from penstock.spark.columns import with_variant

pytestmark = pytest.mark.spark

MATRIX = Path(__file__).parents[2] / "docs" / "types.md"
MOMENT = dt.datetime(2026, 11, 16, 2, 14, 14, 123456)


def some_documents(count: int) -> list[Document]:
    """Documents of every kind, the same ones every time."""
    found: list[Document] = []

    @seed(20261116)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(documents)
    def take(document: Document) -> None:
        found.append(document)

    take()
    return found


def kinds_in(value: Value) -> set[Kind]:
    """The kinds of a value and of all that is inside."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {values.kind_of(value)}.union(*map(kinds_in, inside))


def read_and_passed(message: MutableMessage) -> MutableMessage:
    assert isinstance(message.data, dict)
    return message


def made_anew(message: MutableMessage) -> Document:
    return dict(message.data)


def decided_by_field(frame: DataFrame) -> DataFrame:
    """Reads every document, and keeps it whatever it says."""
    return frame.where(
        "data IS NOT NULL AND coalesce(try_variant_get(data, '$.t', 'string'), '') IS NOT NULL"
    )


def test_any_document_goes_through_spark_byte_for_byte(tmp_path: Path, spark: SparkSession) -> None:
    """From file to log to Spark to file: past no function, and past those of a DataFrame, of Python, of JavaScript."""
    given = some_documents(200)
    assert set(Kind) - set().union(*map(kinds_in, given)) == {Kind.ANY}, "every kind occurs"
    texts = b"".join(values.encode_document(document) + b"\n" for document in given)
    (tmp_path / "in.jsonl").write_bytes(texts)
    pipeline = Pipeline("typed")
    pipeline.modules = (__name__,)
    source = pipeline.source("in", a.file(uri=f"file://{tmp_path}/in.jsonl"))
    ways = {
        "plain": source,
        "frames": source.transform("decide", decided_by_field).transform(
            "query", f.sql("SELECT * FROM messages WHERE offset >= 0")
        ),
        "scripts": source.transform("read", f.python(read_and_passed))
        .transform("anew", f.python(made_anew))
        .transform("js", f.js(source="function transform(msg) { return msg }")),
    }
    for name, way in ways.items():
        way.save(name, a.file(uri=f"file://{tmp_path}/{name}.jsonl"))
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (summary.exit_code, summary.message) == (0, None)
    for name in ways:
        assert (tmp_path / f"{name}.jsonl").read_bytes() == texts, name
    found = (tmp_path / "scripts.jsonl").read_bytes().splitlines()
    assert all(map(same, given, map(values.decode_document, found)))


READINGS: list[tuple[str, str, object]] = [
    ("null", "try_variant_get(data, '$.x', 'string')", None),
    ("true", "try_variant_get(data, '$.x', 'boolean')", True),
    ("9007199254740993", "try_variant_get(data, '$.x', 'bigint')", 9007199254740993),
    ("0.1", "try_variant_get(data, '$.x', 'double')", 0.1),
    ("1.0", "try_variant_get(data, '$.x', 'double')", 1.0),
    ("1e300", "try_variant_get(data, '$.x', 'double')", 1e300),
    ('{"$numberDouble":"NaN"}', "try_variant_get(data, '$.x.$numberDouble', 'double')", math.nan),
    ('{"$numberDouble":"-Infinity"}', "try_variant_get(data, '$.x.$numberDouble', 'double')", -math.inf),
    ("12.50", "try_variant_get(data, '$.x', 'decimal(20,2)')", Decimal("12.50")),
    ('{"$numberDecimal":"NaN"}', "try_variant_get(data, '$.x.$numberDecimal', 'string')", "NaN"),
    ("1180591620717411303424", "try_variant_get(data, '$.x', 'decimal(38,0)')", Decimal(2**70)),
    ('"é"', "try_variant_get(data, '$.x', 'string')", "é"),
    (
        '{"$binary":{"base64":"AP8=","subType":"00"}}',
        "unbase64(try_variant_get(data, '$.x.$binary.base64', 'string'))",
        b"\x00\xff",
    ),
    (
        '{"$localDate":"2026-11-16"}',
        "try_variant_get(data, '$.x.$localDate', 'date')",
        dt.date(2026, 11, 16),
    ),
    (
        '{"$localTime":"02:14:14.123456"}',
        "try_variant_get(data, '$.x.$localTime', 'string')",
        "02:14:14.123456",
    ),
    ('{"$time":"02:14:14+01:00"}', "try_variant_get(data, '$.x.$time', 'string')", "02:14:14+01:00"),
    (
        '{"$date":"2026-11-16T02:14:14.123456Z"}',
        "date_format(try_variant_get(data, '$.x.$date', 'timestamp'), 'yyyy-MM-dd HH:mm:ss.SSSSSS')",
        "2026-11-16 02:14:14.123456",
    ),
    (
        '{"$date":"2026-11-16T03:14:14.123456+01:00"}',
        "date_format(try_variant_get(data, '$.x.$date', 'timestamp'), 'yyyy-MM-dd HH:mm:ss.SSSSSS')",
        "2026-11-16 02:14:14.123456",
    ),
    (
        '{"$localTimestamp":"2026-11-16T02:14:14.123456"}',
        "try_variant_get(data, '$.x.$localTimestamp', 'timestamp_ntz')",
        MOMENT,
    ),
    (
        '{"$uuid":"1fc2f65b-ef76-4981-8290-2f6ea12912d6"}',
        "try_variant_get(data, '$.x.$uuid', 'string')",
        "1fc2f65b-ef76-4981-8290-2f6ea12912d6",
    ),
    (
        '{"$oid":"507f1f77bcf86cd799439011"}',
        "try_variant_get(data, '$.x.$oid', 'string')",
        "507f1f77bcf86cd799439011",
    ),
    (
        '{"$timestamp":{"t":1412180887,"i":1}}',
        "try_variant_get(data, '$.x.$timestamp.t', 'bigint')",
        1412180887,
    ),
    ('{"$regex":"^a","$options":"i"}', "try_variant_get(data, '$.x.$regex', 'string')", "^a"),
    ("[1,null]", "try_variant_get(data, '$.x[0]', 'bigint')", 1),
    ('{"a":1,"":2}', "try_variant_get(data, '$.x.a', 'bigint')", 1),
]
"""A text of the matrix, how Spark reads it, and what it reads."""


def test_spark_reads_every_kind_as_the_matrix_says(spark: SparkSession) -> None:
    texts = [f'{{"x":{text}}}' for text, _, _ in READINGS]
    rows = spark.createDataFrame(list(enumerate(texts)), "n INT, data STRING")
    columns = [f"IF(n = {n}, {reading}, NULL) AS c{n}" for n, (_, reading, _) in enumerate(READINGS)]
    found = with_variant(rows).selectExpr("n", *columns).orderBy("n").collect()
    for n, (text, reading, expected) in enumerate(READINGS):
        value = found[n][f"c{n}"]
        value = bytes(value) if isinstance(value, bytearray) else value
        assert (type(value), repr(value)) == (type(expected), repr(expected)), (text, reading)


def test_every_path_of_the_matrix_is_read_here() -> None:
    """So that the page cannot tell of one that Spark does not know."""
    told = set(re.findall(r"'(\$\.x[^']*)', (?:'([^']+)'|…)\)", MATRIX.read_text()))
    tried = {re.findall(r"'(\$\.x[^']*)', '([^']+)'\)", reading)[0] for _, reading, _ in READINGS}
    assert len(told) > 15
    assert {path for path, _ in told} == {path for path, _ in tried}
    assert {one for one in told if one[1]} <= tried


VIEWS: list[tuple[str, str | None]] = [
    ("9" * 38, "9" * 38),
    ("9" * 39, "1.0E39"),
    ("0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"),
    ("1.0", "1"),
    ("12.50", "12.5"),
    ("-0.0", "0"),
    ("1E+400", '"Infinity"'),
    ("[" * 999 + "]" * 999, "[" * 999 + "]" * 999),
    ("[" * 1000 + "]" * 1000, None),  # with the document around them 1,001 levels
    ("9" * 1000, '"Infinity"'),
    ("9" * 1001, None),
    (f'{{"{"k" * 50_000}":1}}', f'{{"{"k" * 50_000}":1}}'),
    (f'{{"{"k" * 50_001}":1}}', None),
    ('{"a":1,"a":2}', None),
]
"""A text, and what VARIANT makes of it; None where it cannot be read."""


def test_variant_is_a_view_with_the_limits_that_are_told(spark: SparkSession) -> None:
    rows = [(n, f'{{"x":{text}}}') for n, (text, _) in enumerate(VIEWS)]
    frame = with_variant(spark.createDataFrame(rows, "n INT, data STRING"))
    found = frame.selectExpr("n", "to_json(data) AS view").orderBy("n").collect()
    assert [row.view for row in found] == [view and f'{{"x":{view}}}' for _, view in VIEWS]
