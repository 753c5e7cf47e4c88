"""A broker without its socket, for tests that look inside: opened, asked, and closed on the test's own loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.base.disk import Disk, DiskFile
from penstock.journal import spoollayout
from penstock.journal.append import AppendMachine
from penstock.journal.broker import Broker, BrokerOptions
from penstock.journal.claims import EVERYTHING
from penstock.journal.client import Client
from penstock.journal.datadir import DataDir
from penstock.journal.labels import label_set
from penstock.journal.protocol import (
    AppendRequest,
    ApplyRequest,
    ApplyResponse,
    ReadRequest,
    ReadResponse,
    Status,
)
from penstock.journal.replica import Replica
from penstock.journal.spoolrecord import SLOTS_BYTES
from penstock.log.commitlog import journal_spec

JOURNAL = "a/journal"


CLAIMS = EVERYTHING


@asynccontextmanager
async def opened(
    path: Path, disk: Disk | None = None, *, length: int = 1024, options: BrokerOptions | None = None
) -> AsyncIterator[Broker]:
    """The broker of a data directory, with one journal whose fragments close above `length`."""
    disk = disk or Disk()
    directory = DataDir(path)
    broker = Broker(directory, directory.create(disk), disk, options or BrokerOptions(pulse_interval=3600))
    try:
        await create(broker, JOURNAL, length)
        await listed(broker)
        yield broker
    finally:
        await broker.close()


async def listed(broker: Broker, journal: str = JOURNAL) -> None:
    """Wait until the stores of a journal have been listed."""
    if journal in broker._replicas:
        await broker._replicas[journal].until_listed_once()


async def create(broker: Broker, journal: str, length: int = 1024) -> None:
    change = ApplyRequest.Change(expect_mod_revision=-1, upsert=journal_spec(journal, length, {}))
    await applied(broker, change)


async def delete(broker: Broker, journal: str) -> None:
    await applied(broker, ApplyRequest.Change(expect_mod_revision=-1, delete=journal))


async def applied(broker: Broker, *changes: ApplyRequest.Change) -> ApplyResponse:
    return await broker.apply(ApplyRequest(changes=changes), CLAIMS)


def replica(broker: Broker, journal: str = JOURNAL) -> Replica:
    return broker._replicas[journal]


async def stream(*chunks: bytes) -> AsyncIterator[AppendRequest]:
    """What a client sends after the parameters."""
    for chunk in chunks:
        if chunk:
            yield AppendRequest(content=chunk)
    yield AppendRequest()


async def append(
    broker: Broker,
    content: bytes,
    journal: str = JOURNAL,
    *,
    offset: int = 0,
    registers: Mapping[str, str] | None = None,
) -> tuple[int, int]:
    """One append, durable on return; where it landed."""
    first = AppendRequest(journal=journal, offset=offset)
    if registers:
        first.union_registers.CopyFrom(label_set(registers))
    machine = AppendMachine(first, stream(content), broker._appending, CLAIMS)
    await machine.run()
    assert machine.status == Status.OK, Status.Name(machine.status)
    [commit] = machine.commits
    return commit.begin, commit.end


async def read(broker: Broker, request: ReadRequest) -> list[ReadResponse]:
    """All answers to a read that ends."""
    return [response async for response in broker.read(request, CLAIMS)]


async def content(broker: Broker, journal: str = JOURNAL) -> bytes:
    return b"".join([response.content for response in await read(broker, ReadRequest(journal=journal))])


async def until(condition: Callable[[], bool], patience: float = 60.0) -> None:
    """Wait for something that another task or thread brings about."""
    async with asyncio.timeout(patience):
        while not condition():  # noqa: ASYNC110 - threads bring it about, too
            await asyncio.sleep(0.002)


async def persisted(broker: Broker, journal: str = JOURNAL) -> None:
    """Wait until no fragment is on its way into the store."""
    await until(lambda: not replica(broker, journal)._persisting)


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine as the body of a test; a test that hangs fails."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(bounded())


class Gate:
    """A place where a thread waits until the test lets it through."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self._open.wait(20), "the test never opened the gate"

    def open(self) -> None:
        self._open.set()


class HookedFile(DiskFile):
    """A file that tells its disk before each step."""

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        self._tell("write")
        super().write_at(data, position)

    def sync(self) -> None:
        self._tell("sync")
        super().sync()

    def _tell(self, step: str) -> None:
        assert isinstance(self.disk, HookedDisk)
        self.disk.take(step, self.path)


class HookedDisk(Disk):
    """A disk on which a test can delay a step, or make it fail, by setting `before`. Health checks are left alone."""

    def __init__(self, before: Callable[[str, Path], None] = lambda step, path: None) -> None:
        self.before = before

    def take(self, step: str, path: Path) -> None:
        if ".test" not in path.parts:
            self.before(step, path)

    def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
        self.take("open", path)
        file = super().open(path, create=create, mode=mode)
        return HookedFile(self, path, file.fileno())

    def make_dir(self, path: Path, mode: int) -> None:
        self.take("make_dir", path)
        super().make_dir(path, mode)

    def rename(self, source: Path, target: Path) -> None:
        self.take("rename", target)
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self.take("link", target)
        super().link(source, target)

    def remove(self, path: Path) -> None:
        self.take("remove", path)
        super().remove(path)

    def sync_dir(self, path: Path) -> None:
        self.take("sync_dir", path)
        super().sync_dir(path)


class Streaming:
    """A client that sends when the test says so."""

    def __init__(self, broker: Broker, journal: str = JOURNAL) -> None:
        self._messages: asyncio.Queue[AppendRequest | None] = asyncio.Queue()
        self.machine = AppendMachine(
            AppendRequest(journal=journal), self._stream(), broker._appending, CLAIMS
        )
        self.task = asyncio.create_task(self.machine.run())

    async def _stream(self) -> AsyncIterator[AppendRequest]:
        while (message := await self._messages.get()) is not None:
            yield message

    def send(self, *chunks: bytes) -> None:
        for chunk in chunks:
            self._messages.put_nowait(AppendRequest(content=chunk))

    def commit(self) -> None:
        self._messages.put_nowait(AppendRequest())
        self._messages.put_nowait(None)


def as_earlier(path: Path) -> Path:
    """A spool file as earlier versions wrote it: the commit records first."""
    whole = path.read_bytes()
    room = len(whole) - SLOTS_BYTES
    earlier = path.with_name(path.name.replace(spoollayout.OPEN, spoollayout.SUFFIX))
    earlier.write_bytes(whole[room:] + whole[:room].rstrip(b"\0"))
    return earlier


def spool_named(begin: int) -> str:
    return f"{begin:016x}.open.spool"


def open_files(root: Path) -> set[str]:
    """What this process has open below a directory."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith(f"{root}/"):
            found.add(f"{fd} {target}")
    return found


def everything(client: Client, journal: str = JOURNAL) -> bytes:
    """The whole content, through the socket."""
    return client.read_bytes(journal, 0, 0)
