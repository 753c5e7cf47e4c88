"""The offset log: the truth about what a sink has (seed 004, "Message Guarantees"; DESIGN 3).

One journal a sink. Each commit is one append: a record for each namespace that changed, in the seed's layout
(key = namespace, data = the message offset, 8 bytes), and a closing control record with the sink's watermark,
generation and counts. Nothing below the watermark is unacknowledged: delivered, dropped by a filter or
function, or dead. An append is all or nothing, so replay applies whole commits only.

A closing record that is marked `whole` stands for everything before it: its namespaces are all there are. An
operator's edit is one, and so is a compaction, which then trims what lies before it; a crash between the two leaves
the same state told twice.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import msgspec

from penstock.base import faults
from penstock.base.errors import CorruptError, UsageError
from penstock.journal.client import Client
from penstock.journal.protocol import ApplyRequest
from penstock.log import record as rec
from penstock.log.journals import (
    KIND_LABEL,
    PIPELINE_LABEL,
    SINK_LABEL,
    ensure,
    extent,
    journal_labels,
    journal_spec,
    offsets_journal,
    read_whole,
    steadily,
)
from penstock.log.message import Mode, Op
from penstock.log.ownership import InDoubtError, Ownership
from penstock.log.record import Record

__all__ = [
    "Commit",
    "Lane",
    "OffsetLog",
    "SinkOffsets",
    "edit",
    "encode_commit",
    "forget",
    "load",
    "offsets_journal",
    "replay",
]

_VALUE = struct.Struct(">Q")
_SEGMENT_BYTES = 16 << 20
_WHOLE: dict[str, object] = {"whole": True}

COMPACT_BYTES = 256 << 10
"""An offset log is compacted when it has so many bytes, of which most are old."""

_MOSTLY = 4


class Lane(msgspec.Struct, frozen=True):
    """One worker name at a target that takes part in two-phase commits: where its bytes end, and by what decision."""

    end: int
    transaction: str


class Commit(msgspec.Struct, frozen=True):
    """What a sink has, and how it came to it, since its first start in this generation."""

    watermark: int = 0
    generation: int = 0
    delivered: int = 0
    dropped: int = 0
    dead: int = 0
    rows: int = 0
    careful: int = 0
    """Messages below it are delivered one at a time: a batch that held them was refused."""
    acked: tuple[int, ...] = ()
    """Offsets at or above the watermark that an operator acknowledged ahead of their turn."""
    detached: bool = False
    """The sink fell too far behind, no longer holds the log back, and lacks messages."""
    published: int | None = None
    """The watermark that the target was last given, if that is not `watermark`: what was dropped since, or
    acknowledged by an operator, needs no telling there."""
    lanes: dict[str, Lane] | None = None
    """For targets that vote: this record is the decision, and these are the transactions that it commits."""
    leaving: tuple[str, ...] = ()
    """Worker names that the target is still to be told have left."""
    dismissals: int = 0
    """How often names have left. A group's decision of a time before says nothing about the lanes of now."""
    members: dict[str, Commit] | None = None
    """For the record of an atomic group: what each of its sinks has from here on."""

    @property
    def in_target(self) -> int:
        """A target that keeps a position has at least this one."""
        return self.watermark if self.published is None else self.published


class SinkOffsets(msgspec.Struct):
    """The offset log, replayed."""

    commit: Commit = Commit()
    namespaces: dict[str, int] = {}
    updated: int | None = None
    entries: int = 0


Change = Callable[[SinkOffsets], tuple[Commit, dict[str, int]]]
"""From what a sink has to what it is to have: the commit, and the offsets of all its namespaces."""


def encode_commit(
    commit: Commit, namespaces: Mapping[str, int], entries: int, now: int, *, whole: bool = False
) -> bytes:
    """The bytes of one commit; `entries` is how many namespace records the log has seen already."""
    parts = [
        rec.encode(Record(entries + i, now, Mode.COPY, Op.INSERT, ns, _VALUE.pack(offset)))
        for i, (ns, offset) in enumerate(sorted(namespaces.items()))
    ]
    extra = _WHOLE if whole else None
    closing = Record(-1, now, Mode.COPY, Op.INSERT, "", msgspec.json.encode(commit), None, extra, True)
    return b"".join([*parts, rec.encode(closing)])


