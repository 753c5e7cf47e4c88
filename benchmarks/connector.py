"""Connectors, measured: durable messages of 100 bytes from the source kit through a worker, and how long an ACK takes.

The kit's source gives its messages in columns; one figure is of a source that gives records one by one. Broker, workers
and the bare sinks are processes of their own, reached over TCP on the loopback interface; the embedded worker has a
data directory of its own, and the broker in its process.

Beside each figure stands, in rotated order, a bare asyncio sink in the worker's place: the same source sends it the
same bytes by the kit's own code, and it reads them and keeps nothing. One more figure is of a bare sink whose sender
has all bytes before the clock starts, so that nobody makes a message at all: what the socket alone can do. Read the
ratios. The processor time of a message is that of all threads of a process, the system's work for it included.

What is durable fills memory of the machine's as fast as it comes, and a virtual machine may have to be given that by
its host first, at less than the speed of a disk. So before each case as much memory as it may need is used once and
freed; how long a GiB took the first time is told at the end.

Each run of a case has a connection, an instance and a journal of its own, whose opening takes as long as a hundred
thousand messages. The default count is large enough that it is the stream that is measured, and not that.

    python benchmarks/connector.py [--rounds 3] [--count 3000000] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count as counting
from pathlib import Path

from penstock.connector import frames as fr
from penstock.connector.link import Link
from penstock.connector.source import Columns, Connector, Record, Records, Stream, stream_id

BODY = b"x" * 100
BATCH = 2000
WARM = 20_000
NEEDED = 600
"""Bytes of memory for a message of 100: what is sent, what waits in three processes, and the log."""
_instances = counting()

BARE = """
import asyncio
class Sink(asyncio.Protocol):
    def connection_made(self, transport): self.transport, self.read = transport, 0
    def data_received(self, data): self.read += len(data)
    def eof_received(self): self.transport.write(b"%d\\n" % self.read)
async def main():
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


class Bodies(Stream):
    """Numbered messages, all with the same body."""

    bodies: Sequence[bytes] = (BODY,) * BATCH

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.at = name, total, 0

    def seek(self, point: int | None) -> None:
        self.at = point or 0

    def read(self) -> Records:
        numbers = self.next_numbers()
        return Columns(numbers, self.bodies[: len(numbers)]) if numbers else None

    def next_numbers(self) -> range:
        begin, self.at = self.at + 1, min(self.at + BATCH, self.total)
        return range(begin, self.at + 1)


class Varied(Bodies):
    """Messages of many lengths."""

    bodies = tuple(b"x" * (60 + number * 37 % 81) for number in range(BATCH))


class Singly(Bodies):
    """The same, as a list of records."""

    def read(self) -> Records:
        return [(number, BODY, b"", 0) for number in self.next_numbers()] or None


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


def made_ready(size: int) -> float:
    """Seconds for the first use of each page of so much memory, which is free again when this returns."""
    begin = time.perf_counter()
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1
    return time.perf_counter() - begin


async def through(addresses: list[str], total: int, kind: type[Bodies] = Bodies) -> float:
    """Messages a second, one connector at each worker, until all is durable."""
    each = total // len(addresses)
    connectors = [
        Connector([address], f"bench-{next(_instances)}", [kind("s", each)], patience=60)
        for address in addresses
    ]
    begin = time.perf_counter()
    await asyncio.gather(*(connector.serve() for connector in connectors))
    return each * len(addresses) / (time.perf_counter() - begin)


async def into_bare(ports: list[int], total: int, kind: type[Bodies] = Bodies) -> float:
    """Messages a second into bare sinks, one source of the kit at each: nobody answers, and nothing is kept."""
    each = total // len(ports)
    begin = time.perf_counter()
    await asyncio.gather(*(_sent(port, kind("s", each)) for port in ports))
    return each * len(ports) / (time.perf_counter() - begin)


async def _sent(port: int, stream: Bodies) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    link = Link("", reader, writer)
    link.session.credits.grant(stream.total)
    while records := stream.read():
        await link.send_messages(stream_id(stream.name), records, fr.CAUTIOUS_FRAME)
    assert await _read(reader, writer) > stream.total * len(min(stream.bodies, key=len))


