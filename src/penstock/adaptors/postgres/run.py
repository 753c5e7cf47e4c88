"""One run of the source: copies beside the stream, and what the slot is told.

1. The publication gets the tables, the slot is made or checked against what the log says each table still needs.
2. Tables without a complete copy are copied in a round: all at one moment, in a thread of its own.
3. The stream flows from the oldest change that a copied table needs; each table takes what is news to it.
4. A table whose copy ends while its changes were passed over has the stream go back, at most every few seconds.
5. Positions of tables without changes are logged now and then, so that the slot moves on though they do not.
6. `logged` of a batch acknowledges what no table needs by the positions that the log has by then.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from penstock.adaptors.base import Batch, Copier, Copying
from penstock.adaptors.postgres.connection import Connection, Server
from penstock.adaptors.postgres.places import Place, State, resumed, wanted_from
from penstock.adaptors.postgres.position import Known
from penstock.adaptors.postgres.reader import Reader
from penstock.adaptors.postgres.round import Round, Wanted
from penstock.adaptors.postgres.slot import (
    Names,
    Slot,
    check_slot,
    drop_slot,
    end_of_log,
    publish,
    published,
    slot_of,
    system_of,
)
from penstock.adaptors.postgres.snapshot import Range, Snapshot, filenodes, same_files
from penstock.adaptors.postgres.stream import Stream
from penstock.adaptors.postgres.table import Table, accepted_of, oids_of
from penstock.base.errors import AwayError, UsageError
from penstock.log.message import Resume
from penstock.log.packing import Packed

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Between two looks for new tables."""
BACK_SECONDS = 5.0
"""Between two times that the stream goes back for a copied table, while others are still being copied."""
NOTE_SECONDS, NOTE_BYTES = 10.0, 256 * 1024
REST_SECONDS = 60.0
"""How often the positions of idle tables are logged: at so many bytes of the server's log, or at all."""
WAIT_SECONDS = 0.2


