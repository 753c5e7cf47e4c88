"""A database for one test of the source: statements in, messages out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import psycopg
from tests.servers.postgres import PostgresServer

from penstock import adaptors
from penstock.log.message import Message, MessageOffset, Mode, Op, Resume
from penstock.testing.adaptors.model import Log, Reading

PATIENCE = 60.0
SLOT = "penstock_shop_db"

Document = dict[str, Any]


class Shop:
    """`log` is what a pipeline would have; `reading` is a start of its source, from what the log has.

    All tests use one database, and leave nothing in it.
    """

    name = "shop"

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.uri = server.uri(self.name)
        if not server.query(f"SELECT 1 FROM pg_database WHERE datname = '{self.name}'"):
            server.database(self.name)
        self.log = Log()
        self._marks = itertools.count()
        self.sql("CREATE TABLE mark (id int PRIMARY KEY)")

    def sql(self, *statements: str) -> None:
        self.server.execute(*statements, database=self.name)

    def transaction(self, *statements: str) -> None:
        with psycopg.connect(self.uri) as connection:
            for statement in statements:
                connection.execute(statement)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.query(statement, database=self.name)

    def reading(
        self, *, tail: bool = True, accept: Callable[[str], bool] = lambda ns: True, **settings: object
    ) -> Reading:
        adaptor = adaptors.postgres(**{"uri": self.uri, "tail": tail, "range_bytes": 16 * 1024, **settings})
        return Reading(adaptor, self.log, accept, "shop.db")

    def copied(self, *namespaces: str, **settings: Any) -> None:
        """Copy these tables, and no more."""
        with self.reading(**settings) as reading:
            self.complete(reading, *namespaces)

    def complete(self, reading: Reading, *namespaces: str) -> None:
        done = reading.until(lambda: set(namespaces) <= set(self.log.completed), PATIENCE)
        assert done, f"complete are {self.log.completed}"

    def settle(self, reading: Reading) -> None:
        """Log everything that is committed by now."""
        tables = self.query(
            "SELECT 'public.' || relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition "
            "AND relnamespace = 'public'::regnamespace"
        )
        self.complete(reading, *(name for (name,) in tables))
        mark = next(self._marks)
        self.sql(f"INSERT INTO mark VALUES ({mark})")
        wanted = b'{"id":%d}' % mark
        assert reading.until(lambda: any(one.data == wanted for one in self.log.of("public.mark")), PATIENCE)

    def backfill(self, ns: str, where: str) -> None:
        """What an operator's `penstock backfill NS --where` has the next start hear."""
        known = self.log.resume()
        before = known.get(ns)
        position = None if before is None else before.position
        asked = Resume(Mode.COPY, {}, MessageOffset(-1), None, where, position)
        resume = {**known, ns: asked}
        self.log.resume = lambda: resume  # type: ignore[method-assign]

    def messages(self, ns: str) -> list[Message]:
        return self.log.of(ns)

    def changes(self, ns: str) -> list[tuple[str, Document]]:
        """What came behind the copy."""
        return [
            (message.op.word, msgspec.json.decode(message.data))
            for message in self.log.of(ns)
            if message.mode is Mode.SYNC
        ]

    def rows(self, ns: str) -> Mapping[bytes, bytes]:
        """The rows that the messages leave, by key, as text."""
        return rows_of(self.log.of(ns))

    def slot(self) -> tuple[Any, ...]:
        (found,) = self.query(
            "SELECT confirmed_flush_lsn, active, wal_status, "
            "pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) "
            f"FROM pg_replication_slots WHERE slot_name = '{SLOT}' AND database = current_database()"
        )
        return found

    def close(self) -> None:
        for slot, pid in self.query(
            "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = current_database()"
        ):
            if pid is not None:
                self.sql(f"SELECT pg_terminate_backend({pid}, 5000)")
            self.sql(f"SELECT pg_drop_replication_slot('{slot}')")
        for (publication,) in self.query("SELECT pubname FROM pg_publication"):
            self.sql(f"DROP PUBLICATION {publication}")
        self.sql("DROP SCHEMA IF EXISTS public, other, closed CASCADE", "CREATE SCHEMA public")


def rows_of(messages: list[Message]) -> dict[bytes, bytes]:
    """Fold messages; what contradicts the ones before is an error."""
    rows: dict[bytes, bytes] = {}
    for message in messages:
        if message.op is Op.COMMAND:
            rows.clear()
            continue
        key = message.key
        assert key is not None
        before = message.old_key or key
        assert (before in rows) == (message.op is not Op.INSERT), f"{message.op.word} of {before!r}"
        rows.pop(before, None)
        if message.op is not Op.DELETE:
            rows[key] = message.data
    return rows
