"""An HTTP gateway on a free port, in front of a service that says what a test wants, and clients that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar, cast

import aiohttp

from penstock.journal.auth import Authorizer, OpenAuthorizer
from penstock.journal.claims import Claims
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.gateway import Gateway
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    Header,
    ListRequest,
    ListResponse,
    ProcessSpec,
    ReadRequest,
    ReadResponse,
    Route,
    Status,
)
from penstock.journal.service import Service

T = TypeVar("T")

HEADER = Header(
    process_id=ProcessSpec.ID(zone="zone-ä", suffix="broker-1"),
    route=Route(
        members=[ProcessSpec.ID(zone="zone-ä", suffix="broker-1")],
        primary=0,
        endpoints=["http://broker.test:8080"],
    ),
    etcd=Header.Etcd(cluster_id=1, member_id=2, revision=3, raft_term=4),
)
NO_ROUTE = Header(route=Route(primary=-1), etcd=HEADER.etcd)
FRAGMENT = Fragment("a/journal", 100, 200, bytes(range(20)), Codec.SNAPPY, "s3://bucket/", 1_700_000_000)


def metadata(offset: int = 150, *, status: Status | None = None, header: bool = True) -> ReadResponse:
    """The first message of a read, or one that begins the next fragment."""
    response = ReadResponse(offset=offset, write_head=200)
    if status is None:
        response.fragment.CopyFrom(FRAGMENT.to_proto())
        response.fragment_url = "https://bucket.test/x?signature=y"
    else:
        response.status = status
    if header:
        response.header.CopyFrom(HEADER)
    return response


def chunk(offset: int, content: bytes) -> ReadResponse:
    return ReadResponse(offset=offset, content=content)


class FakeService:
    """Answers reads, lists and appends as told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.reads: list[tuple[ReadRequest, Claims]] = []
        self.lists: list[tuple[ListRequest, Claims]] = []
        self.appends: list[Claims] = []
        self.to_read: Callable[[], AsyncIterator[ReadResponse]] = lambda: answers(metadata())
        self.to_list: Callable[[], AsyncIterator[ListResponse]] = lambda: answers(ListResponse(header=HEADER))
        self.append_response = AppendResponse(header=HEADER, commit=FRAGMENT.to_proto())
        self.append_response.registers.SetInParent()
        self.append_error: Exception | None = None
        self.appended: list[AppendRequest] = []
        self.takes_appends = asyncio.Event()
        self.takes_appends.set()
        self.first_content = asyncio.Event()
        self.read_closed = asyncio.Event()
        self.append_ended = asyncio.Event()
        self.committed = False

    @property
    def untouched(self) -> bool:
        return not (self.reads or self.lists or self.appends)

    async def read(self, request: ReadRequest, claims: Claims) -> AsyncIterator[ReadResponse]:
        self.reads.append((request, claims))
        try:
            async for response in self.to_read():
                yield response
        finally:
            self.read_closed.set()

    async def list(self, request: ListRequest, claims: Claims) -> AsyncIterator[ListResponse]:
        self.lists.append((request, claims))
        async for response in self.to_list():
            yield response

    async def append(self, requests: AsyncIterator[AppendRequest], claims: Claims) -> AppendResponse:
        self.appends.append(claims)
        if self.append_error is not None:
            raise self.append_error
        try:
            async for request in requests:
                self.appended.append(request)
                if request.content:
                    self.first_content.set()
                    await self.takes_appends.wait()
            # The intent to commit, and then the end: as in the wire's own contract.
            assert self.appended[-1] == AppendRequest()
            self.committed = True
            return self.append_response
        finally:
            self.append_ended.set()


async def answers(*messages: T | Exception) -> AsyncIterator[T]:
    for message in messages:
        if isinstance(message, Exception):
            raise message
        yield message


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine as the body of a test; a test that hangs fails."""

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


@asynccontextmanager
async def serving(
    service: FakeService,
    authorizer: Authorizer | None = None,
    *,
    allow_origins: Sequence[str] = (),
    metrics: Callable[[], bytes] | None = None,
    ready: Callable[[], tuple[bool, str]] = lambda: (True, "ready"),
    request_timeout: float = 20.0,
) -> AsyncIterator[int]:
    """A gateway's port; whatever is under way at the end is cancelled."""
    gateway = Gateway(
        cast("Service", service),
        authorizer or OpenAuthorizer(),
        allow_origins=allow_origins,
        metrics=metrics,
        ready=ready,
        request_timeout=request_timeout,
    )
    port = await gateway.start("127.0.0.1", 0, None)
    try:
        yield port
    finally:
        await gateway.stop(0.1)


@asynccontextmanager
async def browsing(
    service: FakeService,
    authorizer: Authorizer | None = None,
    *,
    allow_origins: Sequence[str] = (),
    metrics: Callable[[], bytes] | None = None,
    ready: Callable[[], tuple[bool, str]] = lambda: (True, "ready"),
) -> AsyncIterator[aiohttp.ClientSession]:
    """An ordinary client of a gateway."""
    async with (
        serving(service, authorizer, allow_origins=allow_origins, metrics=metrics, ready=ready) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
    ):
        yield client


class RawClient:
    """A connection that sends exactly the bytes it is given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def head(self) -> str:
        """Status line and headers of the next answer."""
        return (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")

    async def rest(self) -> bytes:
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    def abort(self) -> None:
        cast("asyncio.Transport", self.writer.transport).abort()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = RawClient(reader, writer)
    try:
        yield client
    finally:
        client.abort()


async def exchange(port: int, request: bytes) -> bytes:
    """Everything that comes back until the gateway closes."""
    async with connected(port) as client:
        await client.send(request)
        return await client.rest()
