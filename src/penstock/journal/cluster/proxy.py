"""Calls passed on to the broker that has to answer them (reference 11, "Proxying").

The request goes with the header of our resolution, so that the other one reads the key space at least as far as we
did; what it answers is the answer. The peer's own errors are told as they are.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping
from contextlib import suppress
from typing import TypeVar

import grpc
import grpc.aio

from penstock.base.errors import PenstockError
from penstock.journal.appending import PassedOnError
from penstock.journal.chunks import Content
from penstock.journal.cluster.peers import Peers
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    FragmentsRequest,
    FragmentsResponse,
    Head,
    Header,
    HeadsRequest,
    RollRequest,
    RollResponse,
    TrimRequest,
    TrimResponse,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

HEADS_PATIENCE = 1.0
"""Seconds that another broker has to tell where its journals end."""
_PIECE = 1 << 20


class ProxyError(PassedOnError):
    """The broker that a call was passed on to did not answer it. `code` is what gRPC says of it."""

    def __init__(self, endpoint: str, code: grpc.StatusCode, details: str | None) -> None:
        super().__init__(details or f"{endpoint}: {code.name}", code)
        self.harmless = (details or "").startswith("failed to connect to all addresses")
        """Whether it is certain that nothing was done."""


async def answered(endpoint: str, call: Awaitable[T]) -> T:
    """What the broker at `endpoint` answers a call, or a `ProxyError`.

    A call also ends when its connection is closed on our side, since the broker has left the cluster. To gRPC that is a
    cancellation, and of a handler that ends by one the client would never hear again.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise ProxyError(endpoint, error.code(), error.details()) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # it is we who are to end
        left = f"the broker at {endpoint} has left the cluster before it answered"
        raise ProxyError(endpoint, grpc.StatusCode.UNAVAILABLE, left) from None


async def append(
    peers: Peers, header: Header, first: AppendRequest, requests: AsyncIterator[AppendRequest | Content]
) -> AppendResponse:
    """To the primary that the header names. Cancelling it cancels it there, which rolls back."""
    endpoint = primary_of(header)
    call = peers.append(endpoint, first.journal)
    relaying = asyncio.ensure_future(_relay(call, _with_header(first, header), requests))
    answering = asyncio.ensure_future(answered(endpoint, call))
    try:
        await asyncio.wait((relaying, answering), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            relaying.result()  # the client's fault, if there is one, ends the call without a commit
        return await answering
    finally:
        call.cancel()
        relaying.cancel()
        answering.cancel()
        await asyncio.wait((relaying, answering))


async def _relay(
    call: grpc.aio.StreamUnaryCall[AppendRequest | Content, AppendResponse],
    first: AppendRequest,
    requests: AsyncIterator[AppendRequest | Content],
) -> None:
    """The first failure to send ends it: what the peer says of that is its answer."""
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(first)
        async for request in requests:
            await call.write(request)
        await call.done_writing()


async def append_whole(peers: Peers, header: Header, request: AppendRequest) -> AppendResponse:
    """As `append`, of one that came in one message; a primary of another make gets it as a stream."""
    endpoint = primary_of(header)
    try:
        return await answered(endpoint, peers.append_whole(endpoint, _with_header(request, header)))
    except ProxyError as error:
        if error.code is not grpc.StatusCode.UNIMPLEMENTED:
            raise
    first = AppendRequest()
    first.CopyFrom(request)
    first.ClearField("content")
    return await append(peers, header, first, _pieces(request.content))


async def _pieces(content: bytes) -> AsyncIterator[AppendRequest]:
    """What follows the first message of a stream that is to be committed."""
    for at in range(0, len(content), _PIECE):
        yield AppendRequest(content=content[at : at + _PIECE])
    yield AppendRequest()


async def trim(peers: Peers, header: Header, request: TrimRequest) -> TrimResponse:
    """To the primary."""
    endpoint = primary_of(header)
    return await answered(endpoint, peers.trim(endpoint, request))


async def roll(peers: Peers, header: Header, request: RollRequest) -> RollResponse:
    """To the primary."""
    endpoint = primary_of(header)
    return await answered(endpoint, peers.roll(endpoint, request))


async def list_fragments(peers: Peers, header: Header, request: FragmentsRequest) -> FragmentsResponse:
    """To any member of the route."""
    endpoint = any_of(header)
    proxied = FragmentsRequest()
    proxied.CopyFrom(request)
    proxied.header.CopyFrom(header)
    return await answered(endpoint, peers.list_fragments(endpoint, proxied))


async def heads(peers: Peers, request: HeadsRequest, journals: Mapping[str, Collection[str]]) -> list[Head]:
    """What primaries know of their journals, which are given by endpoint.

    Of brokers that do not answer soon, and of another make's, nothing is known.
    """
    ours = [endpoint for endpoint in journals if endpoint not in peers.foreign]
    told = await asyncio.gather(
        *(_heads_at(peers, endpoint, request) for endpoint in ours), return_exceptions=True
    )
    found: list[Head] = []
    for endpoint, answer in zip(ours, told, strict=True):
        if isinstance(answer, ProxyError):
            log.debug("where the journals of %s end is not known: %s", endpoint, answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found += [head for head in answer if head.journal in journals[endpoint]]
    return found


async def _heads_at(peers: Peers, endpoint: str, request: HeadsRequest) -> list[Head]:
    call = peers.heads(endpoint, HeadsRequest(selector=request.selector, do_not_proxy=True), HEADS_PATIENCE)

    async def told() -> list[Head]:
        return [head async for response in call for head in response.heads]

    try:
        return await answered(endpoint, told())
    finally:
        call.cancel()


def _with_header(request: AppendRequest, header: Header) -> AppendRequest:
    proxied = AppendRequest()
    proxied.CopyFrom(request)
    proxied.header.CopyFrom(header)
    return proxied


def primary_of(header: Header) -> str:
    """Where the route's primary answers."""
    return _known(header.route.endpoints[header.route.primary])


def any_of(header: Header) -> str:
    """Where a member of the route answers."""
    return _known(random.choice([*filter(None, header.route.endpoints)] or [""]))


def _known(endpoint: str) -> str:
    if not endpoint:
        raise PenstockError("the broker that has to answer has left the cluster", hint="try again")
    return endpoint
