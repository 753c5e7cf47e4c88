"""The receiving side of replication (reference 15): a primary's stream of content and proposals, applied to our spool.

While the stream is open nobody else can use the spool: that is what makes a synchronised pipeline a lock on the
journal. When it ends, what was not committed is rolled back. A proposal is acknowledged when our own disk has it, and
meanwhile what comes next is applied: acknowledgements are in order, and one sync serves many of them.

A primary that has been replaced, and does not know it, loses the spool to its successor.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from penstock.base.errors import PenstockError
from penstock.journal import validation
from penstock.journal.appending import StoppedServingError
from penstock.journal.claims import Claims
from penstock.journal.fragment import Fragment
from penstock.journal.protocol import Header, ReplicateRequest, ReplicateResponse, Route, Status
from penstock.journal.replica import Replica
from penstock.journal.replication import equivalent
from penstock.journal.resolver import Resolver
from penstock.journal.slots import SlotClosedError
from penstock.journal.spool import Outcome

WINDOW = 256
"""So many proposals may wait for the disk; then no more are taken from the stream."""
PATIENCE = 60.0
"""Seconds for which they may wait."""

Examine = Callable[[Replica, Route], Awaitable[None]]
"""Compare what a crash left us with what the other members of a route have."""


class ReplicateStreamError(PenstockError):
    """The primary's stream broke the contract of Replicate; it is torn down, and built anew by the primary."""


async def replicate(
    requests: AsyncIterator[ReplicateRequest],
    claims: Claims,
    resolver: Resolver,
    examine: Examine | None = None,
) -> AsyncGenerator[ReplicateResponse, None]:
    """The answers to one Replicate. Brokers that are several `examine` what they recovered before it counts."""
    first = await anext(requests, None)
    if first is None:
        raise ReplicateStreamError("replicate stream: unexpected EOF")
    validation.validate_replicate_request(first)
    if not first.HasField("header") or not first.HasField("proposal") or not first.acknowledge:
        raise ReplicateStreamError("replicate stream: expected a first proposal with Header and Acknowledge")
    replica, header, status = await _with_spool(first, claims, resolver)
    if replica is None:
        yield ReplicateResponse(status=status, header=header)
        return
    stream = _Stream(replica, first, requests, examine)
    try:
        introduced = False
        async with aclosing(stream.answers()) as answers:
            async for response in answers:
                if not introduced:
                    response.header.CopyFrom(header)
                    introduced = True
                yield response
    finally:
        await stream.ended()


class _Answer:
    """What is said of a proposal, once the disk has it."""

    __slots__ = ("response", "ticket")

    def __init__(self, ticket: int, response: ReplicateResponse) -> None:
        self.ticket = ticket
        self.response = response


