"""PostgreSQL into PostgreSQL and into Parquet through the log, beside dlt and beside a bare COPY into COPY.

    python benchmarks/adaptors.py [--rows 2000000] [--rounds 1] [--only postgres,parquet,latency] [--json]

    postgres  a table of six columns into a second database: rows a second from the start of the command to its end
              (Spark's start included), processor seconds and peak memory of the mover, not of the server
    parquet   the same table into Parquet files
    latency   1,000 rows a second inserted at the source, ten to a transaction: from the commit there to the commit
              at the sink, by the server's own commit timestamps

One server holds both databases, on this machine, with its data synced as by default; it shares the cores with whoever
moves the rows. Each mover is a command of its own, with its processes watched from outside; they take turns, and the
median counts. dlt is installed into an environment of its own, under build/. Before anything is measured each of the
two moves a few rows, so that what they prepare once for a machine is there: compiled modules, Spark's start-up archive.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from penstock.spark.java import cache_dir

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.servers.postgres import PostgresServer, running  # noqa: E402 - found by the line above

SYNCED = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "512MB", "max_wal_size": "4GB"}
DLT = (
    "dlt[postgres,parquet]>=1,<2",
    "psycopg2-binary",
    "pyarrow>=18",
    "pandas",
    "sqlalchemy>=2",
)
RATE, SECONDS, WARM_UP = 1000, 30, 30
RUN = (sys.executable, "-m", "penstock", "run", "pipeline.py", "--once", "--http", "off")

TABLE = """
CREATE TABLE public.orders (
    id bigint PRIMARY KEY, customer int NOT NULL, placed timestamptz NOT NULL, total numeric(12, 2) NOT NULL,
    state text NOT NULL, note text)
"""
FILL = """
INSERT INTO public.orders
SELECT i, i % 10007, timestamptz '2026-01-01' + i * interval '1 second', (i % 100000) / 100.0,
       (ARRAY['new', 'paid', 'shipped', 'returned'])[1 + i % 4],
       CASE WHEN i % 5 = 0 THEN NULL ELSE 'order number ' || i || ', to be left with the neighbours' END
FROM generate_series(1, {rows}) AS i
"""

PIPELINE = """
from penstock import Pipeline, adaptors as a
p = Pipeline("bench")
p.source("db", a.postgres(uri={source!r}), ns=r"public\\.orders").save("out", {sink})
"""

DLT_COPY = """
import sys, dlt
from dlt.sources.sql_database import sql_table
destination = dlt.destinations.{destination}
pipeline = dlt.pipeline("bench", destination=destination, dataset_name="loaded", pipelines_dir={place!r})
table = sql_table(credentials={source!r}, schema="public", table="orders", backend="pyarrow", chunk_size=100_000)
pipeline.run(table, {options}write_disposition="replace")
"""

BARE = """
import psycopg
with psycopg.connect({source!r}) as source, psycopg.connect({target!r}) as target:
    with source.cursor().copy("COPY public.orders TO STDOUT (FORMAT binary)") as rows:
        with target.cursor().copy("COPY public.orders FROM STDIN (FORMAT binary)") as taken:
            for data in rows:
                taken.write(data)
"""


LOOK = 0.25
"""Seconds between two looks at a mover's processes, of which each takes some milliseconds from the mover."""


@dataclass(frozen=True)
class Cost:
    """What a command took: seconds by the clock, of the processor, and the most memory its processes had."""

    seconds: float
    cpu: float
    memory: int


def cost(command: Sequence[str], place: Path) -> Cost:
    """Run a command and watch its processes; raises if it fails."""
    started = time.perf_counter()
    with (place / "output").open("wb") as output:
        process = psutil.Popen(command, cwd=place, stdout=output, stderr=subprocess.STDOUT)
        spent: dict[int, float] = {}
        most = 0
        while process.poll() is None:
            most = max(most, _look(process, spent))
            time.sleep(LOOK)
    taken = time.perf_counter() - started
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{(place / 'output').read_text()[-4000:]}")
    return Cost(taken, sum(spent.values()), most)


def _look(process: psutil.Process, spent: dict[int, float]) -> int:
    """Note the processor time of a process and all below it; the memory they have now."""
    memory = 0
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for one in family:
        try:
            times = one.cpu_times()
            spent[one.pid] = max(times.user + times.system, spent.get(one.pid, 0.0))
            memory += one.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return memory


