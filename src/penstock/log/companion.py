"""The companion of a commit log: what compaction kept of it (seed 004, "Log Compaction"; DESIGN 2).

It holds one generation, and while a compaction is under way a second one. A generation stands for everything in the
log before its cut: for each namespace the newest message, byte for byte as it was in the log, its offset included, and
behind it a control record with the newest mode, position, schema and backfill. It is appended in one or more
parts:

    part    control record, header {"generation": id, "part": n} | messages and control records
    end     control record, header {"generation": id, "parts": n, "cut": {"offset": o, "byte": b}, "kept": k}

and counts from the moment its end is there. Parts of one that never ended are passed over. If there are several
that count, the one with the furthest cut does.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.base import faults
from penstock.journal.client import Client
from penstock.log import record as rec
from penstock.log.journals import Extent, extent, journal_labels, steadily
from penstock.log.message import ByteOffset, MessageOffset, Mode, Op
from penstock.log.ownership import Ownership
from penstock.log.positions import LogPoint
from penstock.log.record import Record
from penstock.log.walking import chunks

PART_BYTES = 4 << 20
"""About so much is appended at once, and held in memory for that."""


class Generation(NamedTuple):
    """A generation that counts: what it stands for, and where it is in the companion."""

    cut: LogPoint
    kept: int
    """How many messages it has."""
    parts: tuple[Extent, ...]

    @property
    def begin(self) -> int:
        return self.parts[0].begin


class Companion:
    """Reads the companion of one log; there may be none."""

    def __init__(self, client: Client, journal: str) -> None:
        self.client = client
        self.journal = journal

    def newest(self) -> Generation | None:
        """The generation that counts; None if nothing was ever compacted."""
        if journal_labels(self.client, self.journal) is None:
            return None
        return steadily(self._newest)

    def records(self, generation: Generation) -> Iterator[tuple[int, Record]]:
        """What a generation holds, and at which bytes: messages, ascending, each before its control record."""
        return ((byte, record) for byte, _, record in self.raw_records(generation))

    def raw_records(self, generation: Generation) -> Iterator[tuple[int, bytes, Record]]:
        """The same, with the bytes of each."""
        for part in generation.parts:
            for base, buffer, starts in chunks(
                self.client, self.journal, part.begin, part.head, rec.boundaries
            ):
                for start in starts:
                    record = rec.decode(buffer, start, self.journal, base)
                    if record.ns or not record.control:
                        raw = bytes(buffer[start : start + rec.length_at(buffer, start)])
                        yield base + start, raw, record

    def messages(self, generation: Generation) -> Iterator[Record]:
        return (record for _, record in self.records(generation) if not record.control)

    def size(self) -> int:
        """The bytes that it takes."""
        return (
            0 if journal_labels(self.client, self.journal) is None else extent(self.client, self.journal).size
        )

    def _newest(self) -> Generation | None:
        begin, head = extent(self.client, self.journal)
        open_parts: dict[str, list[Extent]] = {}
        found: Generation | None = None
        current: tuple[str, int] | None = None
        for byte, record in self._marks(begin, head):
            if current is not None:
                open_parts.setdefault(current[0], []).append(Extent(current[1], byte))
                current = None
            extra = record.extra or {}
            if "part" in extra:
                current = str(extra["generation"]), byte
            elif "cut" in extra:
                ended = _ended(extra, open_parts.pop(str(extra["generation"]), []))
                if ended is not None and (found is None or ended.cut.byte >= found.cut.byte):
                    found = ended
        return found

    def _marks(self, begin: int, head: int) -> Iterator[tuple[int, Record]]:
        """The control records of no namespace: where generations begin and end."""
        for base, buffer, starts in chunks(self.client, self.journal, begin, head, rec.boundaries):
            for start in starts:
                if rec.offset_at(buffer, start) < 0 and not rec.ns_at(buffer, start):
                    yield base + start, rec.decode(buffer, start, self.journal, base)


def _ended(extra: dict[str, object], parts: list[Extent]) -> Generation | None:
    """The generation that this end record closes, if all its parts are there."""
    cut, count, kept = extra["cut"], extra["parts"], extra["kept"]
    assert isinstance(cut, dict)
    assert isinstance(kept, int)
    if len(parts) != count:
        return None
    return Generation(LogPoint(MessageOffset(cut["offset"]), ByteOffset(cut["byte"])), kept, tuple(parts))


class Written(NamedTuple):
    """A generation that was appended: how many bytes it takes, and how many messages it has."""

    size: int
    kept: int


def write_generation(
    owner: Ownership, cut: LogPoint, records: Iterable[tuple[bytes, bool]], now: int
) -> Written:
    """Append a generation; durable on return. `records` are encoded, each with whether it is a message."""
    name = uuid.uuid4().hex
    size = number = kept = held = 0
    pending: list[bytes] = []

    def append(*ending: bytes) -> int:
        with faults.step("compact part"):
            part = _control(now, {"generation": name, "part": number})
            landed = owner.append(b"".join((part, *pending, *ending)))
        return landed.end - landed.begin

    for raw, is_message in records:
        kept += is_message
        pending.append(raw)
        held += len(raw)
        if held >= PART_BYTES:
            size += append()
            number, held, pending = number + 1, 0, []
    end = {"generation": name, "parts": number + 1, "cut": cut._asdict(), "kept": kept}
    return Written(size + append(_control(now, end)), kept)


def _control(now: int, extra: dict[str, object]) -> bytes:
    return rec.encode(Record(-1, now, Mode.COPY, Op.NOOP, "", b"", extra=extra, control=True))
