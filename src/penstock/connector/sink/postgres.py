"""A table of PostgreSQL: each line a row; rows and the record of the transaction are one database transaction.

    TABLE(worker, at, data)     made if it is not there: the worker, the byte offset of the line, the line as JSON
    penstock_workers            how far TABLE is, for each worker; moves in the same transaction as the rows
    penstock_staged             rows that are prepared, where the server has no prepared transactions

Where the server lets transactions be prepared (`max_prepared_transactions` above 0), rows are copied while they come,
PHASE1 is `PREPARE TRANSACTION` and PHASE2 is `COMMIT PREPARED`, and each row is written once. Otherwise, and when all
its places for them are taken, rows are staged in a table at PHASE1, and moved by PHASE2: sinks that commit together
would wait for each other's places for ever.
Nothing prepared is left behind: what no vote stands for is rolled back when its worker connects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.base.errors import AwayError, CorruptError, RefusedError
from penstock.connector.sink.rows import Row, RowStorage
from penstock.connector.sink.storage import Transaction

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

_CHUNK = 1 << 18
_MAKING = int.from_bytes(b"penstock")
"""The number of the lock under which tables are made."""
_BEYOND_LIMITS = "54"
"""The class of errors about rows that no server takes, such as those that are nested too deeply."""


class PostgresStorage(RowStorage):
    """The rows of one worker, over a connection of its own."""

    def __init__(self, uri: str, table: str, worker: str) -> None:
        super().__init__()
        from psycopg import sql

        self._worker = worker
        self._table = sql.Identifier(*table.split("."))
        self._named = table
        self._connection = _connected(uri)
        self._inflow: _Inflow | None = None
        self._refused: RefusedError | None = None
        """Why the rows that were fed are not taken, until somebody asks for the vote."""
        with _told():
            self._make_tables()
            self._prepares = str(self._value("SHOW max_prepared_transactions")) != "0"

    def _make_tables(self) -> None:
        """One worker after the other: of two that make a table at once PostgreSQL refuses one."""
        with self._whole():
            self._execute("SELECT pg_advisory_xact_lock(%s)", _MAKING)
            self._execute(
                "CREATE TABLE IF NOT EXISTS {table} "
                "(worker text NOT NULL, at bigint NOT NULL, data jsonb NOT NULL, PRIMARY KEY (worker, at))"
            )
            self._execute("CREATE TABLE IF NOT EXISTS penstock_workers (target text, worker text, "
                          "committed bigint NOT NULL DEFAULT 0, PRIMARY KEY (target, worker))")  # fmt: skip
            self._execute("CREATE TABLE IF NOT EXISTS penstock_staged (target text, worker text, "
                          "transaction text, at bigint, data jsonb)")  # fmt: skip

    def staged(self, committed: int, prepared: Transaction | None) -> bool:
        with _told():
            held = self._position()
            if held < committed:
                raise CorruptError(
                    f"worker {self._worker} has committed {committed} bytes, the database knows {held}",
                    where=self._named, position=held,
                    hint="an older copy was put in its place: bring the newer one back",
                )  # fmt: skip
            there = prepared is not None and (
                prepared.start == prepared.end or held >= prepared.end or self._is_there(prepared)
            )
            self._forget("" if prepared is None or not there else prepared.id)
        return there

    @property
    def feeds(self) -> bool:
        return self._prepares

    def feed(self, rows: Iterator[Row]) -> None:
        """Copy them in the transaction that `stage` prepares."""
        if self._refused is not None:
            return
        try:
            with _told():
                self._flowing().take(rows)
        except RefusedError as error:
            self._abandon()
            self._refused = error

    def stage(self, transaction: Transaction, rows: Iterator[Row]) -> None:
        if self._refused is not None:
            raise self._refused
        if transaction.start == transaction.end:
            return
        with _told():
            if self._prepares:
                if self._prepare(transaction, rows):
                    return
                rows = self.once_more()
            with self._whole():
                columns = "penstock_staged (target, worker, transaction, at, data)"
                with self._copying(columns, (self._named, self._worker, transaction.id)) as aside:
                    aside.take(rows)

    def publish(self, transaction: Transaction) -> None:
        with _told():
            if self._gid(transaction.id) in self._prepared_ids():
                self._connection.execute(f"COMMIT PREPARED '{self._gid(transaction.id)}'".encode())
                return
            mine = (self._named, self._worker, transaction.id)
            with self._whole():
                moved = self._execute(
                    "INSERT INTO {table} (worker, at, data) SELECT worker, at, data FROM penstock_staged "
                    "WHERE target = %s AND worker = %s AND transaction = %s ORDER BY at", *mine,
                ).rowcount  # fmt: skip
                if not moved and transaction.start < transaction.end and self._position() < transaction.end:
                    raise CorruptError(
                        f"the rows of {transaction.id} are gone", where=self._named, position=transaction.start,
                        hint="something else rolls prepared transactions back there, or empties penstock_staged",
                    )  # fmt: skip
                self._execute(
                    "DELETE FROM penstock_staged WHERE target = %s AND worker = %s AND transaction = %s",
                    *mine,
                )
                self._move_position(transaction)

    def drop(self) -> None:
        with _told():
            self._abandon()
            self._refused = None
            self._forget("")

    def retire(self, mark: str) -> None:
        aside = f"{self._worker}.{mark}"
        with _told():
            self._forget("")
            with self._whole():
                self._execute("UPDATE {table} SET worker = %s WHERE worker = %s", aside, self._worker)
                self._execute("UPDATE penstock_workers SET worker = %s WHERE target = %s AND worker = %s",
                              aside, self._named, self._worker)  # fmt: skip

    def close(self) -> None:
        super().close()
        self._connection.close()

    def _is_there(self, prepared: Transaction) -> bool:
        if self._gid(prepared.id) in self._prepared_ids():
            return True
        mine = (self._named, self._worker, prepared.id)
        query = "SELECT 1 FROM penstock_staged WHERE target = %s AND worker = %s AND transaction = %s LIMIT 1"
        return self._value(query, *mine) is not None

    def _forget(self, keep: str) -> None:
        """Roll back and remove whatever is prepared under this name, except one."""
        for gid in self._prepared_ids():
            if not keep or gid != self._gid(keep):
                self._connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())
        self._execute("DELETE FROM penstock_staged WHERE target = %s AND worker = %s AND transaction <> %s",
                      self._named, self._worker, keep)  # fmt: skip

    def _prepared_ids(self) -> list[str]:
        query = (
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)"
        )
        return [str(row[0]) for row in self._execute(query, self._gid("")).fetchall()]

    def _gid(self, transaction: str) -> str:
        """Of this worker's transactions at this table; the prefix of all of them for an empty id."""
        prefix = f"penstock:{_hash(f'{self._named}|{self._worker}')}:"
        return prefix + (_hash(transaction) if transaction else "")

    def _position(self) -> int:
        query = "SELECT committed FROM penstock_workers WHERE target = %s AND worker = %s"
        return int(str(self._value(query, self._named, self._worker) or 0))

    def _move_position(self, transaction: Transaction) -> None:
        self._execute(
            "INSERT INTO penstock_workers (target, worker, committed) VALUES (%s, %s, %s) "
            "ON CONFLICT (target, worker) DO UPDATE "
            "SET committed = greatest(penstock_workers.committed, excluded.committed)",
            self._named, self._worker, transaction.end,
        )  # fmt: skip

    def _prepare(self, transaction: Transaction, rows: Iterator[Row]) -> bool:
        """False if the server has no place for one more prepared transaction."""
        import psycopg

        try:
            inflow = self._flowing()
            inflow.take(rows)
            inflow.end()
            self._move_position(transaction)
            self._connection.execute(f"PREPARE TRANSACTION '{self._gid(transaction.id)}'".encode())
            self._inflow = None
        except BaseException as error:
            self._abandon()
            if isinstance(error, psycopg.errors.OutOfMemory):
                return False
            raise
        return True

    def _flowing(self) -> _Inflow:
        """The COPY of the transaction that is under way."""
        if self._inflow is None:
            self._connection.execute("BEGIN")
            self._inflow = self._copying("{table} (worker, at, data)", (self._worker,))
        return self._inflow

    def _copying(self, where: str, before: tuple[str, ...]) -> _Inflow:
        from psycopg import sql

        lead = "".join(f"{_escaped(text.encode()).decode()}\t" for text in before).encode()
        statement = sql.SQL("COPY " + where + " FROM STDIN").format(table=self._table)
        return _Inflow(self._connection.cursor(), statement, lead)

    def _abandon(self) -> None:
        """Give up what was fed, if anything was."""
        inflow, self._inflow = self._inflow, None
        if inflow is not None and not self._connection.closed:
            inflow.cancel()
            self._connection.execute("ROLLBACK")

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """One transaction."""
        self._connection.execute("BEGIN")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if not self._connection.closed:
                self._connection.execute("ROLLBACK")
            raise

    def _execute(self, text: str, *values: object) -> psycopg.Cursor[tuple[object, ...]]:
        from psycopg import sql

        return self._connection.execute(sql.SQL(text).format(table=self._table), values)

    def _value(self, text: str, *values: object) -> object:
        row = self._execute(text, *values).fetchone()
        return None if row is None else row[0]


