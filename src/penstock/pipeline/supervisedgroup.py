"""An atomic group under supervision (`atomic.py`): one query for all of its sinks, and a face for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.log.offsets import Commit, OffsetLog
from penstock.log.positions import LogPoint
from penstock.log.transaction import Transaction
from penstock.pipeline.atomic import GROUP
from penstock.pipeline.definition import SinkNode
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.progress import NodeProgress, SinkSummary
from penstock.pipeline.supervisor import SupervisedSink
from penstock.pipeline.surroundings import Surroundings, runner_for

if TYPE_CHECKING:
    from penstock.spark.batch import Bury
    from penstock.spark.voting import VotingRunner


@dataclass
class Member:
    """One sink of the group, as it is shown."""

    node: SinkNode
    runner: VotingRunner
    first: Commit

    @property
    def commit(self) -> Commit:
        return self.runner.offsets.state.commit


class SupervisedGroup(SupervisedSink):
    """The group and its query."""

    def __init__(
        self,
        nodes: Sequence[SinkNode],
        claim: Callable[[], OffsetLog],
        claims: Callable[[str], Callable[[], OffsetLog]],
        bury: Callable[[str], Bury],
        around: Surroundings,
    ) -> None:
        """`claim` takes the journal of the group's decisions, `claims` the offset log of each sink."""
        from penstock.spark.group import GroupRunner, GroupSink
        from penstock.spark.voting import VotingRunner

        self.nodes = tuple(nodes)
        group = dataclasses.replace(nodes[0], name=GROUP, ns=Namespace(".*"), steps=())
        runners = []
        for node in nodes:
            runner = runner_for(node, claims(node.name), bury(node.name), around)
            assert isinstance(runner, VotingRunner)
            runners.append(runner)
        made = runner_for(group, claim, bury(GROUP), around, GroupSink(), GroupRunner)
        assert isinstance(made, GroupRunner)
        made.members = runners
        made.agree()
        super().__init__(group, made, around)
        for runner in runners:
            runner.tell_done(self._count)
        self.members = [
            Member(node, runner, runner.offsets.state.commit)
            for node, runner in zip(nodes, runners, strict=True)
        ]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(node.name for node in self.nodes)

    @property
    def transactions(self) -> dict[str, Transaction]:
        found = {one.node.name: one.runner.transaction for one in self.members}
        return {name: transaction for name, transaction in found.items() if transaction is not None}

    def progresses(self, end: LogPoint) -> list[NodeProgress]:
        return [self._progress_of(one.node, one.commit, one.first, end) for one in self.members]

    def summaries(self, end: LogPoint) -> list[SinkSummary]:
        return [self._summary_of(one.node, one.commit, one.first, end) for one in self.members]
