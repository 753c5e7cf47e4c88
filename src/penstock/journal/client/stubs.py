"""The calls of a channel, one attribute a method, for both kinds of channel."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Protocol, TypeVar

import grpc
import grpc.aio

from penstock.journal import methods
from penstock.journal.client.connection import Metadata
from penstock.journal.protocol import (
    FragmentsRequest,
    FragmentsResponse,
    ListRequest,
    ListResponse,
    LocateRequest,
    LocateResponse,
    ReadRequest,
    ReadResponse,
)
from penstock.journal.wholes import Wholes

Q_contra = TypeVar("Q_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


class Answering(Protocol[A_co]):
    """A call whose answers are taken one by one."""

    def __iter__(self) -> Iterator[A_co]: ...

    def cancel(self) -> bool: ...


class One(Protocol[Q_contra, A_co]):
    """A method with one answer."""

    def __call__(
        self, request: Q_contra, /, timeout: float | None = None, metadata: Metadata | None = None
    ) -> A_co: ...


class Many(Protocol[Q_contra, A_co]):
    """A method with many answers."""

    def __call__(
        self, request: Q_contra, /, timeout: float | None = None, metadata: Metadata | None = None
    ) -> Answering[A_co]: ...


class Stubs:
    """The calls of a channel for threads."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.list: Many[ListRequest, ListResponse] = channel.unary_stream(*methods.LIST.for_channels)
        self.apply = channel.unary_unary(*methods.APPLY.for_channels)
        self.read: Many[ReadRequest, ReadResponse] = channel.unary_stream(*methods.READ.for_channels)
        self.append = channel.stream_unary(*methods.APPEND.for_channels)
        self.replicate = channel.stream_stream(*methods.REPLICATE.for_channels)
        self.list_fragments: One[FragmentsRequest, FragmentsResponse] = channel.unary_unary(
            *methods.LIST_FRAGMENTS.for_channels
        )
        self.fragment_store_health = channel.unary_unary(*methods.FRAGMENT_STORE_HEALTH.for_channels)
        self.append_whole = channel.unary_unary(*methods.APPEND_WHOLE.for_channels)
        self.appends = channel.stream_stream(*methods.APPENDS.for_channels)
        self.locate: One[LocateRequest, LocateResponse] = channel.unary_unary(*methods.LOCATE.for_channels)
        self.heads = channel.unary_stream(*methods.HEADS.for_channels)
        self.trim = channel.unary_unary(*methods.TRIM.for_channels)
        self.roll = channel.unary_unary(*methods.ROLL.for_channels)


class AppendsCall(Protocol):
    """A stream of `penstock.Local/Appends`, as an appender uses it."""

    def write(self, request: Wholes, /) -> Awaitable[None]: ...

    def read(self) -> Awaitable[object]:
        """The next AppendBatchResult; something else at the end of the stream."""
        ...

    def cancel(self) -> bool: ...


class AsyncStubs:
    """The calls of a channel of asyncio."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.list = channel.unary_stream(*methods.LIST.for_channels)
        self.apply = channel.unary_unary(*methods.APPLY.for_channels)
        self.read = channel.unary_stream(*methods.READ.for_channels)
        self.append = channel.stream_unary(*methods.APPEND.for_channels)
        self.replicate = channel.stream_stream(*methods.REPLICATE.for_channels)
        self.list_fragments = channel.unary_unary(*methods.LIST_FRAGMENTS.for_channels)
        self.fragment_store_health = channel.unary_unary(*methods.FRAGMENT_STORE_HEALTH.for_channels)
        self.append_whole = channel.unary_unary(*methods.APPEND_WHOLE.for_channels)
        self.appends = channel.stream_stream(*methods.APPENDS.for_channels)
        self.locate = channel.unary_unary(*methods.LOCATE.for_channels)
        self.heads = channel.unary_stream(*methods.HEADS.for_channels)
        self.trim = channel.unary_unary(*methods.TRIM.for_channels)
        self.roll = channel.unary_unary(*methods.ROLL.for_channels)
