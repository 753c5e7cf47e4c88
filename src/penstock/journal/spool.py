"""The spool: a replica's transactional memory of a journal (seed 003, "Components"; reference 15).

A spool is the fragment being built, the journal's registers, and content written past the fragment's end
that nobody has committed yet (`delta`). It moves only by applying one of two things: a chunk of content, or
a proposal of the fragment to adopt. A proposal that covers the chunks commits them, one that repeats the
adopted fragment rolls them back, one that begins elsewhere rolls to a new fragment.

Invariant: `storage` holds at least `fragment.end - fragment.begin + delta` bytes, of which the first
`fragment.end - fragment.begin` hash to `fragment.sum`; they are never written again.

Nothing here waits, syncs, or knows a clock. Durability is the caller's (`replica.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import Enum, auto
from typing import Protocol

from penstock.base.disk import Buffer
from penstock.base.errors import PenstockError
from penstock.journal.fragment import MAX_OFFSET, ZERO_SUM, Codec, Fragment
from penstock.journal.protocol import LabelSet

_PIECE = 256 << 10


class SpoolStorage(Protocol):
    """Where content goes: positioned writes, relative to the begin of the fragment."""

    def write(self, content: Buffer, position: int) -> None: ...


class Outcome(Enum):
    """What a proposal came to."""

    COMMITTED = auto()
    ROLLED_BACK = auto()
    MISMATCH = auto()


class ContentGapError(PenstockError):
    """A chunk that does not continue the one before it; the stream that sent it is broken."""


class NoMoreOffsetsError(PenstockError):
    """A chunk that would end beyond what an offset can say."""


class Spool:
    """One fragment under construction. Use `rolls_at` before proposing, and a new `Spool` after a roll."""

    def __init__(
        self,
        fragment: Fragment,
        registers: LabelSet,
        storage: SpoolStorage,
        *,
        summer: hashlib._Hash | None = None,
    ) -> None:
        """`summer` has gone through the fragment's content; without it `go_on_from` is due before more of it comes."""
        self.fragment = fragment
        self.registers = registers
        self.delta = 0
        self._storage = storage
        self._adopted = summer if summer is not None or fragment.length else hashlib.sha1()
        self._running = self._adopted.copy() if self._adopted is not None else None

    @property
    def end(self) -> int:
        return self.fragment.end

    @property
    def takes_content(self) -> bool:
        """Whether the sum can go on: it does so from what has gone through the content, not from its digest."""
        return self._adopted is not None

    def go_on_from(self, summer: hashlib._Hash) -> None:
        """Have the sum go on from here, unless it does already. `summer` has gone through the fragment's content."""
        if self._adopted is None:
            self._adopted = summer
            self._running = summer.copy()

    def attached_to(self, storage: SpoolStorage) -> Spool:
        """The same spool, its content going elsewhere from now on."""
        return Spool(self.fragment, self.registers, storage, summer=self._adopted)

    def content(self, chunk: Buffer, content_delta: int) -> None:
        """Take a chunk that starts `content_delta` bytes past the adopted end.

        An OSError of the storage leaves the spool as it was: the chunk is not part of it.
        """
        if content_delta != self.delta:
            raise ContentGapError(
                f"{self.fragment.journal}: content at delta {content_delta} where {self.delta} was expected"
            )
        if len(chunk) > MAX_OFFSET - self.fragment.end - self.delta:
            raise NoMoreOffsetsError(f"{self.fragment.journal}: content beyond the last offset there is")
        assert self._running is not None
        running, position = self._running.copy(), self.fragment.end - self.fragment.begin + self.delta
        for piece in _pieces(chunk):
            running.update(piece)
            self._storage.write(piece, position)
            position += len(piece)
        self._running = running
        self.delta += len(chunk)

    def next(self) -> Fragment:
        """The fragment that would commit everything written so far."""
        if not self.delta:
            return self.fragment
        assert self._running is not None
        adopted = self.fragment
        return Fragment(
            adopted.journal, adopted.begin, adopted.end + self.delta, self._running.digest(), adopted.codec
        )

    def rolls_at(self, proposal: Fragment) -> bool:
        """Whether this proposal starts a new fragment: it ends beyond all content, or is empty at our end."""
        beyond = proposal.end > self.fragment.end + self.delta
        empty_here = proposal.begin == proposal.end == self.fragment.end
        return beyond or empty_here

    def rolled(self, proposal: Fragment, registers: LabelSet, storage: SpoolStorage) -> Spool:
        """The spool that follows this one; uncommitted content is left behind.

        The proposal's registers are adopted only if it skips ahead: then a peer knew more than we do.
        """
        started = Fragment(
            journal=self.fragment.journal,
            begin=proposal.end,
            end=proposal.end,
            sum=ZERO_SUM,
            codec=proposal.codec,
        )
        kept = registers if proposal.end > self.fragment.end else self.registers
        return Spool(started, kept, storage)

    def propose(self, proposal: Fragment, registers: LabelSet) -> Outcome:
        """Adopt the proposal if it is what we have, with or without the pending content."""
        if proposal == self.fragment and registers == self.registers:
            self.roll_back()
            return Outcome.ROLLED_BACK
        if self.delta and proposal == self.next():
            self._adopt(proposal, registers)
            return Outcome.COMMITTED
        return Outcome.MISMATCH

    def commit(self, registers: LabelSet) -> None:
        """Adopt everything written so far, as `propose(next(), registers)` does."""
        self._adopt(self.next(), registers)

    def _adopt(self, fragment: Fragment, registers: LabelSet) -> None:
        self.fragment = fragment
        self.registers = registers
        if self._running is not None:
            self._adopted = self._running.copy()
        self.delta = 0

    def roll_back(self) -> None:
        """Forget the content past the adopted end; its bytes will be written over."""
        if self._adopted is not None:
            self._running = self._adopted.copy()
        self.delta = 0


def _pieces(chunk: Buffer) -> Iterator[Buffer]:
    """The chunk, a little at a time: what has just gone through the sum is near the processor when it is written."""
    if len(chunk) <= _PIECE:
        yield chunk
        return
    view = memoryview(chunk)
    for begin in range(0, len(view), _PIECE):
        yield view[begin : begin + _PIECE]


def empty_fragment(journal: str, offset: int, codec: Codec) -> Fragment:
    """A fragment without content; its sum is all zeros, never the SHA1 of nothing."""
    return Fragment(journal=journal, begin=offset, end=offset, sum=ZERO_SUM, codec=codec)
