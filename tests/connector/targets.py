"""Sinks that are processes, each with what its readers see of it: files, and a table of PostgreSQL; and a reader."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
from tests.connector.sinking import SinkProcess
from tests.servers.postgres import PostgresServer


class Target(NamedTuple):
    """A sink, and the lines that its readers see of a worker."""

    process: SinkProcess
    lines: Callable[[str], list[str]]
    check: Callable[[], None] = lambda: None
    """What else must hold when all is done."""


def files(root: Path) -> Target:
    process = SinkProcess(root)
    return Target(process, lambda worker: process.committed(worker).decode().splitlines())


def rows(root: Path, server: PostgresServer) -> Target:
    """A table of PostgreSQL, served as a person would."""
    name = f"crash_{uuid.uuid4().hex[:12]}"
    uri = server.database(name)
    served = ("--uri", uri, "--table", "output", "--txns", str(root / "txns"))
    command = [sys.executable, "-m", "penstock", "connector", "sink", "postgres", *served]
    query = "SELECT data::text FROM output WHERE worker = %s ORDER BY at"

    def lines(worker: str) -> list[str]:
        with psycopg.connect(uri) as connection:
            if connection.execute("SELECT to_regclass('output')").fetchone() == (None,):
                return []
            return [str(data) for (data,) in connection.execute(query, [worker]).fetchall()]

    def check() -> None:
        left = f"SELECT gid FROM pg_prepared_xacts WHERE database = '{name}'"
        assert server.query(left) == [], "nothing prepared is left"

    made = SinkProcess(root, lambda port, _: [*command, "--listen", f"127.0.0.1:{port}"])
    return Target(made, lines, check)


@contextmanager
def watched(look: Callable[[], int]) -> Iterator[None]:
    """Within this somebody reads all the time: `look` tells how much is there, which only grows, or fails."""
    over, found = threading.Event(), [0]
    wrong: list[Exception] = []

    def watch() -> None:
        pause = 0.0
        while not over.wait(pause):
            began = time.monotonic()
            try:
                found.append(look())
                assert found[-1] >= found[-2], f"there were {found[-2]}, now there are {found[-1]}"
            except Exception as error:  # noqa: BLE001 - told in the test's own thread
                wrong.append(error)
                return
            pause = max(5 * (time.monotonic() - began), 0.02)  # readers are not what is tested

    reader = threading.Thread(target=watch, daemon=True)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()
    if wrong:
        raise AssertionError("a reader has seen what must not be") from wrong[0]
    assert len(found) > 1, "nobody has looked"
