"""How far a sink is behind the end of the log, in bytes and in time, against the limit it was given (DESIGN 9).

A message counts as old as its source says. But what came while this was looked at is no older than that: a source that
catches up logs old messages, and nobody is behind for that. Nor is anybody for the time in which nothing ran, or
because the clock was set forward.
"""

from __future__ import annotations

import logging
import time
from collections import deque

from penstock.log.commitlog import LogReader
from penstock.log.positions import LogPoint
from penstock.pipeline.policy import MaxLag, WhenBehind

log = logging.getLogger(__name__)

AGE_EVERY = 2.0
"""Seconds between two looks for the oldest message that is missing."""

_ENDS = 1000
"""So many of them are remembered; of a sink that stands still, fewer and fewer for the same time."""


class Lag:
    """How far a sink is behind, against its `max_lag`; warns at half and at four fifths of it."""

    def __init__(self, sink: str, limit: MaxLag | None, reader: LogReader, rest: float = 0.0) -> None:
        """`rest` is for how many seconds nothing ran before this."""
        self._sink = sink
        self._limit = limit or MaxLag()
        self._reader = reader
        self._rest = rest
        self._looked = 0.0
        self._told = 0.0
        self._ends: deque[tuple[float, int]] = deque()
        """When the log was seen to end where; from the last time on that it ended before what the sink lacks."""
        self._behind = False
        self.seconds = 0.0
        self.share = 0.0
        """Of the limit; 1 and more is beyond it."""

    @property
    def detaches(self) -> bool:
        return self.share >= 1 and self._limit.then is WhenBehind.DETACH

    def look(self, at: LogPoint, end: LogPoint) -> None:
        """Measure, now and then: the age of the oldest message that is missing costs a look into the log."""
        now = time.monotonic()
        since = now - self._looked
        if since < AGE_EVERY:
            return
        self._looked = now
        self._ends.append((now, end.offset))
        while len(self._ends) > 1 and self._ends[1][1] <= at.offset:
            self._ends.popleft()
        if len(self._ends) > _ENDS:
            self._ends = deque(list(self._ends)[::2])
        behind, was_behind = end.offset > at.offset, self._behind
        waited = self._waited(at, end, now) if behind else 0.0
        # It cannot lack something for longer than that, whatever the time of day has become meanwhile.
        self.seconds = min(waited, self.seconds + since) if was_behind else waited
        self._behind = behind
        used = end.byte - at.byte if behind else 0
        shares = [
            used / self._limit.bytes if self._limit.bytes else 0.0,
            self.seconds / self._limit.seconds if self._limit.seconds else 0.0,
        ]
        self.share = max(shares)
        for mark in (0.8, 0.5):
            if self.share >= mark > self._told:
                self._told = mark
                log.warning("sink %s: at %.0f %% of its max_lag", self._sink, 100 * self.share)
        if self.share < 0.5:
            self._told = 0.0

    def _waited(self, at: LogPoint, end: LogPoint, now: float) -> float:
        """For how long the sink has lacked something, as far as that is known."""
        seen, offset = self._ends[0]
        age = self._age(at, end)
        if age is None:
            return now - seen
        return min(age, now - seen) if offset <= at.offset else max(age - self._rest, 0.0)

    def _age(self, at: LogPoint, end: LogPoint) -> float | None:
        """How old the first message is that the sink lacks; None if its source does not say."""
        for _, record in self._reader.records(at.byte, end.byte):
            if not record.control and record.offset >= at.offset:
                return max(time.time() - record.ts / 1e6, 0.0) if record.ts > 0 else None
        return 0.0
