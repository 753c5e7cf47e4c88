"""What all deliveries by two-phase commit share: who votes, and the offset log that decides (`adaptors.base.Voting`).

A decision is one append. Of a sink alone it goes to its own offset log; of an atomic group to the journal of the group,
and the offset logs of its sinks follow. A crash in between is made good by `follow`, before anything else is asked of
the target: what a sink's own log does not know as committed would be aborted there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from penstock.adaptors.base import AbortedError, Staged, Voting
from penstock.base.errors import PenstockError
from penstock.log.offsets import Commit, Lane, OffsetLog, SinkOffsets
from penstock.spark.single import now_us

ABORTS = 3
"""What the target has voted down so often in a row is refused."""


@dataclass(frozen=True, slots=True)
class Ballot:
    """A target that votes, and the offset log that decides for it."""

    sink: str
    voting: Voting
    offsets: OffsetLog

    @property
    def lanes(self) -> Mapping[str, Lane]:
        """Those of the record of decisions."""
        return self.offsets.state.commit.lanes or {}

    def open(self) -> None:
        """Make good what a crash has left undone; a name that has left and come back is looked at only then."""
        self.tell_who_left()
        self.settle()

    def tell_who_left(self) -> None:
        """Tell the target of the names that have left, if it may not have heard of it."""
        commit = self.offsets.state.commit
        if commit.leaving:
            self.voting.leave(commit.leaving)
            self.offsets.commit(msgspec.structs.replace(commit, leaving=()), {}, now_us())

    def settle(self) -> None:
        """Decide whatever is open at the target."""
        self.voting.settle(self.lanes, self._confirm)

    def begin(self, begin: int, end: int) -> str:
        """The plan for a job that stages these messages; whatever an earlier one has prepared is aborted first."""
        span, generation = (begin, end), self.offsets.state.commit.generation
        return self.voting.begin(self.lanes, self._confirm, span, generation)

    def decided(self, commit: Commit, lanes: Mapping[str, Lane]) -> Commit:
        """The commit that is the decision on these lanes, too."""
        return msgspec.structs.replace(commit, lanes={**self.lanes, **lanes})

    def _confirm(self) -> None:
        """The offset log is still ours: whoever takes it first is the one who decides."""
        self.offsets.commit(self.offsets.state.commit, {}, now_us())


def judged(voters: Sequence[tuple[Ballot, Sequence[Staged]]]) -> list[Mapping[str, Lane]]:
    """The lanes of each, if all of them voted to commit; or else nobody commits, and all are told so."""
    lanes: list[Mapping[str, Lane]] = []
    for ballot, parts in voters:
        try:
            lanes.append(ballot.voting.judge(parts))
        except AbortedError as error:
            error.sink = ballot.sink
            abort([one for one, _ in voters])
            raise
    return lanes


def abort(ballots: Sequence[Ballot]) -> None:
    """Tell all that nothing becomes of what they have prepared."""
    for ballot in ballots:
        with suppress(PenstockError):  # it comes before the next job in any case
            ballot.settle()


def decision(before: Commit, end: int, members: Mapping[str, Commit]) -> Commit:
    """The record by which a group stands at `end`, and each of its sinks where `members` says.

    What was decided for others holds on: a sink that is not there now may not have followed it yet.
    """
    careful = before.careful if before.careful > end else 0
    decided = {**(before.members or {}), **members}
    return msgspec.structs.replace(before, watermark=end, careful=careful, members=decided)


def follow(decisions: SinkOffsets, sink: str, offsets: OffsetLog) -> None:
    """Bring a sink's offset log to the last decision of its group, if a crash kept it from that."""
    decided = (decisions.commit.members or {}).get(sink)
    if decided is None:
        return
    held = offsets.state.commit
    followed = after_decision(held, decided)
    if followed != held:
        prefix = f"{sink}/"
        told = {
            ns.removeprefix(prefix): at for ns, at in decisions.namespaces.items() if ns.startswith(prefix)
        }
        offsets.commit(followed, told, now_us())


def after_decision(held: Commit, decided: Commit) -> Commit:
    """What a sink has, if its group has decided that it has `decided`.

    Where an operator has moved the sink since, its own word holds; but for the lanes, whose ends only grow. Once names
    have left it had followed every decision before, and a name that comes back begins at 0.
    """
    if decided.dismissals < held.dismissals:
        return held
    lanes = dict(held.lanes or {})
    for worker, lane in (decided.lanes or {}).items():
        if lane.end > lanes.get(worker, Lane(-1, "")).end:
            lanes[worker] = lane
    ahead = decided.generation == held.generation and decided.watermark > held.watermark
    base = decided if ahead else held
    return msgspec.structs.replace(base, lanes=lanes or base.lanes)
