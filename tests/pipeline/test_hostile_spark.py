"""What a run does when targets, functions and messages go wrong one behind the other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from penstock import Pipeline, retry
from penstock import adaptors as a
from penstock import functions as f
from penstock.functions.python import MutableMessage
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker, connect
from penstock.log import deadletters
from penstock.log.offsets import Commit, OffsetLog
from penstock.pipeline import supervisor, troubles
from penstock.pipeline.definition import Node
from penstock.pipeline.progress import Progress
from penstock.pipeline.runner import run
from penstock.spark import batch
from penstock.spark.staging import Staging
from penstock.spark.tasks import Task
from penstock.spark.work import Work

from .picky import Picky

pytestmark = pytest.mark.spark


def with_name(ns: str) -> Callable[[MutableMessage], MutableMessage]:
    def function(message: MutableMessage) -> MutableMessage:
        message.ns = ns
        return message

    return function


def source(pipeline: Pipeline, path: Path, count: int) -> Node:
    (path / "in.jsonl").write_text("".join(f'{{"n":{n}}}\n' for n in range(count)))
    return pipeline.source("in", a.file(uri=f"file://{path}/in.jsonl"))


@pytest.mark.soak
def test_a_target_that_goes_away_while_messages_go_one_at_a_time_is_waited_for(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery is a task of Spark then, and the type of an error does not come out of one."""
    monkeypatch.setattr(troubles, "RESTARTS", 0)
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        OffsetLog(client, "p", "out", 1).commit(Commit(careful=3), {}, 1)
    away, states = tmp_path / "away", set[str]()

    def report(progress: Progress) -> None:
        sink = progress.nodes[-1]
        states.add(sink.state)
        if progress.phase == "starting spark" and sink.state == "starting":
            away.touch()
        elif sink.state == "away":
            away.unlink(missing_ok=True)

    pipeline = Pipeline("p")
    pipeline.modules = (Picky.__module__,)
    source(pipeline, tmp_path, 4).save("out", Picky(directory=tmp_path))
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark, report=report)
    assert (summary.exit_code, summary.message) == (0, None)
    assert "away" in states
    assert (tmp_path / "out.jsonl").read_text().splitlines() == [f'{{"n":{n}}}' for n in range(4)]


