"""How fast a pipeline's batches go into connector sinks with two-phase commit, and what that costs.

    python benchmarks/sink.py [--rows N] [--postgres URI]

Through Spark to the file sink and, where a server is given or found, to the PostgreSQL sink; against the same DataFrame
written by Spark's own file sink, and the same lines by plain COPY through psycopg. Ratios, and the time of PHASE1
(from the last line to the vote) and PHASE2 (until the sink no longer lists the transaction). Sinks are processes of
their own, as in use.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.connector.sinklink import SinkLink
from penstock.connector.twopc import Who
from penstock.spark.foreach import ConnectorBatches
from penstock.spark.session import session, stop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def served(*arguments: str) -> Iterator[str]:
    """A sink of the command line; its address."""
    command = [
        sys.executable,
        "-m",
        "penstock",
        "connector",
        "sink",
        *arguments,
        "--listen",
        "127.0.0.1:0",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["listening"]
        finally:
            process.terminate()
            process.wait(30)


def rows(spark: SparkSession, count: int) -> DataFrame:
    made = spark.range(0, count, 1, 2).selectExpr(
        "id AS offset", "id % 1000 AS customer", "concat('order number ', id) AS text", "id * 1.5D AS total"
    )
    frame = made.localCheckpoint()
    frame.count()
    return frame


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def into_sink(frame: DataFrame, address: str, directory: Path, connections: int) -> tuple[float, float]:
    """The first batch, in which Spark and its workers warm up, and the best of the three behind it."""
    with closing(
        ConnectorBatches(
            address,
            name=f"bench{connections}",
            decisions=directory / "decisions",
            connections=connections,
            key="customer",
        )
    ) as batches:
        first, *others = (timed(partial(batches, frame, number)) for number in range(4))
    return first, min(others)


def phases(address: str, lines: bytes) -> tuple[float, float]:
    """Seconds of PHASE1 and PHASE2 of a transaction with these lines."""
    host, _, port = address.rpartition(":")
    with SinkLink((host, int(port)), Who("phases"), 0, 60.0) as link:
        for at in range(0, len(lines), 1 << 16):
            link.write(memoryview(lines)[at : at + (1 << 16)])
        first = timed(lambda: link.vote("phases"))
        second = timed(lambda: link.tell([("phases", True)]))
    return first, second


def copied(uri: str, lines: list[bytes]) -> float:
    """Plain COPY of the same lines, committed."""
    import psycopg

    def copy() -> None:
        with psycopg.connect(uri) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS plain (at bigint PRIMARY KEY, data jsonb)")
            cursor.execute("TRUNCATE plain")
            with cursor.copy("COPY plain (at, data) FROM STDIN") as into:
                for at, line in enumerate(lines):
                    into.write(b"%d\t%s\n" % (at, line))

    return min(timed(copy) for _ in range(2))


def shown(
    what: str, count: int, seconds: float, first: float | None = None, against: float | None = None
) -> None:
    ratio = "" if against is None else f"   {against / seconds:5.2f} of it"
    warming = "" if first is None else f"   first batch {first:.1f} s"
    print(f"{what:<50}{count / seconds:>12,.0f} rows/s{ratio}{warming}", flush=True)


def measure(spark: SparkSession, count: int, uri: str | None, place: Path) -> None:
    frame = rows(spark, count)
    lines = [row[0].encode() for row in frame.selectExpr("to_json(struct(*))").collect()]
    content = b"".join(line + b"\n" for line in lines)
    first, *others = (
        timed(lambda: frame.write.mode("overwrite").json(str(place / "spark"))) for _ in range(4)
    )
    shown("Spark's own file sink (json, 2 tasks)", count, min(others), first)
    with served("file", "--out", str(place / "out" / "x")) as address:
        compare("file sink", frame, count, address, place / "f", min(others), content)
    if uri is None:
        return
    plain = copied(uri, lines)
    shown("COPY through psycopg", count, plain)
    with served("postgres", "--uri", uri, "--txns", str(place / "pg.txns")) as address:
        compare("PostgreSQL sink", frame, count, address, place / "p", plain, content)


def compare(
    what: str, frame: DataFrame, count: int, address: str, place: Path, against: float, content: bytes
) -> None:
    """A sink over one connection and over two, and its phases."""
    for connections in (1, 2):
        first, best = into_sink(frame, address, place / str(connections), connections)
        shown(f"{what}, two-phase commit, {connections} connection(s)", count, best, first, against)
    prepared, committed = phases(address, content)
    print(f"  {len(content):,} bytes: PHASE1 {prepared * 1000:.1f} ms, PHASE2 {committed * 1000:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument(
        "--postgres", metavar="URI", help="default: a server of the tests, if it is installed"
    )
    given = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-sink-")))
        uri = given.postgres
        if uri is None:
            sys.path.insert(0, str(Path(__file__).parents[1]))
            from tests.servers.postgres import running

            uri = stack.enter_context(running()).database("bench")
        spark = session(app="benchmark", cores=2, scratch=place / "scratch")
        stack.callback(stop, spark)
        measure(spark, given.rows, uri, place)


if __name__ == "__main__":
    main()
