"""What comes next for a sink: the end of its next batch, planned in the runner's process.

Spark only says when (`batch.py`). Waiting is the broker's, and is ended from any thread: `halt` lets go whoever waits
for something to come, `hurry` whoever has something and waits for more of it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.base import faults
from penstock.journal.client import Halt
from penstock.log.positions import LogPoint
from penstock.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

    from penstock.spark.planning import RecordPlanner


class Upcoming:
    """The plan of one sink. Asked by the thread that carries out batches; ended by any."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._halt, self._hurry = Halt(), Halt()

    @property
    def halted(self) -> bool:
        return self._halt.asked

    def halt(self) -> None:
        """There is to be no further batch."""
        self._halt.ask()
        self._hurry.ask()

    def hurry(self) -> None:
        """Nothing more comes into the log: no batch needs to wait for it."""
        self._hurry.ask()

    def resume(self) -> None:
        self._halt.clear()
        self._hurry.clear()

    def end(self, begin: LogPoint) -> LogPoint | None:
        """Where a batch from there on ends, once there is something for it; None if there is to be none."""
        while not self.halted:
            with faults.step("plan"):
                end = self.planner.upcoming(begin)
            if end != begin:
                return end
        return None

    def more(self, at: LogPoint) -> bool:
        """Whether there is something behind `at` by now."""
        return not self.halted and self.beyond(at)

    def beyond(self, at: LogPoint) -> bool:
        return self.planner.head() > at.byte

    def ranges(self, begin: LogPoint, end: LogPoint) -> Sequence[InputPartition]:
        return self.planner.between(begin, end)

    @functools.cached_property
    def planner(self) -> RecordPlanner:
        """Made for the first batch: a run that has none does without the modules of Spark that it needs."""
        from penstock.spark.planning import RecordPlanner

        planner = RecordPlanner(self._options, stream=True)
        planner.halt, planner.hurry = self._halt, self._hurry
        return planner
