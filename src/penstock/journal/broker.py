"""The journal service of a broker (`service.py`): a data directory opened for serving (`hosting.py`), and what is
answered from it.

Shutdown, in this order: reads, watches and streams of appends that wait end; the server stops taking calls and
those under way get a moment; each replica waits for its commits, gives up storing and closes its files; threads
end. A fragment not yet in the store is found again at the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing

from penstock.base.errors import PenstockError
from penstock.journal import batches, chunks, heads, listing, maintenance, read, replicate, validation
from penstock.journal.append import AppendMachine
from penstock.journal.appending import StoppedServingError
from penstock.journal.chunks import Content
from penstock.journal.claims import EVERYTHING, Claims
from penstock.journal.health import probe_delete
from penstock.journal.hosting import (
    EMBEDDED,
    MAX_REPLICATION,
    PULSE_INTERVAL,
    STABLE_PULSES,
    BrokerOptions,
    Hosting,
)
from penstock.journal.protocol import (
    AppendBatch,
    AppendBatchResult,
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    ApplyResponse,
    FragmentsRequest,
    FragmentsResponse,
    FragmentStoreHealthRequest,
    FragmentStoreHealthResponse,
    Head,
    HeadsRequest,
    HeadsResponse,
    ListRequest,
    ListResponse,
    LocateRequest,
    LocateResponse,
    ReadRequest,
    ReadResponse,
    ReplicateRequest,
    ReplicateResponse,
    RollRequest,
    RollResponse,
    Status,
    TrimRequest,
    TrimResponse,
)
from penstock.journal.replica import Replica
from penstock.journal.resolver import Resolution
from penstock.journal.tokens import ValidationError
from penstock.journal.wholes import Pieces, Wholes

__all__ = ["EMBEDDED", "MAX_REPLICATION", "PULSE_INTERVAL", "STABLE_PULSES", "Broker", "BrokerOptions"]

STORE_URL = "file:///"
FIRST_MESSAGE = 60.0


class Broker(Hosting):
    """What the journals of a data directory are reached by."""

    def list(self, request: ListRequest, claims: Claims) -> AsyncIterator[ListResponse]:
        validation.validate_list_request(request)
        return listing.list_journals(
            request, claims, self._keyspace, self.resolver, self._waits_ended, self.stores.fault
        )

    async def apply(self, request: ApplyRequest, claims: Claims) -> ApplyResponse:
        validation.validate_apply_request(request)
        names = [change.upsert.name or change.delete for change in request.changes]
        for change in request.changes:
            self._require_allowed(change, claims)
        if len(set(names)) < len(names):
            raise ValidationError("two changes of one journal in one request", field="Changes")
        closing: list[asyncio.Task[None]] = []
        async with self._settled(names):
            applied = await self.topology.apply(request.changes)
            response = ApplyResponse(header=self.resolver.header())
            if applied:
                closing = [self._closing[name] for name in names if name in self._closing]
            else:
                response.status = Status.ETCD_TRANSACTION_FAILED
        for task in closing:
            await asyncio.shield(task)
        return response

    async def read(
        self, request: ReadRequest, claims: Claims, chunk: int = read.CHUNK
    ) -> AsyncGenerator[ReadResponse, None]:
        validation.validate_read_request(request)
        resolution = await self.resolver.resolve(
            request.journal,
            claims,
            may_proxy=not request.do_not_proxy,
            min_revision=request.min_etcd_revision,
            header=request.header if request.HasField("header") else None,
        )
        if resolution.status != Status.OK:
            yield ReadResponse(status=resolution.status, header=resolution.header)
            return
        answers = await self._reading_of(resolution, request, min(chunk, read.MAX_CHUNK))
        async with aclosing(answers):
            async for response in answers:
                yield response

    async def _reading_of(
        self, resolution: Resolution, request: ReadRequest, chunk: int
    ) -> AsyncGenerator[ReadResponse, None]:
        """The answers of whoever is to give them."""
        return read.read(request, served(resolution), resolution.header, self._reading, chunk)

    async def append(
        self, requests: AsyncIterator[AppendRequest | Content], claims: Claims
    ) -> AppendResponse:
        try:
            async with asyncio.timeout(FIRST_MESSAGE):
                message = await anext(requests, None)
        except TimeoutError:
            raise PenstockError(f"append stream: no request came for {FIRST_MESSAGE:g} s") from None
        if message is None:
            raise PenstockError("append stream: unexpected EOF")
        first = chunks.whole(message)
        validation.validate_append_request(first)
        return await self._append(first, requests, claims)

    async def _append(
        self, first: AppendRequest, requests: AsyncIterator[AppendRequest | Content], claims: Claims
    ) -> AppendResponse:
        machine = AppendMachine(first, requests, self._appending, claims)
        return await batches.answered(machine)

    async def append_whole(self, request: AppendRequest, claims: Claims) -> AppendResponse:
        return await batches.append_whole(request, self._appending, claims)

    async def append_near(self, first: AppendRequest, content: Pieces) -> AppendResponse:
        """An append of this very process (`near.py`): whole, whatever its size, and nobody asks for its sum."""
        validation.validate_append_request(first)
        return await batches.answered(
            AppendMachine(first, (content,), self._appending, EVERYTHING, summed=False)
        )

    def appends(
        self, requests: AsyncIterator[AppendBatch | Wholes], claims: Claims
    ) -> AsyncIterator[AppendBatchResult]:
        return batches.appends(requests, self._appending, claims, self._waits_ended)

    def replicate(
        self, requests: AsyncIterator[ReplicateRequest], claims: Claims
    ) -> AsyncIterator[ReplicateResponse]:
        return replicate.replicate(requests, claims, self.resolver)

    async def list_fragments(self, request: FragmentsRequest, claims: Claims) -> FragmentsResponse:
        validation.validate_fragments_request(request)
        resolution = await self.resolver.resolve(
            request.journal,
            claims,
            may_proxy=not request.do_not_proxy,
            header=request.header if request.HasField("header") else None,
        )
        if resolution.status != Status.OK:
            return FragmentsResponse(status=resolution.status, header=resolution.header)
        return await self._fragments_of(resolution, request)

    async def _fragments_of(self, resolution: Resolution, request: FragmentsRequest) -> FragmentsResponse:
        return await listing.list_fragments(request, served(resolution), resolution.header, self._storing)

    async def fragment_store_health(
        self, request: FragmentStoreHealthRequest, claims: Claims
    ) -> FragmentStoreHealthResponse:
        validation.validate_fragment_store_health_request(request)
        response = FragmentStoreHealthResponse(header=self.resolver.header())
        try:
            health = self.stores.health(request.fragment_store)
            await health.first_check()
            error = health.error or self.stores.trouble(request.fragment_store)
            if not error and request.check_delete:
                store = self.stores.as_used(request.fragment_store)
                await probe_delete(store, request.check_delete_prefix)
        except (PenstockError, OSError) as failure:
            error = str(failure)
        if error:
            response.status, response.store_health_error = Status.FRAGMENT_STORE_UNHEALTHY, error
        return response

    async def locate(self, request: LocateRequest, claims: Claims) -> LocateResponse:
        resolution = await self.resolver.resolve(request.journal, claims, may_proxy=False)
        if resolution.status != Status.OK:
            return LocateResponse(status=resolution.status)
        return await listing.locate(request, served(resolution))

    async def heads(self, request: HeadsRequest, claims: Claims) -> AsyncGenerator[HeadsResponse, None]:
        validation.validate_list_selector(request.selector)
        matching = self._heads.matching(request, claims)
        for response in heads.messages(self._heads.known(matching.ours)):
            yield response
        if matching.theirs and not request.do_not_proxy:
            for response in heads.messages(await self._heads_elsewhere(request, matching.theirs)):
                yield response

    async def _heads_elsewhere(
        self, request: HeadsRequest, journals: Mapping[str, frozenset[str]]
    ) -> Sequence[Head]:
        """What the other primaries tell of their journals."""
        return ()

    async def trim(self, request: TrimRequest, claims: Claims) -> TrimResponse:
        resolution = await self._maintained(request.journal, claims)
        if resolution.status != Status.OK:
            return TrimResponse(status=resolution.status, header=resolution.header)
        if resolution.replica is None or not self.resolver.is_ours(resolution.header):
            return await self._trim_elsewhere(resolution, request)
        replica = resolution.replica
        if replica.read_only:
            return TrimResponse(status=Status.NOT_ALLOWED, header=resolution.header)
        if not 0 <= request.offset <= replica.write_head:
            raise ValidationError(
                f"expected 0 <= Offset <= write head ({request.offset}; write head {replica.write_head})"
            )
        if replica.local.fragment.length and request.offset >= replica.local.committed_end:
            await maintenance.roll(request.journal, self._appending, claims)
        fragments, size = await self._trim(replica, request.offset)
        begin = replica.index.begin if len(replica.index) else replica.write_head
        return TrimResponse(header=resolution.header, begin=begin, fragments=fragments, bytes=size)

    async def _trim_elsewhere(self, resolution: Resolution, request: TrimRequest) -> TrimResponse:
        raise StoppedServingError(resolution.journal)

    async def _roll_elsewhere(self, resolution: Resolution, request: RollRequest) -> RollResponse:
        raise StoppedServingError(resolution.journal)

    async def roll(self, request: RollRequest, claims: Claims) -> RollResponse:
        resolution = await self._maintained(request.journal, claims)
        status, offset = resolution.status, 0
        if status == Status.OK and not self.resolver.is_ours(resolution.header):
            return await self._roll_elsewhere(resolution, request)
        if status == Status.OK:
            status, offset = await maintenance.roll(request.journal, self._appending, claims)
        return RollResponse(status=status, header=resolution.header, offset=offset)

    async def _maintained(self, journal: str, claims: Claims) -> Resolution:
        validation.validate_request_journal(journal)
        resolution = await self.resolver.resolve(journal, claims, require_primary=True)
        if resolution.replica is not None:
            await resolution.replica.until_listed_once()
        return resolution

    def _require_allowed(self, change: ApplyRequest.Change, claims: Claims) -> None:
        from penstock.journal.auth import UnauthenticatedError

        spec = change.upsert
        if change.HasField("upsert") and not claims.allows(spec):
            raise UnauthenticatedError(f"not authorized to {spec.name}")
        if not change.HasField("upsert") and not claims.allows_name(change.delete):
            raise UnauthenticatedError(f"not authorized to {change.delete}")
        allowed = self.options.stores
        for url in spec.fragment.stores:
            if allowed and url not in allowed:
                raise ValidationError(
                    f"this broker serves the stores {', '.join(allowed)}, not {url}",
                    field=f"{spec.name}: Stores",
                )


def served(resolution: Resolution) -> Replica:
    if resolution.replica is None:
        raise StoppedServingError(resolution.journal)
    return resolution.replica
