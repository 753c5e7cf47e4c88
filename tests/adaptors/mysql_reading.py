"""Helpers for the tests of the MySQL source: read until something is there, and start again from what was logged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from tests.servers.mariadb import MySqlServer

from penstock import adaptors
from penstock.log.message import Message
from penstock.testing.adaptors.model import Log, Reading


class Tables:
    """Some tables of a server, and a log of what was read of them."""

    def __init__(self, server: MySqlServer, database: str) -> None:
        self.server, self.database = server, database
        self.log = Log()
        server.execute(f"DROP DATABASE IF EXISTS {database}")
        server.database(database)

    def run(self, *statements: str) -> None:
        self.server.execute(*statements, database=self.database)

    def purge(self) -> None:
        """Remove all but the newest file of the binlog; one that a reader has, who just went, goes a little later."""
        deadline = time.monotonic() + 60
        while len(files := self.server.query("SHOW BINARY LOGS")) > 1:
            assert time.monotonic() < deadline, files
            self.run(f"PURGE BINARY LOGS TO '{files[-1][0]}'")
            time.sleep(0.1)

    def ns(self, table: str) -> str:
        return f"{self.database}.{table}"

    @contextmanager
    def reading(self, *tables: str, tail: bool = True, **settings: object) -> Iterator[Reading]:
        wanted = {self.ns(table) for table in tables}
        adaptor = adaptors.mysql(uri=self.server.uri(), tail=tail, **settings)
        with Reading(adaptor, self.log, lambda ns: ns in wanted) as reading:
            yield reading

    def copy(self, *tables: str) -> None:
        """Read until all are copied."""
        with self.reading(*tables) as reading:
            self.until(reading, lambda: {self.ns(table) for table in tables} <= self.completed)

    @property
    def completed(self) -> set[str]:
        return set(self.log.completed)

    def until(self, reading: Reading, done: Callable[[], bool]) -> None:
        """Log what comes until `done`."""
        assert reading.until(done, 30), [message.data for message in self.log.messages][-5:]

    def of(self, table: str) -> list[Message]:
        return [message for message in self.log.messages if message.ns == self.ns(table)]

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [msgspec.json.decode(message.data) for message in self.of(table)]

    def state(self, table: str, key: str = "id") -> dict[Any, dict[str, Any]]:
        """What the messages leave behind."""
        found: dict[Any, dict[str, Any]] = {}
        for message in self.of(table):
            data = msgspec.json.decode(message.data)
            if message.op.word == "command":
                found.clear()
                continue
            if message.old_key is not None:
                found.pop(msgspec.json.decode(message.old_key)[key], None)
            if message.op.word == "delete":
                found.pop(data[key], None)
            else:
                found[data[key]] = data
        return found
