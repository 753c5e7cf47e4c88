"""Durable calls between two immortals, against calls of gRPC that are not durable, on the same machine in one run.

    python benchmarks/immortal.py [--seconds S] [--sizes 16,100,...] [--log-mb 100]

Two instances, each a coordinator and a binding in processes of their own, and the broker of their data directory:
one sends fire-and-forget calls as fast as it is let, the other counts them. Each call is in the receiver's log, synced
to disk, before it is counted. Beside it, unary calls of grpcio's asyncio API with the same bytes, 100 under way at a
time, between two processes. As a limit, the same way through bare processes (`bare`), before and after; the better of
the two counts. What a call costs whatever its size, and what each byte does, is fitted to the run (`fitted`), in time
and in CPU, which other work on the machine hardly changes. At last the receiver is killed, and the time is taken until
it has replayed its log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import grpc
import grpc.aio
import numpy as np

import bare
from penstock.immortal.wire import (
    Blob,
    Call,
    MessageType,
    Record,
    RecordDecoder,
    RpcType,
    batch,
    checkpoint_message,
    encode_message,
    initial_message,
    outgoing,
    rpcs_of,
    split_messages,
)
from penstock.journal.datadir import DataDir

HERE = Path(__file__).resolve()
BATCH_BYTES = 1 << 20


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)


async def binding(role: str, receive: int, send: int, report: Path, size: int) -> None:
    """The smallest binding there is: `send` sends for ever, `count` counts."""
    _, writer = await connected(receive)
    reader, kept = await connected(send)
    decoder = RecordDecoder()
    count = size_sum = 0
    began = 0.0
    state = b"0"
    is_first = True
    call = outgoing("count", Call(1, RpcType.FORK, bytes(size)))
    some = max(1, min(2000, BATCH_BYTES // len(call)))
    again = outgoing("", Call(2, RpcType.FORK, b""))
    round_ = batch([*[call] * some, again])
    told = 0.0
    while data := await reader.read(1 << 20):
        for event in decoder.feed(data):
            if isinstance(event, Blob):
                is_first = False
            if not isinstance(event, Record):
                continue
            if event.sequence < 0:
                if event.body[1] != MessageType.BECOMING_PRIMARY:
                    if event.body[1] == MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT and is_first:
                        writer.write(initial_message(b"x"))
                    writer.write(checkpoint_message(len(state)) + state)
                report.with_suffix(".ready").write_text(str(time.time()))
                continue
            for message in split_messages(event.body):
                if message.type == MessageType.INITIAL_MESSAGE:
                    if role == "send":
                        writer.write(encode_message(MessageType.ATTACH_TO, b"count"))
                        for _ in range(4):
                            writer.write(round_)
                    continue
                if role == "send":
                    for _ in rpcs_of(message.type, message.data):
                        writer.write(round_)
                    continue
                for body in rpcs_of(message.type, message.data):
                    count += 1
                    size_sum += len(body)
        await writer.drain()
        assert not kept.is_closing()
        now = time.time()
        if count and not began:
            began, count = now, 0
        if now - told > 0.2:
            told = now
            partial = report.with_suffix(".partial")
            partial.write_text(json.dumps({"began": began, "now": now, "count": count, "bytes": size_sum}))
            partial.replace(report)


def start(
    name: str, role: str, folder: Path, size: int, ports: tuple[int, int]
) -> list[subprocess.Popen[bytes]]:
    serve = [
        sys.executable,
        "-m",
        "penstock",
        "immortal",
        "serve",
        "--name",
        name,
        "--log",
        str(folder / "data"),
    ]
    serve += ["--receive-port", str(ports[0]), "--send-port", str(ports[1]), "--log-trigger", "0"]
    lb = [
        sys.executable,
        str(HERE),
        "--binding",
        role,
        str(ports[0]),
        str(ports[1]),
        str(folder / name),
        str(size),
    ]
    out = (folder / f"{name}.log").open("ab")
    return [subprocess.Popen(command, stdout=out, stderr=out) for command in (serve, lb)]


def stop(processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Kill them, and wait for the broker of their directory, which ends by itself behind the last of them."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
    while DataDir(folder / "data").owner() is not None:
        time.sleep(0.05)


class Taken(NamedTuple):
    """Seconds that a call took: of the clock, and of all processors, for all five processes together."""

    clock: float
    cpu: float


def durable(size: int, seconds: float, ports: list[int], log_bytes: int = 0) -> tuple[Taken, float | None]:
    """What a call takes; with `log_bytes`, also the seconds of a recovery once the log has grown to it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        counting = start("count", "count", folder, size, (ports[0], ports[1]))
        sending = start("send", "send", folder, size, (ports[2], ports[3]))
        running = [process.pid for process in counting + sending]
        try:
            first = _until(folder / "count", lambda told: bool(told["count"]))
            used = bare.cpu_seconds(running)
            told = _until(
                folder / "count",
                lambda told: told["now"] - first["now"] >= seconds and told["bytes"] >= log_bytes,
            )
            used = bare.cpu_seconds(running) - used
            calls = told["count"] - first["count"]
            taken = Taken((told["now"] - first["now"]) / calls, used / calls)
            if not log_bytes:
                return taken, None
            stop(counting + sending, folder)
            (folder / "count.ready").unlink()
            since = time.time()
            counting = start("count", "count", folder, size, (ports[0], ports[1]))
            while not (folder / "count.ready").exists():
                time.sleep(0.01)
            return taken, float((folder / "count.ready").read_text()) - since
        finally:
            stop(counting + sending, folder)


