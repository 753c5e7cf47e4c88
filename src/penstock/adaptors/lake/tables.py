"""The sink for formats that commit one table at a time: each commit brings rows and a marker, both or neither.

A *marker* says what a table has of this sink: everything below a watermark, in a generation of a log. A batch for
several tables is several commits, in the order of their names, and `last` is set on the marker of the last one: where
that is found, the whole batch is there, and it is the sink's position. After a crash in between some tables are *ahead*
of the position. The batch comes again, maybe with other boundaries, and what a table has already is left out for it.

    1. Look at the table's marker: if it is not the one that this run left, another run writes there.
    2. Make the table, or columns that it lacks, where the settings say so. These are commits of their own; a crash
       behind them leaves a table that is empty, or columns that are null.
    3. Commit the rows with the new marker: in 'upsert' a MERGE of the last state of each key, in 'append' an append.

Where one table after the other is committed, readers see the batch table by table. A position without rows to commit
moves nothing: the offset log has it, and everything below was acknowledged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
from penstock.adaptors.lake.events import KIND, OFFSET, ROW, EventStager, Options
from penstock.adaptors.lake.frames import Events, events_of, quoted, quoted_all
from penstock.adaptors.lake.session import Frame, Session, session, working
from penstock.base import faults
from penstock.base.errors import PenstockError, UsageError

Unknown = Literal["error", "ignore"]


class Marker(NamedTuple):
    """What a table has of a sink. `last`: it was the last table of its batch."""

    log: str
    generation: int
    watermark: int
    last: bool

    @property
    def position(self) -> SinkPosition:
        return SinkPosition(self.log, self.generation, self.watermark)


class Table(ABC):
    """One table, which may not be there yet."""

    shown: str
    """Its name for people."""
    sql: str
    """Its name in SQL."""

    @abstractmethod
    def columns(self) -> Mapping[str, str] | None:
        """The types of its columns, in Spark's words; None if there is no such table."""

    @abstractmethod
    def marker(self, sink: str) -> Marker | None:
        """What it has of this sink, as it is now."""

    @abstractmethod
    def create(self, columns: Mapping[str, str]) -> None:
        """Make it, if the first append does not."""

    @abstractmethod
    def add(self, columns: Mapping[str, str]) -> None:
        """Add columns."""

    @abstractmethod
    def append(self, rows: Frame, sink: str, marker: Marker) -> None:
        """Add rows, in one commit with the marker. Fails if another run has committed since `marker` was read."""

    @abstractmethod
    def change(self, statement: str, sink: str, marker: Marker) -> None:
        """Run a MERGE or DELETE, in one commit with the marker."""


class Format(ABC):
    """Where tables are, and how they are read and written."""

    name: str
    where: str
    """The place of the tables, for people."""

    @abstractmethod
    def missing(self, spark: Session) -> Finding | None:
        """What the user's Spark lacks to work with this format."""

    @abstractmethod
    def tables(self, spark: Session) -> Sequence[str]:
        """The namespaces that there are."""

    @abstractmethod
    def table(self, spark: Session, ns: str) -> Table: ...


@dataclass(frozen=True)
class Writing:
    """The settings of such a sink."""

    format: Format
    options: Options = field(default_factory=Options)
    create_tables: bool = True
    add_columns: bool = True
    unknown_fields: Unknown = "error"


class TableSink(Sink):
    """Tables of one place."""

    order = Order.TOTAL
    guarantee = Guarantee.EXACTLY_ONCE
    through_spark = True

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        spark, format = session(), self._writing.format
        with working(spark, f"cannot look at {format.where}"):
            missing = format.missing(spark)
            if missing is None:
                format.tables(spark)
        return [] if missing is None else [missing]

    def stager(self) -> Stager:
        return EventStager(self._writing.options, self.schemas)

    def publisher(self) -> Publisher:
        return TablePublisher(self._writing, self.name)

    def staging(self, scratch: Path) -> Path:
        return scratch


