"""The replication pipeline of a journal's primary (seed 003, "Components"; reference 16).

A pipeline owns the replica's spool for as long as it lives, across many appends; it is built when an append first
needs it, and torn down when the route has changed. What it is told to scatter goes to every replica of the route.
Here that is our own spool alone, whose acknowledgement is the sync that makes a commit durable; with peers it is
`cluster/pipeline.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.base.disk import Buffer
from penstock.base.errors import PenstockError
from penstock.journal.fragment import Fragment
from penstock.journal.localspool import LocalSpool
from penstock.journal.protocol import Header, LabelSet, Route
from penstock.journal.slots import Slot
from penstock.journal.spool import Outcome


class ReplicationError(PenstockError):
    """A replica did not do its part: what was proposed to it is in doubt, and the pipeline is of no more use."""


class NotSynchronisedError(ReplicationError):
    """The replicas did not come to an agreement. Nothing of the append was sent, so it may be tried again."""


class RouteChangedError(PenstockError):
    """A replica knows of another route: read the key space through `revision`, and resolve again."""

    def __init__(self, journal: str, revision: int) -> None:
        super().__init__(f"{journal}: a replica knows of another route, of revision {revision}")
        self.revision = revision


@dataclass(frozen=True, slots=True)
class Disagreement:
    """What a synchronisation has to propose instead: an empty fragment at `offset`, with these registers if any."""

    offset: int
    registers: LabelSet | None


def next_proposal(proposed: Fragment, mismatches: Sequence[tuple[Fragment, LabelSet]]) -> Disagreement:
    """What to propose after replicas answered that they have these fragments and registers instead.

    Bytes go to the furthest end that any replica knows; who is there knows the registers, too. One that cannot continue
    the fragment, though it ends where ours does, begins the next one with everybody else.
    """
    found: Disagreement | None = None
    for theirs, registers in mismatches:
        if theirs.end > proposed.end:
            if found is None or theirs.end > found.offset:
                found = Disagreement(theirs.end, registers)
        elif theirs.end == proposed.end and (not theirs.length or theirs.begin != proposed.begin):
            found = found or Disagreement(theirs.end, None)
        else:
            raise NotSynchronisedError(
                f"{proposed.journal}: a replica has {theirs.begin}-{theirs.end} with the sum {theirs.sum.hex()}, we"
                f" have {proposed.begin}-{proposed.end} with {proposed.sum.hex()}",
                hint="two replicas hold different content at the same offsets; keep the spools of both",
            )
    assert found is not None, "somebody disagrees"
    return found


class Pipeline:
    """Made by whoever owns `spool_slot`; gives it back when closed. Its users take turns (`Replica.pipeline_slot`)."""

    __slots__ = ("_spool_slot", "local", "route")

    replicated: ClassVar[bool] = False
    """Whether there are peers, to whom content has to be sent by `scatter`."""

    def __init__(self, route: Route, local: LocalSpool, spool_slot: Slot) -> None:
        self.route = route
        self.local = local
        self._spool_slot = spool_slot

    def serves(self, route: Route) -> bool:
        """Whether this pipeline, as it is, reaches the replicas of a route."""
        return equivalent(self.route, route)

    # Synchronisation.

    async def start(self) -> None:
        """Before anything is proposed: see to it that what a crash left us is what the journal has."""

    async def synchronise(self, header: Header, proposal: Fragment, registers: LabelSet) -> int:
        """Propose to every replica what is to be extended. Returns the ticket of the answers (`synchronised`)."""
        return await self.propose(proposal, registers)

    async def synchronised(self, ticket: int) -> Disagreement | None:
        """None if every replica has adopted the proposal; otherwise what to propose next."""
        await self.local.durable(ticket)
        if self.local.unconfirmed:
            self.local.release()
        return None

    # Appends.

    async def propose(self, proposal: Fragment, registers: LabelSet) -> int:
        """Have every replica adopt a fragment. Returns the ticket of the acknowledgement to `gather`."""
        outcome, ticket = await self.local.propose(proposal, registers)
        assert outcome is not Outcome.MISMATCH, "our own proposal is made from our own spool"
        return ticket

    async def commit(self, registers: LabelSet, *, appends: int = 1) -> int:
        """Have every replica adopt all content that was scattered; as `propose`, of what we have ourselves."""
        return self.local.adopt(registers, appends=appends) if self.local.spool.delta else self.local.ticket

    async def scatter(self, chunk: Buffer) -> None:
        """Have every peer take a chunk, which our own spool takes by `content`."""

    def content(self, chunk: Buffer) -> None:
        """Have our own spool take a chunk."""
        self.local.content(chunk)

    def roll_back(self) -> None:
        """Have every replica forget what was not committed."""
        self.local.roll_back()

    async def gather(self, ticket: int) -> None:
        """Wait until every replica has acknowledged. Tickets are acknowledged in the order they were given out."""
        await self.local.durable(ticket)

    async def settled(self) -> None:
        """Before it is closed in order: wait until what was sent is acknowledged, or will not be."""

    def close(self) -> None:
        self.local.roll_back()
        self._spool_slot.release()


def equivalent(left: Route, right: Route) -> bool:
    """Whether two routes name the same members and the same primary; endpoints do not count."""
    return left.primary == right.primary and left.members == right.members


def keeps_members(before: Route, after: Route) -> bool:
    """Whether nobody has left: then what was sent on the old route can still be acknowledged by all."""
    return all(member in after.members for member in before.members)
