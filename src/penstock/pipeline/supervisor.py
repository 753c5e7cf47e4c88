"""One sink under supervision: its query started, watched, restarted, paused, stopped between batches (DESIGN 3-6).

Every start of a query uses a new checkpoint directory whose first offset comes from the offset log, so that
nothing Spark remembers of an earlier start matters. What compaction has set apart is delivered before that, in a thread
of its own: a query cannot see it, and the runner's main thread has others to look after. What the end of a query means
is told in `troubles.py`, how far the sink is behind in `lag.py`.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Literal

import msgspec
from py4j.protocol import Py4JError

from penstock.base.errors import AwayError, PenstockError
from penstock.base.secrets import mask
from penstock.functions.chain import StepCount
from penstock.log.message import MessageOffset
from penstock.log.offsets import Commit
from penstock.log.ownership import FencedError
from penstock.log.positions import LogPoint
from penstock.log.reader import LogReader
from penstock.log.transaction import Transaction
from penstock.pipeline.clock import now_us
from penstock.pipeline.definition import SinkNode
from penstock.pipeline.errortext import first_line, told
from penstock.pipeline.lag import Lag
from penstock.pipeline.policy import MaxLag
from penstock.pipeline.progress import BatchProgress, NodeProgress, QueryProgress, SinkSummary
from penstock.pipeline.surroundings import Surroundings
from penstock.pipeline.troubles import Troubles
from penstock.spark.checkpoint import begun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.spark.batch import BatchReport, BatchRunner

log = logging.getLogger(__name__)

_PATIENCE = 5.0
_SPARKS_PATIENCE = 15.0
"""Seconds for Spark to stop a query between two batches, which takes it a fraction of one."""
_RATE_WINDOW = 5.0
_BATCHES_TOLD = 10
_CATCH_UP = 5000
"""Messages of the companion in one batch."""


class SupervisedSink:
    """A sink and its query. Driven from the runner's main thread by `tend`."""

    def __init__(
        self,
        node: SinkNode,
        batches: BatchRunner,
        around: Surroundings,
    ) -> None:
        self.node = node
        self.state = "starting"
        self.error: PenstockError | None = None
        self.reason: PenstockError | None = None
        """Why the sink does not run now, though it has not given up."""
        self.steps: dict[str, StepCount] = {}
        self._around = around
        self._checkpoints = around.scratch / "checkpoints" / node.name
        self._query: StreamingQuery | None = None
        self._catching_up: threading.Thread | None = None
        self._starts = 0
        self._troubles = Troubles(node.on_error)
        self._due = 0.0
        self._recent: deque[tuple[float, int]] = deque()
        self._last: BatchReport | None = None
        self._batches_done: tuple[BatchProgress, ...] = ()
        self._lag = Lag(node.name, node.max_lag, around.reader, around.rest)
        self._batches = batches
        batches.tell_done(self._batch_done)
        self._first = self.commit
        self._moved_to = self.commit.watermark
        self._halting: Literal["paused", "detached"] | None = None
        """What it will be once the batch under way has ended: nobody else waits for that."""
        self._resuming = False
        if self.commit.detached:
            self.state = "detached"

    @property
    def names(self) -> frozenset[str]:
        """Of the nodes that it stands for."""
        return frozenset({self.node.name})

    @property
    def commit(self) -> Commit:
        return self._batches.offsets.state.commit

    @property
    def durable(self) -> Commit:
        """What the sink has for sure: `commit` without what was only noted."""
        return self._batches.offsets.durable

    @property
    def idle(self) -> bool:
        """Whether the sink will not move by itself: stopped, paused or detached."""
        return self.error is not None or self.state in ("paused", "detached")

    @property
    def begun(self) -> bool:
        """Whether it has had a batch since the start."""
        return self._last is not None

    def open(self) -> None:
        """Open the target; a problem that only a person can solve is raised before anything is read.

        A target that is away now may be back when there is something for it.
        """
        if self.state == "detached":
            return
        try:
            self._batches.open(self._around.reader.state().next)
        except AwayError as error:
            self._wait(error)
        self._find_byte()

    def start(self, spark: SparkSession) -> None:
        """Start the query where the offset log stands, when it is time for it."""
        if self.idle or time.monotonic() < self._due:
            return
        try:
            if not self._batches.is_open:
                self._batches.open(self._around.reader.state().next)
            self._begin(spark)
        except Exception as error:  # noqa: BLE001 - whatever Spark or a target throws counts as a failed start
            self._batches.close()
            self._note_move()
            self._wait(told(error))

    def _begin(self, spark: SparkSession) -> None:
        """Begin with what compaction has set apart, if the sink lacks some of it, or with the query."""
        shutil.rmtree(self._checkpoints, ignore_errors=True)
        self._batches.buries = self._troubles.buries
        reader, watermark = self._around.reader, self.commit.watermark
        first = reader.first()
        if watermark >= first.offset:
            self._start_query(spark, reader.seek(watermark))
        else:
            self._catch_up(spark, first)
        self.state, self.reason = "running", None

    def _catch_up(self, spark: SparkSession, first: LogPoint) -> None:
        """Deliver what was kept of the messages before `first`, beside the runner's main thread."""
        watermark = self.commit.watermark
        self._batches.start(LogPoint(MessageOffset(watermark), first.byte))
        log.warning(
            "sink %s: messages %d to %d went through compaction; it gets those that were kept",
            self.node.name, watermark, first.offset - 1,
        )  # fmt: skip

        def deliver() -> None:
            try:
                for frame, end in _set_apart(spark, self._around.reader, watermark, first):
                    if not self._batches.catch_up(frame, end):
                        return
            except BaseException as error:  # noqa: BLE001 - `tend` decides what follows from it
                self._batches.failed(error)

        self._catching_up = threading.Thread(target=deliver, name=f"catch up {self.node.name}", daemon=True)
        self._catching_up.start()

    @property
    def _catches_up(self) -> bool:
        return self._catching_up is not None and self._catching_up.is_alive()

    def _start_query(self, spark: SparkSession, point: LogPoint) -> None:
        self._starts += 1
        checkpoint = begun(self._checkpoints / str(self._starts))
        self._batches.start(point)
        # Which messages a batch has is planned in this process, and tasks read them from the log themselves. A query on
        # the source `penstock` would have three more Python processes, and a second and a half until its first batch.
        ticks = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="1", numPartitions="1")
        # Spark shares its cores between pools, so that a sink with much to do does not starve the others.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.node.name)
        writer = ticks.load().writeStream.foreachBatch(self._batches)
        name = f"{self._around.pipeline}/{self.node.name}"
        self._query = writer.option("checkpointLocation", str(checkpoint)).queryName(name).start()

    def watch(self, end: LogPoint) -> None:
        """Measure how far behind the sink is, also one that is paused or has stopped: that one holds the log most."""
        if self.state == "detached":
            return
        self._lag.look(self._batches.stands, end)
        if self._lag.detaches:
            self._halting = "detached"
        if self._halting is not None:
            self._halt()

    def tend(self, spark: SparkSession, end: LogPoint) -> None:
        """Look after the query: restart it if it died, and say how it stands against the log's end."""
        if self.idle or self._halting is not None or self._catches_up:
            return
        if self._catching_up is not None:
            self._catching_up = None
            if self._batches.failure is not None:
                self._died()
        if self._query is not None and self._query.isActive:
            if self._batches.failure is None or self._batches.busy:
                self.state = self._how_it_runs(end)
                return
            # A batch failed that was published beside the query, and maybe no other comes to tell it.
            _stop(self._query, _SPARKS_PATIENCE)
        if self._query is not None:
            if self._batches.busy:
                return
            self._died()
        self.start(spark)

    def hurry(self) -> None:
        """The source has ended: nothing more comes that a batch could wait for."""
        self._batches.hurry()

    def keep_offsets(self) -> None:
        """To be called once in the interval of the offset log. What cannot be written now is with the next batch."""
        if self._query is None or self.idle:
            return
        try:
            self._batches.keep_offsets()
        except PenstockError as error:
            log.warning("sink %s: its offsets are not written yet: %s", self.node.name, first_line(error))

    def pause(self) -> None:
        """Take nothing more until `resume`, and once the batch under way has ended let the target go."""
        self._halting, self._resuming = self._halting or "paused", False
        self._halt()

    def resume(self) -> None:
        """Go on after a pause, or after a stop: an operator may have edited the sink's offsets meanwhile."""
        self._resuming = self._halting == "paused"
        if self.state not in ("paused", "stopped"):
            return
        self._batches.claim_again()
        self._find_byte()
        self._troubles.moved()
        self.error = self.reason = None
        self.state, self._due = "starting", 0.0

    def ask_to_stop(self) -> None:
        self._batches.ask_to_stop()

    def stop(self, patience: float) -> None:
        """Stop between batches; a batch that does not end in time is left to be repeated."""
        if self._end_query(patience):
            self._batches.close()
            shutil.rmtree(self._checkpoints, ignore_errors=True)
        if not self.idle:
            self.state = "done" if self.reason is None else self.state

    @property
    def transactions(self) -> dict[str, Transaction]:
        """The two-phase commits on their way, by the names of their nodes."""
        found: Transaction | None = getattr(self._batches, "transaction", None)
        return {self.node.name: found} if found is not None else {}

    def progresses(self, end: LogPoint) -> list[NodeProgress]:
        """What is shown of each node that it stands for."""
        return [self.progress(end)]

    def summaries(self, end: LogPoint) -> list[SinkSummary]:
        return [self.summary(end)]

    def progress(self, end: LogPoint) -> NodeProgress:
        return self._progress_of(self.node, self.commit, self._first, end)

    def summary(self, end: LogPoint) -> SinkSummary:
        return self._summary_of(self.node, self.commit, self._first, end)

    def _progress_of(self, node: SinkNode, commit: Commit, first: Commit, end: LogPoint) -> NodeProgress:
        trouble = self.error or self.reason
        limit = self.node.max_lag or MaxLag()
        aborts: int = getattr(self._batches, "aborts", 0)
        return NodeProgress(
            node=node.name,
            kind="sink",
            adaptor=node.adaptor.name,
            state=self.state,
            messages_in=end.offset - first.watermark,
            delivered=commit.delivered - first.delivered,
            dropped=commit.dropped - first.dropped,
            dead=commit.dead - first.dead,
            pending=end.offset - commit.watermark,
            rate=self._rate(),
            lag=end.offset - commit.watermark,
            batch_ms=self._last.seconds * 1000 if self._last else None,
            error=first_line(trouble) if trouble else None,
            lag_bytes=max(end.byte - self._batches.stands.byte, 0) if end.offset > commit.watermark else 0,
            lag_seconds=self._lag.seconds if end.offset > commit.watermark else 0.0,
            gauges={"aborts": float(aborts)} if aborts else {},
            max_lag_bytes=limit.bytes,
            max_lag_seconds=limit.seconds,
            transaction=self.transactions.get(node.name),
        )

    def _summary_of(self, node: SinkNode, commit: Commit, first: Commit, end: LogPoint) -> SinkSummary:
        shown = self._progress_of(node, commit, first, end)
        return SinkSummary(
            sink=shown.node,
            messages_in=shown.messages_in,
            delivered=shown.delivered,
            dropped=shown.dropped,
            dead=shown.dead,
            pending=shown.pending,
            rows=commit.rows - first.rows,
            target=mask(str(getattr(node.adaptor, "uri", getattr(node.adaptor, "to", node.adaptor.name)))),
            error=shown.error,
        )

    def _how_it_runs(self, end: LogPoint) -> str:
        commit = self.commit
        if commit.watermark >= end.offset:
            return "waiting"
        return "one at a time" if commit.watermark < commit.careful else "running"

    def _end_query(self, patience: float) -> bool:
        """Stop the query between two batches. False if the one under way does not end in time: it keeps its target.

        Spark waits for the end of a batch, however long that takes; here nobody does.
        """
        query, self._query = self._query, None
        try:
            ended = self._batches.stop(patience)
        except PenstockError as error:  # what was only noted comes again, and is dropped again
            log.warning("sink %s: its offsets are not written: %s", self.node.name, first_line(error))
            ended = True
        if not ended:
            log.warning("sink %s: a batch did not end within %.0f s", self.node.name, patience)
        if query is not None:
            _stop(query, _SPARKS_PATIENCE if ended else 0.0)
        return ended

    def _halt(self) -> None:
        """Pause or detach; to be called again while a batch is under way."""
        self._batches.ask_to_stop()
        if self._catches_up or self._batches.busy or not self._end_query(_PATIENCE):
            return
        self._catching_up = None
        if self._halting == "detached":
            self._detach()
        self._batches.close()
        assert self._halting is not None
        self.state, self._halting = self._halting, None
        if self._resuming and self.state == "paused":
            self.resume()

    def _detach(self) -> None:
        """Too far behind: let the log go, and tell that the target lacks messages from here on."""
        self._batches.mark(lambda commit: msgspec.structs.replace(commit, detached=True))
        log.error(
            "sink %s: detached, it lacks the messages from %d on", self.node.name, self.commit.watermark
        )

    def _died(self) -> None:
        """Decide what the end of a query means."""
        query, self._query = self._query, None
        cause = self._batches.failure or (query.exception() if query is not None else None)
        self._batches.close()
        if isinstance(cause, FencedError) and self._around.alone():
            # An operator took the sink for one that stood still, just when it went on.
            self._batches.claim_again()
        self._note_move()
        self._wait(told(cause) if cause is not None else PenstockError("the query ended without a reason"))
        self._find_byte()

    def _find_byte(self) -> None:
        """Where in the log the sink stands; of a batch that ended early only the message is known."""
        at = self._batches.stands.offset
        self._batches.at = LogPoint(at, self._around.reader.at_or_after(at).byte)

    def _note_move(self) -> None:
        """Once the sink has moved its troubles are over; the next refused message has its retries too."""
        if self.commit.watermark > self._moved_to:
            self._troubles.moved()
            self._batches.buries = self._troubles.buries
        self._moved_to = self.commit.watermark

    def _wait(self, reason: PenstockError) -> None:
        """Wait as the trouble asks for, or give up."""
        then = self._troubles.after(reason)
        if then is None:
            self.error, self.reason, self.state = reason, None, "stopped"
            return
        self.state, delay = then
        self.reason = reason
        self._due = time.monotonic() + delay
        log.warning("sink %s: %s in %.1f s after: %s", self.node.name, self.state, delay, first_line(reason))

    def query_progress(self) -> QueryProgress:
        """The query, and its last batches."""
        name = f"{self._around.pipeline}/{self.node.name}"
        return QueryProgress(self.node.name, name, self._query is not None, self._batches_done)

    def _batch_done(self, report: BatchReport) -> None:
        self._last = report
        done = BatchProgress(
            now_us(), report.begin.offset, report.end.offset, report.delivered, report.dropped, report.dead,
            report.rows, report.seconds, {name: 1000 * spent for name, spent in report.times.items()},
        )  # fmt: skip
        self._batches_done = (*self._batches_done, done)[-_BATCHES_TOLD:]
        self._note_move()
        self._recent.append((time.monotonic(), report.end.offset - report.begin.offset))
        self._count(report)
        self._around.moved()

    def _count(self, report: BatchReport) -> None:
        for name, count in report.steps.items():
            self.steps[name] = self.steps.get(name, StepCount()).and_(count)

    def _rate(self) -> float:
        """Messages a second over the last few seconds."""
        now = time.monotonic()
        while self._recent and now - self._recent[0][0] > _RATE_WINDOW:
            self._recent.popleft()
        recent = tuple(self._recent)  # at one moment: another thread may add a batch that is done
        return sum(count for _, count in recent) / _RATE_WINDOW


