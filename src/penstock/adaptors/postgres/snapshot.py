"""The copy: one moment of the database, read by ranges of keys, in any number of processes at once.

A `Snapshot` keeps a transaction open that shows the database as it was at `lsn`; the tasks of a copy see the same. It
also keeps the tables from being rewritten or truncated underneath, as pg_dump does (ACCESS SHARE). Ranges are cut by
the index of the key, a few megabytes each; a table without a key is cut by its pages, which only means something within
one snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.adaptors.base import CopyTask
from penstock.adaptors.columns import textarrays as ta
from penstock.adaptors.needs import need
from penstock.adaptors.postgres.arrow import cursor
from penstock.adaptors.postgres.connection import EXTRA, Connection, Server, quoted
from penstock.adaptors.postgres.pgoutput import lsn_of
from penstock.adaptors.postgres.position import Key
from penstock.adaptors.postgres.table import Table, key_tuple, texts_of
from penstock.adaptors.postgres.types import Type
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.log.message import MAX_MESSAGE_BYTES
from penstock.log.packing import Packed, pack

MOST = 100_000
"""Rows of a range."""
SAMPLE = 100
"""Rows that tell how wide a table's rows are, beside the server's own estimate."""

_LOCK_SECONDS = 30
ASIDE_SECONDS = 3
"""How long a range waits for its table: only somebody who waits for the copy to let go of it can be in the way."""
_LOCKED = "55P03"
_PAGE = 8192


@dataclass(frozen=True)
class RangeTask(CopyTask):
    """One range: a query, run under a snapshot."""

    server: Server
    snapshot: str
    ns: str
    query: str
    names: Sequence[str]
    types: Sequence[Type]
    key: Sequence[int]
    ts: int

    def read(self) -> Iterator[Packed]:
        errors = need("adbc_driver_manager", EXTRA)
        try:
            with cursor(
                self.server, [*begin(self.snapshot), f"SET LOCAL lock_timeout = '{ASIDE_SECONDS}s'"]
            ) as found:
                found.execute(self.query)
                with found.fetch_record_batch() as batches:
                    for batch in batches:
                        yield self._packed(batch)
        except errors.Error as error:
            state, text = _told(error)
            if state == _LOCKED:
                raise AwayError(
                    f"the copy of {self.ns} steps aside for somebody who waits to change it"
                ) from None
            raise self.server.error(f"cannot copy {self.ns}", state, text) from None

    def _packed(self, batch: Any) -> Packed:
        printed = [ta.as_texts(column) for column in batch.columns]
        try:
            data = texts_of(self.names, self.types, printed, batch.num_rows)
            keys = None
            if self.key:
                keys = texts_of(
                    [self.names[at] for at in self.key], [self.types[at] for at in self.key],
                    [printed[at] for at in self.key], batch.num_rows,
                )  # fmt: skip
        except PenstockError as error:
            raise PenstockError(f"table {self.ns}: {error.message}", hint=error.hint) from None
        return pack(self.ns, data, ts=self.ts, keys=keys, max_bytes=MAX_MESSAGE_BYTES)


def _told(error: Any) -> tuple[str, str]:
    """SQLSTATE and text of an error of the Arrow driver. One without a state never got to the server."""
    text = " ".join(str(error).split())
    return error.sqlstate or "08000", text


def begin(snapshot: str) -> Sequence[str]:
    return (
        "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
        f"SET TRANSACTION SNAPSHOT '{snapshot}'",
    )


@dataclass(frozen=True)
class Range:
    """What a task copies: the rows behind the last range, up to the key `upto`; `last` if the table ends with it."""

    table: Table
    upto: Key | None
    last: bool


class Snapshot:
    """One moment. Use `tied` or `plain`; close it when the copy is done."""

    def __init__(self, server: Server, keeper: Connection, lsn: int) -> None:
        self._server, self._keeper, self.lsn = server, keeper, lsn
        self._query(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
        self.id = str(self._query("SELECT pg_export_snapshot()")[0][0])
        self.ts = time.time_ns() // 1000

    @classmethod
    def tied(cls, server: Server, slot: str, *, lasting: bool) -> Snapshot:
        """The moment at which a new slot begins: all that commits from `lsn` on is in its stream, and nothing else.

        A slot that is not `lasting` goes as soon as the moment is fixed.
        """
        driver = need("psycopg", EXTRA)
        replication = server.replication()
        try:
            kind = "" if lasting else "TEMPORARY "
            statement = f"CREATE_REPLICATION_SLOT {quoted(slot)} {kind}LOGICAL pgoutput EXPORT_SNAPSHOT"
            result = replication.exec_(statement.encode())
            if result.status != driver.pq.ExecStatus.TUPLES_OK:
                raise slot_error(server, slot, result)
            lsn, name = result.get_value(0, 1), result.get_value(0, 2)
            return cls._kept(server, (name or b"").decode(), lsn_of((lsn or b"0/0").decode()))
        finally:
            replication.finish()

    @classmethod
    def plain(cls, server: Server) -> Snapshot:
        """This moment, for who does not want to know what comes after."""
        return cls._kept(server, None, 0)

    @classmethod
    def _kept(cls, server: Server, name: str | None, lsn: int) -> Snapshot:
        keeper = server.connect()
        try:
            with server.telling("cannot take a snapshot"):
                for statement in begin(name or "")[: 2 if name else 1]:
                    keeper.execute(statement)
                return cls(server, keeper, lsn)
        except BaseException:
            keeper.close()
            raise

    def hold(self, tables: Sequence[Table]) -> None:
        """Keep the tables as they are while they are copied."""
        if tables:
            self._query(f"LOCK TABLE {', '.join(table.own for table in tables)} IN ACCESS SHARE MODE")

    def check(self, table: Table, where: str) -> None:
        """Refuse what is no condition on this table: by itself, and among the other terms of a query.

        Only what stands both ways is one expression; anything else could reach the terms around it.
        """
        driver = need("psycopg", EXTRA)
        for condition in (where, f"({where}\n) AND true"):
            try:
                # Not by the simple protocol, which takes several statements.
                self._keeper.execute(f"EXPLAIN SELECT 1 FROM {table.own} WHERE {condition}", binary=True)
            except driver.Error as error:
                raise UsageError(
                    f"the condition of the backfill of '{table.ns}' is not one: {where!r}: "
                    f"{str(error).splitlines()[0]}",
                    hint="give what stands behind WHERE in SQL, such as \"total > 100 AND day >= '2026-01-01'\"",
                ) from None

    def ranges(self, table: Table, after: Key | None, where: str | None) -> Iterator[tuple[Range, RangeTask]]:
        """Cut what is behind `after`, as the ranges are asked for; at least one, which is the last."""
        cuts = self._by_key(table, after) if table.key else self._by_page(table)
        for terms, upto, last, source in cuts:
            conditions = [*terms, *([f"({where}\n)"] if where is not None else [])]
            condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
            columns = ", ".join(column.expression for column in table.columns)
            order = f" ORDER BY {_key_of(table)}" if table.key else ""
            names = [column.name for column in table.columns]
            yield Range(table, upto, last), RangeTask(
                self._server, self.id, table.ns, f"SELECT {columns} FROM {source}{condition}{order}",
                names, [column.copied for column in table.columns], [names.index(name) for name in table.key], self.ts,
            )  # fmt: skip

    def _by_key(self, table: Table, after: Key | None) -> Iterator[tuple[list[str], Key | None, bool, str]]:
        key, rows = _key_of(table), self._rows(table)
        printed = ", ".join(f"{quoted(column.name)}::text" for column in table.keyed)
        while True:
            terms = [] if after is None else [f"({key}) > ({key_tuple(table.keyed, after)})"]
            condition = f" WHERE {terms[0]}" if terms else ""
            found = self._query(
                f"SELECT {printed} FROM {table.own}{condition} ORDER BY {key} OFFSET {rows - 1} LIMIT 1"
            )
            if not found:
                yield terms, None, True, table.own
                return
            upto = tuple(str(part) for part in found[0])
            yield [*terms, f"({key}) <= ({key_tuple(table.keyed, upto)})"], upto, False, table.own
            after = upto

    def _by_page(self, table: Table) -> Iterator[tuple[list[str], Key | None, bool, str]]:
        """By pages, of each partition if there are any."""
        leaves = [table.sql]
        if table.partitioned:
            found = self._query(
                f"SELECT relid::regclass::text FROM pg_partition_tree({table.oid}) WHERE isleaf"
            )
            leaves = [row[0] for row in found]
        step = max(1, self._server.range_bytes // _PAGE)
        for leaf in leaves:
            pages = int(
                self._query(f"SELECT pg_relation_size('{leaf.replace(chr(39), chr(39) * 2)}'::regclass)")[0][
                    0
                ]
            )
            for first in range(0, pages // _PAGE, step):
                terms = [f"ctid >= '({first},0)'::tid", f"ctid < '({first + step},0)'::tid"]
                yield terms, None, False, f"ONLY {leaf}"
        yield ["false"], None, True, table.sql

    def _rows(self, table: Table) -> int:
        """How many rows make a range, by the width of some of them and of all of them on average."""
        sample = f"SELECT avg(octet_length(r::text)) FROM (SELECT * FROM {table.own} LIMIT {SAMPLE}) r"
        widths = [float(self._query(sample)[0][0] or 1), table.bytes / table.rows if table.rows else 1.0]
        return max(1, min(MOST, int(self._server.range_bytes / max(widths))))

    def close(self) -> None:
        self._keeper.close()

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        with self._server.telling("cannot read under the snapshot"):
            found = self._keeper.execute(statement)
            return found.fetchall() if found.description else []


def slot_error(server: Server, slot: str, result: Any) -> PenstockError:
    """What the server says about a command of the replication protocol."""
    driver = need("psycopg", EXTRA)
    state = result.error_field(driver.pq.DiagnosticField.SQLSTATE) or b"08000"
    text = result.error_message.decode("utf-8", "replace").strip().split("\n")[0]
    return server.error(f"replication slot '{slot}'", state.decode(), text)


def filenodes(connection: Connection, tables: Sequence[Table]) -> dict[int, int]:
    """The files that the tables are in. One that was rewritten or truncated is in another."""
    found = connection.execute(
        "SELECT t.relid::oid, pg_relation_filenode(t.relid) FROM unnest(%s::oid[]) o(id), "
        "LATERAL (SELECT relid FROM pg_partition_tree(o.id) UNION SELECT o.id) t",
        [[table.oid for table in tables]],
    )
    return {int(oid): int(node or 0) for oid, node in found.fetchall()}


def same_files(before: dict[int, int], after: dict[int, int]) -> None:
    if before != after:
        raise AwayError("a table was truncated or rewritten while the moment of its copy was being fixed")


def _key_of(table: Table) -> str:
    """With the table's name: a bare one would mean the column of the result, which is text and sorts as such."""
    return ", ".join(f"{table.sql}.{quoted(name)}" for name in table.key)