def replay(content: bytes, journal: str, base: int = 0) -> SinkOffsets:
    """The state after all commits in `content`, which begins at byte `base` of the journal."""
    state = SinkOffsets()
    told: dict[str, int] = {}
    for position, record in rec.decode_all(content, journal, base):
        if not record.control:
            if len(record.data) != _VALUE.size:
                raise CorruptError("an offset that is not 8 bytes", where=journal, position=base + position)
            told[record.ns] = cast("int", _VALUE.unpack(record.data)[0])
            state.entries = record.offset + 1
        elif record.data:
            state.commit = msgspec.json.decode(record.data, type=Commit)
            state.updated = record.ts
            if record.extra == _WHOLE:
                state.namespaces = {}
            state.namespaces.update(told)
            told = {}
    return state


def load(client: Client, pipeline: str, sink: str) -> SinkOffsets:
    """What the offset log of a sink says; an unknown sink has nothing, and none is made for it."""
    journal = offsets_journal(pipeline, sink)
    if journal_labels(client, journal) is None:
        return SinkOffsets()
    return steadily(lambda: _replayed(client, journal))


def edit(client: Client, pipeline: str, sink: str, now: int, change: Change) -> SinkOffsets:
    """An operator's edit: claim the sink's offset log, apply `change`, commit. Returns what holds from now on.

    The namespaces that `change` returns are all that the sink has from then on. A watermark that goes back opens
    a new generation, since targets take what they had in the old one for a repetition. A run that has the sink
    is fenced off: its next commit fails.
    """
    journal = offsets_journal(pipeline, sink)
    if journal_labels(client, journal) is None:
        raise UsageError(
            f"no sink '{sink}' of '{pipeline}' has offsets here",
            hint="`penstock offset list` shows those that have",
        )
    log = OffsetLog(client, pipeline, sink, now)
    before = log.state.commit
    commit, namespaces = change(log.state)
    if commit.watermark < 0 or any(offset < 0 for offset in namespaces.values()):
        raise UsageError(f"sink '{sink}': an offset cannot be negative")
    if commit.watermark < before.watermark and commit.generation <= before.generation:
        commit = msgspec.structs.replace(commit, generation=before.generation + 1)
    published = before.in_target if commit.generation == before.generation else None
    commit = msgspec.structs.replace(_as_told(commit, before), published=published)
    log.replace(commit, namespaces, now)
    return log.state


def forget(client: Client, pipeline: str, sink: str, now: int = 0) -> bool:
    """Delete the offset log of a sink; False if it has none.

    Deleting a journal deletes no data, so a sink of that name that comes back later finds what was left there: that
    it has nothing, in a new generation. Its target then takes what it gets for new.
    """
    journal = offsets_journal(pipeline, sink)
    if journal_labels(client, journal) is None:
        return False
    log = OffsetLog(client, pipeline, sink, now)
    held = log.state.commit
    log.replace(_as_told(Commit(generation=held.generation + 1), held), {}, now)
    log.compact(now, least_bytes=0)
    client.apply([ApplyRequest.Change(expect_mod_revision=-1, delete=journal)])
    return True


def _as_told(commit: Commit, before: Commit) -> Commit:
    """The commit with what a target that votes has been told so far, which is no matter of edits."""
    return msgspec.structs.replace(
        commit, lanes=before.lanes, leaving=before.leaving, dismissals=before.dismissals
    )


