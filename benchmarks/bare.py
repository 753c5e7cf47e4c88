"""The way that bytes go in the benchmark of immortals, without immortals: what this machine can do at most.

    source -> relay -> keeper -> count        for binding, coordinator, coordinator, binding
                        |  ^
                        v  |
                        disk                  for the broker: SHA1, write and fdatasync of a block before it answers

As many processes and as many hops, over loopback TCP and asyncio's streams as there, and nothing counted before it is
synced. But no byte is looked at, checked or kept for a peer. As in a coordinator one block is on its way to the disk
at a time, while what arrives gathers for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

READ = 256 << 10
SENT = 1 << 20
BLOCK = 8 << 20
"""So much goes to the disk at once, if it is there."""
WARM_UP = 0.5
_HEAD = 4


class Rate(NamedTuple):
    """What came through in one run."""

    bytes_per_second: float
    cpu_per_byte: float
    """Seconds, of all processes together."""


def cpu_seconds(processes: Iterable[int]) -> float:
    """What they have used so far, and the processes that they have started."""
    found = [psutil.Process(process) for process in processes]
    times = [one.cpu_times() for some in found for one in (some, *some.children())]
    return sum(one.user + one.system for one in times)


def measured(seconds: float) -> Rate:
    """Let bytes run for so long."""
    with tempfile.TemporaryDirectory() as folder:
        sending, relayed = _pair()
        relaying, kept = _pair()
        keeping, synced = _pair()
        passing, counted = _pair()
        spawning = multiprocessing.get_context("spawn")
        processes = [
            spawning.Process(target=_run, args=(_source, sending)),
            spawning.Process(target=_run, args=(_relay, relayed, relaying)),
            spawning.Process(target=_run, args=(_keeper, kept, keeping, passing)),
            spawning.Process(target=_run, args=(_disk, synced, Path(folder) / "blocks")),
        ]
        for process in processes:
            process.start()
        for one in (sending, relayed, relaying, kept, keeping, synced, passing):
            one.close()  # a process that dies ends the others
        try:
            return asyncio.run(
                _count(counted, seconds, [process.pid for process in processes if process.pid])
            )
        finally:
            for process in processes:
                process.kill()
                process.join()


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    return one, other


def _run(role: Callable[..., Awaitable[None]], *given: object) -> None:
    async def running() -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # a neighbour was killed
            await role(*given)

    asyncio.run(running())


async def _source(to: socket.socket) -> None:
    _, writer = await asyncio.open_connection(sock=to)
    data = bytes(SENT)
    while True:
        writer.write(data)
        await writer.drain()


async def _relay(source: socket.socket, to: socket.socket) -> None:
    reader, _held = await asyncio.open_connection(sock=source, limit=SENT)  # unheld, it is closed
    _, writer = await asyncio.open_connection(sock=to)
    while data := await reader.read(READ):
        writer.write(data)
        await writer.drain()


async def _keeper(source: socket.socket, disk: socket.socket, to: socket.socket) -> None:
    reader, _held = await asyncio.open_connection(sock=source, limit=BLOCK)
    answers, blocks = await asyncio.open_connection(sock=disk)
    _, writer = await asyncio.open_connection(sock=to)
    while block := await reader.read(BLOCK):
        blocks.writelines((len(block).to_bytes(_HEAD), block))
        await answers.readexactly(1)
        writer.write(block)
        await writer.drain()


async def _disk(source: socket.socket, path: Path) -> None:
    reader, writer = await asyncio.open_connection(sock=source, limit=SENT)
    digest = hashlib.sha1()
    with path.open("wb", buffering=0) as file:
        while True:
            left = int.from_bytes(await reader.readexactly(_HEAD))
            while left:
                data = await reader.read(min(left, READ))
                digest.update(data)
                file.write(data)
                left -= len(data)
            os.fdatasync(file.fileno())
            writer.write(b"\0")


async def _count(source: socket.socket, seconds: float, others: list[int]) -> Rate:
    reader, writer = await asyncio.open_connection(sock=source, limit=SENT)

    async def taken(until: float) -> int:
        count = 0
        while time.monotonic() < until:
            data = await reader.read(READ)
            assert data, "a process of the bare hops has ended"
            count += len(data)
        return count

    def used() -> float:
        return time.process_time() + cpu_seconds(others)

    try:
        await reader.readexactly(1)
        await taken(time.monotonic() + WARM_UP)
        began, before = time.monotonic(), used()
        count = await taken(began + seconds)
        return Rate(count / (time.monotonic() - began), (used() - before) / count)
    finally:
        writer.close()
