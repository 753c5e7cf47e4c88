"""The source of `jdbc`: tables copied by ranges of their keys, each range read by Spark in one query.

    {"next": 5000, "last": 90000}     of a copy: rows whose key's first column lies below 5000 are logged, up to 90000
    {"done": true}                    the copy is complete

A range is one of values of the first column of the key, which must be a whole number; how wide it is follows from how
many rows there are, and how large they were so far. All its rows are logged in one append, so a copy goes on exactly
where it was. Each range is read at a moment of its own: what changes meanwhile may be in the copy or not. A table
without such a column is one range: its copy begins anew if it is interrupted. What comes behind the copy is not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.adaptors.base import Batch, Copying, Finding, Found, Inspection, Source, refuse_conditions
from penstock.adaptors.jdbc.connection import Connection, Database
from penstock.adaptors.jdbc.sink import POSITIONS, STAGE
from penstock.adaptors.lake.chunks import chunks, log_schema
from penstock.adaptors.lake.session import Session, session, telling
from penstock.base.errors import CorruptError
from penstock.log.message import Mode, Position, Resume
from penstock.log.packing import Packed

RANGE = 8 << 20
FEW = 100
"""Rows of a first range, before it is known how large they are."""

_SYSTEM = frozenset({"information_schema", "pg_catalog", "pg_toast", "mysql", "sys", "performance_schema"})
_WHOLE = ("tinyint", "smallint", "int", "bigint")


class Known(msgspec.Struct, omit_defaults=True):
    """A position as the log gives it back."""

    next: int | None = None
    last: int | None = None
    done: bool = False

    @property
    def written(self) -> Position:
        found: Position = msgspec.to_builtins(self)
        return found


@dataclass(frozen=True)
class _Table:
    """A table: its name in SQL, its key, and the column by which it is cut, if there is one."""

    ns: str
    sql: str
    key: tuple[str, ...]
    cut: str | None


class JdbcSource(Source):
    """Reads the tables of one database."""

    def __init__(self, database: Database, keys: Mapping[str, Sequence[str]], range_rows: int) -> None:
        self._database = database
        self._keys = keys
        self._range_rows = range_rows
        self._copying: dict[str, Copying] = {}

    def namespaces(self) -> Sequence[str]:
        with self._database.connected(session()) as connection:
            return [ns for ns, *_ in self._names(connection)]

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        spark = session()
        missing = self._database.missing(spark)
        if missing is not None:
            return Inspection([], [missing])
        found, findings = [], []
        with self._database.connected(spark) as connection:
            for ns, schema, name in self._names(connection):
                key = self._key(connection, ns, schema, name)
                found.append(Found(ns, None, key))
                table = self._table(spark, connection, ns, schema, name) if accept(ns) else None
                if table is not None and table.cut is None:
                    what = f"{ns} has no key that begins with a whole number"
                    findings.append(Finding(f"{what}: its copy begins anew if it is interrupted"))
        return Inspection(found, findings)

    def copying(self) -> Sequence[Copying]:
        return list(self._copying.values())

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        refuse_conditions("jdbc", accept, resume)
        spark = session()
        with self._database.connected(spark) as connection, telling(f"cannot read {self._database.shown}"):
            for ns, schema, name in self._names(connection):
                known = _known(ns, resume[ns]) if ns in resume else Known()
                if not accept(ns) or known.done or (ns in resume and resume[ns].mode is not Mode.COPY):
                    continue
                table = self._table(spark, connection, ns, schema, name)
                yield from self._copy(spark, connection, table, known, stop)
                self._copying.pop(ns, None)
                if stop.is_set():
                    return

    def _copy(
        self, spark: Session, connection: Connection, table: _Table, known: Known, stop: threading.Event
    ) -> Iterator[Batch]:
        rows = int(connection.query(f"SELECT count(*) FROM {table.sql}")[0][0])
        schema = log_schema(self._database.read(spark, table.sql), table.key)
        schemas, done, width = {table.ns: schema}, 0, _Width(self._range_rows)
        for where, at in self._ranges(connection, table, known, rows, width):
            frame = self._database.read(spark, table.sql, [where] if where else [])
            packed: list[Packed] = []
            for chunk in chunks(frame, table.ns, schema, Mode.COPY):
                if stop.is_set():
                    return
                packed.append(chunk)
                done += len(chunk)
                self._copying[table.ns] = Copying(table.ns, done, rows)
                if not where:
                    yield Batch(packed=packed, positions={table.ns: at.written}, schemas=schemas)
                    packed, schemas = [], {}
            if stop.is_set():
                return
            width.learn(sum(len(one.content) for one in packed))
            if packed:
                yield Batch(packed=packed, positions={table.ns: at.written}, schemas=schemas)
                schemas = {}
        yield Batch(positions={table.ns: Known(done=True).written}, completed=[table.ns], schemas=schemas)

    def _ranges(
        self, connection: Connection, table: _Table, known: Known, rows: int, width: _Width
    ) -> Iterator[tuple[str, Known]]:
        """A condition for each range, empty for all rows; and where the copy stands behind it."""
        if table.cut is None:
            yield "", known
            return
        column = connection.quoted(table.cut)
        low, high = connection.query(f"SELECT min({column}), max({column}) FROM {table.sql}")[0]
        if low is None:
            return
        each = max(1, (int(high) - int(low) + 1) // max(rows, 1))
        at, last = int(low), int(high)
        if known.next is not None:
            at, last = known.next, known.last if known.last is not None else last
        while at <= last:
            end = min(at + each * width.rows, last + 1)
            yield f"{column} >= {at} AND {column} < {end}", Known(end, last)
            at = end

    def _names(self, connection: Connection) -> list[tuple[str, str, str]]:
        """Namespace, schema and name of each table that is not the database's, or ours."""
        found = []
        for schema, name in connection.tables(self._database.schema):
            if schema.lower() in _SYSTEM or name == POSITIONS or name.startswith(STAGE):
                continue
            ns = name if self._database.schema or not schema else f"{schema}.{name}"
            found.append((ns, schema, name))
        return sorted(found)

    def _key(self, connection: Connection, ns: str, schema: str, name: str) -> tuple[str, ...]:
        return tuple(self._keys[ns]) if ns in self._keys else connection.key(schema, name)

    def _table(self, spark: Session, connection: Connection, ns: str, schema: str, name: str) -> _Table:
        sql = connection.quoted(*([schema] if schema else []), name)
        key = self._key(connection, ns, schema, name)
        kinds = {
            one.name: one.dataType.simpleString() for one in self._database.read(spark, sql).schema.fields
        }
        cut = key[0] if key and kinds.get(key[0]) in _WHOLE else None
        return _Table(ns, sql, key, cut)


class _Width:
    """How many rows a range is cut for: few at first, then as many as make about `RANGE` bytes, up to `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows = min(FEW, most)

    def learn(self, size: int) -> None:
        """The last range had so many bytes."""
        self.rows = max(1, min(self._most, 4 * self.rows, self.rows * RANGE // max(size, 1)))


def _known(ns: str, resume: Resume) -> Known:
    try:
        return msgspec.convert(resume.position, Known)
    except msgspec.ValidationError as error:
        raise CorruptError(
            f"no position of a table: {error}", where=f"position of {ns}", position=0
        ) from None
