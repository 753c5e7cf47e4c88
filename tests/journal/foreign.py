"""A client of another make: raw messages over TCP, and every answer looked at as strictly as the original's looks.

`served` runs a broker with a TCP listener on the test's own loop. `Foreign` makes the calls; each response goes
through `foreign_rules.py`, and one that breaks a rule fails the test.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import grpc.aio

from penstock.base.disk import Disk
from penstock.journal import server
from penstock.journal.broker import Broker, BrokerOptions
from penstock.journal.client.stubs import AsyncStubs
from penstock.journal.datadir import DataDir
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    ApplyResponse,
    CompressionCodec,
    FragmentsRequest,
    FragmentsResponse,
    FragmentStoreHealthRequest,
    FragmentStoreHealthResponse,
    JournalSpec,
    Label,
    LabelSet,
    ListRequest,
    ListResponse,
    ReadRequest,
    ReadResponse,
    Status,
)

from .foreign_rules import ReadChecker, check_snapshot, checked

JOURNAL = "a/journal"
SNAPPY = CompressionCodec.SNAPPY
NONE = CompressionCodec.NONE


# A broker


@dataclass(frozen=True, slots=True)
class Served:
    """A broker that answers on TCP."""

    address: str
    broker: Broker


@asynccontextmanager
async def served(
    path: Path,
    *,
    options: server.Options | None = None,
    broker_options: BrokerOptions | None = None,
    disk: Disk | None = None,
) -> AsyncIterator[Served]:
    """As `server.serve`, with a hand on the broker, and no pulse unless the test sends one."""
    disk = disk or Disk()
    options = replace(options or server.Options(), listen="127.0.0.1:0", grace=0.2)
    directory = DataDir(path)
    inner = broker_options or replace(server._broker_options(options), pulse_interval=3600.0)
    broker = Broker(directory, directory.create(disk), disk, inner)
    found: asyncio.Future[server.Addresses] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(server._serve(broker, options, found.set_result, stop))
    try:
        await asyncio.wait((found, serving), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        yield Served(found.result().grpc, broker)
    finally:
        stop.set()
        await serving
        await broker.close()


@asynccontextmanager
async def opened(
    path: Path, *specs: JournalSpec, options: server.Options | None = None, disk: Disk | None = None
) -> AsyncIterator[tuple[Foreign, Served]]:
    """A broker with these journals (by default `JOURNAL`), and one client of it."""
    async with served(path, options=options, disk=disk) as running, dialed(running.address) as foreign:
        await foreign.upsert(*(specs or (journal(),)))
        yield foreign, running


@asynccontextmanager
async def dialed(address: str, *, token: str = "") -> AsyncIterator[Foreign]:
    """A connection of its own."""
    async with grpc.aio.insecure_channel(
        address,
        options=(("grpc.max_receive_message_length", 16 << 20), ("grpc.use_local_subchannel_pool", 1)),
    ) as channel:
        yield Foreign(channel, token=token)


def journal(
    name: str = JOURNAL,
    *,
    codec: CompressionCodec = NONE,
    length: int = 1 << 20,
    replication: int = 1,
    stores: Iterable[str] = ("file:///",),
    labels: Sequence[tuple[str, str]] = (),
    **fields: object,
) -> JournalSpec:
    """A complete spec, as a broker demands."""
    spec = JournalSpec(name=name, replication=replication, labels=label_set(*labels), **fields)  # type: ignore[arg-type]
    spec.fragment.length = length
    spec.fragment.compression_codec = codec
    spec.fragment.stores.extend(stores)
    spec.fragment.refresh_interval.FromSeconds(300)
    return spec


def label_set(*labels: tuple[str, str]) -> LabelSet:
    return LabelSet(labels=[Label(name=name, value=value) for name, value in labels])


# A client


class Foreign:
    """The calls, as a program in another language would make them."""

    def __init__(self, channel: grpc.aio.Channel, *, token: str = "") -> None:
        self.channel = channel
        self.stubs = AsyncStubs(channel)
        self.metadata = (("authorization", f"Bearer {token}"),) if token else None

    async def append(
        self, first: AppendRequest | str, *content: bytes, end: Sequence[AppendRequest] | None = None
    ) -> AppendResponse:
        """One append: parameters, content, intent to commit (or `end`), half-close."""
        if isinstance(first, str):
            first = AppendRequest(journal=first)
        messages = [first, *(AppendRequest(content=chunk) for chunk in content)]
        messages += [AppendRequest()] if end is None else end
        return checked(await self.stubs.append(_each(messages), metadata=self.metadata, timeout=20))

    async def upsert(self, *specs: JournalSpec, revision: int = -1) -> ApplyResponse:
        response = await self.apply(
            *(ApplyRequest.Change(expect_mod_revision=revision, upsert=spec) for spec in specs)
        )
        assert response.status == Status.OK
        return response

    async def delete(self, name: str) -> ApplyResponse:
        return await self.apply(ApplyRequest.Change(expect_mod_revision=-1, delete=name))

    async def apply(self, *changes: ApplyRequest.Change) -> ApplyResponse:
        request = ApplyRequest(changes=changes)
        return checked(await self.stubs.apply(request, metadata=self.metadata, timeout=20))

    async def snapshot(self, request: ListRequest | None = None) -> list[ListResponse]:
        """All messages of a snapshot that is not watched."""
        call = self.stubs.list(request or ListRequest(), metadata=self.metadata, timeout=20)
        responses = [response async for response in call]
        check_snapshot(responses)
        return responses

    async def specs(self) -> dict[str, ListResponse.Journal]:
        return {found.spec.name: found for response in await self.snapshot() for found in response.journals}

    async def read(self, request: ReadRequest | str) -> list[ReadResponse]:
        """All messages of a read that ends."""
        if isinstance(request, str):
            request = ReadRequest(journal=request)
        follows = ReadChecker()
        call = self.stubs.read(request, metadata=self.metadata, timeout=20)
        return [follows.checked(response) async for response in call]

    async def content(self, name: str = JOURNAL, offset: int = 0) -> bytes:
        responses = await self.read(ReadRequest(journal=name, offset=offset))
        return b"".join(response.content for response in responses)

    async def fragments(self, request: FragmentsRequest | str) -> FragmentsResponse:
        if isinstance(request, str):
            request = FragmentsRequest(journal=request)
        return checked(await self.stubs.list_fragments(request, metadata=self.metadata, timeout=20))

    async def health(self, request: FragmentStoreHealthRequest) -> FragmentStoreHealthResponse:
        return checked(await self.stubs.fragment_store_health(request, metadata=self.metadata, timeout=20))


async def _each(messages: Iterable[AppendRequest]) -> AsyncIterator[AppendRequest]:
    for message in messages:
        yield message


# What a broker must not leave behind


@dataclass(frozen=True, slots=True)
class Quiet:
    """How much there is when nothing goes on."""

    tasks: int
    files: int

    @classmethod
    def now(cls) -> Quiet:
        gc.collect()
        return cls(len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")))

    async def again(self, patience: float = 5.0) -> None:
        """Wait until there is no more than this; what stays is named."""
        try:
            async with asyncio.timeout(patience):
                while True:
                    now = Quiet.now()
                    if now.tasks <= self.tasks and now.files <= self.files:
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            tasks = [repr(task.get_coro()) for task in asyncio.all_tasks()]
            raise AssertionError(f"{Quiet.now()} where it was {self}: {tasks}, {_open_files()}") from None


def _open_files() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return found


@asynccontextmanager
async def leaves_nothing(spools: int = 0) -> AsyncIterator[None]:
    """What is done inside leaves no task and no descriptor behind, but for new spools.

    The connections used must exist before.
    """
    before = Quiet.now()
    before = replace(before, files=before.files + spools)
    yield
    await before.again()


async def refusal(call: object) -> tuple[grpc.StatusCode, str]:
    """Code and details of a call that must end in a gRPC error."""
    try:
        if isinstance(call, grpc.aio.UnaryStreamCall | grpc.aio.StreamStreamCall):
            async for _ in call:
                pass
        else:
            await call  # type: ignore[misc]
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("the call went through")


async def refusal_of(make: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """As `refusal`. A broker that refuses answers before it was sent all; grpcio's client, which goes on to write, may
    then tell of its own failure instead of the answer, and is asked again.
    """
    for _ in range(20):
        code, text = await refusal(make())
        if code is not grpc.StatusCode.INTERNAL:
            break
    return code, text
