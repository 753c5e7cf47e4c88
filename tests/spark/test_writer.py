"""Writing journals from Spark: one append a batch, exactly once, whatever dies in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import types as st
from pyspark.sql.datasource import WriterCommitMessage

import penstock
from penstock.base import faults
from penstock.base.errors import PenstockError, UsageError
from penstock.journal import labels
from penstock.journal.client import Appended, Client, TimedOutError
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.fragment import Codec
from penstock.journal.protocol import JournalSpec
from penstock.log.commitlog import CommitLog
from penstock.spark.options import Transaction
from penstock.spark.source import PenstockSource
from penstock.spark.writer import BatchWriter, StreamWriter, append_once

from . import writer_driver

VALUE = st.StructType([st.StructField("value", st.StringType())])
QUERY = "bff92ed9-45ef-4d1e-a2bf-29ee73ed8cc9"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("writer") / "data"


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[Client]:
    with EmbeddedBroker(path) as broker, Client(broker.address) as client:
        yield client


def create(client: Client, name: str) -> None:
    spec = JournalSpec(name=name, replication=1)
    spec.fragment.length = 256 << 20
    spec.fragment.compression_codec = Codec.NONE.to_proto()
    spec.fragment.stores.append("file:///")
    spec.fragment.refresh_interval.FromSeconds(300)
    assert client.create(spec)


def content(client: Client, name: str) -> bytes:
    return client.read_bytes(name, 0, client.head(name))


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_arrays([pa.array(values, pa.string())], names=["value"])


def batch_writer(path: Path, journal: str, **options: str) -> BatchWriter:
    source = PenstockSource({"dataDir": str(path), "journal": journal, **options})
    writer = source.writer(VALUE, overwrite=False)
    assert isinstance(writer, BatchWriter)
    return writer


def stream_writer(path: Path, journal: str, **options: str) -> StreamWriter:
    source = PenstockSource({"dataDir": str(path), "journal": journal, **options})
    writer = source.streamWriter(VALUE, overwrite=False)
    assert isinstance(writer, StreamWriter)
    return writer


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> TaskContext:
    """A task of the query, as a worker of Spark sees it; its attempt and batch can be set."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)  # to be put back: the constructor sets it
    context = TaskContext()
    context._partitionId, context._attemptNumber = 0, 0
    context._localProperties = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": "0"}
    return context


def test_a_batch_is_one_append_in_the_order_of_its_partitions(client: Client, path: Path) -> None:
    create(client, "whole")
    writer = batch_writer(path, "whole")
    staged: list[WriterCommitMessage | None] = [writer.write(rows(f"p{i}", "x")) for i in range(3)]
    assert client.head("whole") == 0, "nothing is in the journal before the commit"
    writer.commit(staged)
    assert content(client, "whole") == b"p0\nx\np1\nx\np2\nx\n"
    assert not list((path / "scratch" / "sink").glob("*/*")), "what was staged is removed"


def test_an_aborted_batch_leaves_nothing(client: Client, path: Path, task: TaskContext) -> None:
    create(client, "aborted")
    writer = batch_writer(path, "aborted")
    writer.abort([writer.write(rows("a")), None])
    stream = stream_writer(path, "aborted")
    stream.abort([stream.write(rows("a")), None], 0)
    with pytest.raises(PenstockError, match="newline"):
        stream.write(rows("a", "b\nc"))
    assert client.head("aborted") == 0
    assert [entry for entry in (path / "scratch" / "sink").rglob("*") if entry.is_file()] == []


def test_a_repeated_commit_changes_nothing(client: Client, path: Path, task: TaskContext) -> None:
    """The driver was killed after the effect: Spark runs the batch again, under the same number."""
    create(client, "repeated")
    for number, text in (0, "zero"), (0, "zero"), (1, "one"), (1, "one"), (0, "zero"), (2, "two"):
        task._localProperties["streaming.sql.batchId"] = str(number)  # type: ignore[index]
        writer = stream_writer(path, "repeated")
        lost = writer.write(rows("of an attempt that was lost"))
        staged = writer.write(rows(text))
        stream_writer(path, "repeated").commit([staged], number)
        assert not staged.path.exists()
        assert not lost.path.exists()
    assert content(client, "repeated") == b"zero\none\ntwo\n"
    assert labels.values_of(client.append("repeated", ()).registers, f"spark-{QUERY}") == ["2"]


