"""The tables that the MySQL sink writes: what the server says of them, and the statements that change their rows.

A namespace `shop.orders` is the table `orders`: of the database that the uri names, or, if it names none, of `shop`. A
table's key is its primary key, or else a unique one whose columns are never null.

**Upserts.** `INSERT … ON DUPLICATE KEY UPDATE` takes any unique key for *the* key: a new row that shares a unique
value with another one would overwrite that one. It is used where there is one unique key and no other, and every
column that has to be given is. Elsewhere a row is updated by its key, and inserted if that found none; what violates
a key is an error then.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.adaptors.changes import Change, Kind, Run, Target, Unknown
from penstock.adaptors.mysql.connection import Session, quoted
from penstock.adaptors.mysql.sink_values import JSON_TEXT, bound, declared
from penstock.adaptors.mysql.table import tables_of
from penstock.adaptors.mysql.types import Column
from penstock.base.errors import RefusedError, UsageError
from penstock.log.schema import Field, Schema

if TYPE_CHECKING:
    import pymysql.cursors

STATEMENT_BYTES = 1024 * 1024
"""About how large a statement with many rows gets."""

KEYS = 500
"""Keys in one DELETE."""


def place_of(ns: str, database: str) -> tuple[str, str]:
    """The database and the table of a namespace."""
    front, dot, table = ns.partition(".")
    if database:
        return database, table if dot and table else ns
    if not dot or not front or not table:
        raise UsageError(
            f"namespace '{ns}' names no database, and neither does the uri",
            hint="give the uri a database: mysql://HOST/DATABASE",
        )
    return front, table


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is written."""

    target: Target
    database: str
    name: str
    engine: str
    columns: dict[str, Column]
    lone_key: bool
    """Whether its key is the only unique one."""
    required: frozenset[str]
    """Columns that a new row must have a value for."""
    folded: tuple[str, ...] = ()
    """Columns of the key that are compared otherwise than by their characters, with their collations."""

    @property
    def sql(self) -> str:
        return quoted(self.database, self.name)

    def bind(self, name: str, raw: bytes) -> Hashable:
        return bound(self.columns[name], raw)


def table_of(session: Session, ns: str, database: str, unknown: Unknown = "error") -> Table | None:
    """What is known of the table of a namespace; None if there is none."""
    place, name = place_of(ns, database)
    found = tables_of(session, place, name)
    if not found:
        return None
    structure = found[0].structure
    about = session.query(
        "SELECT COLUMN_NAME, EXTRA, IS_NULLABLE, COLUMN_DEFAULT FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        [place, name],
    )
    computed = frozenset(
        str(row[0]) for row in about if "GENERATED" in str(row[1]).upper().replace("DEFAULT_GENERATED", "")
    )
    required = frozenset(
        str(row[0])
        for row in about
        if row[2] == "NO"
        and row[3] is None
        and "auto_increment" not in str(row[1]).lower()
        and row[0] not in computed
    )
    ((unique,),) = session.query(
        "SELECT COUNT(DISTINCT INDEX_NAME) FROM information_schema.STATISTICS "
        "WHERE NON_UNIQUE = 0 AND TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        [place, name],
    )
    documents = _documents(session, place, name) if session.maria else frozenset()
    columns = {
        column.name: Column(column.name, JSON_TEXT, None, column.nullable)
        if column.name in documents
        else column
        for column in structure.columns
        if column.name not in computed
    }
    target = Target(ns, frozenset(columns), structure.key, computed, unknown)
    folded = tuple(
        f"{column} ({collation})"
        for column, collation in found[0].collations.items()
        if column in structure.key and not collation.endswith("_bin")
    )
    return Table(target, place, name, found[0].engine, columns, int(unique) == 1, required, folded)


def _documents(session: Session, database: str, name: str) -> frozenset[str]:
    """The columns of a table of MariaDB that were declared as JSON."""
    rows = session.query(
        "SELECT CONSTRAINT_NAME, CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS "
        "WHERE CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s AND LEVEL = 'Column'",
        [database, name],
    )
    return frozenset(str(column) for column, clause in rows if clause == f"json_valid({quoted(str(column))})")


def create_statement(session: Session, ns: str, database: str, schema: Schema) -> str:
    """The table for a schema. Texts that are no key are compared as the database does it."""
    place, name = place_of(ns, database)
    lines = [
        f"{quoted(f.name)} {declared(f, in_key=f.name in schema.key, maria=session.maria)}"
        for f in schema.fields
    ]
    if schema.key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, schema.key))})")
    made = f"CREATE TABLE IF NOT EXISTS {quoted(place, name)} ({', '.join(lines)})"
    return f"{made} ENGINE = InnoDB DEFAULT CHARSET utf8mb4"


