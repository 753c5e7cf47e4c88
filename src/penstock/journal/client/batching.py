"""Which records of an appender go together, which batches are under way, and what is sent again after what.

Pure: no clock, no sockets, no files. Records come in order and leave in order. A batch is open while records are
added to it, then queued, then in flight, then landed; when a connection breaks, all that was in flight goes back to
the front of the queue, in order. So what has landed is always a prefix of what was added, save that a batch whose
answer was lost may be in the journal twice (see `appender` for how an owner rules that out).

    open --full, or nothing in flight--> queue --room in the window--> flight --answer--> landed
                                           ^                              |
                                           +------- broken, refused ------+
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from penstock.journal.client.answers import Appended
from penstock.journal.protocol import Status
from penstock.journal.wholes import Pieces

MESSAGE_LIMIT = 3 << 20
"""A batch up to this size fits a message of `penstock.Local/Appends`; brokers take 4 MiB (reference 9)."""

LARGE_RECORD = 128 << 10
"""Records of this size on the average are not copied into one piece."""

GIVES_UP = frozenset(
    {
        Status.FRAGMENT_STORE_UNHEALTHY,
        Status.INDEX_HAS_GREATER_OFFSET,
        Status.JOURNAL_NOT_FOUND,
        Status.NOT_ALLOWED,
        Status.REGISTER_MISMATCH,
        Status.WRONG_APPEND_OFFSET,
    }
)
"""The statuses that no waiting mends (reference 23)."""

OnCommit = Callable[[Appended], None]


def gives_up(status: int, *, checked: bool) -> bool:
    """Whether an appender ends with this status. One that checks registers waits for them to become right."""
    return status in GIVES_UP and not checked


class Place(Protocol):
    """Where the content of a batch is kept while it is not in memory."""

    def load(self) -> bytes: ...

    def drop(self) -> None: ...


class Batch:
    """Records that are appended together."""

    __slots__ = (
        "callbacks",
        "content",
        "doubtful",
        "first",
        "length",
        "lengths",
        "outcome",
        "place",
        "records",
    )

    def __init__(self, first: int) -> None:
        self.first = first
        """The number of its first record, counted from 0 over the appender's life."""
        self.records: list[bytes] = []
        self.length = 0
        self.lengths = array("Q")
        self.content: bytes | Pieces | None = None
        self.place: Place | None = None
        self.doubtful = False
        """Whether it may be in the journal although no answer came."""
        self.callbacks: list[tuple[int, int, OnCommit]] = []
        self.outcome: Appended | None = None

    @property
    def count(self) -> int:
        return len(self.lengths) or len(self.records)

    def seal(self) -> None:
        """No more records: from now on it is one piece of bytes, or a few large ones where they lie."""
        records = self.records
        large = self.length >= LARGE_RECORD * len(records)
        self.content = Pieces(records) if large else b"".join(records)
        self.lengths = array("Q", map(len, records))
        self.records = []

    def split(self) -> Iterator[bytes]:
        """The records, one by one."""
        if self.content is None and self.place is None:
            yield from self.records
            return
        content = self.content
        if content is None:
            assert self.place is not None
            content = self.place.load()
        if isinstance(content, Pieces):
            yield from map(bytes, content.parts)
            return
        position = 0
        for length in self.lengths:
            yield content[position : position + length]
            position += length


