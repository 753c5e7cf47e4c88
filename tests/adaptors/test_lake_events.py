"""From messages to typed events in Parquet files: what the tasks of `delta`, `iceberg` and `jdbc` do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.adaptors.base import Stage, Staged
from penstock.adaptors.lake.events import KIND, OFFSET, EventStager, Options
from penstock.adaptors.lake.frames import Place, cast, events_of, together
from penstock.base.errors import UsageError
from penstock.log.message import Message, Op
from penstock.log.schema import Field, Kind, Schema, Told
from penstock.testing.adaptors.delivery import ROWS, GivenSchemas, batch_of, message, truncate


def staged(
    place: Path,
    messages: Sequence[Message],
    options: Options | None = None,
    schema: Schema | Sequence[Told] | None = ROWS,
) -> Staged:
    stager = EventStager(options or Options(), GivenSchemas({} if schema is None else {"t": schema}))
    return stager.stage(Stage(place, "part", 0), iter([batch_of(messages, 0)]))


def rows(part: Staged) -> list[dict[str, object]]:
    files = [pq.read_table(path) for path in sorted(Path(part.part).glob("*.parquet"))]
    return [row for file in files if KIND in file.schema.names for row in file.to_pylist()]


def test_a_change_of_the_key_is_a_delete_before_an_upsert(tmp_path: Path) -> None:
    found = rows(staged(tmp_path, [message("t", 12, "x", Op.UPDATE, was=2)]))
    assert [(row[KIND], row["id"]) for row in found] == [("delete", 2), ("upsert", 12)]
    assert found[0]["_penstock_row"] < found[1]["_penstock_row"]  # type: ignore[operator]


def test_a_truncate_has_its_place_between_the_rows(tmp_path: Path) -> None:
    (events,) = events_of([staged(tmp_path, [message("t", 1), truncate("t"), message("t", 2)])])
    assert events.truncated == Place(1, 3)
    assert events.key == ("id",)


def test_a_row_that_does_not_fit_takes_its_whole_message_along(tmp_path: Path) -> None:
    bad = Message("t", b'{"id":666,"text":5}', key=b'{"id":666}')
    part = staged(tmp_path, [message("t", 1), bad, message("t", 2)])
    assert [refusal.offset for refusal in part.refused] == [1]
    assert [row[OFFSET] for row in rows(part)] == [0, 2]


@pytest.mark.parametrize(
    ("data", "key", "reason"),
    [
        (b'{"text":"x"}', b'{"id":1}', "'id' is missing or null"),
        (b'{"id":null}', None, "'id' is missing or null"),
        (b"[1]", b'{"id":1}', ""),
        (b'{"id":1,"Text":"a","text":"b"}', b'{"id":1}', "differ in case alone"),
    ],
)
def test_what_cannot_be_a_row_is_refused(tmp_path: Path, data: bytes, key: bytes | None, reason: str) -> None:
    part = staged(tmp_path, [Message("t", data, key=key), message("t", 1)])
    assert [refusal.offset for refusal in part.refused] == [0]
    assert reason in part.refused[0].error
    assert len(rows(part)) == 1


def test_without_a_key_there_is_no_upsert(tmp_path: Path) -> None:
    part = staged(tmp_path, [Message("t", b'{"a":1}')], schema=None)
    assert "mode='append'" in part.refused[0].error
    again = staged(tmp_path / "2", [Message("t", b'{"a":1}')], Options("append"), None)
    assert again.refused == ()
    assert rows(again)[0]["a"] == 1


def test_append_takes_deletes_only_where_it_tells_them_from_inserts(tmp_path: Path) -> None:
    gone = [message("t", 1, "x", Op.DELETE), truncate("t")]
    assert len(staged(tmp_path, gone, Options("append")).refused) == 2
    part = staged(tmp_path / "2", gone, Options("append", metadata=True))
    assert [(row["penstock_op"], row["penstock_offset"]) for row in rows(part)] == [
        ("delete", 0),
        ("command", 1),
    ]


def test_a_field_that_the_source_does_not_know_gets_a_kind_that_holds_it(tmp_path: Path) -> None:
    messages = [
        Message("t", b'{"id":1,"n":1}', key=b'{"id":1}'),
        Message("t", b'{"id":2,"n":"x"}', key=b'{"id":2}'),
    ]
    (events,) = events_of([staged(tmp_path, messages)])
    assert events.columns == {"id": "BIGINT", "n": "STRING"}


def test_rows_from_before_a_change_are_events_by_the_schema_that_held_then(tmp_path: Path) -> None:
    """Of a column that has another type since, they were refused for ever."""
    numbers = Schema((Field("id", Kind.INT), Field("x", Kind.INT)), ("id",))
    texts = Schema((Field("id", Kind.INT), Field("x", Kind.STRING)), ("id",))
    messages = [
        Message("t", b'{"id":1,"x":5}', key=b'{"id":1}'),
        Message("t", b'{"id":2,"x":"a"}', key=b'{"id":2}'),
    ]
    part = staged(tmp_path, messages, schema=[Told(0, numbers), Told(1, texts)])
    assert part.refused == ()
    assert [(row["id"], row["x"]) for row in rows(part)] == [(1, 5), (2, "a")]
    (events,) = events_of([part])
    assert events.columns == {"id": "BIGINT", "x": "STRING"}


def test_messages_of_a_table_must_agree_on_their_key(tmp_path: Path) -> None:
    one = staged(tmp_path / "1", [message("t", 1)])
    other = Schema((Field("text", Kind.STRING),), key=("text",))
    two = staged(tmp_path / "2", [Message("t", b'{"text":"x"}', key=b'{"text":"x"}')], schema=other)
    with pytest.raises(UsageError, match="have the key"):
        events_of([one, two])


def test_types_come_together_without_a_loss() -> None:
    assert together("BIGINT", "DOUBLE") == "DOUBLE"
    assert together("DECIMAL(10,2)", "BIGINT") == "DECIMAL(38,2)"
    assert together("DATE", "BIGINT") == "STRING"
    assert "raise_error" in cast("n", "BIGINT", "INT")
    assert "raise_error" in cast("n", "BIGINT", "DOUBLE")
    assert cast("n", "INT", "BIGINT") == "CAST(`n` AS BIGINT) AS `n`"


@pytest.mark.parametrize(
    "kind, value, text",
    [
        ("ARRAY<STRING>", "array('a, b', 'c', null)", '["a, b","c",null]'),
        ("ARRAY<BIGINT>", "array(1L, 2L)", "[1,2]"),
        ("BINARY", "X'00FF41'", "AP9B"),
        ("DECIMAL(4,2)", "CAST(1.10 AS DECIMAL(4,2))", "1.10"),
    ],
)
def test_a_value_for_a_column_of_text_can_be_told_from_others(
    spark: SparkSession, kind: str, value: str, text: str
) -> None:
    """A cast leaves out the quotes of an array, and bytes that are no text."""
    assert spark.sql(f"SELECT {value} AS x").selectExpr(cast("x", kind, "string")).first() == (text,)


@pytest.mark.parametrize("number", [2**63 - 1, 2**53 + 1, -(2**53) - 1])
def test_a_number_that_a_float_does_not_keep_ends_the_query(spark: SparkSession, number: int) -> None:
    """Of the largest there is, a cast to a float and back makes the same again, though the float is another."""
    with pytest.raises(Exception, match="a value of the field 'x' does not fit its column, which is DOUBLE"):
        spark.sql(f"SELECT {number}L AS x").selectExpr(cast("x", "BIGINT", "double")).collect()
    whole = spark.sql("SELECT -9223372036854775808L AS x").selectExpr(cast("x", "BIGINT", "double"))
    assert whole.first() == (-(2.0**63),)
