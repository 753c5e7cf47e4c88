"""The writing half of `sqlite`: tables of one database file that hold what the log says, each message once.

A namespace is the table of that name. Tasks set rows aside in files and refuse what its table cannot take. The
publisher applies them row by row, in the order of the log, in one transaction with the position, which is a row of the
table `penstock_positions`. Foreign keys are enforced, and looked at when all rows are there.

SQLite does not look at the case of a table's name: of two namespaces that differ in nothing else the second is refused.
The position remembers the first.

The database is written with `synchronous=EXTRA`: what was published is there after a loss of power, too. In the
default journal mode, FULL would leave the end of a transaction, which is that its journal is removed, to chance. What
a killed process wrote may not be synced yet: `open` answers behind a transaction of its own, which syncs the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

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
from penstock.adaptors.changes import Change, Kind, NotTakenError, Row, Run, Target, Unknown, read, runs
from penstock.adaptors.continuing import continued
from penstock.adaptors.growing import Seen
from penstock.adaptors.parts import PartStager, read_parts
from penstock.adaptors.sqlite.sink_values import declared, stored
from penstock.adaptors.sqlite.table import POSITIONS, quoted
from penstock.base import faults
from penstock.base.errors import AwayError, PenstockError, RefusedError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

BUSY = 30.0
"""Seconds to wait for somebody who writes the database."""

OLDEST = (3, 37, 0)
OTHER_TABLE = "give one of them another name with the function `remap`"

_AWAY = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_PROTOCOL,
    }
)
_REFUSED = frozenset({sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG})


@dataclass(frozen=True)
class Options:
    """The settings of the sink, and its name."""

    path: Path
    name: str = ""
    create_tables: bool = True
    add_columns: bool = False
    unknown_fields: Unknown = "error"


class SqliteSink(Sink):
    """Tables of one database."""

    order = Order.TOTAL
    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, options: Options) -> None:
        self._options = options

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        from penstock.adaptors.sqlite.sink_inspect import findings

        return findings(self._options, namespaces)

    def stager(self) -> Stager:
        return PartStager(partial(_check, self._options))

    def publisher(self) -> Publisher:
        options = Options(**{**vars(self._options), "name": self.name})
        return SqlitePublisher(options, self.schemas)

    def staging(self, scratch: Path) -> Path:
        return scratch


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is written; the declared types of its columns decide what values become."""

    target: Target
    types: Mapping[str, str]

    def bind(self, name: str, raw: bytes) -> Hashable:
        return stored(self.types[name], raw)


def _check(options: Options, batch: pa.RecordBatch) -> Sequence[Refusal]:
    """Which messages the tables can never take, as far as the tables are there already."""
    if not options.path.exists():
        return []
    refused: dict[int, Refusal] = {}
    with telling(options.path), closing(connect(options.path, write=False)) as connection:
        tables = {
            ns: table_of(connection, ns, options.unknown_fields) for ns in set(batch.column("ns").to_pylist())
        }
    for ns, origin, row in _rows(batch):
        table = tables[ns]
        if table is None or (options.add_columns and row.op in ("insert", "update")):
            continue
        try:
            read(table.target, row, table.bind)
        except NotTakenError as error:
            refused.setdefault(row.offset, Refusal(row.offset, origin, str(error), ""))
    return list(refused.values())


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, str, Row]]:
    """The rows of a batch: the namespace, the one in the log, and what counts."""
    names = ("ns", "origin", "offset", "op", "key", "old_key", "data")
    columns = [
        batch.column(name).to_pylist() if name in batch.schema.names else [None] * batch.num_rows
        for name in names
    ]
    for ns, origin, offset, op, key, old_key, data in zip(*columns, strict=True):
        yield ns, origin, Row(offset, op, key, old_key, data)


