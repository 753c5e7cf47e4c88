"""A micro-batch for a target that votes: the offset log is the record of decisions (`penstock.adaptors.base.Voting`).

Steps 1 to 4 are those of every batch (`batch.py`); tasks send what they stage to the target, and report its vote.

5. Judge: one vote to abort, and nothing of the batch becomes visible; the same messages are sent again, later.
6. Decide: the offset log takes the watermark, the transactions and where each lane ends, in one append.
7. Tell: the target commits. If it cannot be told now, it is when it is opened again: 6 is what counts.

A batch that is voted down again and again is refused as a whole, which the sink's policy deals with. Its messages then
go in ever smaller batches, until the one is found for which the target does not vote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import AbortedError, Refusal, Voting
from penstock.base import faults
from penstock.base.errors import PenstockError, RefusedError
from penstock.log.message import MessageOffset
from penstock.log.offsets import Commit, Lane
from penstock.log.positions import LogPoint
from penstock.spark.batch import BatchReport, BatchRunner, refusal_error
from penstock.spark.single import advanced
from penstock.spark.tasks import Task
from penstock.spark.work import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ABORTS = 3
"""A batch is refused as a whole when the target has voted it down so often in a row."""


class VotingRunner(BatchRunner):
    """Carries out the batches of one sink that votes."""

    aborts = 0
    """How often in a row a batch was voted down."""

    def _open(self, log_end: int) -> None:
        super()._open(log_end)
        self._settle()
        self._dismiss()

    @property
    def voting(self) -> Voting:
        assert isinstance(self._publisher, Voting)
        return self._publisher

    @property
    def lanes(self) -> Mapping[str, Lane]:
        """Those of the record of decisions."""
        return self.offsets.state.commit.lanes or {}

    def _settle(self) -> None:
        self.voting.settle(self.lanes, self._confirm)

    def _confirm(self) -> None:
        """The offset log is still ours: whoever takes it first is the one who decides."""
        self._committed(self.offsets.state.commit, {})

    def _dismiss(self) -> None:
        """Tell the target of lanes that are no more. On record first: a name that comes back begins at 0."""
        commit = self.offsets.state.commit
        gone = [worker for worker in self.lanes if worker not in self.voting.workers]
        if not gone and not commit.leaving:
            return
        kept = {worker: lane for worker, lane in self.lanes.items() if worker not in gone}
        leaving = tuple(dict.fromkeys([*commit.leaving, *gone]))
        self._committed(msgspec.structs.replace(commit, lanes=kept, leaving=leaving), {})
        self.voting.leave([worker for worker in leaving if worker not in self.voting.workers[:1]])
        self._committed(msgspec.structs.replace(self.offsets.state.commit, leaving=()), {})

    def _staged(self, work: Work) -> list[Task]:
        """Whatever an earlier job has prepared is aborted first."""
        span, generation = (work.begin.offset, work.end.offset), self.offsets.state.commit.generation
        plan = self.voting.begin(self.lanes, self._confirm, span, generation)
        try:
            return self._stages.stage(work, self._acked(), self._in_target, self._limit, plan)
        except PenstockError:
            raise
        except (
            Exception
        ):  # the errors of tasks come as Spark's; if it is the target that is away, that is the reason
            self._settle()
            raise

    def _publish(self, tasks: Sequence[Task], work: Work, started: float) -> BatchReport:
        """Steps 5 to 7."""
        lanes = self._judged([(self, tasks)], work)[0]
        commit, namespaces, report = self._accounted(tasks, work, started)
        self._decide(commit, namespaces, lanes, report)
        self.aborts = 0
        if lanes:
            self.voting.tell(lanes)
        return report

    def _decide(
        self, commit: Commit, namespaces: Mapping[str, int], lanes: Mapping[str, Lane], report: BatchReport
    ) -> None:
        """Step 6; a batch of which nothing goes to the target is only noted."""
        commit = msgspec.structs.replace(commit, lanes={**self.lanes, **lanes})
        if report.delivered or report.dead or lanes:
            self._committed(commit, namespaces)
        else:
            self.offsets.note(commit, namespaces)
        self._in_target = commit.watermark

    def _judged(
        self, voters: Sequence[tuple[VotingRunner, Sequence[Task]]], work: Work
    ) -> list[Mapping[str, Lane]]:
        """The lanes of each, if all of them voted to commit; or else nobody commits."""
        try:
            return [voter.voting.judge([task.staged for task in tasks]) for voter, tasks in voters]
        except AbortedError as error:
            self.aborts += 1
            for voter, _ in voters:
                with suppress(PenstockError):  # it comes before the next job in any case
                    voter._settle()
            raise self._aborted(error, work) from error

    def _aborted(self, error: AbortedError, work: Work) -> PenstockError:
        """Once more; or, after some times, what the sink's policy is for."""
        if self.aborts < ABORTS and work.end.offset > self.offsets.state.commit.careful:
            return error
        before = self.offsets.state.commit
        careful = max(before.careful, work.end.offset)
        self._committed(msgspec.structs.replace(before, careful=careful), {})
        return RefusedError(
            f"sink '{self._name}' stopped before message {before.watermark}: its target voted {self.aborts} times to "
            f"abort the messages {before.watermark} to {work.end.offset - 1}: {error.message}",
            hint="run it again: these messages then go in smaller batches, up to the one that is refused",
        )

    def _singly(self, frame: DataFrame, begin: LogPoint, end: LogPoint) -> None:
        """Deliver [begin, end) in batches that halve whenever one is voted down, and double when one is not."""
        at, size = begin.offset, max((end.offset - begin.offset) // 2, 1)
        while at < end.offset:
            stop = LogPoint(MessageOffset(min(at + size, end.offset)), begin.byte)
            try:
                self._in_bulk(Work(frame, LogPoint(at, begin.byte), stop, None))
                size *= 2
            except RefusedError as error:
                if not isinstance(error.__cause__, AbortedError):
                    raise
                if stop.offset - at == 1:
                    self._pass_over(frame, at, error)
                size = max((stop.offset - at) // 2, 1)
            at = MessageOffset(self.offsets.state.commit.watermark)
            self.at = LogPoint(at, begin.byte)

    def _pass_over(self, frame: DataFrame, offset: MessageOffset, error: RefusedError) -> None:
        """The target does not vote for this one message: bury it, or stop before it."""
        row = frame.where(f"offset = {offset}").select("ns").first()
        refusal = Refusal(offset, "" if row is None else row[0], error.message, self._name)
        if not self._burying:
            raise refusal_error(self._name, refusal)
        self._buried(refusal)
        self.aborts = 0

    def _buried(self, refusal: Refusal) -> None:
        with faults.step("bury"):
            self._bury(self.offsets.state.commit.generation, [refusal])
        passed = advanced(self.offsets.state.commit, refusal.offset + 1, dead=1)
        self._committed(passed, {refusal.ns: refusal.offset})