def _stop(query: StreamingQuery, patience: float) -> None:
    """Stop a query, and wait for that as long as it should take: a JVM that waits itself must not hold up the run."""

    def stop() -> None:
        with suppress(Py4JError, OSError):  # the JVM may have gone already
            query.stop()

    stopping = threading.Thread(target=stop, name="stop-query", daemon=True)
    stopping.start()
    stopping.join(patience)
    if patience and stopping.is_alive():
        log.warning("Spark has not stopped a query within %.0f s", patience)


def _set_apart(
    spark: SparkSession, reader: LogReader, begin: int, first: LogPoint
) -> Iterator[tuple[DataFrame, LogPoint]]:
    """What the companion of the log still has from `begin` on, a few thousand messages at a time."""
    import pyarrow as pa

    from penstock.spark.columns import SCHEMA
    from penstock.spark.single import batch_of

    records = reader.compacted(begin, first.offset - 1)
    piece = list(islice(records, _CATCH_UP))
    while True:
        following = list(islice(records, _CATCH_UP))
        # Whoever stands before the log lacks all that is in it.
        end = LogPoint(MessageOffset(following[0].offset), first.byte) if following else first
        yield spark.createDataFrame(pa.Table.from_batches([batch_of(piece)], SCHEMA)), end
        if not following:
            return
        piece = following
