"""Changes of the stream, gathered and written as messages a column at a time.

A `Shape` is a table as the stream describes it at some moment: columns, types, key. Changes are kept as the bytes that
the server printed until a batch is full; then the values of each shape become columns, the columns text, and the texts
messages in the order of the changes.

Large values that an update did not touch do not come with it. They are taken from the old row where the stream has that
(REPLICA IDENTITY FULL), and are asked for by the row's key otherwise. The answer may be newer than the change: then the
change that made it so follows. If the row is gone, its delete follows, and the update is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.adaptors.postgres.connection import Connection, quoted
from penstock.adaptors.postgres.pgoutput import UNCHANGED, Relation, Tuple
from penstock.adaptors.postgres.position import Key
from penstock.adaptors.postgres.table import Column, Table, declared_of, key_tuple, texts_of, types_of
from penstock.adaptors.postgres.types import Type
from penstock.log.message import Message, Mode, Op
from penstock.log.packing import Packed, pack
from penstock.log.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

TRUNCATED = b'{"command":"truncate"}'

LOOKUP_ROWS = 500
"""Rows that are asked for at once."""

PACK_FROM = 200
"""Changes of one table from which on they are laid out without an object for each."""


@dataclass(frozen=True)
class Shape:
    """`places` are those of the key in a row; `source` is the table as the catalog has it now, for look-ups."""

    table: Table
    source: Table
    names: Sequence[str]
    types: Sequence[Type]
    places: Sequence[int]
    schema: Schema

    @classmethod
    def of(cls, relation: Relation, now: Table | None, connection: Connection) -> Shape:
        """What a relation of the stream is. `now` is the catalog's view of it, if it is still there."""
        types = types_of(connection, [column.type for column in relation.columns])
        declared = declared_of(connection, [(column.type, column.modifier) for column in relation.columns])
        names = [column.name for column in relation.columns]
        known = {column.name: column for column in now.columns} if now is not None else {}
        columns = [
            Column(column.name, types[column.type], text, _nullable(known.get(column.name)))
            for column, text in zip(relation.columns, declared, strict=True)
        ]
        key = [column.name for column in relation.columns if column.is_key]
        if relation.identity == "f" or set(key) == set(now.key if now is not None else ()):
            # The catalog knows the order of the key, and which columns it has if the identity is the whole row.
            key = [name for name in now.key if name in names] if now is not None else []
        table = Table(
            relation.schema, relation.name, columns, key, oid=relation.oid, identity=relation.identity
        )
        return cls(table, now or table, names, [types[column.type] for column in relation.columns],
                   [names.index(name) for name in key], table.schema)  # fmt: skip

    @property
    def ns(self) -> str:
        return self.table.ns

    def key(self, row: Tuple) -> Key:
        """Of a row that has all columns of the key."""
        return tuple(_text(row[place]) for place in self.places)


def _nullable(column: Column | None) -> bool:
    return column is None or column.nullable


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else ""


@dataclass(slots=True)
class Change:
    """One change on its way. `row` is the new row; of a delete the old one, which may have its key only."""

    shape: Shape
    op: Op
    row: Tuple
    ts: int
    old: Tuple | None = None
    """The row before, if its key was another one."""
    whole: bool = True
    """Whether `row` has all columns, not only those of the key."""


@dataclass
class Changes:
    """Changes that become one batch. `size` counts the bytes that they came in."""

    connect: Callable[[], Connection]
    gathered: list[Change] = field(default_factory=list)
    size: int = 0

    def __len__(self) -> int:
        return len(self.gathered)

    def add(self, change: Change) -> None:
        self.gathered.append(change)

    def written(self) -> tuple[list[Message], list[Packed]]:
        """The messages, and none is kept."""
        changes, self.gathered, self.size = self._completed(), [], 0
        shapes = {id(change.shape) for change in changes}
        if (
            len(shapes) == 1
            and len(changes) >= PACK_FROM
            and all(change.op is not Op.COMMAND for change in changes)
        ):
            return [], [_packed(changes)]
        return _messages(changes), []

    def _completed(self) -> list[Change]:
        """The changes with all their values."""
        missing: dict[int, list[int]] = {}
        for index, change in enumerate(self.gathered):
            if UNCHANGED in change.row:
                missing.setdefault(id(change.shape), []).append(index)
        if not missing:
            return self.gathered
        found: list[Change | None] = [*self.gathered]
        for indexes in missing.values():
            for start in range(0, len(indexes), LOOKUP_ROWS):
                part = indexes[start : start + LOOKUP_ROWS]
                completed = self._looked_up([self.gathered[place] for place in part])
                for place, one in zip(part, completed, strict=True):
                    found[place] = one
        return [change for change in found if change is not None]

    def _looked_up(self, changes: Sequence[Change]) -> list[Change | None]:
        """Changes of one table, completed from what the table has now; None where the row is gone."""
        shape = changes[0].shape
        rows = _current(self.connect(), shape, [shape.key(change.row) for change in changes])
        return [
            _filled(change, rows[index]) if index in rows else _gone(change)
            for index, change in enumerate(changes)
        ]


