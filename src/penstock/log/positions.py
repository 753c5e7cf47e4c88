"""What a walk over the commit log learns, and where it may be picked up again.

`LogState` is a fold over records: the next message offset, and for each namespace its last message, mode and
source position. Owner and reader of a log both need it at their start, and a log may be long, so its owner
keeps two caches in a directory of its own: sparse index entries (message offset, byte), and a snapshot of the
fold. Both are derived, hence never synced: each is checked against the log before it is believed, and made
anew if it is missing or wrong.

    JOURNAL.idx     entries of 16 bytes: message offset i64 | byte i64, ascending
    JOURNAL.state   JSON: the fold up to a byte
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.base.errors import CorruptError
from penstock.log.message import ByteOffset, Message, MessageOffset, Mode, Position, Resume
from penstock.log.record import Record

log = logging.getLogger(__name__)

GRANULE = 1 << 20
"""About one index entry for this many bytes of log."""

_ENTRY = struct.Struct(">qq")


class LogPoint(NamedTuple):
    """A place between two records: the next message has `offset`, the next byte is `byte`."""

    offset: MessageOffset
    byte: ByteOffset


ORIGIN = LogPoint(MessageOffset(0), ByteOffset(0))


class NamespaceState(msgspec.Struct):
    """The newest that the log says about one namespace."""

    offset: int = -1
    mode: int = 0
    position: Position | None = None


class LogState(msgspec.Struct):
    """The fold over all records before `byte`."""

    next: int = 0
    byte: int = 0
    oldest: int = -1
    namespaces: dict[str, NamespaceState] = {}

    @property
    def point(self) -> LogPoint:
        return LogPoint(MessageOffset(self.next), ByteOffset(self.byte))

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
        if not record.ns:
            return
        known = self.namespaces.get(record.ns)
        if known is None:
            known = self.namespaces[record.ns] = NamespaceState()
        known.mode = int(record.mode)
        if not record.control:
            known.offset = record.offset
        if record.extra is not None and isinstance(record.extra.get("position"), dict):
            known.position = record.extra["position"]  # type: ignore[assignment]

    def advance(
        self, messages: Sequence[Message], last: Mapping[str, int], positions: Mapping[str, Position]
    ) -> None:
        """Take a whole batch that was just logged; `last` is the index of each namespace's last message."""
        if messages and self.oldest < 0:
            self.oldest = self.next
        for ns, i in last.items():
            known = self.namespaces.setdefault(ns, NamespaceState())
            known.offset = self.next + i
            known.mode = int(messages[i].mode)
            known.position = positions.get(ns, known.position)
        self.next += len(messages)

    def resume(self) -> dict[str, Resume]:
        """For each namespace that a source has told a position for, what it gets back."""
        return {
            ns: Resume(Mode(state.mode), state.position, MessageOffset(state.offset))
            for ns, state in self.namespaces.items()
            if state.position is not None
        }


class LogCache:
    """The two cache files of one commit log. Writing is the owner's; anyone may read."""

    def __init__(self, directory: Path, journal: str) -> None:
        name = journal.replace("/", "%")
        self._index = directory / f"{name}.idx"
        self._state = directory / f"{name}.state"

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
        except (FileNotFoundError, msgspec.DecodeError):
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

    def cut(self) -> None:
        """Drop what a crash left behind the last entry that reads, so that those to come can be read."""
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self._index, len(self.entries()) * _ENTRY.size)

    def _write_index(self, points: list[LogPoint]) -> None:
        self._index.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._index.open("ab") as file:
            file.write(b"".join(_ENTRY.pack(*point) for point in points))

    def _write_state(self, state: LogState) -> None:
        self._state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = self._state.with_suffix(".partial")
        aside.write_bytes(msgspec.json.encode(state))
        aside.rename(self._state)

    def discard(self) -> None:
        """Forget both files; the next walk makes them anew."""
        self._index.unlink(missing_ok=True)
        self._state.unlink(missing_ok=True)


def last_at_or_before(points: list[LogPoint], offset: int) -> LogPoint | None:
    """The last point whose next message is not past `offset`."""
    at = bisect_right(points, offset, key=lambda point: point.offset)
    return points[at - 1] if at else None


def last_byte_at_or_before(points: list[LogPoint], byte: int) -> LogPoint | None:
    at = bisect_right(points, byte, key=lambda point: point.byte)
    return points[at - 1] if at else None
