"""One micro-batch, from a range of the log to a moved offset (DESIGN 5, 6).

1. Know the range [from, to) of the log: where the sink stands, and how far there is more, as much as fits a batch.
   Spark says when (its query has a source that does nothing but tick); the rest is planned here, in the runner's own
   process, and waiting for more is the broker's.
2. Filter and transform (`transform.py`).
3. Stage (`staging.py`): tasks write under names of their own and report; no message body reaches this process.
4. Decide: rows that Spark read must be all messages of the range, each delivered, dropped or refused. Where a
   refused message stops the sink, it ends the batch before it: what lies ahead of it is staged again and
   published, then the sink stops. Where it becomes a dead letter, it is kept as one, durably, before 5.
5. Publish: the sink's publisher makes the staged rows visible and moves the position inside the target.
6. Commit: the offset log moves.

A crash between 5 and 6 publishes nothing twice: the target's own position says what it has, and a batch is
recognised by its offsets, never by Spark's number for it. A batch of which nothing goes to the target is noted,
and written by the next one that does, or within the interval of the offset log.

While more waits in the log, the next batch is staged while this one goes through 5 and 6 (`overlap.py`), where the
target lets that be; nothing of the next one is decided before.

A target may refuse a batch as a whole, without saying for which message. The range is then noted in the offset
log, and at the next start it is delivered one message at a time (`singlejob.py`), each acknowledged before the next.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import Refusal, Sink, Staged
from penstock.base import faults
from penstock.base.errors import RefusedError
from penstock.functions.chain import Step, StepCount
from penstock.log.message import ByteOffset, MessageOffset
from penstock.log.offsets import Commit, OffsetLog
from penstock.log.ownership import InDoubtError
from penstock.log.positions import LogPoint
from penstock.spark.options import SourceOptions
from penstock.spark.overlap import Overlap
from penstock.spark.reach import Reach
from penstock.spark.sealed import Safe
from penstock.spark.single import Delivered, advanced, now_us
from penstock.spark.singlejob import SingleJobs
from penstock.spark.staging import AccountError, Staging
from penstock.spark.target import OvertakenError, Target
from penstock.spark.tasks import LogRead, Task
from penstock.spark.transform import BURIED_AT_ONCE, REPORTED_REFUSALS, FrameStep, segments, summed
from penstock.spark.upcoming import Upcoming
from penstock.spark.work import GivenRows, LoggedRows, Spent, Work, highest, last_told, refusals_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.functions.chain import NamespaceMatcher

log = logging.getLogger(__name__)

_LONGEST = 1.0
"""Seconds after which Spark gets its turn again, though more batches wait."""

_TICK = 0.02
"""Seconds between two ticks that come to nothing."""

Bury = Callable[[int, Sequence[Refusal]], None]
"""Keeps refused messages among the dead letters of a generation of the sink; durable on return."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch came to."""

    begin: LogPoint
    end: LogPoint
    delivered: int
    dropped: int
    dead: int
    rows: int
    seconds: float
    steps: Mapping[str, StepCount] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    """Where the seconds went: stage, wait for the batch before, dead letters, publish, offsets."""


