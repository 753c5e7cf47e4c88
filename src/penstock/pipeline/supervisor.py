"""One sink under supervision: its query started, watched, restarted, stopped between batches (DESIGN 3-5).

Every start of a query uses a new checkpoint directory whose first offset comes from the offset log, so that
nothing Spark remembers of an earlier start matters. A query that dies for no fault of its data (a lost
worker, a planning process that went away, a target that does not answer) is started again, later each time,
until it has failed `RESTARTS` times in a row without moving; a refused message stops the sink at once.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from penstock.base.errors import CorruptError, PenstockError, RefusedError, UsageError
from penstock.log.commitlog import LogReader
from penstock.log.offsets import Commit, OffsetLog
from penstock.pipeline.definition import SinkNode, TransformNode
from penstock.pipeline.progress import NodeProgress, SinkSummary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.functions.chain import Step
    from penstock.spark.batch import BatchReport
    from penstock.spark.transform import FrameStep

log = logging.getLogger(__name__)

RESTARTS = 5
_DELAYS = (0.5, 1.0, 2.0, 5.0, 10.0)
_FINAL = (RefusedError, UsageError, CorruptError)
_RATE_WINDOW = 5.0


class SupervisedSink:
    """A sink and its query. Driven from the runner's main thread by `tend`."""

    def __init__(
        self,
        node: SinkNode,
        offsets: OffsetLog,
        reader: LogReader,
        log_id: str,
        scratch: Path,
        options: dict[str, str],
    ) -> None:
        from penstock.spark.batch import BatchRunner

        self.node = node
        self.state = "starting"
        self.error: PenstockError | None = None
        self._offsets = offsets
        self._reader = reader
        self._options = options
        self._checkpoints = scratch / "checkpoints" / node.name
        self._first = offsets.state.commit
        self._query: StreamingQuery | None = None
        self._starts = 0
        self._failures = 0
        self._moved_to = self.commit.watermark
        self._due = 0.0
        self._recent: deque[tuple[float, int]] = deque()
        self._last: BatchReport | None = None
        self._batches = BatchRunner(
            sink_name=node.name,
            sink=node.adaptor.sink(),
            accept=node.ns,
            steps=[compiled(step) for step in node.steps],
            offsets=offsets,
            log_id=log_id,
            scratch=scratch / "staging" / node.name,
            done=self._batch_done,
        )

    @property
    def commit(self) -> Commit:
        return self._offsets.state.commit

    def open(self) -> None:
        """Open the target; a problem that only a person can solve is raised before anything is read."""
        self._batches.open(self._reader.state().next)

    def start(self, spark: SparkSession) -> None:
        """Start the query where the offset log stands."""
        self._starts += 1
        checkpoint = self._checkpoints / str(self._starts)
        shutil.rmtree(self._checkpoints, ignore_errors=True)
        point = self._reader.seek(self.commit.watermark)
        self._batches.start(point, checkpoint)
        stream = spark.readStream.format("penstock").options(
            **self._options, startOffset=str(point.offset), startByte=str(point.byte)
        )
        # Spark shares its cores between pools, so that a sink with much to do does not starve the others.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.node.name)
        writer = stream.load().writeStream.foreachBatch(self._batches)
        name = f"{self._options['pipeline']}/{self.node.name}"
        self._query = writer.option("checkpointLocation", str(checkpoint)).queryName(name).start()
        self.state = "running"

    def tend(self, spark: SparkSession, end: int) -> None:
        """Look after the query: restart it if it died, and say how it stands against the log's end."""
        if self.error is not None:
            return
        if self._query is not None and self._query.isActive:
            self.state = "waiting" if self.commit.watermark >= end else "running"
            return
        if self._query is not None:
            self._died()
        if self.error is None and time.monotonic() >= self._due:
            self._restart(spark)

    def stop(self, patience: float) -> None:
        """Stop between batches; a batch that does not end in time is left to be repeated."""
        if self._query is not None:
            if not self._batches.stop(patience):
                log.warning("sink %s: a batch did not end within %.0f s", self.node.name, patience)
            with suppress(Py4JError, OSError):  # the JVM may have gone already
                self._query.stop()
        self._batches.close()
        shutil.rmtree(self._checkpoints, ignore_errors=True)
        if self.error is None:
            self.state = "done"

    def progress(self, end: int) -> NodeProgress:
        commit, first = self.commit, self._first
        return NodeProgress(
            node=self.node.name,
            kind="sink",
            adaptor=self.node.adaptor.name,
            state=self.state,
            messages_in=end - first.watermark,
            delivered=commit.delivered - first.delivered,
            dropped=commit.dropped - first.dropped,
            dead=commit.dead - first.dead,
            pending=end - commit.watermark,
            rate=self._rate(),
            lag=end - commit.watermark,
            batch_ms=self._last.seconds * 1000 if self._last else None,
            error=first_line(self.error) if self.error else None,
        )

    def summary(self, end: int) -> SinkSummary:
        shown = self.progress(end)
        return SinkSummary(
            sink=shown.node,
            messages_in=shown.messages_in,
            delivered=shown.delivered,
            dropped=shown.dropped,
            dead=shown.dead,
            pending=shown.pending,
            rows=self.commit.rows - self._first.rows,
            target=str(getattr(self.node.adaptor, "uri", self.node.adaptor.name)),
            error=shown.error,
        )

    def _died(self) -> None:
        """Decide what the end of a query means."""
        assert self._query is not None
        cause = self._batches.failure or self._query.exception()
        self._query = None
        if self.commit.watermark > self._moved_to:
            self._failures = 0
        self._moved_to = self.commit.watermark
        self._failures += 1
        reason = told(cause) if cause is not None else PenstockError("the query ended without a reason")
        if isinstance(reason, _FINAL) or self._failures > RESTARTS:
            self.error = reason
            self.state = "stopped"
            return
        delay = _DELAYS[min(self._failures, len(_DELAYS)) - 1]
        log.warning("sink %s: restarting in %.1f s after: %s", self.node.name, delay, first_line(reason))
        self._due = time.monotonic() + delay
        self.state = "restarting"

    def _restart(self, spark: SparkSession) -> None:
        try:
            self.open()
            self.start(spark)
        except _FINAL as error:
            self.error = error
            self.state = "stopped"
        except Exception as error:  # noqa: BLE001 - whatever Spark or a target throws counts as a failed start
            self._failures += 1
            if self._failures > RESTARTS:
                self.error = told(error)
                self.state = "stopped"
            self._due = time.monotonic() + _DELAYS[min(self._failures, len(_DELAYS)) - 1]

    def _batch_done(self, report: BatchReport) -> None:
        self._last = report
        self._recent.append((time.monotonic(), report.end.offset - report.begin.offset))

    def _rate(self) -> float:
        """Messages a second over the last few seconds."""
        now = time.monotonic()
        while self._recent and now - self._recent[0][0] > _RATE_WINDOW:
            self._recent.popleft()
        return sum(count for _, count in self._recent) / _RATE_WINDOW


def compiled(step: TransformNode) -> Step | FrameStep:
    """A step of the definition as the engine takes it."""
    from penstock.functions.base import Function
    from penstock.functions.chain import Step
    from penstock.spark.transform import FrameStep

    if isinstance(step.function, Function):
        return Step(step.name, step.function, step.ns)
    return FrameStep(step.name, step.function, None if step.ns.everything else step.ns.pattern)


def told(error: BaseException) -> PenstockError:
    """The error as one that can be told later: Spark's own can be read only while its JVM lives."""
    return error if isinstance(error, PenstockError) else PenstockError(first_line(error))


def first_line(error: BaseException) -> str:
    """One line that tells a person what happened; of Spark's long texts the one that says why.

    A failure in a Python worker carries a traceback, whose last line is the error itself.
    """
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    for at, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            raised = [text for text in lines[at + 1 :] if _RAISED.match(text)]
            return raised[0] if raised else lines[0]
    return lines[0]


_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit): ")
