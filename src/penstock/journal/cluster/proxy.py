"""Calls passed on to the broker that has to answer them (reference 11, "Proxying").

The request goes with the header of our resolution, so that the other one reads the key space at least as far as we
did; what it answers is the answer. The peer's own errors are told as they are.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

import grpc.aio

from penstock.base.errors import PenstockError
from penstock.journal.chunks import Content
from penstock.journal.client.connection import Metadata
from penstock.journal.cluster.peers import Peers
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    FragmentsRequest,
    FragmentsResponse,
    Header,
    ReadRequest,
    ReadResponse,
    RollRequest,
    RollResponse,
    TrimRequest,
    TrimResponse,
)


class ProxyError(PenstockError):
    """The broker that a call was passed on to did not answer it. `code` is what gRPC says of it."""

    def __init__(self, endpoint: str, error: grpc.aio.AioRpcError) -> None:
        super().__init__(error.details() or f"{endpoint}: {error.code().name}")
        self.code = error.code()
        self.harmless = (error.details() or "").startswith("failed to connect to all addresses")
        """Whether it is certain that nothing was done."""


async def append(
    peers: Peers, header: Header, first: AppendRequest, requests: AsyncIterator[AppendRequest | Content]
) -> AppendResponse:
    """To the primary that the header names. Cancelling it cancels it there, which rolls back."""
    endpoint = primary_of(header)
    call = peers.append(endpoint, first.journal)
    proxied = AppendRequest()
    proxied.CopyFrom(first)
    proxied.header.CopyFrom(header)
    relaying = asyncio.ensure_future(_relay(call, proxied, requests))
    answering = asyncio.ensure_future(_answer(call))
    try:
        await asyncio.wait((relaying, answering), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            relaying.result()  # the client's fault, if there is one, ends the call without a commit
        return await answering
    except grpc.aio.AioRpcError as error:
        raise ProxyError(endpoint, error) from error
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


async def _answer(call: grpc.aio.StreamUnaryCall[AppendRequest | Content, AppendResponse]) -> AppendResponse:
    return await call


async def append_whole(peers: Peers, header: Header, request: AppendRequest) -> AppendResponse:
    """As `append`, of one that came in one message."""
    endpoint = primary_of(header)
    proxied = AppendRequest()
    proxied.CopyFrom(request)
    proxied.header.CopyFrom(header)
    try:
        return await peers.append_whole(endpoint, proxied)
    except grpc.aio.AioRpcError as error:
        raise ProxyError(endpoint, error) from error


async def trim(peers: Peers, header: Header, request: TrimRequest) -> TrimResponse:
    """To the primary."""
    endpoint = primary_of(header)
    try:
        return await peers.trim(endpoint, request)
    except grpc.aio.AioRpcError as error:
        raise ProxyError(endpoint, error) from error


async def roll(peers: Peers, header: Header, request: RollRequest) -> RollResponse:
    """To the primary."""
    endpoint = primary_of(header)
    try:
        return await peers.roll(endpoint, request)
    except grpc.aio.AioRpcError as error:
        raise ProxyError(endpoint, error) from error


async def read(
    peers: Peers, header: Header, request: ReadRequest, metadata: Metadata = ()
) -> AsyncGenerator[ReadResponse, None]:
    """To any member of the route. Ends when the peer's stream does. `metadata` is what the caller said besides."""
    endpoint = any_of(header)
    proxied = ReadRequest()
    proxied.CopyFrom(request)
    proxied.header.CopyFrom(header)
    call = peers.read(endpoint, proxied, metadata)
    try:
        async for response in call:
            yield response
    except grpc.aio.AioRpcError as error:
        raise ProxyError(endpoint, error) from error
    finally:
        call.cancel()


async def list_fragments(peers: Peers, header: Header, request: FragmentsRequest) -> FragmentsResponse:
    """To any member of the route."""
    endpoint = any_of(header)
    proxied = FragmentsRequest()
    proxied.CopyFrom(request)
    proxied.header.CopyFrom(header)
    try:
        return await peers.list_fragments(endpoint, proxied)
    except grpc.aio.AioRpcError as error:
        raise ProxyError(endpoint, error) from error


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
