"""The staging of a batch, steps 2 to 4 of `batch.py`: a Spark job whose tasks write what they get, and report.

Where a sink has no DataFrame function its tasks read the log themselves, each a range of it, so that no message passes
through the JVM. Otherwise the rows come from the frame that Spark has made of the same range. Either way the tasks must
have read all messages that the log has there, or nothing is published.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import Order, Sink
from penstock.base.errors import PenstockError, UsageError
from penstock.spark.options import SourceOptions
from penstock.spark.returned import NO_OFFSET
from penstock.spark.sealed import Safe
from penstock.spark.tasks import LogRead, StageTask, Task
from penstock.spark.transform import Earlier, Segment, observed
from penstock.spark.work import Work, in_order, told_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class AccountError(PenstockError):
    """What Spark read is not what the log holds. Nothing of the batch was published."""


class Staging:
    """Stages the batches of one sink."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        passes: Sequence[Segment],
        safe: Safe,
        options: SourceOptions,
        directory: Path,
    ) -> None:
        """`options` say where the log is; below `directory` each job gets a place of its own."""
        self._name = name
        self._sink = sink
        self._passes = passes
        self._safe = safe
        self._options = options
        self._directory = directory
        self._checked = False

    def stage(
        self, work: Work, acked: Sequence[int], skip_below: int, limit: int, plan: str = ""
    ) -> list[Task]:
        """What the tasks tell, in the order of the log.

        Plans that keep that order need no sort; others are staged anew, sorted. Also where the sink asks for no order
        but a DataFrame function may have spread one message over tasks, which would count it more than once.
        """
        leave_out = work.leave_out(acked)
        if self._sink.lanes:
            tasks = self._job(work, leave_out, skip_below, limit, sort=False, plan=plan)
            self._refuse_made_up(tasks, work)
            return tasks
        tasks = self._job(work, leave_out, skip_below, limit, sort=False)
        self._refuse_made_up(tasks, work)
        matters = self._sink.order is not Order.NONE or len(self._passes) > 1
        if matters and not in_order(tasks):
            tasks = self._job(work, leave_out, skip_below, limit, sort=True)
            self._refuse_made_up(tasks, work)
        return sorted(tasks, key=lambda task: task.staged.first)

    def earlier(self, frame: DataFrame, leave_out: Sequence[int], limit: int) -> Earlier:
        """The passes before the last one."""
        earlier = Earlier(frame, self._passes, leave_out, limit, check=not self._checked)
        self._checked = True
        return earlier

    def _job(
        self, work: Work, leave_out: Sequence[int], skip_below: int, limit: int, *, sort: bool, plan: str = ""
    ) -> list[Task]:
        begin, end = work.begin.offset, work.end.offset
        directory = self._directory / f"{begin}-{end}-{uuid.uuid4().hex[:8]}"
        directory.mkdir(mode=0o700, parents=True)
        direct = bool(work.ranges) and len(self._passes) == 1 and not sort
        last = StageTask(
            self._passes[-1],
            self._safe.sealed(self._name, begin),
            directory,
            skip_below,
            self._name,
            limit,
            leave_out if len(self._passes) == 1 else (),
            LogRead(self._options, work.ranges, begin, end, self._sink.lanes) if direct else None,
            plan,
            begin,
            self._safe.here,
        )
        if direct:
            count = self._sink.lanes or len(work.ranges)
            tasks = _direct(work.rows.spark, count, last)
            read = sum(task.read for task in tasks)
        else:
            tasks, read = self._of_frame(work, last, leave_out, limit, sort=sort)
        if read != work.messages:
            raise AccountError(
                f"sink '{self._name}': the log holds {work.messages} messages in "
                f"[{begin}, {end}), Spark read {read}; nothing of them was published"
            )
        return tasks

    def _of_frame(
        self, work: Work, last: StageTask, leave_out: Sequence[int], limit: int, *, sort: bool
    ) -> tuple[list[Task], int]:
        """What the tasks tell that get their rows from Spark, and how many messages it has read."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as sf

        seen = Observation()
        whole = work.messages_of()
        earlier = self.earlier(whole.observe(seen, sf.count(sf.lit(1)).alias("messages")), leave_out, limit)
        frame = earlier.frame
        if self._sink.lanes:
            frame = _in_lanes(frame, self._sink.lanes)
        elif sort:
            # In one task, since a range sort would run the plan twice, and count twice what it reads.
            frame = frame.repartition(1).sortWithinPartitions("offset")
        tasks = _reports(frame, last)
        read = observed(seen, "messages")
        if read is None:  # a function that keeps nothing, which Spark found out without reading anything
            read = whole.count()
        if len(self._passes) > 1:
            tasks.append(told_by(earlier.seen(), limit))
        return tasks, read

    def _refuse_made_up(self, tasks: Sequence[Task], work: Work) -> None:
        """A row that belongs to no message of the batch can be neither acknowledged nor buried, however often."""
        begin, end = work.begin.offset, work.end.offset
        told = {refusal.offset for task in tasks for refusal in task.staged.refused}
        for task in tasks:
            told |= {task.staged.first, task.staged.last} if task.staged.rows else set()
        if strange := sorted(offset for offset in told if not begin <= offset < end):
            made_up = f"made up offset {strange[0]}"
            deed = made_up if strange[0] != NO_OFFSET else "gave back a row without an offset"
            raise UsageError(
                f"sink '{self._name}': a function {deed} in the batch [{begin}, {end}); "
                "nothing of it was published",
                hint="a function must leave the column offset as it is",
            )


def _in_lanes(frame: DataFrame, lanes: int) -> DataFrame:
    """A partition for each lane, by the rule of `lane_of`, in the order of the log."""
    from pyspark.sql import functions as sf

    if lanes == 1:
        return frame.repartition(1).sortWithinPartitions("offset")
    text = sf.concat(sf.col("origin"), sf.lit("\0"), sf.coalesce(sf.col("key"), sf.lit("")))
    lane = sf.pmod(sf.crc32(sf.encode(text, "UTF-8")), sf.lit(lanes)).cast("int")
    return frame.repartitionById(lanes, lane).sortWithinPartitions("offset")


def _reports(frame: DataFrame, task: StageTask) -> list[Task]:
    rows = frame.mapInArrow(task, "report STRING").collect()
    return [msgspec.json.decode(row[0], type=Task) for row in rows]


def _direct(spark: SparkSession, count: int, task: StageTask) -> list[Task]:
    """So many tasks that read the log themselves, in the order of their ranges.

    Spark SQL would plan, and compile, the same query for each batch anew, which takes longer than a small batch lasts.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors.exceptions.captured import unwrap_spark_exception

    numbers = spark.sparkContext.parallelize(range(count), count)
    try:
        reports = numbers.mapPartitions(task.of_ranges).collect()
    except Py4JJavaError as error:
        if error.java_exception.getCause() is None:
            raise
        with unwrap_spark_exception():  # as Spark SQL tells of what a worker raised
            raise
    return [msgspec.json.decode(report, type=Task) for report in reports]
