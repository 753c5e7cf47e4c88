"""What an instance has sent and nobody has durably received yet: one `Output` a destination (reference 10).

Two countings meet here. Replayable messages (all but Impulses) come again in the same order when the instance replays
its log, so their count, `replayable`, is the same in every life. Positions also count the Impulses of this life. The
receiver counts what it accepted, with and without Impulses, and says both when a stream opens:

    first opening in a life    nothing of this life was received: go on behind its last replayable one. All
                               Impulses here are new, and come later than anything that was replayed.
    opening again              its number says exactly where to go on; if the pair does not fit what was sent
                               here, a predecessor of ours was heard meanwhile: go on behind the replayable
                               one, without the Impulses in between, of which nobody knows who has them.

Numbers of the receiver are positions plus `shift`; its replayable numbers are ours minus `base`, which is not zero if
it was made anew and had forgotten us. Messages stay here until the receiver says that they are durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

from penstock.base.disk import Buffer
from penstock.immortal.wire.between import ReplayFrom
from penstock.immortal.wire.messages import MessageType, encode_message
from penstock.immortal.wire.rpc import is_replayable
from penstock.immortal.wire.zigzag import decode_int, encode_int

ENVELOPE = 1 << 20
"""About so many bytes go into one batch."""
MERGED = 64 << 10
"""Up to so many bytes, what comes in small pieces is put together."""


class Chunk:
    """Messages as the receiver's binding will get them, back to back."""

    __slots__ = ("count", "data", "position", "replayable", "replayable_before")

    def __init__(
        self, data: bytes | bytearray, position: int, replayable_before: int, count: int, replayable: int
    ) -> None:
        self.data = data
        self.position = position
        """How many messages come before the first one."""
        self.replayable_before = replayable_before
        self.count = count
        self.replayable = replayable

    @property
    def end(self) -> int:
        return self.position + self.count

    @property
    def replayable_end(self) -> int:
        return self.replayable_before + self.replayable

    def without(self, position: int) -> Chunk:
        """What is left of it from a position inside."""
        return self._cut(lambda at, _: at >= position)

    def beyond(self, replayable: int) -> Chunk:
        """What is left of it behind a replayable message inside."""
        return self._cut(lambda _, before: before >= replayable)

    def _cut(self, reached: Callable[[int, int], bool]) -> Chunk:
        position, before = self.position, self.replayable_before
        for start, _, counts in walk(self.data):
            if reached(position, before):
                return Chunk(
                    self.data[start:],
                    position,
                    before,
                    self.end - position,
                    self.replayable_end - before,
                )
            position += 1
            before += counts
        return Chunk(b"", self.end, self.replayable_end, 0, 0)

    def before(self, rest: Chunk) -> Chunk:
        """What is left of it without a rest that was cut from its end."""
        return Chunk(
            self.data[: len(self.data) - len(rest.data)],
            self.position,
            self.replayable_before,
            self.count - rest.count,
            self.replayable - rest.replayable,
        )

    def join(self, other: Chunk) -> None:
        """Take in the messages of the one that follows."""
        if not isinstance(self.data, bytearray):
            self.data = bytearray(self.data)
        self.data += other.data
        self.count += other.count
        self.replayable += other.replayable

    def only_replayable(self) -> bytes:
        """The messages that come again when the instance replays."""
        if self.replayable == self.count:
            return bytes(self.data)
        return b"".join(self.data[start:end] for start, end, counts in walk(self.data) if counts)


def walk(data: Buffer) -> Iterator[tuple[int, int, bool]]:
    """Begin and end of each message, and whether it is replayable."""
    at = 0
    while at < len(data):
        size, start = decode_int(data, at)
        end = start + size
        yield at, end, is_replayable(memoryview(data)[start + 1 : end])
        at = end


def envelope(data: Buffer, count: int, replayable: int) -> bytes:
    """Messages as they travel together: one alone is bare, for bindings misread a batch of one."""
    if count == 1:
        return bytes(data)
    if replayable == count:
        return encode_message(MessageType.RPC_BATCH, encode_int(count) + data)
    head = encode_int(count) + encode_int(replayable)
    return encode_message(MessageType.COUNT_REPLAYABLE_RPC_BATCH, head + data)


