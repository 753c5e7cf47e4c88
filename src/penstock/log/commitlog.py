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
from penstock.base.errors import CorruptError, PenstockError, UsageError, did_you_mean
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
    Mode,
    Op,
    Position,
    Resume,
)
from penstock.log.ownership import Ownership
from penstock.log.positions import GRANULE, LogCache, LogPoint, LogState
from penstock.log.reader import LogReader
from penstock.log.record import Record
from penstock.log.schema import Schema

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
    "journal_labels",
    "journal_spec",
    "log_journal",
    "request_backfill",
]

DEFAULT_SEGMENT_BYTES = 1 << 30

_SNAPSHOT_SHARE = 16
"""A snapshot of the fold is taken when the log has grown by so many times the last one: with many namespaces it is
large."""


class MessageTooLargeError(PenstockError):
    """A message above the size limit; refused before anything of its batch is logged."""


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
    ) -> LogPoint:
        """Log one batch, all of it or nothing; durable on return. Returns the new end of the log.

        A schema is logged before the messages, and only if it is another than the last one of its namespace.
        """
        opening = self._schema_records(schemas or {}, now)
        if not (messages or positions or completed or opening):
            return self.point
        self._refuse_large(messages)
        last = {message.ns: i for i, message in enumerate(messages)}
        extras: dict[int, dict[str, object]] = {
            last[ns]: {"position": position}
            for ns, position in positions.items()
            if ns in last and ns not in completed
        }
        told = [ns for ns in positions if ns not in last or ns in completed]
        closing = self._closing_records(told, positions, completed, now)
        try:
            content = [
                b"".join(map(rec.encode, opening)),
                rec.encode_messages(messages, self._state.next, extras),
                b"".join(map(rec.encode, closing)),
            ]
        except rec.RecordTooLargeError as error:
            raise MessageTooLargeError(
                error.message, hint="leave the row or field out at the source"
            ) from None
        before = self._append(content)
        for record in opening:
            self._state.take(record, self.journal, before.byte)
        self._state.advance(messages, last, positions)
        for record in closing:
            self._state.take(record, self.journal, before.byte)
        self._index(before)
        return self.point

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
        before = self._append([rec.encode(record)])
        self._state.take(record, self.journal, before.byte)
        return self.point

    def close(self) -> None:
        """Leave a snapshot for the next start. The log itself needs no closing."""
        self._cache.save(self._state)

    def _append(self, content: Sequence[bytes]) -> LogPoint:
        """Append as the owner, and note where the log ends then; returns where it ended before."""
        before = self.point
        with faults.step("append"):
            landed = self._ownership.append(content)
        if landed.begin != before.byte:
            raise CorruptError("an append of another owner", where=self.journal, position=before.byte)
        self._state.byte = landed.end
        return before

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
        self._indexed = self._state.byte
        if self._indexed - self._saved >= _SNAPSHOT_SHARE * self._cache.saved_bytes:
            self._cache.save(self._state)
            self._saved = self._indexed

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
        for offset, byte, _, _ in walking.offsets(self.reader.client, self.journal, begin, head):
            if byte >= next_entry:
                points.append(LogPoint(MessageOffset(offset), ByteOffset(byte)))
                next_entry = byte + GRANULE
        if points:
            self._cache.discard()
            self._cache.add(points)

    def _ensure(self, client: Client, pipeline: str, segment_bytes: int | None) -> str:
        extra = {PIPELINE_LABEL: pipeline, KIND_LABEL: "log", ID_LABEL: uuid.uuid4().hex}
        found = ensure(client, journal_spec(self.journal, segment_bytes or DEFAULT_SEGMENT_BYTES, extra))
        if segment_bytes is not None:
            resize(client, self.journal, segment_bytes)
        return found[ID_LABEL]


def _claim(now: int) -> bytes:
    extra: dict[str, object] = {"claim": uuid.uuid4().hex}
    return rec.encode(Record(-1, now, Mode.COPY, Op.NOOP, "", b"", extra=extra, control=True))


def request_backfill(
    client: Client, pipeline: str, cache: Path, ns: str, where: str | None, now: int
) -> None:
    """An operator's backfill of a pipeline that does not run: one that does is fenced off."""
    if journal_labels(client, log_journal(pipeline)) is None:
        raise UsageError(f"no pipeline '{pipeline}' has a log here", hint="run it first")
    log = CommitLog(client, pipeline, cache, None, now)
    log.backfill(ns, where, now)
    log.close()
