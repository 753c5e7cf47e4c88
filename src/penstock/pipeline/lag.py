"""How far a sink is behind the end of the log, in bytes and in time, against the limit it was given (DESIGN 9)."""

from __future__ import annotations

import logging
import time

from penstock.log.commitlog import LogReader
from penstock.log.positions import LogPoint
from penstock.pipeline.policy import MaxLag, WhenBehind

log = logging.getLogger(__name__)

AGE_EVERY = 2.0
"""Seconds between two looks for the oldest message that is missing."""


class Lag:
    """How far a sink is behind, against its `max_lag`; warns at half and at four fifths of it."""

    def __init__(self, sink: str, limit: MaxLag | None, reader: LogReader) -> None:
        self._sink = sink
        self._limit = limit or MaxLag()
        self._reader = reader
        self._looked = 0.0
        self._told = 0.0
        self.seconds = 0.0
        self.share = 0.0
        """Of the limit; 1 and more is beyond it."""

    @property
    def detaches(self) -> bool:
        return self.share >= 1 and self._limit.then is WhenBehind.DETACH

    def look(self, at: LogPoint, end: LogPoint) -> None:
        """Measure, now and then: the age of the oldest message that is missing costs a look into the log."""
        now = time.monotonic()
        if now - self._looked < AGE_EVERY:
            return
        self._looked = now
        behind = end.offset > at.offset
        self.seconds = self._age(at, end) if behind else 0.0
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

    def _age(self, at: LogPoint, end: LogPoint) -> float:
        for _, record in self._reader.records(at.byte, end.byte):
            if not record.control and record.offset >= at.offset:
                return max(time.time() - record.ts / 1e6, 0.0)
        return 0.0
