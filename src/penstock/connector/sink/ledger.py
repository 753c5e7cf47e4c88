"""What a sink knows of one worker's transactions, and the rules by which it votes. Pure.

    committed    the bytes below it are decided; consumers may read them
    unresolved   transactions that were voted on and of which no decision was heard; one at most is ever let in
    forced       why the next vote must be to abort: bytes were lost on the way

The ledger is what the records of the transaction log (`txnlog.py`) add up to. It asks nobody and writes nothing: each
rule says what should happen, `keeper.py` does it in the order in which that is safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec

from penstock.base.errors import PenstockError
from penstock.connector.frames import NOTHING_SEEN
from penstock.connector.inner import DATA_STREAM, Phase1

MOST_ID: Final = 1024
"""Bytes that the id of a transaction may have."""
REMEMBERED: Final = 64
"""Decisions that are kept for people to look at."""


class Voted(msgspec.Struct, frozen=True, tag="voted"):
    """A vote on the bytes [start, end). `time` is in microseconds since 1970, as everywhere in these records."""

    transaction: str
    start: int
    end: int
    commit: bool
    reason: str = ""
    time: int = 0


class Decided(msgspec.Struct, frozen=True, tag="decided"):
    """The coordinator's decision was carried out; `committed` is what holds since."""

    transaction: str
    commit: bool
    committed: int
    time: int = 0


class Forced(msgspec.Struct, frozen=True, tag="forced"):
    """Bytes are missing: the next vote is to abort."""

    reason: str
    time: int = 0


class Left(msgspec.Struct, frozen=True, tag="left"):
    """The worker has left for good: what is kept for it goes aside under `mark`, now or at the next start."""

    mark: str


class Kept(msgspec.Struct, frozen=True, tag="kept"):
    """Everything before it, in one record."""

    committed: int = 0
    unresolved: tuple[Voted, ...] = ()
    forced: str | None = None


Entry = Voted | Decided | Forced | Left | Kept


class RuleError(PenstockError):
    """The peer did what the protocol forbids: it is told so, and the connection ends."""


class Bytes(Enum):
    """What is to be done with data that came."""

    APPEND = "append"
    COMPARE = "compare"
    """It was there before: ignored if it is the same, refused if not."""
    GAP = "gap"
    """Something before it is missing: dropped, and the next vote is to abort."""


class Ledger:
    """The state of one worker's transactions."""

    def __init__(self) -> None:
        self.committed = 0
        self.unresolved: dict[str, Voted] = {}
        self.forced: str | None = None
        self.left: str | None = None
        self.decided: deque[Decided] = deque(maxlen=REMEMBERED)

    def apply(self, entry: Entry) -> None:
        """What holds after one more record."""
        match entry:
            case Voted():
                self.unresolved[entry.transaction] = entry
                self.forced = None
            case Decided():
                self.unresolved.pop(entry.transaction, None)
                self.committed = entry.committed
                self.decided.append(entry)
            case Forced():
                self.forced = entry.reason
            case Left():
                self.left = entry.mark
            case Kept():
                self.committed, self.forced = entry.committed, entry.forced
                self.unresolved = {voted.transaction: voted for voted in entry.unresolved}

    def kept(self) -> Kept:
        """The state as one record."""
        return Kept(self.committed, tuple(self.unresolved.values()), self.forced)

    @property
    def prepared(self) -> Voted | None:
        """The transaction whose bytes were promised, if there is one."""
        return next((voted for voted in self.unresolved.values() if voted.commit), None)

    @property
    def promised(self) -> int:
        """Bytes below it must be there after any crash."""
        return self.prepared.end if self.prepared is not None else self.committed

    def data(self, offset: int, number: int, length: int) -> Bytes:
        """What becomes of `length` bytes with the id `number`, where `offset` is the next one expected."""
        if self.unresolved:
            raise RuleError("data came between PHASE1 and PHASE2")
        if number + length >= NOTHING_SEEN:
            raise RuleError(f"message id {number} is beyond all that can be counted")
        if number == offset:
            return Bytes.APPEND
        if number > offset:
            return Bytes.GAP
        if number + length > offset or number < self.committed:
            raise RuleError(f"message id {number} was seen before; {offset} is next")
        return Bytes.COMPARE

    def vote(self, asked: Phase1, offset: int, now: int) -> Voted:
        """The vote; the one that was given before if it is asked for again."""
        checked_id(asked.transaction)
        start, end = _range(asked.where, self.committed)
        known = self.unresolved.get(asked.transaction)
        if known is not None:
            if (known.start, known.end) != (start, end):
                raise RuleError(
                    f"transaction {asked.transaction} was voted on for bytes {known.start} to {known.end}"
                )
            return known
        if self.unresolved:
            raise RuleError(f"transaction {next(iter(self.unresolved))} is not decided yet")
        reason = self._objection(asked.where, start, end, offset)
        return Voted(asked.transaction, start, end, reason is None, reason or "", now)

    def _objection(
        self, where: Sequence[tuple[int, int, int]], start: int, end: int, offset: int
    ) -> str | None:
        if self.forced is not None:
            return self.forced
        if len(where) != 1:
            return f"one range was expected, {len(where)} came"
        if where[0][0] != DATA_STREAM:
            return f"stream {where[0][0]} is not the stream of data"
        if start != self.committed:
            return f"the range begins at {start}, committed is {self.committed}"
        if start > end:
            return f"the range begins at {start} and ends before it, at {end}"
        if end != offset:
            return f"the range ends at {end}, the data at {offset}"
        return None


def checked_id(transaction: str) -> None:
    """Ids go into logs, tables and file names of others: text that can be seen, and not without end."""
    if not transaction or len(transaction) > MOST_ID or not transaction.isascii():
        raise RuleError(f"a transaction's id has 1 to {MOST_ID} ASCII characters")
    if not transaction.isprintable():
        raise RuleError("a transaction's id holds characters that cannot be seen")


def _range(where: Sequence[tuple[int, int, int]], committed: int) -> tuple[int, int]:
    return (where[0][1], where[0][2]) if where else (committed, committed)
