"""A program that uses a session, for tests that need a process of their own. Prints one line of JSON.

`work SCRATCH`: start, run a stream with a Python worker, stop; tells what it saw. The start-up archive is built from
    a part of the classes, which takes a fraction of the time; with `work-whole` from all of them.
`lose SCRATCH`: start, lose the JVM, stop what is left; damage the start-up archive and start again; tell what it
    saw, and wait to be killed with a Python worker at work in a streaming batch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.spark import session as engine
from penstock.spark.archive import Archive
from penstock.spark.jvm import Jvm

PASSWORD = "hush-hush"
SOME_CLASSES = 2_000


def busy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    Path(os.environ["AT_WORK"]).touch()
    time.sleep(600)
    yield from batches


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"worker": [os.getpid()] * batch.num_rows})


def stream(spark: SparkSession, scratch: Path, task: object, seen: list[int]) -> None:
    def each(batch: DataFrame, number: int) -> None:
        workers = batch.repartition(2).mapInArrow(task, "worker long").toArrow()  # type: ignore[arg-type]
        seen.extend(workers["worker"].to_pylist())

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = source.writeStream.foreachBatch(each).trigger(availableNow=True)
    query.option("checkpointLocation", str(scratch / f"checkpoint-{os.getpid()}")).start().awaitTermination()


def start(scratch: Path) -> tuple[SparkSession, Jvm, dict[str, object]]:
    spark = engine.session(
        app="a test",
        cores=2,
        scratch=scratch,
        short_lived=True,
        settings={"spark.hadoop.a.password": PASSWORD},
    )
    assert engine._running is not None
    jvm = engine._running.jvm
    assert jvm.process is not None
    facts: dict[str, object] = {
        "jvm": jvm.process.pid,
        "java": jvm.property("java.home"),
        "sharing": "sharing" in jvm.property("java.vm.info"),
        "secret shown": PASSWORD in "".join(psutil.Process(jvm.process.pid).cmdline()),
        "secret set": spark.sparkContext.getConf().get("spark.hadoop.a.password") == PASSWORD,
        "python": spark.sparkContext.pythonExec == sys.executable,
    }
    return spark, jvm, facts


def work(scratch: Path) -> dict[str, object]:
    spark, _, facts = start(scratch)
    workers: list[int] = []
    stream(spark, scratch, where, workers)
    below = {process.pid for process in psutil.Process().children(recursive=True)}
    facts["rows"] = len(workers)
    facts["workers below the JVM"] = set(workers) <= below and os.getpid() not in workers
    engine.stop(spark)
    facts["left"] = sorted(pid for pid in below if psutil.pid_exists(pid))
    return facts


def lose(scratch: Path) -> None:
    spark, jvm, first = start(scratch)
    jvm.kill()
    began = time.monotonic()
    engine.stop(spark)
    took = time.monotonic() - began
    archive = damaged()
    spark, _, second = start(scratch)
    tell({"first": first, "second": second, "seconds to stop": took, "archive": archive.exists()})
    stream(spark, scratch, busy, [])


def build_from_a_part() -> None:
    """From now on archives hold the first classes that were loaded, and those of streams."""
    build = Archive.build

    def build_little(self: Archive, class_list: Path) -> bool:
        lines = class_list.read_text().splitlines(keepends=True)
        streams = [
            line for line in lines[SOME_CLASSES:] if "/streaming/runtime/MicroBatchExecution id" in line
        ]
        class_list.write_text("".join([*lines[:SOME_CLASSES], *streams]))
        return build(self, class_list)

    setattr(Archive, "build", build_little)  # noqa: B010 - mypy


def damaged() -> Path:
    """The start-up archive, with one of its bytes changed."""
    (archive,) = Path(os.environ["XDG_CACHE_HOME"]).glob("penstock/archives/*.jsa")
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 0xFF
    archive.unlink()
    archive.write_bytes(content)
    return archive


def tell(facts: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    what, directory = sys.argv[1], Path(sys.argv[2])
    if what == "lose":
        lose(directory)
    else:
        if what == "work":
            build_from_a_part()
        tell(work(directory))
