"""An atomic group: several sinks that vote, one query, one position, one decision.

Each batch is staged for every sink of the group, through its own functions. Only if all of them vote to commit is the
decision taken: one record in the journal of the group, with the transactions of all and what each sink has from then
on. The offset logs of the sinks follow it; a crash in between is made good at the next start, from that record. One
vote to abort, or one refused message that stops a sink, holds for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import Guarantee, Order, Refusal, Sink
from penstock.log.message import ByteOffset, MessageOffset
from penstock.log.offsets import Commit
from penstock.log.positions import LogPoint
from penstock.spark.ballot import decision, follow
from penstock.spark.batch import BatchReport, refusal_error
from penstock.spark.tasks import Task
from penstock.spark.voting import VotingRunner
from penstock.spark.work import Spent, Work, last_told, refusals_of

if TYPE_CHECKING:
    from penstock.adaptors.base import Publisher, Stager


class GroupSink(Sink):
    """Stands for the group where a sink is asked for; it has no target of its own."""

    order = Order.TOTAL
    guarantee = Guarantee.EXACTLY_ONCE

    def stager(self) -> Stager:
        raise AssertionError("a group stages through its sinks")

    def publisher(self) -> Publisher:
        raise AssertionError("a group decides through its sinks")

    def staging(self, scratch: Path) -> Path:
        return scratch


@dataclass
class _Share:
    """What one sink of the group has to do in a batch, and what its tasks told."""

    member: VotingRunner
    work: Work
    tasks: Sequence[Task] = ()


class GroupRunner(VotingRunner):
    """Carries out the batches of a group. Its offset log is the record of decisions of all its sinks."""

    members: Sequence[VotingRunner] = ()

    @property
    def is_open(self) -> bool:
        return bool(self.members) and all(member.is_open for member in self.members)

    def _open(self, log_end: int) -> None:
        for member in self.members:
            follow(self.offsets.state, member.name, member.offsets)
            member.open(log_end)
        lowest = min(member.offsets.state.commit.watermark for member in self.members)
        if self.offsets.state.commit.watermark != lowest:  # a sink is new here, or an operator moved one
            self._committed(msgspec.structs.replace(self.offsets.state.commit, watermark=lowest), {})
        if self.at.offset != lowest:
            self.at = LogPoint(MessageOffset(lowest), ByteOffset(0))

    def close(self) -> None:
        for member in self.members:
            member.close()

    def mark(self, change: Callable[[Commit], Commit]) -> None:
        """First what each sink has, which is what the log is kept by; a crash in between is made good by `agree`."""
        for member in self.members:
            member.mark(change)
        super().mark(change)

    def agree(self) -> None:
        """Be detached as long as one of the sinks is: an operator sets each of them."""
        detached = any(member.offsets.state.commit.detached for member in self.members)
        if self.offsets.state.commit.detached != detached:
            super().mark(lambda commit: msgspec.structs.replace(commit, detached=detached))

    def claim_again(self) -> None:
        for member in self.members:
            member.claim_again()
        super().claim_again()

    def stop(self, patience: float) -> bool:
        ended = super().stop(patience)
        if ended:
            for member in self.members:
                member.stop(0.0)
        return ended

    def keep_offsets(self) -> None:
        super().keep_offsets()
        for member in self.members:
            member.keep_offsets()

    def _in_bulk(self, work: Work) -> None:
        spent = Spent()
        shares = [_Share(member, _own(member, work)) for member in self.members]
        for share in shares:
            share.member._burying = share.member.buries = self.buries
        stopped: tuple[VotingRunner, Refusal] | None = None
        while not self._stage(shares):
            told = [(share, refusals_of(share.tasks)) for share in shares]
            if not self._burying:
                first = min(
                    ((share.member, refusals[0]) for share, refusals in told if refusals),
                    key=lambda one: one[1].offset,
                )
                stopped, cut = first, first[1].offset
            else:
                ends = [last_told(share.tasks) for share in shares]
                cut = min([end for end in ends if end is not None], default=work.end.offset)
                for share, refusals in told:
                    share.work = share.work.burying(refusals, until=None)
            work = work.until(cut) if cut < work.end.offset else work
            for share in shares:
                if share.work.end.offset > cut:
                    share.work = share.work.until(max(cut, share.work.begin.offset))
            if cut <= work.begin.offset:
                break
        if work.end.offset > work.begin.offset:
            self._together(shares, work, spent)
        self.at = work.end
        if stopped is not None:
            raise refusal_error(stopped[0].name, stopped[1])

    def _stage(self, shares: Sequence[_Share]) -> bool:
        """Stage for all; whether that is the last time."""
        for share in shares:
            wanted = share.work.end.offset > share.work.begin.offset
            share.tasks = share.member._staged(share.work) if wanted else ()
        return not any(refusals_of(share.tasks) for share in shares)

    def _together(self, shares: Sequence[_Share], work: Work, spent: Spent) -> None:
        """One decision for all."""
        lanes = self._judged([(share.member, share.tasks) for share in shares], work)
        accounts = [
            share.member._accounted(share.tasks, share.work, spent) if share.tasks else _nothing(share, spent)
            for share in shares
        ]
        members: dict[str, Commit] = {}
        namespaces: dict[str, int] = {}
        for share, (commit, told, _), own in zip(shares, accounts, lanes, strict=True):
            members[share.member.name] = share.member.ballot.decided(commit, own)
            namespaces |= {f"{share.member.name}/{ns}": at for ns, at in told.items()}
        self._committed(decision(self.offsets.state.commit, work.end.offset, members), namespaces)
        self.aborts = 0
        for share, (commit, told, report), own in zip(shares, accounts, lanes, strict=True):
            share.member._decide(commit, told, own, report)
            share.member.aborts = 0
        for share, own in zip(shares, lanes, strict=True):
            share.member._tell(own)
        for share, (_, _, report) in zip(shares, accounts, strict=True):
            share.member._done(report)
        self._done(BatchReport(work.begin, work.end, 0, 0, 0, 0, spent.seconds))

    def _buried(self, refusal: Refusal) -> None:
        """A message that one of the targets does not vote for is dead for all of them, which is a decision, too."""
        lacking = [one for one in self.members if one.offsets.state.commit.watermark <= refusal.offset]
        members = {member.name: member.offsets.state.commit for member in self.members}
        members |= {member.name: member._dead(refusal) for member in lacking}
        namespaces = {f"{member.name}/{refusal.ns}": refusal.offset for member in lacking}
        self._committed(decision(self.offsets.state.commit, refusal.offset + 1, members), namespaces)
        for member in lacking:
            member._committed(members[member.name], {refusal.ns: refusal.offset})


def _own(member: VotingRunner, work: Work) -> Work:
    """The part of a batch that a sink does not have yet."""
    stands = member.offsets.state.commit.watermark
    begin = LogPoint(MessageOffset(min(max(stands, work.begin.offset), work.end.offset)), work.begin.byte)
    own = work if begin.offset == work.begin.offset else work.behind(begin)
    return Work(own.rows, own.begin, own.end, own.given, {}, work.ranges)


def _nothing(share: _Share, spent: Spent) -> tuple[Commit, Mapping[str, int], BatchReport]:
    commit = share.member.offsets.state.commit
    end = share.work.end
    return commit, {}, BatchReport(end, end, 0, 0, 0, 0, spent.seconds)
