"""pgbench writes to PostgreSQL while Penstock copies and follows it into a second PostgreSQL, and everything crashes.

Penstock is killed with `kill -9` again and again, in its copy and behind it; both servers are restarted under it and
under pgbench. In the end the two databases have the same rows, by count and by checksum of every table.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from tests.servers.postgres import PASSWORD, USER, PostgresServer, running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

COLUMNS = {
    "pgbench_accounts": "aid, bid, abalance, rtrim(filler)",
    "pgbench_branches": "bid, bbalance, rtrim(filler)",
    "pgbench_tellers": "tid, bid, tbalance, rtrim(filler)",
    "pgbench_history": "tid, bid, aid, delta, mtime, rtrim(filler)",
}
"""The tables, and what of them must be equal. The history has no key: a row too many or too few shows in the count."""

PATIENCE = 180.0
"""Seconds without any change of the second database after which nothing more is to be expected."""

PIPELINE = """
from penstock import Pipeline, adaptors as a

bank = Pipeline("bank", batch_messages=20_000)
bank.source("db", a.postgres(uri={source!r}, tail=True, range_bytes=1 << 19), ns=r"^public\\.pgbench_").save(
    "copy", a.postgres(uri={target!r}, create_tables=True))
"""


def _of(server: PostgresServer) -> dict[str, tuple[int, int]]:
    """Count and checksum of each table; of one that is not there yet, nothing."""
    found: dict[str, tuple[int, int]] = {}
    with psycopg.connect(server.uri("bank")) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SET LOCAL timezone = 'UTC'")
        connection.execute("SET LOCAL datestyle = 'ISO'")
        for table, columns in COLUMNS.items():
            there = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f"public.{table}",)).fetchone()
            if there == (True,):
                row = connection.execute(
                    f"SELECT count(*), coalesce(sum(hashtextextended(concat_ws('|', {columns}), 0)), 0)"
                    f" FROM public.{table}"
                ).fetchone()
                assert row is not None
                found[table] = (int(row[0]), int(row[1]))
    return found


def _pgbench(server: PostgresServer, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [server.program("pgbench"), "-h", "127.0.0.1", "-p", str(server.port), "-U", USER, *arguments, "bank"],
        env={**os.environ, "PGPASSWORD": PASSWORD, "PGOPTIONS": "-c client_min_messages=warning"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


@contextmanager
def _traffic(server: PostgresServer, rate: int) -> Iterator[None]:
    """pgbench at a steady rate for the time of the block, begun anew whenever the server has thrown it out."""
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            bench = _pgbench(server, "-n", "-c", "2", "-R", str(rate), "-T", "3600")
            while bench.poll() is None and not over.wait(0.1):
                pass
            bench.kill()
            bench.wait()
            over.wait(0.2)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Bank:
    """The pipeline between two servers, started and killed."""

    def __init__(self, server: PostgresServer, second: PostgresServer, place: Path, scale: int) -> None:
        self.server, self.second, self.place = server, second, place
        self.runs = self.killed_in_copy = 0
        self._accounts = scale * 100_000
        source, target = server.database("bank"), second.database("bank")
        assert _pgbench(server, "-i", "-q", "-s", str(scale)).wait() == 0
        server.execute("ALTER TABLE pgbench_history REPLICA IDENTITY FULL", database="bank")
        (place / "pipeline.py").write_text(PIPELINE.format(source=source, target=target))

    def start(self) -> subprocess.Popen[bytes]:
        self.runs += 1
        with (self.place / f"run-{self.runs}.log").open("wb") as log:
            command = [sys.executable, "-m", "penstock", "run", "pipeline.py", "--follow", "--http", "off"]
            return subprocess.Popen([*command, "--data-dir", "data"], cwd=self.place, stdout=log, stderr=log)

    def killed_after(self, seconds: float, *, reading: bool, restart: bool) -> None:
        """One life of it: so many seconds from when it has begun to write, or from when it has begun to read."""
        process = self.start()
        seen = self._logged if reading else self._written
        begun = seen()
        deadline = time.monotonic() + 60
        while process.poll() is None and seen() == begun and time.monotonic() < deadline:
            time.sleep(0.05)
        if restart:
            self.server.restart()
            self.second.restart()
        time.sleep(seconds)
        assert process.poll() is None, self.log()
        process.kill()
        process.wait()
        self.killed_in_copy += self._written()[:1] < (self._accounts,)

    def _written(self) -> tuple[int, ...]:
        """How many rows the second database has in each table."""
        try:
            return tuple(count for count, _ in _of(self.second).values())
        except psycopg.Error:
            return ()

    def _logged(self) -> int:
        """How many megabytes the data directory has."""
        taken = [path.stat().st_blocks for path in (self.place / "data").rglob("*.spool") if path.exists()]
        return sum(taken) * 512 >> 20

    def log(self) -> str:
        return (self.place / f"run-{self.runs}.log").read_text()[-4000:]

    def finish(self) -> None:
        """Run until both are equal, now that nobody writes any more; then stop it as a person would."""
        process = self.start()
        wanted, found = _of(self.server), _of(self.second)
        deadline = time.monotonic() + PATIENCE
        while found != wanted:
            assert process.poll() is None, self.log()
            if time.monotonic() > deadline:
                process.kill()
                pytest.fail(f"{wanted}\n{found}\n{self.log()}", pytrace=False)
            time.sleep(0.5)
            before, found = found, _of(self.second)
            if found != before:  # a slow machine is no fault
                deadline = time.monotonic() + PATIENCE
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, self.log()
        assert _of(self.second) == wanted == _of(self.server)


def crashed(place: Path, *, kills: int, restarts: int, scale: int, seed: int) -> int:
    """Everything; returns how many kills came before all accounts were copied."""
    draw = random.Random(seed)
    every = kills // restarts
    with running() as server, running() as second:
        bank = Bank(server, second, place, scale)
        with _traffic(server, rate=100):
            for turn in range(kills):
                reading, restart = turn < kills // 3, turn % every == every - 1
                # From when it reads it takes Spark's start, and more than that, to have all accounts copied.
                life = draw.uniform(0.0, 2.0 if reading else 4.0)
                bank.killed_after(life, reading=reading, restart=restart)
        bank.finish()
        assert _of(server)["pgbench_history"][0] > 100, "pgbench did hardly anything"
        subprocess.run(
            [sys.executable, "-m", "penstock", "release", "pipeline.py", "--data-dir", "data", "--yes"],
            cwd=place, check=True, capture_output=True,
        )  # fmt: skip
        assert server.query("SELECT slot_name FROM pg_replication_slots") == []
        assert server.query("SELECT pubname FROM pg_publication", database="bank") == []
        return bank.killed_in_copy


@pytest.mark.soak
def test_both_databases_are_equal_after_a_restart_of_the_servers_and_a_kill(tmp_path: Path) -> None:
    crashed(tmp_path, kills=1, restarts=1, scale=1, seed=7)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_soak_both_databases_are_equal_after_ten_kills_and_two_restarts(tmp_path: Path) -> None:
    assert crashed(tmp_path, kills=10, restarts=2, scale=5, seed=11) >= 3
