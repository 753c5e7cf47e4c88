"""Connectors, measured: durable messages of 100 bytes from the source kit through a worker, and how long an ACK takes.

Broker, workers and the bare sink are processes of their own, reached over TCP on the loopback interface. Beside our
figure stands a bare asyncio sink that reads the same bytes and keeps nothing, in rotated order: read the ratio.

    python benchmarks/connector.py [--rounds 3] [--count 600000] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count as counting
from pathlib import Path

from penstock.connector import frames as fr
from penstock.connector.source import Connector, Record, Records, Stream

BODY = b"x" * 100
BATCH = 2000
WARM = 20_000
_instances = counting()

BARE = """
import asyncio, sys
class Sink(asyncio.Protocol):
    def connection_made(self, transport): self.transport, self.left = transport, int(sys.argv[1])
    def data_received(self, data):
        self.left -= len(data)
        if self.left <= 0: self.transport.write(b"."); self.left = int(sys.argv[1])
async def main():
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


class Bodies(Stream):
    """Numbered messages, all with the same body."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.at = name, total, 0

    def seek(self, point: int | None) -> None:
        self.at = point or 0

    def read(self) -> Records:
        if self.at >= self.total:
            return None
        begin, end = self.at + 1, min(self.at + BATCH, self.total)
        self.at = end
        return [(number, BODY, b"", 0) for number in range(begin, end + 1)]


class Timed(Stream):
    """One message at a time, the next when the last is acknowledged."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.at = name, total, 0
        self.sent = 0.0
        self.acked = asyncio.Event()
        self.taken: list[float] = []

    def seek(self, point: int | None) -> None:
        self.at = point or 0

    async def read(self) -> Records:
        if self.at:
            await self.acked.wait()
        if self.at >= self.total:
            return None
        self.acked.clear()
        self.at += 1
        self.sent = time.perf_counter()
        return [Record(self.at, BODY)]

    def ack(self, point: int) -> None:
        if point == self.at:
            self.taken.append(time.perf_counter() - self.sent)
            self.acked.set()


@contextmanager
def process(*command: str) -> Iterator[str]:
    """A process for the time of the block, and the first line that it prints."""
    running = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    try:
        yield running.stdout.readline().strip()
    finally:
        running.terminate()
        running.wait()


async def through(addresses: list[str], total: int) -> float:
    """Messages a second, one connector at each worker, until all is durable."""
    each = total // len(addresses)
    connectors = [
        Connector([address], f"bench-{next(_instances)}", [Bodies("s", each)], patience=60)
        for address in addresses
    ]
    begin = time.perf_counter()
    await asyncio.gather(*(connector.serve() for connector in connectors))
    return each * len(addresses) / (time.perf_counter() - begin)


async def bare(port: int, chunks: list[bytes], total: int) -> float:
    """Messages a second into the bare sink: the same bytes, encoded before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begin = time.perf_counter()
    for chunk in chunks:
        writer.write(chunk)
        await writer.drain()
    await reader.readexactly(1)
    taken = time.perf_counter() - begin
    writer.close()
    return total / taken


async def latencies(address: str, total: int) -> list[float]:
    timed = Timed("s", total)
    await Connector([address], f"bench-{next(_instances)}", [timed], patience=60).serve()
    return sorted(timed.taken)


def chunks_of(total: int) -> list[bytes]:
    frames = [fr.encode(fr.Message(1, number, body=BODY)) for number in range(1, total + 1)]
    return [b"".join(frames[at : at + BATCH]) for at in range(0, total, BATCH)]


async def measured(
    rounds: int, total: int, workers: list[str], port: int, chunks: list[bytes]
) -> dict[str, float]:
    await through(workers[:1], WARM)
    cases: dict[str, Callable[[], Awaitable[float]]] = {
        "one worker": lambda: through(workers[:1], total),
        "two workers": lambda: through(workers, total),
        "bare sink": lambda: bare(port, chunks, total),
    }
    names, taken = list(cases), {name: list[float]() for name in cases}
    for turn in range(rounds):
        for name in names[turn % 3 :] + names[: turn % 3]:
            taken[name].append(await cases[name]())
    found = {name: statistics.median(values) for name, values in taken.items()}
    times = await latencies(workers[0], 500)
    return {
        **found,
        "ratio": found["one worker"] / found["bare sink"],
        "ACK p50 ms": times[len(times) // 2] * 1e3,
        "ACK p99 ms": times[int(len(times) * 0.99)] * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=600_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chunks = chunks_of(options.count)
    size = str(sum(map(len, chunks)))
    with ExitStack() as using:
        root = Path(using.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        serve = ("-m", "penstock", "broker", "serve", "--json", "--listen", "127.0.0.1:0", "--http", "off")
        broker = json.loads(using.enter_context(process(*serve, "--data-dir", str(root / "data"))))
        address = broker["grpc"] if "://" in broker["grpc"] else f"http://{broker['grpc']}"
        work = (
            "-m",
            "penstock",
            "connector",
            "worker",
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--broker",
            address,
        )
        workers = [json.loads(using.enter_context(process(*work)))["listen"] for _ in range(2)]
        port = int(using.enter_context(process("-c", BARE, size)))
        found = asyncio.run(measured(options.rounds, options.count, workers, port, chunks))
    if options.json:
        print(json.dumps(found))
        return
    for name in ("one worker", "two workers", "bare sink"):
        print(f"{name:<12} {found[name]:>12,.0f} messages/s")
    print(f"{'ratio':<12} {found['ratio']:>12.2f} of the bare sink")
    print(f"ACK of one message: p50 {found['ACK p50 ms']:.2f} ms, p99 {found['ACK p99 ms']:.2f} ms")


if __name__ == "__main__":
    main()