class BatchRunner:
    """Carries out the batches of one sink, one at a time, in the runner's process."""

    def __init__(
        self,
        *,
        pipeline: str,
        sink_name: str,
        sink: Sink,
        accept: NamespaceMatcher,
        steps: Sequence[Step | FrameStep],
        claim: Callable[[], OffsetLog],
        reach: Reach,
        log_id: str,
        scratch: Path,
        bury: Bury,
        safe: Safe,
        options: Mapping[str, str],
    ) -> None:
        """`options` are those with which Spark reads the log.

        `claim` takes the sink's offset log: at the start, and again whenever a task has had it.
        """
        self._name = sink_name
        self._sink = sink
        safe.put(sink_name, sink)
        self._passes = segments(steps, accept)
        self._read = SourceOptions.parse(dict(options))
        self._claim = claim
        self._log_id = log_id
        self._staging = sink.staging(scratch)
        self._stages = Staging(sink_name, sink, self._passes, safe, self._read, self._staging)
        self._single = SingleJobs(
            pipeline, sink_name, sink, self._passes, self._stages, safe, reach, log_id, scratch
        )
        self._bury = bury
        self._done: Callable[[BatchReport], None] = lambda report: None
        self._target = Target(sink_name, sink, log_id)
        self._busy = threading.Lock()
        self._stopping = False
        self._upcoming = Upcoming(self._read)
        self.offsets = claim()
        self.at = LogPoint(MessageOffset(self.offsets.state.commit.watermark), ByteOffset(0))
        """Where the next batch begins."""
        self.buries = False
        """Whether refused messages become dead letters from the next batch on; if not, the first one ends its batch."""
        self._burying = False
        self.failure: BaseException | None = None
        self._overlap = Overlap(f"publish {sink_name}", self.failed)

    def tell_done(self, done: Callable[[BatchReport], None]) -> None:
        """Have `done` called with what each batch came to."""
        self._done = done

    def open(self, log_end: int) -> None:
        """Open the target; before the first batch, and after any failure. The log has its end at `log_end`."""
        self.at = self.stands
        self._overlap.forget()
        self.failure = None
        self._stopping = False
        self._upcoming.resume()
        self._open(log_end)

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_open(self) -> bool:
        return self._target.is_open

    @property
    def stands(self) -> LogPoint:
        """Where the offset log stands: before `at` while a batch is published beside the next one, or failed there."""
        since = self._overlap.since
        return self.at if since is None else since

    def _open(self, log_end: int) -> None:
        self.close()
        commit = self.offsets.state.commit
        try:
            self._target.open(commit, log_end)
        except OvertakenError:
            # What it has got is not what this log has under these offsets, though it counts as such. In a new
            # generation it is no repetition; and the other copy, whose generation is older, does not take over again.
            anew = msgspec.structs.replace(commit, generation=commit.generation + 1, published=None)
            self._committed(anew, {})
            raise

    def start(self, at: LogPoint) -> None:
        """Tell where the query begins."""
        self.at = at

    @property
    def busy(self) -> bool:
        """Whether a batch is under way."""
        return self._busy.locked() or self._overlap.busy

    def ask_to_stop(self) -> None:
        """Let no further batch begin."""
        self._stopping = True
        self._upcoming.halt()

    def hurry(self) -> None:
        """Nothing more comes into the log: no batch needs to wait for it."""
        self._upcoming.hurry()

    def stop(self, patience: float) -> bool:
        """Let no further batch begin, and wait for the one under way; False if it takes too long."""
        self.ask_to_stop()
        deadline = time.monotonic() + max(patience, 0.0)
        if not self._busy.acquire(timeout=max(patience, 0.0)):
            return False
        try:
            if not self._overlap.wait(max(deadline - time.monotonic(), 0.0)):
                return False
            self.offsets.flush(now_us())
        finally:
            self._busy.release()
        return True

    def keep_offsets(self) -> None:
        """Write what was noted, and keep the offset log small; unless a batch is under way, which is soon enough."""
        if self._busy.acquire(blocking=False):
            try:
                if not self._overlap.busy:
                    self.offsets.flush(now_us())
                    self.offsets.compact(now_us())
            finally:
                self._busy.release()

    def close(self) -> None:
        """Let the target go, and what was staged for it."""
        self._target.close()
        shutil.rmtree(self._staging, ignore_errors=True)

    def claim_again(self) -> None:
        """Take the offset log back from an operator who has edited it while the sink stood still."""
        with self._busy:
            self._overlap.wait()
            self._overlap.forget()
            self.offsets = self._claim()
            self._target.forget()
            self.at = LogPoint(MessageOffset(self.offsets.state.commit.watermark), ByteOffset(0))

    def mark(self, change: Callable[[Commit], Commit]) -> None:
        """Write a commit that moves no message, such as that the sink is detached."""
        with self._busy:
            self._overlap.wait()
            try:
                self._committed(change(self.offsets.state.commit), {})
            except InDoubtError:  # a commit before it had landed, and is what the change is made to
                self._committed(change(self.offsets.state.commit), {})

    def __call__(self, tick: DataFrame, batch_id: int) -> None:
        """Called by Spark when it is ready for a batch: waits until there is one. An exception ends the query.

        While more is there one follows the other: between two of its own Spark takes as long as a small one lasts.
        """
        until = time.monotonic() + _LONGEST
        self._turn(tick.sparkSession)
        while time.monotonic() < until and self._more():
            self._turn(tick.sparkSession)
        if self._upcoming.halted:  # Spark ticks on until somebody ends the query
            self._overlap.wait()
            time.sleep(_TICK)

    def _turn(self, spark: SparkSession) -> None:
        """One batch, unless there is to be none."""
        begin = self.at
        with self._failing():
            end = self._upcoming.end(begin)
        with self._busy, self._failing():
            if end is not None and not self._stopping and self.at == begin:
                self._run(spark, end)

    def _more(self) -> bool:
        with self._failing():
            return self._upcoming.more(self.at)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._overlap.wait()  # whoever sees the query end finds nothing under way
            self.failed(error)
            raise

    def failed(self, error: BaseException) -> None:
        """The first failure is the one to tell: that of a batch is the end of those behind it."""
        self.failure = self.failure or error
        self._upcoming.halt()

    def catch_up(self, frame: DataFrame, end: LogPoint) -> bool:
        """Deliver messages that no query will give: those that compaction has set apart. False if we are to stop."""
        with self._busy:
            if self._stopping:
                return False
            self._range(Work(GivenRows(frame), self.at, end, frame.count()))
            self.at = end
        return True

    def _run(self, spark: SparkSession, end: LogPoint) -> None:
        begin = self.at
        if end.offset > begin.offset:
            read = LogRead(self._read, self._upcoming.ranges(begin, end), begin.offset, end.offset)
            self._range(Work(LoggedRows(spark, read), begin, end, None, ranges=read.ranges))
        self.at = end

    def _range(self, work: Work) -> None:
        begin, end = work.begin, work.end
        handed_over = self._overlap.end
        stands = self.offsets.state.commit.watermark if handed_over is None else handed_over
        if begin.offset != stands:
            raise AccountError(
                f"sink '{self._name}': a batch begins with message {begin.offset}, the offset log stands at {stands}; "
                "nothing of it was published"
            )
        self._burying = self.buries
        careful = self.offsets.state.commit.careful
        at = int(begin.offset)
        if at < careful:
            self._overlap.settle()
            at = min(end.offset, careful)
            self._singly(work.until(at))
        size = end.offset - at
        while at < end.offset:  # where much is refused it ends early, and the rest follows in small pieces
            rest = work.behind(LogPoint(MessageOffset(at), begin.byte))
            self._in_bulk(rest.until(min(at + size, end.offset)))
            at, size = self.at.offset, 2 * (self.at.offset - at)

    def _in_bulk(self, work: Work) -> None:
        spent = Spent()
        begin = work.begin
        refused: Refusal | None = None
        with spent.on("stage"):
            tasks = self._staged(work)
        with spent.on("wait"):
            settled = self._overlap.settle()
        if settled:  # which may have ended the troubles that refused messages are buried for
            self._burying = self.buries
        while refusals := refusals_of(tasks):
            if not self._burying:
                refused = refusals[0]
                work = work.until(refused.offset)
            else:
                work = work.burying(refusals, until=last_told(tasks))
                if self._told_all(tasks, refusals):
                    break
            with spent.on("stage"):
                tasks = self._staged(work) if work.end.offset > begin.offset else []
        finish = functools.partial(self._finish, tasks, work, spent)
        if refused is None and self._may_overlap(tasks, work):
            self._overlap.begin(finish, begin, work.end.offset)
        else:
            finish()
        self.at = work.end
        if refused is not None:
            raise refusal_error(self._name, refused)

    def _finish(self, tasks: Sequence[Task], work: Work, spent: Spent) -> None:
        self._done(self._publish(tasks, work, spent))

    def _may_overlap(self, tasks: Sequence[Task], work: Work) -> bool:
        """Whether the next batch may be staged while this one is published: if there is one, and nothing is odd."""
        if work.dead or not work.ranges or len(self._passes) > 1 or not self._target.is_open:
            return False
        parts = [task.staged for task in tasks]
        return self._target.publisher.overlaps(parts) and self._upcoming.beyond(work.end)

    def _told_all(self, tasks: Sequence[Task], refusals: Sequence[Refusal]) -> bool:
        """Whether what is staged holds nothing of a refused message.

        A function that makes several rows of a message may have one of them refused and the others staged.
        """
        multiplies = any(hasattr(step.function, "apply_batch") for step in self._passes[0].chain.steps)
        by_functions = all(refusal.node != self._name for refusal in refusals)
        told = not any(task.more for task in tasks)
        return told and by_functions and len(self._passes) == 1 and not multiplies

    def _staged(self, work: Work) -> list[Task]:
        """Steps 2 to 4."""
        return self._stages.stage(work, self._acked(), self._target.watermark, self._limit)

    @property
    def _limit(self) -> int:
        return BURIED_AT_ONCE if self._burying else REPORTED_REFUSALS

    def _acked(self) -> tuple[int, ...]:
        return self.offsets.state.commit.acked

    def _publish(self, tasks: Sequence[Task], work: Work, spent: Spent) -> BatchReport:
        """Steps 5 and 6."""
        commit, namespaces, report = self._accounted(tasks, work, spent)
        if report.delivered:
            with spent.on("publish"):
                self._move([task.staged for task in tasks], commit)
        if report.delivered or report.dead:
            with spent.on("offsets"):
                self._committed(commit, namespaces)
        else:
            self.offsets.note(commit, namespaces)
        for entry in self._staging.glob(f"{work.begin.offset}-*-*"):
            shutil.rmtree(entry, ignore_errors=True)
        return dataclasses.replace(report, seconds=spent.seconds, times=dict(spent.times))

    def _accounted(
        self, tasks: Sequence[Task], work: Work, spent: Spent
    ) -> tuple[Commit, Mapping[str, int], BatchReport]:
        """What the batch comes to; its dead are buried."""
        before = self.offsets.state.commit
        begin, end = work.begin, work.end
        parts = [task.staged for task in tasks]
        delivered = sum(part.messages for part in parts)
        rows = sum(part.rows for part in parts)
        dead = sorted(work.dead.values(), key=lambda refusal: refusal.offset)
        dropped = end.offset - begin.offset - delivered - len(dead)
        if dropped < 0:
            raise AccountError(
                f"sink '{self._name}': {delivered} messages staged of {end.offset - begin.offset} in "
                f"[{begin.offset}, {end.offset}); a function made up offsets"
            )
        if dead:
            with faults.step("bury"), spent.on("dead letters"):
                self._bury(before.generation, dead)
        commit = advanced(before, end.offset, delivered=delivered, dropped=dropped, dead=len(dead), rows=rows)
        counts: dict[str, StepCount] = {}
        for task in tasks:
            counts = summed(counts, task.counts)
        report = BatchReport(begin, end, delivered, dropped, len(dead), rows, spent.seconds, counts)
        return commit, highest(parts), report

    def _move(self, parts: Sequence[Staged], commit: Commit) -> None:
        """Publish, and move the position inside the target. A batch refused as a whole is noted as such."""
        try:
            self._target.publish(parts, commit)
        except RefusedError as error:
            before = self.offsets.state.commit
            careful = max(before.careful, commit.watermark)
            self._committed(msgspec.structs.replace(before, careful=careful), {})
            raise RefusedError(
                f"sink '{self._name}' stopped before message {before.watermark}: its target refused the batch "
                f"{before.watermark} to {commit.watermark - 1}: {error.message}",
                hint="run it again: these messages then go one at a time, up to the one that is refused",
            ) from error

    def _committed(self, commit: Commit, namespaces: Mapping[str, int]) -> None:
        self.offsets.commit(commit, namespaces, now_us())

    def _singly(self, work: Work) -> None:
        """Deliver messages one at a time, in one task that has target and offset log for itself."""
        at, byte = work.begin
        while at < work.end.offset:
            started = time.monotonic()
            before, done = LogPoint(at, byte), self._single_job(work.frame, at, work.end.offset)
            at = MessageOffset(done.watermark)
            self.at = LogPoint(at, byte)
            self._done(
                BatchReport(before, self.at, done.delivered, done.dropped, 0, 0, time.monotonic() - started)
            )
            if done.refused is None:
                continue
            if not self._burying:
                raise refusal_error(self._name, done.refused)
            with faults.step("bury"):
                self._bury(self.offsets.state.commit.generation, [done.refused])
            passed = advanced(self.offsets.state.commit, at + 1, dead=1)
            self._committed(passed, {done.refused.ns: done.refused.offset})
            at = MessageOffset(at + 1)

    def _single_job(self, frame: DataFrame, begin: int, end: int) -> Delivered:
        job = self._single.job(frame, begin, end, self._acked(), self._limit)
        self._target.lend(job.end)
        try:
            delivered = job.run()
        finally:
            self.offsets = self._claim()
        self._open(job.end)
        return delivered


def refusal_error(sink: str, refusal: Refusal) -> RefusedError:
    """What a person reads when a sink stops at a message."""
    return RefusedError(
        f"sink '{sink}' stopped before message {refusal.offset} of namespace '{refusal.ns}', "
        f"which '{refusal.node}' refused: {refusal.error}",
        hint=f"everything before it is delivered; look at it with `penstock xlog show {refusal.offset}`, "
        f"go past it with `penstock offset ack {sink} {refusal.offset}`, or mend the cause and run again",
    )