def add_statement(session: Session, table: Table, fields: Sequence[Field]) -> str:
    added = [f"ADD COLUMN {quoted(f.name)} {declared(f, in_key=False, maria=session.maria)}" for f in fields]
    return f"ALTER TABLE {table.sql} {', '.join(added)}"


class Writer:
    """Applies runs of changes in an open transaction. Counts of rows are of those found, not of those that differ."""

    def __init__(self, cursor: pymysql.cursors.Cursor, most_bytes: int) -> None:
        self._cursor, self._most = cursor, most_bytes

    def apply(self, table: Table, run: Run) -> None:
        if run.kind is Kind.TRUNCATE:
            # TRUNCATE would end the transaction.
            self._run(f"DELETE FROM {table.sql}")
        elif run.kind is Kind.DELETE:
            self._delete(table, [change.key or () for change in run.changes])
        elif run.kind is Kind.MOVE:
            for change in run.changes:
                self._move(table, change)
        else:
            self._write(table, run)

    def _write(self, table: Table, run: Run) -> None:
        head = f"INSERT INTO {table.sql} ({', '.join(map(quoted, run.fields))}) VALUES "
        if not table.target.key:
            self._insert(head, run.changes, "")
        elif table.lone_key and table.required <= set(run.fields):
            sets = [f for f in run.fields if f not in table.target.key] or list(table.target.key[:1])
            tail = ", ".join(f"{quoted(field)} = VALUES({quoted(field)})" for field in sets)
            self._insert(head, run.changes, f" ON DUPLICATE KEY UPDATE {tail}")
        else:
            for change in run.changes:
                self._one(table, change)

    def _one(self, table: Table, change: Change) -> None:
        if not self._update(table, change, change.key or ()):
            names = ", ".join(map(quoted, change.fields))
            self._run(
                f"INSERT INTO {table.sql} ({names}) VALUES ({', '.join(map(self._literal, change.values))})"
            )

    def _update(self, table: Table, change: Change, key: Sequence[Hashable]) -> int:
        pairs = zip(change.fields, change.values, strict=True)
        sets = ", ".join(f"{quoted(field)} = {self._literal(value)}" for field, value in pairs)
        return self._run(f"UPDATE {table.sql} SET {sets} WHERE {self._by_key(table, key)}")

    def _move(self, table: Table, change: Change) -> None:
        """A row takes its other columns along, and the place of what is under its new key; see `changes`."""
        new, old = self._by_key(table, change.key or ()), self._by_key(table, change.old or ())
        if not self._run(f"SELECT 1 FROM {table.sql} WHERE {old} FOR UPDATE"):
            self._one(table, change)
            return
        # The two may be one: keys that differ in letters that the collation takes for the same.
        self._run(f"DELETE FROM {table.sql} WHERE {new} AND NOT ({old})")
        self._update(table, change, change.old or ())

    def _delete(self, table: Table, keys: Sequence[Sequence[Hashable]]) -> None:
        for start in range(0, len(keys), KEYS):
            some = keys[start : start + KEYS]
            if len(table.target.key) == 1:
                listed = ", ".join(self._literal(key[0]) for key in some)
                condition = f"{quoted(table.target.key[0])} IN ({listed})"
            else:
                condition = " OR ".join(f"({self._by_key(table, key)})" for key in some)
            self._run(f"DELETE FROM {table.sql} WHERE {condition}")

    def _insert(self, head: str, changes: Iterable[Change], tail: str) -> None:
        """Rows in as few statements as their size allows."""
        rows: list[str] = []
        size = 0
        for change in changes:
            rows.append("(" + ", ".join(map(self._literal, change.values)) + ")")
            size += len(rows[-1])
            if size >= STATEMENT_BYTES:
                self._run(head + ", ".join(rows) + tail)
                rows, size = [], 0
        if rows:
            self._run(head + ", ".join(rows) + tail)

    def _by_key(self, table: Table, key: Sequence[Hashable]) -> str:
        pairs = zip(table.target.key, key, strict=True)
        return " AND ".join(f"{quoted(name)} = {self._literal(value)}" for name, value in pairs)

    def _literal(self, value: Any) -> str:
        return str(self._cursor.connection.escape(value))

    def _run(self, statement: str) -> int:
        size = len(statement.encode("utf-8", "surrogateescape"))
        if size >= self._most:
            raise RefusedError(
                f"a row makes a statement of {size:,} bytes, the server takes less than {self._most:,}",
                hint="SET GLOBAL max_allowed_packet = 1073741824 at the target",
            )
        return int(self._cursor.execute(statement))
