"""The journal service as plain coroutines: what gRPC (`wire.py`) and HTTP (`gateway.py`) are two faces of.

A method takes a request and the verified claims of its caller. Answers that the protocol has a status for are
responses; everything else is a `PenstockError` (bad requests: `ValidationError`), whose text the caller gets.
Closing an iterator, or cancelling a call, rolls back what was not committed. Whoever serves the methods has
verified the capability; the selector is applied here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

from penstock.journal.chunks import Content
from penstock.journal.claims import Claims
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
    TrimRequest,
    TrimResponse,
)
from penstock.journal.wholes import Wholes


class Service(Protocol):
    """What a broker answers."""

    def list(self, request: ListRequest, claims: Claims) -> AsyncIterator[ListResponse]: ...

    def apply(self, request: ApplyRequest, claims: Claims) -> Awaitable[ApplyResponse]: ...

    def read(self, request: ReadRequest, claims: Claims, chunk: int = ...) -> AsyncIterator[ReadResponse]:
        """`chunk` is how much content a message may have, if not as little as the reference says."""
        ...

    def append(
        self, requests: AsyncIterator[AppendRequest | Content], claims: Claims
    ) -> Awaitable[AppendResponse]: ...

    def replicate(
        self, requests: AsyncIterator[ReplicateRequest], claims: Claims
    ) -> AsyncIterator[ReplicateResponse]: ...

    def list_fragments(self, request: FragmentsRequest, claims: Claims) -> Awaitable[FragmentsResponse]: ...

    def fragment_store_health(
        self, request: FragmentStoreHealthRequest, claims: Claims
    ) -> Awaitable[FragmentStoreHealthResponse]: ...

    # Ours.

    def append_whole(self, request: AppendRequest, claims: Claims) -> Awaitable[AppendResponse]: ...

    def appends(
        self, batches: AsyncIterator[AppendBatch | Wholes], claims: Claims
    ) -> AsyncIterator[AppendBatchResult]: ...

    def locate(self, request: LocateRequest, claims: Claims) -> Awaitable[LocateResponse]: ...

    def heads(self, request: HeadsRequest, claims: Claims) -> AsyncIterator[HeadsResponse]: ...

    def trim(self, request: TrimRequest, claims: Claims) -> Awaitable[TrimResponse]: ...

    def roll(self, request: RollRequest, claims: Claims) -> Awaitable[RollResponse]: ...
