"""Checkpoints in their journal: frames, and a catalogue of those that count.

    frame       length u32 | kind (1 byte) | payload
    kinds       C  somebody claimed the journal    B  a checkpoint begins (JSON `Head`)
                D  bytes of it                     E  it is whole: the catalogue (JSON) of all that are kept

The bytes of a checkpoint are the messages that outputs keep, then the binding's blob; they are streamed in pieces,
so that their size is nobody's concern. A checkpoint exists from the append that holds its E frame on: the same append
sets the register `catalogue` to the frame's place. What an interrupted writer left lies between and is skipped, and
goes with the next trimming. Each writer claims the journal, so of two at once only the later one can finish; and none
begins that is of an earlier place of the log than the last one there is, for the log before that may be deleted.
"""

from __future__ import annotations

import struct
import time
from collections.abc import AsyncIterator, Iterable

import msgspec

from penstock.base.disk import Buffer
from penstock.base.errors import CorruptError, PenstockError
from penstock.base.faults import step
from penstock.immortal.journals import Again, Fenced, claim, journal_name, registers, steadily
from penstock.immortal.state import StateHead
from penstock.journal import labels
from penstock.journal.client import AsyncClient, FencedError
from penstock.journal.protocol import LabelSet

_FRAME = struct.Struct("<IB")
CLAIM, BEGIN, DATA, END = b"CBDE"
PIECE = 4 << 20
CATALOGUE = "catalogue"
MAX_FRAME = 1 << 30


class Entry(msgspec.Struct, frozen=True):
    """A checkpoint that can be recovered from."""

    number: int
    version: int
    sequence: int
    """The first record behind it."""
    log_offset: int
    """Where in the log replay begins."""
    begin: int
    end: int
    size: int
    """Bytes of the binding's blob."""
    at: float
    by: str


class Catalogue(msgspec.Struct, frozen=True):
    """All that can be recovered from, oldest first."""

    entries: list[Entry] = []

    @property
    def last(self) -> Entry | None:
        return self.entries[-1] if self.entries else None


class Head(msgspec.Struct, frozen=True):
    """What a checkpoint begins with."""

    number: int
    version: int
    log_offset: int
    size: int
    state: StateHead


class MissingCheckpointError(PenstockError):
    """The checkpoint that was asked for is not there (any more)."""


def _gone(journal: str, position: int) -> MissingCheckpointError:
    return MissingCheckpointError(
        f"journal {journal}: a checkpoint is there no more from byte {position} on",
        hint="it was trimmed, or fragments of it are lost: `penstock journals check` tells",
    )


def _frame(kind: int, payload: Buffer) -> list[Buffer]:
    return [_FRAME.pack(len(payload), kind), payload]


async def catalogue(client: AsyncClient, instance: str) -> Catalogue:
    """What there is to recover from."""
    journal = journal_name(instance, "checkpoints")
    found, _ = await registers(client, journal)
    place = next(iter(labels.values_of(found, CATALOGUE)), None)
    if place is None:
        return Catalogue()
    begin, _, end = place.partition("-")
    content = await client.read_bytes(journal, int(begin), int(end))
    if len(content) < int(end) - int(begin):
        raise _gone(journal, int(begin) + len(content))
    return _decoded(content[_FRAME.size :], Catalogue, journal, int(begin))


def chosen(there: Catalogue, instance: str, number: int) -> Entry:
    """The checkpoint of this number, or an error that lists those still there."""
    for entry in there.entries:
        if entry.number == number:
            return entry
    known = ", ".join(str(entry.number) for entry in there.entries) or "none"
    raise MissingCheckpointError(
        f"instance {instance} has no checkpoint {number}; there are: {known}",
        hint="older ones were deleted by the retention (`--keep-checkpoints`)",
    )


