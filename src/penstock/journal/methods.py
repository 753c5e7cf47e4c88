"""The methods of the three services, once: name, messages, how they are written and read. Client and broker are both
made from this table.

`protocol.Journal` is the compatible service (reference 2); `penstock.Local` and `penstock.Maintenance` are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.journal import chunks, wholes
from penstock.journal.chunks import Content
from penstock.journal.protocol import (
    JOURNAL_SERVICE,
    LOCAL_SERVICE,
    MAINTENANCE_SERVICE,
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

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """One method: what is asked, what is answered."""

    service: str
    name: str
    write_request: Callable[[Q], bytes]
    read_request: Callable[[bytes], Q]
    write_response: Callable[[A], bytes]
    read_response: Callable[[bytes], A]

    @property
    def for_channels(self) -> tuple[str, Callable[[Q], bytes], Callable[[bytes], A]]:
        """In the order in which a channel takes it."""
        return f"/{self.service}/{self.name}", self.write_request, self.read_response

    @property
    def for_servers(self) -> tuple[Callable[[bytes], Q], Callable[[A], bytes]]:
        """In the order in which a handler takes it."""
        return self.read_request, self.write_response


LIST: Method[ListRequest, ListResponse] = Method(
    JOURNAL_SERVICE,
    "List",
    ListRequest.SerializeToString,
    ListRequest.FromString,
    ListResponse.SerializeToString,
    ListResponse.FromString,
)
APPLY: Method[ApplyRequest, ApplyResponse] = Method(
    JOURNAL_SERVICE,
    "Apply",
    ApplyRequest.SerializeToString,
    ApplyRequest.FromString,
    ApplyResponse.SerializeToString,
    ApplyResponse.FromString,
)
READ: Method[ReadRequest, ReadResponse] = Method(
    JOURNAL_SERVICE,
    "Read",
    ReadRequest.SerializeToString,
    ReadRequest.FromString,
    ReadResponse.SerializeToString,
    ReadResponse.FromString,
)
APPEND: Method[AppendRequest | Content, AppendResponse] = Method(
    JOURNAL_SERVICE,
    "Append",
    chunks.encode,
    chunks.decode,
    AppendResponse.SerializeToString,
    AppendResponse.FromString,
)
REPLICATE: Method[ReplicateRequest, ReplicateResponse] = Method(
    JOURNAL_SERVICE,
    "Replicate",
    ReplicateRequest.SerializeToString,
    ReplicateRequest.FromString,
    ReplicateResponse.SerializeToString,
    ReplicateResponse.FromString,
)
LIST_FRAGMENTS: Method[FragmentsRequest, FragmentsResponse] = Method(
    JOURNAL_SERVICE,
    "ListFragments",
    FragmentsRequest.SerializeToString,
    FragmentsRequest.FromString,
    FragmentsResponse.SerializeToString,
    FragmentsResponse.FromString,
)
FRAGMENT_STORE_HEALTH: Method[FragmentStoreHealthRequest, FragmentStoreHealthResponse] = Method(
    JOURNAL_SERVICE,
    "FragmentStoreHealth",
    FragmentStoreHealthRequest.SerializeToString,
    FragmentStoreHealthRequest.FromString,
    FragmentStoreHealthResponse.SerializeToString,
    FragmentStoreHealthResponse.FromString,
)
APPEND_WHOLE: Method[AppendRequest, AppendResponse] = Method(
    LOCAL_SERVICE,
    "Append",
    AppendRequest.SerializeToString,
    AppendRequest.FromString,
    AppendResponse.SerializeToString,
    AppendResponse.FromString,
)
APPENDS: Method[AppendBatch | Wholes, AppendBatchResult] = Method(
    LOCAL_SERVICE,
    "Appends",
    wholes.encode,
    wholes.decode,
    AppendBatchResult.SerializeToString,
    AppendBatchResult.FromString,
)
LOCATE: Method[LocateRequest, LocateResponse] = Method(
    LOCAL_SERVICE,
    "Locate",
    LocateRequest.SerializeToString,
    LocateRequest.FromString,
    LocateResponse.SerializeToString,
    LocateResponse.FromString,
)
HEADS: Method[HeadsRequest, HeadsResponse] = Method(
    LOCAL_SERVICE,
    "Heads",
    HeadsRequest.SerializeToString,
    HeadsRequest.FromString,
    HeadsResponse.SerializeToString,
    HeadsResponse.FromString,
)
TRIM: Method[TrimRequest, TrimResponse] = Method(
    MAINTENANCE_SERVICE,
    "Trim",
    TrimRequest.SerializeToString,
    TrimRequest.FromString,
    TrimResponse.SerializeToString,
    TrimResponse.FromString,
)
ROLL: Method[RollRequest, RollResponse] = Method(
    MAINTENANCE_SERVICE,
    "Roll",
    RollRequest.SerializeToString,
    RollRequest.FromString,
    RollResponse.SerializeToString,
    RollResponse.FromString,
)
