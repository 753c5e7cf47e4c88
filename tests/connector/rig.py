"""A broker, workers and hand-made peers in one event loop, and what a journal holds at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.connector import frames as fr
from penstock.connector.framing import Splitter
from penstock.connector.intake import Intake
from penstock.connector.settings import JOURNALS, WorkerSettings, WorkerTls, split
from penstock.connector.source import Record, Records, Stream
from penstock.connector.worker import Worker
from penstock.journal.client import AsyncClient
from penstock.journal.served import served

COOKIE = b"Dragons-Love-Tacos"
SETTINGS = WorkerSettings(cookie=COOKIE, credits=64, hello_timeout=60)
WAIT = 60.0


@dataclass
class Rig:
    client: AsyncClient
    using: AsyncExitStack
    replication: int = 1
    tls: WorkerTls | None = None

    async def worker(
        self,
        name: str = "w",
        settings: WorkerSettings = SETTINGS,
        listen: str = "127.0.0.1:0",
        journals: str = JOURNALS,
        **changes: object,
    ) -> Worker:
        changed = replace(settings, **changes)  # type: ignore[arg-type]
        worker = Worker(changed, self.client, journals, name=name, replication=self.replication, tls=self.tls)
        await worker.start(listen)
        worker.announce()
        self.using.push_async_callback(worker.stop)
        return worker

    async def peer(
        self,
        worker: Worker,
        instance: str = "i",
        *,
        tokens: Sequence[str] = (),
        cookie: bytes = COOKIE,
        hello: bool = True,
    ) -> Raw:
        raw = Raw(*await asyncio.open_connection(*split(worker.me.address)))
        self.using.push_async_callback(raw.close)
        if hello:
            await raw.send(fr.Hello("0.0.1", cookie, "test", instance, frozenset(tokens)))
        return raw

    async def streaming(self, worker: Worker, stream: int) -> Raw:
        """A peer that was welcomed, and has asked for a stream."""
        raw = await self.peer(worker)
        await raw.ok()
        await raw.open(stream)
        return raw

    async def frames(self, instance: str = "i", begin: int = 0) -> list[fr.Message | fr.EosMessage]:
        """What the journal holds of messages and ends, in order."""
        journal = f"connectors/{instance}"
        content = await self.client.read_bytes(journal, begin, await self.client.head(journal))
        return frames_of(content)


def feed(intake: Intake, data: bytes) -> None:
    """Bytes as a transport would bring them."""
    while data:
        room = intake.room()
        taken = min(len(room), len(data))
        room[:taken] = data[:taken]
        intake.filled(taken)
        data = data[taken:]


def frames_of(content: bytes) -> list[fr.Message | fr.EosMessage]:
    payloads = Splitter(64 << 20).feed(content)
    frames = map(fr.frame_of, (one for one in payloads if one[0] in (fr.Tag.MESSAGE, fr.Tag.EOS_MESSAGE)))
    return [frame for frame in frames if isinstance(frame, (fr.Message, fr.EosMessage))]


def ids_of(frames: Sequence[fr.Frame]) -> dict[int, list[int]]:
    ids: dict[int, list[int]] = {}
    for frame in frames:
        if isinstance(frame, fr.Message):
            ids.setdefault(frame.stream, []).append(frame.id)
    return ids


class Raw:
    """A peer that sends what it is told and shows what it gets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._splitter = Splitter()
        self._frames: list[fr.Frame] = []
        self.closed = False

    async def send(self, *frames: fr.Frame) -> None:
        await self.raw(b"".join(map(fr.encode, frames)))

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def next(self) -> fr.Frame | None:
        """The next frame; None once the worker has closed."""
        async with asyncio.timeout(WAIT):
            while not self._frames:
                try:
                    data = await self.reader.read(65536)
                except ConnectionError:
                    data = b""
                if not data:
                    self.closed = True
                    return None
                self._frames += map(fr.frame_of, self._splitter.feed(data))
        return self._frames.pop(0)

    async def until(self, wanted: Callable[[fr.Frame], bool]) -> fr.Frame:
        while True:
            frame = await self.next()
            assert frame is not None, "closed"
            if wanted(frame):
                return frame

    async def ok(self) -> int:
        frame = await self.next()
        assert isinstance(frame, fr.Ok), frame
        return frame.credits

    async def error(self) -> str:
        frame = await self.until(lambda frame: isinstance(frame, fr.Error))
        assert isinstance(frame, fr.Error)
        assert await self.next() is None
        return frame.reason

    async def open(self, stream: int, name: str = "s") -> fr.NotifyAck:
        await self.send(fr.Notify(stream, name, 0))
        frame = await self.until(lambda frame: isinstance(frame, fr.NotifyAck))
        assert isinstance(frame, fr.NotifyAck)
        return frame

    async def acked(self, stream: int, point: int) -> None:
        await self.until(lambda frame: isinstance(frame, fr.Ack) and (stream, point) in frame.points)

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            return


@asynccontextmanager
async def rig(path: Path) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as using:
        broker = await using.enter_async_context(served(path))
        client = AsyncClient(broker.address, near=broker.near)
        using.push_async_callback(client.close)
        yield Rig(client, using)


def rigged(path: Path, test: Callable[[Rig], Awaitable[None]]) -> None:
    """Run a test with a rig of its own."""

    async def run() -> None:
        async with asyncio.timeout(120), rig(path) as made:
            await test(made)

    asyncio.run(run())


async def eventually(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not true():  # noqa: ASYNC110 - what a test waits for has no event
            await asyncio.sleep(0.01)


class Numbers(Stream):
    """1, 2, 3 … `count`; the body says the id."""

    def __init__(self, name: str, count: int, batch: int = 50) -> None:
        self.name, self.count, self.batch = name, count, batch
        self.next = 0
        self.seeks: list[int | None] = []
        self.gate = count
        """Nothing behind this number yet."""

    def seek(self, point: int | None) -> None:
        self.seeks.append(point)
        self.next = 1 if point is None else point + 1

    def read(self) -> Records:
        if self.next > self.count:
            return None
        end = min(self.next + self.batch, self.gate + 1, self.count + 1)
        records = [Record(number, b"%d" % number) for number in range(self.next, end)]
        self.next = max(self.next, end)
        return records
