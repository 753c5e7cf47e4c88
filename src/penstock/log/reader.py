"""Reading a commit log: by message offset, by range, at its ends.

A log has two parts: the companion, with what compaction kept (`companion.py`), then the log itself. Message offsets are
the same in both. What the log still has counts; of the companion only what lies before the log's first message
does, so a compaction that was interrupted between the two changes nothing for a reader.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from penstock.base.errors import CorruptError, UsageError
from penstock.journal.client import BytesGoneError, Client
from penstock.log import record as rec
from penstock.log import walking
from penstock.log.companion import Companion, Generation
from penstock.log.journals import Extent, companion_journal, extent, steadily
from penstock.log.message import MAX_MESSAGE_BYTES, ByteOffset, MessageOffset
from penstock.log.positions import (
    LogPoint,
    LogState,
    Positions,
    last_at_or_before,
)
from penstock.log.record import Record
from penstock.log.walking import walk

__all__ = ["LogReader", "Survey", "walk"]

_PATIENCE = 100
"""Compactions that one look at the log may meet."""

_PROBE = MAX_MESSAGE_BYTES + (2 << 20)


def _going_on(read: Callable[[int], Iterator[Record]], first: int) -> Iterator[Record]:
    """Read from message `first` on; if that is compacted meanwhile, go on behind the last one given."""
    upcoming = first
    for _ in range(_PATIENCE):
        try:
            for record in read(upcoming):
                yield record
                upcoming = record.offset + 1
        except BytesGoneError:
            continue
        return
    yield from read(upcoming)


class Survey(NamedTuple):
    """A log at one moment."""

    state: LogState
    first: LogPoint
    """As `LogReader.first`."""
    size: int
    """As `LogReader.size`."""


class LogReader:
    """Reads a commit log. Uses the owner's cache when it is there and right, and walks the log when not."""

    def __init__(self, client: Client, journal: str, cache: Positions | None) -> None:
        self.client = client
        self.journal = journal
        self.companion = Companion(client, companion_journal(journal))
        self._cache = cache

    def state(self) -> LogState:
        """The fold over the whole log as it is now; `oldest` is the first message that can still be read."""
        return steadily(self._state)

    def survey(self) -> Survey:
        """The fold over the whole log, where it begins and how large it is: each as if asked for alone, for less."""
        return steadily(self._survey)

    def records(self, begin: ByteOffset, end: ByteOffset) -> Iterator[tuple[int, Record]]:
        """The log's records in bytes [begin, end), both being record borders, with their byte offsets."""
        return walk(self.client, self.journal, begin, end)

    def oldest(self) -> MessageOffset | None:
        """The first message that is still there, be it in the companion; None if there is none."""
        return steadily(self._oldest)

    def first(self) -> LogPoint:
        """The first message of the log itself, or the next one to come: everything below it is compacted."""
        return steadily(self._first)

    def seek(self, offset: int) -> LogPoint:
        """The place of message `offset` in the log itself: there, or the next one to come."""
        return steadily(lambda: self._seek(offset, extent(self.client, self.journal)))

    def at_or_after(self, offset: int) -> LogPoint:
        """Where one who has everything below `offset` goes on in the log: there, or at its first message."""
        return steadily(lambda: self._at_or_after(offset, extent(self.client, self.journal)))

    def show(self, first: int, last: int) -> Iterator[Record]:
        """Messages `first` to `last`, both included, as far as they are still there."""
        return _going_on(lambda upcoming: self._show(upcoming, last), first)

    def compacted(self, first: int, last: int) -> Iterator[Record]:
        """Those of messages `first` to `last`, both included, that only the companion still has."""
        return _going_on(lambda upcoming: self._compacted(upcoming, last, self.first().offset), first)

    def messages(self, offsets: Iterable[int]) -> dict[int, Record]:
        """These messages, as far as they are still there, by their offsets."""
        wanted = sorted(set(offsets))
        return steadily(lambda: self._messages(wanted)) if wanted else {}

    def points(self, begin: LogPoint, head: ByteOffset) -> list[LogPoint]:
        """Known places between `begin` and `head`, ascending, outside of units; `begin` first.

        The last is the end of the log, or the begin of a unit that has no end yet.
        """
        inside = [p for p in self._trusted_entries(head) if begin.byte < p.byte <= head]
        last = inside[-1] if inside else begin
        state = LogState(next=last.offset, byte=last.byte, oldest=0)
        for _ in walking.chunks(self.client, self.journal, last.byte, head, state.skim):
            pass
        found = [begin, *inside]
        if state.closed.byte > last.byte:
            found.append(state.closed)
        return found

    def size(self) -> int:
        """The bytes held, companion and log."""
        return extent(self.client, self.journal).size + self.companion.size()

    def next_from(self, byte: int) -> MessageOffset | None:
        """The offset of the first message at or behind a record border; None if there is none yet."""
        head = self.client.head(self.journal)
        found = next(walking.offsets(self.client, self.journal, byte, head), None)
        return MessageOffset(found[0]) if found is not None else None

    def trusted_entries(self, head: int) -> list[LogPoint]:
        """The index, if the log bears it out."""
        return self._trusted_entries(head)

    def _show(self, first: int, last: int) -> Iterator[Record]:
        border = self.first().offset
        yield from self._compacted(first, last, border)
        if last < border:
            return
        start = self.at_or_after(max(first, border))
        if start.offset > max(first, border):
            raise BytesGoneError(f"the log {self.journal} was compacted up to {start.offset} meanwhile")
        head = ByteOffset(self.client.head(self.journal))
        for _, record in self.records(start.byte, head):
            if record.control:
                continue
            if record.offset > last:
                return
            yield record

    def _compacted(self, first: int, last: int, border: int) -> Iterator[Record]:
        """What the companion has of these messages, the log beginning with message `border`."""
        generation = self.companion.newest() if first < border else None
        for record in self.companion.messages(generation) if generation is not None else ():
            if first <= record.offset <= last and record.offset < border:
                yield record

    def _state(self) -> LogState:
        return self._folded(*self._both_parts())[0]

    def _survey(self) -> Survey:
        generation, held = self._both_parts()
        state, first = self._folded(generation, held)
        return Survey(state, first or state.point, held.size + self.companion.size())

    def _folded(self, generation: Generation | None, held: Extent) -> tuple[LogState, LogPoint | None]:
        """The fold over both parts, and the first message of the log itself."""
        state = self._trusted_snapshot(held.head) or self._compacted_state(generation, held)
        for _ in walking.chunks(self.client, self.journal, state.byte, held.head, state.skim):
            pass
        state.byte = held.head
        first = self._first_message(held)
        oldest = self._oldest_of(generation, first)
        state.oldest = -1 if oldest is None else oldest
        return state, first

    def _both_parts(self) -> tuple[Generation | None, Extent]:
        """Companion and log as they fit together, a compaction between the two looks notwithstanding.

        They do not if somebody has taken away the log's front by other means; then they are as they are.
        """
        for _ in range(3):
            generation = self.companion.newest()
            held = extent(self.client, self.journal)
            if held.begin <= (generation.cut.byte if generation is not None else 0):
                break
        return generation, held

    def _compacted_state(self, generation: Generation | None, held: Extent) -> LogState:
        """The fold over what lies before the log, and where in the log to go on from."""
        if generation is None:
            return LogState(byte=held.begin)
        state = LogState(next=generation.cut.offset, byte=max(generation.cut.byte, held.begin))
        for byte, record in self.companion.records(generation):
            if not record.control and state.oldest < 0 and held.begin <= generation.cut.byte:
                state.oldest = record.offset  # from here on offsets count up without a gap
            state.take(record, self.companion.journal, byte, since=0)
        return state

    def _oldest(self) -> MessageOffset | None:
        return self._oldest_of(
            self.companion.newest(), self._first_message(extent(self.client, self.journal))
        )

    def _oldest_of(self, generation: Generation | None, first: LogPoint | None) -> MessageOffset | None:
        kept = next(self.companion.messages(generation), None) if generation is not None else None
        if kept is not None and (first is None or kept.offset < first.offset):
            return MessageOffset(kept.offset)
        return first.offset if first is not None else None

    def _first(self) -> LogPoint:
        while True:
            held = extent(self.client, self.journal)
            found = self._first_message(held)
            if found is not None:
                return found
            point = self._state().point
            # Messages that came meanwhile are not compacted: look again.
            if point.byte <= held.head:
                return LogPoint(point.offset, ByteOffset(held.head))

    def _first_message(self, held: Extent) -> LogPoint | None:
        return next(walking.places(self.client, self.journal, held.begin, held.head), None)

    def _at_or_after(self, offset: int, held: Extent) -> LogPoint:
        first = self._first_message(held)
        return first if first is not None and offset <= first.offset else self._seek(offset, held)

    def _seek(self, offset: int, held: Extent) -> LogPoint:
        known = last_at_or_before(self._trusted_entries(held.head), offset)
        begin = known.byte if known is not None and known.byte >= held.begin else held.begin
        last = None
        for point in walking.places(self.client, self.journal, begin, held.head):
            if point.offset > offset:
                break
            if point.offset == offset:
                return point
            last = int(point.offset)
        if last is None:
            point = self._state().point
            if point.byte > held.head:  # the log has grown meanwhile
                return self._seek(offset, extent(self.client, self.journal))
            last = point.offset - 1
        if last + 1 == offset:
            return LogPoint(MessageOffset(offset), ByteOffset(held.head))
        first = self._first().offset
        gone = " any more; it was compacted" if offset < first else ""
        raise UsageError(
            f"message {offset} is not in the log {self.journal}{gone}",
            hint=f"the log begins with message {first}",
        )

    def _messages(self, wanted: list[int]) -> dict[int, Record]:
        held = extent(self.client, self.journal)
        first = self._first_message(held)
        found: dict[int, Record] = {}
        compacted = {offset for offset in wanted if first is None or offset < first.offset}
        generation = self.companion.newest() if compacted else None
        if generation is not None:
            kept = self.companion.messages(generation)
            found = {record.offset: record for record in kept if record.offset in compacted}
        entries = [point for point in self._trusted_entries(held.head) if point.byte >= held.begin]

        def place(offset: int) -> int:
            known = last_at_or_before(entries, offset)
            return known.byte if known is not None else held.begin

        for begin, group in groupby((offset for offset in wanted if offset not in compacted), key=place):
            self._find(set(group), begin, held.head, found)
        return found

    def _find(self, wanted: set[int], begin: int, head: int, found: dict[int, Record]) -> None:
        """Walk from `begin` to the last of these messages, and take them."""
        last = max(wanted)
        for offset, byte, buffer, start in walking.offsets(self.client, self.journal, begin, head):
            if offset > last:
                return
            if offset in wanted:
                found[offset] = rec.decode(buffer, start, self.journal, byte - start)

    def _trusted_snapshot(self, head: int) -> LogState | None:
        state = self._cache.state() if self._cache else None
        if state is None or state.byte > head or not self._is_point(state.point, head):
            return None
        return state

    def _trusted_entries(self, head: int) -> list[LogPoint]:
        """The index if its last usable entry is borne out by the log: entries are only ever appended.

        One at the very end shows nothing yet; that before it has to do, if there is one.
        """
        points = self._cache.entries() if self._cache else []
        usable = points[: bisect_right(points, head, key=lambda point: point.byte)]
        shown = usable[:-1] if len(usable) > 1 and usable[-1].byte == head else usable
        return usable if shown and self._is_point(shown[-1], head) else []

    def _is_point(self, point: LogPoint, head: int) -> bool:
        """Whether the next message from this byte on has this offset."""
        try:
            for offset, _, _, _ in walking.offsets(
                self.client, self.journal, point.byte, min(head, point.byte + _PROBE)
            ):
                return offset == point.offset
        except (CorruptError, BytesGoneError):
            return False
        return point.byte <= head
