"""What a walk over the commit log learns, and where it may be picked up again.

`LogState` is a fold over records: the next message offset, and for each namespace its last message, mode, source
position, schemas, and the backfill that it waits for. Owner and reader of a log both need it at their start, and a
log may be long, so its owner keeps two caches in a directory of its own: sparse index entries (message offset,
byte), and a snapshot of the fold. Both are derived, hence never synced: each is checked against the log before it is
believed, and made anew if it is missing or wrong.

    JOURNAL.idx     entries of 16 bytes: message offset i64 | byte i64, ascending
    JOURNAL.state   JSON: the fold up to a byte
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from penstock.base.errors import UNREADABLE, CorruptError
from penstock.log import record as rec
from penstock.log.message import ByteOffset, Message, MessageOffset, Mode, Position, Resume
from penstock.log.record import Record
from penstock.log.schema import Schema, Told, still
from penstock.log.units import Mark, mark_of

log = logging.getLogger(__name__)

GRANULE = 1 << 20
"""About one index entry for this many bytes of log."""

_ENTRY = struct.Struct(">qq")


class LogPoint(NamedTuple):
    """A place between two records: the next message has `offset`, the next byte is `byte`."""

    offset: MessageOffset
    byte: ByteOffset


ORIGIN = LogPoint(MessageOffset(0), ByteOffset(0))


class LastMessage(NamedTuple):
    """The last message of a namespace in a batch: its place among the messages, and its mode."""

    at: int
    mode: Mode


class NamespaceState(msgspec.Struct):
    """The newest that the log says about one namespace."""

    offset: int = -1
    mode: int = 0
    position: Position | None = None
    told: list[Told] = msgspec.field(name="schema", default_factory=list)
    """Its schemas, for as long as the log has messages from before the next one."""
    backfill: bool = False
    """It is to be copied anew, and that is not complete yet."""
    where: str | None = None
    """Of a backfill: which rows; None for all."""
    before: Position | None = None
    """Of a backfill of some rows: the position to go on from once it is done."""

    @property
    def schema(self) -> Schema | None:
        """The newest."""
        return self.told[-1].schema if self.told else None

    def wanted(self, where: str | None) -> dict[str, object]:
        """The header of the control record that asks for a backfill of this namespace."""
        position = self.before if self.backfill else self.position
        return {
            "position": None,
            "backfill": {"where": where, "before": position if where is not None else None},
        }

    def filled(self) -> None:
        """Its copy is complete."""
        self.backfill, self.where, self.before = False, None, None

    def tell(self) -> dict[str, object]:
        """All of this but the message, as the header of a control record."""
        extra: dict[str, object] = {"position": self.position}
        if self.schema is not None:
            extra["schema"] = msgspec.to_builtins(self.schema)
        if self.backfill:
            extra["backfill"] = {"where": self.where, "before": self.before}
        return extra

    def hear(self, extra: Mapping[str, object], since: int) -> None:
        """Take what a record's header says; a schema holds from message `since` on."""
        if "position" in extra:
            self.position = _position(extra["position"])
        if "schema" in extra:
            told = Told(since, msgspec.convert(extra["schema"], Schema))
            if self.told and self.told[-1].since >= since:
                self.told[-1] = told  # there was no message in between
            else:
                self.told.append(told)
        if "backfill" in extra:
            wanted = msgspec.convert(extra["backfill"], dict[str, object])
            self.backfill, self.where = True, msgspec.convert(wanted.get("where"), str | None)
            self.before = _position(wanted.get("before"))


def _position(value: object) -> Position | None:
    if value is not None and not isinstance(value, dict):
        raise msgspec.ValidationError("a position that is not an object")
    return value


