"""The source for formats whose tables have versions: a copy of one version, then what each later one changes.

    {"version": 7, "group": 3, "rows": 1000}    a copy of version 7: three groups of files, and 1000 rows of the next
    {"version": 7}                              all of version 7 is logged
    {"version": 7, "rows": 1000}                and the first 1000 changes of the version behind it

A copy reads the files of its version in groups, whose order depends on nothing but the version; in a group rows come in
the order of the files. So a copy goes on exactly where it was, as long as the files of its version are kept. The
changes of one version are one transaction, sorted so that they are the same each time; deletes come first. Where a
version changed the key of a row, that is a delete and an insert.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.adaptors.base import Batch, Copying, Finding, Found, Inspection, Source, refuse_conditions
from penstock.adaptors.lake.chunks import chunks, log_schema
from penstock.adaptors.lake.session import Frame, Session, session, working
from penstock.adaptors.lake.tables import Format
from penstock.base.errors import CorruptError, UsageError
from penstock.log.message import Mode, Position, Resume
from penstock.log.schema import Schema


class Known(msgspec.Struct, omit_defaults=True):
    """A position as the log gives it back."""

    version: int = -1
    group: int | None = None
    rows: int = 0

    @property
    def written(self) -> Position:
        found: Position = msgspec.to_builtins(self)
        return found


@dataclass
class _Place:
    """How far a table is read. `told` is the schema that went before, `done` counts the rows of this start."""

    known: Known = field(default_factory=Known)
    mode: Mode = Mode.COPY
    told: Schema | None = None
    done: int = 0


class Reader(ABC):
    """How tables of a format are read."""

    format: Format

    @abstractmethod
    def newest(self, spark: Session, ns: str) -> int:
        """The newest version; -1 if there is none yet."""

    @abstractmethod
    def key(self, spark: Session, ns: str) -> Sequence[str]:
        """The key, if the table says."""

    @abstractmethod
    def rows(self, spark: Session, ns: str) -> int | None:
        """About how many rows the table has."""

    @abstractmethod
    def groups(self, spark: Session, ns: str, version: int) -> Sequence[Callable[[], Frame]]:
        """What gives the rows of each group of files of a version, some 8 MiB each where files allow it."""

    @abstractmethod
    def behind(self, spark: Session, ns: str, version: int) -> Sequence[int]:
        """The versions behind this one, in their order. `UsageError` if they are not kept any more."""

    @abstractmethod
    def changes(self, spark: Session, ns: str, before: int, version: int, key: Sequence[str]) -> Frame | None:
        """What a version changed, with the column `chunks.OP`, always in the same order; None if nothing.

        `UsageError`, with the statement that mends it, if the table does not keep what is needed to tell.
        """

    def hindrance(self, spark: Session, ns: str) -> Finding | None:
        """What keeps the changes of a table from being followed."""
        return None


class TableSource(Source):
    """Reads the tables of one place. `poll` is the time between two looks for new versions; None reads once."""

    def __init__(self, reader: Reader, keys: Mapping[str, Sequence[str]], poll: float | None) -> None:
        self._reader = reader
        self._keys = keys
        self._poll = poll
        self._copying: dict[str, Copying] = {}

    def namespaces(self) -> Sequence[str]:
        spark = self._ready()
        with working(spark, f"cannot look at {self._reader.format.where}"):
            return self._reader.format.tables(spark)

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        spark, reader = session(), self._reader
        findings: list[Finding] = []
        with working(spark, f"cannot look at {reader.format.where}"):
            missing = reader.format.missing(spark)
            if missing is not None:
                return Inspection([], [missing])
            found = [
                Found(ns, reader.rows(spark, ns), self._key(spark, ns)) for ns in reader.format.tables(spark)
            ]
            if self._poll is not None:
                hindrances = [reader.hindrance(spark, one.ns) for one in found if accept(one.ns)]
                findings = [one for one in hindrances if one is not None]
        return Inspection(found, findings)

    def copying(self) -> Sequence[Copying]:
        return list(self._copying.values())

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        refuse_conditions(self._reader.format.name, accept, resume)
        places = {ns: _resumed(ns, known) for ns, known in resume.items()}
        spark = self._ready()
        with working(spark, f"cannot read {self._reader.format.where}"):
            while not stop.is_set():
                for ns in self._reader.format.tables(spark):
                    if accept(ns):
                        places.setdefault(ns, _Place())
                yield from self._look(spark, {ns: one for ns, one in places.items() if accept(ns)}, stop)
                if self._poll is None or stop.wait(self._poll):
                    return

    def _ready(self) -> Session:
        spark, format = session(), self._reader.format
        with working(spark, f"cannot look at {format.where}"):
            missing = format.missing(spark)
        if missing is not None:
            raise UsageError(missing.what, hint=missing.fix)
        return spark

    def _look(self, spark: Session, places: Mapping[str, _Place], stop: threading.Event) -> Iterator[Batch]:
        """All that is new. A transaction that is begun goes first, then tables that are followed, then copies."""
        yield from self._follow(spark, places, stop)
        for ns, place in places.items():
            if place.mode is not Mode.COPY:
                continue
            for batch, ends_group in self._copy(spark, ns, place, stop):
                yield batch
                if ends_group and not batch.completed:
                    yield from self._follow(spark, places, stop)
            self._copying.pop(ns, None)

    def _follow(self, spark: Session, places: Mapping[str, _Place], stop: threading.Event) -> Iterator[Batch]:
        followed = [(ns, place) for ns, place in places.items() if place.mode is not Mode.COPY]
        for ns, place in sorted(followed, key=lambda one: not one[1].known.rows):
            if self._poll is None and not place.known.rows:
                continue
            for version in self._reader.behind(spark, ns, place.known.version):
                if stop.is_set():
                    return
                yield from self._changes(spark, ns, place, version, stop)
                if self._poll is None:
                    break

    def _copy(
        self, spark: Session, ns: str, place: _Place, stop: threading.Event
    ) -> Iterator[tuple[Batch, bool]]:
        """The rows of the copy's version behind `place`; whether a batch is the last one of its group."""
        if place.known.version < 0:
            place.known = Known(self._reader.newest(spark, ns), 0)
        key = self._key(spark, ns)
        groups = self._reader.groups(spark, ns, place.known.version)
        of = self._reader.rows(spark, ns)
        for number in range(place.known.group or 0, len(groups)):
            frame = groups[number]()
            schema = log_schema(frame, key)
            for packed in chunks(frame, ns, schema, Mode.COPY, place.known.rows):
                if stop.is_set():
                    return
                place.known = Known(place.known.version, number, place.known.rows + len(packed))
                place.done += len(packed)
                self._copying[ns] = Copying(ns, place.done, of)
                yield self._told(ns, place, schema, Batch(packed=[packed])), False
            if stop.is_set():
                return
            place.known = Known(place.known.version, number + 1)
            if number + 1 < len(groups):
                yield Batch(positions={ns: place.known.written}), True
        place.known, place.mode = Known(place.known.version), Mode.SYNC
        yield Batch(positions={ns: place.known.written}, completed=[ns]), True

    def _changes(
        self, spark: Session, ns: str, place: _Place, version: int, stop: threading.Event
    ) -> Iterator[Batch]:
        """One version, as one transaction; a batch is held back until it is known whether it is the last one."""
        key = self._key(spark, ns)
        frame = self._reader.changes(spark, ns, place.known.version, version, key)
        held: Batch | None = None
        if frame is not None:
            schema = log_schema(frame, key)
            before = place.known.version
            for packed in chunks(frame, ns, schema, Mode.SYNC, place.known.rows):
                if held is not None:
                    yield held
                if stop.is_set():
                    return
                place.known = Known(before, None, place.known.rows + len(packed))
                held = self._told(ns, place, schema, Batch(packed=[packed], more=True))
        place.known = Known(version)
        last = Batch(positions={ns: place.known.written})
        yield last if held is None else _ended(held, last)

    def _told(self, ns: str, place: _Place, schema: Schema, batch: Batch) -> Batch:
        """With the position behind it, and the schema if it is another than was told before."""
        schemas = {} if place.told == schema else {ns: schema}
        place.told = schema
        return Batch(
            packed=batch.packed, positions={ns: place.known.written}, schemas=schemas, more=batch.more
        )

    def _key(self, spark: Session, ns: str) -> tuple[str, ...]:
        return tuple(self._keys[ns] if ns in self._keys else self._reader.key(spark, ns))


def _ended(held: Batch, last: Batch) -> Batch:
    """The last batch of a transaction, with the position behind all of it."""
    return Batch(packed=held.packed, positions=last.positions, schemas=held.schemas)


def _resumed(ns: str, resume: Resume) -> _Place:
    try:
        known = msgspec.convert(resume.position, Known)
    except msgspec.ValidationError as error:
        raise CorruptError(
            f"no position of a table: {error}", where=f"position of {ns}", position=0
        ) from None
    return _Place(known, Mode.COPY if resume.mode is Mode.COPY else Mode.SYNC)