class Bench:
    """The two databases and the movers between them."""

    def __init__(self, server: PostgresServer, root: Path, rows: int) -> None:
        self.server, self.root, self.rows = server, root, rows
        self.source, self.target = server.database("source"), server.database("target")
        server.execute(TABLE, FILL.format(rows=rows), database="source")
        server.execute("VACUUM ANALYZE public.orders", database="source")

    def penstock(self, sink: str) -> Cost:
        self._fresh(table=False)
        place = self._place()
        (place / "pipeline.py").write_text(PIPELINE.format(source=self.source, sink=sink))
        return cost([*RUN, "--data-dir", "data"], place)

    def warm_up(self, python: Path) -> None:
        """Let both have what they make once; Penstock's start-up archive is built behind the end of its first run."""
        self.server.execute(
            TABLE.replace("orders", "few"), FILL.format(rows=1000).replace("orders", "few"), database="source"
        )
        place = self._place()
        pipeline = PIPELINE.replace("orders", "few").format(source=self.source, sink="a.discard()")
        (place / "pipeline.py").write_text(pipeline)
        cost([*RUN, "--data-dir", "data"], place)
        (place / "move.py").write_text(
            self._dlt_script(place, f"filesystem('file://{place}/out')").replace("orders", "few")
        )
        cost([str(python), "move.py"], place)
        self.server.execute("DROP TABLE public.few", database="source")
        cache = cache_dir(os.environ)
        deadline = time.monotonic() + 120
        while cache and list(cache.glob("archives/*.part")) and time.monotonic() < deadline:
            time.sleep(1)

    def to_postgres(self) -> Cost:
        taken = self.penstock(f"a.postgres(uri={self.target!r}, create_tables=True)")
        self._check("public.orders")
        return taken

    def to_parquet(self) -> Cost:
        return self.penstock("a.file(uri='file://out', format='parquet')")

    def dlt(self, python: Path, destination: str, options: str = "") -> Cost:
        self._fresh(table=False)
        place = self._place()
        where = destination.format(target=self.target, place=place / "out")
        (place / "move.py").write_text(self._dlt_script(place, where, options))
        return cost([str(python), "move.py"], place)

    def _dlt_script(self, place: Path, destination: str, options: str = "") -> str:
        return DLT_COPY.format(
            destination=destination,
            source=self.source.replace("postgresql://", "postgresql+psycopg2://"),
            place=str(place / "dlt"),
            options=options,
        )

    def bare(self) -> Cost:
        self._fresh(table=True)
        place = self._place()
        (place / "move.py").write_text(BARE.format(source=self.source, target=self.target))
        taken = cost([sys.executable, "move.py"], place)
        self._check("public.orders")
        return taken

    def _fresh(self, *, table: bool) -> None:
        drop = "DROP TABLE IF EXISTS public.orders"
        self.server.execute(
            drop, "DROP SCHEMA IF EXISTS penstock CASCADE", *([TABLE] if table else []), "CHECKPOINT",
            "DROP SCHEMA IF EXISTS loaded CASCADE", database="target",
        )  # fmt: skip

    def _place(self) -> Path:
        place = self.root / "mover"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return place

    def _check(self, table: str) -> None:
        ((found,),) = self.server.query(f"SELECT count(*) FROM {table}", database="target")
        if found != self.rows:
            raise SystemExit(f"{found:,} rows arrived of {self.rows:,}")


