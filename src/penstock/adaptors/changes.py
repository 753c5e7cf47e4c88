"""From messages to changes of tables, and from changes to as few statements as keep their order.

What relational sinks share, free of any of their dialects. `read` makes a `Change` of a message: a row is written
under its key (insert and update alike: *upsert*), deleted, moved from one key to another, or all rows of its table
are (*truncate*). Three ways to apply a sequence of changes; all leave the same rows behind:

    one by one       the definition; `apply` does it to a dict, for tests
    `runs`           in the order of the log: changes that follow each other and differ in their rows alone are one
                     statement. With `distinct`, no key occurs twice in a run, for targets that cannot change one row
                     twice in a statement
    `collapse`       the last state of each key: first truncates, then deletes, then upserts

**When collapsing is safe.** The rows that are left are those of the order of the log if nothing but the last state
matters: no change moves a row (where it was before would matter), and all upserts of a table set the same fields (else
what an earlier one set, and a later one leaves alone, would be lost). A key that is deleted and written again is
in both, so that fields which no message sets begin anew as they do in order. `collapse` answers None if it is not safe
by these rules. What it cannot know the caller must: whether each step on the way is allowed (foreign keys and unique
constraints that cannot be deferred, triggers, cascades), and which keys the target takes for the same (`same`).

A field that a message does not have leaves its column alone. A row that moves takes its other columns along, and the
place of whatever was under the new key; if there is no row under the old key, moving is writing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

import msgspec

from penstock.base.errors import did_you_mean

Key: TypeAlias = "tuple[Hashable, ...]"
"""The values of a row's key, in the order of the key's columns, as the target takes them."""

UNFIT = (ValueError, ArithmeticError, RecursionError)
"""What reading a value may raise: it is wrong, or Python cannot reckon with it, or it is nested too deeply."""

Bind: TypeAlias = "Callable[[str, bytes], Hashable]"
"""Makes what a target takes for a column, by name, of the JSON text of a field. ValueError: it cannot be taken."""

Unknown = Literal["error", "ignore"]
"""What to do with a field for which the table has no column."""

TRUNCATE = "truncate"

_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Kind(Enum):
    """What happens to a row, or to a table."""

    UPSERT = "upsert"
    DELETE = "delete"
    MOVE = "move"
    TRUNCATE = "truncate"


class NotTakenError(ValueError):
    """This message cannot be applied to its table; says why. Becomes a `Refusal`."""


class UnknownFieldError(NotTakenError):
    """A field for which the table has no column."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """One change of one table. `key` is None in a table without one, whose rows can only be added.

    `values` belong to `fields`, name by name, and are there for upsert and move. `old` is the key that a moved row had.
    """

    table: str
    kind: Kind
    offset: int
    key: Key | None = None
    fields: tuple[str, ...] = ()
    values: tuple[Hashable, ...] = ()
    old: Key | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A table as messages see it. `computed` columns cannot be written: fields of their names are passed over."""

    name: str
    columns: frozenset[str]
    key: tuple[str, ...]
    computed: frozenset[str] = frozenset()
    unknown: Unknown = "error"


class Row(msgspec.Struct, frozen=True, gc=False):
    """What a stager is given for a message, as far as it counts here."""

    offset: int
    op: str
    key: str | bytes | None
    old_key: str | bytes | None
    data: str | bytes


def read(target: Target, row: Row, bind: Bind) -> Change | None:
    """The change that a message is; None for one that changes nothing. Raises `NotTakenError`."""
    if row.op in ("insert", "update"):
        return _written(target, row, bind)
    if row.op == "delete":
        if not target.key:
            raise NotTakenError(f"table {target.name} has no primary key: a delete cannot tell which row")
        found = {**_fields(row.key), **_fields(row.data)}
        return Change(target.name, Kind.DELETE, row.offset, _key(target, found, bind))
    if row.op == "command":
        if command_of(row.data) != TRUNCATE:
            raise NotTakenError("a command other than truncate")
        return Change(target.name, Kind.TRUNCATE, row.offset)
    if row.op in ("noop", "skip"):
        return None
    raise NotTakenError(f"the operation '{row.op}' is not known")


def command_of(data: str | bytes) -> str:
    """What a message with the op `command` wants done; empty if it does not say."""
    try:
        return msgspec.json.decode(data, type=dict[str, object]).get("command", "")  # type: ignore[return-value]
    except msgspec.DecodeError:
        return ""


def unknown_field(table: str, name: str, columns: Iterable[str]) -> str:
    """Why a field is refused."""
    return f"table {table} has no column '{name}'{did_you_mean(name, columns)}"


def _written(target: Target, row: Row, bind: Bind) -> Change:
    found = _fields(row.data)
    values: dict[str, Hashable] = {}
    for name, raw in found.items():
        if name in target.columns:
            values[name] = _bound(name, raw, bind)
        elif name not in target.computed and target.unknown == "error":
            raise UnknownFieldError(unknown_field(target.name, name, target.columns))
    fields, bound = tuple(values), tuple(values.values())
    if not target.key:
        if row.op == "update":
            raise NotTakenError(f"table {target.name} has no primary key: an update cannot tell which row")
        return Change(target.name, Kind.UPSERT, row.offset, None, fields, bound)
    key = _key(target, found, bind)
    old = _key(target, _fields(row.old_key), bind) if row.old_key is not None else key
    if old != key:
        _refuse_given_key(target, row, key, bind)
        return Change(target.name, Kind.MOVE, row.offset, key, fields, bound, old)
    return Change(target.name, Kind.UPSERT, row.offset, key, fields, bound)


