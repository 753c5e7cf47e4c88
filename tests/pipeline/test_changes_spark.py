"""Changes on their way through Spark: old keys, transactions that are never cut, schemas for sinks, bad input."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.adaptors.base import Bad, Batch
from penstock.functions.python import MutableMessage
from penstock.log.message import Message, Mode, Op
from penstock.log.packing import pack
from penstock.log.schema import Field, Kind, Schema
from penstock.pipeline.definition import Node
from penstock.pipeline.operations import open_directory
from penstock.pipeline.runner import run

from .witness import Given, Witness, batches, rows, told

pytestmark = pytest.mark.spark

NOW = 1_700_000_000_000_000
SCHEMA = Schema((Field("id", Kind.INT),), ("id",))


def change(n: int, before: int | None = None) -> Message:
    old = b'{"id":%d}' % before if before is not None else None
    return Message("orders", b'{"id":%d}' % n, Op.UPDATE, NOW, Mode.SYNC, b'{"id":%d}' % n, old)


def told_as_it_is(message: MutableMessage) -> MutableMessage:
    message.data["seen"] = True
    return message


def without_keys(frame: DataFrame) -> DataFrame:
    return frame.drop("key", "old_key")


def a_pipeline(given: list[Batch], **settings: object) -> tuple[Pipeline, Node]:
    pipeline = Pipeline("changes", **settings)  # type: ignore[arg-type]
    pipeline.modules = (__name__, Given.__module__)
    return pipeline, pipeline.source("in", Given(given))


def place(tmp_path: Path, name: str) -> Witness:
    (tmp_path / name).mkdir()
    return Witness(tmp_path / name)


def test_an_old_key_goes_through_functions_and_is_null_where_one_drops_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    packed = pack(
        "orders", pa.array([b'{"id":5}', b'{"id":6}']), ts=NOW, mode=Mode.SYNC, ops=Op.UPDATE,
        keys=pa.array([b'{"id":5}', b'{"id":6}']), old_keys=pa.array([None, b'{"id":3}']),
    )  # fmt: skip
    given = [Batch([change(1), change(2, before=9)], {"orders": {"n": 2}}, packed=[packed])]
    pipeline, tap = a_pipeline(given)
    ways = {
        "plain": tap,
        "functions": tap.transform("moved", f.remap(ns_map={"orders": "moved"}))
        .transform("python", f.python(told_as_it_is))
        .transform("js", f.js(source="function transform(msg) { msg.data.js = 1; return msg }")),
        "frame": tap.transform("where", lambda df: df.where("offset >= 0")),
        "dropped": tap.transform("drop", without_keys),
    }
    for name, way in ways.items():
        way.save(name, place(tmp_path, name))
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (summary.exit_code, summary.message) == (0, None)
    expected = [None, '{"id":9}', None, '{"id":3}']
    for name in ("plain", "functions", "frame"):
        assert [row["old_key"] for row in rows(tmp_path / name)] == expected, name
        assert rows(tmp_path / name)[1]["key"] == '{"id":2}'
    assert {row["ns"] for row in rows(tmp_path / "functions")} == {"moved"}
    assert [(row["key"], row["old_key"]) for row in rows(tmp_path / "dropped")] == [(None, None)] * 4


def test_no_batch_of_a_sink_ends_within_a_transaction_however_small_batches_are_to_be(
    tmp_path: Path, spark: SparkSession
) -> None:
    parts = [4, 1, 6]
    transaction = [
        Batch([change(n) for n in range(size)], {"orders": {"part": i}}, more=i < len(parts) - 1)
        for i, size in enumerate(parts)
    ]
    given = [Batch([change(n) for n in range(3)], {"orders": {}}), *transaction, Batch([change(0)])]
    pipeline, tap = a_pipeline(given, batch_messages=2)
    tap.save("out", place(tmp_path, "out"))
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (summary.exit_code, summary.read, summary.sinks[0].delivered) == (0, 15, 15)
    assert batches(tmp_path / "out") == [(0, 2), (3, 13), (14, 14)]


def test_a_run_whose_source_breaks_off_within_a_transaction_ends_and_leaves_it_pending(
    tmp_path: Path, spark: SparkSession
) -> None:
    given = [Batch([change(1)], {"orders": {"n": 1}}), Batch([change(2)], {"orders": {"n": 2}}, more=True)]
    pipeline, tap = a_pipeline(given)
    tap.save("out", place(tmp_path, "out"))
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert summary.exit_code != 0
    assert "ended within a transaction" in (summary.message or "")
    [sink] = summary.sinks
    assert (sink.messages_in, sink.delivered, sink.pending, summary.adds_up) == (2, 1, 1, True)


def test_a_sink_is_told_its_name_and_the_schemas_of_the_log_also_one_message_at_a_time(
    tmp_path: Path, spark: SparkSession
) -> None:
    given = [Batch([change(1), change(2)], {"orders": {"n": 2}}, schemas={"orders": SCHEMA})]
    pipeline, tap = a_pipeline(given)
    tap.save("out", place(tmp_path, "out"))
    tap.save("quiet", place(tmp_path, "quiet"))
    (tmp_path / "out" / "poison").touch()
    run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert batches(tmp_path / "out") == [(0, 0), (1, 1)]
    assert told(tmp_path / "out") == {f"changes.out {SCHEMA}"}
    assert batches(tmp_path / "quiet") == [(0, 1)]
    assert told(tmp_path / "quiet") == {f"changes.quiet {SCHEMA}"}


def test_a_sink_that_comes_late_writes_what_one_that_kept_up_did(tmp_path: Path, spark: SparkSession) -> None:
    """A column has another type since: rows from before it were refused for ever."""
    schemas = [Schema((Field("x", kind),)) for kind in (Kind.INT, Kind.STRING)]
    given = [
        Batch([Message("orders", text)], {"orders": {"n": n}}, schemas={"orders": schemas[n]})
        for n, text in enumerate((b'{"x":5}', b'{"x":"five"}'))
    ]
    pipeline, tap = a_pipeline(given)
    tap.save("early", place(tmp_path, "early"))
    run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    tap.save("late", a.file(uri=f"file://{tmp_path}/late/", format="parquet", partition_by=[]))
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (summary.exit_code, summary.message) == (0, None)
    tables = [pq.read_table(path) for path in (tmp_path / "late").glob("*.parquet")]
    assert sorted((str(table.schema.field("x").type), table.to_pylist()) for table in tables) == [
        ("int64", [{"x": 5}]),
        ("large_string", [{"x": "five"}]),
    ]


def test_what_is_bad_is_counted_apart_and_every_message_is_accounted_for(
    tmp_path: Path, spark: SparkSession
) -> None:
    bad = [Bad("orders", f"line {n}", "not JSON", b"{") for n in (2, 3)]
    pipeline, tap = a_pipeline([Batch([change(1)], {"orders": {"n": 1}}, bad=bad)])
    tap.save("out", place(tmp_path, "out"))
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (summary.exit_code, summary.bad, summary.read, summary.adds_up) == (0, 2, 1, True)
    [sink] = summary.sinks
    assert (sink.messages_in, sink.delivered, sink.dead) == (1, 1, 0)
    with open_directory(tmp_path / "data") as directory:
        assert [letter.place for letter in directory.dead("changes")] == ["line 2", "line 3"]
        assert directory.status("changes").bad == 2