class TablePublisher(Publisher):
    """Commits what was staged, table by table."""

    def __init__(self, writing: Writing, sink: str) -> None:
        self._writing = writing
        self._sink = sink
        self._spark: Session | None = None
        self._at = 0
        self._held: dict[str, Marker | None] = {}

    def open(self, start: SinkPosition) -> SinkPosition:
        self.close()
        spark, format = session(), self._writing.format
        with working(spark, f"cannot open {format.where}"):
            missing = format.missing(spark)
            if missing is not None:
                raise UsageError(missing.what, hint=missing.fix)
            held = {ns: format.table(spark, ns).marker(self._sink) for ns in format.tables(spark)}
        for ns, marker in held.items():
            if marker is not None:
                anew = "move the table away, or give the sink another place"
                continued(marker.position, start, f"table '{ns}' in {format.where}", anew)
        mine = [one for one in held.values() if one is not None and one.generation == start.generation]
        self._at = max([start.watermark, *(marker.watermark for marker in mine if marker.last)])
        self._spark, self._held = spark, held
        return SinkPosition(start.log, start.generation, self._at)

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        spark, format = self._spark, self._writing.format
        if spark is None:
            raise PenstockError(f"{format.where} is not open")
        batch = events_of(parts)
        for number, events in enumerate(batch):
            last = number == len(batch) - 1
            marker = Marker(position.log, position.generation, position.watermark, last)
            with working(spark, f"cannot write table '{events.ns}' in {format.where}"):
                self._commit(spark, events, marker)

    def close(self) -> None:
        self._spark, self._held = None, {}

    def _commit(self, spark: Session, events: Events, marker: Marker) -> None:
        table = self._writing.format.table(spark, events.ns)
        held = table.marker(self._sink)
        if held != self._held.get(events.ns):
            raise RivalError(
                f"table '{events.ns}' in {self._writing.format.where} is not where this run left it: "
                f"it has the messages below {held.watermark if held else 0}",
                hint="another run writes the same target; end one of them",
            )
        ahead = range(0)
        if held is not None and held.generation == marker.generation:
            ahead = range(self._at, held.watermark)
        if events.truncated is not None and events.truncated.offset in ahead:
            events.truncated = None
        made, types = self._grown(table, events)
        rows = events.frame(spark, types, ahead)
        with faults.step(f"{self._writing.format.name} commit"):
            if self._writing.options.mode == "append":
                if rows is not None:
                    table.append(rows.drop(OFFSET, ROW, KIND), self._sink, marker)
            elif rows is None:
                if events.truncated is not None and not made:
                    table.change(f"DELETE FROM {table.sql}", self._sink, marker)
            elif made:
                upserts = events.last(rows).where(f"{KIND} = 'upsert'")
                table.append(upserts.drop(OFFSET, ROW, KIND), self._sink, marker)
            else:
                events.last(rows).createOrReplaceTempView("penstock_batch")
                table.change(merge(table.sql, events, types), self._sink, marker)
        self._held[events.ns] = table.marker(self._sink)

    def _grown(self, table: Table, events: Events) -> tuple[bool, dict[str, str]]:
        """Whether the table is new, and the types of the columns that are written."""
        given, have = events.columns, table.columns()
        if have is None:
            if not self._writing.create_tables:
                raise UsageError(
                    f"there is no table {table.shown}", hint="make it, or set create_tables=True"
                )
            if given:
                table.create(given)
            return True, given
        by_name = {name.lower(): name for name in have}
        new = {name: kind for name, kind in given.items() if name.lower() not in by_name}
        if new and self._writing.add_columns:
            table.add(new)
        elif new and self._writing.unknown_fields == "error":
            raise UsageError(
                unknown_field(table.shown, next(iter(new)), have),
                hint="set add_columns=True, or unknown_fields='ignore'",
            )
        types = {name: have[by_name[name.lower()]] for name in given if name not in new}
        return False, types | (new if self._writing.add_columns else {})


def merge(table: str, events: Events, types: Mapping[str, str]) -> str:
    """The statement that makes the last state of `penstock_batch` that of a table."""
    on = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in events.key)
    sets = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in types if name not in events.key)
    emptied = " WHEN NOT MATCHED BY SOURCE THEN DELETE" if events.truncated is not None else ""
    updates = f"WHEN MATCHED THEN UPDATE SET {sets} " if sets else ""
    return (
        f"MERGE INTO {table} AS t USING penstock_batch AS s ON {on} "
        f"WHEN MATCHED AND s.{KIND} = 'delete' THEN DELETE {updates}"
        f"WHEN NOT MATCHED AND s.{KIND} = 'upsert' THEN INSERT ({quoted_all(types)}) "
        f"VALUES ({', '.join(f's.{quoted(name)}' for name in types)}){emptied}"
    )
