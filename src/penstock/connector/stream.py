"""What an author of a source writes: streams of records. `penstock.connector.source` says who calls what, and when."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.base.errors import PenstockError, UsageError
from penstock.connector.frames import SHORT_LIMIT


class Record(NamedTuple):
    """One message of a stream. `time` is the event's, in whatever unit the readers agree on."""

    id: int
    body: bytes
    key: bytes = b""
    time: int = 0


Records = Sequence[Record] | Sequence[tuple[int, bytes, bytes, int]] | None
"""Plain tuples of the same four do as well, and are made faster; faster yet is `penstock.connector.columns.Columns`."""


class CannotSeekError(PenstockError):
    """The source no longer has what comes behind the point that it was asked for."""


class SourceFailedError(PenstockError):
    """The connector ended, since one of its streams or the worker said that it cannot go on."""


class Stream(ABC):
    """One stream; see the text of `penstock.connector.source`. `name` identifies it for good: its id is made of it."""

    name: str
    blocking = False

    @abstractmethod
    def seek(self, point: int | None) -> Awaitable[None] | None:
        """Go to the first record behind `point`, or earlier; None is the beginning."""

    @abstractmethod
    def read(self) -> Records | Awaitable[Records]:
        """The next records, some thousands at most; empty if there are none now, None if there will be none."""

    def ack(self, point: int) -> Awaitable[None] | None:
        """Everything up to this id is durable."""
        return None


class IteratorStream(Stream):
    """A stream from a function that gives an iterator of records behind a point (None: of all)."""

    def __init__(
        self,
        name: str,
        records: Callable[[int | None], Iterable[Record]],
        *,
        blocking: bool = False,
        batch: int = 1000,
    ) -> None:
        self.name = name
        self.blocking = blocking
        self._records = records
        self._batch = batch
        self._left: Iterator[Record] = iter(())

    def seek(self, point: int | None) -> None:
        self._left = iter(self._records(point))

    def read(self) -> Records:
        batch = []
        for record in self._left:
            batch.append(record)
            if len(batch) >= self._batch:
                break
        return batch or None


def stream_id(name: str) -> int:
    """The id of a stream: the first eight bytes of the SHA-256 of its name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def require_name(name: str) -> None:
    """What no NOTIFY can carry is no name of a stream."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise UsageError(
            f"a stream cannot be called {name[:80]!r}: that is no text of UTF-8", hint="give it another name"
        ) from None
    if size > SHORT_LIMIT:
        raise UsageError(
            f"a stream cannot be called {name[:80]!r}…: that name has {size:,} bytes, the limit is {SHORT_LIMIT:,}"
        )


class Flow:
    """A stream and what the kit knows about it."""

    def __init__(self, stream: Stream) -> None:
        require_name(stream.name)
        self.stream = stream
        self.id = stream_id(stream.name)
        self.acked: int | None = None
        """The last id that is durable."""
        self.ended = False
        """Its end is durable."""
        self.at_end = False
        """`read` said that there is no more."""
        self._running: asyncio.Future[object] | None = None

    async def in_thread(self, method: Callable[[], object]) -> object:
        """Run a blocking method. One at a time: who asked for the one before may be gone, and a thread cannot be.

        What that one still does to the stream is done before the next is called, which is a `seek`.
        """
        while self._running is not None and not self._running.done():
            await asyncio.wait({self._running})
        self._running = asyncio.ensure_future(asyncio.to_thread(method))
        self._running.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._running)
