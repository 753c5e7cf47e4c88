"""The commit log of a pipeline: a journal of records, written by one owner, read by anyone (seed 004).

`LogReader` looks: by message offset, by range, at the end. `CommitLog` owns: it claims the journal
(`ownership.py`), finds the end, and appends batches, each in one append: the messages with consecutive
offsets, and in the header of the last record of each namespace the source's position after the batch. So a
position is in the log if and only if the messages it covers are.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from penstock.base import faults
from penstock.base.errors import CorruptError, PenstockError, UsageError
from penstock.journal import labels
from penstock.journal.client import BytesGoneError, Client, HoleError
from penstock.journal.fragment import Codec
from penstock.journal.protocol import JournalSpec
from penstock.log import record as rec
from penstock.log.message import (
    MAX_MESSAGE_BYTES,
    ByteOffset,
    Message,
    MessageOffset,
    Mode,
    Op,
    Position,
    Resume,
)
from penstock.log.ownership import Ownership
from penstock.log.positions import (
    GRANULE,
    ORIGIN,
    LogCache,
    LogPoint,
    LogState,
    last_at_or_before,
    last_byte_at_or_before,
)
from penstock.log.record import Record

FORMAT = 1
FORMAT_LABEL = "penstock.dev/format"
ID_LABEL = "penstock.dev/log"
PIPELINE_LABEL = "penstock.dev/pipeline"
KIND_LABEL = "penstock.dev/kind"
SINK_LABEL = "penstock.dev/sink"

DEFAULT_SEGMENT_BYTES = 64 << 20
_FIRST_CHUNK = 32 << 10
"""Most walks look at a record or two; those that go on take larger and larger steps."""

_WALK_CHUNK = 4 << 20


class MessageTooLargeError(PenstockError):
    """A message above the size limit; refused before anything of its batch is logged."""


def log_journal(pipeline: str) -> str:
    return f"pipelines/{pipeline}/log"


def journal_spec(name: str, segment_bytes: int, extra: Mapping[str, str]) -> JournalSpec:
    """The spec of a journal that Penstock makes for itself in an embedded broker."""
    spec = JournalSpec(
        name=name, replication=1, labels=labels.label_set({FORMAT_LABEL: str(FORMAT), **extra})
    )
    spec.fragment.length = segment_bytes
    spec.fragment.compression_codec = Codec.NONE.to_proto()
    spec.fragment.stores.append("file:///")
    spec.fragment.refresh_interval.FromSeconds(300)
    return spec


def journal_labels(client: Client, journal: str) -> dict[str, str] | None:
    """The labels of a journal, or None if there is none; refuses a format newer than ours."""
    found = client.list(labels.parse_selector(f"name={journal}"))
    if not found:
        return None
    values = {label.name: label.value for label in found[0].spec.labels.labels}
    if int(values.get(FORMAT_LABEL, FORMAT)) > FORMAT:
        raise CorruptError(
            f"log format {values[FORMAT_LABEL]}, this version of Penstock reads up to {FORMAT}",
            where=journal,
            position=0,
            hint="use the newer Penstock that wrote it",
        )
    return values


class LogReader:
    """Reads a commit log. Uses the owner's cache when it is there and right, and walks the log when not."""

    def __init__(self, client: Client, journal: str, cache: LogCache | None) -> None:
        self.client = client
        self.journal = journal
        self._cache = cache

    def state(self) -> LogState:
        """The fold over the whole log as it is now."""
        head = self.client.head(self.journal)
        state = self._trusted_snapshot(head)
        for byte, record in self.records(ByteOffset(state.byte), ByteOffset(head)):
            state.apply(record, self.journal, byte)
        state.byte = head
        return state

    def records(self, begin: ByteOffset, end: ByteOffset) -> Iterator[tuple[int, Record]]:
        """The records in bytes [begin, end), both being record boundaries, with their byte offsets."""
        carry, position, size = b"", int(begin), _FIRST_CHUNK
        while position + len(carry) < end:
            at = position + len(carry)
            try:
                chunk = carry + self.client.read_bytes(self.journal, at, min(int(end), at + size))
            except HoleError as error:
                raise CorruptError(
                    f"bytes up to {end} are missing", where=self.journal, position=error.offset
                ) from None
            if len(chunk) == len(carry):
                raise CorruptError(f"bytes up to {end} are missing", where=self.journal, position=at)
            starts, consumed = rec.boundaries(chunk, self.journal, position)
            for start in starts:
                yield position + start, rec.decode(chunk, start, self.journal, position)
            position += consumed
            carry = chunk[consumed:]
            size = min(4 * size, _WALK_CHUNK)
        if carry:
            raise CorruptError("a record that does not end", where=self.journal, position=position)

    def oldest(self) -> MessageOffset | None:
        """The first message that is still there; None if there is none."""
        head = ByteOffset(self.client.head(self.journal))
        for _, record in self.records(self._begin(), head):
            if not record.control:
                return MessageOffset(record.offset)
        return None

    def seek(self, offset: int) -> LogPoint:
        """The place of message `offset`: in the log, or the next one to come."""
        head = ByteOffset(self.client.head(self.journal))
        point = last_at_or_before(self._trusted_entries(head), offset) or ORIGIN
        begin = self._begin()
        upcoming = point.offset
        for byte, record in self.records(max(point.byte, begin), head):
            if record.control:
                continue
            if record.offset > offset:
                break
            if record.offset == offset:
                return LogPoint(MessageOffset(offset), ByteOffset(byte))
            upcoming = MessageOffset(record.offset + 1)
        if upcoming == offset:
            return LogPoint(upcoming, head)
        raise UsageError(f"message {offset} is not in the log {self.journal}")

    def show(self, first: int, last: int) -> Iterator[Record]:
        """Messages `first` to `last`, both included."""
        head = ByteOffset(self.client.head(self.journal))
        for _, record in self.records(self.seek(first).byte, head):
            if record.control:
                continue
            if record.offset > last:
                return
            yield record

    def points(self, begin: LogPoint, head: ByteOffset) -> list[LogPoint]:
        """Known places between `begin` and `head`, ascending; `begin` first, and the end of the log last."""
        inside = [p for p in self._trusted_entries(head) if begin.byte < p.byte <= head]
        last = inside[-1] if inside else begin
        next_offset = last.offset
        for _, record in self.records(last.byte, head):
            if not record.control:
                next_offset = MessageOffset(record.offset + 1)
        found = [begin, *inside]
        if head > last.byte:
            found.append(LogPoint(next_offset, head))
        return found

    def _begin(self) -> ByteOffset:
        return ByteOffset(self.client.begin(self.journal))

    def _trusted_snapshot(self, head: int) -> LogState:
        state = self._cache.state() if self._cache else None
        if state is None or state.byte > head or not self._is_point(state.point, head):
            return LogState(byte=self._begin())
        return state

    def _trusted_entries(self, head: int) -> list[LogPoint]:
        """The index if its last usable entry is borne out by the log: entries are only ever appended."""
        points = self._cache.entries() if self._cache else []
        last = last_byte_at_or_before(points, head)
        if last is None or not self._is_point(last, head):
            return []
        return points[: points.index(last) + 1]

    def _is_point(self, point: LogPoint, head: int) -> bool:
        """Whether the next message from this byte on has this offset."""
        try:
            for _, record in self.records(point.byte, ByteOffset(min(head, point.byte + _PROBE))):
                if not record.control:
                    return record.offset == point.offset
        except (CorruptError, BytesGoneError):
            return False
        return point.byte <= head


