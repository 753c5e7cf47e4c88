"""The allocator against a key space in which everything happens at once.

Brokers come, go, die and leave; journals are made, changed and deleted; replicas agree whenever they like; the leader
plans on one picture and acts on another, or dies in between and its last transactions arrive late. After every
transaction of the allocator: nothing was taken from a journal that it needs, no journal has two primaries, no member
was given more than its limit. When the world comes to rest, so does the allocator, at its target.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.journal import keys
from penstock.journal.cluster.allocator.changes import Transaction, transactions
from penstock.journal.cluster.allocator.converge import converge
from penstock.journal.cluster.allocator.picture import Picture
from penstock.journal.cluster.allocator.solve import Desired, solve
from penstock.journal.cluster.allocator.state import Member, State

from .allocating import Etcd, id_of, name_of

NAMES = [f"{zone}{at}" for zone in "abc" for at in range(1, 4)]
JOURNALS = [f"j{at}" for at in range(7)]


class Cluster(RuleBasedStateMachine):
    """`limits`: what members say that they take."""

    limits = st.integers(len(JOURNALS), 20)
    roomy = True

    def __init__(self) -> None:
        super().__init__()
        self.etcd = Etcd()
        self.lease = 100
        self.leases: dict[str, int] = {}
        self.plan: list[Transaction] = []
        self.planner: Member | None = None
        self.planned_on = b""
        """The problem that the plan is for."""
        self.late: list[Transaction] = []
        """What leaders had still to do when they died."""
        self.solved: tuple[bytes, Desired] | None = None

    def state(self) -> State:
        return self.etcd.picture.state()

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def broker_comes(self, name: str, data: st.DataObject) -> None:
        if name not in self.leases:
            self.lease += 1
            self.leases[name] = self.lease
            self.etcd.announce(name, data.draw(self.limits), self.lease)

    @rule(data=st.data())
    def broker_dies(self, data: st.DataObject) -> None:
        if not self.leases:
            return
        self.dies(data.draw(st.sampled_from(sorted(self.leases))))

    @precondition(lambda self: self.plan)
    @rule()
    def leader_dies_at_work(self) -> None:
        assert self.planner is not None
        self.dies(name_of(self.planner.id))

    def dies(self, name: str) -> None:
        self.etcd.expire(self.leases.pop(name))
        if self.planner is not None and self.planner.id == id_of(name):
            self.late += self.plan
            self.plan, self.planner, self.solved = [], None, None

    @rule(data=st.data())
    def broker_is_told_to_leave(self, data: st.DataObject) -> None:
        if self.leases:
            name = data.draw(st.sampled_from(sorted(self.leases)))
            limit = self.state().members[id_of(name)].limit
            self.etcd.announce(name, limit, self.leases[name], exiting=True)

    @rule()
    def brokers_that_are_drained_go(self) -> None:
        for name in list(self.leases):
            if self.state().members[id_of(name)].exiting and not self.etcd.picture.load(id_of(name)):
                self.dies(name)

    @rule(journal=st.sampled_from(JOURNALS), replication=st.integers(0, 4))
    def journal_is_applied(self, journal: str, replication: int) -> None:
        self.etcd.make(journal, replication)

    @rule(journal=st.sampled_from(JOURNALS))
    def journal_is_deleted(self, journal: str) -> None:
        if keys.item_key(journal) in self.etcd.entries:
            self.etcd.delete(keys.item_key(journal))

    @rule(journal=st.sampled_from(JOURNALS))
    def replicas_agree(self, journal: str) -> None:
        self.etcd.sync(journal)

    @rule()
    def replicas_of_all_agree(self) -> None:
        for journal in JOURNALS:
            self.etcd.sync(journal)

    @rule()
    def leader_plans(self) -> None:
        state = self.state()
        self.plan, self.planner, self.planned_on = [], state.leader, state.fingerprint
        if state.leader is not None:
            if self.solved is None or self.solved[0] != state.fingerprint:
                self.solved = state.fingerprint, solve(state)
            # One checkpoint a transaction: as many moments for something else to happen.
            for checkpoint in converge(state, self.solved[1]):
                self.plan += transactions(state.leader, [checkpoint])

    @precondition(lambda self: self.plan)
    @rule(count=st.integers(1, 6))
    def leader_acts(self, count: int) -> None:
        for transaction in self.plan[:count]:
            if not self.act(transaction):
                self.plan = []
                return
        self.plan = self.plan[count:]

    @rule()
    def leader_does_all(self) -> None:
        self.leader_plans()
        self.leader_acts(len(self.plan))

    @precondition(lambda self: self.late)
    @rule()
    def word_of_a_dead_leader_arrives(self) -> None:
        transaction = self.late.pop()
        assert not self.etcd.commit_now(transaction.compares, transaction.operations).ok

    def act(self, transaction: Transaction) -> bool:
        before = self.state()
        ok = self.etcd.commit_now(transaction.compares, transaction.operations).ok
        if ok:
            check_step(before, self.state(), shedding=before.fingerprint == self.planned_on)
        return ok

    @invariant()
    def the_picture_is_what_the_keys_say(self) -> None:
        fresh = Picture(max_replication=5)
        for key, entry in self.etcd.entries.items():
            fresh.update(key, entry)
        assert fresh.state() == self.state()

    @invariant()
    def no_journal_has_two_primaries(self) -> None:
        for journal, group in self.state().held.items():
            assert [held.slot for held in group].count(0) <= 1, journal

    def teardown(self) -> None:
        """The world rests: in the end nothing is left to do."""
        for _ in range(60):
            self.leader_plans()
            steps = len(self.plan)
            self.leader_acts(steps)
            agreed = [journal for journal in JOURNALS if self.etcd.sync(journal)]
            if not steps and not agreed:
                break
        else:
            pytest.fail(f"not at rest: {self.plan}")
        state = self.state()
        if state.leader is None:
            return
        if self.roomy:
            assert rest(state) == {journal: set(ids) for journal, ids in solve(state).items() if ids}
        for journal, group in state.held.items():
            assert [held.slot for held in group] == list(range(len(group)))
            assert state.is_consistent(journal)
        for id, amount in state.shed.items():
            if self.roomy and amount == state.members[id].limit:
                assert not self.etcd.picture.load(id), "drained"


def rest(state: State) -> dict[str, set[keys.MemberId]]:
    return {journal: {held.member for held in group} for journal, group in state.held.items()}


def check_step(before: State, after: State, *, shedding: bool) -> None:
    """What one transaction of the allocator may do.

    How much members that leave are to be rid of changes with every journal and every member; a leader that planned
    before that, not `shedding`, keeps to their own limits.
    """
    for journal, item in before.items.items():
        was = {held.member for held in before.held.get(journal, ())}
        now = {held.member for held in after.held.get(journal, ())}
        if was - now and item.replication > 0:
            assert before.is_consistent(journal), "taken from replicas that have not agreed"
            assert len(now & was) >= item.replication, "below its replication"
        if was & now and any(held.slot == 0 for held in before.held[journal]):
            assert any(held.slot == 0 for held in after.held[journal]), "left without a primary"
    for id, load in after.loads.items():
        if load > before.loads[id]:
            limit = before.limits[id] if shedding else before.members[id].limit
            assert load <= limit, "beyond its limit"
    for group in after.held.values():
        assert max(Counter(held.member for held in group).values()) == 1
        assert [held.slot for held in group].count(0) <= 1


class TightCluster(Cluster):
    """Limits that often leave too little room: then the target may be out of reach, and the rules hold still."""

    limits = st.integers(0, 6)
    roomy = False


TestCluster = Cluster.TestCase
TestTightCluster = TightCluster.TestCase
TestCluster.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTightCluster.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.mark.soak
@pytest.mark.parametrize("machine", [Cluster, TightCluster])
def test_many_runs(machine: type[Cluster]) -> None:
    class Long(machine):  # type: ignore[valid-type, misc]
        pass

    case = Long.TestCase
    case.settings = settings(max_examples=1500, stateful_step_count=60, deadline=None)
    case("runTest").runTest()
