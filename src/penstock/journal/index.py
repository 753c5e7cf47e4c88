"""The fragment index of a journal: which fragment holds an offset (reference, 19 "Index").

It is a *cover set*: no fragment in it is covered by another single one, so fragments in order of begin are
also in order of end. It unites the local fragments, told by `add` as appends commit, with a listing of the
stores, told by `replace_remote`. Each fragment carries a payload of the caller's (an open local file, a path
in a store), which the index never touches: it says which entries went, and the caller frees what they held.

Sans-IO and not thread-safe: one owner calls it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from penstock.journal.fragment import Fragment

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Entry(Generic[P]):
    """A fragment and what the caller attached to it."""

    fragment: Fragment
    payload: P


class Summary(NamedTuple):
    """The index at a glance. All zero when it is empty; `begin == end` means just that."""

    begin: int
    end: int
    mod_time: int
    """Of the last fragment; 0 if that is local."""


class Index(Generic[P]):
    """The cover set. Invariant: begins ascend strictly, ends ascend strictly, no fragment is empty."""

    def __init__(self) -> None:
        self._entries: list[Entry[P]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry[P]]:
        """In order; over the entries as they are now, whatever is added meanwhile."""
        return iter(tuple(self._entries))

    def summary(self) -> Summary:
        if not self._entries:
            return Summary(0, 0, 0)
        last = self._entries[-1].fragment
        return Summary(self._entries[0].fragment.begin, last.end, 0 if last.is_local else last.mod_time)

    @property
    def begin(self) -> int:
        """The lowest offset there is; 0 when empty."""
        return self._entries[0].fragment.begin if self._entries else 0

    @property
    def end(self) -> int:
        """One past the highest offset there is: the write head as the index knows it; 0 when empty."""
        return self._entries[-1].fragment.end if self._entries else 0

    @property
    def size(self) -> int:
        """Bytes of the journal that some fragment holds, each counted once. Walks the whole index."""
        size = 0
        reached = 0
        for entry in self._entries:
            fragment = entry.fragment
            size += fragment.end - max(fragment.begin, reached)
            reached = fragment.end
        return size

    def lookup(self, offset: int) -> tuple[Entry[P] | None, bool]:
        """Among the fragments containing `offset` the one that reaches furthest, and True.

        If none contains it: the next after it, and False; None if there is none.
        """
        after = bisect_right(self._entries, offset, key=_begin)
        if after and self._entries[after - 1].fragment.contains(offset):
            return self._entries[after - 1], True
        return (self._entries[after] if after < len(self._entries) else None), False

    def starting_at(self, offset: int) -> Iterator[Entry[P]]:
        """The entries whose begin is `offset` or higher, in order."""
        return iter(self._entries[bisect_left(self._entries, offset, key=_begin) :])

    def local(self) -> list[Entry[P]]:
        """The entries that are in no store yet, in order."""
        return [entry for entry in self._entries if entry.fragment.is_local]

    def add(self, fragment: Fragment, payload: P) -> list[Entry[P]]:
        """Put a fragment in, replacing those it covers (one of the same span too).

        Returns the entries that are not in the set now. The new one itself is among them if a larger one
        covers it, or if it is empty. Entries that share their payload object with the one that took their
        place are left out, so that a spool's file survives as its fragment grows.
        """
        entry = Entry(fragment, payload)
        if not fragment.length:
            return [entry]
        entries = self._entries
        start = bisect_left(entries, fragment.begin, key=_begin)
        # Only its neighbour before can reach past it, or one that begins with it: ends ascend as begins do.
        for larger in entries[max(start - 1, 0) : start + 1]:
            if larger.fragment.covers(fragment) and larger.fragment.length > fragment.length:
                return _without(larger.payload, [entry])
        stop = bisect_right(entries, fragment.end, key=_end)
        dropped = entries[start:stop]
        entries[start:stop] = [entry]
        return _without(payload, dropped)

    def discard(self, fragment: Fragment) -> None:
        """Take a fragment out; one that is not in the set is no error."""
        at = bisect_left(self._entries, fragment.begin, key=_begin)
        if at < len(self._entries) and self._entries[at].fragment == fragment:
            del self._entries[at]

    def replace_remote(self, listing: Iterable[tuple[Fragment, P]]) -> list[Entry[P]]:
        """Replace everything known of the stores by a complete listing of them.

        Local fragments of which the listing holds every byte are dropped and returned: their files can go.
        The others stay, and hide the remote ones that they cover.
        """
        remote: Index[P] = Index()
        for fragment, payload in listing:
            if fragment.is_local:
                raise ValueError(f"a listed fragment must name its store: {fragment}")
            remote.add(fragment, payload)
        kept: list[Entry[P]] = []
        dropped: list[Entry[P]] = []
        for entry in self.local():
            (dropped if remote._holds_all_of(entry.fragment) else kept).append(entry)
        for entry in kept:
            remote.add(entry.fragment, entry.payload)
        self._entries = remote._entries
        return dropped

    def _holds_all_of(self, fragment: Fragment) -> bool:
        reached = fragment.begin
        while reached < fragment.end:
            entry, covered = self.lookup(reached)
            if entry is None or not covered:
                return False
            reached = entry.fragment.end
        return True


def _without(payload: P, entries: list[Entry[P]]) -> list[Entry[P]]:
    return [entry for entry in entries if entry.payload is not payload]


def _begin(entry: Entry[P]) -> int:
    return entry.fragment.begin


def _end(entry: Entry[P]) -> int:
    return entry.fragment.end