class Output:
    """Everything for one destination; the empty name is the instance itself."""

    def __init__(self, name: str, *, replayable: int = 0) -> None:
        self.name = name
        self.position = replayable
        """How many messages the binding has sent, as counted in this life."""
        self.replayable = replayable
        self.acked = replayable
        """The position up to which the receiver has everything durably."""
        self.acked_replayable = replayable
        self.incarnation = ""
        """Which making of the receiver the counting belongs to; empty before it was first met."""
        self.base = 0
        self.shift = 0
        self.cursor = 0
        """The position of the next message to send, once the stream is open."""
        self.is_met = False
        """Whether a stream was open in this life."""
        self.size = 0
        self._sent: deque[Chunk] = deque()
        self._unsent: deque[Chunk] = deque()

    def take(self, data: bytes, count: int, replayable: int) -> None:
        """Messages from the binding. What the receiver is known to have is counted and dropped."""
        chunk = Chunk(data, self.position, self.replayable, count, replayable)
        self.position += count
        self.replayable += replayable
        if chunk.replayable_before < self.acked_replayable:
            chunk = chunk.beyond(self.acked_replayable)
            self.acked = max(self.acked, chunk.position)
        if chunk.count:
            self.size += len(chunk.data)
            self._add(chunk)

    def durable_replayable(self, replayable: int) -> None:
        """The receiver is known to have so many replayable ones, of which some may come again yet (in replay)."""
        if replayable <= self.acked_replayable:
            return
        self.acked_replayable = replayable
        while (first := self._first()) is not None:
            if first.replayable_end > replayable or first.replayable < first.count:
                if first.replayable_before < replayable:
                    self._replace_first(first.beyond(replayable))
                break
            self._drop_first()
        first = self._first()
        self.acked = max(self.acked, self.position if first is None else first.position)

    def committed(self, number: int, replayable: int) -> bool:
        """The receiver has everything up to its number; whether that is news."""
        position = number - self.shift
        if position > self.position:  # it knows more than this life has sent again so far
            self.durable_replayable(replayable + self.base)
            return False
        if position <= self.acked:
            return False
        while (first := self._first()) is not None and first.end <= position:
            self.acked_replayable = first.replayable_end
            self._drop_first()
        if first is not None and first.position < position:
            rest = first.without(position)
            self.acked_replayable = rest.replayable_before
            self._replace_first(rest)
        self.acked = position
        return True

    def open(self, wanted: ReplayFrom) -> None:
        """The receiver says what it wants next."""
        replayable = wanted.replayable + self.base - 1
        position = wanted.number - self.shift - 1
        if not self.is_met:
            # Before the end of a replay this may be further than the binding has come: then it waits there. Impulses
            # are behind it in this life if one who was made anew since was heard to have them.
            position = replayable + max(0, self.acked - self.acked_replayable)
            self.shift = wanted.number - 1 - position
        elif position > self.position or self._replayable_at(position) != replayable:
            position = self._next_replayable_after(replayable)
            self.shift = wanted.number - 1 - position
        self.is_met = True
        self._rewind(position)

    def unsent(self, limit: int = ENVELOPE) -> tuple[bytes, int, int] | None:
        """The next messages to send, in their envelope, with how many there are and how many replayable ones."""
        if not self._unsent:
            return None
        pieces: list[Buffer] = []
        count = replayable = size = 0
        while self._unsent and (not pieces or size + len(self._unsent[0].data) <= limit):
            chunk = self._unsent.popleft()
            self._sent.append(chunk)
            pieces.append(chunk.data)
            size += len(chunk.data)
            count += chunk.count
            replayable += chunk.replayable
        self.cursor = self._sent[-1].end
        return envelope(b"".join(pieces), count, replayable), count, replayable

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def forgotten(self, incarnation: str) -> None:
        """The receiver was made anew: it counts from nothing, and gets what its predecessor did not have."""
        self.incarnation = incarnation
        self.base = self.acked_replayable
        self.is_met = False

    def kept(self) -> list[bytes]:
        """What a checkpoint has to keep: replayable messages that are not durable at the receiver."""
        return [data for chunk in chain(self._sent, self._unsent) if (data := chunk.only_replayable())]

    @property
    def kept_count(self) -> int:
        return sum(chunk.replayable for chunk in chain(self._sent, self._unsent))

    def restore(self, data: bytes, count: int) -> None:
        """What a checkpoint kept: the last `count` of the replayable ones. In pieces: all of it may be too much for one
        message."""
        position = self.acked = self.acked_replayable = self.position - count
        begin = held = 0
        for start, end, _ in walk(data):
            if held and end - begin > ENVELOPE:
                self._unsent.append(Chunk(data[begin:start], position, position, held, held))
                begin, position, held = start, position + held, 0
            held += 1
        if held:
            self._unsent.append(Chunk(data[begin:], position, position, held, held))
        self.size += len(data)

    def _add(self, chunk: Chunk) -> None:
        """Behind the rest; what the receiver told to have already counts as sent."""
        if self.is_met and chunk.position < self.cursor:
            rest = chunk.without(self.cursor)
            if rest.position > chunk.position:
                self._sent.append(chunk.before(rest))
            chunk = rest
        if not chunk.count:
            return
        last = self._unsent[-1] if self._unsent else None
        if last is not None and len(last.data) + len(chunk.data) <= MERGED:
            last.join(chunk)
        else:
            self._unsent.append(chunk)

    def _rewind(self, position: int) -> None:
        chunks = [*self._sent, *self._unsent]
        self._sent.clear()
        self._unsent.clear()
        self.cursor = position
        for chunk in chunks:
            if chunk.end <= position:
                self._sent.append(chunk)
            else:
                self._add(chunk)

    def _replayable_at(self, position: int) -> int:
        """How many replayable messages come before a position."""
        if position == self.acked:
            return self.acked_replayable
        for chunk in chain(self._sent, self._unsent):
            if chunk.position <= position < chunk.end:
                return chunk.without(position).replayable_before
        return self.replayable if position == self.position else -1

    def _next_replayable_after(self, replayable: int) -> int:
        """The position of the first replayable message behind so many of them, also where a replay has not come to it:
        until then there are no Impulses."""
        for chunk in chain(self._sent, self._unsent):
            if chunk.replayable_end <= replayable:
                continue
            position, before = chunk.position, chunk.replayable_before
            for _, _, counts in walk(chunk.data):
                if counts and before >= replayable:
                    return position
                position += 1
                before += counts
        return self.position + max(0, replayable - self.replayable)

    def _first(self) -> Chunk | None:
        if self._sent:
            return self._sent[0]
        return self._unsent[0] if self._unsent else None

    def _drop_first(self) -> None:
        dropped = (self._sent or self._unsent).popleft()
        self.size -= len(dropped.data)

    def _replace_first(self, rest: Chunk) -> None:
        where = self._sent or self._unsent
        self._drop_first()
        if rest.count:
            where.appendleft(rest)
            self.size += len(rest.data)