class Writer:
    """One checkpoint on its way into the journal."""

    def __init__(self, fenced: Fenced, head: Head, there: Catalogue, by: str) -> None:
        self._fenced = fenced
        self._head = head
        self._there = there
        self._by = by
        self._begin = 0
        self._held: list[Buffer] = []
        self._held_bytes = 0
        self._written = 0

    @classmethod
    async def begin(
        cls,
        client: AsyncClient,
        instance: str,
        owner: str,
        reach: Again,
        head: Head,
        kept: Iterable[bytes],
        *,
        is_first: bool = False,
    ) -> Writer:
        """Claim the journal and begin; `head.number` is set to the next one.

        The first one of an instance that begins anew is number 1: those before it are of another life, and go.
        """
        journal = journal_name(instance, "checkpoints")
        record = b"".join(_frame(CLAIM, owner.encode()))
        if not is_first:  # who comes too late does not disturb one that is being written
            _refuse_earlier(await steadily(reach, lambda: catalogue(client, instance)), head, journal)
        own = await steadily(reach, lambda: claim(client, journal, owner, record))
        assert own is not None
        there = Catalogue() if is_first else await steadily(reach, lambda: catalogue(client, instance))
        _refuse_earlier(there, head, journal)
        number = there.last.number + 1 if there.last else 1
        writer = cls(Fenced(client, own, reach), msgspec.structs.replace(head, number=number), there, owner)
        with step("immortal-checkpoint-begin"):
            begin, _ = await writer._fenced.append(_frame(BEGIN, msgspec.json.encode(writer._head)))
        writer._begin = begin
        for messages in kept:
            await writer._add(messages)
        return writer

    async def write(self, piece: Buffer) -> None:
        """Bytes of the binding's blob."""
        self._written += len(piece)
        await self._add(piece)

    async def _add(self, piece: Buffer) -> None:
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes >= PIECE:
            await self._flush()

    async def _flush(self) -> None:
        if not self._held:
            return
        data = b"".join(self._held)
        self._held, self._held_bytes = [], 0
        with step("immortal-checkpoint-data"):
            await self._fenced.append(_frame(DATA, data))

    async def commit(self, keep: int) -> tuple[Entry, Catalogue]:
        """Make it count, and forget all but the last `keep`; trimming is the caller's."""
        if self._written != self._head.size:
            raise PenstockError(f"a checkpoint of {self._written} bytes; {self._head.size} were announced")
        await self._flush()
        end = self._fenced.end
        head = self._head
        entry = Entry(
            head.number,
            head.version,
            head.state.sequence,
            head.log_offset,
            self._begin,
            end,
            head.size,
            time.time(),
            self._by,
        )
        kept = Catalogue([*self._there.entries, entry][-keep:])
        frame = _frame(END, msgspec.json.encode(kept))
        size = sum(map(len, frame))
        expected = 0

        def place(begin: int) -> LabelSet:
            nonlocal expected
            expected = begin
            return labels.label_set({CATALOGUE: f"{begin}-{begin + size}"})

        while True:
            with step("immortal-checkpoint-commit"):
                landed, _ = await self._fenced.append(frame, place)
            if landed == expected:  # or else somebody appends without a claim
                return entry, kept


def _refuse_earlier(there: Catalogue, head: Head, journal: str) -> None:
    if there.last is not None and there.last.log_offset > head.log_offset:
        raise FencedError(
            f"journal {journal}: checkpoint {there.last.number} is of a later place of the log, "
            f"{there.last.log_offset}, than this one, {head.log_offset}"
        )


def _decoded(content: Buffer, kind: type[Catalogue], journal: str, position: int) -> Catalogue:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptError(
            f"a catalogue that does not read ({error})", where=journal, position=position
        ) from None


async def frames(client: AsyncClient, journal: str, begin: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
    """The frames of [begin, end), one at a time."""
    buffer = bytearray()
    position = begin
    async with client.read(journal, begin, end) as reader:
        async for offset, chunk in reader:
            if offset != position + len(buffer):
                raise _gone(journal, position + len(buffer))
            buffer += chunk
            while len(buffer) >= _FRAME.size:
                length, kind = _FRAME.unpack_from(buffer)
                if length > MAX_FRAME or kind not in b"CBDE":
                    raise CorruptError(
                        f"no frame of a checkpoint (kind {kind})", where=journal, position=position
                    )
                if len(buffer) < _FRAME.size + length:
                    break
                payload = bytes(buffer[_FRAME.size : _FRAME.size + length])
                del buffer[: _FRAME.size + length]
                position += _FRAME.size + length
                yield kind, payload
    if position + len(buffer) < end:
        raise _gone(journal, position + len(buffer))
    if buffer:
        raise CorruptError("a checkpoint that breaks off", where=journal, position=position)


class Loaded:
    """A checkpoint being read: first its head and the messages that outputs kept, then the blob in pieces."""

    def __init__(self, client: AsyncClient, instance: str, entry: Entry) -> None:
        journal = journal_name(instance, "checkpoints")
        self._journal = journal
        self._entry = entry
        self._frames = frames(client, journal, entry.begin, entry.end)
        self._rest = b""

    async def head(self) -> tuple[Head, list[bytes]]:
        """To be asked for first."""
        kind, payload = await anext(self._frames)
        if kind != BEGIN:
            raise CorruptError("no checkpoint begins here", where=self._journal, position=self._entry.begin)
        try:
            head = msgspec.json.decode(payload, type=Head)
        except msgspec.DecodeError as error:
            raise CorruptError(
                f"a head that does not read ({error})", where=self._journal, position=self._entry.begin
            ) from None
        kept = [await self._take(output.size) for output in head.state.outputs]
        return head, kept

    async def _take(self, size: int) -> bytes:
        pieces = [self._rest]
        have = len(self._rest)
        while have < size:
            piece = await self._next()
            pieces.append(piece)
            have += len(piece)
        whole = b"".join(pieces)
        self._rest = whole[size:]
        return whole[:size]

    async def _next(self) -> bytes:
        async for kind, payload in self._frames:
            if kind == DATA:
                return payload
        raise CorruptError("a checkpoint that is too short", where=self._journal, position=self._entry.end)

    async def blob(self) -> AsyncIterator[bytes]:
        """The binding's blob, all of it."""
        left = self._entry.size
        while left > 0:
            piece, self._rest = self._rest or await self._next(), b""
            if len(piece) > left:
                raise CorruptError(
                    "a checkpoint that is too long", where=self._journal, position=self._entry.end
                )
            left -= len(piece)
            yield piece
