"""What comes out of the stream, a transaction after the other, as batches.

Transactions that have come together go into one batch, a large one into several that say `more`. Every change is held
against the place of its table (`postgres_places`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.adaptors.base import Batch
from penstock.adaptors.postgres import pgoutput as out
from penstock.adaptors.postgres.changes import Change, Changes, Shape
from penstock.adaptors.postgres.connection import Connection
from penstock.adaptors.postgres.places import Place, State
from penstock.adaptors.postgres.position import comparing
from penstock.adaptors.postgres.table import Table
from penstock.base.errors import CorruptError
from penstock.log.schema import Schema

MOST_ROWS = 10_000
MOST_BYTES = 1024 * 1024
"""What makes a batch."""


@dataclass
class Transaction:
    """The one that is being read: how many changes of each table it had so far."""

    final: int
    time: int
    counts: dict[str, int] = field(default_factory=dict)


class Reader:
    """Reads one stream; `handled` is up to where all of it went into batches that were given out."""

    def __init__(
        self,
        places: Mapping[str, Place],
        table: Callable[[str, tuple[str, ...]], Table | None],
        connect: Callable[[], Connection],
        handled: int,
    ) -> None:
        self._places, self._table, self._connect = places, table, connect
        self.handled = handled
        self.start = handled
        """From where on it was asked for."""
        self._relations: dict[int, out.Relation] = {}
        self._shapes: dict[int, Shape] = {}
        self._changes = Changes(connect)
        self._schemas: dict[str, Schema] = {}
        self._touched: set[str] = set()
        self._transaction: Transaction | None = None
        self._open = {place.lsn for place in places.values() if place.state is State.FOLLOWED and place.done}
        """Transactions of which the log has a part from an earlier run."""
        self._begun = False
        """Whether the log has a part of the transaction that is being read."""

    def feed(self, message: out.XLogData | out.Keepalive) -> Sequence[Batch]:
        """Take a message; gives batches when they are full."""
        if isinstance(message, out.Keepalive):
            if self._transaction is None and message.end > self.handled:
                self.handled = message.end
            return ()
        full = self._decoded(out.decode(message.content))
        self._changes.size += len(message.content) if self._changes.gathered else 0
        if len(self._changes) >= MOST_ROWS or self._changes.size >= MOST_BYTES:
            return [*full, *self.flush()]
        return full

    @property
    def inside(self) -> bool:
        """Whether the log has a part of a transaction and not its end: no other batch may come between."""
        return self._begun or bool(self._open)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was read is in batches."""
        return self._transaction is None and not self._changes.gathered and not self._touched

    def rest(self) -> Sequence[Batch]:
        """Whole transactions that are gathered, when there is nothing more to read for now."""
        return self.flush() if self._transaction is None else ()

    def flush(self) -> Sequence[Batch]:
        """All that is gathered."""
        transaction = self._transaction
        if transaction is not None:
            for ns in self._touched & transaction.counts.keys():
                self._places[ns].lsn, self._places[ns].done = transaction.final, transaction.counts[ns]
        if not self._changes.gathered and not self._touched:
            self._begun = self._begun and transaction is not None
            return ()
        messages, packed = self._changes.written()
        # Of a transaction nothing may be logged yet: then it does not have to go on either.
        touched = transaction is not None and bool(self._touched & transaction.counts.keys())
        self._begun = transaction is not None and (touched or self._begun)
        positions = {ns: self._places[ns].position for ns in sorted(self._touched)}
        schemas, self._schemas, self._touched = self._schemas, {}, set()
        return (Batch(messages, positions, schemas=schemas, packed=packed, more=self.inside),)

    def _decoded(self, found: out.Decoded) -> Sequence[Batch]:
        if isinstance(found, out.Insert | out.Update | out.Delete):
            return self._changed(found.relation, found)
        if isinstance(found, out.Begin):
            self._transaction = Transaction(found.final, found.time)
        elif isinstance(found, out.Commit):
            return self._committed(found)
        elif isinstance(found, out.Relation):
            # The server says it once. A table that nobody follows yet may be followed later.
            self._relations[found.oid] = found
            self._shapes.pop(found.oid, None)
        elif isinstance(found, out.Truncate):
            return [batch for relation in found.relations for batch in self._changed(relation, None)]
        return ()

    def _committed(self, commit: out.Commit) -> Sequence[Batch]:
        if self._transaction is None:
            raise CorruptError(
                "a commit without a beginning", where="replication stream", position=commit.lsn
            )
        for ns in self._transaction.counts:
            place = self._places[ns]
            if place.state is State.FOLLOWED:
                place.past(commit.end)
        # A transaction whose first part is logged ends with a batch, if only with its positions.
        ends = self._begun or self._transaction.final in self._open
        if ends:
            counted = self._transaction.counts
            self._touched.update(ns for ns in counted if self._places[ns].state is State.FOLLOWED)
        self._open = {lsn for lsn in self._open if lsn > self._transaction.final}
        self._transaction, self.handled = None, commit.end
        return self.flush() if ends else ()

    def _changed(self, relation: int, found: out.Insert | out.Update | out.Delete | None) -> Sequence[Batch]:
        """A change of a row, or the emptying of a table if there is none."""
        transaction = self._transaction
        if transaction is None:
            raise CorruptError("a change outside a transaction", where="replication stream", position=0)
        shape = self._shape(relation)
        if shape is None:
            return ()
        ns, place = shape.ns, self._places[shape.ns]
        number = transaction.counts[ns] = transaction.counts.get(ns, 0) + 1
        if not place.news(transaction.final, number):
            return ()
        if place.copied.stretches:
            place.not_above = comparing(shape.source.keyed, self._connect)
        if found is None:
            change = place.truncate(shape, transaction.final, transaction.time)
        else:
            change = place.change(shape, found, transaction.final, transaction.time)
        full = self._gathered(change, place, number) if change is not None else ()
        self._touched.add(ns)
        return full

    def _shape(self, relation: int) -> Shape | None:
        """Of a table that has a place."""
        found = self._shapes.get(relation)
        if found is not None:
            return found
        said = self._relations.get(relation)
        if said is None:
            raise CorruptError(f"a change of relation {relation}, which was not described",
                               where="replication stream", position=0)  # fmt: skip
        ns = f"{said.schema}.{said.name}"
        if ns not in self._places:
            return None
        names = tuple(column.name for column in said.columns)
        found = self._shapes[relation] = Shape.of(said, self._table(ns, names), self._connect())
        return found

    def _gathered(self, change: Change, place: Place, number: int) -> Sequence[Batch]:
        ns = change.shape.ns
        full: Sequence[Batch] = ()
        if place.told is not change.shape.schema and place.told != change.shape.schema:
            if ns in self._touched:
                full = self._before(ns, number)
            self._schemas[ns] = change.shape.schema
        place.told = change.shape.schema
        self._changes.add(change)
        return full

    def _before(self, ns: str, number: int) -> Sequence[Batch]:
        """What is gathered up to the change of this number: it was of the table as it was before."""
        transaction = self._transaction
        if transaction is None:
            return self.flush()
        transaction.counts[ns] = number - 1
        full = self.flush()
        transaction.counts[ns] = number
        return full
