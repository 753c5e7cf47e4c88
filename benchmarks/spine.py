"""The spine, measured: log to Spark, messages into the log, and what a micro-batch costs.

Each figure stands beside a peer or a physical limit from the same run, in rotated order, since machines are
noisy: read the ratios, not the absolute numbers.

    python benchmarks/spine.py [--messages 1000000] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from measuring import log_to_spark, rotated, timed
from penstock import Pipeline
from penstock import adaptors as a
from penstock.base.disk import Disk
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log import record as rec
from penstock.log.commitlog import CommitLog
from penstock.log.message import Message
from penstock.pipeline.runner import run
from penstock.spark.session import session, stop
from penstock.spark.source import PenstockSource

VALUE = b'{"id":%09d,"name":"a name of some length","total":12.50,"note":"%s"}'
BATCH = 10_000
SMALL = 1_000


def a_value(number: int) -> bytes:
    """A document of 100 bytes."""
    bare = VALUE % (number, b"")
    return VALUE % (number, b"x" * (100 - len(bare)))


def appends(root: Path, client: Client, messages: int, rounds: int) -> dict[str, float]:
    """Messages of 100 bytes into the commit log; the same bytes written and synced in the same batches."""
    batches = [
        [Message("orders", a_value(first + i), ts=first + i) for i in range(BATCH)]
        for first in range(0, messages, BATCH)
    ]
    raw = [rec.encode_messages(batch, 0, {}) for batch in batches]
    turns = iter(range(1000))

    def into_the_log() -> float:
        log = CommitLog(client, f"appends-{next(turns)}", root / "index", 1 << 30, 0)
        return timed(lambda: [log.append(batch, {}, [], 0) for batch in batches])

    def bare() -> float:
        with Disk().open(root / f"bare-{next(turns)}", create=True) as file:

            def write() -> None:
                position = 0
                for content in raw:
                    file.write_at(content, position)
                    file.sync()
                    position += len(content)

            return timed(write)

    seconds = rotated(rounds, {"log": into_the_log, "bare": bare})
    return {
        "messages_per_second": messages / seconds["log"],
        "bare_messages_per_second": messages / seconds["bare"],
        "ratio": seconds["bare"] / seconds["log"],
    }


def reads(root: Path, client: Client, spark: SparkSession, messages: int, rounds: int) -> dict[str, float]:
    """The log into Spark's noop sink, beside the same rows from Parquet and from JSON text."""
    log = CommitLog(client, "reads", root / "data" / "index", 64 << 20, 0)
    for first in range(0, messages, BATCH):
        log.append([Message("orders", a_value(first + i), ts=first + i) for i in range(BATCH)], {}, [], 0)
    options = {"dataDir": str(root / "data"), "pipeline": "reads", "partitions": "2"}
    return log_to_spark(root, spark, options, messages, rounds)


def batch_cost(root: Path, client: Client, spark: SparkSession) -> dict[str, float]:
    """Milliseconds of a micro-batch of 1,000 messages, beside one of Spark's own file source."""
    log = CommitLog(client, "small", root / "data" / "index", 64 << 20, 0)
    for first in range(0, 40 * SMALL, SMALL):
        log.append([Message("orders", a_value(first + i), ts=first + i) for i in range(SMALL)], {}, [], 0)
    options = {"dataDir": str(root / "data"), "pipeline": "small", "maxMessages": str(SMALL)}
    for _ in range(40):
        rows = spark.range(SMALL).selectExpr("id", "repeat('x', 100) AS data").coalesce(1)
        rows.write.mode("append").parquet(str(root / "small"))
    schema = "id BIGINT, data STRING"
    streams = {
        "penstock": spark.readStream.format("penstock").options(**options).load(),
        "parquet": spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(root / "small")),
    }
    taken = {}
    for name, frame in streams.items():
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(root / f"ck-{name}"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        durations = [progress.durationMs["triggerExecution"] for progress in query.recentProgress]
        taken[name] = float(statistics.median(durations[10:]))
    return {
        "milliseconds": taken["penstock"],
        "parquet_milliseconds": taken["parquet"],
        "ratio": taken["parquet"] / taken["penstock"],
    }


def whole_batch(root: Path, spark: SparkSession) -> dict[str, float]:
    """Milliseconds of a whole batch of a pipeline: read, staged, published, offset moved."""
    pipeline = Pipeline("whole", batch_messages=SMALL, segment_bytes=64 << 20)
    pipeline.source("in", a.generate(count=40 * SMALL)).save("out", a.file(uri=f"file://{root}/out.jsonl"))
    seen: dict[int, float] = {}

    def note(progress: object) -> None:
        sink = progress.nodes[1]  # type: ignore[attr-defined]
        if sink.batch_ms is not None:
            seen[sink.delivered] = sink.batch_ms

    run(pipeline, data_dir=root / "whole", once=True, spark=spark, report=note)
    return {"milliseconds": statistics.median(list(seen.values())[5:] or list(seen.values()))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        spark = session(app="benchmark", scratch=root / "spark", cores=min(2, os.cpu_count() or 2))
        spark.dataSource.register(PenstockSource)
        with EmbeddedBroker(root / "data") as broker, Client(broker.address) as client:
            results = {
                "messages into the log": appends(root, client, asked.messages // 2, asked.rounds),
                "log to Spark": reads(root, client, spark, asked.messages, asked.rounds),
                "micro-batch of 1,000, source to noop": batch_cost(root, client, spark),
            }
        results["micro-batch of 1,000, generate to file, whole"] = whole_batch(root, spark)
        stop(spark)
    if asked.json:
        print(json.dumps(results))
        return
    for subject, figures in results.items():
        print(subject)
        for name, value in figures.items():
            shown = f"{value:.2f}" if "ratio" in name else f"{value:,.0f}"
            print(f"  {name.replace('_', ' '):28} {shown:>12}")


if __name__ == "__main__":
    main()
