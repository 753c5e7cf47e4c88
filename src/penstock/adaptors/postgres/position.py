"""Where the source stands in one table: what was copied under which snapshot, and from where in the log it is followed.

    {"copied": [{"upto": ["500"], "lsn": 10}, {"upto": ["900"], "lsn": 25}]}            a copy under way
    {"lsn": 10, "copied": [{"upto": ["500"], "lsn": 10}, {"upto": null, "lsn": 25}]}    followed since
    {"lsn": 31}                                                                         followed, past all that
    {"lsn": 44, "done": 3}                                                              inside a transaction

with the server's `system`, the `slot` and the number of the `table` beside, and the columns of the `key` as long as it
is copied: by another key nobody could go on. A *stretch* is a part of the table in the order of its key, up to and with
`upto`, and the `lsn` of the snapshot it was copied under: exactly the transactions whose commit stands below are in it.
A copy that was interrupted goes on under a new snapshot, hence several. A change is taken over if it is behind the
snapshot of its row's stretch; `lsn` is the commit from which on any change is wanted at all, and of the transaction
that stands right there the first `done` changes are logged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.adaptors.postgres.connection import Connection
from penstock.adaptors.postgres.table import Column, key_tuple
from penstock.base.errors import CorruptError
from penstock.log.message import Position

Key = tuple[str, ...]
"""Values of the key's columns, as the server prints them."""


class Stretch(msgspec.Struct, frozen=True):
    """The rows up to the key `upto`, all that are left if None, as they were at `lsn`."""

    upto: Key | None
    lsn: int


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
    """A position as it stands in the log."""

    system: str = ""
    slot: str = ""
    table: int = 0
    lsn: int | None = None
    done: int = 0
    copied: tuple[Stretch, ...] = ()
    key: tuple[str, ...] = ()

    @classmethod
    def of(cls, position: Position, ns: str) -> Known:
        try:
            return msgspec.convert(position, cls)
        except msgspec.ValidationError as error:
            raise CorruptError(
                f"no position of a table: {error}", where=f"position of {ns}", position=0
            ) from None

    def copies_as(self, fresh: Known) -> bool:
        """Whether a copy that stands here goes on at a table as it is now: the same one, in the same order."""
        same = (self.system, self.slot, self.table) == (fresh.system, fresh.slot, fresh.table)
        return same and (not self.key or self.key == fresh.key)

    @property
    def written(self) -> Position:
        found: Position = msgspec.to_builtins(self)
        return found


@dataclass(slots=True)
class Copied:
    """The stretches of one table, while they are made and as long as they matter."""

    stretches: list[Stretch] = field(default_factory=list)

    @property
    def after(self) -> Key | None:
        """The key that the copy has reached."""
        return self.stretches[-1].upto if self.stretches else None

    @property
    def oldest(self) -> int:
        return min(stretch.lsn for stretch in self.stretches)

    @property
    def newest(self) -> int:
        return max(stretch.lsn for stretch in self.stretches)

    def extend(self, upto: Key | None, lsn: int) -> None:
        """A further range is copied."""
        if self.stretches and self.stretches[-1].lsn == lsn:
            self.stretches.pop()
        self.stretches.append(Stretch(upto, lsn))

    def wanted(self, commit: int, key: Key, not_above: Callable[[Key, Key], bool]) -> bool:
        """Whether a change of the row with this key is news; `not_above` compares as the table's index does."""
        if not self.stretches or commit >= self.newest:
            return True
        if commit < self.oldest:
            return False
        for stretch in self.stretches:
            if stretch.upto is None or not_above(key, stretch.upto):
                return commit >= stretch.lsn
        return True


def comparing(columns: Sequence[Column], connect: Callable[[], Connection]) -> Callable[[Key, Key], bool]:
    """Compares keys as the server does: integers here, anything else there."""
    if all(column.type.base in ("int2", "int4", "int8") and not column.type.array for column in columns):
        return lambda one, other: [int(part) for part in one] <= [int(part) for part in other]

    def asked(one: Key, other: Key) -> bool:
        statement = f"SELECT ({key_tuple(columns, one)}) <= ({key_tuple(columns, other)})"
        found = connect().execute(statement).fetchone()
        return bool(found and found[0])

    return asked