@pytest.mark.soak
def test_every_refused_message_has_its_retries_before_it_is_buried(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    def picky(message: MutableMessage) -> MutableMessage:
        if message.data["n"] in (1, 3):
            raise ValueError("not this one")
        return message

    pipeline = Pipeline("p", batch_messages=1)
    node = source(pipeline, tmp_path, 5).transform("picky", f.python(picky))
    on_error = retry(1, backoff=0.05, then="dead-letter")
    node.save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"), on_error=on_error)
    with caplog.at_level(logging.WARNING, logger=supervisor.__name__):
        summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (summary.exit_code, summary.sinks[0].delivered, summary.sinks[0].dead) == (0, 3, 2)
    waits = [record.getMessage() for record in caplog.records if "retrying" in record.getMessage()]
    assert [sum(f"message {n}" in wait for wait in waits) for n in (1, 3)] == [2, 2]
    with connect(tmp_path / "data") as client:
        assert [letter.offset for letter in deadletters.load(client, "p")] == [1, 3]


@pytest.mark.soak
def test_a_function_that_makes_up_offsets_stops_its_sink_and_not_the_clock(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Buried under an offset that is none, such a message would be refused again and again, in the same batch."""
    pipeline = Pipeline("p")
    node = source(pipeline, tmp_path, 3).transform(
        "odd", lambda df: df.withColumns({"offset": df["offset"] + 7, "data": sf.lit(None).cast("string")})
    )
    node.save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"), on_error="dead-letter")
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert summary.exit_code == 2
    assert "made up offset 7" in str(summary.message)
    assert summary.sinks[0].pending == 3


def test_a_batch_with_more_dead_than_are_told_of_at_once_is_delivered_to_its_end(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was behind the last one told of came with no batch: a run that was to end by itself waited for ever."""
    monkeypatch.setattr(batch, "BURIED_AT_ONCE", 10)
    pipeline = Pipeline("p", partitions=1)
    node = source(pipeline, tmp_path, 100).transform(
        "odd", f.python(lambda message: message.data["n"] % 2 == 0 or 1 / 0)
    )
    node.save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"), on_error="dead-letter")
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    sink = summary.sinks[0]
    assert (summary.exit_code, sink.delivered, sink.dead, sink.pending) == (0, 50, 50, 0)
    assert (tmp_path / "out.jsonl").read_text().splitlines() == [f'{{"n":{n}}}' for n in range(0, 100, 2)]
    with connect(tmp_path / "data") as client:
        assert [letter.offset for letter in deadletters.load(client, "p")] == list(range(1, 100, 2))


def test_a_row_that_a_dataframe_function_spoils_is_refused_and_not_left_out(
    tmp_path: Path, spark: SparkSession
) -> None:
    """A line with a null in it was none: the sink had written it, by its account, and the file did not hold it."""
    spoilt = sf.when(sf.col("offset") != 1, sf.col("op"))
    pipeline = Pipeline("p")
    node = source(pipeline, tmp_path, 3).transform("odd", lambda df: df.withColumn("op", spoilt))
    node.save("out", a.file(uri=f"file://{tmp_path}/out.jsonl", envelope=True), on_error="dead-letter")
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (summary.exit_code, summary.sinks[0].delivered, summary.sinks[0].dead) == (0, 2, 1)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    with connect(tmp_path / "data") as client:
        [letter] = deadletters.load(client, "p")
    assert (letter.offset, letter.error) == (1, "the function set op to null")


@pytest.mark.parametrize(
    "change, complaint",
    [
        ("offset - 2 * int(offset / 2)", "a function made up offset 0 in the batch [2, 4)"),
        ("nullif(offset, 3)", "a function gave back a row without an offset in the batch [2, 4)"),
    ],
)
def test_a_row_of_no_message_of_its_batch_is_refused(
    tmp_path: Path, spark: SparkSession, change: str, complaint: str
) -> None:
    """One from before the batch was taken for one that the target has, and the message for dropped."""
    pipeline = Pipeline("p", batch_messages=2)
    node = source(pipeline, tmp_path, 4).transform(
        "odd", lambda df: df.withColumn("offset", sf.expr(f"cast({change} AS BIGINT)"))
    )
    node.save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"))
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (summary.exit_code, summary.sinks[0].delivered, summary.sinks[0].pending) == (2, 2, 2)
    assert complaint in str(summary.message)


def test_messages_that_spark_cannot_read_are_told_of_together(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One was told of at a time, and for each of them the whole batch was staged anew."""
    staged: list[Work] = []
    stage = Staging.stage

    def watched(self: Staging, work: Work, *rest: Any) -> list[Task]:
        staged.append(work)
        return stage(self, work, *rest)

    monkeypatch.setattr(Staging, "stage", watched)
    (tmp_path / "in.jsonl").write_text("".join(f'{{"n":{n},"n":0}}\n{{"n":{n}}}\n' for n in range(8)))
    pipeline = Pipeline("p")
    node = pipeline.source("in", a.file(uri=f"file://{tmp_path}/in.jsonl"))
    node = node.transform("moved", f.python(with_name("other"))).transform("all", lambda df: df.where("true"))
    node.save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"), on_error="dead-letter")
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (summary.exit_code, summary.sinks[0].delivered, summary.sinks[0].dead) == (0, 8, 8)
    assert len(staged) == 2
    with connect(tmp_path / "data") as client:
        letters = list(deadletters.load(client, "p"))
    assert [letter.offset for letter in letters] == list(range(0, 16, 2))
    assert {letter.ns for letter in letters} == {"in"}


def test_a_dataframe_function_that_exits_has_failed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubles, "RESTARTS", 0)
    pipeline = Pipeline("p")
    node = source(pipeline, tmp_path, 3).transform("odd", lambda df: exit(3))
    node.save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"))
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (summary.exit_code, summary.sinks[0].pending) == (1, 3)
    assert "transformation 'odd': SystemExit: 3" in str(summary.message)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["python", "arrow", "js", "sql", "frame"])
def test_a_message_that_a_function_of_any_kind_refuses_has_its_retries_and_the_others_come_once(
    kind: str, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    def picky(rows: pa.RecordBatch) -> pa.RecordBatch:
        if 3 in rows.column("offset").to_pylist():
            raise ValueError("not this one")
        return rows

    spoilt = "CASE WHEN offset <> 3 THEN op END"
    functions: dict[str, Callable[[], Any]] = {
        "python": lambda: f.python(lambda message: message.data["n"] != 3 or 1 / 0),
        "arrow": lambda: f.arrow(picky),
        "js": lambda: f.js(
            source="function transform(msg) { if (msg.data.n === 3) throw 'no'; return msg; }"
        ),
        "sql": lambda: f.sql(f"SELECT * EXCEPT (op), {spoilt} AS op FROM messages"),
        "frame": lambda: lambda df: df.withColumn("op", sf.expr(spoilt)),
    }
    pipeline = Pipeline("p", batch_messages=4)
    node = source(pipeline, tmp_path, 8).transform("picky", functions[kind]())
    on_error = retry(2, backoff=0.05, then="dead-letter")
    node.save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"), on_error=on_error)
    with caplog.at_level(logging.WARNING, logger=supervisor.__name__):
        summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    sink = summary.sinks[0]
    assert (summary.exit_code, sink.delivered, sink.dead, sink.pending) == (0, 7, 1, 0)
    assert (tmp_path / "out.jsonl").read_text().splitlines() == [f'{{"n":{n}}}' for n in range(8) if n != 3]
    waits = [record.getMessage() for record in caplog.records if "retrying" in record.getMessage()]
    assert sum("message 3" in wait for wait in waits) == 3, "two retries, and the one that buries it"
    with connect(tmp_path / "data") as client:
        assert [letter.offset for letter in deadletters.load(client, "p")] == [3]


def test_a_dataframe_function_that_fails_is_named_with_its_line(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubles, "RESTARTS", 0)
    pipeline = Pipeline("p")
    node = source(pipeline, tmp_path, 3).transform("odd", lambda df: df.where(f"{1 // 0}"))
    node.save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"))
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (summary.exit_code, summary.sinks[0].pending) == (1, 3)
    assert "transformation 'odd': ZeroDivisionError: " in str(summary.message)
    assert f"({Path(__file__).name}:" in str(summary.message)
