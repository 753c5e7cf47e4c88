"""The MySQL source: tables as they were at one moment, then every change of them, from the binlog.

Each table is a namespace, `database.table`. Those that are to be copied are copied one after the other, each at a
moment of its own (`penstock.adaptors.mysql.copy`) and range by range in the order of its key; an interrupted copy
goes on behind the last row that the log has. Tables that are past their copy are followed at the same time
(`penstock.adaptors.mysql.follower`). What belongs together is in `penstock.adaptors.mysql.follow`: which change of
which row is in the copy already.

A table whose key cannot be gone through in order, or that has none, is copied in one go. If that is interrupted, the
namespace is emptied first (`truncate`) and copied from its beginning.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.adaptors.base import Batch, Copying, Inspection, Source
from penstock.adaptors.mysql.connection import Server, Session, quoted
from penstock.adaptors.mysql.copy import Snapshot, open_snapshot
from penstock.adaptors.mysql.follow import Followed, Stretch, followed, kept, stretches_of, told_stretches
from penstock.adaptors.mysql.follower import TRUNCATE, Follower
from penstock.adaptors.mysql.inspect import check_log, check_table, inspect
from penstock.adaptors.mysql.stream import identity_of
from penstock.adaptors.mysql.table import Table, tables_of
from penstock.base.errors import PenstockError, UsageError
from penstock.log.message import Message, Mode, Op, Position, Resume
from penstock.log.schema import Schema

WAIT = 0.2
"""Seconds to wait for the binlog before looking up."""

DUE = 0.5
"""Seconds of copying after which those that are followed have their turn."""


@dataclass
class _Wanted:
    """A namespace that is to be copied: what of it is copied already, and what a backfill wants."""

    ns: str
    done: Sequence[Stretch] = ()
    where: str | None = None
    before: Position | None = None


class MySqlSource(Source):
    """Reads one server, or one database of it."""

    def __init__(self, server: Server, *, tail: bool, server_id: int | None) -> None:
        self._server = server
        self._tail = tail
        self._server_id = server_id
        self._copying: Copying | None = None
        self._follower: Follower | None = None

    def namespaces(self) -> Sequence[str]:
        with self._server.connect() as session:
            return [table.ns for table in tables_of(session, self._server.database)]

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        with self._server.connect() as session:
            return inspect(session, accept, tail=self._tail)

    def copying(self) -> Sequence[Copying]:
        now = self._copying
        return () if now is None else (now,)

    def gauges(self) -> Mapping[str, float]:
        follower = self._follower
        return {} if follower is None else {"behind_seconds": follower.behind}

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        with self._server.connect() as control:
            yield from _Reading(self, control, accept, resume, stop).batches()

    def follower(
        self, control: Session, accept: Callable[[str], bool], found: Callable[[str], None]
    ) -> Follower:
        identity = identity_of(self.name or "penstock", self._server_id)
        if str(identity.server) == control.variable("server_id"):
            raise UsageError(
                f"the server {self._server} has the server id {identity.server} itself",
                hint="set `server_id` to a number that no server and no replica uses",
            )
        self._follower = Follower(self._server, control, identity, accept, found)
        return self._follower

    def progress(self, copying: Copying | None) -> None:
        self._copying = copying

    @property
    def server(self) -> Server:
        return self._server

    @property
    def tail(self) -> bool:
        return self._tail


class _Reading:
    """One call of `read`: what is to be copied, what is followed."""

    def __init__(
        self,
        source: MySqlSource,
        control: Session,
        accept: Callable[[str], bool],
        resume: Mapping[str, Resume],
        stop: threading.Event,
    ) -> None:
        self._source, self._control, self._stop = source, control, stop
        self._chosen = accept
        self._resume = resume
        self._wanted: list[_Wanted] = []
        self._binlog = control.variable("log_bin") == "ON"
        self._follower: Follower | None = None

    def batches(self) -> Iterator[Batch]:
        if self._source.tail:
            check_log(self._control)
            self._follower = self._source.follower(self._control, self._accept, self._want)
        try:
            self._sort_out()
            while not self._stop.is_set():
                if self._follower is not None and self._follower.inside:
                    yield from self._follow(self._follower, WAIT)
                elif self._wanted:
                    yield from self._copy(self._wanted[0])
                    if self._stop.is_set():
                        return
                    del self._wanted[0]
                elif self._follower is None:
                    return
                elif self._follower.followed:
                    yield from self._follow(self._follower, WAIT)
                else:
                    self._stop.wait(WAIT)
                    self._look()
        finally:
            self._source.progress(None)
            if self._follower is not None:
                self._follower.close()

    def _follow(self, follower: Follower, patience: float) -> Iterator[Batch]:
        """What has come; a transaction that is begun is read to its end, before a copy has its turn."""
        yield from follower.poll(patience)
        while follower.inside and not self._stop.is_set():
            yield from follower.poll(WAIT)

    def _accept(self, ns: str) -> bool:
        database = self._source.server.database
        return (not database or ns.startswith(f"{database}.")) and self._chosen(ns)

    def _sort_out(self) -> None:
        """Which tables are to be copied, and which are followed."""
        tables = {table.ns: table for table in self._tables()}
        for ns, known in self._resume.items():
            if self._accept(ns) and known.mode is not Mode.COPY and self._follower is not None:
                told = kept(known.position)
                self._follower.add(followed(ns, told, tables.get(ns)))
        for ns, table in tables.items():
            resumed = self._resume.get(ns)
            if resumed is None:
                self._wanted.append(_Wanted(ns))
            elif resumed.mode is Mode.COPY:
                done = stretches_of(kept(resumed.position).copy)
                self._wanted.append(_Wanted(ns, done, resumed.where, resumed.before))
                if resumed.where is not None:
                    _check_condition(self._control, table, resumed.where)
        for ns, known in self._resume.items():
            if self._accept(ns) and known.mode is Mode.COPY and ns not in tables:
                self._wanted.append(_Wanted(ns, stretches_of(kept(known.position).copy)))

    def _tables(self) -> list[Table]:
        found = [
            table
            for table in tables_of(self._control, self._source.server.database)
            if self._accept(table.ns)
        ]
        for table in found:
            check_table(table, tail=self._source.tail)
        return found

    def _look(self) -> None:
        """Nothing is followed yet, so no binlog tells of new tables."""
        for table in self._tables():
            self._want(table.ns)

    def _want(self, ns: str) -> None:
        if all(one.ns != ns for one in self._wanted):
            self._wanted.append(_Wanted(ns))

    def _copy(self, wanted: _Wanted) -> Iterator[Batch]:
        database, _, name = wanted.ns.partition(".")
        snapshot = open_snapshot(self._source.server, database, name, binlog=self._binlog)
        if snapshot is None:
            if wanted.done:
                yield _emptied(wanted.ns)
            return
        try:
            check_table(snapshot.table, tail=self._source.tail)
            looked = time.monotonic()
            for batch in self._copied(wanted, snapshot):
                yield batch
                follower = self._follower
                if follower is not None and follower.followed and time.monotonic() - looked > DUE:
                    yield from self._follow(follower, 0)
                    looked = time.monotonic()
        finally:
            snapshot.close()

    def _copied(self, wanted: _Wanted, snapshot: Snapshot) -> Iterator[Batch]:
        ns, table = wanted.ns, snapshot.table
        schemas = {ns: table.structure.schema}
        done = list(wanted.done)
        if done and not snapshot.order.sorted:
            done = []
            yield _emptied(ns, schemas)
            schemas = {}
        behind = done[-1][0] if done else None
        rows = 0
        for chunk in snapshot.chunks(behind, wanted.where, self._stop):
            rows += len(chunk.rows)
            self._source.progress(Copying(ns, rows, table.rows))
            position: Position = {"copy": told_stretches([*done, (chunk.last, snapshot.place)])}
            yield Batch(packed=[chunk.rows], positions={ns: position}, schemas=schemas)
            schemas = {}
        self._source.progress(None)
        if not self._stop.is_set():
            one = self._complete(wanted, snapshot, done)
            place = one.ahead or snapshot.place
            yield Batch(positions={ns: one.position(place)}, completed=[ns], schemas=schemas)
            if self._follower is not None:
                self._follower.add(one)

    def _complete(self, wanted: _Wanted, snapshot: Snapshot, done: Sequence[Stretch]) -> Followed:
        """What is followed from now on."""
        table = snapshot.table
        if wanted.where is not None and wanted.before and self._binlog:
            # Some rows are newer than what goes on; the operator wanted them so.
            return followed(wanted.ns, kept(wanted.before), table)
        stretches: list[Stretch] = [*done, (None, snapshot.place)]
        start = snapshot.place
        for _, place in done:
            start = start.meet(place)
        one = Followed(wanted.ns, start, [], None, table.structure, snapshot.order)
        one.full = self._binlog and self._control.variable("binlog_row_metadata") == "FULL"
        if any(place != start for _, place in stretches):
            one.stretches = stretches
        one.told = table.structure.schema
        return one


def _emptied(ns: str, schemas: Mapping[str, Schema] | None = None) -> Batch:
    """Of a copy that does not go on: what was copied is not there any more, or will come again."""
    message = Message(ns, TRUNCATE, Op.COMMAND, time.time_ns() // 1000, Mode.COPY)
    return Batch([message], {ns: {"copy": []}}, schemas=schemas or {})


def _check_condition(session: Session, table: Table, where: str) -> None:
    """Refuse what is no condition: by itself, and in the brackets that the copy puts it in.

    Only what stands both ways is one expression; anything else could reach the terms around it.
    """
    name = quoted(table.database, table.name)
    for form in (f"WHERE {where}", f"WHERE 1 = 1 AND ({where}\n)"):
        try:
            session.query(f"EXPLAIN SELECT 1 FROM {name} {form}")
        except PenstockError as error:
            raise UsageError(
                f"the condition of the backfill of '{table.ns}' is not one: {where!r}: {error.message}",
                hint="give what stands behind WHERE in SQL, such as \"total > 100 AND day >= '2026-01-01'\"",
            ) from None
