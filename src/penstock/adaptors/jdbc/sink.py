"""The sink of `jdbc`: Spark writes the rows of a batch into staging tables, one transaction does the rest.

    1. For each namespace Spark writes the last state of each key into a table `penstock_stage_…`, in parallel.
    2. Tables and columns that are missing are made, where the settings say so.
    3. One transaction moves the position, a row of the table `penstock_positions`, and then for each namespace deletes
       the rows whose keys are staged and inserts those that are left. It fails if another run has moved the position.
    4. The staging tables are dropped. What a crash left of them is dropped at the next start.

So all tables of a batch change at once, and each message counts once. A row is replaced as a whole: a column for which
the messages have no field gets its default. Constraints that look at each statement, such as foreign keys that cannot
be deferred, may refuse that; for PostgreSQL, MySQL and SQLite there are adaptors that know better.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from penstock.adaptors.base import (
    Finding,
    Guarantee,
    Order,
    Publisher,
    RivalError,
    Sink,
    SinkPosition,
    Staged,
    Stager,
)
from penstock.adaptors.changes import unknown_field
from penstock.adaptors.continuing import continued
from penstock.adaptors.jdbc.connection import Connection, Database
from penstock.adaptors.lake.events import KIND, OFFSET, ROW, EventStager, Options
from penstock.adaptors.lake.frames import Events, events_of
from penstock.adaptors.lake.session import Session, session, telling
from penstock.base import faults
from penstock.base.errors import PenstockError, UsageError

log = logging.getLogger(__name__)

POSITIONS = "penstock_positions"
STAGE = "penstock_stage_"
_TEXTS = ("char", "text", "string", "clob")


@dataclass(frozen=True)
class Writing:
    """The settings of the sink."""

    database: Database
    options: Options = field(default_factory=Options)
    create_tables: bool = True
    add_columns: bool = True
    unknown_fields: Literal["error", "ignore"] = "error"


class JdbcSink(Sink):
    """Tables of one database."""

    order = Order.TOTAL
    guarantee = Guarantee.EXACTLY_ONCE
    through_spark = True

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        spark, database = session(), self._writing.database
        missing = database.missing(spark)
        if missing is not None:
            return [missing]
        with database.connected(spark) as connection:
            lacking = [
                ns for ns in namespaces or () if connection.types(_table(connection, database, ns)) is None
            ]
        if self._writing.create_tables:
            return []
        return [Finding(f"there is no table for namespace '{ns}'", fatal=True) for ns in lacking]

    def stager(self) -> Stager:
        return EventStager(self._writing.options, self.schemas)

    def publisher(self) -> Publisher:
        return JdbcPublisher(self._writing, self.name)

    def staging(self, scratch: Path) -> Path:
        return scratch


class _Staged(NamedTuple):
    """The rows of a namespace in a staging table, and where they go."""

    events: Events
    table: str
    stage: str | None
    columns: Sequence[str]
    casts: Mapping[str, str]


class JdbcPublisher(Publisher):
    """Publishes what was staged in one transaction."""

    def __init__(self, writing: Writing, sink: str) -> None:
        self._writing = writing
        self._database = writing.database
        self._sink = sink
        self._prefix = STAGE + hashlib.sha256(sink.encode()).hexdigest()[:8] + "_"
        self._spark: Session | None = None
        self._at: SinkPosition | None = None

    def open(self, start: SinkPosition) -> SinkPosition:
        self.close()
        spark = session()
        with self._database.connected(spark) as connection:
            at = self._position(connection, start)
            self._clear(connection)
        self._spark, self._at = spark, at
        return at

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        spark, at = self._spark, self._at
        if spark is None or at is None:
            raise PenstockError(f"{self._database.shown} is not open")
        self._at = None  # until it is known to have worked
        with self._database.connected(spark) as connection, telling(f"cannot write {self._database.shown}"):
            with faults.step("jdbc stage"):
                staged = [self._stage(spark, connection, events) for events in events_of(parts)]
            with faults.step("jdbc commit"), connection.transaction():
                self._move(connection, at, position)
                for one in staged:
                    self._apply(connection, one)
            for one in staged:
                if one.stage is not None:
                    connection.execute(f"DROP TABLE {one.stage}")
        self._at = position

    def close(self) -> None:
        self._spark = self._at = None

    def _stage(self, spark: Session, connection: Connection, events: Events) -> _Staged:
        """Steps 1 and 2, for one namespace."""
        table = _table(connection, self._database, events.ns)
        have = connection.types(table)
        known = {} if have is None else {
            one.name: one.dataType.simpleString().upper() for one in self._database.read(spark, table).schema.fields
        }  # fmt: skip
        given = events.columns
        new = [name for name in given if name not in known]
        self._check(events.ns, have, new)
        if have is not None and not self._writing.add_columns:
            given = {name: kind for name, kind in given.items() if name in known}
        types = {name: known.get(name, kind) for name, kind in given.items()}
        rows = events.frame(spark, types, range(0))
        if rows is None:
            return _Staged(events, table, None, (), {})
        if self._writing.options.mode == "upsert":
            rows = events.last(rows)
        stage = connection.quoted(self._prefix + uuid.uuid4().hex[:12])
        self._database.write(rows.drop(OFFSET, ROW), stage)
        written = connection.types(stage) or {}
        if have is None:
            self._create(connection, table, stage, list(types), events.key)
            have = connection.types(table) or {}
        for name in [one for one in types if one not in have]:
            connection.execute(f"ALTER TABLE {table} ADD {connection.quoted(name)} {written[name]}")
        casts = {
            name: have[name] for name in types if name in have and _is_text(written[name]) and not _is_text(have[name])
        }  # fmt: skip
        return _Staged(events, table, stage, list(types), casts)

    def _check(self, ns: str, have: Mapping[str, str] | None, new: Sequence[str]) -> None:
        if have is None and not self._writing.create_tables:
            raise UsageError(
                f"there is no table for namespace '{ns}'", hint="make it, or set create_tables=True"
            )
        if have is None or not new or self._writing.add_columns or self._writing.unknown_fields == "ignore":
            return
        raise UsageError(
            unknown_field(f"'{ns}'", new[0], have), hint="set add_columns=True, or unknown_fields='ignore'"
        )

    def _create(
        self, connection: Connection, table: str, stage: str, columns: Sequence[str], key: Sequence[str]
    ) -> None:
        names = ", ".join(map(connection.quoted, columns))
        connection.execute(f"CREATE TABLE {table} AS SELECT {names} FROM {stage} WHERE 1 = 0")
        if not key:
            return
        try:
            connection.execute(
                f"ALTER TABLE {table} ADD PRIMARY KEY ({', '.join(map(connection.quoted, key))})"
            )
        except Exception as error:
            if type(error).__module__.split(".")[0] != "py4j":
                raise
            log.warning("table %s was made without a primary key, which its database did not take", table)

    def _apply(self, connection: Connection, staged: _Staged) -> None:
        """Step 3, for one namespace."""
        table, stage, key = staged.table, staged.stage, staged.events.key
        if staged.events.truncated is not None:
            connection.execute(f"DELETE FROM {table}")
        if stage is None:
            return
        quoted = connection.quoted
        value = {name: f"s.{quoted(name)}" for name in staged.columns}
        value |= {name: f"CAST(s.{quoted(name)} AS {kind})" for name, kind in staged.casts.items()}
        if key and staged.events.truncated is None:
            same = " AND ".join(f"{value[name]} = {table}.{quoted(name)}" for name in key)
            connection.execute(f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {stage} s WHERE {same})")
        names, values = ", ".join(map(quoted, staged.columns)), ", ".join(value.values())
        wanted = f"FROM {stage} s WHERE s.{quoted(KIND)} = 'upsert'"
        connection.execute(f"INSERT INTO {table} ({names}) SELECT {values} {wanted}")

    def _position(self, connection: Connection, start: SinkPosition) -> SinkPosition:
        if connection.types(self._positions(connection)) is None:
            connection.execute(
                f"CREATE TABLE {self._positions(connection)} (sink VARCHAR(200) NOT NULL PRIMARY KEY, "
                "log VARCHAR(100) NOT NULL, generation BIGINT NOT NULL, watermark BIGINT NOT NULL)"
            )
        with connection.transaction():
            rows = connection.query(
                f"SELECT log, generation, watermark FROM {self._positions(connection)} WHERE sink = ?",
                self._sink,
            )
            if not rows:
                values = (self._sink, start.log, start.generation, start.watermark)
                connection.execute(f"INSERT INTO {self._positions(connection)} VALUES (?, ?, ?, ?)", *values)
                return start
            held = SinkPosition(str(rows[0][0]), int(rows[0][1]), int(rows[0][2]))
            anew = f"DELETE FROM {POSITIONS} WHERE sink = '{self._sink}'"
            at = continued(held, start, f"the target of sink '{self._sink}' in {self._database.shown}", anew)
            if at != held:
                self._move(connection, held, at)
            return at

    def _move(self, connection: Connection, at: SinkPosition, to: SinkPosition) -> None:
        moved = connection.execute(
            f"UPDATE {self._positions(connection)} SET generation = ?, watermark = ? "
            "WHERE sink = ? AND log = ? AND generation = ? AND watermark = ?",
            to.generation, to.watermark, self._sink, at.log, at.generation, at.watermark,
        )  # fmt: skip
        if moved != 1 or to.log != at.log:
            raise RivalError(
                f"the position in {self._database.shown} is not where this run left it, at {at.watermark}",
                hint="another run writes the same target; end one of them",
            )

    def _positions(self, connection: Connection) -> str:
        schema = self._database.schema
        return connection.quoted(*([schema] if schema else []), POSITIONS)

    def _clear(self, connection: Connection) -> None:
        """Drop what a crash of this sink left."""
        for schema, name in connection.tables("", f"{STAGE}%"):
            if name.startswith(self._prefix):
                connection.execute(f"DROP TABLE {connection.quoted(*([schema] if schema else []), name)}")


def _table(connection: Connection, database: Database, ns: str) -> str:
    """The table of a namespace, as SQL names it."""
    parts = ns.split(".")
    return connection.quoted(*([database.schema] if database.schema and len(parts) == 1 else []), *parts)


def _is_text(kind: str) -> bool:
    return any(word in kind.lower() for word in _TEXTS)
