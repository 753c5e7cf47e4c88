"""A table as it was at one moment, with the place in the binlog that belongs to it.

A snapshot and its place have to be of the same moment, or changes would be missing or come twice:

    MariaDB    says of a consistent snapshot at which place in the binlog it was taken; nobody is locked out
    MySQL      does not: the table is locked for reading while the snapshot is taken and the place is looked at, for
               some milliseconds once all transactions that wrote to it are through. Nobody can commit to it in between

Tables of other engines than InnoDB know no snapshots: they stay locked for reading as long as their copy takes. In all
cases the table's columns are read when nobody can change them any more, and the transaction can only read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.adaptors.mysql.connection import LONG, Server, Session, quoted
from penstock.adaptors.mysql.place import Place, parse
from penstock.adaptors.mysql.ranges import KeyOrder
from penstock.adaptors.mysql.table import Table, tables_of
from penstock.adaptors.mysql.types import RowWriter, selected, texts_of
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.log.packing import Packed, pack

if TYPE_CHECKING:
    import threading

MOST_BYTES = 1024 * 1024
MOST_ROWS = 10_000
"""What makes a batch."""

RANGE = 50_000
"""Rows that one query reads."""

NOWHERE = Place(None, "", 0)
"""Of a server that keeps no binlog."""

LOCK_PATIENCE = 15
"""Seconds to wait for transactions that hold a table; those behind us wait as long."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a copy, and the key of the last one; None in a table that is not gone through by its key."""

    rows: Packed
    last: str | None


class Snapshot:
    """A table at one moment. Close it."""

    def __init__(self, reader: Session, control: Session, table: Table, place: Place) -> None:
        self.table, self.place = table, place
        self.order = KeyOrder(table)
        self._reader, self._control = reader, control

    def close(self) -> None:
        self._reader.close()
        self._control.close()

    def chunks(self, behind: str | None, where: str | None, stop: threading.Event) -> Iterator[Chunk]:
        """The rows behind a key, or all; in the order of the key if it has one."""
        columns = self.table.structure.columns
        names = ", ".join(selected(column, quoted(column.name)) for column in columns)
        base = _escaped(f"SELECT {names} FROM {quoted(self.table.database, self.table.name)}")
        if not self.order.sorted:
            yield from self._read(base + _where(where), [], stop)
            return
        rest = _escaped(f" ORDER BY {self.order.by} LIMIT {RANGE}")
        while not stop.is_set():
            condition, values = self.order.behind(behind) if behind is not None else ("", [])
            count = 0
            for chunk in self._read(base + _where(where, condition) + rest, values, stop):
                count += len(chunk.rows)
                behind = chunk.last
                yield chunk
            if count < RANGE:
                return

    def _read(
        self, statement: str, values: list[int | str | bytes], stop: threading.Event
    ) -> Iterator[Chunk]:
        import pyarrow as pa

        columns = self.table.structure.columns
        texts, write = texts_of(columns), RowWriter([column.name for column in columns])
        key = self.table.structure.key
        write_key = RowWriter(key)
        places = [[column.name for column in columns].index(name) for name in key]
        data: list[bytes] = []
        keys: list[bytes] = []
        size, now = 0, time.time_ns() // 1000

        def chunk() -> Chunk:
            packed = pack(
                self.table.ns,
                pa.array(data, pa.large_binary()),
                ts=now,
                keys=pa.array(keys, pa.large_binary()) if key else None,
            )
            return Chunk(packed, keys[-1].decode() if self.order.sorted else None)

        for row in self._reader.each(statement, values):
            found = [
                b"null" if value is None else text(value) for text, value in zip(texts, row, strict=True)
            ]
            data.append(write(found))
            if key:
                keys.append(write_key([found[place] for place in places]))
            size += len(data[-1])
            if size >= MOST_BYTES or len(data) >= MOST_ROWS:
                yield chunk()
                data, keys, size, now = [], [], 0, time.time_ns() // 1000
                if stop.is_set():
                    return
        if data:
            yield chunk()


def _where(where: str | None, condition: str = "") -> str:
    # What an operator wrote is on a line of its own, since it may end in a comment.
    terms = [term for term in (condition, f"({_escaped(where)}\n)" if where is not None else "") if term]
    return f" WHERE {' AND '.join(terms)}" if terms else ""


def _escaped(statement: str) -> str:
    """For the driver, which fills in values at percent signs."""
    return statement.replace("%", "%%")


def open_snapshot(server: Server, database: str, name: str, *, binlog: bool) -> Snapshot | None:
    """A snapshot of a table as it is now; None if there is no such table."""
    control = server.connect()
    reader = None
    try:
        reader = server.connect(raw=True, read_timeout=LONG)
        found = tables_of(control, database, name)
        if not found:
            control.close()
            reader.close()
            return None
        locking = not (control.maria and found[0].transactional)
        if locking:
            _lock(control, database, name)
        place = _begin(reader, control, database, name, binlog=binlog, locked=locking)
        (table,) = tables_of(control, database, name)
        if locking and table.transactional:
            control.run("UNLOCK TABLES")
        return Snapshot(reader, control, table, place)
    except BaseException:
        control.close()
        if reader is not None:
            reader.close()
        raise


def _begin(
    reader: Session, control: Session, database: str, name: str, *, binlog: bool, locked: bool
) -> Place:
    reader.run("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    # From here on nobody can change what the table is made of.
    reader.query(f"SELECT 1 FROM {quoted(database, name)} LIMIT 0")
    if not binlog:
        return NOWHERE
    if locked:
        return current_place(control)
    status = {
        str(_text(key)).lower(): _text(value)
        for key, value in reader.query("SHOW STATUS LIKE 'binlog_snapshot%%'")
    }
    file, offset = status.get("binlog_snapshot_file", ""), int(status.get("binlog_snapshot_position") or 0)
    if not file:
        raise PenstockError(f"the server {control.server} does not say where in the binlog a snapshot is")
    return _maria_place(control, file, offset)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _lock(control: Session, database: str, name: str) -> None:
    control.run(f"SET SESSION lock_wait_timeout = {LOCK_PATIENCE}")
    try:
        control.run(f"LOCK TABLES {quoted(database, name)} READ")
    except AwayError as error:
        raise AwayError(
            f"table {database}.{name} cannot be locked for a moment: {error.message}",
            hint="a transaction that wrote to it is still open",
        ) from None
    except UsageError as error:
        raise UsageError(
            error.message, hint=f"GRANT SELECT, LOCK TABLES ON {quoted(database)}.* TO CURRENT_USER"
        ) from None


def current_place(session: Session) -> Place:
    """The end of the binlog now."""
    try:
        status = session.query("SHOW MASTER STATUS")
    except PenstockError as error:
        if "(1064)" not in error.message:
            raise
        status = session.query("SHOW BINARY LOG STATUS")
    if not status:
        raise UsageError(
            f"the server {session.server} keeps no binlog", hint="log_bin = ON in its configuration"
        )
    row = status[0]
    file, offset = str(row[0]), int(row[1])
    if session.maria:
        return _maria_place(session, file, offset)
    if session.variable("gtid_mode") != "ON":
        return Place(None, file, offset)
    return Place(parse(str(row[4]), maria=False), file, offset)


def _maria_place(session: Session, file: str, offset: int) -> Place:
    ((gtids,),) = session.query("SELECT BINLOG_GTID_POS(%s, %s)", [file, offset])
    if gtids is None:
        raise AwayError(f"the server {session.server} has removed {file} of its binlog in the meantime")
    return Place(parse(_text(gtids), maria=True), file, offset)
