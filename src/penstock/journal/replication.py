"""The replication pipeline of a journal's primary (seed 003, "Components"; reference 16).

A pipeline owns the replica's spool for as long as it lives, across many appends; it is built when an append first
needs it, and torn down when the route has changed. What it is told to scatter goes to every replica of the route.
With one replica that is our own spool, whose acknowledgement is the sync that makes a commit durable.
"""

from __future__ import annotations

from penstock.base.disk import Buffer
from penstock.journal.fragment import Fragment
from penstock.journal.localspool import LocalSpool
from penstock.journal.protocol import LabelSet, Route
from penstock.journal.slots import Slot
from penstock.journal.spool import Outcome


class Pipeline:
    """Made by whoever owns `spool_slot`; gives it back when closed. Its users take turns (`Replica.pipeline_slot`)."""

    __slots__ = ("_spool_slot", "local", "route")

    def __init__(self, route: Route, local: LocalSpool, spool_slot: Slot) -> None:
        self.route = route
        self.local = local
        self._spool_slot = spool_slot

    async def propose(self, proposal: Fragment, registers: LabelSet) -> int:
        """Have every replica adopt a fragment. Returns the ticket of the acknowledgement to `gather`."""
        outcome, ticket = await self.local.propose(proposal, registers)
        assert outcome is not Outcome.MISMATCH, "our own proposal is made from our own spool"
        return ticket

    async def commit(self, registers: LabelSet, *, appends: int = 1) -> int:
        """Have every replica adopt all content that was scattered; as `propose`, of what we have ourselves."""
        return self.local.adopt(registers, appends=appends) if self.local.spool.delta else self.local.ticket

    def content(self, chunk: Buffer) -> None:
        """Have every replica take a chunk."""
        self.local.content(chunk)

    def roll_back(self) -> None:
        self.local.roll_back()

    async def gather(self, ticket: int) -> None:
        """Wait until every replica has acknowledged. Tickets are acknowledged in the order they were given out."""
        await self.local.durable(ticket)

    def close(self) -> None:
        self.local.roll_back()
        self._spool_slot.release()


def equivalent(left: Route, right: Route) -> bool:
    """Whether two routes name the same members and the same primary; endpoints do not count."""
    return left.primary == right.primary and left.members == right.members
