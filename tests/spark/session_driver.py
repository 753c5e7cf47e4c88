"""A program that uses a session, for tests that need a process of their own. Prints one line of JSON.

`work SCRATCH`: start, run a stream with a Python worker, stop; tells what it saw.
`lose SCRATCH`: start, lose the JVM, stop what is left; start one of the other kind and stop it; damage the start-up
    archive and start again; tell what it saw, and wait to be killed with a Python worker at work in a streaming batch.
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
from penstock.spark.jvm import Jvm

PASSWORD = "hush-hush"


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


def start(
    scratch: Path, *, short_lived: bool = True, plain: bool = False
) -> tuple[SparkSession, Jvm, dict[str, object]]:
    spark = engine.session(
        app="a test",
        cores=2,
        scratch=scratch,
        short_lived=short_lived,
        plain=plain,
        settings={"spark.hadoop.a.password": PASSWORD},
    )
    assert engine._running is not None
    jvm = engine._running.jvm
    assert jvm.process is not None
    facts: dict[str, object] = {
        "jvm": jvm.process.pid,
        "java": jvm.property("java.home"),
        "sharing": "sharing" in jvm.property("java.vm.info"),
        "directly": not (engine._running.places.home / "bin" / "spark-submit").is_symlink(),
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
    facts["left"] = sorted(pid for pid in below if runs(pid))
    return facts


def runs(pid: int) -> bool:
    """What has ended, and only waits to be reaped by the machine's first process, does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def lose(scratch: Path) -> None:
    spark, jvm, first = start(scratch)
    jvm.kill()
    began = time.monotonic()
    engine.stop(spark)
    took = time.monotonic() - began
    spark, _, other = start(scratch, short_lived=False, plain=True)
    engine.stop(spark)
    archive = damaged()
    spark, _, second = start(scratch, plain=True)
    facts = {"first": first, "other kind": other, "second": second}
    tell({**facts, "seconds to stop": took, "archive": archive.exists()})
    stream(spark, scratch, busy, [])


def damaged() -> Path:
    """The start-up archive, with one of its bytes changed."""
    archives = Path(os.environ["XDG_CACHE_HOME"]) / "penstock" / "archives"
    (archive,) = (file for file in archives.glob("java-*") if file.suffix in (".aot", ".jsa"))
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
        tell(work(directory))