def _refuse_given_key(target: Target, row: Row, key: Key, bind: Bind) -> None:
    """Where a function has given the row another key, the old one of the source may be that of another row."""
    told = _fields(row.key)
    if told.keys() >= set(target.key) and _key(target, told, bind) != key:
        raise NotTakenError(
            "the key of the row changes at the source, and a function has given it another one: which row of table "
            f"{target.name} it was is not known; a function of DataFrames or of Arrow may give `key` and `old_key` too"
        )


def _key(target: Target, found: Mapping[str, msgspec.Raw], bind: Bind) -> Key:
    values = []
    for name in target.key:
        raw = found.get(name)
        if raw is None:
            raise NotTakenError(f"the field '{name}' is missing, which is of the key of table {target.name}")
        value = _bound(name, raw, bind)
        if value is None:
            raise NotTakenError(f"the field '{name}' is null, which is of the key of table {target.name}")
        values.append(value)
    return tuple(values)


def _bound(name: str, raw: msgspec.Raw, bind: Bind) -> Hashable:
    try:
        return bind(name, bytes(raw))
    except UNFIT as error:
        raise NotTakenError(f"the field '{name}': {error}") from None


def _fields(text: str | bytes | None) -> dict[str, msgspec.Raw]:
    if text is None:
        return {}
    try:
        return _fields_of(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotTakenError(f"not the text of an object: {error}".replace("`", "")) from None


@dataclass(frozen=True, slots=True)
class Run:
    """Changes that follow each other and are one statement: of one table, one kind, and the same fields."""

    table: str
    kind: Kind
    fields: tuple[str, ...]
    changes: Sequence[Change]


def runs(changes: Iterable[Change], *, distinct: bool = False, most: int = 10_000) -> Iterator[Run]:
    """The changes in their order, cut into runs of at most `most`. Moves and truncates stand alone."""
    gathered: list[Change] = []
    keys: set[Key] = set()
    for change in changes:
        if gathered and (
            not _alike(gathered[0], change) or len(gathered) >= most or (distinct and change.key in keys)
        ):
            yield _run(gathered)
            gathered, keys = [], set()
        gathered.append(change)
        if distinct and change.key is not None:
            keys.add(change.key)
    if gathered:
        yield _run(gathered)


def _alike(one: Change, other: Change) -> bool:
    return (
        one.kind is other.kind
        and one.kind in (Kind.UPSERT, Kind.DELETE)
        and one.table == other.table
        and one.fields == other.fields
    )


def _run(changes: Sequence[Change]) -> Run:
    return Run(changes[0].table, changes[0].kind, changes[0].fields, changes)


@dataclass(frozen=True, slots=True)
class Collapsed:
    """The last state: empty these tables, delete these keys, then write these rows, each in the order of the log."""

    truncates: Sequence[str] = ()
    deletes: Mapping[str, Sequence[Change]] = field(default_factory=dict)
    upserts: Mapping[str, Sequence[Change]] = field(default_factory=dict)


def collapse(
    changes: Iterable[Change], *, same: Callable[[Key], Hashable] = lambda key: key
) -> Collapsed | None:
    """The last state of each key, or None if the rows that it leaves may be others than those of the order.

    `same` tells which keys the target takes for one: the keys for which it gives equal values.
    """
    tables: dict[str, _Last] = {}
    for change in changes:
        if not tables.setdefault(change.table, _Last()).take(change, same):
            return None
    return Collapsed(
        [name for name, last in tables.items() if last.truncated],
        {name: list(last.deletes.values()) for name, last in tables.items() if last.deletes},
        {name: last.rows() for name, last in tables.items() if last.upserts or last.added},
    )


class _Last:
    """The last state of one table."""

    def __init__(self) -> None:
        self.truncated = False
        self.deletes: dict[Hashable, Change] = {}
        self.upserts: dict[Hashable, Change] = {}
        self.added: list[Change] = []
        self._fields: frozenset[str] | None = None

    def take(self, change: Change, same: Callable[[Key], Hashable]) -> bool:
        if change.kind is Kind.MOVE:
            return False
        if change.kind is Kind.TRUNCATE:
            self.__init__()  # type: ignore[misc]
            self.truncated = True
            return True
        identity = None if change.key is None else same(change.key)
        if change.kind is Kind.DELETE:
            self.upserts.pop(identity, None)
            self.deletes[identity] = change
            return True
        fields = frozenset(change.fields)
        if self._fields is None:
            self._fields = fields
        if identity is None:
            self.added.append(change)
        else:
            self.upserts.pop(identity, None)
            self.upserts[identity] = change
        return fields == self._fields

    def rows(self) -> list[Change]:
        return sorted([*self.added, *self.upserts.values()], key=lambda change: change.offset)


Rows: TypeAlias = "dict[Hashable, dict[str, object]]"
"""A table as a dict: its rows by key."""


def apply(rows: Rows, change: Change) -> None:
    """What a change does, by definition. For tables with a key."""
    assert change.key is not None or change.kind is Kind.TRUNCATE
    if change.kind is Kind.TRUNCATE:
        rows.clear()
        return
    if change.kind is Kind.DELETE:
        rows.pop(change.key, None)
        return
    row = rows.pop(change.old, None) if change.kind is Kind.MOVE else None
    if row is None:
        row = rows.get(change.key, {})
    rows[change.key] = {**row, **dict(zip(change.fields, change.values, strict=True))}