class LogState(msgspec.Struct):
    """The fold over all records before `byte`."""

    next: int = 0
    byte: int = 0
    oldest: int = -1
    namespaces: dict[str, NamespaceState] = {}
    open: tuple[int, int] | None = None
    """The message and byte at which a unit begins that has no end yet (`units.py`)."""

    @property
    def point(self) -> LogPoint:
        return LogPoint(MessageOffset(self.next), ByteOffset(self.byte))

    @property
    def closed(self) -> LogPoint:
        """The end of what a sink may be given: before a unit that has no end yet."""
        if self.open is None:
            return self.point
        offset, byte = self.open
        return LogPoint(MessageOffset(offset), ByteOffset(byte))

    def mark(self, mark: Mark, byte: int) -> None:
        """Take the mark of an append that begins at `byte`."""
        self.open = (self.open or (mark.first, byte)) if mark.more else None

    def apply(self, record: Record, journal: str, byte: int) -> None:
        """Take one record; refuses a log whose message offsets do not count up one by one."""
        if not record.control:
            if record.offset != self.next and self.oldest >= 0:
                raise CorruptError(
                    f"message {record.offset} where {self.next} was expected", where=journal, position=byte
                )
            if self.oldest < 0:
                self.oldest = record.offset
            self.next = record.offset + 1
        self.take(record, journal, byte)

    def take(self, record: Record, journal: str, byte: int, since: int | None = None) -> None:
        """What a record says about its namespace: from the next message on, or from `since`."""
        try:
            if record.control and not record.ns:
                mark = mark_of(record)
                if mark is not None:
                    self.mark(mark, byte)
                return
            known = self._namespace(record.ns)
            known.mode = int(record.mode)
            if not record.control:
                known.offset = record.offset
            if record.extra is not None:
                known.hear(record.extra, self.next if since is None else since)
        except msgspec.ValidationError as error:
            raise CorruptError(
                f"a header that does not read: {error}", where=journal, position=byte
            ) from None
        if record.mode is Mode.COMPLETE:
            known.filled()

    def skim(self, buffer: bytes, journal: str, base: int) -> tuple[rec.Skimmed, int]:
        """Take all whole records of a buffer that begins at byte `base`, decoding only those that matter.

        Returns what was seen, and how many bytes they are.
        """
        seen, consumed = rec.skim(buffer, journal, base)
        in_order = seen.last - seen.first + 1 == seen.messages
        if seen.messages and not (in_order and (self.oldest < 0 or seen.first == self.next)):
            for start, record in rec.decode_all(buffer, journal, base):
                self.apply(record, journal, base + start)
        for start in sorted({*seen.latest, *seen.telling}):
            record = rec.decode(buffer, start, journal, base)
            since = self._upcoming(buffer, start, consumed, seen) if record.control else None
            self.take(record, journal, base + start, since)
        if seen.messages:
            self.oldest = self.oldest if self.oldest >= 0 else seen.first
            self.next = seen.last + 1
        self.byte = base + consumed
        return seen, consumed

    def _upcoming(self, buffer: bytes, start: int, end: int, seen: rec.Skimmed) -> int:
        """The first message behind a record of a buffer that is skimmed up to `end`."""
        while start < end:
            if (offset := rec.offset_at(buffer, start)) >= 0:
                return offset
            start += rec.length_at(buffer, start)
        return seen.last + 1 if seen.messages else self.next

    def advance(self, count: int, last: Mapping[str, LastMessage], positions: Mapping[str, Position]) -> None:
        """Take a batch of `count` messages that was just logged, of which `last` tells each namespace's last one."""
        if count and self.oldest < 0:
            self.oldest = self.next
        for ns, message in last.items():
            known = self._namespace(ns)
            known.offset = self.next + message.at
            known.mode = int(message.mode)
            known.position = positions.get(ns, known.position)
            if message.mode is Mode.COMPLETE:
                known.filled()
        self.next += count

    def told(self, ns: str) -> Sequence[Told]:
        """The schemas of a namespace."""
        known = self.namespaces.get(ns)
        return tuple(known.told) if known is not None else ()

    def all_told(self) -> dict[str, Sequence[Told]]:
        """The schemas of each namespace that has one."""
        return {ns: tuple(known.told) for ns, known in list(self.namespaces.items()) if known.told}

    def forget_schemas(self, offset: int) -> None:
        """The log has no messages below this one any more. May be called beside the thread that appends."""
        for known in list(self.namespaces.values()):
            del known.told[: len(known.told) - len(still(known.told, offset))]
            if known.told and known.told[0].since <= offset:
                known.told[0] = Told(
                    0, known.told[0].schema
                )  # of what is kept from before, all that is known

    def resumable(self) -> dict[str, NamespaceState]:
        """The namespaces of which a source has something to hear: where it stands, or which rows a backfill wants."""
        return {
            ns: known
            for ns, known in self.namespaces.items()
            if known.position is not None or known.where is not None
        }

    def resume(self, messages: Mapping[int, Record]) -> dict[str, Resume]:
        """What a source gets back of each namespace; `messages` are those of the log by their offset.

        A backfill that has not begun has no position yet: then it is empty.
        """
        return {
            ns: Resume(
                Mode(known.mode),
                known.position if known.position is not None else {},
                MessageOffset(known.offset),
                _message(messages.get(known.offset)),
                known.where,
                known.before,
            )
            for ns, known in self.resumable().items()
        }

    def _namespace(self, ns: str) -> NamespaceState:
        known = self.namespaces.get(ns)
        if known is None:
            known = self.namespaces[ns] = NamespaceState()
        return known


