"""A model of brokers that crash and come back: pure spools, the rules of synchronisation, and any order of faults.

Four brokers, three of them a route. A proposal reaches as many of them as the fault lets through. Whoever crashed, or
was out of the route for a while, comes back with what its disk has, compared as `cluster/quarantine.py` does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import permutations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from penstock.base.disk import Buffer
from penstock.journal.cluster.quarantine import yields
from penstock.journal.cluster.survey import Part, Survey
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.protocol import LabelSet
from penstock.journal.replication import next_proposal
from penstock.journal.rolling import proposal_to_extend
from penstock.journal.spool import Outcome, Spool, empty_fragment

JOURNAL = "a/journal"
ROUTES = list(permutations(range(4), 3))


class Memory:
    """Where a spool's content goes."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, content: Buffer, position: int) -> None:
        self.content[position:] = content


@dataclass
class Broker:
    """A broker's disk, and whether what is on it has been compared since it was last in a route."""

    closed: list[tuple[int, bytes]] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    epoch: int = 0
    compared: bool = True

    def __post_init__(self) -> None:
        self.spool = Spool(empty_fragment(JOURNAL, 0, Codec.NONE), LabelSet(), self.memory)

    @property
    def files(self) -> list[tuple[int, bytes]]:
        current = self.spool.fragment
        committed = bytes(self.memory.content[: current.length])
        return [*self.closed, (current.begin, committed)] if current.length else self.closed

    def propose(self, proposal: Fragment) -> Outcome:
        """As `LocalSpool.propose`."""
        if self.spool.rolls_at(proposal):
            self.spool.roll_back()
            if self.spool.fragment != empty_fragment(JOURNAL, proposal.end, proposal.codec):
                self.closed = list(self.files)
                self.memory = Memory()
                self.spool = self.spool.rolled(proposal, LabelSet(), self.memory)
        return self.spool.propose(proposal, LabelSet())

    def parts(self, spans: list[tuple[int, int]]) -> list[Part]:
        found = []
        for begin, content in self.files:
            for low, high in spans:
                start, stop = max(low, begin), min(high, begin + len(content))
                if start < stop:
                    digest = hashlib.sha1(content[start - begin : stop - begin]).digest()
                    found.append(Part(start, stop, digest))
        return found

    def survey(self, spans: list[tuple[int, int]]) -> Survey:
        return Survey(self.epoch, locked=True, end=self.spool.end, parts=self.parts(spans))

    def set_aside(self, offset: int) -> None:
        self.closed = [(begin, content) for begin, content in self.files if begin + len(content) <= offset]
        self.memory = Memory()
        self.spool = Spool(empty_fragment(JOURNAL, 0, Codec.NONE), LabelSet(), self.memory)


def compare(broker: Broker, others: list[Broker]) -> None:
    """As `quarantine.examine`, when all are locked."""
    spans = [(begin, begin + len(content)) for begin, content in broker.files]
    for other in others:
        survey = other.survey(spans)
        ours = broker.parts([(part.begin, part.end) for part in survey.parts])
        wrong = yields(broker.epoch, broker.spool.end, ours, survey, empty=not broker.files)
        if wrong is not None:
            broker.set_aside(wrong)


class Replication(RuleBasedStateMachine):
    """Any order of synchronisations and appends, each of which may stop after any message."""

    def __init__(self) -> None:
        super().__init__()
        self.brokers = [Broker() for _ in range(4)]
        self.revision = 1
        self.assigned: tuple[int, ...] = ()
        self.route: tuple[int, ...] = ()
        """The same, once it is synchronised and as long as it holds."""
        self.acknowledged: dict[int, int] = {}

    @rule(
        route=st.sampled_from(ROUTES),
        messages=st.integers(0, 14),
        crashed=st.sets(st.integers(0, 3)),
    )
    def synchronise(self, route: tuple[int, ...], messages: int, crashed: set[int]) -> None:
        """Another route takes over, or tries to: after so many messages its primary is gone.

        Who stays in the route and has not crashed goes on with what it has; others come back to it.
        """
        self.revision += 1
        self.lose()
        for at in self.assigned:
            if at in crashed or at not in route:
                self.brokers[at].compared = False
        self.assigned = route
        members = [self.brokers[at] for at in route]
        primary, peers = members[0], members[1:]
        for broker in members:
            if not broker.compared:
                compare(broker, [other for other in members if other is not broker])
        roll_to: int | None = None
        for _ in range(6):
            proposal = proposal_to_extend(
                primary.spool.fragment,
                codec=Codec.NONE,
                length=8,
                flush_seconds=0,
                first_append=0,
                now=0,
                roll_to=roll_to,
            )
            mismatches = []
            for peer in peers:
                messages -= 1
                if messages < 0:
                    return
                if peer.propose(proposal) is Outcome.MISMATCH:
                    mismatches.append((peer.spool.fragment, LabelSet()))
            assert primary.propose(proposal) is not Outcome.MISMATCH
            if not mismatches:
                self.agreed(primary)
                self.route = route
                for peer in peers[: max(messages, 0)]:
                    self.agreed(peer)  # the others are told with what is sent next
                return
            roll_to = next_proposal(proposal, mismatches).offset
        raise AssertionError("they never agree")

    def agreed(self, broker: Broker) -> None:
        """A broker knows that all agree."""
        broker.epoch = self.revision
        broker.compared = True

    @rule(content=st.binary(min_size=1, max_size=4), reached=st.integers(0, 3), adopts=st.booleans())
    def append(self, content: bytes, reached: int, adopts: bool) -> None:
        """So many peers get the commit; if not all, the primary may have adopted it, and the pipeline is gone."""
        if not self.route:
            return
        primary, *peers = (self.brokers[at] for at in self.route)
        begin = primary.spool.end
        everyone = [primary, *peers]
        proposal = None
        for broker in everyone:
            broker.spool.content(content, 0)
            proposal = broker.spool.next()
        assert proposal is not None
        for peer in peers[:reached]:
            self.agreed(peer)
            assert peer.propose(proposal) is Outcome.COMMITTED
        if reached >= len(peers):
            assert primary.propose(proposal) is Outcome.COMMITTED
            for at, byte in enumerate(content, start=begin):
                assert at not in self.acknowledged, f"offset {at} was given out twice"
                self.acknowledged[at] = byte
            return
        if adopts:
            primary.propose(proposal)
        self.lose()

    def lose(self) -> None:
        """The pipeline is gone, and with it what was not committed."""
        for at in self.route:
            self.brokers[at].spool.roll_back()
        self.route = ()

    @invariant()
    def one_content_an_offset(self) -> None:
        """Those that are synchronised agree on every byte, and together have all that was acknowledged."""
        content: dict[int, int] = {}
        for at in self.route:
            for begin, held in self.brokers[at].files:
                for offset, byte in enumerate(held, start=begin):
                    assert content.setdefault(offset, byte) == byte, f"two contents at {offset}"
        if self.route:
            assert self.acknowledged.items() <= content.items()


Replication.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestReplication = Replication.TestCase


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_soak_one_content_an_offset() -> None:
    run_state_machine_as_test(
        Replication, settings=settings(max_examples=3000, stateful_step_count=40, deadline=None)
    )
