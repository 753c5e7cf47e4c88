"""The session whose JVM records the start-up archive: `python -m penstock.spark.training SCRATCH ARCHIVE`.

Started in the background by `penstock.spark.archive`, in a process group of its own. It does for a few seconds what
every pipeline does: streaming queries that tick, with jobs for Python workers and a little SQL. It
needs no journal and no network. What only some pipelines do is left out: an AOT cache is loaded as a whole, so each of
its classes costs all of them. The archive appears whole, by a rename, or the exit code is not 0. After `LONGEST`
seconds everything of it is killed, which counts as a failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.archive import LONGEST, Archive, archive_for
from penstock.spark.java import CLASS_PATH, cache_dir, find_java
from penstock.spark.jvm import environment, joined
from penstock.spark.session import SPARK_HOME, command_line, session, stop

# Enough for the JVM to have profiles of what runs at every start.
_SECONDS_OF_WORK = 6.0
_BATCHES = 3


def main(scratch: Path, path: Path) -> None:
    java = find_java(fallback=scratch)
    archive = archive_for(cache_dir(os.environ), java.runtime, java.version, SPARK_HOME)
    if archive is None or archive.path != path:
        raise SystemExit(f"{path} is not the archive of this environment")
    _limit(archive)
    try:
        record(archive, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def record(archive: Archive, scratch: Path) -> None:
    """Have a session record, and put in place what comes of it."""
    record, part = scratch / "classes.list", scratch / archive.path.name
    settings = {
        "spark.driver.extraClassPath": archive.class_path,
        "spark.driver.extraJavaOptions": joined(archive.options_to_record(record, part)),
    }
    with environment({CLASS_PATH: archive.class_path}):
        spark = session(
            app="penstock training",
            cores=2,
            driver_memory="512m",
            scratch=scratch / "spark",
            settings=settings,
            fast_start=False,
        )
    try:
        archive.note_added(command_line())
        work(spark, scratch)
    except BaseException:
        stop(spark, patience=0.0)  # what it would write is worth nothing
        raise
    stop(spark, patience=LONGEST)
    if command := archive.command_to_assemble(record, part):
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    part.replace(archive.path)


def work(spark: SparkSession, scratch: Path, seconds: float = _SECONDS_OF_WORK) -> None:
    """What pipelines do, again and again."""
    end = time.monotonic() + seconds
    rounds = 0
    while rounds == 0 or time.monotonic() < end:
        _stream(spark, scratch / f"checkpoint-{rounds}")
        rounds += 1


def _stream(spark: SparkSession, checkpoint: Path) -> None:
    """A query that ticks, and a few batches of it: jobs for Python alone, without SQL and with it; a little more."""
    enough = threading.Event()
    tasks = spark.sparkContext.defaultParallelism

    def each(tick: DataFrame, number: int) -> None:
        spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(_told).collect()
        numbers = spark.range(0, tasks, 1, tasks)
        numbers.mapInArrow(_nothing, "report STRING").collect()
        parsed = numbers.mapInArrow(_documents, "text STRING").selectExpr("parse_json(text) AS data")
        some = parsed.where("try_variant_get(data, '$.id', 'double') > 300")
        some.selectExpr("to_json(data) AS text").mapInArrow(_through, "text STRING").toArrow()
        if number >= _BATCHES:
            enough.set()

    ticks = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="1", numPartitions="1").load()
    query = ticks.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint)).start()
    while query.isActive and not enough.wait(0.1):
        pass
    query.stop()
    if (error := query.exception()) is not None:
        raise error


def _told(numbers: Iterable[int]) -> Iterator[str]:
    for number in numbers:
        yield str(number)


def _documents(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.record_batch({"text": [f'{{"id": {number}}}' for number in range(1000)]})


def _through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())


def _limit(archive: Archive) -> None:
    def over(*_: object) -> None:
        archive.failed()
        os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGALRM, over)
    signal.alarm(LONGEST)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
