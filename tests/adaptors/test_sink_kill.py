"""`kill -9` of a publishing process at each step, for the relational sinks: each message counts once."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.adaptors.postgres_target import PostgresTarget
from tests.servers.postgres import PostgresServer

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, SinkPosition, Stage
from penstock.base import faults
from penstock.log.message import Message, Op
from penstock.log.schema import KnownSchemas
from penstock.testing.adaptors.delivery import batch_of

BATCH = 20
LOG = "the log"


@dataclass
class Target:
    """A sink that is written by processes which are killed. `total` is what its counter comes to."""

    adaptor: Callable[[], Adaptor]
    ns: str
    scratch: Path

    def run(self, end: int, kill_at: str | None) -> int:
        """Deliver everything below `end` in a process of its own; its exit code."""
        process = multiprocessing.get_context("fork").Process(target=self._deliver, args=(end, kill_at))
        process.start()
        process.join(60)
        assert process.exitcode is not None, "the process does not end"
        return process.exitcode

    def _deliver(self, end: int, kill_at: str | None) -> None:
        if kill_at is not None:
            trace = self.scratch / f"steps-{os.getpid()}"
            os.environ |= {faults.TRACE: str(trace), faults.KILL: kill_at}
        sink = self.adaptor().sink()
        sink.use(KnownSchemas({}), "kill.sink")
        publisher = sink.publisher()
        at = publisher.open(SinkPosition(LOG, 0, 0))
        assert at is not None
        for first in range(at.watermark, end, BATCH):
            last = min(first + BATCH, end)
            with faults.step("stage"):
                stage = Stage(self.scratch / f"{first}-{os.getpid()}", "part", at.watermark)
                staged = sink.stager().stage(
                    stage, iter([batch_of([_row(self.ns, n) for n in range(first, last)], first)])
                )
            publisher.publish([staged], SinkPosition(LOG, 0, last))
        publisher.close()


def _row(ns: str, n: int) -> Message:
    """Row after row, and every third message moves the row before it to another key: once more would show."""
    if n % 3 == 2:
        data = f'{{"id":{1_000_000 + n},"n":{n}}}'
        return Message(ns, data.encode(), Op.UPDATE, old_key=b'{"id":%d}' % (n - 1))
    return Message(ns, b'{"id":%d,"n":%d}' % (n, n))


def _expected(end: int) -> list[int]:
    return sorted(
        1_000_000 + n if n % 3 == 2 else n for n in range(end) if n % 3 == 2 or (n % 3 == 0 or n + 1 >= end)
    )


def killed_at_each_step(
    target: Target, steps: tuple[str, ...], rows: Callable[[], list[int]], seed: int
) -> None:
    draw = random.Random(seed)
    aims = [f"{step}:{draw.randint(1, 3)}" for step in steps]
    draw.shuffle(aims)
    end = 0
    for aim in aims:
        end += 5 * BATCH
        assert target.run(end, aim) == -signal.SIGKILL, f"was not killed at {aim}"
        found = rows()
        assert found in [_expected(n) for n in range(0, end + 1, BATCH)], (
            f"killed at {aim}: no whole number of batches"
        )
    assert target.run(end, None) == 0
    assert rows() == _expected(end)


STEPS = ("stage", "postgres position", "postgres apply", "postgres drop", "postgres commit", "postgres clear")


@pytest.mark.xdist_group("postgres")
def test_postgres_has_each_message_once_whatever_step_is_interrupted(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    subject = PostgresTarget(postgres_server)
    table = f"public.killed_{subject.own_schema}"
    subject.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, n bigint)")
    target = Target(subject.adaptor, table, tmp_path)
    killed_at_each_step(
        target, STEPS, lambda: [id for (id,) in subject.query(f"SELECT id FROM {table} ORDER BY id")], 7
    )
    assert list(subject.leftovers()) == []


def test_sqlite_has_each_message_once_whatever_step_is_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "target.db"

    def rows() -> list[int]:
        with sqlite3.connect(path) as connection:
            return [id for (id,) in connection.execute("SELECT id FROM killed ORDER BY id")]

    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE killed (id INTEGER PRIMARY KEY, n INTEGER)")
    target = Target(lambda: a.sqlite(uri=f"sqlite://{path}"), "killed", tmp_path)
    killed_at_each_step(target, ("stage", "sqlite position", "sqlite apply", "sqlite commit"), rows, 11)