async def finished(port: int, chunks: list[bytes], total: int) -> float:
    """Messages a second into the bare sink from a sender that encoded them before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begin = time.perf_counter()
    for chunk in chunks:
        writer.write(chunk)
        await writer.drain()
    assert await _read(reader, writer) == sum(map(len, chunks))
    return total / (time.perf_counter() - begin)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """The bytes that the sink has read when it is sent no more."""
    writer.write_eof()
    read = int(await reader.readline())
    writer.close()
    return read


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def costs(addresses: list[str], total: int, pids: dict[str, int]) -> dict[str, float]:
    """Microseconds of processor time that a message takes, by process."""
    before = {name: processor_seconds(pid) for name, pid in pids.items()}
    await through(addresses, total)
    return {name: (processor_seconds(pid) - before[name]) / total * 1e6 for name, pid in pids.items()}


async def latencies(address: str, total: int) -> list[float]:
    timed = Timed("s", total)
    await Connector([address], f"bench-{next(_instances)}", [timed], patience=60).serve()
    return sorted(timed.taken)


def chunks_of(total: int) -> list[bytes]:
    frames = [fr.encode(fr.Message(1, number, body=BODY)) for number in range(1, total + 1)]
    return [b"".join(frames[at : at + BATCH]) for at in range(0, total, BATCH)]


@dataclass(frozen=True)
class Place:
    """Where the messages go."""

    workers: list[str]
    embedded: str
    bare: list[int]
    pids: dict[str, int]


CASES = {
    "one worker": "",
    "two workers": "an instance each",
    "embedded": "one worker, the broker in its process",
    "varied": "the same, bodies of 60 to 140 bytes",
    "singly": "the same, from a source that gives records one by one",
}
BARE_OF = {"one worker": "bare", "two workers": "two bare", "embedded": "bare"} | {
    name: f"bare, {name}" for name in ("varied", "singly")
}
"""What stands beside each case: the same source, sending to so many bare sinks."""


async def measured(rounds: int, total: int, place: Place) -> dict[str, float]:
    workers, near, chunks = place.workers, [place.embedded], chunks_of(total)
    for address in (*workers, *near):
        await through([address], WARM)
    cases: dict[str, Callable[[], Awaitable[float]]] = {
        "one worker": lambda: through(workers[:1], total),
        "bare": lambda: into_bare(place.bare[:1], total),
        "two workers": lambda: through(workers, total),
        "two bare": lambda: into_bare(place.bare, total),
        "embedded": lambda: through(near, total),
        "varied": lambda: through(near, total, Varied),
        "bare, varied": lambda: into_bare(place.bare[:1], total, Varied),
        "singly": lambda: through(near, total, Singly),
        "bare, singly": lambda: into_bare(place.bare[:1], total, Singly),
        "finished bytes": lambda: finished(place.bare[0], chunks, total),
    }
    names, taken = list(cases), {name: list[float]() for name in cases}
    needed, waits = total * NEEDED, list[float]()
    for turn in range(rounds):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            waits.append(made_ready(needed))
            taken[name].append(await cases[name]())
    found = {name: statistics.median(values) for name, values in taken.items()}
    ratios = {f"ratio, {name}": found[name] / found[beside] for name, beside in BARE_OF.items()}
    of_finished = {f"of finished bytes, {name}": found[name] / found["finished bytes"] for name in CASES}
    one = {name: place.pids[name] for name in ("sender", "worker", "broker")}
    two = {"embedded worker": place.pids["embedded"]}
    made_ready(needed)
    spent = {f"µs {name}": cost for name, cost in (await costs(workers[:1], total, one)).items()}
    made_ready(needed)
    beside = {f"µs {name}": cost for name, cost in (await costs(near, total, two)).items()}
    times = await latencies(workers[0], 500)
    return {
        **found,
        **ratios,
        **of_finished,
        **spent,
        **beside,
        "ACK p50 ms": times[len(times) // 2] * 1e3,
        "ACK p99 ms": times[int(len(times) * 0.99)] * 1e3,
        "first use of a GiB, s": max(waits) / needed * (1 << 30),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=3_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with ExitStack() as using:
        root = Path(using.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        serve = ("-m", "penstock", "broker", "serve", "--json", "--listen", "127.0.0.1:0", "--http", "off")
        broker = json.loads(using.enter_context(process(*serve, "--data-dir", str(root / "data"))))
        address = broker["grpc"] if "://" in broker["grpc"] else f"http://{broker['grpc']}"
        work = ("-m", "penstock", "connector", "worker", "--json", "--listen", "127.0.0.1:0")
        far = [json.loads(using.enter_context(process(*work, "--broker", address))) for _ in range(2)]
        near = json.loads(using.enter_context(process(*work, "--data-dir", str(root / "embedded"))))
        bare = [int(using.enter_context(process("-c", BARE))) for _ in range(2)]
        pids = {
            "sender": os.getpid(),
            "worker": far[0]["pid"],
            "broker": broker["pid"],
            "embedded": near["pid"],
        }
        place = Place([worker["listen"] for worker in far], near["listen"], bare, pids)
        found = asyncio.run(measured(options.rounds, options.count, place))
    print(json.dumps(found) if options.json else shown(found))


def shown(found: dict[str, float]) -> str:
    """The figures for a person."""
    lines = [
        f"{name:<14} {found[name]:>12,.0f} messages/s, {found[f'ratio, {name}']:.2f} of "
        f"{BARE_OF[name]} ({found[BARE_OF[name]]:,.0f}), "
        f"{found[f'of finished bytes, {name}']:.2f} of finished bytes  {what}".rstrip()
        for name, what in CASES.items()
    ]
    lines.append(f"{'finished bytes':<14} {found['finished bytes']:>12,.0f} messages/s into the bare sink")
    spent = [
        f"{name.removeprefix('µs ')} {cost:.2f}" for name, cost in found.items() if name.startswith("µs")
    ]
    lines.append("µs of processor time a message: " + "; ".join(spent))
    lines.append(f"ACK of one message: p50 {found['ACK p50 ms']:.2f} ms, p99 {found['ACK p99 ms']:.2f} ms")
    lines.append(
        f"first use of a GiB of memory: up to {found['first use of a GiB, s']:.2f} s, before the cases"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
