"""What `penstock connector send` knows of its streams when it is told to stop: what a worker has of each, and what not.

A stream is *behind* if something of it is not durable as far as it can be told: nobody has taken it, it has an end
that was not reached, or something was read and is not acknowledged.
"""

from __future__ import annotations

import asyncio
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
        self._taken = self._at_end = self._stopped = False

    def seek(self, point: int | None) -> None:
        self._taken, self._at_end = True, False
        self.durable = self._given = point
        self._stream.seek(point)

    def read(self) -> Records:
        if self._stopped:
            return []
        records = cast("Records", self._stream.read())
        if records is None:
            self._at_end = True
        elif len(records):
            self._given = Record(*records[-1]).id
        return records

    def ack(self, point: int) -> None:
        self.durable = point
        self._stream.ack(point)
        self._acked.set()

    def stop(self) -> None:
        """Read nothing more; what came to a port before it was closed is read all the same."""
        if isinstance(self._stream, Datagrams | Posts):
            self._stream.close()
        else:
            self._stopped = True

    @property
    def unsettled(self) -> bool:
        """Whether something was read that is not durable."""
        kept = isinstance(self._stream, Kept) and self._stream.unsettled
        return kept or self._given != self.durable

    @property
    def behind(self) -> bool:
        """Whether not all of it is durable."""
        return not self._taken or self.unsettled or (self._ends and not self._at_end)


def watched(streams: Sequence[Stream], acked: asyncio.Event, *, follow: bool) -> list[Watched]:
    """All of them; what `acked` is set for is an ACK. A pipe's end is not waited for any more than a port's."""
    open_ended = (Datagrams, PipeLines, Posts)
    return [Watched(each, acked, ends=not follow and not isinstance(each, open_ended)) for each in streams]


async def end_when_told(
    told: asyncio.Event, running: Connector, streams: Sequence[Watched], acked: asyncio.Event
) -> None:
    """Once it is told: read no more, wait a moment for the ACKs of what was read, and end the connector."""
    await told.wait()
    for each in streams:
        each.stop()
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_ACKS):
            while running.link is not None and any(each.unsettled for each in streams):
                acked.clear()
                await acked.wait()
    running.stop()
