"""The writing half of `mysql`: tables that hold what the log says, each message applied exactly once.

Tasks set rows aside in files and refuse what their table cannot take. The publisher makes what tables and columns are
missing, if asked to, since such statements end a transaction; then, in one transaction:

1. the position moves, if it still is where this publisher left it: whoever came in between makes it fail;
2. the rows are applied in the order of the log, in statements of many rows (`mysql_sink_table`); foreign keys and
   unique keys hold at each of them;
3. the transaction commits.

The position is a row of the table `penstock_positions`, under the name of pipeline and sink. A session holds the
lock of that name while it publishes, so a second publisher waits until the first one is gone. All tables must be
InnoDB's: others know no transactions. What `COMMIT` makes durable is the server's to say
(innodb_flush_log_at_trx_commit).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.adaptors.base import (
    Finding,
    Guarantee,
    Order,
    Publisher,
    Refusal,
    RivalError,
    Schemas,
    Sink,
    SinkPosition,
    Staged,
    Stager,
)
from penstock.adaptors.changes import Change, NotTakenError, Row, Unknown, read, runs
from penstock.adaptors.continuing import continued
from penstock.adaptors.growing import Seen
from penstock.adaptors.mysql.connection import EXTRA, LONG, Server, Session, code_of, quoted
from penstock.adaptors.mysql.sink_table import Table, Writer, add_statement, create_statement, table_of
from penstock.adaptors.needs import need
from penstock.adaptors.parts import PartStager, read_parts
from penstock.base import faults, secrets
from penstock.base.errors import AwayError, PenstockError, RefusedError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

POSITIONS = "penstock_positions"

PATIENCE = 5.0
"""Seconds to wait for a publisher that is on its way out."""

TRIES = 4
"""How often a transaction is tried that met another one."""

_AGAIN = (1205, 1213)
_REFUSED = frozenset(
    {
        1022, 1048, 1062, 1138, 1153, 1169, 1216, 1217, 1264, 1265, 1292, 1364, 1366, 1367, 1406, 1411, 1416, 1441,
        1451, 1452, 1525, 1557, 1586, 1644, 1690, 1761, 1762, 3140, 3141, 3156, 3819, 4025, 4079,
    }
)  # fmt: skip
"""What a server says of rows that break a rule of their table."""


@dataclass(frozen=True)
class Options:
    """The settings of the sink, and its name."""

    server: Server
    name: str = ""
    create_tables: bool = False
    add_columns: bool = False
    unknown_fields: Unknown = "error"
    own_database: str = "penstock"

    @property
    def positions(self) -> str:
        return quoted(self.server.database or self.own_database, POSITIONS)


class MySqlSink(Sink):
    """Tables of a MySQL or MariaDB server."""

    order = Order.TOTAL
    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, options: Options) -> None:
        self._options = options

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        from penstock.adaptors.mysql.sink_inspect import findings

        with self._options.server.connect() as session:
            return findings(session, self._options, namespaces)

    def stager(self) -> Stager:
        return PartStager(_Check(self._options))

    def publisher(self) -> Publisher:
        return MySqlPublisher(replace(self._options, name=self.name), self.schemas)

    def staging(self, scratch: Path) -> Path:
        return scratch


class _Check:
    """Says which messages the tables can never take, as far as the tables are there already. One for a task attempt."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._tables: dict[str, Table | None] = {}

    def __call__(self, batch: pa.RecordBatch) -> Sequence[Refusal]:
        self._learn(set(batch.column("ns").to_pylist()))
        refused: dict[int, Refusal] = {}
        for ns, origin, row in _rows(batch):
            table = self._tables[ns]
            if table is None:
                continue
            try:
                read(table.target, row, table.bind)
            except NotTakenError as error:
                refused.setdefault(row.offset, Refusal(row.offset, origin, str(error), ""))
        return list(refused.values())

    def _learn(self, names: set[str]) -> None:
        options = self._options
        unknown: Unknown = "ignore" if options.add_columns else options.unknown_fields
        if names <= self._tables.keys():
            return
        with options.server.connect() as session:
            for ns in names - self._tables.keys():
                self._tables[ns] = table_of(session, ns, options.server.database, unknown)


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, str, Row]]:
    """The rows of a batch: the namespace, the one in the log, and what counts."""
    names = ("ns", "origin", "offset", "op", "key", "old_key", "data")
    columns = [
        batch.column(name).to_pylist() if name in batch.schema.names else [None] * batch.num_rows
        for name in names
    ]
    for ns, origin, offset, op, key, old_key, data in zip(*columns, strict=True):
        yield ns, origin, Row(offset, op, key, old_key, data)