def _until(report: Path, true: object) -> dict[str, float]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if report.exists():
            told: dict[str, float] = json.loads(report.read_text())
            if true(told):  # type: ignore[operator]
                return told
        time.sleep(0.05)
    raise SystemExit(f"nothing happened: {[file.read_text()[-500:] for file in report.parent.glob('*.log')]}")


async def grpc_server(address: str) -> None:
    async def echo(request: bytes, _: object) -> bytes:
        return b""

    handler = grpc.method_handlers_generic_handler("s", {"m": grpc.unary_unary_rpc_method_handler(echo)})
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


async def grpc_calls(address: str, size: int, seconds: float) -> float:
    async with grpc.aio.insecure_channel(address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/s/m")
        body = bytes(size)
        await call(body, wait_for_ready=True)
        ends = time.monotonic() + seconds
        done = 0

        async def one() -> None:
            nonlocal done
            while time.monotonic() < ends:
                await call(body)
                done += 1

        began = time.monotonic()
        await asyncio.gather(*(one() for _ in range(100)))
        return done / (time.monotonic() - began)


class Cost(NamedTuple):
    """Seconds: of any call, and of each byte in it."""

    fixed: float
    byte: float

    def of(self, size: int) -> float:
        return self.fixed + size * self.byte

    def share(self, size: int) -> float:
        """How much of a call's time its bytes take."""
        return size * self.byte / self.of(size)


def fitted(seconds: Mapping[int, float]) -> Cost:
    """The straight line through seconds a call over its bytes, by least squares of relative errors.

    Absolute ones would be those of the largest calls alone, which take hundreds of times as long as the smallest.
    """
    sizes, each = np.array([*seconds.keys()], float), np.array([*seconds.values()])
    line, *_ = np.linalg.lstsq(np.column_stack((1 / each, sizes / each)), np.ones(len(each)), rcond=None)
    return Cost(*map(float, line))


def tell_cost(what: str, seconds: Mapping[int, float], bare_byte: float) -> None:
    """What the figures mean: a model of two numbers, how well it fits, what bytes take, and what bare hops would."""
    cost = fitted(seconds)
    print(f"{what}: {cost.fixed * 1e6:.2f} us a call, {cost.byte * 1e9:.1f} ns a byte of it;", end=" ")
    print(
        f"bytes take half at {cost.fixed / cost.byte:.0f} B; bare hops take {bare_byte * 1e9:.1f} ns a byte"
    )
    print(f"{'bytes':>8} {'us a call':>16} {'fitted':>8} {'of it bytes':>14} {'bare hops':>12}")
    for size, each in seconds.items():
        print(f"{size:>8} {each * 1e6:>16.2f} {cost.of(size) * 1e6:>8.2f}", end=" ")
        print(f"{cost.share(size):>14.0%} {size * bare_byte / each:>12.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--sizes", default="16,100,256,1024,4096,65536")
    parser.add_argument("--log-mb", type=int, default=100)
    parser.add_argument("--binding", nargs=5)
    parser.add_argument("--grpc-server")
    parser.add_argument("--base-port", type=int, default=15200)
    given = parser.parse_args()
    if given.binding:
        role, receive, send, report, size = given.binding
        asyncio.run(binding(role, int(receive), int(send), Path(report), int(size)))
        return
    if given.grpc_server:
        asyncio.run(grpc_server(given.grpc_server))
        return
    address = f"127.0.0.1:{given.base_port + 90}"
    print(f"{os.cpu_count()} cores, {given.seconds} s each")
    print(f"{'bytes':>8} {'durable calls/s':>16} {'MB/s':>8} {'gRPC calls/s':>14} {'times':>7}")
    calls: dict[int, Taken] = {}
    limits = [bare.measured(given.seconds)]
    for number, size in enumerate(map(int, given.sizes.split(","))):
        ports = [given.base_port + number * 4 + offset for offset in range(4)]
        calls[size], _ = durable(size, given.seconds, ports)
        rate = 1 / calls[size].clock
        server = subprocess.Popen([sys.executable, str(HERE), "--grpc-server", address])
        try:
            plain = asyncio.run(grpc_calls(address, size, min(3, given.seconds)))
        finally:
            server.kill()
            server.wait()
        print(
            f"{size:>8} {rate:>16,.0f} {rate * size / 1e6:>8.1f} {plain:>14,.0f} {rate / plain:>7.1f}",
            flush=True,
        )
    limits.append(bare.measured(given.seconds))
    for limit in limits:
        print(f"bare hops: {limit.bytes_per_second / 1e6:.0f} MB/s")
    if len(calls) > 1:
        fastest = max(limit.bytes_per_second for limit in limits)
        tell_cost("time", {size: taken.clock for size, taken in calls.items()}, 1 / fastest)
        cheapest = min(limit.cpu_per_byte for limit in limits)
        tell_cost("CPU of all", {size: taken.cpu for size, taken in calls.items()}, cheapest)
    if given.log_mb:
        ports = [given.base_port + 60 + offset for offset in range(4)]
        _, recovery = durable(1024, 1, ports, given.log_mb * 1_000_000)
        print(f"recovery from a log of {given.log_mb} MB: {recovery:.2f} s, from the start of the process")


if __name__ == "__main__":
    main()
