"""`sqlite`: the tables of a SQLite database, copied row by row, and followed as they grow.

Each table is a namespace. Rows are read in the order of a key that SQLite keeps sorted, and all tables in one
read transaction, so that a copy shows the database as it was at one moment. The position of a table is
`{"after": [key values]}`; to go on is to read the rows with larger keys. Rows that are added with larger keys
are seen, then; deletes of rows that were read are not, and updates only where a column tells them (`updated_at`,
`penstock.adaptors.sqlite.changed`).

Where a table has no INTEGER PRIMARY KEY and is not WITHOUT ROWID, its key is the rowid, and VACUUM may number
the rows anew: such a table must not be vacuumed between two runs. While a copy runs, a database that is not
in WAL mode lets nobody write.

Values are typed text (`penstock.log.values`); what a column's declaration adds is told in
`penstock.adaptors.sqlite.types`. The schema of a table goes before the first rows of a run and of every change.
Text that is not UTF-8 is an error by name. A backfill may be given a condition, in SQL.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import quote

import msgspec

from penstock.adaptors.base import Adaptor, Batch, Found, Inspection, Sink, Source
from penstock.adaptors.sqlite.changed import Mark, changed, mark_of
from penstock.adaptors.sqlite.table import Row, RowError, Table, tables_of
from penstock.adaptors.sqlite.types import Stored
from penstock.adaptors.uri import absolute, path_of
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.base.settings import setting
from penstock.log.message import Message, Mode, Op, Position, Resume
from penstock.log.schema import Schema
from penstock.log.values import Value, from_json, to_json

MOST_BYTES = 1024 * 1024
MOST_ROWS = 10_000
"""What makes a batch."""

BUSY = 30.0
"""Seconds to wait for a writer that holds the database."""

_AWAY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL})
"""What SQLite says when nothing is wrong but the moment, or the disk under it."""

OLDEST = (3, 37, 0)
"""The first version of SQLite that lists tables by their kind."""


@dataclass(frozen=True)
class Sqlite(Adaptor):
    """A SQLite database file."""

    name: ClassVar[str] = "sqlite"
    description: ClassVar[str] = (
        "SQLite. Source: copies tables and, if asked to, follows them as they grow. It sees rows that are "
        "added with larger keys; deletes of rows that were read it does not see, and updates only where a column tells "
        "them. Sink: writes rows by their keys, in the order of the log and each exactly once."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True

    uri: str = setting("the database; relative to where the command runs", example="sqlite://shop.db")
    tail: bool = setting("source: go on with rows that are added later", default=False)
    poll_interval: float = setting("source: seconds between two looks for new rows", default=1.0)
    updated_at: str = setting(
        "source: a column that says when a row changed, if tables have one: rows with a newer value are updates",
        default="",
    )
    create_tables: bool = setting("sink: make tables that are missing", default=True)
    add_columns: bool = setting("sink: add columns for fields that a table has none for", default=False)
    unknown_fields: Literal["error", "ignore"] = setting(
        "sink: a field without a column: refuse the message with an 'error', or 'ignore' the field",
        default="error",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", absolute(self.uri, "sqlite"))
        if not self.poll_interval > 0:
            raise ValueError(f"setting 'poll_interval': expected more than 0, got {self.poll_interval}")

    def source(self) -> Source:
        poll = self.poll_interval if self.tail else None
        return SqliteSource(path_of(self.uri, "sqlite"), poll, self.updated_at)

    def sink(self) -> Sink:
        from penstock.adaptors.sqlite.sink import Options, SqliteSink

        path = path_of(self.uri, "sqlite")
        return SqliteSink(Options(path, "", self.create_tables, self.add_columns, self.unknown_fields))


class _Known(msgspec.Struct):
    """A position as the log gives it back."""

    after: list[object] = []
    changed: list[object] = []
    ties: str = ""


@dataclass(slots=True)
class _Place:
    """How far a table has been read, and how: `told` is the schema that went before."""

    after: Sequence[Stored] = ()
    mode: Mode = Mode.COPY
    where: str | None = None
    then: Sequence[Stored] = ()
    """Of a copy of the rows that meet `where`: the key from which on all rows are read, when it is done."""
    told: Schema | None = None
    mark: Mark | None = None
    """How far updates were seen, where a column tells them."""

    @property
    def position(self) -> Position:
        position: Position = {"after": [to_json(value) for value in self.after]}
        if self.mark is not None:
            position |= {"changed": [to_json(self.mark.value)], "ties": self.mark.ties}
        return position

    def complete(self) -> None:
        """The copy is done; rows behind `after` are new."""
        self.mode = Mode.SYNC
        if self.where is not None:
            self.after, self.where = self.then, None


class SqliteSource(Source):
    """Reads one database. `poll` is the time between two looks for new rows; None reads once.

    `updated_at` is a column by whose values updates are seen, in tables that have it (`sqlite_changed`).
    """

    def __init__(self, path: Path, poll: float | None, updated_at: str = "") -> None:
        self._path = path
        self._poll = poll
        self._updated_at = updated_at

    def namespaces(self) -> Sequence[str]:
        with self._connected() as connection:
            return [table.name for table in tables_of(connection)]

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        with self._connected() as connection:
            tables = tables_of(connection)
            return Inspection([Found(one.name, one.estimate(connection), one.schema.key) for one in tables])

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        places = {ns: _resumed(known) for ns, known in resume.items()}
        with self._connected() as connection:
            _check_conditions(connection, accept, places)
            while not stop.is_set():
                # Asked before the tables are read: what is committed in between shows at the next look.
                version = _version(connection)
                yield from self._look(connection, accept, places, stop)
                if self._poll is None:
                    return
                while version == _version(connection):
                    if stop.wait(self._poll):
                        return

    def _look(
        self,
        connection: sqlite3.Connection,
        accept: Callable[[str], bool],
        places: dict[str, _Place],
        stop: threading.Event,
    ) -> Iterator[Batch]:
        """Read all that is new, as the database is at one moment; tables that are followed do not wait for a copy."""
        connection.execute("BEGIN")
        tables = [table for table in tables_of(connection) if accept(table.name)]
        tables.sort(key=lambda table: places.setdefault(table.name, _Place()).mode is Mode.COPY)
        looked = time.monotonic()
        for table in tables:
            place = places[table.name]
            for batch in self._table(table, connection, place, stop):
                yield batch
                # Not in the midst of a table that is followed: its rows would be read by both.
                if place.mode is Mode.COPY and self._is_due(looked):
                    yield from self._follow(places, stop)
                    looked = time.monotonic()
        connection.execute("COMMIT")

    def _is_due(self, looked: float) -> bool:
        return self._poll is not None and time.monotonic() - looked >= self._poll

    def _follow(self, places: Mapping[str, _Place], stop: threading.Event) -> Iterator[Batch]:
        """Look at the tables that are complete, while the copy of another goes on in its own moment."""
        followed = {ns for ns, place in places.items() if place.mode is Mode.SYNC}
        if not followed:
            return
        with self._connected() as connection:
            connection.execute("BEGIN")
            for table in tables_of(connection):
                if table.name in followed:
                    yield from self._table(table, connection, places[table.name], stop)

    def _table(
        self, table: Table, connection: sqlite3.Connection, place: _Place, stop: threading.Event
    ) -> Iterator[Batch]:
        """What is new in a table: the rows that changed, if they tell, then those that were added."""
        column = self._updated_at
        if column not in {field.name for field in table.schema.fields}:
            yield from _batches(table, connection, place, stop)
            return
        if place.mode is Mode.COPY:
            # From the first moment of the copy on: what changes while it is interrupted is an update later.
            place.mark = place.mark or mark_of(table, connection, column)
            yield from _batches(table, connection, place, stop)
            return
        if place.mark is not None:
            yield from _updates(
                table, place, changed(table, connection, column, place.mark, place.after), stop
            )
        yield from _batches(table, connection, place, stop)
        mark = mark_of(table, connection, column)
        if mark != place.mark and not stop.is_set():
            place.mark = mark
            yield Batch(positions={table.name: place.position})

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection that can only read; errors of SQLite come out with the name of the database."""
        with closing(self._connection()) as connection:
            try:
                yield connection
            except sqlite3.Error as error:
                raise self._error(error) from error

    def _error(self, error: sqlite3.Error) -> PenstockError:
        what = f"cannot read the database {self._path}: {error}"
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _AWAY:
            return AwayError(what, hint="somebody else holds it, or its disk does not answer")
        return PenstockError(what)

    def _connection(self) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < OLDEST:
            raise UsageError(
                f"this Python has SQLite {sqlite3.sqlite_version}, {'.'.join(map(str, OLDEST))} is wanted"
            )
        uri = f"file:{quote(str(self._path))}?mode=ro"
        try:
            connection = sqlite3.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY
            )
            connection.execute("SELECT count(*) FROM sqlite_schema")
        except sqlite3.Error as error:
            found = self._error(error)
            if isinstance(found, AwayError) and self._path.is_file():
                raise found from None
            hint = None if self._path.exists() else "there is no such file"
            raise UsageError(f"cannot read the database {self._path}: {error}", hint=hint) from None
        return connection


