"""One message at a time for targets that vote: what `single.py` does, by two-phase commit, and without Spark, too.

A message goes to all sinks of an atomic group, or to one that decides for itself, in the order of every batch
(`voting.py`, `group.py`): staged for all, judged, decided in one append, told. What one target votes down is refused
for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.adaptors.base import AbortedError, Refusal, SinkPosition, Staged, Voting
from penstock.base import faults
from penstock.log.offsets import Commit, Lane, OffsetLog
from penstock.log.record import Record
from penstock.spark.ballot import ABORTS, Ballot, abort, decision, follow, judged
from penstock.spark.single import NOTHING, SingleStager, advanced, batch_of, origin_of
from penstock.spark.tasks import lane_of

if TYPE_CHECKING:
    import pyarrow as pa

Bury = Callable[[str, Refusal], None]
"""Keeps a refused message among the dead letters of a sink; durable on return."""


class Voter:
    """One sink that takes part: the functions in front of it, its target, and its offset log."""

    def __init__(self, stager: SingleStager, offsets: OffsetLog) -> None:
        self.name = stager.name
        self.offsets = offsets
        self._stager = stager
        publisher = stager.sink.publisher()
        assert isinstance(publisher, Voting)
        self.ballot = Ballot(stager.name, publisher, offsets)

    @property
    def commit(self) -> Commit:
        return self.offsets.state.commit

    def open(self, log_id: str) -> None:
        self.ballot.voting.open(SinkPosition(log_id, self.commit.generation, self.commit.watermark))
        self.ballot.open()

    def close(self) -> None:
        self.ballot.voting.close()
        self._stager.clear()

    def stage(self, rows: pa.RecordBatch, skip_below: int) -> tuple[Staged, Refusal | None]:
        """Send the message in its lane, and ask for the vote on it."""
        offset: int = rows.column("offset")[0].as_py()
        plan = self.ballot.begin(offset, offset + 1)
        lane = lane_of(origin_of(rows), rows.column("key")[0].as_py(), self._stager.sink.lanes)
        with faults.step("stage"):
            return self._stager.stage(rows, skip_below, plan, lane)


@dataclass(frozen=True, slots=True)
class Passed:
    """What became of a message at a sink."""

    sink: str
    outcome: str
    """delivered | dropped | dead | refused"""
    refusal: Refusal | None = None


@dataclass(slots=True)
class _Voted:
    """What the sinks said to a message: what each has of it if it is decided so, or why not, by name."""

    staged: dict[str, Staged] = field(default_factory=dict)
    lanes: dict[str, Mapping[str, Lane]] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)


class VotedDelivery:
    """Delivers to sinks that commit together. Owns their targets and offset logs while it is open."""

    def __init__(
        self,
        voters: Sequence[Voter],
        decisions: OffsetLog | None,
        log_id: str,
        clock: Callable[[], int],
        bury: Bury | None = None,
    ) -> None:
        """`decisions` are those of the group; None for a sink that decides for itself.

        `bury`, if given, takes refused messages.
        """
        self._voters = voters
        self._decisions = decisions
        self._log_id = log_id
        self._clock = clock
        self._bury = bury
        if decisions is not None:
            for voter in voters:
                follow(decisions.state, voter.name, voter.offsets)

    def __enter__(self) -> VotedDelivery:
        for voter in self._voters:
            voter.open(self._log_id)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for voter in self._voters:
            voter.close()

    @property
    def watermark(self) -> int:
        """Where the sinks stand; if an operator has moved one of them, the one that is behind."""
        return min(voter.commit.watermark for voter in self._voters)

    def deliver(self, record: Record) -> list[Passed]:
        """The next message, to all who lack it: acknowledged on return, unless it is refused and not buried.

        What the functions of one sink refuse is dead for that one alone.
        """
        lacking = [voter for voter in self._voters if voter.commit.watermark <= record.offset]
        wanting = [voter for voter in lacking if record.offset not in voter.commit.acked]
        voted = self._voted(wanting, record, again=False)
        if voted.refused and self._bury is None:
            return [Passed(name, "refused", refusal) for name, refusal in voted.refused.items()]
        for name, refusal in voted.refused.items():
            assert self._bury is not None
            with faults.step("bury"):
                self._bury(name, refusal)
        commits = {voter.name: _advanced(voter, record.offset, voted) for voter in lacking}
        self._decide(commits, voted.lanes, {record.ns: record.offset}, end=record.offset + 1)
        return [_passed(voter.name, voted) for voter in lacking]

    def redeliver(self, record: Record, sinks: Collection[str]) -> Refusal | None:
        """Send a message that was acknowledged before (a dead letter) to these sinks; their positions stay."""
        voters = [voter for voter in self._voters if voter.name in sinks]
        voted = self._voted(voters, record, again=True)
        if voted.refused:
            return next(iter(voted.refused.values()))
        self._decide({voter.name: voter.commit for voter in voters}, voted.lanes, {}, end=None)
        return None

    def _voted(self, voters: Sequence[Voter], record: Record, *, again: bool) -> _Voted:
        """Have them vote, some times if they vote to abort. Where a refusal is the end, nothing stays prepared."""
        rows = batch_of([record])
        error = AbortedError("")
        for _ in range(ABORTS):
            voted = _Voted()
            for voter in voters:
                staged, refusal = voter.stage(rows, 0 if again else voter.commit.watermark)
                if refusal is None:
                    voted.staged[voter.name] = staged
                else:
                    voted.refused[voter.name] = refusal
            if voted.refused and (again or self._bury is None):
                abort([voter.ballot for voter in voters])
                return voted
            taking = [voter for voter in voters if voter.name in voted.staged]
            try:
                lanes = judged([(voter.ballot, [voted.staged[voter.name]]) for voter in taking])
            except AbortedError as one:
                error = one
                continue
            voted.lanes = {voter.name: own for voter, own in zip(taking, lanes, strict=True)}
            return voted
        reason = f"its target voted {ABORTS} times to abort: {error.message}"
        refusal = Refusal(record.offset, record.ns, reason, error.sink)
        return _Voted(refused={voter.name: refusal for voter in voters})

    def _decide(
        self,
        commits: Mapping[str, Commit],
        lanes: Mapping[str, Mapping[str, Lane]],
        namespaces: Mapping[str, int],
        end: int | None,
    ) -> None:
        """The decision, then the offset logs that follow it, then the targets. `end` is where the group stands then."""
        voters = [voter for voter in self._voters if voter.name in commits]
        decided = {
            voter.name: voter.ballot.decided(commits[voter.name], lanes.get(voter.name, {}))
            for voter in voters
        }
        if self._decisions is not None:
            before = self._decisions.state.commit
            told = {f"{name}/{ns}": at for name in decided for ns, at in namespaces.items()}
            record = decision(before, before.watermark if end is None else end, decided)
            self._decisions.commit(record, told, self._clock())
        for voter in voters:
            voter.offsets.commit(decided[voter.name], namespaces, self._clock())
        for voter in voters:
            if own := lanes.get(voter.name):
                voter.ballot.voting.tell(own)


def _passed(sink: str, voted: _Voted) -> Passed:
    if sink in voted.refused:
        return Passed(sink, "dead", voted.refused[sink])
    return Passed(sink, "delivered" if voted.staged.get(sink, NOTHING).messages else "dropped")


def _advanced(voter: Voter, offset: int, voted: _Voted) -> Commit:
    """What the sink has when it has passed the message; what lay before it was removed by compaction."""
    before, staged = voter.commit, voted.staged.get(voter.name, NOTHING)
    sent, dead = int(staged.messages > 0), int(voter.name in voted.refused)
    dropped = offset + 1 - before.watermark - sent - dead
    return advanced(before, offset + 1, delivered=sent, dropped=dropped, dead=dead, rows=staged.rows)