def dlt_python() -> Path:
    """An interpreter that has dlt, in an environment of its own: its libraries are not ours."""
    environment = ROOT / "build" / "dlt"
    python = environment / "bin" / "python"
    ready = environment / ".ready"
    if not ready.exists():
        print("setting up dlt …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *DLT], check=True)
        ready.touch()
    return python


def latency(server: PostgresServer, root: Path) -> dict[str, float]:
    """Insert at a steady rate while a pipeline follows; compare the commit timestamps of both databases."""
    source, target = server.database("followed"), server.database("follower")
    server.execute("CREATE TABLE public.ticks (id bigint PRIMARY KEY, note text)", database="followed")
    place = root / "latency"
    place.mkdir()
    sink = f"a.postgres(uri={target!r}, create_tables=True)"
    tailing = PIPELINE.replace("uri={source!r}", "uri={source!r}, tail=True").replace("orders", "ticks")
    (place / "pipeline.py").write_text(tailing.format(source=source, sink=sink))
    command = [sys.executable, "-m", "penstock", "run", "pipeline.py", "--follow", "--http", "off"]
    with (place / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=place, stdout=output, stderr=subprocess.STDOUT)
    try:
        _insert(source, RATE, SECONDS + WARM_UP)
        _arrived(server, RATE * (SECONDS + WARM_UP), process, place)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    asked = "SELECT id, extract(epoch FROM pg_xact_commit_timestamp(xmin)) FROM public.ticks"
    made = dict(server.query(f"{asked} WHERE id >= {RATE * WARM_UP}", database="followed"))
    held = dict(server.query(f"{asked} WHERE id >= {RATE * WARM_UP}", database="follower"))
    waits = sorted(float(held[row] - made[row]) for row in made)
    return {
        "milliseconds_p50": 1000 * waits[len(waits) // 2],
        "milliseconds_p99": 1000 * waits[len(waits) * 99 // 100],
        "rows": float(len(waits)),
    }


def _insert(uri: str, rate: int, seconds: int) -> None:
    """Ten rows to a transaction, as many transactions as the rate asks for."""
    begin = time.perf_counter()
    with psycopg.connect(uri, autocommit=True) as connection:
        for turn in range(rate * seconds // 10):
            time.sleep(max(begin + turn * 10 / rate - time.perf_counter(), 0.0))
            connection.execute(
                "INSERT INTO public.ticks SELECT i, 'tick ' || i FROM generate_series(%s::bigint, %s::bigint) AS i",
                (turn * 10, turn * 10 + 9),
            )


def _arrived(server: PostgresServer, rows: int, process: subprocess.Popen[bytes], place: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        (there,) = server.query("SELECT to_regclass('public.ticks') IS NOT NULL", database="follower")
        if there[0]:
            ((count,),) = server.query("SELECT count(*) FROM public.ticks", database="follower")
            if count >= rows:
                return
        time.sleep(0.5)
    raise SystemExit(f"not all rows arrived\n{(place / 'output').read_text()[-4000:]}")


def compared(rounds: int, rows: int, movers: dict[str, Callable[[], Cost]]) -> dict[str, float]:
    """Each mover once a round, in rotated order; medians, and the ratios to Penstock."""
    names = list(movers)
    taken: dict[str, list[Cost]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken[name].append(movers[name]())
    figures: dict[str, float] = {}
    for name, costs in taken.items():
        figures[f"{name}_rows_per_second"] = rows / statistics.median(each.seconds for each in costs)
        figures[f"{name}_cpu_seconds"] = statistics.median(each.cpu for each in costs)
        figures[f"{name}_peak_megabytes"] = statistics.median(each.memory for each in costs) / 1e6
    for name in names[1:]:
        figures[f"ratio_to_{name}"] = figures["penstock_rows_per_second"] / figures[f"{name}_rows_per_second"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="postgres,parquet,latency")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    wanted = asked.only.split(",")
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as directory, running() as server:
        root = Path(directory)
        server.restart(**SYNCED, track_commit_timestamp="on")
        if {"postgres", "parquet"} & set(wanted):
            bench, python = Bench(server, root, asked.rows), dlt_python()
            bench.warm_up(python)
        if "postgres" in wanted:
            movers: dict[str, Callable[[], Cost]] = {
                "penstock": bench.to_postgres,
                "dlt": lambda: bench.dlt(python, "postgres({target!r})", "loader_file_format='csv', "),
                "bare_copy": bench.bare,
            }
            results["PostgreSQL to PostgreSQL"] = compared(asked.rounds, asked.rows, movers)
        if "parquet" in wanted:
            movers = {
                "penstock": bench.to_parquet,
                "dlt": lambda: bench.dlt(
                    python, "filesystem('file://{place}')", "loader_file_format='parquet', "
                ),
            }
            results["PostgreSQL to Parquet"] = compared(asked.rounds, asked.rows, movers)
        if "latency" in wanted:
            results["from commit to commit at 1,000 rows a second"] = latency(server, root)
    if asked.json:
        print(json.dumps(results))
        return
    for subject, figures in results.items():
        print(subject)
        for name, value in figures.items():
            shown = f"{value:.2f}" if "ratio" in name else f"{value:,.0f}"
            print(f"  {name.replace('_', ' '):32} {shown:>12}")


if __name__ == "__main__":
    main()