def _filled(change: Change, now: Sequence[str | None]) -> Change:
    row = tuple(
        (None if new is None else new.encode()) if old is UNCHANGED else old
        for old, new in zip(change.row, now, strict=True)
    )
    return Change(change.shape, change.op, row, change.ts, change.old)


def _gone(change: Change) -> Change | None:
    """What is left of an update whose row is gone by now: that it had another key before."""
    if change.old is None:
        return None
    return Change(change.shape, Op.DELETE, change.old, change.ts, whole=False)


def _current(connection: Connection, shape: Shape, keys: Sequence[Key]) -> dict[int, Sequence[str | None]]:
    """The rows with these keys as they are now, printed as in the stream, by the index of the key."""
    source = shape.source
    known = {column.name: column for column in source.columns}
    by_name = {column.name: column for column in shape.table.columns}
    keyed = [known.get(name, by_name[name]) for name in shape.table.key]
    columns = ", ".join(
        known[name].output(f"r.{quoted(name)}") if name in known else "NULL" for name in shape.names
    )
    wanted = ", ".join(f"({index}, {key_tuple(keyed, key)})" for index, key in enumerate(keys))
    places = ", ".join(f"k{index}" for index in range(len(keyed)))
    matching = " AND ".join(f"r.{quoted(column.name)} = v.k{index}" for index, column in enumerate(keyed))
    rows = connection.execute(
        f"SELECT v.i, {columns} FROM (VALUES {wanted}) v(i, {places}) JOIN {source.own} r ON {matching}"
    ).fetchall()
    return {int(row[0]): [None if value is None else str(value) for value in row[1:]] for row in rows}


def _messages(changes: Sequence[Change]) -> list[Message]:
    """In the order of the changes, of any tables."""
    texts: list[tuple[bytes, bytes | None, bytes | None]] = [(TRUNCATED, None, None)] * len(changes)
    groups: dict[tuple[int, bool], list[int]] = {}
    for index, change in enumerate(changes):
        if change.op is not Op.COMMAND:
            groups.setdefault((id(change.shape), change.whole), []).append(index)
    for indexes in groups.values():
        written = _texts([changes[index] for index in indexes])
        for index, row in zip(
            indexes, zip(*(column.to_pylist() for column in written), strict=True), strict=True
        ):
            texts[index] = row
    return [
        Message(change.shape.ns, data, change.op, change.ts, Mode.SYNC, key, old)
        for change, (data, key, old) in zip(changes, texts, strict=True)
    ]


def _packed(changes: Sequence[Change]) -> Packed:
    """Changes of one table, deletes of whole rows and of keys among them."""
    import numpy as np
    import pyarrow as pa

    groups: dict[bool, list[int]] = {}
    for index, change in enumerate(changes):
        groups.setdefault(change.whole, []).append(index)
    order = np.concatenate([np.asarray(indexes) for indexes in groups.values()])
    written = [_texts([changes[index] for index in indexes]) for indexes in groups.values()]
    back = pa.array(np.argsort(order))
    data, keys, old = (pa.concat_arrays([part[column] for part in written]).take(back) for column in range(3))
    return pack(
        changes[0].shape.ns, data,
        ts=np.fromiter((change.ts for change in changes), np.int64, len(changes)),
        ops=np.fromiter((change.op for change in changes), np.uint8, len(changes)),
        keys=keys, old_keys=old, mode=Mode.SYNC,
    )  # fmt: skip


def _texts(changes: Sequence[Change]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Data, keys and old keys of changes of one shape, which all have the whole row or all the key only."""
    import pyarrow as pa

    shape, rows = changes[0].shape, [change.row for change in changes]
    keyed = [shape.names[place] for place in shape.places], [shape.types[place] for place in shape.places]
    nothing = pa.nulls(len(rows), pa.large_binary())
    keys = texts_of(*keyed, _columns(rows, shape.places), len(rows)) if shape.places else nothing
    if changes[0].whole:
        data = texts_of(shape.names, shape.types, _columns(rows, range(len(shape.names))), len(rows))
    else:
        data = keys if shape.places else texts_of([], [], [], len(rows))
    olds = [change.old for change in changes]
    if not shape.places or all(old is None for old in olds):
        return data, keys, nothing
    moved = [old for old in olds if old is not None]
    texts = iter(texts_of(*keyed, _columns(moved, shape.places), len(moved)).to_pylist())
    return data, keys, pa.array([None if old is None else next(texts) for old in olds], pa.large_binary())


def _columns(rows: Sequence[Tuple], places: Sequence[int]) -> list[Any]:
    import pyarrow as pa

    return [pa.array([row[place] for row in rows], pa.large_binary()) for place in places]
