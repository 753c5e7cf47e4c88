"""The calls of a channel, one attribute a method, for both kinds of channel."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

import grpc
import grpc.aio

from penstock.journal import methods
from penstock.journal.wholes import Wholes


class Stubs:
    """The calls of a channel for threads."""

    def __init__(self, channel: grpc.Channel) -> None:
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
