"""Reads in a cluster: answered here once we know what there is, or passed on to a broker that has the journal.

A replica that has just been assigned knows nothing of the journal yet, and of what others closed before it came it
hears when they have stored it. Nobody is told meanwhile that there is nothing: a read waits for the replica to be
synchronised, and for what lies below the write head.

A replica also has what it is not yet told that all have. It shows that to nobody, but an append among it may have been
acknowledged, and whoever made it, or heard of it, is to find it: so a read waits for that as well.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import suppress

import grpc.aio

from penstock.base.errors import PenstockError
from penstock.journal.client.connection import Metadata
from penstock.journal.cluster.peers import Peers
from penstock.journal.cluster.proxy import ProxyError, answered
from penstock.journal.keys import MemberId
from penstock.journal.protocol import CHUNK_METADATA, ReadRequest, ReadResponse
from penstock.journal.replica import Replica
from penstock.journal.resolver import Resolution

PATIENCE = 10.0
"""Seconds that a read waits for what will be known soon."""


class Reading:
    """The reads of one broker. Those that were passed on end with `ended`."""

    def __init__(self, peers: Peers, me: MemberId, threads: Executor, ended: asyncio.Event) -> None:
        self._peers = peers
        self._me = me
        self._threads = threads
        self._ended = ended

    async def until_known(self, replica: Replica, request: ReadRequest | None) -> None:
        """Wait until the replica can answer; not for long, and then it answers what it can."""
        adopted = replica.local.end
        if _knows(replica, request, adopted):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while (
                    not replica.closed and not replica.waits_ended and not _knows(replica, request, adopted)
                ):
                    await replica.changed().wait()

    async def elsewhere(
        self, resolution: Resolution, request: ReadRequest, chunk: int
    ) -> AsyncGenerator[ReadResponse, None]:
        """What a member of the route answers; the next one is asked if the first cannot be reached."""
        header = resolution.header
        proxied = ReadRequest()
        proxied.CopyFrom(request)
        proxied.header.CopyFrom(header)
        metadata: Metadata = ((CHUNK_METADATA, str(chunk)),)
        failure: PenstockError = PenstockError(f"{resolution.journal}: no broker that has it can be reached")
        for endpoint in self._endpoints(resolution):
            call = self._peers.read(endpoint, proxied, metadata)
            begun = False
            try:
                while (response := await self._next(endpoint, call)) is not None:
                    begun = True
                    yield response
                return
            except ProxyError as error:
                failure = error
                if begun:
                    break
            finally:
                call.cancel()
        raise failure

    def _endpoints(self, resolution: Resolution) -> list[str]:
        """Those of our zone first."""
        route = resolution.header.route
        found = [
            (member.zone != self._me.zone, random.random(), endpoint)
            for member, endpoint in zip(route.members, route.endpoints, strict=True)
            if endpoint
        ]
        return [endpoint for _, _, endpoint in sorted(found)]

    async def _next(
        self, endpoint: str, call: grpc.aio.UnaryStreamCall[ReadRequest, ReadResponse]
    ) -> ReadResponse | None:
        """The next response; None at the end, which may be ours."""
        reading = asyncio.ensure_future(answered(endpoint, _read(call)))
        ending = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((reading, ending), return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            ending.cancel()
            if not reading.done():
                call.cancel()
                with suppress(asyncio.CancelledError, ProxyError):
                    await reading


async def _read(call: grpc.aio.UnaryStreamCall[ReadRequest, ReadResponse]) -> ReadResponse | None:
    response = await call.read()
    return response if isinstance(response, ReadResponse) else None


def _knows(replica: Replica, request: ReadRequest | None, adopted: int) -> bool:
    if not replica.listed:
        return bool(replica.listing_error)  # which is what the read is told
    if not replica.local.in_sync:
        return request is not None and request.offset >= 0 and replica.index.lookup(request.offset)[1]
    if request is not None and request.block and request.offset >= 0:
        return True
    if replica.local.committed_end < adopted and (request is None or _wants(request, replica)):
        return False
    if not replica.has_gap:
        return True
    return request is not None and not 0 <= request.offset < replica.began_at


def _wants(request: ReadRequest, replica: Replica) -> bool:
    """Whether a read reaches what is not yet shown."""
    return request.offset < 0 or not 0 < request.end_offset <= replica.local.committed_end