class _Inflow:
    """One COPY, which is given rows piece by piece."""

    def __init__(self, cursor: psycopg.Cursor[tuple[object, ...]], statement: Composed, lead: bytes) -> None:
        """`lead` are the columns before the offset, the same in every row."""
        self._lead = lead
        self._opened = ExitStack()
        self._opened.enter_context(cursor)
        self._copy = self._opened.enter_context(cursor.copy(statement))

    def __enter__(self) -> _Inflow:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.end()
        else:
            self.cancel()

    def take(self, rows: Iterator[Row]) -> None:
        pending = bytearray()
        for at, line in rows:
            pending += b"%s%d\t%s\n" % (self._lead, at, _escaped(line))
            if len(pending) >= _CHUNK:
                self._copy.write(bytes(pending))
                pending.clear()
        self._copy.write(bytes(pending))

    def end(self) -> None:
        """All rows are there; what the database has against them is raised now at the latest."""
        self._opened.close()

    def cancel(self) -> None:
        """The database forgets what it was given."""
        import psycopg

        reason = psycopg.errors.QueryCanceled("given up")
        with suppress(psycopg.Error):  # it may have ended already, by an error of its own
            self._opened.__exit__(type(reason), reason, None)


def _connected(uri: str) -> psycopg.Connection[tuple[object, ...]]:
    import psycopg

    try:
        connection = psycopg.connect(uri, autocommit=True, connect_timeout=10)
        connection.execute("SET synchronous_commit = on")
    except psycopg.OperationalError as error:
        raise AwayError(f"PostgreSQL does not answer: {error}") from None
    return connection


@contextmanager
def _told() -> Iterator[None]:
    """What the database refuses for good is a vote to abort; all else is an end of the connection."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        for_good = isinstance(error, (psycopg.DataError, psycopg.IntegrityError))
        if for_good or (error.sqlstate or "").startswith(_BEYOND_LIMITS):
            raise RefusedError(f"PostgreSQL refused the rows: {str(error).splitlines()[0]}") from error
        raise AwayError(f"PostgreSQL: {str(error).splitlines()[0] if str(error) else error!r}") from error


def _escaped(text: bytes) -> bytes:
    if b"\\" not in text and b"\t" not in text and b"\r" not in text:
        return text
    return text.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(b"\r", b"\\r")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
