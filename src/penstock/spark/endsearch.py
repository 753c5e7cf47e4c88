"""Where the next batch of a commit log ends: as far as the limits allow, and at no place within a unit (`log.units`).

The search goes from record to record. A unit that is larger than the limits makes the batch larger, since it is given
whole; one that has no end yet is not given at all. Then the search has found nothing, and goes on where it stopped
once there is more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.log.message import ByteOffset, MessageOffset
from penstock.log.positions import LogPoint
from penstock.log.units import Borders

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from penstock.spark.columns import RecordEnds
    from penstock.spark.ranges import Window


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one micro-batch may hold; None: any number."""

    max_bytes: int | None
    max_rows: int | None


class EndSearch:
    """Looks for the end of a batch that begins at `begin`."""

    def __init__(self, begin: LogPoint, limits: Limits) -> None:
        self.begin = begin
        self.byte: int = begin.byte
        """How far it has looked."""
        self._limits = limits
        self._borders = Borders()
        self._seen = [begin]
        self._usable = 1
        """So many of the places seen lie before the end of the batch as far as it is known, or at it."""

    def goes_on(self, begin: LogPoint, limits: Limits) -> bool:
        """Whether this search is about the same batch, and has not found its end."""
        return (self.begin, self._limits, self._usable) == (begin, limits, 1)

    def points(self) -> list[LogPoint]:
        """The begin, some places between records, and the end last; only the begin if there is no end yet."""
        return self._seen[: self._usable]

    def go_on(self, window: Window, journal: str) -> None:
        """Look at what comes through the window, which begins where this search has stopped."""
        from penstock.spark import columns

        while window.fill():
            found = columns.record_ends(window.view, journal, window.base, self._seen[-1].offset)
            if not len(found.ends):
                continue
            if self._take(found):
                return
            self.byte = int(found.ends[-1])
            window.consume(self.byte - window.base)

    def _take(self, found: RecordEnds) -> bool:
        """Look at some records; whether the end of the batch lies among or before them, for sure."""
        import numpy as np

        outside = self._borders.among(found.ends, found.marks)
        within = self._within(found)
        fitting = np.flatnonzero(outside & within)
        if len(fitting):
            self._add(found, int(fitting[-1]), usable=True)
        if not within.all() and self._usable == 1 and outside.any():
            self._add(found, int(np.argmax(outside)), usable=True)
        if not within.all() and self._usable > 1:
            return True
        if not outside[-1]:  # a good place to divide the work of a large unit, though not for its end
            self._add(found, len(found.ends) - 1, usable=False)
        return False

    def _within(self, found: RecordEnds) -> NDArray[np.bool_]:
        import numpy as np

        within = np.ones(len(found.ends), np.bool_)
        if self._limits.max_bytes is not None:
            within &= found.ends <= self.begin.byte + self._limits.max_bytes
        if self._limits.max_rows is not None:
            within &= found.following <= self.begin.offset + self._limits.max_rows
        return within

    def _add(self, found: RecordEnds, i: int, *, usable: bool) -> None:
        point = LogPoint(MessageOffset(int(found.following[i])), ByteOffset(int(found.ends[i])))
        self._seen.append(point)
        self._usable = len(self._seen) if usable else self._usable