def _batches(
    table: Table, connection: sqlite3.Connection, place: _Place, stop: threading.Event
) -> Iterator[Batch]:
    """The rows behind `place`, which moves along; with the last batch of a copy the table is complete."""
    ns, insert, mode = table.name, Op.INSERT, place.mode
    now = time.time_ns() // 1000
    messages: list[Message] = []
    size = 0
    last: Sequence[Stored] = place.after

    def batch(completed: Sequence[str] = ()) -> Batch:
        place.after = table.key_of(last)
        if completed:
            place.complete()
        return _told(table, place, messages, completed)

    if stop.is_set():
        return
    try:
        for last, data, key in table.rows(connection, place.after, place.where):  # noqa: B007 - what `batch` tells
            messages.append(Message(ns, data, insert, now, mode, key))
            size += len(data)
            if size >= MOST_BYTES or len(messages) >= MOST_ROWS:
                yield batch()
                messages, size, now = [], 0, time.time_ns() // 1000
                if stop.is_set():
                    return
    except RowError:
        if messages:
            yield batch()
        raise
    if messages or mode is Mode.COPY:
        yield batch((ns,) if mode is Mode.COPY else ())


def _updates(table: Table, place: _Place, rows: Iterator[Row], stop: threading.Event) -> Iterator[Batch]:
    """Rows that changed. The position stays: it moves when all of them are given out."""
    ns, now = table.name, time.time_ns() // 1000
    messages: list[Message] = []
    size = 0
    for _, data, key in rows:
        messages.append(Message(ns, data, Op.UPDATE, now, Mode.SYNC, key))
        size += len(data)
        if size >= MOST_BYTES or len(messages) >= MOST_ROWS:
            yield _told(table, place, messages)
            messages, size = [], 0
            if stop.is_set():
                return
    if messages:
        yield _told(table, place, messages)


