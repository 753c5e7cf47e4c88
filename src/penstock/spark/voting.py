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
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import AbortedError, Refusal, Voting
from penstock.base import faults
from penstock.base.errors import PenstockError, RefusedError
from penstock.log.message import MessageOffset
from penstock.log.offsets import Commit, Lane
from penstock.log.positions import LogPoint
from penstock.log.transaction import ABORTED, DECIDED, TELLING, Transaction, after_votes, begun
from penstock.spark.ballot import ABORTS, Ballot, judged
from penstock.spark.batch import BatchReport, BatchRunner, refusal_error
from penstock.spark.single import advanced, now_us
from penstock.spark.tasks import Task
from penstock.spark.work import Spent, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class VotingRunner(BatchRunner):
    """Carries out the batches of one sink that votes."""

    aborts = 0
    """How often in a row a batch was voted down."""
    transaction: Transaction | None = None
    """The one on its way, for those who look; they may be in other threads."""

    def _open(self, log_end: int) -> None:
        super()._open(log_end)
        self.ballot.open()
        self.transaction = None
        self._dismiss()

    @property
    def ballot(self) -> Ballot:
        """Its target, and the offset log that decides for it."""
        voting = self._target.publisher
        assert isinstance(voting, Voting)
        return Ballot(self._name, voting, self.offsets)

    def _dismiss(self) -> None:
        """Let go of lanes that are no more. On record first: a name that comes back begins at 0."""
        lanes, workers = self.ballot.lanes, self.ballot.voting.workers
        gone = tuple(worker for worker in lanes if worker not in workers)
        if gone:
            commit = self.offsets.state.commit
            kept = {worker: lane for worker, lane in lanes.items() if worker in workers}
            left = msgspec.structs.replace(commit, lanes=kept, leaving=gone, dismissals=commit.dismissals + 1)
            self._committed(left, {})
            self.ballot.tell_who_left()

    def _staged(self, work: Work) -> list[Task]:
        """Whatever an earlier job has prepared is aborted first."""
        plan = self.ballot.begin(work.begin.offset, work.end.offset)
        name = self.ballot.voting.name_of(plan)
        self.transaction = begun(name, work.begin.offset, work.end.offset, now_us())
        try:
            return self._stages.stage(work, self._acked(), self._target.watermark, self._limit, plan)
        except PenstockError:
            raise
        except (
            Exception
        ):  # the errors of tasks come as Spark's; if it is the target that is away, that is the reason
            self.ballot.settle()
            raise

    def _publish(self, tasks: Sequence[Task], work: Work, spent: Spent) -> BatchReport:
        """Steps 5 to 7."""
        lanes = self._judged([(self, tasks)], work)[0]
        commit, namespaces, report = self._accounted(tasks, work, spent)
        self._decide(commit, namespaces, lanes, report)
        self.aborts = 0
        self._tell(lanes)
        return report

    def _tell(self, lanes: Mapping[str, Lane]) -> None:
        """Step 7."""
        if lanes:
            self._reached(TELLING)
            self.ballot.voting.tell(lanes)
        self.transaction = None

    def _reached(self, state: str) -> None:
        if self.transaction is not None:
            self.transaction = self.transaction.now(state, now_us())

    def _decide(
        self, commit: Commit, namespaces: Mapping[str, int], lanes: Mapping[str, Lane], report: BatchReport
    ) -> None:
        """Step 6; a batch of which nothing goes to the target is only noted."""
        commit = self.ballot.decided(commit, lanes)
        if report.delivered or report.dead or lanes:
            self._committed(commit, namespaces)
        else:
            self.offsets.note(commit, namespaces)
        self._target.watermark = commit.watermark
        self._reached(DECIDED)

    def _judged(
        self, voters: Sequence[tuple[VotingRunner, Sequence[Task]]], work: Work
    ) -> list[Mapping[str, Lane]]:
        """The lanes of each, if all of them voted to commit; or else nobody commits."""
        for voter, tasks in voters:
            voter._voted(tasks)
        try:
            return judged([(voter.ballot, [task.staged for task in tasks]) for voter, tasks in voters])
        except AbortedError as error:
            self.aborts += 1
            for voter, _ in voters:
                voter._reached(ABORTED)
            raise self._aborted(error, work) from error

    def _voted(self, tasks: Sequence[Task]) -> None:
        if self.transaction is not None:
            votes = self.ballot.voting.votes([task.staged for task in tasks])
            self.transaction = after_votes(self.transaction, votes, now_us())

    def _aborted(self, error: AbortedError, work: Work) -> PenstockError:
        """Once more; or, after some times, what the sink's policy is for."""
        if self.aborts < ABORTS and work.end.offset > self.offsets.state.commit.careful:
            return error
        before = self.offsets.state.commit
        careful = max(before.careful, work.end.offset)
        self._committed(msgspec.structs.replace(before, careful=careful), {})
        return RefusedError(
            f"sink '{error.sink}' stopped before message {before.watermark}: its target voted {self.aborts} times to "
            f"abort the messages {before.watermark} to {work.end.offset - 1}: {error.message}",
            hint="run it again: these messages then go in smaller batches, up to the one that is refused",
        )

    def _singly(self, work: Work) -> None:
        """Deliver messages in batches that halve whenever one is voted down, and double when one is not."""
        (at, byte), end = work.begin, work.end.offset
        size = max((end - at) // 2, 1)
        while at < end:
            stop = min(at + size, end)
            try:
                self._in_bulk(work.behind(LogPoint(at, byte)).until(stop))
                size *= 2
            except RefusedError as error:
                if not isinstance(error.__cause__, AbortedError):
                    raise
                if stop - at == 1:
                    self._pass_over(work.frame, at, error)
                size = max((stop - at) // 2, 1)
            at = MessageOffset(self.offsets.state.commit.watermark)
            self.at = LogPoint(at, byte)

    def _pass_over(self, frame: DataFrame, offset: MessageOffset, error: RefusedError) -> None:
        """The target does not vote for this one message: bury it, or stop before it."""
        assert isinstance(error.__cause__, AbortedError)
        row = frame.where(f"offset = {offset}").select("ns").first()
        refusal = Refusal(offset, "" if row is None else row[0], error.message, error.__cause__.sink)
        if not self._burying:
            raise refusal_error(self._name, refusal)
        self._buried(refusal)
        self.aborts = 0

    def _buried(self, refusal: Refusal) -> None:
        self._committed(self._dead(refusal), {refusal.ns: refusal.offset})

    def _dead(self, refusal: Refusal) -> Commit:
        """Keep the message among the dead letters; what the sink has when it has passed it."""
        with faults.step("bury"):
            self._bury(self.offsets.state.commit.generation, [refusal])
        return advanced(self.offsets.state.commit, refusal.offset + 1, dead=1)