class Batches:
    """The batches of one appender."""

    def __init__(self, max_batch: int, window: int) -> None:
        self._max_batch = max_batch
        self._window = window
        self.open = Batch(0)
        self.queue: deque[Batch] = deque()
        self.flight: deque[Batch] = deque()
        self.committed = 0
        """Records that have landed."""
        self._sealed_bytes = 0
        self.memory = 0
        """Bytes of sealed batches that are in memory."""

    @property
    def added(self) -> int:
        """Records that were added, ever."""
        return self.open.first + self.open.count

    @property
    def pending_bytes(self) -> int:
        """Bytes that have not landed."""
        return self._sealed_bytes + self.open.length

    @property
    def pending_records(self) -> int:
        return self.added - self.committed

    def add(self, record: bytes) -> bool:
        """Take a record; True if it is the first of its batch, or the one that fills it."""
        batch = self.open
        records = batch.records
        records.append(record)
        batch.length = length = batch.length + len(record)
        return length >= self._max_batch or len(records) == 1

    def add_many(self, records: Sequence[bytes]) -> Iterator[None]:
        """Take records in order; yields whenever a batch has become full, for the caller to `seal` it.

        Slices that fit are taken as a whole, since counting one by one costs more than all the rest.
        """
        step = 512
        for at in range(0, len(records), step):
            some = records[at : at + step]
            size = sum(map(len, some))
            if self.open.length + size <= self._max_batch:
                self.open.records.extend(some)
                self.open.length += size
                continue
            for record in some:
                self.add(record)
                if self.is_full:
                    yield

    @property
    def is_full(self) -> bool:
        return self.open.length >= self._max_batch

    def seal(self) -> Batch | None:
        """Put the open batch into the queue; None if it is empty."""
        batch = self.open
        if not batch.records:
            return None
        batch.seal()
        self.open = Batch(batch.first + batch.count)
        self.queue.append(batch)
        self._sealed_bytes += batch.length
        self.memory += batch.length
        return batch

    def take(self, *, urgent: bool = False) -> Batch | None:
        """The next batch to send, now in flight; None if nothing may be sent at the moment.

        The open batch goes along only when nothing is in flight, so that it grows while it would wait anyway;
        or when it is urgent. A batch too large for a message travels alone.
        """
        flight = self.flight
        if len(flight) >= self._window or (flight and flight[-1].length > MESSAGE_LIMIT):
            return None
        if not self.queue and ((flight and not urgent) or self.seal() is None):
            return None
        if flight and self.queue[0].length > MESSAGE_LIMIT:
            return None
        batch = self.queue.popleft()
        flight.append(batch)
        return batch

    def take_queued(self, limit: int) -> Batch | None:
        """As `take`, of a batch that waits already and is no longer than `limit`."""
        if len(self.flight) >= self._window or not self.queue or self.queue[0].length > limit:
            return None
        self.flight.append(self.queue.popleft())
        return self.flight[-1]

    def landed(self) -> Batch:
        """The oldest batch in flight is in the journal."""
        return self._done(self.flight.popleft())

    def broken(self, *, doubtful: bool) -> None:
        """Nothing more will be heard of what is in flight: it is to be sent again, in order."""
        while self.flight:
            batch = self.flight.pop()
            batch.doubtful = batch.doubtful or doubtful
            self.queue.appendleft(batch)

    def settle(self, landed: int) -> list[Batch] | None:
        """Of the batches in doubt, those that are in the journal, `landed` bytes of them being there.

        The others are not, and are no longer in doubt. None if no number of batches makes up that many bytes.
        """
        done: list[Batch] = []
        for batch in self.queue:
            if not batch.doubtful or landed < batch.length:
                break
            landed -= batch.length
            done.append(batch)
        if landed:
            return None
        for batch in done:
            self.queue.popleft()
            self._done(batch)
        for batch in self.queue:
            batch.doubtful = False
        return done

    @property
    def doubtful(self) -> int:
        """Records that may be in the journal although no answer came."""
        return sum(batch.count for batch in (*self.flight, *self.queue) if batch.doubtful)

    def moved_out(self, batch: Batch, place: Place) -> None:
        """The content of a queued batch is elsewhere now."""
        batch.content, batch.place = None, place
        self.memory -= batch.length

    def moved_in(self, batch: Batch, content: bytes) -> None:
        """The content of a batch is in memory again."""
        assert batch.place is not None
        batch.place.drop()
        batch.content, batch.place = content, None
        self.memory += batch.length

    def unacknowledged(self) -> Iterator[bytes]:
        """The records that have not landed as far as is known, in order."""
        for batch in (*self.flight, *self.queue, self.open):
            yield from batch.split()

    def all(self) -> Iterable[Batch]:
        return (*self.flight, *self.queue, self.open)

    def _done(self, batch: Batch) -> Batch:
        self._sealed_bytes -= batch.length
        if batch.place is not None:
            batch.place.drop()
            batch.place = None
        else:
            self.memory -= batch.length
        batch.content = None
        batch.doubtful = False
        self.committed += batch.count
        return batch
