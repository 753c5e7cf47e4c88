"""A broker in memory that does what a test tells it: refuses, loses answers, goes away, points elsewhere.

It speaks the protocol over a real gRPC server. Without instructions it behaves: appends land, reads read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio

from penstock.journal import labels
from penstock.journal.protocol import (
    JOURNAL_SERVICE,
    LOCAL_SERVICE,
    AppendBatch,
    AppendBatchResult,
    AppendRequest,
    AppendResponse,
    Fragment,
    Header,
    ListRequest,
    ListResponse,
    ReadRequest,
    ReadResponse,
    Route,
    Status,
)

JOURNAL = "a/journal"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Outcome = Callable[["MemoryBroker", AppendRequest, bytes], AppendResponse]


class AbortError(Exception):
    """The call is to end with this code."""

    def __init__(self, code: grpc.StatusCode, text: str = "told to") -> None:
        super().__init__(text)
        self.code = code


def lands(broker: MemoryBroker, first: AppendRequest, content: bytes) -> AppendResponse:
    return broker.land(first, content)


def stops_after_landing(broker: MemoryBroker, first: AppendRequest, content: bytes) -> NoReturn:
    """As a broker ends what it was asked when it is stopped."""
    broker.land(first, content)
    raise AbortError(grpc.StatusCode.CANCELLED)


def lost_after_landing(broker: MemoryBroker, first: AppendRequest, content: bytes) -> NoReturn:
    broker.land(first, content)
    raise AbortError(grpc.StatusCode.UNAVAILABLE)


def lost_before_landing(broker: MemoryBroker, first: AppendRequest, content: bytes) -> NoReturn:
    raise AbortError(grpc.StatusCode.UNAVAILABLE)


def status(value: int) -> Outcome:
    def refuse(broker: MemoryBroker, first: AppendRequest, content: bytes) -> AppendResponse:
        response = AppendResponse(header=broker.header)
        response.status = value  # type: ignore[assignment]
        if value == Status.REGISTER_MISMATCH:
            response.registers.CopyFrom(broker.registers)
        return response

    return refuse


def code(value: grpc.StatusCode) -> Outcome:
    def refuse(broker: MemoryBroker, first: AppendRequest, content: bytes) -> NoReturn:
        raise AbortError(value)

    return refuse


class MemoryBroker:
    """One journal. `ours` is whether it offers `penstock.Local`."""

    def __init__(
        self, *, ours: bool = True, port: int = 0, credentials: grpc.ServerCredentials | None = None
    ) -> None:
        self.ours = ours
        self._credentials = credentials
        self.port = port
        self.content = bytearray()
        self.registers = labels.label_set()
        self.outcomes: deque[Outcome] = deque()
        """What becomes of the next appends; when there are none left, they land."""
        self.reads: deque[Sequence[ReadResponse | AbortError]] = deque()
        """The answers to the next reads; when there are none left, they read."""
        self.lists: deque[Sequence[ListResponse | AbortError]] = deque()
        self.refuses: grpc.StatusCode | None = None
        """What streams of batches are refused with."""
        self.refused = 0
        self.hangs = 0
        """How many batches get no answer."""
        self.calls: list[str] = []
        self.read_requests: list[ReadRequest] = []
        self.list_requests: list[ListRequest] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.appends: list[bytes] = []
        self.header = Header(route=Route(primary=-1))
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> MemoryBroker:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        if self._credentials is not None:
            self.port = self._server.add_secure_port(f"127.0.0.1:{self.port}", self._credentials)
        else:
            self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        journal: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Append": grpc.stream_unary_rpc_method_handler(
                self._append, AppendRequest.FromString, AppendResponse.SerializeToString
            ),
            "Read": grpc.unary_stream_rpc_method_handler(
                self._read, ReadRequest.FromString, ReadResponse.SerializeToString
            ),
            "List": grpc.unary_stream_rpc_method_handler(
                self._list, ListRequest.FromString, ListResponse.SerializeToString
            ),
        }
        local: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Append": grpc.unary_unary_rpc_method_handler(
                self._append_whole, AppendRequest.FromString, AppendResponse.SerializeToString
            ),
            "Appends": grpc.stream_stream_rpc_method_handler(
                self._appends, AppendBatch.FromString, AppendBatchResult.SerializeToString
            ),
        }
        services = [(JOURNAL_SERVICE, journal)] + ([(LOCAL_SERVICE, local)] if self.ours else [])
        self._server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(name, handlers) for name, handlers in services)
        )
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await self._server.stop(None)

    def land(self, first: AppendRequest, content: bytes) -> AppendResponse:
        if self.registers.labels and not labels.match(first.check_registers, self.registers):
            return status(Status.REGISTER_MISMATCH)(self, first, content)
        begin = len(self.content)
        self.content += content
        self.appends.append(content)
        self.registers = labels.union(first.union_registers, self.registers)
        commit = Fragment(journal=first.journal, begin=begin, end=len(self.content), compression_codec="NONE")
        return AppendResponse(header=self.header, commit=commit, registers=self.registers)

    def _outcome(self, first: AppendRequest, content: bytes) -> AppendResponse:
        outcome = self.outcomes.popleft() if self.outcomes else lands
        return outcome(self, first, content)

    def _called(self, name: str, context: Context) -> None:
        self.calls.append(name)
        self.metadata.append(dict(context.invocation_metadata() or ()))

    async def _append(self, requests: AsyncIterator[AppendRequest], context: Context) -> AppendResponse:
        self._called("Append", context)
        first, content, committed = None, bytearray(), False
        async for request in requests:
            if first is None:
                first = request
            else:
                content += request.content
                committed = not request.content
        if first is None or not committed:
            await context.abort(grpc.StatusCode.UNKNOWN, "append stream: unexpected EOF")
        try:
            return self._outcome(first, bytes(content))
        except AbortError as error:
            await context.abort(error.code, str(error))

    async def _append_whole(self, request: AppendRequest, context: Context) -> AppendResponse:
        self._called("Local.Append", context)
        try:
            return self._outcome(request, request.content)
        except AbortError as error:
            await context.abort(error.code, str(error))

    async def _appends(
        self, batches: AsyncIterator[AppendBatch], context: Context
    ) -> AsyncIterator[AppendBatchResult]:
        if self.refuses is not None:
            self.refused += 1
            await context.abort(self.refuses, "told to")
        refused: AppendResponse | None = None
        first = True
        async for batch in batches:
            if first:  # clients ask with an empty stream whether there is this call at all
                self._called("Appends", context)
                first = False
            if self.hangs:
                self.hangs -= 1
                await asyncio.sleep(30)
            result = AppendBatchResult()
            for request in batch.appends:
                try:
                    response = refused or self._outcome(request, request.content)
                except AbortError as error:
                    await context.abort(error.code, str(error))
                if response.status != Status.OK and not batch.independent:
                    refused = response
                result.results.add(response=response)
            yield result

    async def _read(self, request: ReadRequest, context: Context) -> AsyncIterator[ReadResponse]:
        self._called("Read", context)
        self.read_requests.append(request)
        if self.reads:
            for answer in self.reads.popleft():
                if isinstance(answer, AbortError):
                    await context.abort(answer.code, str(answer))
                yield answer
            return
        for answer in self.answers_to(request):
            yield answer

    def answers_to(self, request: ReadRequest) -> list[ReadResponse]:
        """What a broker answers to a read that does not block."""
        head = len(self.content)
        end = min(head, request.end_offset or head)
        if request.offset < 0 or request.offset >= head:
            return [not_yet(max(request.offset, head), head)]
        answers = [
            metadata(request.offset, 0, head),
            chunk(request.offset, self.content[request.offset : end]),
        ]
        return answers if request.end_offset and end == request.end_offset else [*answers, not_yet(end, head)]

    async def _list(self, request: ListRequest, context: Context) -> AsyncIterator[ListResponse]:
        self._called("List", context)
        self.list_requests.append(request)
        for answer in self.lists.popleft() if self.lists else ():
            if isinstance(answer, AbortError):
                await context.abort(answer.code, str(answer))
            yield answer
        if request.watch:
            await asyncio.sleep(60)


def not_yet(offset: int, head: int) -> ReadResponse:
    return ReadResponse(
        status="OFFSET_NOT_YET_AVAILABLE",
        offset=offset,
        write_head=head,
        header=Header(route=Route(primary=-1)),
    )


def metadata(offset: int, begin: int, end: int, *, url: str = "", codec: str = "NONE") -> ReadResponse:
    fragment = Fragment(journal=JOURNAL, begin=begin, end=end)
    fragment.compression_codec = Fragment(compression_codec=codec).compression_codec
    return ReadResponse(
        offset=offset,
        write_head=end,
        fragment=fragment,
        fragment_url=url,
        header=Header(route=Route(primary=-1)),
    )


def chunk(offset: int, content: bytes | bytearray) -> ReadResponse:
    return ReadResponse(offset=offset, content=bytes(content))


def run(test: Coroutine[object, object, None]) -> None:
    """Run a coroutine as the body of a test; one that hangs fails."""

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test

    asyncio.run(bounded())
