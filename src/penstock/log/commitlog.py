"""The commit log of a pipeline: a journal of records, written by one owner, read by anyone (seed 004).

`LogReader` (`reader.py`) looks. `CommitLog` owns: it claims the journal (`ownership.py`), finds the end, and appends
batches, each in one append: the schemas that are new, the messages with consecutive offsets, and in the header of
the last record of each namespace the source's position after the batch. So a position is in the log if and only
if the messages it covers are.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from penstock.base import faults
from penstock.base.disk import Buffer
from penstock.base.errors import CorruptError, UsageError, did_you_mean
from penstock.journal.client import Client
from penstock.log import record as rec
from penstock.log import walking
from penstock.log.journals import (
    FORMAT,
    FORMAT_LABEL,
    ID_LABEL,
    KIND_LABEL,
    PIPELINE_LABEL,
    SINK_LABEL,
    ensure,
    journal_labels,
    journal_spec,
    log_journal,
    resize,
)
from penstock.log.message import (
    MAX_MESSAGE_BYTES,
    ByteOffset,
    Message,
    MessageOffset,
    MessageTooLargeError,
    Mode,
    NotTextError,
    Op,
    Position,
    Resume,
)
from penstock.log.ownership import Ownership
from penstock.log.packing import Numbered, Packed, numbered
from penstock.log.positions import GRANULE, LastMessage, LogCache, LogPoint, LogState
from penstock.log.reader import LogReader
from penstock.log.record import Record
from penstock.log.schema import Schema
from penstock.log.units import Mark, encode_mark

__all__ = [
    "DEFAULT_SEGMENT_BYTES",
    "FORMAT",
    "FORMAT_LABEL",
    "ID_LABEL",
    "KIND_LABEL",
    "PIPELINE_LABEL",
    "SINK_LABEL",
    "CommitLog",
    "LogReader",
    "MessageTooLargeError",
    "fence_off",
    "journal_labels",
    "journal_spec",
    "log_journal",
    "request_backfill",
]

DEFAULT_SEGMENT_BYTES = 1 << 30

_SNAPSHOT_SHARE = 16
"""A snapshot of the fold is taken when the log has grown by so many times the last one: with many namespaces it is
large."""


class CommitLog:
    """The one owner of a commit log."""

    def __init__(
        self,
        client: Client,
        pipeline: str,
        cache: Path,
        segment_bytes: int | None,
        now: int,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """Claim the log, making it if it is new; then find its end.

        `segment_bytes` is the length at which fragments close from now on; None leaves it as it is.
        """
        self.journal = log_journal(pipeline)
        self.pipeline = pipeline
        self._max_message_bytes = min(max_message_bytes, MAX_MESSAGE_BYTES)
        self._cache = LogCache(cache, self.journal)
        self.log_id = self._ensure(client, pipeline, segment_bytes)
        self._ownership = Ownership.claim(client, self.journal, _claim(now))
        self.reader = LogReader(client, self.journal, self._cache)
        self._state = self._recover()
        self._indexed = self._saved = self._state.byte

    @property
    def ownership(self) -> Ownership:
        return self._ownership

    @property
    def cache(self) -> LogCache:
        return self._cache

    @property
    def point(self) -> LogPoint:
        """The end of the log: where the next message will be."""
        return self._state.point

    @property
    def state(self) -> LogState:
        return self._state

    @property
    def is_open(self) -> bool:
        """Whether the log ends within a transaction of the source."""
        return self._state.open is not None

    @property
    def closed(self) -> LogPoint:
        """The end of what a sink may be given; before `point` while a transaction has no end yet."""
        return self._state.closed

    def resume(self) -> dict[str, Resume]:
        """What a source gets back of each namespace: its position, its last message, the backfill it waits for."""
        wanted = [known.offset for known in self._state.resumable().values() if known.offset >= 0]
        return self._state.resume(self.reader.messages(wanted))

    def append(
        self,
        messages: Sequence[Message],
        positions: Mapping[str, Position],
        completed: Sequence[str],
        now: int,
        schemas: Mapping[str, Schema] | None = None,
        packed: Sequence[Packed | Numbered] = (),
        *,
        more: bool = False,
    ) -> LogPoint:
        """Log one batch, all of it or nothing; durable on return. Returns the new end of the log.

        A schema is logged before the messages, and only if it is another than the last one of its namespace. What is
        `packed` comes behind the messages. A position goes into the header of its namespace's last message; if that is
        packed, or there is none, into a record of its own. `more` leaves the log open: what follows belongs to it.
        """
        opening = self._schema_records(schemas or {}, now)
        packed = self._in_order(packed, len(messages))
        closes = self.is_open and not more
        if not (messages or packed or positions or completed or opening or closes):
            return self.point
        count = len(messages) + sum(map(len, packed))
        last = self._last(messages, packed)
        carried = {
            ns for ns in positions if ns in last and last[ns].at < len(messages) and ns not in completed
        }
        told = [ns for ns in positions if ns not in carried]
        closing = self._closing_records(told, positions, completed, last, now)
        extras: dict[int, dict[str, object]] = {last[ns].at: {"position": positions[ns]} for ns in carried}
        content = self._content(opening, messages, extras, packed, closing)
        mark = self._mark(content, last, count, more=more)
        before = self.point
        end = self._append([*([encode_mark(mark, now)] if mark is not None else []), *content])
        for record in opening:
            self._state.take(record, self.journal, before.byte)
        self._state.advance(count, last, positions)
        for record in closing:
            self._state.take(record, self.journal, before.byte)
        was_open = self.is_open
        if mark is not None:
            self._state.mark(mark, before.byte)
        self._state.byte = end
        if not self.is_open:
            inner = [] if mark is not None else _borders(before, content, len(messages), packed)
            self._index([*([] if was_open else [before]), *inner, self.point])
        return self.point

    def number(self, packed: Sequence[Packed], first: int) -> list[Numbered]:
        """Give records the offsets from `first` on, ahead of the append that they come with; refuses what is too large.

        May be called beside `append`, by whoever knows what is appended before them.
        """
        rows = []
        for one in packed:
            if len(one):
                rows.append(numbered(one, first, self._max_message_bytes))
                first += len(one)
        return rows

    def _in_order(self, packed: Sequence[Packed | Numbered], messages: int) -> list[Numbered]:
        """Packed records behind so many messages, all of them numbered; those that are already must fit there."""
        rows: list[Numbered] = []
        upcoming = self._state.next + messages
        for one in packed:
            if not isinstance(one, Numbered):
                rows += self.number([one], upcoming)
            elif one.first == upcoming:
                rows.append(one)
            else:
                raise ValueError(f"records numbered from {one.first} on where {upcoming} comes next")
            upcoming += len(one)
        return rows

    def _mark(
        self, content: Sequence[Buffer], last: Mapping[str, LastMessage], count: int, *, more: bool
    ) -> Mark | None:
        """What an append begins with that no sink may get in part; None if it may be cut anywhere."""
        changes = any(message.mode is not Mode.COPY for message in last.values())
        if not (more or self.is_open or (changes and count > 1)):
            return None
        return Mark(self._state.next, sum(map(len, content)), more)

    def _last(self, messages: Sequence[Message], packed: Sequence[Numbered]) -> dict[str, LastMessage]:
        """Of each namespace the last message of a batch."""
        places = {message.ns: i for i, message in enumerate(messages)}
        last = {ns: LastMessage(i, messages[i].mode) for ns, i in places.items()}
        behind = len(messages)
        for rows in packed:
            behind += len(rows)
            last[rows.ns] = LastMessage(behind - 1, rows.last_mode)
        return last

    def _content(
        self,
        opening: Sequence[Record],
        messages: Sequence[Message],
        extras: Mapping[int, dict[str, object]],
        packed: Sequence[Numbered],
        closing: Sequence[Record],
    ) -> list[Buffer]:
        """The bytes of an append; refuses what is too large, and what nobody could read."""
        self._refuse_large(messages)
        _refuse_binary(messages)
        try:
            return [
                b"".join(map(rec.encode, opening)),
                rec.encode_messages(messages, self._state.next, extras),
                *(rows.content for rows in packed),
                b"".join(map(rec.encode, closing)),
            ]
        except rec.RecordTooLargeError as error:
            raise MessageTooLargeError(
                error.message, hint="leave the row or field out at the source"
            ) from None

    def renew(self, now: int) -> LogPoint:
        """After an append that may have landed: claim the log anew, then find its end, which is returned."""
        self._ownership = self._ownership.renewed(_claim(now))
        self._state = self._recover()
        self._indexed = self._saved = self._state.byte
        return self.point

    def backfill(self, ns: str, where: str | None, now: int) -> LogPoint:
        """Have the source copy a namespace anew, from its next start on: all of it, or the rows that `where` names.

        Its position is gone with this, and its mode is copy; `where`, and the position to go on from after these rows,
        are kept until the copy is complete.
        """
        if ns not in self._state.namespaces:
            raise UsageError(
                f"the log of '{self.pipeline}' knows no namespace '{ns}'"
                f"{did_you_mean(ns, self._state.namespaces)}"
            )
        extra = self._state.namespaces[ns].wanted(where)
        record = Record(-1, now, Mode.COPY, Op.NOOP, ns, b"", extra=extra, control=True)
        end = self._append([rec.encode(record)])
        self._state.take(record, self.journal, self.point.byte)
        self._state.byte = end
        return self.point

    def close(self) -> None:
        """Leave a snapshot for the next start. The log itself needs no closing."""
        self._cache.save(self._state)

    def _append(self, content: Sequence[Buffer]) -> ByteOffset:
        """Append as the owner; returns where the log ends then.

        The fold takes what was appended, and that byte last: a snapshot that another thread takes meanwhile (`close`,
        while the source does not end) then says less than the log has, and is found out by the message that follows.
        """
        before = self.point
        with faults.step("append"):
            landed = self._ownership.append(content)
        if landed.begin != before.byte:
            raise CorruptError("an append of another owner", where=self.journal, position=before.byte)
        return ByteOffset(landed.end)

    def _refuse_large(self, messages: Sequence[Message]) -> None:
        limit = self._max_message_bytes
        for message in messages:
            if len(message.data) > limit:
                raise MessageTooLargeError(
                    f"a message of namespace '{message.ns}' has {len(message.data):,} bytes, "
                    f"the limit is {limit:,}",
                    hint="leave the row or field out at the source",
                )

    def _schema_records(self, schemas: Mapping[str, Schema], now: int) -> list[Record]:
        opening = []
        for ns, schema in schemas.items():
            known = self._state.namespaces.get(ns)
            if known is None or known.schema != schema:
                extra: dict[str, object] = {"schema": msgspec.to_builtins(schema)}
                opening.append(Record(-1, now, self._mode(ns), Op.NOOP, ns, b"", extra=extra, control=True))
        return opening

    def _closing_records(
        self,
        told: Sequence[str],
        positions: Mapping[str, Position],
        completed: Sequence[str],
        last: Mapping[str, LastMessage],
        now: int,
    ) -> list[Record]:
        """Positions and ends of copies that no message of the batch can carry."""
        closing = []
        for ns in [*told, *(ns for ns in completed if ns not in positions)]:
            extra: dict[str, object] | None = {"position": positions[ns]} if ns in positions else None
            mode = last[ns].mode if ns in last else self._mode(ns)
            mode = Mode.COMPLETE if ns in completed else mode
            closing.append(Record(-1, now, mode, Op.NOOP, ns, b"", extra=extra, control=True))
        return closing

    def _mode(self, ns: str) -> Mode:
        known = self._state.namespaces.get(ns)
        return Mode(known.mode) if known else Mode.COPY

    def _index(self, points: Sequence[LogPoint]) -> None:
        """Note the places at which the log may be cut, in their order, about one a granule; and the fold with them."""
        chosen: list[LogPoint] = []
        for point in points:
            if point.byte - self._indexed >= GRANULE:
                chosen.append(point)
                self._indexed = point.byte
        if not chosen:
            return
        self._cache.add(chosen)
        if self._state.byte - self._saved >= _SNAPSHOT_SHARE * self._cache.saved_bytes:
            self._cache.save(self._state)
            self._saved = self._state.byte

    def _recover(self) -> LogState:
        """Find the end. A cache that the log does not bear out is dropped and made anew."""
        head = self.reader.client.head(self.journal)
        entries = self._cache.entries()
        state = self.reader.state()
        if entries and (entries[-1].byte > head or not self.reader.trusted_entries(head)):
            self._cache.discard()
            entries = []
        if entries:
            self._cache.cut()
        else:
            self._rebuild(head)
        self._cache.save(state)
        return state

    def _rebuild(self, head: int) -> None:
        """Make the index anew by walking the log."""
        points: list[LogPoint] = []
        begin = self.reader.first().byte
        next_entry = begin + GRANULE
        for point in walking.borders(self.reader.client, self.journal, begin, head):
            if point.byte >= next_entry:
                points.append(point)
                next_entry = point.byte + GRANULE
        if points:
            self._cache.discard()
            self._cache.add(points)

    def _ensure(self, client: Client, pipeline: str, segment_bytes: int | None) -> str:
        extra = {PIPELINE_LABEL: pipeline, KIND_LABEL: "log", ID_LABEL: uuid.uuid4().hex}
        found = ensure(client, journal_spec(self.journal, segment_bytes or DEFAULT_SEGMENT_BYTES, extra))
        if segment_bytes is not None:
            resize(client, self.journal, segment_bytes)
        return found[ID_LABEL]


def _borders(
    begin: LogPoint, content: Sequence[Buffer], messages: int, packed: Sequence[Numbered]
) -> list[LogPoint]:
    """The places in an append behind each part of it that was `packed`."""
    offset, byte = begin.offset + messages, begin.byte + len(content[0]) + len(content[1])
    borders = []
    for rows, part in zip(packed, content[2:], strict=False):  # records that close the append follow
        offset, byte = offset + len(rows), byte + len(part)
        borders.append(LogPoint(MessageOffset(offset), ByteOffset(byte)))
    return borders


def _refuse_binary(messages: Sequence[Message]) -> None:
    for message in messages:
        for text in (message.data, message.key, message.old_key):
            if text is not None and not text.isascii():
                try:
                    text.decode()
                except UnicodeDecodeError as error:
                    raise NotTextError(message.ns, error.reason) from None


def _claim(now: int) -> bytes:
    extra: dict[str, object] = {"claim": uuid.uuid4().hex}
    return rec.encode(Record(-1, now, Mode.COPY, Op.NOOP, "", b"", extra=extra, control=True))


def fence_off(client: Client, pipeline: str, now: int) -> None:
    """Take the log from whoever owns it: a run that was taken for dead, and is not, can log nothing more."""
    Ownership.claim(client, log_journal(pipeline), _claim(now))


def request_backfill(
    client: Client, pipeline: str, cache: Path, ns: str, where: str | None, now: int
) -> None:
    """An operator's backfill of a pipeline that does not run: one that does is fenced off."""
    if journal_labels(client, log_journal(pipeline)) is None:
        raise UsageError(f"no pipeline '{pipeline}' has a log here", hint="run it first")
    log = CommitLog(client, pipeline, cache, None, now)
    log.backfill(ns, where, now)
    log.close()
