"""What `penstock connector send` knows of its streams when it is told to stop: what a worker has of each, and what not.

A stream is *behind* if something of it is not durable as far as it can be told: nobody has taken it, it has an end
that was not reached, or something was read and is not acknowledged.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from penstock.connector.sources import Datagrams, Kept, PipeLines, Posts
from penstock.connector.stream import Record, Records, Stream

if TYPE_CHECKING:
    from penstock.connector.source import Connector

_LAST_ACKS: Final = 2.0
"""Seconds for the ACKs of what was read before a signal."""


class Watched(Stream):
    """A ready stream that is looked at on its way. `ends`: it has an end, and is whole only there."""

    def __init__(self, stream: Stream, acked: asyncio.Event, *, ends: bool) -> None:
        self.name = stream.name
        self.durable: int | None = None
        self._stream = stream
        self._acked = acked
        self._ends = ends
        self._given: int | None = None
        """The highest id that was ever read: a connection that is lost takes nothing of that back."""
        self._at: int | None = None
        """The last id that was read since the last `seek`."""
        self._taken = self._at_end = self._stopped = False

    def seek(self, point: int | None) -> None:
        self._taken = True
        self.durable = self._at = point
        self._gave(point)
        self._stream.seek(point)
        self._acked.set()  # what a worker says here counts as an ACK does

    def read(self) -> Records:
        if self._stopped:
            return self._again()
        records = cast("Records", self._stream.read())
        if records is None:
            self._at_end = True
        elif len(records):
            self._at = Record(*records[-1]).id
            self._gave(self._at)
        else:
            self._acked.set()  # what was read ahead of a pipe may be nothing that a journal lacks
        return records

    def _again(self) -> Records:
        """What had been read when it was told to stop, up to the end if that had been: a new connection may need it."""
        if not _is_below(self._at, self._given):
            return None if self._at_end else []
        records, given = cast("Records", self._stream.read()), self._given
        if not records or given is None:
            return records
        self._at = Record(*records[-1]).id
        return records[: bisect_right(records, given, key=lambda record: record[0])]

    def _gave(self, point: int | None) -> None:
        if _is_below(self._given, point):
            self._given, self._at_end = point, False

    def ack(self, point: int) -> None:
        self.durable = point
        self._stream.ack(point)
        self._acked.set()

    def stop(self) -> None:
        """Read nothing more; what came to a port or was taken from a pipe before that is given all the same."""
        if isinstance(self._stream, Datagrams | Posts):
            self._stream.close()
        elif isinstance(self._stream, PipeLines):
            self._stream.stop()
        else:
            self._stopped = True

    @property
    def unsettled(self) -> bool:
        """Whether something was read that is not durable."""
        kept = isinstance(self._stream, Kept) and self._stream.unsettled
        return kept or _is_below(self.durable, self._given)

    @property
    def behind(self) -> bool:
        """Whether not all of it is durable."""
        return not self._taken or self.unsettled or (self._ends and not self._at_end)


def _is_below(one: int | None, other: int | None) -> bool:
    """None is before all ids."""
    return other is not None and (one is None or one < other)


def watched(streams: Sequence[Stream], acked: asyncio.Event, *, follow: bool) -> list[Watched]:
    """All of them; what `acked` is set for is an ACK. A pipe's end is not waited for any more than a port's."""
    open_ended = (Datagrams, PipeLines, Posts)
    return [Watched(each, acked, ends=not follow and not isinstance(each, open_ended)) for each in streams]


async def end_when_told(
    told: asyncio.Event, running: Connector, streams: Sequence[Watched], acked: asyncio.Event
) -> None:
    """Once it is told: read no more, wait a moment for the ACKs of what was read, and end the connector.

    A connection that is lost meanwhile may be made again in that time. Nothing is read before a worker took a stream:
    so if none ever did there is nothing to wait for.
    """
    await told.wait()
    for each in streams:
        each.stop()
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_ACKS):
            while any(each.unsettled for each in streams):
                acked.clear()
                await acked.wait()
    running.stop()
