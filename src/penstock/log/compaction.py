"""Compaction of the commit log (seed 004, "Log Compaction"; DESIGN 2): the newest message of each namespace stays.

A fragment may go if it is closed, if every sink has acknowledged everything in it, and if retention does not want it
longer. Nothing is rewritten. The steps, in an order that a crash may interrupt anywhere:

1. claim the companion under the log's own epoch, so that an owner of the log that was replaced can do nothing here;
2. append a generation to it (`companion.py`): of each namespace the newest message before the cut, and the newest
   position, mode and schema; it counts once its end is there;
3. make sure that the log is still ours, and trim its fragments before the cut;
4. trim the companion's older generation.

After a crash before the end of 2 everything is as it was; after it nothing is missing, and the next compaction trims
what this one did not. The active fragment is never touched, so nobody who writes waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from penstock.base import faults
from penstock.base.errors import CorruptError
from penstock.journal.protocol import Fragment as FragmentSpec
from penstock.log import record as rec
from penstock.log import walking
from penstock.log.commitlog import CommitLog
from penstock.log.companion import Companion, Generation, write_generation
from penstock.log.journals import KIND_LABEL, PIPELINE_LABEL, ensure, journal_spec, read_whole
from penstock.log.message import ByteOffset, MessageOffset, Mode, Op
from penstock.log.ownership import Ownership
from penstock.log.positions import LogPoint, LogState
from penstock.log.record import Record

STEPS = ("compact claim", "compact keep", "compact part", "compact trim", "compact sweep")
"""The steps above by the names they have in `base.faults`; a generation is kept part by part."""

_NEVER = 1 << 63

_SEGMENT_BYTES = 256 << 20
_IN_MEMORY = 64 << 20
"""So many bytes of kept messages are held while the log is walked; of more, only where they are."""

_READ_ALONG = 256 << 10


class Segment(NamedTuple):
    """A fragment of the log. `stored` is when it went to the store, in unix seconds; 0: it has not yet."""

    begin: int
    end: int
    stored: int


class Compacted(NamedTuple):
    """What a compaction did."""

    kept: int
    """Messages that only the companion has now."""
    removed: int
    """Messages that could be read before, and no longer can."""
    bytes_freed: int
    first: LogPoint
    """The first message of the log itself."""


def plan(
    segments: Sequence[Segment],
    offset_at: Callable[[int], int | None],
    limit: MessageOffset,
    *,
    keep_bytes: int | None = None,
    keep_seconds: float | None = None,
    now: int = 0,
) -> LogPoint | None:
    """Where to cut: the end of the last segment that may go, with all before it; None if none may.

    `segments` are all there are, in order; the last is the active one. `offset_at` gives the offset of the first
    message at or behind a segment's end; if there is none yet the segment stays, for it says where the log goes on.
    `limit` is the earliest watermark: messages below it are acknowledged by all.
    """
    closed = segments[:-1]
    if keep_bytes is not None and segments:
        closed = [segment for segment in closed if segments[-1].end - segment.end >= keep_bytes]
    if keep_seconds is not None:
        closed = _older_than(closed, now / 1_000_000 - keep_seconds)

    def upcoming(segment: Segment) -> int:
        found = offset_at(segment.end)
        return _NEVER if found is None else found

    acknowledged = bisect_right(closed, int(limit), key=upcoming)
    if not acknowledged:
        return None
    last = closed[acknowledged - 1]
    return LogPoint(MessageOffset(upcoming(last)), ByteOffset(last.end))


def compact(
    log: CommitLog,
    limit: MessageOffset,
    *,
    keep_bytes: int | None = None,
    keep_seconds: float | None = None,
    now: int,
) -> Compacted:
    """Compact the log below `limit`, the earliest watermark of the sinks that count; 0 if one never acknowledged.

    May run in a thread beside the one that appends. `keep_bytes` and `keep_seconds` keep the newest acknowledged
    fragments nevertheless: so many bytes of log in all, and those stored less than so long ago.
    """
    client, reader = log.reader.client, log.reader
    before = reader.first()
    readable = _readable(reader.companion, before.offset)
    segments = [_segment(fragment.spec) for fragment in client.fragments(log.journal)]
    cut = plan(segments, reader.next_from, limit, keep_bytes=keep_bytes, keep_seconds=keep_seconds, now=now)
    if cut is None:
        return Compacted(readable, 0, 0, before)
    written = 0
    generation = reader.companion.newest()
    if generation is None or generation.cut.byte < cut.byte:
        generation, written = _keep(log, cut, now)
    freed = _trim(log, cut, generation) - written
    first = reader.first()
    kept = _readable(reader.companion, first.offset)
    return Compacted(kept, first.offset - before.offset + readable - kept, max(freed, 0), first)


def _keep(log: CommitLog, cut: LogPoint, now: int) -> tuple[Generation, int]:
    """Steps 1 and 2: a new generation, and how many bytes it takes.

    What it is built on is read after the claim: nobody else can have made a later one without fencing us off.
    """
    companion = log.reader.companion
    with faults.step("compact claim"):
        labels = {PIPELINE_LABEL: log.pipeline, KIND_LABEL: "compacted"}
        ensure(companion.client, journal_spec(companion.journal, _SEGMENT_BYTES, labels))
        owner = Ownership.claim(companion.client, companion.journal, _claim(now), under=log.ownership.epoch)
        companion.client.roll(companion.journal)  # so that what lies before can be trimmed
    kept = _Kept(log, companion.newest(), cut)
    kept.walk()
    with faults.step("compact keep"):
        written = write_generation(owner, cut, kept.records(now), now)
    generation = companion.newest()
    assert generation is not None
    assert generation.cut.byte >= cut.byte
    return generation, written.size


def _trim(log: CommitLog, cut: LogPoint, generation: Generation) -> int:
    """Steps 3 and 4; the bytes that they freed."""
    client, companion = log.reader.client, log.reader.companion
    with faults.step("compact trim"):
        log.ownership.confirm()
        freed = client.trim(log.journal, cut.byte).bytes
    with faults.step("compact sweep"):
        freed += client.trim(companion.journal, generation.begin).bytes
    log.cache.forget_below(cut.byte)
    log.state.forget_schemas(cut.offset)
    return freed


class _Kept:
    """The fold over everything before a cut, and the newest message of each namespace there, as bytes or as a place."""

    def __init__(self, log: CommitLog, old: Generation | None, cut: LogPoint) -> None:
        self._client = log.reader.client
        self._journal = log.journal
        self._companion = log.reader.companion
        self._cut = cut
        self._held: dict[str, bytes | _Place] = {}
        self._in_memory = 0
        self._window = _Window("", 0, b"")
        self._ends = {log.journal: int(cut.byte)}
        begin = next((fragment.spec.begin for fragment in self._client.fragments(log.journal)), 0)
        self._state = LogState(byte=begin)
        if old is not None:
            self._state = LogState(byte=max(old.cut.byte, begin), next=old.cut.offset)
            self._ends[self._companion.journal] = old.parts[-1].head
            for byte, raw, record in self._companion.raw_records(old):
                self._state.take(record, self._companion.journal, byte, since=0)
                if not record.control:
                    self._hold(record.ns, raw, self._companion.journal, byte)

    def walk(self) -> None:
        """Fold from where the old generation ends up to the cut."""
        begin, cut = self._state.byte, self._cut
        for base, buffer, seen in walking.chunks(
            self._client, self._journal, begin, cut.byte, self._state.skim
        ):
            for start in seen.latest:
                raw = bytes(buffer[start : start + rec.length_at(buffer, start)])
                self._hold(rec.ns_at(raw, 0).decode(), raw, self._journal, base + start)
        if self._state.next != cut.offset:  # nothing is trimmed that is not understood
            raise CorruptError(
                f"message {cut.offset} where {self._state.next} was expected",
                where=self._journal,
                position=cut.byte,
            )

    def records(self, now: int) -> Iterator[tuple[bytes, bool]]:
        """What a generation holds, encoded, each with whether it is a message; messages by their offsets."""
        for ns, known in sorted(self._state.namespaces.items(), key=lambda item: item[1].offset):
            held = self._held.get(ns)
            if held is not None:
                yield (held if isinstance(held, bytes) else self._fetch(held)), True
            told = Record(-1, now, Mode(known.mode), Op.NOOP, ns, b"", extra=known.tell(), control=True)
            yield rec.encode(told), False

    def _hold(self, ns: str, raw: bytes, journal: str, byte: int) -> None:
        before = self._held.get(ns)
        if isinstance(before, bytes):
            self._in_memory -= len(before)
        if self._in_memory + len(raw) <= _IN_MEMORY:
            self._held[ns] = raw
            self._in_memory += len(raw)
        else:
            self._held[ns] = _Place(journal, byte, len(raw))

    def _fetch(self, place: _Place) -> bytes:
        """The record at a place. They are fetched in the order they lie in, so what comes next is read along."""
        at = place.byte - self._window.begin
        if place.journal != self._window.journal or not 0 <= at <= len(self._window.content) - place.size:
            end = min(place.byte + max(place.size, _READ_ALONG), self._ends[place.journal])
            content = read_whole(self._client, place.journal, place.byte, end)
            self._window, at = _Window(place.journal, place.byte, content), 0
        return self._window.content[at : at + place.size]


class _Place(NamedTuple):
    """Where a record is."""

    journal: str
    byte: int
    size: int


class _Window(NamedTuple):
    """Bytes of a journal that were read in one go."""

    journal: str
    begin: int
    content: bytes


def _segment(fragment: FragmentSpec) -> Segment:
    return Segment(fragment.begin, fragment.end, fragment.mod_time)


def _older_than(segments: Sequence[Segment], moment: float) -> list[Segment]:
    """Those from the front that were stored before a moment, in unix seconds."""
    return list(takewhile(lambda segment: 0 < segment.stored <= moment, segments))


def _readable(companion: Companion, border: int) -> int:
    """How many messages only the companion has, the log beginning with message `border`."""
    generation = companion.newest()
    if generation is None:
        return 0
    if generation.cut.offset <= border:
        return generation.kept
    return sum(record.offset < border for record in companion.messages(generation))


def _claim(now: int) -> bytes:
    return rec.encode(Record(-1, now, Mode.COPY, Op.NOOP, "", b"", control=True))