class MySqlPublisher(Publisher):
    """Holds one session, and with it the sink's lock, from `open` to `close`."""

    def __init__(self, options: Options, schemas: Schemas) -> None:
        self._options, self._schemas = options, schemas
        self._session: Session | None = None
        self._at: SinkPosition | None = None
        self._most = 0
        self._owners: dict[tuple[str, str], str] = {}

    def open(self, start: SinkPosition) -> SinkPosition:
        self.close()
        session = self._options.server.connect(found_rows=True, read_timeout=LONG)
        try:
            self._lock(session)
            self._set_up(session)
            self._most = int(session.variable("max_allowed_packet") or 1 << 20)
            self._at = self._position(session, start)
        except BaseException:
            session.close()
            raise
        self._session = session
        return self._at

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        session, at = self._session, self._at
        if session is None or at is None:
            raise PenstockError("the target is not open")
        if self._options.create_tables or self._options.add_columns:
            with _telling(self._options.server):
                self._grow(session, parts)
        driver = need("pymysql", EXTRA)
        for attempt in range(1, TRIES + 1):
            try:
                with _telling(self._options.server):
                    self._transaction(session, parts, at, position)
                break
            except AwayError as error:
                cause = error.__cause__
                if (
                    attempt == TRIES
                    or not isinstance(cause, driver.MySQLError)
                    or code_of(cause) not in _AGAIN
                ):
                    raise
                time.sleep(0.05 * 3**attempt)
        self._at = position

    def close(self) -> None:
        session, self._session, self._at = self._session, None, None
        if session is not None:
            session.close()

    def _transaction(
        self, session: Session, parts: Sequence[Staged], at: SinkPosition, position: SinkPosition
    ) -> None:
        session.connection.begin()
        try:
            with faults.step("mysql position"):
                self._move(session, at, position)
            with faults.step("mysql apply"), session.connection.cursor() as cursor:
                writer = Writer(cursor, self._most)
                tables: dict[str, Table] = {}
                for batch in read_parts(parts):
                    for run in runs(self._changes(session, tables, batch)):
                        writer.apply(tables[run.table], run)
            with faults.step("mysql commit"):
                session.connection.commit()
        except Exception:
            self._roll_back(session)
            raise

    def _roll_back(self, session: Session) -> None:
        try:
            session.connection.rollback()
        except (need("pymysql", EXTRA).MySQLError, OSError):
            session.close()  # which rolls back too

    def _changes(self, session: Session, tables: dict[str, Table], batch: pa.RecordBatch) -> Iterator[Change]:
        for ns, origin, row in _rows(batch):
            if ns not in tables:
                tables[ns] = self._table(session, ns)
            table = tables[ns]
            try:
                change = read(table.target, row, table.bind)
            except NotTakenError as error:
                raise RefusedError(f"message {row.offset} of namespace '{origin}': {error}") from None
            if change is not None:
                yield change

    def _table(self, session: Session, ns: str) -> Table:
        database = self._options.server.database
        table = table_of(session, ns, database, self._options.unknown_fields)
        if table is None:
            raise UsageError(
                f"there is no table for namespace '{ns}'", hint="make it, or set create_tables=True"
            )
        if table.engine.lower() != "innodb":
            raise UsageError(
                f"table {table.database}.{table.name} is of the engine {table.engine}, which knows no transactions",
                hint=f"ALTER TABLE {table.sql} ENGINE = InnoDB",
            )
        owner = self._owners.setdefault((table.database, table.name), ns)
        if owner != ns:
            raise UsageError(
                f"namespaces '{owner}' and '{ns}' are both the table {table.database}.{table.name}",
                hint="rename one with the function `remap`, or give the uri no database",
            )
        return table

    def _grow(self, session: Session, parts: Sequence[Staged]) -> None:
        """Make tables and columns that are missing."""
        database = self._options.server.database
        known: dict[str, Table | None] = {}
        seen: dict[str, Seen] = {}
        for batch in read_parts(parts):
            for ns, origin, row in _rows(batch):
                if ns not in known:
                    known[ns] = table_of(session, ns, database)
                if known[ns] is None or self._options.add_columns:
                    seen.setdefault(ns, Seen()).add(
                        origin, row.offset, row.op, _str(row.key), str(_str(row.data))
                    )
        for ns, found in seen.items():
            schema, table = found.schema(self._schemas), known[ns]
            if table is None and self._options.create_tables:
                session.run(create_statement(session, ns, database, schema))
            elif table is not None and self._options.add_columns:
                have = {name.lower() for name in table.target.columns | table.target.computed}
                lacking = [field for field in schema.fields if field.name.lower() not in have]
                if lacking:
                    session.run(add_statement(session, table, lacking))

    def _lock(self, session: Session) -> None:
        """Wait for whoever has this sink; a session that was killed lets go as soon as the server sees it."""
        name = "penstock " + hashlib.sha256(self._options.name.encode()).hexdigest()[:32]
        ((held,),) = session.query("SELECT GET_LOCK(%s, %s)", [name, PATIENCE])
        if held != 1:
            raise AwayError(
                f"another session writes as sink '{self._options.name}'",
                hint="two runs of one pipeline cannot share a target; if a run was killed, its session ends soon",
            )

    def _set_up(self, session: Session) -> None:
        if not self._options.server.database:
            session.run(f"CREATE DATABASE IF NOT EXISTS {quoted(self._options.own_database)}")
        session.run(
            f"CREATE TABLE IF NOT EXISTS {self._options.positions} (sink VARCHAR(255) CHARACTER SET utf8mb4 COLLATE "
            "utf8mb4_bin PRIMARY KEY, log VARCHAR(255) NOT NULL, generation BIGINT NOT NULL, "
            "watermark BIGINT NOT NULL) ENGINE = InnoDB"
        )

    def _position(self, session: Session, start: SinkPosition) -> SinkPosition:
        name, positions = self._options.name, self._options.positions
        rows = session.query(f"SELECT log, generation, watermark FROM {positions} WHERE sink = %s", [name])
        if not rows:
            session.run(
                f"INSERT INTO {positions} (sink, log, generation, watermark) VALUES (%s, %s, %s, %s)",
                [name, start.log, start.generation, start.watermark],
            )
            return start
        held = SinkPosition(str(rows[0][0]), int(rows[0][1]), int(rows[0][2]))
        goes_on = continued(
            held, start, f"the target of sink '{name}'", f"DELETE FROM {positions} WHERE sink = '{name}'"
        )
        if goes_on != held:
            self._move(session, held, goes_on)
        return goes_on

    def _move(self, session: Session, at: SinkPosition, to: SinkPosition) -> None:
        moved = session.run(
            f"UPDATE {self._options.positions} SET generation = %s, watermark = %s "
            "WHERE sink = %s AND log = %s AND generation = %s AND watermark = %s",
            [to.generation, to.watermark, self._options.name, at.log, at.generation, at.watermark],
        )
        if moved != 1 or to.log != at.log:
            raise RivalError(
                f"the position of sink '{self._options.name}' is not where this run left it, at {at.watermark}",
                hint="another run writes the same target; end one of them",
            )


@contextmanager
def _telling(server: Server) -> Iterator[None]:
    """Errors about rows come out as a refusal of the batch, others as what they mean to a run."""
    driver = need("pymysql", EXTRA)
    with server.telling("cannot write"):
        try:
            yield
        except driver.MySQLError as error:
            if code_of(error) in _REFUSED:
                raise RefusedError(
                    secrets.mask(f"the server did not take the batch: {error.args[-1]}")
                ) from error
            raise


def _str(text: str | bytes | None) -> str | None:
    return text.decode() if isinstance(text, bytes) else text