_PROBE = MAX_MESSAGE_BYTES + (2 << 20)


class CommitLog:
    """The one owner of a commit log."""

    def __init__(self, client: Client, pipeline: str, cache: Path, segment_bytes: int, now: int) -> None:
        """Claim the log, making it if it is new; then find its end."""
        self.journal = log_journal(pipeline)
        self._cache = LogCache(cache, self.journal)
        self.log_id = self._ensure(client, pipeline, segment_bytes)
        claim = Record(-1, now, Mode.COPY, Op.NOOP, "", b"", extra={"claim": uuid.uuid4().hex}, control=True)
        self._ownership = Ownership.claim(client, self.journal, rec.encode(claim))
        self.reader = LogReader(client, self.journal, self._cache)
        self._state = self._recover()
        self._indexed = self._state.byte

    @property
    def point(self) -> LogPoint:
        """The end of the log: where the next message will be."""
        return self._state.point

    @property
    def state(self) -> LogState:
        return self._state

    def resume(self) -> dict[str, Resume]:
        return self._state.resume()

    def append(
        self,
        messages: Sequence[Message],
        positions: Mapping[str, Position],
        completed: Sequence[str],
        now: int,
    ) -> LogPoint:
        """Log one batch, all of it or nothing; durable on return. Returns the new end of the log."""
        if not (messages or positions or completed):
            return self.point
        _refuse_large(messages)
        first, before = self._state.next, self.point
        last = {message.ns: i for i, message in enumerate(messages)}
        extras: dict[int, dict[str, object]] = {
            last[ns]: {"position": position}
            for ns, position in positions.items()
            if ns in last and ns not in completed
        }
        told = [ns for ns in positions if ns not in last or ns in completed]
        closing = self._closing_records(told, positions, completed, now)
        try:
            content = [rec.encode_messages(messages, first, extras), *map(rec.encode, closing)]
        except rec.RecordTooLargeError as error:
            raise MessageTooLargeError(
                error.message, hint="leave the row or field out at the source"
            ) from None
        with faults.step("append"):
            landed = self._ownership.append(content)
        if landed.begin != before.byte:
            raise CorruptError("an append of another owner", where=self.journal, position=before.byte)
        self._state.advance(messages, last, positions)
        for record in closing:
            self._state.apply(record, self.journal, landed.end)
        self._state.byte = landed.end
        self._index(before)
        return self.point

    def close(self) -> None:
        """Leave a snapshot for the next start. The log itself needs no closing."""
        self._cache.save(self._state)

    def _closing_records(
        self, told: Sequence[str], positions: Mapping[str, Position], completed: Sequence[str], now: int
    ) -> list[Record]:
        """Positions and ends of copies that no message of the batch can carry."""
        closing = []
        for ns in [*told, *(ns for ns in completed if ns not in positions)]:
            extra: dict[str, object] | None = {"position": positions[ns]} if ns in positions else None
            mode = Mode.COMPLETE if ns in completed else self._mode(ns)
            closing.append(Record(-1, now, mode, Op.NOOP, ns, b"", extra=extra, control=True))
        return closing

    def _mode(self, ns: str) -> Mode:
        known = self._state.namespaces.get(ns)
        return Mode(known.mode) if known else Mode.COPY

    def _index(self, before: LogPoint) -> None:
        """Note where this append began, about once a granule; and the fold with it."""
        if self._state.byte - self._indexed < GRANULE:
            return
        self._cache.add([before] if before.byte > self._indexed else [self.point])
        self._cache.save(self._state)
        self._indexed = self._state.byte

    def _recover(self) -> LogState:
        """Find the end. A cache that the log does not bear out is dropped and made anew."""
        head = self.reader.client.head(self.journal)
        entries = self._cache.entries()
        state = self.reader.state()
        if entries and (entries[-1].byte > head or not self.reader._trusted_entries(head)):
            self._cache.discard()
            entries = []
        if entries:
            self._cache.cut()
        else:
            self._rebuild(ByteOffset(head))
        self._cache.save(state)
        return state

    def _rebuild(self, head: ByteOffset) -> None:
        """Make the index anew by walking the log."""
        points: list[LogPoint] = []
        next_entry = GRANULE
        for byte, record in self.reader.records(self.reader._begin(), head):
            if byte >= next_entry and not record.control:
                points.append(LogPoint(MessageOffset(record.offset), ByteOffset(byte)))
                next_entry = byte + GRANULE
        if points:
            self._cache.discard()
            self._cache.add(points)

    def _ensure(self, client: Client, pipeline: str, segment_bytes: int) -> str:
        found = journal_labels(client, self.journal)
        if found is None:
            extra = {PIPELINE_LABEL: pipeline, KIND_LABEL: "log", ID_LABEL: uuid.uuid4().hex}
            client.create(journal_spec(self.journal, segment_bytes, extra))
            found = journal_labels(client, self.journal) or {}
        return found[ID_LABEL]


def _refuse_large(messages: Sequence[Message]) -> None:
    for message in messages:
        if len(message.data) > MAX_MESSAGE_BYTES:
            raise MessageTooLargeError(
                f"a message of namespace '{message.ns}' has {len(message.data):,} bytes, "
                f"the limit is {MAX_MESSAGE_BYTES:,}",
                hint="leave the row or field out at the source",
            )
