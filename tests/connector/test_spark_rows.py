"""A connector's journal as a DataFrame, in a batch and as a stream, in any number of parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.connector import frames as fr
from penstock.connector import records
from penstock.connector.records import CorruptJournalError
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.journals import journal_spec
from penstock.spark import connectorrows, planner
from penstock.spark.formats import CONNECTOR_SCHEMA
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
        streamed = spark.readStream.format("penstock").options(**options, maxBytes="5000").load()
        query = (
            streamed.writeStream.format("memory").queryName("connector_rows")
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        found = spark.sql("SELECT * FROM connector_rows ORDER BY offset").collect()
        assert [tuple(row)[1:] for row in found] == [row_of(message) for message in sent]
