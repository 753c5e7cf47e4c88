"""`sqlite`: the tables of a SQLite database, copied row by row, and followed as they grow.

Each table is a namespace. Rows are read in the order of a key that SQLite keeps sorted, and all tables in one
read transaction, so that a copy shows the database as it was at one moment. The position of a table is
`{"after": [key values]}`; to go on is to read the rows with larger keys. Rows that are added with larger keys
are seen, then; updates and deletes of rows that were read are not.

Where a table has no INTEGER PRIMARY KEY and is not WITHOUT ROWID, its key is the rowid, and VACUUM may number
the rows anew: such a table must not be vacuumed between two runs. While a copy runs, a database that is not
in WAL mode lets nobody write.

Values become JSON as they are: integers, finite floats, text, null; a blob is the extended JSON
`{"$binary": "<base64>", "$type": "00"}`. An infinite float, or text that is not UTF-8, is an error by name.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import msgspec

from penstock.adaptors.base import Adaptor, Batch, Source
from penstock.adaptors.sqlite_table import RowError, Table, Value, from_json, tables_of, to_json
from penstock.adaptors.uri import absolute, path_of
from penstock.base.errors import PenstockError, UsageError
from penstock.base.settings import setting
from penstock.log.message import Message, Mode, Op, Position, Resume

MOST_BYTES = 1024 * 1024
MOST_ROWS = 10_000
"""What makes a batch."""

BUSY = 30.0
"""Seconds to wait for a writer that holds the database."""

OLDEST = (3, 37, 0)
"""The first version of SQLite that lists tables by their kind."""


@dataclass(frozen=True)
class Sqlite(Adaptor):
    """A SQLite database file."""

    name: ClassVar[str] = "sqlite"
    description: ClassVar[str] = (
        "SQLite. Source: copies tables and, if asked to, follows them as they grow. It sees rows that are "
        "added with larger keys; updates and deletes of rows that were read it does not see."
    )
    reads: ClassVar[bool] = True

    uri: str = setting("the database; relative to where the command runs", example="sqlite://shop.db")
    tail: bool = setting("go on with rows that are added later", default=False)
    poll_interval: float = setting("seconds between two looks for new rows", default=1.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", absolute(self.uri, "sqlite"))
        if not self.poll_interval > 0:
            raise ValueError(f"setting 'poll_interval': expected more than 0, got {self.poll_interval}")

    def source(self) -> Source:
        return SqliteSource(path_of(self.uri, "sqlite"), self.poll_interval if self.tail else None)


class _Known(msgspec.Struct):
    """A position as the log gives it back."""

    after: list[object] = []


@dataclass(slots=True)
class _Place:
    """How far a table has been read."""

    after: Sequence[Value] = ()
    mode: Mode = Mode.COPY

    @property
    def position(self) -> Position:
        return {"after": [to_json(value) for value in self.after]}


class SqliteSource(Source):
    """Reads one database. `poll` is the time between two looks for new rows; None reads once."""

    def __init__(self, path: Path, poll: float | None) -> None:
        self._path = path
        self._poll = poll

    def namespaces(self) -> Sequence[str]:
        with self._connected() as connection:
            return [table.name for table in tables_of(connection)]

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        places = {ns: _resumed(known) for ns, known in resume.items()}
        with self._connected() as connection:
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
        """Read all that is new, as the database is at one moment."""
        connection.execute("BEGIN")
        for table in tables_of(connection):
            if accept(table.name) and not stop.is_set():
                yield from _batches(table, connection, places.setdefault(table.name, _Place()), stop)
        connection.execute("COMMIT")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection that can only read; errors of SQLite come out with the name of the database."""
        with closing(self._connection()) as connection:
            try:
                yield connection
            except sqlite3.Error as error:
                raise PenstockError(f"cannot read the database {self._path}: {error}") from error

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
    last: Sequence[Value] = place.after

    def batch(completed: Sequence[str] = ()) -> Batch:
        place.after = table.key_of(last)
        return Batch(messages, {ns: place.position}, completed)

    try:
        for last, data, key in table.rows(connection, place.after):  # noqa: B007 - what `batch` tells
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
    place.mode = Mode.SYNC


def _resumed(known: Resume) -> _Place:
    after = [from_json(value) for value in msgspec.convert(known.position, _Known).after]
    return _Place(after, Mode.COPY if known.mode is Mode.COPY else Mode.SYNC)


def _version(connection: sqlite3.Connection) -> int:
    """A number that changes when somebody else has committed."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])
