"""The PostgreSQL source: copies tables as they are at one moment and follows every change after it.

What it promises:

- All tables of a first copy show one moment, and the stream begins right there: no change is in both, none in neither.
  A copy that is interrupted goes on behind the last range that the log has, at a new moment; a row's changes are then
  taken from the moment at which the row was copied. Only a table without a key is copied from its beginning again.
- The slot is acknowledged up to what the log has of every table, and never beyond.
- If the slot is lost, or was moved, or a table was made anew, the source says so and stops: nothing is passed over.

Without `tail` there is no slot: the tables are copied, each run behind what the log has, and that is all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from penstock.adaptors.base import Batch, Copying, CopyTask, Found, Inspection, Source
from penstock.adaptors.postgres.connection import Server
from penstock.adaptors.postgres.inspect import findings_of
from penstock.adaptors.postgres.monitor import Monitor
from penstock.adaptors.postgres.places import Place, State
from penstock.adaptors.postgres.position import Copied, Known
from penstock.adaptors.postgres.run import Run
from penstock.adaptors.postgres.slot import Names, drop_publication, drop_slot, system_of
from penstock.adaptors.postgres.snapshot import Range, Snapshot
from penstock.adaptors.postgres.table import Table, accepted_of, tables_of
from penstock.log.message import Mode, Resume
from penstock.log.packing import Packed


class PostgresSource(Source):
    """Reads one database."""

    def __init__(self, server: Server, *, tail: bool, slot: str, publication: str) -> None:
        self._server = server
        self._tail, self._slot, self._publication = tail, slot, publication
        self._run: Run | Copies | None = None
        self._monitor: Monitor | None = None

    @property
    def names(self) -> Names:
        """Of the slot and the publication."""
        return Names.of(self.name, self._slot, self._publication)

    def namespaces(self) -> Sequence[str]:
        with self._server.connect() as connection, self._server.telling("cannot read the catalog"):
            return [table.ns for table in tables_of(connection)]

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        with self._server.connect() as connection, self._server.telling("cannot inspect the database"):
            tables = tables_of(connection)
            accepted = [table for table in tables if accept(table.ns)]
            findings = findings_of(connection, accepted, self.names if self._tail else None)
        return Inspection([Found(table.ns, table.rows, tuple(table.key)) for table in tables], findings)

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        if not self._tail:
            copies = self._run = Copies(self._server)
            yield from self._copied(copies, accept, resume, stop)
            return
        run = self._run = Run(self._server, self.names, self.copier, accept, resume, stop)
        monitor = self._monitor = Monitor(self._server, self.names.slot)
        try:
            yield from run.batches()
        finally:
            monitor.close()

    def _copied(
        self,
        copies: Copies,
        accept: Callable[[str], bool],
        resume: Mapping[str, Resume],
        stop: threading.Event,
    ) -> Iterator[Batch]:
        with copies.begun(accept, resume) as tasks:
            for packed in self.copier.run(tasks, stop):
                part = copies.planned.popleft()
                yield copies.batch(part, [one for one in packed if len(one)])

    def logged(self, batch: Batch) -> None:
        run = self._run
        if isinstance(run, Run):
            run.logged(batch)

    def gauges(self) -> Mapping[str, float]:
        monitor = self._monitor
        return monitor.gauges if monitor is not None else {}

    def copying(self) -> Sequence[Copying]:
        run = self._run
        return run.copying() if run is not None else ()

    def release(self) -> Sequence[str]:
        """Drops the slot, and the publication unless the settings name one."""
        names, gone = self.names, []
        with self._server.connect() as connection, self._server.telling("cannot take away what was set up"):
            if drop_slot(connection, names.slot):
                gone.append(f"replication slot {names.slot}")
            if names.own_publication and drop_publication(connection, names.publication):
                gone.append(f"publication {names.publication}")
        return gone


class Copies:
    """A copy of tables that nobody follows: one moment, no slot."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.planned: deque[Range] = deque()
        self._places: dict[str, Place] = {}
        self._tables: Mapping[str, Table] = {}
        self._snapshot: Snapshot | None = None

    def begun(self, accept: Callable[[str], bool], resume: Mapping[str, Resume]) -> Copies:
        with self._server.connect() as connection, self._server.telling("cannot read the catalog"):
            system = system_of(connection)
            tables = accepted_of(connection, accept)
        self._tables = {table.ns: table for table in tables if _is_open(resume.get(table.ns))}
        for ns, table in self._tables.items():
            self._places[ns] = _place(ns, resume.get(ns), Known(system, "", table.oid, key=tuple(table.key)))
        return self

    def __enter__(self) -> Iterator[CopyTask]:
        self._snapshot = Snapshot.plain(self._server)
        try:
            self._snapshot.hold(list(self._tables.values()))
            for ns, place in self._places.items():
                if place.where is not None:
                    self._snapshot.check(self._tables[ns], place.where)
        except BaseException:
            self._snapshot.close()
            raise
        return self._tasks(self._snapshot)

    def __exit__(self, *error: object) -> None:
        if self._snapshot is not None:
            self._snapshot.close()

    def _tasks(self, snapshot: Snapshot) -> Iterator[CopyTask]:
        for ns, table in self._tables.items():
            place = self._places[ns]
            after = place.copied.after if table.key else None
            for part, task in snapshot.ranges(table, after, place.where):
                self.planned.append(part)
                yield task

    def batch(self, part: Range, packed: Sequence[Packed]) -> Batch:
        ns, place = part.table.ns, self._places[part.table.ns]
        place.rows += sum(len(one) for one in packed)
        if part.table.key and not part.last:
            place.copied.extend(part.upto, 0)
        schema = part.table.schema
        schemas = {} if place.told == schema else {ns: schema}
        place.told = schema
        positions = {ns: place.position}
        if part.last:
            place.state = State.WAITING
            positions = {ns: place.before.written if place.before is not None else place.known.written}
        return Batch(
            positions=positions,
            completed=(ns,) if part.last else (),
            schemas=schemas,
            packed=packed,
        )

    def copying(self) -> Sequence[Copying]:
        return [
            Copying(ns, place.rows, self._tables[ns].rows)
            for ns, place in dict(self._places).items()
            if place.state is State.COPYING
        ]


def _is_open(resume: Resume | None) -> bool:
    return resume is None or resume.mode is Mode.COPY


def _place(ns: str, resume: Resume | None, fresh: Known) -> Place:
    if resume is None:
        return Place(fresh)
    known = Known.of(resume.position, ns)
    before = Known.of(resume.before, ns) if resume.before else None
    copied = Copied(list(known.copied) if replace(known, slot="").copies_as(fresh) else [])
    return Place(fresh, copied=copied, where=resume.where, before=before)
