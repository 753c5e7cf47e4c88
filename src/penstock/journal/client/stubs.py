"""The calls of the three services, for both kinds of channel: path and messages once, in the table below.

`protocol.Journal` is the compatible service (reference 2); `penstock.Local` and `penstock.Maintenance` are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import grpc
import grpc.aio

from penstock.journal import chunks
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

Q = TypeVar("Q")
A = TypeVar("A")


class Method(NamedTuple, Generic[Q, A]):
    """What a channel makes a call of, in the order in which it takes it."""

    path: str
    serialize: Callable[[Q], bytes]
    deserialize: Callable[[bytes], A]


LIST: Method[ListRequest, ListResponse] = Method(
    f"/{JOURNAL_SERVICE}/List", ListRequest.SerializeToString, ListResponse.FromString
)
APPLY: Method[ApplyRequest, ApplyResponse] = Method(
    f"/{JOURNAL_SERVICE}/Apply", ApplyRequest.SerializeToString, ApplyResponse.FromString
)
READ: Method[ReadRequest, ReadResponse] = Method(
    f"/{JOURNAL_SERVICE}/Read", ReadRequest.SerializeToString, ReadResponse.FromString
)
APPEND: Method[AppendRequest | Content, AppendResponse] = Method(
    f"/{JOURNAL_SERVICE}/Append", chunks.encode, AppendResponse.FromString
)
REPLICATE: Method[ReplicateRequest, ReplicateResponse] = Method(
    f"/{JOURNAL_SERVICE}/Replicate", ReplicateRequest.SerializeToString, ReplicateResponse.FromString
)
LIST_FRAGMENTS: Method[FragmentsRequest, FragmentsResponse] = Method(
    f"/{JOURNAL_SERVICE}/ListFragments", FragmentsRequest.SerializeToString, FragmentsResponse.FromString
)
FRAGMENT_STORE_HEALTH: Method[FragmentStoreHealthRequest, FragmentStoreHealthResponse] = Method(
    f"/{JOURNAL_SERVICE}/FragmentStoreHealth",
    FragmentStoreHealthRequest.SerializeToString,
    FragmentStoreHealthResponse.FromString,
)
APPEND_WHOLE: Method[AppendRequest, AppendResponse] = Method(
    f"/{LOCAL_SERVICE}/Append", AppendRequest.SerializeToString, AppendResponse.FromString
)
APPENDS: Method[AppendBatch, AppendBatchResult] = Method(
    f"/{LOCAL_SERVICE}/Appends", AppendBatch.SerializeToString, AppendBatchResult.FromString
)
LOCATE: Method[LocateRequest, LocateResponse] = Method(
    f"/{LOCAL_SERVICE}/Locate", LocateRequest.SerializeToString, LocateResponse.FromString
)
TRIM: Method[TrimRequest, TrimResponse] = Method(
    f"/{MAINTENANCE_SERVICE}/Trim", TrimRequest.SerializeToString, TrimResponse.FromString
)
ROLL: Method[RollRequest, RollResponse] = Method(
    f"/{MAINTENANCE_SERVICE}/Roll", RollRequest.SerializeToString, RollResponse.FromString
)


class Stubs:
    """The calls of a channel for threads."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.list = channel.unary_stream(*LIST)
        self.apply = channel.unary_unary(*APPLY)
        self.read = channel.unary_stream(*READ)
        self.append = channel.stream_unary(*APPEND)
        self.replicate = channel.stream_stream(*REPLICATE)
        self.list_fragments = channel.unary_unary(*LIST_FRAGMENTS)
        self.fragment_store_health = channel.unary_unary(*FRAGMENT_STORE_HEALTH)
        self.append_whole = channel.unary_unary(*APPEND_WHOLE)
        self.appends = channel.stream_stream(*APPENDS)
        self.locate = channel.unary_unary(*LOCATE)
        self.trim = channel.unary_unary(*TRIM)
        self.roll = channel.unary_unary(*ROLL)


class AsyncStubs:
    """The calls of a channel of asyncio."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.list = channel.unary_stream(*LIST)
        self.apply = channel.unary_unary(*APPLY)
        self.read = channel.unary_stream(*READ)
        self.append = channel.stream_unary(*APPEND)
        self.replicate = channel.stream_stream(*REPLICATE)
        self.list_fragments = channel.unary_unary(*LIST_FRAGMENTS)
        self.fragment_store_health = channel.unary_unary(*FRAGMENT_STORE_HEALTH)
        self.append_whole = channel.unary_unary(*APPEND_WHOLE)
        self.appends = channel.stream_stream(*APPENDS)
        self.locate = channel.unary_unary(*LOCATE)
        self.trim = channel.unary_unary(*TRIM)
        self.roll = channel.unary_unary(*ROLL)
