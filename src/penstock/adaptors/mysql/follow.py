"""One namespace that is followed: which changes of its table it takes, and what messages these become.

A namespace may have been copied at several moments: a copy that was interrupted goes on later, with the table as it
is then. Each *stretch* of the key has the place in the binlog at which it was copied, and a change of a row counts
if it is behind the place of the row's stretch. A row that moves from one stretch to another by a change of its key
is taken out of the one, put into the other, or both, as the places have it. Once all places are passed there is one
stretch.

A position, as the log keeps it:

    {"copy": [[KEY, PLACE], …]}              copied so far: up to KEY at PLACE, up to the next KEY at the next PLACE …
    {"at": PLACE}                            followed up to here
      + "stretches": [[KEY, PLACE], …]       the last KEY is null: all the rest
      + "part": [TRANSACTION, n]             and of this transaction the first n messages of the namespace
      + "structure": […]                     the columns, where the binlog does not tell them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.adaptors.mysql.binlog import DELETES, WRITES
from penstock.adaptors.mysql.charsets import Charsets
from penstock.adaptors.mysql.connection import Session
from penstock.adaptors.mysql.place import Place, Transaction, heard
from penstock.adaptors.mysql.ranges import KeyOrder
from penstock.adaptors.mysql.rows import Image, Take, images, take_of
from penstock.adaptors.mysql.stream import Changes
from penstock.adaptors.mysql.table import Table, fits, hidden_columns, logged_structure, may_be_other
from penstock.adaptors.mysql.tablemap import TableMap
from penstock.adaptors.mysql.types import Column, RowWriter, Structure
from penstock.base.errors import UsageError
from penstock.log.message import Message, Mode, Op, Position
from penstock.log.schema import Schema

Stretch = tuple[str | None, Place]
"""Rows up to a key, and the place at which they were copied."""


class Kept(msgspec.Struct):
    """A position as the log gives it back."""

    copy: list[tuple[str | None, dict[str, object]]] = []
    at: dict[str, object] | None = None
    stretches: list[tuple[str | None, dict[str, object]]] = []
    part: tuple[str, int] | None = None
    structure: Structure | None = None


def kept(position: Position) -> Kept:
    return msgspec.convert(position, Kept)


def stretches_of(listed: Sequence[tuple[str | None, dict[str, object]]]) -> list[Stretch]:
    return [(key, heard(place)) for key, place in listed]


def told_stretches(stretches: Sequence[Stretch]) -> list[object]:
    return [[key, place.tell()] for key, place in stretches]


@dataclass(slots=True)
class Shape:
    """How to read row events of one table map."""

    structure: Structure
    takes: list[Take]
    row: RowWriter
    key: RowWriter
    places: list[int]

    def text(self, image: Image) -> bytes:
        """The text of a row; of a row with columns missing, the text of those that are there."""
        if None not in image:
            return self.row(image)  # type: ignore[arg-type]
        there = [(c.name, v) for c, v in zip(self.structure.columns, image, strict=True) if v is not None]
        return RowWriter([name for name, _ in there])([value for _, value in there])

    def key_text(self, image: Image) -> bytes | None:
        if not self.places:
            return None
        return self.key([image[place] or b"null" for place in self.places])


@dataclass
class Followed:
    """A namespace past its copy. `ahead` is set while the stream is before the place that the namespace has reached."""

    ns: str
    ahead: Place | None
    stretches: list[Stretch] = field(default_factory=list)
    part: tuple[str, int] | None = None
    structure: Structure | None = None
    order: KeyOrder | None = None
    """To tell stretches apart; not needed for one."""
    full: bool = True
    """Whether the binlog tells the structure."""
    hint: Structure | None = None
    """The columns that the table had before it was changed: what the binlog does not tell, it may still tell."""
    unsure: bool = False
    """Whether the table was changed, and nobody could look at what it became."""
    told: Schema | None = None
    """The schema that went into the log last."""
    _shapes: dict[int, tuple[TableMap, Shape]] = field(default_factory=dict)

    def position(self, place: Place) -> Position:
        """Where the namespace stands when the stream is at `place`."""
        told: Position = {"at": dict((self.ahead or place).tell())}
        if self.stretches:
            told["stretches"] = told_stretches(self.stretches)
        if self.part is not None:
            told["part"] = list(self.part)
        if self.structure is not None and not (self.full and self.structure.is_told_by_log):
            told["structure"] = msgspec.to_builtins(self.structure)
        return told

    def has(self, transaction: Transaction) -> bool:
        return self.ahead is not None and self.ahead.has(transaction)

    def has_copied(self, transaction: Transaction) -> bool:
        """Whether some of its rows were copied when the transaction was over already."""
        return any(place.has(transaction) for _, place in self.stretches)

    def passed(self, place: Place) -> None:
        """The stream has come to `place`: forget what is behind it."""
        if self.ahead is not None and place.covers(self.ahead):
            self.ahead = None
        if self.stretches and all(place.covers(copied) for _, copied in self.stretches):
            self.stretches = []

    def changed(self) -> None:
        """The table has other columns, maybe."""
        self.hint, self.structure, self.unsure = self.structure or self.hint, None, True
        self._shapes.clear()

    def looked(self, found: Structure | None) -> None:
        """What a look at the changed table gave."""
        self.structure, self.unsure = found, found is None

    def shape(self, table: TableMap, charsets: Charsets) -> Shape | None:
        """How to read rows of this table; None if nobody told its columns."""
        made = self._shapes.get(table.id)
        if made is not None and made[0] == table:
            return made[1]
        known = self.structure or self.hint
        structure = logged_structure(table, charsets, known)
        self.full = structure is not None
        if structure is not None and self.unsure and may_be_other(structure, known, table, charsets):
            return None
        structure = structure or self.structure
        if structure is None:
            return None
        hidden = hidden_columns(table, charsets)
        if not fits(table, structure, hidden):
            raise UsageError(
                f"namespace '{self.ns}': the binlog has other columns than the table had when it was last looked at",
                hint="SET GLOBAL binlog_row_metadata = FULL; then `penstock backfill " + self.ns + "`",
            )
        shape = _shape(structure, table, charsets, hidden)
        if len(self._shapes) > 64:
            self._shapes.clear()
        self._shapes[table.id] = (table, shape)
        self.structure = structure
        return shape

    def messages(
        self, changes: Changes, shape: Shape, at: Transaction, ts: int, session: Session
    ) -> list[Message]:
        """The messages of a row event."""
        rows = list(images(changes.event, changes.head, shape.takes, len(shape.structure.columns)))
        kind = changes.event.type
        if kind in WRITES or kind in DELETES:
            op = Op.INSERT if kind in WRITES else Op.DELETE
            made = [
                Message(self.ns, shape.text(row), op, ts, Mode.SYNC, shape.key_text(row))
                for _, row in rows
                if row
            ]
        else:
            made = [self._update(shape, before, after, ts) for before, after in rows if before and after]
        if op_needs_all(kind) and any(after and None in after for _, after in rows):
            raise UsageError(
                f"namespace '{self.ns}': the binlog has rows with columns missing",
                hint="SET GLOBAL binlog_row_image = FULL; then `penstock backfill " + self.ns + "`",
            )
        return self._by_stretch(made, at, session) if self.stretches else made

    def _update(self, shape: Shape, before: Image, after: Image, ts: int) -> Message:
        key, old = shape.key_text(after), shape.key_text(before)
        return Message(self.ns, shape.text(after), Op.UPDATE, ts, Mode.SYNC, key, old if old != key else None)

    def _by_stretch(self, made: Sequence[Message], at: Transaction, session: Session) -> list[Message]:
        """Those that their stretch does not have yet."""
        keys = [message.key for message in made]
        olds = [message.old_key or message.key for message in made]
        new_places, old_places = self._places(keys, session), self._places(olds, session)
        found = []
        for message, new, old in zip(made, new_places, old_places, strict=True):
            is_in, was_in = new.has(at), old.has(at)
            if is_in and was_in:
                continue
            if is_in:
                found.append(_left(message))
            elif was_in and message.op is Op.UPDATE and message.old_key is not None:
                found.append(
                    Message(message.ns, message.data, Op.INSERT, message.ts, message.mode, message.key)
                )
            else:
                found.append(message)
        return found

    def _places(self, keys: Sequence[bytes | None], session: Session) -> list[Place]:
        """Of each key the place of its stretch."""
        last = self.stretches[-1][1]
        found: list[Place | None] = [None] * len(keys)
        if self.order is None or any(key is None for key in keys):
            return [last] * len(keys)
        for bound, place in self.stretches:
            left = [i for i, known in enumerate(found) if known is None]
            if bound is None or not left:
                break
            inside = self.order.upto(session, [keys[i] or b"" for i in left], bound)
            for i, is_inside in zip(left, inside, strict=True):
                if is_inside:
                    found[i] = place
        return [place or last for place in found]


def op_needs_all(kind: int) -> bool:
    """Whether rows of this event must be whole; a delete may do with the key."""
    return kind not in DELETES


def _left(message: Message) -> Message:
    """A row that has gone to a stretch which was copied with it: all that is left is that it went."""
    assert message.old_key is not None
    return Message(message.ns, message.old_key, Op.DELETE, message.ts, message.mode, message.old_key)


def _shape(structure: Structure, table: TableMap, charsets: Charsets, hidden: int) -> Shape:
    takes = []
    columns = [*structure.columns, *[Column("", "bigint")] * hidden]
    for layout, column in zip(table.columns, columns, strict=True):
        is_text = column.charset is not None and column.type not in ("enum", "set")
        takes.append(take_of(layout, column, charsets.decoder(column.charset or "") if is_text else None))
    names = [column.name for column in structure.columns]
    places = [names.index(name) for name in structure.key]
    return Shape(structure, takes, RowWriter(names), RowWriter(structure.key), places)


def followed(ns: str, told: Kept, table: Table | None) -> Followed:
    """A namespace from where the log knows it to be."""
    if told.at is None or not told.at.get("file"):
        raise UsageError(
            f"the position of namespace '{ns}' is no place in a binlog",
            hint=f"copy it anew with `penstock backfill {ns}`",
        )
    order = KeyOrder(table) if table is not None else None
    return Followed(ns, heard(told.at), stretches_of(told.stretches), told.part, told.structure, order)


def meet(places: Mapping[str, Place]) -> Place:
    """Behind what all are behind."""
    found: Place | None = None
    for place in places.values():
        found = place if found is None else found.meet(place)
    assert found is not None
    return found