def _told(table: Table, place: _Place, messages: Sequence[Message], completed: Sequence[str] = ()) -> Batch:
    """A batch, with the schema if it is another than was told before."""
    schemas = {} if place.told == table.schema else {table.name: table.schema}
    place.told = table.schema
    return Batch(messages, {table.name: place.position}, completed, schemas)


def _check_conditions(
    connection: sqlite3.Connection, accept: Callable[[str], bool], places: Mapping[str, _Place]
) -> None:
    """Before any row is read, which may take long: are all conditions of backfills SQL?"""
    conditions = {ns: place.where for ns, place in places.items() if place.where is not None and accept(ns)}
    for table in tables_of(connection) if conditions else ():
        if table.name in conditions:
            table.check(connection, conditions[table.name])


def _resumed(known: Resume) -> _Place:
    after, mark = _key(known.position), _mark(known.position) or _mark(known.before or {})
    if known.mode is not Mode.COPY:
        return _Place(after, Mode.SYNC, mark=mark)
    return _Place(after, Mode.COPY, known.where, _key(known.before or {}), mark=mark)


def _mark(position: Position) -> Mark | None:
    known = msgspec.convert(position, _Known)
    return Mark(_stored(from_json(known.changed[0])), known.ties) if known.changed else None


def _key(position: Position) -> Sequence[Stored]:
    return [_stored(from_json(value)) for value in msgspec.convert(position, _Known).after]


def _stored(value: Value) -> Stored:
    if value is None or isinstance(value, (int, float, str, bytes)):
        return value
    raise UsageError(f"{value!r} is not the key of a row")


def _version(connection: sqlite3.Connection) -> int:
    """A number that changes when somebody else has committed."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])