class OffsetLog:
    """The one owner of a sink's offset log. May be used by several threads."""

    def __init__(self, client: Client, pipeline: str, sink: str, now: int, *, kind: str = "offsets") -> None:
        """Claim the log, making it if it is new; then replay it. Only `offsets` are those of a sink."""
        self.journal = offsets_journal(pipeline, sink)
        self._client = client
        self._load = partial(load, client, pipeline, sink)
        self._lock = threading.RLock()
        extra = {PIPELINE_LABEL: pipeline, KIND_LABEL: kind, SINK_LABEL: sink}
        ensure(client, journal_spec(self.journal, _SEGMENT_BYTES, extra))
        self._ownership = Ownership.claim(client, self.journal, _claim(now))
        self.state = self._load()
        """What the sink has: what is durable, and what was noted since."""
        self._durable = self.state.commit
        self._noted: dict[str, int] = {}
        self._dirty = False
        self._size = extent(client, self.journal).size

    @property
    def durable(self) -> Commit:
        """What a crash would leave the sink with: `state` without what was only noted. Compaction goes by this."""
        return self._durable

    def commit(self, commit: Commit, namespaces: Mapping[str, int], now: int) -> None:
        """Move the sink's offsets, with all that was noted before; durable on return.

        If an earlier commit is in doubt, it is settled first: should it prove to have landed, `state` says so
        from now on, and this commit, which was made without knowing that, is refused.
        """
        with self._lock:
            self._settle_doubt(now)
            changed = {**self._noted, **namespaces}
            with faults.step("offset commit"):
                self._append(encode_commit(commit, changed, self.state.entries, now))
            self.state.namespaces.update(namespaces)
            self._committed(commit, len(changed), now)

    def note(self, commit: Commit, namespaces: Mapping[str, int]) -> None:
        """Move the sink's offsets in memory; the next `flush` or `commit` makes it durable. A crash forgets it."""
        with self._lock:
            self.state.commit = commit
            self.state.namespaces.update(namespaces)
            self._noted.update(namespaces)
            self._dirty = True

    def flush(self, now: int) -> bool:
        """Make durable what was noted; False if there was nothing."""
        with self._lock:
            if not self._dirty:
                return False
            self.commit(self.state.commit, {}, now)
            return True

    def replace(self, commit: Commit, namespaces: Mapping[str, int], now: int) -> None:
        """Set the sink's offsets, whatever they were before: namespaces that are not named are gone."""
        with self._lock:
            self._settle_doubt(now)
            with faults.step("offset commit"):
                self._append(encode_commit(commit, namespaces, self.state.entries, now, whole=True))
            self.state.namespaces = dict(namespaces)
            self._committed(commit, len(namespaces), now)

    def compact(self, now: int, *, least_bytes: int = COMPACT_BYTES) -> bool:
        """Tell the whole state once more, in a fragment of its own, and trim what lies before; False if not worth it.

        Asks nothing of the broker unless the log has `least_bytes` and at least three quarters of them are old.
        """
        with self._lock:
            if self._size < least_bytes or (least_bytes and self._size < _MOSTLY * len(self._told(now))):
                return False
            self._settle_doubt(now)
            content = self._told(now)
            with faults.step("compact offsets roll"):
                self._client.roll(self.journal)
            with faults.step("compact offsets append"):
                begin = self._append(content)
            self._committed(self.state.commit, len(self.state.namespaces), now)
            with faults.step("compact offsets trim"):
                self._client.trim(self.journal, begin)
            self._size = extent(self._client, self.journal).size
            return True

    def _told(self, now: int) -> bytes:
        """The whole state as one commit."""
        state = self.state
        return encode_commit(state.commit, state.namespaces, state.entries, now, whole=True)

    def _append(self, content: bytes) -> int:
        landed = self._ownership.append(content)
        self._size += len(content)
        return landed.begin

    def _committed(self, commit: Commit, entries: int, now: int) -> None:
        self.state.commit = self._durable = commit
        self.state.entries += entries
        self.state.updated = now
        self._noted, self._dirty = {}, False

    def _settle_doubt(self, now: int) -> None:
        """First a new claim, then the truth: after the claim nothing of the old one can land any more."""
        if not self._ownership.in_doubt:
            return
        before = self._durable
        self._ownership = self._ownership.renewed(_claim(now))
        found = self._load()
        if found.commit == before:
            found.commit = self.state.commit
            found.namespaces.update(self._noted)
            self.state = found
            return
        self.state, self._durable = found, found.commit
        self._noted, self._dirty = {}, False
        raise InDoubtError(
            f"journal {self.journal}: a commit in doubt has landed, up to message {found.commit.watermark}",
            hint="start the sink again from there",
        )


def _replayed(client: Client, journal: str) -> SinkOffsets:
    begin, head = extent(client, journal)
    return replay(read_whole(client, journal, begin, head), journal, begin)


def _claim(now: int) -> bytes:
    return rec.encode(Record(-1, now, Mode.COPY, Op.NOOP, "", b"", control=True))
