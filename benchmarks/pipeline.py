"""Whole pipelines, measured: file to file through the log, beside Spark alone doing the same without one.

    python benchmarks/pipeline.py [--documents 1000000] [--rounds 3] [--only copy,rows,latency,crash] [--json]

    copy      documents of about 200 bytes from a file of JSON lines into another: as they are, with `pick`, with `js`;
              beside it Spark reading the text, doing the same to it and writing text, with no log and no offsets;
              plain copies also by a streaming query of Spark's, into one synced file, and by a Spark that looks at each
              line, too, whether it is JSON
    rows      the log into Spark's noop sink, beside the same rows from Parquet and from JSON text
    latency   at 1,000 messages a second: from the making of a message to the commit of the batch that held it
    crash     from `kill -9` of a run to the first commit of the next one, Spark's start included

The cases take turns in rotated order and the median counts. Spark alone, `rows` and `latency` share one warm Spark
session on two cores. The pipelines that copy have one in a process of their own, just as warm, with the settings that
`penstock run` gives it where no rows pass the JVM. `crash` starts processes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from measuring import log_to_spark, rotated, timed
from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.base.errors import UsageError
from penstock.functions.base import Function
from penstock.journal.client import Client
from penstock.journal.datadir import DataDir
from penstock.journal.embedded import EmbeddedBroker, connect
from penstock.log import offsets
from penstock.log.commitlog import CommitLog
from penstock.log.message import Message
from penstock.pipeline.runner import run
from penstock.pipeline.supervisor import SupervisedSink
from penstock.spark.batch import BatchReport
from penstock.spark.session import session, stop
from penstock.spark.settings import NO_ROWS
from penstock.spark.source import PenstockSource

if TYPE_CHECKING:
    import pyarrow as pa

SCRIPT = """
function transform(msg) {
  msg.data.total = msg.data.total * 2;
  return msg;
}
"""
FIELDS = ("id", "total")
RATE = 1_000
LATENCY_SECONDS = 30
WARM_UP_SECONDS = 8
CORES = min(2, os.cpu_count() or 2)


def document(number: int) -> str:
    """About 200 bytes."""
    return json.dumps(
        {
            "id": number,
            "customer": f"customer {number % 5000:08d}",
            "status": "shipped" if number % 3 else "open",
            "total": round(number % 1000 * 1.25 + 0.5, 2),
            "address": {"street": "Long Street 17", "city": "Springfield", "zip": f"{number % 99999:05d}"},
            "tags": ["a", "b", "c"],
        },
        separators=(",", ":"),
    )


def js() -> Function:
    return f.js(source=SCRIPT)


def copies(root: Path, spark: SparkSession, documents: int, rounds: int) -> dict[str, float]:
    """File to file: Penstock with its log and offsets, and Spark alone."""
    given = root / "in.jsonl"
    with given.open("w") as file:
        file.writelines(document(i) + "\n" for i in range(documents))
    with beside(_serve_copies, root, documents) as penstock:
        cases = {name: partial(penstock, name) for name in PIPELINES} | spark_alone(root, spark)
        for case in cases.values():  # warm: classes loaded, code compiled
            case()
        seconds = rotated(rounds, cases)
    figures = {}
    for name in ("none", "pick", "js"):
        with_log, alone = seconds[name], seconds[f"{name} alone"]
        figures[f"{name}_documents_per_second"] = documents / with_log
        figures[f"{name}_spark_alone_per_second"] = documents / alone
        figures[f"{name}_ratio"] = alone / with_log
    figures["none_spark_alone_streamed_per_second"] = documents / seconds["none alone, streamed"]
    figures["none_ratio_to_streamed"] = seconds["none alone, streamed"] / seconds["none"]
    figures["none_spark_alone_checking_per_second"] = documents / seconds["none alone, checking"]
    figures["none_ratio_to_checking"] = seconds["none alone, checking"] / seconds["none"]
    figures["none_spark_alone_one_synced_file_per_second"] = documents / seconds["none alone, synced"]
    figures["none_ratio_to_one_synced_file"] = seconds["none alone, synced"] / seconds["none"]
    return figures


@contextmanager
def beside(
    serve: Callable[[Connection, Path, int], None], root: Path, documents: int
) -> Iterator[Callable[[str], float]]:
    """A process of its own, which is asked by name for one round of a case."""
    spawned = multiprocessing.get_context("spawn")
    ours, theirs = spawned.Pipe()
    process = spawned.Process(target=serve, args=(theirs, root, documents))
    process.start()
    theirs.close()

    def ask(name: str) -> float:
        ours.send(name)
        return float(ours.recv())

    try:
        yield ask
    finally:
        ours.close()
        process.join()


def _serve_copies(asked: Connection, root: Path, documents: int) -> None:
    spark = session(
        app="copies",
        scratch=root / "spark of copies",
        cores=CORES,
        settings=NO_ROWS,
        short_lived=True,
        plain=True,
    )
    spark.dataSource.register(PenstockSource)
    turns = iter(range(1000))
    try:
        while True:
            name = asked.recv()
            asked.send(copied(root, spark, PIPELINES[name], documents, root / f"penstock-{next(turns)}"))
    except EOFError:  # nobody asks any more
        stop(spark)


def copied(
    root: Path, spark: SparkSession, function: Callable[[], Function] | None, documents: int, place: Path
) -> float:
    """Seconds of a run that copies all documents once, in a directory that is new."""
    place.mkdir()
    pipeline = Pipeline("copy")
    node = pipeline.source("in", a.file(uri=f"file://{root}/in.jsonl"))
    if function is not None:
        node = node.transform("step", function())
    node.save("out", a.file(uri=f"file://{place}/out.jsonl"))
    summaries = []
    seconds = timed(lambda: summaries.append(run(pipeline, data_dir=place / "data", once=True, spark=spark)))
    assert summaries[0].exit_code == 0
    assert summaries[0].sinks[0].delivered == documents
    shutil.rmtree(place)
    return seconds


PIPELINES: dict[str, Callable[[], Function] | None] = {
    "none": None,
    "pick": lambda: f.pick(fields=list(FIELDS)),
    "js": js,
}
"""The pipelines that copy, by name: their function, if they have one."""


def spark_alone(root: Path, spark: SparkSession) -> dict[str, Callable[[], float]]:
    """What the pipelines do, by Spark without a log and without offsets.

    Spark alone leaves a file for each task, and what it wrote in the memory of the machine. What is left by Penstock is
    one file, in order, on the disk: to copy into that is a case of its own. So is a streaming query of Spark's, which
    notes what it has read and written: a job that is run once knows nothing of what it did when it is killed. And so is
    a copy that leaves out what is no JSON: Penstock tells of each such line, so it has to look at all of them.
    """
    given, watched = root / "in.jsonl", root / "watched"
    watched.mkdir()
    (watched / "in.jsonl").hardlink_to(given)
    turns = iter(range(1000))

    def bare(
        change: Callable[[DataFrame], DataFrame], finish: Callable[[Path], None] = lambda out: None
    ) -> Callable[[], float]:
        def work() -> float:
            out = root / f"bare-{next(turns)}"

            def copy() -> None:
                change(spark.read.text(str(given))).write.text(str(out))
                finish(out)

            seconds = timed(copy)
            shutil.rmtree(out)
            return seconds

        return work

    def streamed() -> float:
        """What a data engineer runs who wants each document once: a streaming query, with its checkpoint."""
        out = root / f"streamed-{next(turns)}"

        def copy() -> None:
            lines = spark.readStream.text(str(watched))
            writer = lines.writeStream.format("text").option("checkpointLocation", str(out / "checkpoint"))
            query = writer.option("path", str(out / "files")).trigger(availableNow=True).start()
            query.awaitTermination()

        seconds = timed(copy)
        shutil.rmtree(out)
        return seconds

    return {
        "none alone": bare(lambda df: df),
        "none alone, streamed": streamed,
        "none alone, checking": bare(lambda df: df.where("try_parse_json(value) IS NOT NULL")),
        "none alone, synced": bare(lambda df: df.coalesce(1), _synced),
        "pick alone": bare(_picked),
        "js alone": bare(_scripted),
    }


def _synced(directory: Path) -> None:
    """Have the disk take what was written."""
    for path in [*directory.glob("part-*"), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _picked(frame: DataFrame) -> DataFrame:
    """What a Spark user would write: parse what is needed, write it again as JSON."""
    parsed = sf.from_json("value", "id BIGINT, total DOUBLE").alias("d")
    return frame.select(parsed).select(sf.to_json(sf.struct("d.id", "d.total")).alias("value"))


def _scripted(frame: DataFrame) -> DataFrame:
    """The same engine, called from `mapInArrow`: Spark has no JavaScript of its own."""
    from penstock.functions.chain import Chain, Step
    from penstock.pipeline.namespace import Namespace

    chain = Chain([Step("js", js(), Namespace(""))])

    def change(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            rows = batch.num_rows
            whole = pa.RecordBatch.from_pydict(
                {
                    "offset": pa.array(range(rows), pa.int64()),
                    "ts": pa.array([0] * rows, pa.int64()).view(pa.timestamp("us", tz="UTC")),
                    "mode": pa.array(["copy"] * rows),
                    "op": pa.array(["insert"] * rows),
                    "ns": pa.array(["in"] * rows),
                    "key": pa.nulls(rows, pa.string()),
                    "data": batch.column("value"),
                }
            )
            done = chain.apply(whole, Namespace(""))
            yield pa.RecordBatch.from_pydict({"value": done.batch.column("data")})

    return frame.mapInArrow(change, "value STRING")


def rows(root: Path, spark: SparkSession, documents: int, rounds: int) -> dict[str, float]:
    """The log into Spark, beside the same rows from Parquet and from JSON text."""
    with EmbeddedBroker(root / "rows") as broker, Client(broker.address) as client:
        log = CommitLog(client, "rows", root / "rows" / "index", 1 << 30, 0)
        for first in range(0, documents, 10_000):
            count = min(10_000, documents - first)
            batch = [Message("orders", document(first + i).encode(), ts=first + i) for i in range(count)]
            log.append(batch, {}, [], 0)
        options = {"dataDir": str(root / "rows"), "pipeline": "rows", "partitions": "2"}
        return log_to_spark(root, spark, options, documents, rounds)


def latency(root: Path, spark: SparkSession) -> dict[str, float]:
    """From the making of a message to the commit of its batch, once the JVM is warm."""
    commits: list[tuple[float, int, int]] = []
    real = SupervisedSink._batch_done

    def noted(self: SupervisedSink, report: BatchReport) -> None:
        commits.append((time.time(), report.begin.offset, report.end.offset))
        real(self, report)

    SupervisedSink._batch_done = noted  # type: ignore[method-assign]
    try:
        pipeline = Pipeline("latency")
        count = RATE * (LATENCY_SECONDS + WARM_UP_SECONDS)
        pipeline.source("in", a.generate(count=count, rate=RATE)).save(
            "out", a.file(uri=f"file://{root}/latency.jsonl", envelope=True)
        )
        assert run(pipeline, data_dir=root / "latency", once=True, spark=spark).exit_code == 0
    finally:
        SupervisedSink._batch_done = real  # type: ignore[method-assign]
    with (root / "latency.jsonl").open() as file:
        made = [json.loads(line)["ts"] / 1e6 for line in file]
    begin = made[0] + WARM_UP_SECONDS
    waits = sorted(
        committed - made[offset]
        for committed, first, end in commits
        for offset in range(first, end)
        if made[offset] > begin
    )
    return {
        "milliseconds_p50": 1000 * waits[len(waits) // 2],
        "milliseconds_p99": 1000 * waits[len(waits) * 99 // 100],
        "messages": float(len(waits)),
        "batches": float(len(commits)),
    }


PIPELINE = """
from penstock import Pipeline, adaptors as a
p = Pipeline("crash")
p.source("in", a.generate(count=10_000_000, rate=2000)).save("out", a.file(uri="file://out.jsonl"))
"""


def crash(root: Path, rounds: int) -> dict[str, float]:
    """Kill a run, start it again at once, and wait until its sink has acknowledged something new."""
    place = root / "crash"
    place.mkdir()
    (place / "pipeline.py").write_text(PIPELINE)
    command = [sys.executable, "-m", "penstock", "run", "pipeline.py", "--cores", "2", "--http", "off"]

    def started() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def moved(process: subprocess.Popen[bytes]) -> None:
        """Wait until the sink has acknowledged more than it had when `process` took the directory over."""
        _wait_for_owner(place / ".penstock", process.pid)
        with connect(place / ".penstock") as client:
            mark = offsets.load(client, "crash", "out").commit.watermark
            while offsets.load(client, "crash", "out").commit.watermark <= mark:
                time.sleep(0.1)

    taken = []
    process = started()
    moved(process)
    for _ in range(rounds):
        time.sleep(2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        begin = time.perf_counter()
        process = started()
        moved(process)
        taken.append(time.perf_counter() - begin)
    process.send_signal(signal.SIGTERM)
    process.wait()
    return {"seconds_to_first_commit": statistics.median(taken), "worst_seconds": max(taken)}


def _wait_for_owner(path: Path, pid: int) -> None:
    """Until the new run has the directory, so that looking does not get in its way."""
    directory = DataDir(path)
    while (owner := directory.owner()) is None or owner.pid != pid:
        time.sleep(0.01)
    while True:  # its first owner takes the directory before all of it is there
        try:
            directory.version()
        except UsageError:
            time.sleep(0.01)
        else:
            return


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="copy,rows,latency,crash")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    wanted = asked.only.split(",")
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        if {"copy", "rows", "latency"} & set(wanted):
            spark = session(app="benchmark", scratch=root / "spark", cores=CORES)
            spark.dataSource.register(PenstockSource)
            if "copy" in wanted:
                results["file to file"] = copies(root, spark, asked.documents, asked.rounds)
            if "rows" in wanted:
                results["log to Spark"] = rows(root, spark, asked.documents, asked.rounds)
            if "latency" in wanted:
                results["latency at 1,000 messages a second"] = latency(root, spark)
            stop(spark)
        if "crash" in wanted:
            results["from kill -9 to the first new commit"] = crash(root, asked.rounds)
    if asked.json:
        print(json.dumps(results))
        return
    for subject, figures in results.items():
        print(subject)
        for name, value in figures.items():
            shown = f"{value:.2f}" if "ratio" in name or "seconds" in name else f"{value:,.0f}"
            print(f"  {name.replace('_', ' '):32} {shown:>12}")


if __name__ == "__main__":
    main()