def test_empty_batches_append_nothing(client: Client, path: Path, task: TaskContext) -> None:
    create(client, "empty")
    writer = stream_writer(path, "empty")
    writer.commit([writer.write(iter(())), None], 0)
    writer.commit([], 1)
    assert client.head("empty") == 0


def test_a_named_batch_write_lands_once(client: Client, path: Path) -> None:
    create(client, "named")
    for version in "7", "7", "6", "8":
        writer = batch_writer(path, "named", txnAppId="nightly", txnVersion=version)
        writer.commit([writer.write(rows(f"version {version}"))])
    assert content(client, "named") == b"version 7\nversion 8\n"


class Forgetful(Client):
    """A client whose answers get lost: before the call, or after its effect."""

    losses: list[str]

    def append(self, journal: str, content: object, **options: object) -> Appended:
        loss = self.losses.pop(0) if content and self.losses else ""
        if loss == "before":
            raise TimedOutError("lost")
        landed = super().append(journal, content, **options)  # type: ignore[arg-type]
        if loss == "after":
            raise TimedOutError("lost")
        return landed


@pytest.mark.parametrize("losses", [["before"], ["after"], ["before", "after"]])
def test_a_lost_answer_is_neither_a_loss_nor_a_repetition(
    client: Client, losses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.writer._PAUSE", 0.01)
    journal = "doubt/" + "-".join(losses)
    create(client, journal)
    forgetful = Forgetful(client.address)
    forgetful.losses = list(losses)
    with forgetful:
        append_once(forgetful, journal, [memoryview(b"once\n")], Transaction("q", 0))
    assert content(client, journal) == b"once\n"


def test_two_queries_into_one_journal_both_land_and_two_drivers_of_one_do_not(client: Client) -> None:
    create(client, "shared")
    landed: list[tuple[str, int]] = []

    def driver(app: str) -> None:
        for version in range(20):
            text = f"{app} {version}\n".encode() * 50
            if append_once(client, "shared", [memoryview(text)], Transaction(app, version)):
                landed.append((app, version))

    threads = [threading.Thread(target=driver, args=(app,)) for app in ("a", "b", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(landed) == sorted((app, version) for app in "ab" for version in range(20))
    lines = content(client, "shared").decode().splitlines()
    batches = [lines[at] for at in range(0, len(lines), 50)]
    assert all(lines[at : at + 50] == [lines[at]] * 50 for at in range(0, len(lines), 50)), (
        "batches are whole"
    )
    for app in "ab":
        assert [text for text in batches if text.startswith(app)] == [f"{app} {v}" for v in range(20)]


def test_a_large_batch_is_still_one_append_and_costs_little_memory(client: Client, path: Path) -> None:
    create(client, "large")
    writer = batch_writer(path, "large")
    line = "x" * 999
    staged: list[WriterCommitMessage | None] = [
        writer.write(batch for _ in range(40) for batch in rows(*[line] * 500)) for _ in range(3)
    ]
    tracemalloc.start()
    try:
        writer.commit(staged)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert client.head("large") == 60_000_000
    assert peak < 40_000_000, "the broker runs in this process too"


def test_a_staged_file_that_changed_is_not_appended(client: Client, path: Path) -> None:
    create(client, "changed")
    writer = batch_writer(path, "changed")
    staged = writer.write(rows("abc"))
    with staged.path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(PenstockError, match="has 8 bytes, 4 were staged"):
        writer.commit([staged])
    assert client.head("changed") == 0


def test_what_may_not_be_written_is_refused_with_a_reason(client: Client, path: Path) -> None:
    where = {"dataDir": str(path)}
    with pytest.raises(UsageError, match="a commit log cannot be written to"):
        PenstockSource({**where, "pipeline": "p"}).writer(VALUE, overwrite=False)
    with pytest.raises(UsageError, match="only ever appended to"):
        PenstockSource({**where, "journal": "j"}).streamWriter(VALUE, overwrite=True)
    with pytest.raises(UsageError, match="'stagingDir' is missing"):
        PenstockSource({"broker": "host:1", "journal": "j"}).writer(VALUE, overwrite=False)
    CommitLog(client, "owned", path / "index", 1 << 20, 0)
    for journal, complaint in (
        ("pipelines/owned/log", "belongs to a pipeline"),
        ("absent", "there is no journal"),
    ):
        writer = batch_writer(path, journal)
        with pytest.raises(UsageError, match=complaint):
            writer.commit([writer.write(rows("a"))])


@pytest.mark.spark
def test_spark_writes_and_reads_a_journal(
    spark: SparkSession, client: Client, path: Path, tmp_path: Path
) -> None:
    spark.dataSource.register(PenstockSource)
    for name in ("json", "copy"):
        create(client, f"spark/{name}")
    schema = "id BIGINT, name STRING, price DECIMAL(8,2), at TIMESTAMP, tags ARRAY<STRING>"
    frame = spark.range(1000).repartitionByRange(2, "id").selectExpr(
        "id", "concat('ü', id) AS name", "CAST(id AS DECIMAL(8,2)) / 4 AS price",
        "timestamp_micros(1700000000123456 + id) AS at", "array('x', null) AS tags",
    ).selectExpr("id", "name", "CAST(price AS DECIMAL(8,2)) AS price", "at", "tags")  # fmt: skip
    where = {"dataDir": str(path)}
    frame.write.format("penstock").options(**where, journal="spark/json", content="json").mode(
        "append"
    ).save()
    back = spark.read.format("penstock").schema(schema).options(**where, journal="spark/json", content="json")
    assert back.load().collect() == frame.collect()
    lines = (
        spark.readStream.format("penstock").options(**where, journal="spark/json", maxMessages="300").load()
    )
    query = (
        lines.select("value").writeStream.format("penstock").options(**where, journal="spark/copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    assert [progress.numInputRows for progress in query.recentProgress] == [300, 300, 300, 100]
    assert content(client, "spark/copy") == content(client, "spark/json")


def killed_while_copying(path: Path, tmp_path: Path, step: str) -> bool:
    """Run a driver that copies, and have it killed at a step; whether it was."""
    environment = os.environ | {
        "PYTHONPATH": str(Path(penstock.__file__).parents[1]),
        faults.TRACE: str(tmp_path / "trace"),
        faults.KILL: step,
    }
    driver = Path(__file__).with_name("writer_driver.py")
    # Into a file: the JVM, which outlives a killed driver for a moment, would keep a pipe open.
    with (tmp_path / "output").open("w") as output:
        done = subprocess.run(
            [sys.executable, str(driver), str(path), str(tmp_path / "scratch"), str(tmp_path / "checkpoint")],
            env=environment, timeout=240, stdout=output, stderr=output, check=False,
        )  # fmt: skip
    return done.returncode == -signal.SIGKILL


@pytest.mark.soak
@pytest.mark.spark
def test_a_driver_killed_after_the_append_writes_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    lines = b"".join(b"line %d\n" % i for i in range(30))
    with EmbeddedBroker(path) as broker, Client(broker.address) as client:
        create(client, "copied/in")
        create(client, "copied/out")
        client.append("copied/in", lines)
        assert killed_while_copying(path, tmp_path, "sink appended:2"), (tmp_path / "output").read_text()
        assert content(client, "copied/out") == b"".join(lines.splitlines(True)[:20]), "the second has landed"
        commits = tmp_path / "checkpoint" / "commits"
        assert not (commits / "1").exists(), "and Spark does not know"
        writer_driver.copy(spark, str(path), str(tmp_path / "checkpoint"))
        assert (commits / "2").exists()
        assert content(client, "copied/out") == lines
