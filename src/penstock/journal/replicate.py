"""The receiving side of replication (reference 15): a primary's stream of content and proposals, applied to our spool.

While the stream is open nobody else can use the spool: that is what makes a synchronised pipeline a lock on the
journal. When it ends, what was not committed is rolled back. A proposal is acknowledged when our own disk has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from penstock.base.errors import PenstockError
from penstock.journal import validation
from penstock.journal.claims import Claims
from penstock.journal.fragment import Fragment
from penstock.journal.localspool import LocalSpool
from penstock.journal.protocol import Header, ReplicateRequest, ReplicateResponse, Status
from penstock.journal.replica import Replica
from penstock.journal.replication import equivalent
from penstock.journal.resolver import Resolver
from penstock.journal.slots import SlotClosedError
from penstock.journal.spool import Outcome


class ReplicateStreamError(PenstockError):
    """The primary's stream broke the contract of Replicate; it is torn down, and built anew by the primary."""


async def replicate(
    requests: AsyncIterator[ReplicateRequest], claims: Claims, resolver: Resolver
) -> AsyncGenerator[ReplicateResponse, None]:
    """The answers to one Replicate."""
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
    local = replica.local
    try:
        response = await _applied(local, first)
        assert response is not None
        response.header.CopyFrom(header)
        yield response
        async with aclosing(_while_served(requests, replica)) as arriving:
            async for request in arriving:
                validation.validate_replicate_request(request)
                response = await _applied(local, request)
                if response is not None:
                    yield response
    finally:
        local.roll_back()
        replica.spool_slot.release()


async def _while_served(
    requests: AsyncIterator[ReplicateRequest], replica: Replica
) -> AsyncGenerator[ReplicateRequest, None]:
    """The primary's requests, until its stream ends or we let the journal go, which waits for the spool."""
    closing = asyncio.ensure_future(replica.spool_slot.until_closed())
    arriving: asyncio.Future[ReplicateRequest | None] | None = None
    try:
        while not closing.done():
            arriving = asyncio.ensure_future(_next(requests))
            await asyncio.wait((arriving, closing), return_when=asyncio.FIRST_COMPLETED)
            if not arriving.done() or (request := arriving.result()) is None:
                return
            yield request
    finally:
        closing.cancel()
        if arriving is not None:
            arriving.cancel()


async def _next(requests: AsyncIterator[ReplicateRequest]) -> ReplicateRequest | None:
    return await anext(requests, None)


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
            raise PenstockError(f"{resolution.journal}: this broker has stopped serving the journal")
        try:
            await resolution.replica.spool_slot.acquire()
        except SlotClosedError:
            continue
        return resolution.replica, resolution.header, Status.OK


async def _applied(local: LocalSpool, request: ReplicateRequest) -> ReplicateResponse | None:
    """Apply one request; the response, if one is wanted."""
    if not request.HasField("proposal"):
        await local.ready()
        local.spool.content(request.content, request.content_delta)
        return None
    outcome, ticket = await local.propose(Fragment.from_proto(request.proposal), request.registers)
    if outcome is Outcome.MISMATCH:
        if not request.acknowledge:
            raise ReplicateStreamError(f"{local.journal}: a proposal that the spool cannot adopt")
        response = ReplicateResponse(
            status=Status.PROPOSAL_MISMATCH, fragment=local.fragment.to_proto(), registers=local.registers
        )
        response.registers.SetInParent()
        return response
    if not request.acknowledge:
        return None
    await local.durable(ticket)
    return ReplicateResponse()
