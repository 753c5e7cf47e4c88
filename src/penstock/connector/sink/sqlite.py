"""A table of a SQLite database: each line a row, with the worker that sent it and where in its output it stood.

    TABLE(worker, at, data)     the rows that are committed
    penstock_staged             rows that are prepared, as TABLE has them
    penstock_workers            for each worker how far TABLE is, and what is prepared

The last two are for all tables of a database: there a worker stands behind the name of its table and a tab. One that
stands alone is from a version before, and becomes one of the table that it comes to next. A commit moves rows and
position in one transaction of the database, which is synced (`synchronous=FULL`).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from penstock.base.errors import AwayError, CorruptError, RefusedError, UsageError
from penstock.connector.sink.rows import Row, RowStorage
from penstock.connector.sink.storage import Transaction

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_TABLES = """
CREATE TABLE IF NOT EXISTS {table}
  (worker TEXT NOT NULL, at INTEGER NOT NULL, data TEXT NOT NULL, PRIMARY KEY (worker, at));
CREATE TABLE IF NOT EXISTS penstock_staged
  (worker TEXT NOT NULL, at INTEGER NOT NULL, data TEXT NOT NULL, PRIMARY KEY (worker, at)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS penstock_workers
  (worker TEXT PRIMARY KEY, committed INTEGER NOT NULL DEFAULT 0, prepared TEXT) WITHOUT ROWID;
"""
_PREPARED = """
INSERT INTO penstock_workers (worker, committed, prepared) VALUES (?, ?, ?)
ON CONFLICT (worker) DO UPDATE SET prepared = excluded.prepared
"""
_COMMITTED = """
INSERT INTO penstock_workers (worker, committed) VALUES (?, ?)
ON CONFLICT (worker) DO UPDATE SET committed = max(committed, excluded.committed), prepared = NULL
"""


class SqliteStorage(RowStorage):
    """The rows of one worker."""

    def __init__(self, path: Path, table: str, worker: str) -> None:
        super().__init__()
        if not _NAME.fullmatch(table) or table.startswith("penstock_"):
            raise UsageError(f"a table cannot be named '{table}' here")
        self._worker, self._table, self._where = worker, f'"{table}"', str(path)
        self._mine = f"{table}\t{worker}"
        with _told(self._where):
            self._database = sqlite3.connect(
                path, timeout=30.0, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.executescript(_TABLES.format(table=self._table))
        with self._transaction() as database:
            for kept in ("penstock_workers", "penstock_staged"):
                query = f"UPDATE OR IGNORE {kept} SET worker = ? WHERE worker = ?"
                database.execute(query, (self._mine, worker))

    def staged(self, committed: int, prepared: Transaction | None) -> bool:
        with self._transaction() as database:
            query = "SELECT committed, prepared FROM penstock_workers WHERE worker = ?"
            held, known = database.execute(query, (self._mine,)).fetchone() or (0, None)
            if held < committed:
                raise CorruptError(
                    f"worker {self._worker} has committed {committed} bytes, the database knows {held}",
                    where=self._where, position=held,
                    hint="an older copy was put in its place: bring the newer one back",
                )  # fmt: skip
            if prepared is not None and (known == prepared.id or held >= prepared.end > prepared.start):
                return True
            self._forget(database)
        return prepared is not None and prepared.start == prepared.end

    def stage(self, transaction: Transaction, rows: Iterator[Row]) -> None:
        with self._transaction() as database:
            try:
                database.executemany(
                    "INSERT INTO penstock_staged (worker, at, data) VALUES (?, ?, ?)",
                    ((self._mine, at, line.decode()) for at, line in rows),
                )
            except UnicodeDecodeError as error:
                raise RefusedError(f"a line that is not UTF-8: {error}") from None
            database.execute(_PREPARED, (self._mine, transaction.start, transaction.id))

    def publish(self, transaction: Transaction) -> None:
        with self._transaction() as database:
            database.execute(
                f"INSERT INTO {self._table} (worker, at, data) "
                "SELECT ?, at, data FROM penstock_staged WHERE worker = ? ORDER BY at",
                (self._worker, self._mine),
            )
            database.execute("DELETE FROM penstock_staged WHERE worker = ?", (self._mine,))
            database.execute(_COMMITTED, (self._mine, transaction.end))

    def drop(self) -> None:
        with self._transaction() as database:
            self._forget(database)

    def retire(self, mark: str) -> None:
        with self._transaction() as database:
            self._forget(database)
            for table, name in ((self._table, self._worker), ("penstock_workers", self._mine)):
                database.execute(f"UPDATE {table} SET worker = ? WHERE worker = ?", (f"{name}.{mark}", name))

    def close(self) -> None:
        super().close()
        self._database.close()

    def _forget(self, database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM penstock_staged WHERE worker = ?", (self._mine,))
        database.execute("UPDATE penstock_workers SET prepared = NULL WHERE worker = ?", (self._mine,))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _told(self._where):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")


def rows_of(path: Path, table: str) -> list[tuple[str, int, str]]:
    """All committed rows, by worker and place."""
    with closing(sqlite3.connect(path)) as database:
        return database.execute(f'SELECT worker, at, data FROM "{table}" ORDER BY worker, at').fetchall()


@contextmanager
def _told(where: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:  # locked, full, or gone: the worker comes again
        raise AwayError(f"{where}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise CorruptError(str(error), where=where, position=0) from error
