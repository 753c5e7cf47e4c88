"""Where each table stands while the source runs, and what of the stream is news to it.

    copying    its rows are being copied; its changes are passed over for now
    waiting    copied, but changes of it were passed over: the stream has to go back
    followed   its changes are taken from the stream

The slot has to keep everything from the smallest `kept` of all tables on: what the last position that the log was given
of each says it still needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.adaptors.postgres.changes import Change, Shape
from penstock.adaptors.postgres.pgoutput import UNCHANGED, Delete, Insert, Tuple, Update
from penstock.adaptors.postgres.position import Copied, Key, Known
from penstock.base.errors import UsageError
from penstock.log.message import Mode, Op, Position, Resume
from penstock.log.schema import Schema


class State(Enum):
    COPYING = "copying"
    WAITING = "waiting"
    FOLLOWED = "followed"


@dataclass
class Place:
    """One table. `lsn` is the commit from which on its changes are wanted, less the first `done` right there."""

    known: Known
    """System, slot and table, for the positions."""
    state: State = State.COPYING
    copied: Copied = field(default_factory=Copied)
    lsn: int = 0
    done: int = 0
    kept: int = 0
    where: str | None = None
    before: Known | None = None
    missed: bool = False
    told: Schema | None = None
    rows: int = 0
    not_above: Callable[[Key, Key], bool] = lambda one, other: True

    @property
    def position(self) -> Position:
        """What the log is given."""
        if self.state is State.COPYING:
            return self._with(copied=tuple(self.copied.stretches), key=self.known.key)
        self.kept = self.lsn
        matters = self.copied.stretches and self.lsn < self.copied.newest
        return self._with(
            lsn=self.lsn, done=self.done, copied=tuple(self.copied.stretches) if matters else ()
        )

    def _with(self, **fields: object) -> Position:
        known = self.known
        return Known(known.system, known.slot, known.table, **fields).written  # type: ignore[arg-type]

    def complete(self) -> None:
        """The last range is copied."""
        if self.before is not None and self.before.lsn is not None:
            self.copied = Copied(list(self.before.copied))
            self.lsn, self.done = self.before.lsn, self.before.done
        else:
            self.lsn, self.done = self.copied.oldest, 0
        self.kept, self.where, self.before = self.lsn, None, None
        self.state = State.WAITING if self.missed else State.FOLLOWED

    def past(self, lsn: int) -> None:
        """All that commits before `lsn` was seen."""
        if lsn > self.lsn:
            self.lsn, self.done = lsn, 0
        if self.copied.stretches and self.lsn >= self.copied.newest:
            self.copied = Copied()

    def news(self, commit: int, number: int) -> bool:
        """Whether the `number`th change, from 1 on, of the transaction that commits at `commit` is to be looked at."""
        if self.state is not State.FOLLOWED:
            self.missed = True
            return False
        return commit > self.lsn or (commit == self.lsn and number > self.done)

    def change(self, shape: Shape, found: Insert | Update | Delete, commit: int, ts: int) -> Change | None:
        """The change as the log needs it: of a row that is copied already with it, nothing."""
        if isinstance(found, Insert):
            return Change(shape, Op.INSERT, found.new, ts) if self._wants(shape, found.new, commit) else None
        if isinstance(found, Delete):
            wanted = self._wants(shape, found.old, commit)
            return Change(shape, Op.DELETE, found.old, ts, whole=found.whole) if wanted else None
        new = _completed(shape, found)
        old = _moved(shape, new, found)
        wants_new = self._wants(shape, new, commit)
        wants_old = wants_new if old is None else self._wants(shape, old, commit)
        if wants_new and wants_old:
            return Change(shape, Op.UPDATE, new, ts, old)
        # The row went from one stretch of the copy to another: there it is copied, or here it is not yet gone.
        if wants_new:
            return Change(shape, Op.INSERT, new, ts)
        return Change(shape, Op.DELETE, old, ts, whole=found.whole) if wants_old and old is not None else None

    def truncate(self, shape: Shape, commit: int, ts: int) -> Change | None:
        """Empties the table, also of rows that were copied later; so all that comes from now on is news."""
        if self.copied.stretches and commit < self.copied.oldest:
            return None
        self.copied = Copied()
        return Change(shape, Op.COMMAND, (), ts)

    def _wants(self, shape: Shape, row: Tuple, commit: int) -> bool:
        if not self.copied.stretches:
            return True
        return self.copied.wanted(commit, shape.key(row), self.not_above)


def _completed(shape: Shape, update: Update) -> Tuple:
    """The new row, with large values that did not change from the old one as far as that came.

    The stream has the old key also if it did not change but is among the large values.
    """
    if update.old is None:
        return update.new
    come = range(len(update.new)) if update.whole else shape.places
    filled = list(update.new)
    for place in come:
        if filled[place] is UNCHANGED:
            filled[place] = update.old[place]
    return tuple(filled)


def _moved(shape: Shape, new: Tuple, update: Update) -> Tuple | None:
    """The old row if its key was another one."""
    if update.old is None or not shape.places or shape.key(update.old) == shape.key(new):
        return None
    return update.old


def resumed(ns: str, resume: Resume | None, fresh: Known) -> Place:
    """Where a table stands by the word of the log; `fresh` is what the server and the settings say now."""
    if resume is None or (resume.mode is Mode.COPY and not resume.position and resume.where is None):
        return Place(fresh)
    known = Known.of(resume.position, ns)
    if resume.mode is not Mode.COPY:
        _check(ns, known, fresh)
        lsn = known.lsn or 0
        return Place(fresh, State.FOLLOWED, Copied(list(known.copied)), lsn, known.done, kept=lsn)
    before = Known.of(resume.before, ns) if resume.where is not None and resume.before else None
    if before is not None:
        _check(ns, before, fresh)
    # Ranges that were copied without this slot say nothing about what came after, and those of another key do not say
    # which rows they had: begin anew.
    copied = Copied(list(known.copied) if known.copies_as(fresh) else [])
    kept = min(
        [stretch.lsn for stretch in copied.stretches] + ([before.lsn or 0] if before else []), default=0
    )
    return Place(fresh, State.COPYING, copied, kept=kept, where=resume.where, before=before)


def _check(ns: str, known: Known, fresh: Known) -> None:
    """Refuse to follow a table from a position that means nothing here."""
    if known.lsn is None:
        what = "was copied without `tail`, or not to its end, so that nobody knows what changed since"
    elif known.system != fresh.system:
        what = f"was followed at another server (system {known.system}, this is {fresh.system})"
    elif known.slot != fresh.slot:
        what = f"was followed by replication slot '{known.slot}', which is not '{fresh.slot}'"
    elif known.table != fresh.table:
        what = "was dropped and made anew since"
    else:
        return
    raise UsageError(f"namespace '{ns}' {what}", hint=f"copy it anew: `penstock backfill {ns}`")


def wanted_from(places: Mapping[str, Place]) -> dict[str, int]:
    """From where on each table needs the stream, for those that need something that is past."""
    return {ns: place.kept for ns, place in places.items() if place.kept}
