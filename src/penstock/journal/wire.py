"""The methods of the two services, once: path, kind, messages. Client and broker are both made from this.

`protocol.Journal` is the compatible service (reference 2). `penstock.Local` is ours: small appends in one
message, and in which file of this machine committed bytes lie.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Protocol, TypeAlias

import grpc
import grpc.aio

from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    ApplyResponse,
    FragmentsRequest,
    FragmentsResponse,
    ListRequest,
    ListResponse,
    LocateRequest,
    LocateResponse,
    ReadRequest,
    ReadResponse,
)

JOURNAL = "protocol.Journal"
LOCAL = "penstock.Local"


class Stubs:
    """The methods of a channel, ready to be called."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.list = channel.unary_stream(
            f"/{JOURNAL}/List", ListRequest.SerializeToString, ListResponse.FromString
        )
        self.apply = channel.unary_unary(
            f"/{JOURNAL}/Apply", ApplyRequest.SerializeToString, ApplyResponse.FromString
        )
        self.read = channel.unary_stream(
            f"/{JOURNAL}/Read", ReadRequest.SerializeToString, ReadResponse.FromString
        )
        self.append = channel.stream_unary(
            f"/{JOURNAL}/Append", AppendRequest.SerializeToString, AppendResponse.FromString
        )
        self.list_fragments = channel.unary_unary(
            f"/{JOURNAL}/ListFragments", FragmentsRequest.SerializeToString, FragmentsResponse.FromString
        )
        self.append_whole = channel.unary_unary(
            f"/{LOCAL}/Append", AppendRequest.SerializeToString, AppendResponse.FromString
        )
        self.locate = channel.unary_unary(
            f"/{LOCAL}/Locate", LocateRequest.SerializeToString, LocateResponse.FromString
        )


class Servicer(Protocol):
    """What a broker answers; one method an RPC."""

    def list(self, request: ListRequest, context: Context) -> AsyncIterator[ListResponse]: ...

    def apply(self, request: ApplyRequest, context: Context) -> Awaitable[ApplyResponse]: ...

    def read(self, request: ReadRequest, context: Context) -> AsyncIterator[ReadResponse]: ...

    def append(
        self, requests: AsyncIterator[AppendRequest], context: Context
    ) -> Awaitable[AppendResponse]: ...

    def list_fragments(self, request: FragmentsRequest, context: Context) -> Awaitable[FragmentsResponse]: ...

    def append_whole(self, request: AppendRequest, context: Context) -> Awaitable[AppendResponse]: ...

    def locate(self, request: LocateRequest, context: Context) -> Awaitable[LocateResponse]: ...


Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
"""A call under way. What it sends and receives is typed by the handlers themselves."""


def register(server: grpc.aio.Server, servicer: Servicer) -> None:
    """Have `server` answer both services with `servicer`."""
    journal: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "List": grpc.unary_stream_rpc_method_handler(
            servicer.list, ListRequest.FromString, ListResponse.SerializeToString
        ),
        "Apply": grpc.unary_unary_rpc_method_handler(
            servicer.apply, ApplyRequest.FromString, ApplyResponse.SerializeToString
        ),
        "Read": grpc.unary_stream_rpc_method_handler(
            servicer.read, ReadRequest.FromString, ReadResponse.SerializeToString
        ),
        "Append": grpc.stream_unary_rpc_method_handler(
            servicer.append, AppendRequest.FromString, AppendResponse.SerializeToString
        ),
        "ListFragments": grpc.unary_unary_rpc_method_handler(
            servicer.list_fragments, FragmentsRequest.FromString, FragmentsResponse.SerializeToString
        ),
    }
    local: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Append": grpc.unary_unary_rpc_method_handler(
            servicer.append_whole, AppendRequest.FromString, AppendResponse.SerializeToString
        ),
        "Locate": grpc.unary_unary_rpc_method_handler(
            servicer.locate, LocateRequest.FromString, LocateResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(JOURNAL, journal),
            grpc.method_handlers_generic_handler(LOCAL, local),
        )
    )
