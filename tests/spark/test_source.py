"""The data source `penstock` in a real Spark session: the log as rows, in batches and as a stream.

What needs no session is in `test_formats.py`; writing is in `test_writer.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import CommitLog
from penstock.log.message import Message, Mode, Op
from penstock.spark.columns import with_variant
from penstock.spark.source import PenstockSource

pytestmark = pytest.mark.spark

NOW = 1_700_000_000_123_456
COUNT = 60_000


@dataclass
class Written:
    path: Path
    log: CommitLog
    client: Client
    messages: list[Message]


def messages(first: int, count: int) -> list[Message]:
    return [
        Message(
            ns=("orders", "items", "ünïcode")[i % 3],
            data=b'{"n":%d,"b":1.0,"a":"%s"}' % (i, b"x" * (i % 200)),
            op=(Op.INSERT, Op.UPDATE, Op.DELETE)[i % 3],
            ts=NOW + i,
            mode=Mode.SYNC if i % 2 else Mode.COPY,
            key=b'{"n":%d}' % i if i % 5 == 0 else None,
        )
        for i in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Written]:
    spark.dataSource.register(PenstockSource)
    path = tmp_path_factory.mktemp("source") / "data"
    with EmbeddedBroker(path) as broker, Client(broker.address) as client:
        log = CommitLog(client, "shop", path / "index", 3 << 20, NOW)
        everything: list[Message] = []
        for i in range(0, COUNT, 5000):
            batch = messages(i, 5000)
            log.append(batch, {"orders": {"i": i}}, [], NOW)
            everything += batch
        yield Written(path, log, client, everything)


def source(spark: SparkSession, written: Written, **options: object) -> DataFrame:
    told = {name: str(value) for name, value in options.items()}
    reader = spark.read.format("penstock").options(dataDir=str(written.path), pipeline="shop", **told)
    return reader.load()


def test_rows_are_the_messages_of_the_log(spark: SparkSession, written: Written) -> None:
    frame = source(spark, written, partitions=4)
    assert frame.rdd.getNumPartitions() > 1
    rows = frame.selectExpr("offset", "unix_micros(ts) AS ts", "mode", "op", "ns", "key", "data").collect()
    assert len(rows) == COUNT
    for i in (0, 1, 2, 5, 4999, 5000, 31_234, COUNT - 1):
        row, message = rows[i], written.messages[i]
        assert row.offset == i
        assert row.ts == message.ts
        assert (row["mode"], row.op, row.ns) == (message.mode.word, message.op.word, message.ns)
        assert row.key == (message.key.decode() if message.key else None)
        assert row.data == message.data.decode()
    assert [row.offset for row in rows] == list(range(COUNT)), "partitions are ranges of the log, in order"


def test_a_batch_read_has_a_start_and_an_end(spark: SparkSession, written: Written) -> None:
    rows = source(spark, written, startOffset=777, endOffset=1234).select("offset").collect()
    assert [row.offset for row in rows] == list(range(777, 1234))


def test_small_reads_are_one_partition(spark: SparkSession, written: Written) -> None:
    assert source(spark, written, startOffset=COUNT - 10).rdd.getNumPartitions() == 1


def test_data_as_variant_is_parsed_by_spark(spark: SparkSession, written: Written) -> None:
    frame = with_variant(source(spark, written, endOffset=100))
    assert dict(frame.dtypes)["data"] == "variant"
    (row,) = frame.selectExpr("sum(try_variant_get(data, '$.n', 'bigint')) AS total").collect()
    assert row.total == sum(range(100))


def test_a_stream_takes_what_there_is_within_its_limits(
    spark: SparkSession, written: Written, tmp_path: Path
) -> None:
    batches: list[list[int]] = []
    frame = (
        spark.readStream.format("penstock")
        .options(dataDir=str(written.path), pipeline="shop", maxMessages="20000", startOffset="5", wait="0.1")
        .load()
    )
    query = (
        frame.writeStream.foreachBatch(
            lambda batch, number: batches.append([row.offset for row in batch.select("offset").collect()])
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert [offset for batch in batches for offset in batch] == list(range(5, COUNT))
    assert len(batches) >= 3
    assert max(map(len, batches)) <= 20_000


def test_what_is_wrong_reaches_the_person_who_asked(spark: SparkSession, written: Written) -> None:
    with pytest.raises(PySparkException, match="unknown option 'startofset'; did you mean 'startOffset'"):
        source(spark, written, startOfset=3)
    with pytest.raises(PySparkException, match="message 99999999 is not in the log"):
        source(spark, written, startOffset=99999999).collect()


def test_an_empty_read_is_an_empty_frame(spark: SparkSession, written: Written) -> None:
    assert source(spark, written, startOffset="latest").collect() == []