class Run:
    """Reads until told to stop. All but `logged` and `copying` belongs to the thread that asks for batches."""

    def __init__(
        self,
        server: Server,
        names: Names,
        copier: Copier,
        accept: Callable[[str], bool],
        resume: Mapping[str, Resume],
        stop: threading.Event,
    ) -> None:
        self._server, self._names, self._copier = server, names, copier
        self._accept, self._resume, self._stop = accept, resume, stop
        self._places: dict[str, Place] = {}
        self._tables: dict[str, Table] = {}
        self._control: Connection | None = None
        self._round: Round | None = None
        self._stream: Stream | None = None
        self._reader: Reader | None = None
        self._left_out: set[str] = set()
        self._went_back = self._noted = self._looked = time.monotonic()
        self._given: deque[tuple[Batch, int]] = deque()
        self._acknowledged = 0

    def logged(self, batch: Batch) -> None:
        """The log has it: what no position needs any more is acknowledged."""
        known = list(self._given)  # at one moment: the thread that reads adds to it meanwhile
        if not any(given is batch for given, _ in known):
            return  # of a run before this one
        given = None
        while given is not batch:
            given, floor = self._given.popleft()
        self._acknowledged = max(self._acknowledged, floor)
        stream = self._stream
        if stream is not None and self._acknowledged:
            stream.acknowledge(self._acknowledged)

    def copying(self) -> Sequence[Copying]:
        places = dict(self._places)
        return [
            Copying(ns, place.rows, self._tables[ns].rows)
            for ns, place in places.items()
            if place.state is State.COPYING and ns in self._tables
        ]

    def batches(self) -> Iterator[Batch]:
        """All of it; ends when told to stop."""
        try:
            with self._server.telling(f"cannot read from {self._server}"):
                self._begin()
                while not self._stop.is_set():
                    for batch in self._step():
                        self._given.append((batch, self._floor()))
                        yield batch
        finally:
            self._end()

    def _begin(self) -> None:
        system = system_of(self._connect())
        self._known = Known(system, self._names.slot)
        self._tables = {table.ns: table for table in self._accepted()}
        for ns, table in self._tables.items():
            self._places[ns] = resumed(ns, self._resume.get(ns), self._fresh(table))
        slot = slot_of(self._connect(), self._names.slot)
        check_slot(slot, self._names.slot, wanted_from(self._places), end_of_log(self._connect()))
        followed = [ns for ns, place in self._places.items() if place.state is State.FOLLOWED]
        publish(self._server, self._connect(), self._names, list(self._tables.values()), followed)
        self._limit_columns()
        self._copy([ns for ns, place in self._places.items() if place.state is State.COPYING], slot)

    def _fresh(self, table: Table) -> Known:
        return Known(self._known.system, self._known.slot, table.oid, key=tuple(table.key))

    def _step(self) -> Iterator[Batch]:
        """Do what is to do, and wait a little if there is nothing."""
        if not self._is_inside:
            yield from self._copied()
            self._go_back()
            yield from self._note()
            self._look()
        if self._stream is None and any(place.state is State.FOLLOWED for place in self._places.values()):
            self._open_stream()
        if self._stream is None or self._reader is None:
            if self._round is None:
                self._stop.wait(WAIT_SECONDS)
            return
        waiting = self._round is None or not self._round.has_some
        for message in self._stream.take(WAIT_SECONDS if waiting else 0):
            yield from self._reader.feed(message)
            if self._stop.is_set():
                return
        yield from self._reader.rest()

    @property
    def _is_inside(self) -> bool:
        """Whether the log has a part of a transaction and not yet its end, also from an earlier run."""
        if self._reader is not None:
            return self._reader.inside
        return any(place.done for place in self._places.values() if place.state is State.FOLLOWED)

    def _copied(self) -> Iterator[Batch]:
        """Ranges that are copied. Without a stream to listen to, this waits for one."""
        if self._round is None:
            return
        found = self._round.take(0 if self._stream is not None else WAIT_SECONDS)
        if found is not None:
            yield self._taken(*found, self._round.snapshot.lsn)
        if self._round.is_done:
            self._round.close()
            self._round = None

    def _taken(self, part: Range, packed: Sequence[Packed], lsn: int) -> Batch:
        """A range as a batch; with the last one the table is complete."""
        ns, place = part.table.ns, self._places[part.table.ns]
        place.rows += sum(map(len, packed))
        if part.table.key or part.last:
            place.copied.extend(part.upto, lsn)
        schema = part.table.schema
        schemas = {} if place.told == schema else {ns: schema}
        place.told = schema
        if part.last:
            place.complete()
            if self._reader is not None and place.lsn < self._reader.start:
                place.state = State.WAITING  # the stream began behind what it needs
        return Batch(
            positions={ns: place.position},
            completed=(ns,) if part.last else (),
            schemas=schemas,
            packed=[one for one in packed if len(one)],
        )

    def _go_back(self) -> None:
        """Read again from where copied tables begin, if changes of them were passed over."""
        waiting = [place for place in self._places.values() if place.state is State.WAITING]
        now = time.monotonic()
        if not waiting or (self._round is not None and now - self._went_back < BACK_SECONDS):
            return
        if self._reader is not None:
            if not self._reader.is_idle:
                return
            self._pass(self._reader.handled)
        self._went_back = now
        for place in waiting:
            place.state, place.missed = State.FOLLOWED, False
        self._close_stream()

    def _pass(self, handled: int) -> None:
        """What the stream has brought so far is behind every table that is followed."""
        for place in self._places.values():
            if place.state is State.FOLLOWED:
                place.past(handled)

    def _note(self) -> Iterator[Batch]:
        """Positions of tables that had no changes for long, for the slot to move on."""
        now = time.monotonic()
        if now - self._noted < NOTE_SECONDS or self._reader is None or not self._reader.is_idle:
            return
        handled = self._reader.handled
        followed = {ns: place for ns, place in self._places.items() if place.state is State.FOLLOWED}
        behind = {ns: place for ns, place in followed.items() if place.kept < handled}
        oldest = min((place.kept for place in behind.values()), default=handled)
        if not behind or (handled - oldest < NOTE_BYTES and now - self._noted < REST_SECONDS):
            return
        self._noted = now
        self._pass(handled)
        yield Batch(positions={ns: place.position for ns, place in sorted(behind.items())})

    def _look(self) -> None:
        """New tables that are accepted are copied, in a round of their own."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS or self._round is not None:
            return
        self._looked = now
        oids = {ns: oid for ns, oid in oids_of(self._connect()).items() if self._accept(ns)}
        for ns, place in self._places.items():
            if oids.get(ns, place.known.table) != place.known.table:
                raise UsageError(
                    f"namespace '{ns}' was dropped and made anew",
                    hint=f"copy it anew: `penstock backfill {ns}`",
                )
        new = [ns for ns in oids if ns not in self._places and ns not in self._left_out]
        if new:
            tables = {table.ns: table for table in self._accepted()}
            self._tables = {**self._tables, **tables}
            self._take_up([tables[ns] for ns in new if ns in tables])

    def _take_up(self, tables: Sequence[Table]) -> None:
        """Follow new tables, as far as they can be published without a person."""
        there: Mapping[str, object] = {}
        if not self._names.own_publication:
            there = published(self._connect(), self._names.publication) or {}
        able = [
            table
            for table in tables
            if (table.can_be_published if self._names.own_publication else table.ns in there)
        ]
        for table in tables:
            if table not in able:
                log.warning("the new table %s is not followed: `penstock plan` tells why", table.ns)
                self._left_out.add(table.ns)
        if not able:
            return
        publish(self._server, self._connect(), self._names, able)
        for table in able:
            self._places[table.ns] = Place(self._fresh(table))
        self._limit_columns()
        self._copy([table.ns for table in able], slot_of(self._connect(), self._names.slot))

    def _copy(self, namespaces: Sequence[str], slot: Slot | None) -> None:
        """Begin a round. The first one of a slot has the moment at which the slot begins."""
        tables = [self._tables[ns] for ns in namespaces]
        if slot is not None and slot.lost and not wanted_from(self._places):
            drop_slot(self._connect(), self._names.slot)
            slot = None
        if not tables:
            return
        files = filenodes(self._connect(), tables)
        snapshot = (
            Snapshot.tied(self._server, self._names.slot, lasting=True)
            if slot is None
            else Snapshot.tied(self._server, f"{self._names.slot[:50]}_{secrets.token_hex(4)}", lasting=False)
        )
        try:
            snapshot.hold(tables)
            same_files(files, filenodes(self._connect(), tables))
            wanted = [self._wanted(table, snapshot) for table in self._held(tables)]
            self._round = Round(self._copier, snapshot, wanted, self._wake)
        except BaseException:
            snapshot.close()
            raise

    def _held(self, tables: Sequence[Table]) -> list[Table]:
        """Tables that cannot change any more, as they are: the moment may have come long after the last look."""
        self._tables = {**self._tables, **{table.ns: table for table in self._accepted()}}
        self._limit_columns()
        held = [self._tables[table.ns] for table in tables]
        if any(now.oid != before.oid for now, before in zip(held, tables, strict=True)):
            raise AwayError("a table was made anew while the moment of its copy was being fixed")
        return held

    def _wanted(self, table: Table, snapshot: Snapshot) -> Wanted:
        place = self._places[table.ns]
        if place.where is not None:
            snapshot.check(table, place.where)
        place.kept = min(place.kept, snapshot.lsn) if place.kept else snapshot.lsn
        return Wanted(table, place.copied.after if table.key else None, place.where)

    def _wake(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.wake()

    def _open_stream(self) -> None:
        start = min(place.lsn for place in self._places.values() if place.state is State.FOLLOWED)
        self._stream = Stream(
            self._server, self._names.slot, [self._names.publication], start, self._acknowledged
        )
        self._reader = Reader(self._places, self._table, self._connect, start)

    def _close_stream(self) -> None:
        stream, self._stream, self._reader = self._stream, None, None
        if stream is not None:
            stream.close()

    def _table(self, ns: str, columns: tuple[str, ...]) -> Table | None:
        """The catalog's view of a table that the stream has with these columns; asked for anew if it has others."""
        known = self._tables.get(ns)
        if known is None or tuple(column.name for column in known.columns) != columns:
            self._tables = {**self._tables, **{table.ns: table for table in self._accepted()}}
            self._limit_columns()
        return self._tables.get(ns)

    def _floor(self) -> int:
        return min((place.kept for place in self._places.values() if place.kept), default=0)

    def _accepted(self) -> list[Table]:
        return accepted_of(self._connect(), self._accept)

    def _limit_columns(self) -> None:
        """A publication may leave out columns; then the copy does."""
        there = published(self._connect(), self._names.publication) or {}
        for ns, columns in there.items():
            if ns in self._tables and columns is not None:
                self._tables[ns] = self._tables[ns].limited(columns)

    def _connect(self) -> Connection:
        if self._control is None:
            self._control = self._server.connect()
        return self._control

    def _end(self) -> None:
        self._close_stream()
        if self._round is not None:
            self._round.close()
        if self._control is not None:
            self._control.close()