class SqlitePublisher(Publisher):
    """Applies rows and moves the position, in one transaction."""

    def __init__(self, options: Options, schemas: Schemas) -> None:
        self._options = options
        self._schemas = schemas
        self._connection: sqlite3.Connection | None = None
        self._at: SinkPosition | None = None
        self._owners: dict[str, str] = {}
        """The namespaces of tables, by the names that SQLite tells tables apart by."""

    def open(self, start: SinkPosition) -> SinkPosition:
        self.close()
        connection = connect(self._options.path, write=True)
        try:
            with telling(self._options.path):
                self._at = self._position(connection, start)
        except PenstockError:
            connection.close()
            raise
        self._connection = connection
        return self._at

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        connection, at = self._connection, self._at
        if connection is None or at is None:
            raise PenstockError(f"{self._options.path} is not open")
        owners = dict(self._owners)
        with telling(self._options.path), _transaction(connection):
            with faults.step("sqlite position"):
                self._move(connection, at, position)
            with faults.step("sqlite apply"):
                for batch in read_parts(parts):
                    self._own(connection, owners, set(batch.column("ns").to_pylist()))
                    for run in runs(self._changes(connection, batch)):
                        _apply(connection, self._known(connection, run.table), run)
            commit = faults.step("sqlite commit")
            commit.__enter__()
        commit.__exit__(None, None, None)
        self._at, self._owners = position, owners

    def close(self) -> None:
        connection, self._connection, self._at = self._connection, None, None
        if connection is not None:
            connection.close()

    def _changes(self, connection: sqlite3.Connection, batch: pa.RecordBatch) -> Iterator[Change]:
        rows = list(_rows(batch))
        self._grow(connection, rows)
        tables = {ns: self._known(connection, ns) for ns in {ns for ns, _, _ in rows}}
        for ns, origin, row in rows:
            table = tables[ns]
            try:
                change = read(table.target, row, table.bind)
            except NotTakenError as error:
                raise RefusedError(f"message {row.offset} of namespace '{origin}': {error}") from None
            if change is not None:
                yield change

    def _own(self, connection: sqlite3.Connection, owners: dict[str, str], namespaces: set[str]) -> None:
        """Have tables for these namespaces alone; recorded with the rows."""
        before = len(owners)
        for ns in sorted(namespaces):
            owner = owners.setdefault(folded(ns), ns)
            if owner != ns:
                raise UsageError(shared(ns, owner), hint=OTHER_TABLE)
        if len(owners) > before:
            told = msgspec.json.encode(owners).decode()
            connection.execute(
                f"UPDATE {POSITIONS} SET owners = ? WHERE sink = ?", [told, self._options.name]
            )

    def _known(self, connection: sqlite3.Connection, ns: str) -> Table:
        table = table_of(connection, ns, self._options.unknown_fields)
        if table is None:
            raise UsageError(
                f"{self._options.path} has no table '{ns}'", hint="make it, or set create_tables=True"
            )
        return table

    def _grow(self, connection: sqlite3.Connection, rows: Sequence[tuple[str, str, Row]]) -> None:
        """Make tables and columns that are missing, if asked to."""
        seen: dict[str, Seen] = {}
        for ns in (
            {ns for ns, _, _ in rows} if self._options.create_tables or self._options.add_columns else ()
        ):
            if self._options.add_columns or table_of(connection, ns) is None:
                seen[ns] = Seen()
        for ns, origin, row in rows:
            if ns in seen:
                seen[ns].add(origin, row.offset, row.op, _str(row.key), str(row.data))
        for ns, found in seen.items():
            schema = found.schema(self._schemas)
            table = table_of(connection, ns)
            if table is None and self._options.create_tables:
                columns = [f"{quoted(field.name)} {declared(field)}".rstrip() for field in schema.fields]
                if schema.key:
                    columns.append(f"PRIMARY KEY ({', '.join(map(quoted, schema.key))})")
                connection.execute(f"CREATE TABLE {quoted(ns)} ({', '.join(columns)})")
            elif table is not None and self._options.add_columns:
                have = table.target.columns | table.target.computed
                for field in schema.fields:
                    if field.name not in have:
                        connection.execute(
                            f"ALTER TABLE {quoted(ns)} ADD {quoted(field.name)} {declared(field)}"
                        )

    def _position(self, connection: sqlite3.Connection, start: SinkPosition) -> SinkPosition:
        name = self._options.name
        with _transaction(connection):
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {POSITIONS} (sink TEXT PRIMARY KEY NOT NULL, log TEXT NOT NULL, "
                "generation INTEGER NOT NULL, watermark INTEGER NOT NULL, opened INTEGER NOT NULL DEFAULT 0, "
                "owners TEXT NOT NULL DEFAULT '{}')"
            )
            about = table_of(connection, POSITIONS)
            if about is not None and "owners" not in about.types:
                connection.execute(f"ALTER TABLE {POSITIONS} ADD owners TEXT NOT NULL DEFAULT '{{}}'")
            row = connection.execute(
                f"SELECT log, generation, watermark, owners FROM {POSITIONS} WHERE sink = ?", [name]
            ).fetchone()
            self._owners = {} if row is None else msgspec.json.decode(row[3], type=dict[str, str])
            if row is None:
                values = [name, start.log, start.generation, start.watermark]
                connection.execute(
                    f"INSERT INTO {POSITIONS} (sink, log, generation, watermark) VALUES (?, ?, ?, ?)", values
                )
                return start
            held = SinkPosition(*row[:3])
            anew = f"move the file away, or DELETE FROM {POSITIONS} WHERE sink = '{name}'"
            goes_on = continued(held, start, f"the target of sink '{name}' in {self._options.path}", anew)
            # A change, so that the end of this transaction syncs the file: see above.
            connection.execute(f"UPDATE {POSITIONS} SET opened = opened + 1 WHERE sink = ?", [name])
            if goes_on != held:
                self._move(connection, held, goes_on)
            return goes_on

    def _move(self, connection: sqlite3.Connection, at: SinkPosition, to: SinkPosition) -> None:
        moved = connection.execute(
            f"UPDATE {POSITIONS} SET generation = ?, watermark = ? "
            "WHERE sink = ? AND log = ? AND generation = ? AND watermark = ?",
            [to.generation, to.watermark, self._options.name, at.log, at.generation, at.watermark],
        ).rowcount
        if moved != 1 or to.log != at.log:
            raise RivalError(
                f"the position in {self._options.path} is not where this run left it, at {at.watermark}",
                hint="another run writes the same target; end one of them",
            )