def _message(record: Record | None) -> Message | None:
    if record is None:
        return None
    return Message(record.ns, record.data, record.op, record.ts, record.mode, record.key, record.old_key)


class Positions(Protocol):
    """What somebody knows about a log already; checked before it is believed."""

    def entries(self) -> list[LogPoint]: ...

    def state(self) -> LogState | None: ...


class LogCache:
    """The two cache files of one commit log. Writing is the owner's; anyone may read."""

    def __init__(self, directory: Path, journal: str) -> None:
        name = journal.replace("/", "%")
        self._index = directory / f"{name}.idx"
        self._state = directory / f"{name}.state"
        self._writing = threading.Lock()
        self.saved_bytes = 0
        """The size of the last snapshot that this process has taken."""

    def entries(self) -> list[LogPoint]:
        """The index, as far as it is whole and ascending."""
        try:
            content = self._index.read_bytes()
        except FileNotFoundError:
            return []
        usable = len(content) - len(content) % _ENTRY.size
        points: list[LogPoint] = []
        for offset, byte in _ENTRY.iter_unpack(content[:usable]):
            behind = points[-1] if points else ORIGIN
            if offset < behind.offset or byte <= behind.byte:
                break
            points.append(LogPoint(MessageOffset(offset), ByteOffset(byte)))
        return points

    def state(self) -> LogState | None:
        """The snapshot, if there is one that reads."""
        try:
            return msgspec.json.decode(self._state.read_bytes(), type=LogState)
        except (FileNotFoundError, *UNREADABLE):
            return None

    def add(self, points: list[LogPoint]) -> None:
        """Note more points. Without room for them the log is the same, only slower to find one's way in."""
        try:
            self._write_index(points)
        except OSError as error:
            log.warning("%s: cannot be written: %s", self._index, error)
            self.cut()

    def save(self, state: LogState) -> None:
        """Keep a snapshot, if there is room for it."""
        try:
            self._write_state(state)
        except OSError as error:
            log.warning("%s: cannot be written: %s", self._state, error)

    def forget_below(self, byte: int) -> None:
        """Drop the entries of what is no longer in the log."""
        with self._writing, contextlib.suppress(OSError):
            kept = [point for point in self.entries() if point.byte >= byte]
            aside = self._index.with_suffix(".partial-idx")
            aside.write_bytes(b"".join(_ENTRY.pack(*point) for point in kept))
            aside.rename(self._index)

    def cut(self) -> None:
        """Drop what a crash left behind the last entry that reads, so that those to come can be read."""
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self._index, len(self.entries()) * _ENTRY.size)

    def _write_index(self, points: list[LogPoint]) -> None:
        self._index.parent.mkdir(mode=0o700, exist_ok=True)
        with self._writing, self._index.open("ab") as file:
            file.write(b"".join(_ENTRY.pack(*point) for point in points))

    def _write_state(self, state: LogState) -> None:
        self._state.parent.mkdir(mode=0o700, exist_ok=True)
        aside = self._state.with_suffix(".partial")
        self.saved_bytes = aside.write_bytes(msgspec.json.encode(state))
        aside.rename(self._state)

    def discard(self) -> None:
        """Forget both files; the next walk makes them anew."""
        self._index.unlink(missing_ok=True)
        self._state.unlink(missing_ok=True)


def last_at_or_before(points: list[LogPoint], offset: int) -> LogPoint | None:
    """The last point whose next message is not past `offset`."""
    at = bisect_right(points, offset, key=lambda point: point.offset)
    return points[at - 1] if at else None
