"""A connector's journal as a DataFrame, in a batch and as a stream, in any number of parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.base.errors import UsageError
from penstock.connector import frames as fr
from penstock.connector import records
from penstock.connector.partitions import partition_journal
from penstock.connector.records import CorruptJournalError
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.journals import journal_spec
from penstock.spark import connectorrows, planner, planning
from penstock.spark.endsearch import Limits
from penstock.spark.formats import CONNECTOR_SCHEMA
from penstock.spark.options import SourceOptions
from penstock.spark.ranges import JournalRange
from penstock.spark.source import PenstockSource

BIG = 2**64 - 2


def messages(count: int) -> list[fr.Message]:
    return [
        fr.Message((7, BIG)[n % 2], n, -n, b"key" if n % 3 else b"", b"body %d" % n) for n in range(count)
    ]


def journal_of(sent: list[fr.Message]) -> list[bytes]:
    """Appends as a worker makes them: with frames of its own between."""
    appends = [records.claim("w") + records.points({}) + fr.encode(fr.Notify(7, "seven", 0))]
    for at in range(0, len(sent), 100):
        appends.append(b"".join(map(fr.encode, sent[at : at + 100])))
    return [*appends, fr.encode(fr.EosMessage(7))]


def row_of(message: fr.Message) -> tuple[object, ...]:
    return (message.stream, message.id, message.time, bytes(message.key) or None, bytes(message.body))


def test_the_schema_is_that_of_the_rows() -> None:
    assert connectorrows.SCHEMA == CONNECTOR_SCHEMA


def test_frames_become_rows_and_what_is_cut_waits() -> None:
    sent = messages(5)
    raw = b"".join(journal_of(sent))
    batch, used = connectorrows.decode(memoryview(raw + b"\x00\x00"), "j", 1000)
    assert used == len(raw)
    rows = [tuple(row.values()) for row in batch.to_pylist()]
    assert [row[1:] for row in rows] == [row_of(message) for message in sent]
    first = rows[0][0]
    assert isinstance(first, int)
    assert raw[first - 1000 :].startswith(fr.encode(sent[0]))
    with pytest.raises(CorruptJournalError, match="byte 1000"):
        connectorrows.decode(memoryview(bytes(8)), "j", 1000)


@pytest.mark.spark
def test_a_connectors_journal_is_read_whole_in_batches_and_streams(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "SMALL_BATCH", 4096)
    spark.dataSource.register(PenstockSource)
    sent = messages(1000)
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        client.create(journal_spec("connectors/i", 8192, {}))
        for content in journal_of(sent):
            client.append("connectors/i", content)
        options = {"dataDir": str(tmp_path / "data"), "journal": "connectors/i", "content": "connector"}
        frame = spark.read.format("penstock").options(**options).load().orderBy("offset")
        assert [tuple(row)[1:] for row in frame.collect()] == [row_of(message) for message in sent]
        streamed = spark.readStream.format("penstock").options(**options, maxBytes="20000").load()
        query = (
            streamed.writeStream.format("memory").queryName("connector_rows")
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        found = spark.sql("SELECT * FROM connector_rows ORDER BY offset").collect()
        assert [tuple(row)[1:] for row in found] == [row_of(message) for message in sent]


@pytest.mark.spark
def test_all_partitions_of_an_instance_are_read_and_those_that_come_later_as_well(
    tmp_path: Path, spark: SparkSession
) -> None:
    spark.dataSource.register(PenstockSource)
    sent = [messages(300)[at::3] for at in range(3)]
    options = {"dataDir": str(tmp_path / "data"), "journal": "connectors/i", "content": "connector"}
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:

        def fill(journal: str, some: list[fr.Message]) -> None:
            client.create(journal_spec(journal, 8192, {}))
            for content in journal_of(some):
                client.append(journal, content)

        def read_on() -> None:
            streamed = spark.readStream.format("penstock").options(**options, maxBytes="4000").load()
            query = (
                streamed.writeStream.format("parquet").option("path", str(tmp_path / "out"))
                .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            )  # fmt: skip
            query.awaitTermination()

        fill("connectors/i", sent[0])
        read_on()
        fill("connectors/i+1", sent[1])
        fill("connectors/i+2", sent[2])
        fill("connectors/i2", sent[2])
        read_on()
        wanted = sorted(row_of(message) for part in sent for message in part)
        found = spark.read.parquet(str(tmp_path / "out")).collect()
        assert sorted(tuple(row)[1:] for row in found) == wanted
        batch = spark.read.format("penstock").options(**options).load().collect()
        assert sorted(tuple(row)[1:] for row in batch) == wanted


def test_a_stream_waits_for_any_of_the_partitions_and_shares_its_limits(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        for number in range(3):
            client.create(journal_spec(partition_journal("many/i", number), 8192, {}))
        options = {
            "dataDir": str(tmp_path / "data"),
            "journal": "many/i",
            "content": "connector",
            "wait": "0.2s",
        }
        plan = planning.planner(SourceOptions.parse(options), stream=True)
        start = plan.start()
        assert start == {"byte": 0, "1": 0, "2": 0}
        assert plan.next(start, plan.more(start), Limits(1000, None)) == start
        for journal in ("many/i", "many/i+2"):
            client.append(journal, b"".join(map(fr.encode, messages(100))))
        end = plan.next(start, plan.more(start), Limits(1000, None))
        assert end["1"] == 0
        assert 0 < end["byte"] <= 500
        assert 0 < end["2"] <= 500
        assert [
            (each.journal, each.begin, each.end)
            for each in plan.ranges(start, end)
            if isinstance(each, JournalRange)
        ] == [
            ("many/i", 0, end["byte"]),
            ("many/i+2", 0, end["2"]),
        ]
        with pytest.raises(UsageError, match="3 partitions"):
            planning.planner(SourceOptions.parse({**options, "startOffset": "5"}), stream=True).start()