class _Stream:
    """One stream that has our spool, until its task ends: it applies what comes, and answers follow as the disk does.

    The task gives the spool back, not who sends the answers: of a call that was cancelled while it sent one, gRPC
    drops the sender without a word, while what is received ends in any case.
    """

    def __init__(
        self,
        replica: Replica,
        first: ReplicateRequest,
        requests: AsyncIterator[ReplicateRequest],
        examine: Examine | None,
    ) -> None:
        self.route = first.header.route
        self._revision = first.header.etcd.revision
        self._replica = replica
        self._answers: deque[_Answer] = deque()
        self._moved = asyncio.Event()
        self._room = asyncio.Event()
        self._synchronised = False
        self._told = first.HasField("confirmed")
        self._agreed = False
        """Whether our last answer was that we have adopted what was proposed: if more comes, so have all others."""
        replica.guest = self
        self._applying = asyncio.create_task(self._hold(first, requests, examine), name="replicate")
        self._applying.add_done_callback(lambda _: self._moved.set())

    def leave(self) -> None:
        self._applying.cancel()

    async def ended(self) -> None:
        """Nobody may have the spool while something of ours is still applied to it."""
        self._applying.cancel()
        await asyncio.wait((self._applying,))

    async def answers(self) -> AsyncGenerator[ReplicateResponse, None]:
        while True:
            while self._answers:
                answer = self._answers[0]
                await self._replica.local.durable(answer.ticket)
                yield answer.response
                self._answers.popleft()
                self._room.set()
            if self._applying.done():
                break
            self._moved.clear()
            await self._moved.wait()
        if not self._applying.cancelled():
            self._applying.result()

    async def _hold(
        self, first: ReplicateRequest, requests: AsyncIterator[ReplicateRequest], examine: Examine | None
    ) -> None:
        replica = self._replica
        closing = asyncio.ensure_future(replica.spool_slot.until_closed())
        closing.add_done_callback(lambda _: self.leave())
        try:
            if examine is not None and replica.local.quarantined:
                await examine(replica, self.route)
            replica.following = True
            replica.local.told = self._told
            if self._told:
                replica.local.withhold()
            await replica.local.mended()
            await self._apply(first)
            async for request in requests:
                validation.validate_replicate_request(request)
                await self._apply(request)
                if len(self._answers) >= WINDOW:
                    await self._taken()
        finally:
            closing.cancel()
            replica.guest = None
            replica.local.roll_back()
            replica.spool_slot.release()

    async def _taken(self) -> None:
        """Wait until there is room for answers again."""
        try:
            async with asyncio.timeout(PATIENCE):
                while len(self._answers) >= WINDOW:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            raise ReplicateStreamError(f"{self._replica.spec.name}: acknowledgements are not taken") from None

    async def _apply(self, request: ReplicateRequest) -> None:
        local = self._replica.local
        if self._told:
            self._confirm(request)
        elif self._agreed and local.unconfirmed:
            local.release()
        if not request.HasField("proposal"):
            await local.content_at(request.content, request.content_delta)
            return
        # To begin another fragment with no answer wanted is what a primary does when all is acknowledged.
        local.holding = request.acknowledge
        outcome, ticket = await local.propose(Fragment.from_proto(request.proposal), request.registers)
        agreed = outcome is not Outcome.MISMATCH
        if not request.acknowledge:
            if not agreed:
                raise ReplicateStreamError(f"{local.journal}: a proposal that the spool cannot adopt")
            return
        self._agreed = agreed
        if agreed and not self._told:
            local.synchronised(self._revision)
        self._answers.append(_Answer(ticket, ReplicateResponse() if agreed else _mismatch(self._replica)))
        self._moved.set()

    def _confirm(self, request: ReplicateRequest) -> None:
        """A primary of ours says from when on all agree, and what all have. Before that, nothing is certain to stay."""
        if request.confirmed < 0:
            return
        local = self._replica.local
        if not self._synchronised and self._agreed:
            self._synchronised = True
            local.synchronised(self._revision)
        if self._synchronised:
            local.confirm(request.confirmed)


def _mismatch(replica: Replica) -> ReplicateResponse:
    local = replica.local
    response = ReplicateResponse(
        status=Status.PROPOSAL_MISMATCH, fragment=local.fragment.to_proto(), registers=local.registers
    )
    response.registers.SetInParent()
    return response


async def _with_spool(
    first: ReplicateRequest, claims: Claims, resolver: Resolver
) -> tuple[Replica | None, Header, Status]:
    """Our replica once we own its spool, or the status why there is none to be had."""
    while True:
        resolution = await resolver.resolve(
            first.proposal.journal, claims, may_proxy=False, header=first.header
        )
        if resolution.status != Status.OK:
            return None, resolution.header, resolution.status
        if not equivalent(resolution.header.route, first.header.route):
            return None, resolution.header, Status.WRONG_ROUTE
        if resolution.replica is None:
            raise StoppedServingError(resolution.journal)
        try:
            await _evict(resolution.replica, first.header.route)
            await resolution.replica.spool_slot.acquire()
        except SlotClosedError:
            await asyncio.sleep(0)
            continue
        return resolution.replica, resolution.header, Status.OK


async def _evict(replica: Replica, route: Route) -> None:
    """Have the spool let go by a primary of another route, be it elsewhere or ourselves."""
    if replica.guest is not None and not equivalent(replica.guest.route, route):
        replica.guest.leave()
    if replica.pipeline is not None and not equivalent(replica.pipeline.route, route):
        await replica.pipeline_slot.acquire()
        try:
            if replica.pipeline is not None and not equivalent(replica.pipeline.route, route):
                replica.pipeline.close()
                replica.pipeline = None
        finally:
            replica.pipeline_slot.release()
