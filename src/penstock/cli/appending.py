"""How `journals append` gets its input into journals.

The whole input as one append is read to its end first, into a file: a slow or broken producer then neither holds
up the journal's other appends nor leaves a part behind. Records are appended as they come: while one append is
under way more of them gather for the next.
"""

from __future__ import annotations

import base64
import binascii
import io
import mmap
import queue
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from penstock.base.disk import Buffer
from penstock.base.errors import CorruptError, PenstockError, UsageError
from penstock.base.signals import next_of
from penstock.journal import mapping
from penstock.journal.client import Appended, BrokerGoneError, Client, TimedOutError

_BATCH_BYTES = 1 << 20
_QUEUED = 4096
_SLOWEST = 1 << 18
"""Bytes a second; an append that is slower than that is given up."""


@dataclass(frozen=True, slots=True)
class Landed:
    """What went into one journal."""

    journal: str
    records: int
    bytes: int
    begin: int
    end: int

    def and_then(self, later: Landed) -> Landed:
        return Landed(
            self.journal, self.records + later.records, self.bytes + later.bytes, self.begin, later.end
        )


def any_of(names: Sequence[str], how: str | None) -> str:
    """The journal of an input that is one append."""
    if how not in (None, "random"):
        raise UsageError(
            f"the mapping {how} needs records with keys", hint="cut the input into records: --framing lines"
        )
    return random.choice(names)


def whole(client: Client, journal: str, source: BinaryIO) -> Landed:
    """All of the input as one append."""
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(source, file, _BATCH_BYTES)
        size = file.tell()
        if not size:
            raise UsageError("the input is empty: nothing to append")
        file.flush()
        # Not closed here: the views that a failed append leaves behind would not let it.
        content = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
        done = _append(client, journal, content, size)
    return Landed(journal, 1, size, done.begin, done.end)


def _append(client: Client, journal: str, content: Buffer | Sequence[Buffer], size: int) -> Appended:
    try:
        return client.append(journal, content, timeout=60.0 + size / _SLOWEST)
    except (BrokerGoneError, TimedOutError) as error:
        if not (isinstance(error, BrokerGoneError) and error.harmless):
            error.hint = f"the last append to {journal} may have landed: read its end before you repeat it"
        raise


def records(
    source: BinaryIO, framing: str, how: str | None, names: Sequence[str], *, encoded: bool
) -> Iterator[tuple[str, bytes]]:
    """The records of the input, each with its journal."""
    where = getattr(source, "name", "the input")
    where = "stdin" if where in ("<stdin>", "-") else str(where)
    source = _with_a_buffer_of_its_own(source)
    frames = mapping.lines(source, where) if framing == "lines" else mapping.fixed_frames(source, where)
    if how is None or how == "random":
        for frame in frames:
            yield random.choice(names), frame.record
        return
    choose = {"modulo": mapping.modulo, "rendezvous": mapping.rendezvous, "direct": mapping.direct}[how]
    for number, (key, frame) in enumerate(_pairs(frames, where)):
        yield choose(_decoded(key, number) if encoded else key, names), frame.record


def _with_a_buffer_of_its_own(source: BinaryIO) -> BinaryIO:
    """Standard input, read by a thread that may still wait for it when the process ends.

    Python wants the lock of its own buffer then, and dies if a thread has it.
    """
    try:
        number = source.fileno()
    except OSError:  # not a file at all
        return source
    return io.BufferedReader(io.FileIO(0, closefd=False)) if number == 0 else source


def _pairs(frames: Iterator[mapping.Frame], where: str) -> Iterator[tuple[bytes, mapping.Frame]]:
    position = 0
    for key in frames:
        record = next(frames, None)
        if record is None:
            raise CorruptError("a key without a record behind it", where=where, position=position)
        position += len(key.record) + len(record.record)
        yield key.payload, record


def _decoded(key: bytes, number: int) -> bytes:
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        raise UsageError(f"the key of record {number} is not base64 ({key!r})") from None


def each(client: Client, source: Iterator[tuple[str, bytes]]) -> list[Landed]:
    """Append the records, each in its order and its journal; what has landed is told even if a later one fails."""
    landed: dict[str, Landed] = {}
    try:
        for batch in _batches(source):
            for journal, gathered in batch.items():
                size = sum(map(len, gathered))
                done = _append(client, journal, gathered, size)
                new = Landed(journal, len(gathered), size, done.begin, done.end)
                landed[journal] = landed[journal].and_then(new) if journal in landed else new
    except PenstockError as error:
        if landed:
            so_far = "; ".join(
                f"{done.journal}: {done.records}, up to {done.end}" for done in landed.values()
            )
            error.hint = f"{error.hint + '; ' if error.hint else ''}records appended before: {so_far}"
        raise
    if not landed:
        raise UsageError("the input is empty: nothing to append")
    return [landed[journal] for journal in sorted(landed)]


def _batches(source: Iterator[tuple[str, bytes]]) -> Iterator[dict[str, list[bytes]]]:
    """Records by journal: as many as are there by the time the batch before is done, but no more than a message.

    A thread reads ahead. It ends with the input, or with the process.
    """
    ahead: queue.Queue[tuple[str, bytes] | BaseException | None] = queue.Queue(_QUEUED)
    threading.Thread(target=_read_ahead, args=(source, ahead), name="input", daemon=True).start()
    item = next_of(ahead)
    while item is not None:
        batch: dict[str, list[bytes]] = {}
        size = 0
        while isinstance(item, tuple):
            batch.setdefault(item[0], []).append(item[1])
            size += len(item[1])
            if size >= _BATCH_BYTES or ahead.empty():
                break
            item = next_of(ahead)
        if batch:
            yield batch
        if isinstance(item, BaseException):
            raise item
        item = next_of(ahead) if item is not None else None


def _read_ahead(
    source: Iterator[tuple[str, bytes]], ahead: queue.Queue[tuple[str, bytes] | BaseException | None]
) -> None:
    try:
        for record in source:
            ahead.put(record)
        ahead.put(None)
    except BaseException as error:  # noqa: BLE001 - raised where the records are taken
        ahead.put(error)