def folded(ns: str) -> str:
    """The name of a table without what SQLite does not tell apart: the case of ASCII, and of no other letters."""
    return ns.encode().lower().decode()


def shared(ns: str, owner: str) -> str:
    return f"the table of namespace '{ns}' has the rows of '{owner}', which differs in case alone"


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < OLDEST:
        raise UsageError(
            f"this Python has SQLite {sqlite3.sqlite_version}, {'.'.join(map(str, OLDEST))} is wanted"
        )
    uri = f"file:{quote(str(path))}?mode={'rwc' if write else 'ro'}"
    try:
        connection = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY
        )
    except sqlite3.Error as error:
        raise UsageError(f"cannot open the database {path}: {error}", hint="see the setting 'uri'") from None
    if write:
        with telling(path):
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA foreign_keys = ON")
    return connection


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """Errors of SQLite come out with their meaning."""
    try:
        yield
    except sqlite3.Error as error:
        what, code = (
            f"cannot write the database {path}: {error}",
            getattr(error, "sqlite_errorcode", 0) & 0xFF,
        )
        if code in _AWAY:
            raise AwayError(
                what, hint="somebody else holds it, or its disk has no room or does not answer"
            ) from error
        if code in _REFUSED:
            raise RefusedError(what) from error
        raise UsageError(what) from error


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("PRAGMA defer_foreign_keys = ON")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def table_of(connection: sqlite3.Connection, name: str, unknown: Unknown = "error") -> Table | None:
    about = connection.execute(
        "SELECT name, type, pk, hidden FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid", [name]
    ).fetchall()
    if not about:
        return None
    key = tuple(column for column, _, pk, _ in sorted(about, key=lambda one: one[2]) if pk)
    columns = {column: kind for column, kind, _, hidden in about if not hidden}
    computed = frozenset(column for column, _, _, hidden in about if hidden)
    return Table(Target(name, frozenset(columns), key, computed, unknown), columns)


def _apply(connection: sqlite3.Connection, table: Table, run: Run) -> None:
    """A run, row by row: SQLite does one after the other anyway."""
    name, key = quoted(table.target.name), table.target.key
    by_key = " AND ".join(f"{quoted(column)} = ?" for column in key)
    if run.kind is Kind.TRUNCATE:
        connection.execute(f"DELETE FROM {name}")
    elif run.kind is Kind.DELETE:
        connection.executemany(
            f"DELETE FROM {name} WHERE {by_key}", [change.key or () for change in run.changes]
        )
    elif run.kind is Kind.MOVE:
        for change in run.changes:
            _move_row(connection, table, change)
    else:
        connection.executemany(_upsert(table, run.fields), [change.values for change in run.changes])


def _upsert(table: Table, fields: Sequence[str]) -> str:
    name, key = quoted(table.target.name), table.target.key
    if not fields:
        return f"INSERT INTO {name} DEFAULT VALUES"
    insert = (
        f"INSERT INTO {name} ({', '.join(map(quoted, fields))}) VALUES ({', '.join('?' for _ in fields)})"
    )
    if not key:
        return insert
    sets = ", ".join(f"{quoted(field)} = excluded.{quoted(field)}" for field in fields if field not in key)
    return f"{insert} ON CONFLICT ({', '.join(map(quoted, key))}) DO {f'UPDATE SET {sets}' if sets else 'NOTHING'}"


def _move_row(connection: sqlite3.Connection, table: Table, change: Change) -> None:
    """A row takes its other columns along, and the place of what is under its new key; see `changes`."""
    name = quoted(table.target.name)
    by_key = " AND ".join(f"{quoted(column)} = ?" for column in table.target.key)
    new, old = change.key or (), change.old or ()
    # By the collation of its column, a key may be written differently and be the same: the row is not in its own way.
    connection.execute(
        f"DELETE FROM {name} WHERE {by_key} AND NOT ({by_key}) AND EXISTS (SELECT 1 FROM {name} WHERE {by_key})",
        [*new, *old, *old],
    )
    sets = ", ".join(f"{quoted(field)} = ?" for field in change.fields)
    moved = connection.execute(f"UPDATE {name} SET {sets} WHERE {by_key}", [*change.values, *old]).rowcount
    if not moved:
        connection.execute(_upsert(table, change.fields), change.values)


def _str(text: str | bytes | None) -> str | None:
    return text.decode() if isinstance(text, bytes) else text
