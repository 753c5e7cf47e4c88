"""A range of the log as one job of one task, which delivers it one message at a time (`single.py`).

The task has the sink's target and its offset log for itself: whoever runs the job has let go of both, and claims them
back behind it. Only the last pass of functions is in the task. What those before it refuse is known when they have
run, so they do first, and the job ends before the first message of that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import Refusal, Sink
from penstock.spark.reach import Reach
from penstock.spark.sealed import Safe
from penstock.spark.single import Delivered
from penstock.spark.staging import Staging
from penstock.spark.tasks import SingleTask
from penstock.spark.transform import Segment
from penstock.spark.work import told_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class SingleJob:
    """Delivers what lies below `end`; `refused` is the message there, if one is."""

    rows: DataFrame
    task: SingleTask
    here: bool
    """Whether it runs in this process."""
    end: int
    refused: Refusal | None

    def run(self) -> Delivered:
        delivered = msgspec.json.decode(self._report(), type=Delivered)
        if delivered.refused is not None:
            return delivered
        return dataclasses.replace(delivered, refused=self.refused)

    def _report(self) -> str:
        if self.here:
            (report,) = self.task(iter(self.rows.toArrow().to_batches()))
            return str(report.column("report")[0].as_py())
        (answer,) = self.rows.mapInArrow(self.task, "report STRING").collect()
        return str(answer[0])


@dataclass(frozen=True, slots=True)
class SingleJobs:
    """The jobs of one sink."""

    pipeline: str
    name: str
    sink: Sink
    passes: Sequence[Segment]
    stages: Staging
    safe: Safe
    reach: Reach
    log_id: str
    scratch: Path

    def job(self, frame: DataFrame, begin: int, end: int, acked: Sequence[int], limit: int) -> SingleJob:
        """For the messages [begin, end), of which an operator has acknowledged some."""
        work = frame.where(f"offset >= {begin} AND offset < {end}")
        refused = self._refused_before(work, acked, limit) if len(self.passes) > 1 else None
        if refused is not None:
            end = refused.offset
            work = work.where(f"offset < {end}")
        rows = self.stages.earlier(work, (), limit).frame.repartition(1).sortWithinPartitions("offset")
        sealed = self.safe.sealed(self.name, begin)
        task = SingleTask(
            self.passes[-1], self.pipeline, self.name, sealed, self.reach, self.log_id, self.scratch, end
        )
        # A sink that publishes through the session does so where the session is.
        return SingleJob(rows, task, self.sink.through_spark, end, refused)

    def _refused_before(self, work: DataFrame, acked: Sequence[int], limit: int) -> Refusal | None:
        """The first message that a pass before the last one refuses."""
        earlier = self.stages.earlier(work, acked, limit)
        earlier.frame.count()
        return next(iter(told_by(earlier.seen(), limit).staged.refused), None)
