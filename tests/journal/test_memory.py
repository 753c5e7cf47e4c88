"""What a broker needs of memory, measured on a real process: content is never held whole, idle journals cost little."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil
import pytest

from penstock.journal import replica as replicas
from penstock.journal.client import AsyncClient, Client
from penstock.journal.client.stubs import Stubs
from penstock.journal.protocol import AppendRequest, ApplyRequest, ReadRequest, Status
from penstock.log.commitlog import journal_spec

from .brokers import JOURNAL, append, content, create, in_loop, open_files, opened

MIB = 1 << 20
CHUNK = 128 << 10
HELD = 64 * MIB
IDLE = 20 << 10


@dataclass
class Served:
    """A broker process, and the most memory that it had since `mark`."""

    process: psutil.Process
    address: str
    base: int = 0
    most: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def mark(self) -> None:
        self.base = self.most = self.process.memory_info().rss

    def watch(self) -> None:
        with suppress(psutil.NoSuchProcess):
            while not self.over.wait(0.01):
                self.most = max(self.most, self.process.memory_info().rss)

    @property
    def risen(self) -> int:
        return self.most - self.base


@contextmanager
def served(path: Path, *arguments: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "penstock", "broker", "serve", "--data-dir", str(path), "--http", "off"]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--json", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        broker = Served(psutil.Process(process.pid), json.loads(process.stdout.readline())["grpc"])
        watching = threading.Thread(target=broker.watch, daemon=True)
        watching.start()
        yield broker
        broker.over.set()
        watching.join()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def warm_up(address: str) -> None:
    """Whatever is loaded at its first use is loaded."""
    with Client(address) as client:
        client.create(journal_spec(JOURNAL, MIB, {}))
        client.append(JOURNAL, bytes(4 * MIB))
        assert client.read_bytes(JOURNAL, 0, 0) == bytes(4 * MIB)


def chunks_of(size: int) -> Iterator[bytes]:
    """Other bytes in each, at no cost."""
    block = os.urandom(CHUNK)
    for number in range(size // CHUNK):
        yield number.to_bytes(8, "big") + block[8:]


def append_of_unknown_length(stubs: Stubs, size: int) -> tuple[int, bytes]:
    """Streamed; the broker learns how much there is when it ends. Returns where it begins, and the SHA1."""
    summer = hashlib.sha1()

    def stream() -> Iterator[AppendRequest]:
        yield AppendRequest(journal=JOURNAL)
        for chunk in chunks_of(size):
            summer.update(chunk)
            yield AppendRequest(content=chunk)
        yield AppendRequest()

    response = stubs.append(stream())
    assert response.status == Status.OK
    assert response.commit.end - response.commit.begin == size
    return response.commit.begin, summer.digest()


def read_slowly(stubs: Stubs, begin: int, size: int) -> bytes:
    """The SHA1 of what is there. For a while at a trickle, then as fast as it comes."""
    summer, slow_until = hashlib.sha1(), time.monotonic() + 1.5
    for response in stubs.read(ReadRequest(journal=JOURNAL, offset=begin, end_offset=begin + size)):
        summer.update(response.content)
        if time.monotonic() < slow_until:
            time.sleep(0.02)
    return summer.digest()


def hold_one_large_append(tmp_path: Path, size: int) -> None:
    with served(tmp_path / "data") as broker, grpc.insecure_channel(broker.address) as channel:
        warm_up(broker.address)
        stubs = Stubs(channel)
        broker.mark()
        began = time.monotonic()
        begin, digest = append_of_unknown_length(stubs, size)
        appended = time.monotonic()
        assert broker.risen < HELD, f"{broker.risen / MIB:.0f} MiB more for an append of {size / MIB:.0f}"
        print(f"append: {broker.risen / MIB:.1f} MiB, {size / MIB / (appended - began):.0f} MiB/s")  # noqa: T201
        assert read_slowly(stubs, begin, size) == digest
        assert broker.risen < HELD, f"{broker.risen / MIB:.0f} MiB more for a slow reader"
        print(f"and read: {broker.risen / MIB:.1f} MiB")  # noqa: T201


@pytest.mark.timeout(120)
@pytest.mark.soak
def test_one_large_append_and_a_slow_reader_of_it_are_not_held_in_memory(tmp_path: Path) -> None:
    hold_one_large_append(tmp_path, 320 * MIB)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_soak_an_append_of_4_gib_and_a_slow_reader_of_it(tmp_path: Path) -> None:
    hold_one_large_append(tmp_path, 4096 * MIB)


def idle_names(count: int) -> list[str]:
    return [f"idle/{number:06d}" for number in range(count)]


async def make_idle_journals(address: str, count: int, every: int) -> None:
    """So many journals, of which each so manieth has content."""
    async with AsyncClient(address) as client:
        names = idle_names(count)
        for at in range(0, count, 500):
            changes = [
                ApplyRequest.Change(expect_mod_revision=0, upsert=journal_spec(name, MIB, {}))
                for name in names[at : at + 500]
            ]
            assert await client.apply(changes)
        turns = asyncio.Semaphore(32)

        async def one(name: str) -> None:
            async with turns:
                await client.append(name, b"content", timeout=60)

        await asyncio.gather(*(one(name) for name in names[::every]))


def hold_idle_journals(tmp_path: Path, count: int, every: int) -> None:
    with served(tmp_path / "empty") as broker:
        warm_up(broker.address)
        base = broker.process.memory_info().rss
    with served(tmp_path / "data") as broker:
        warm_up(broker.address)
        before = broker.process.num_fds()
        asyncio.run(make_idle_journals(broker.address, count, every))
        each = (broker.process.memory_info().rss - base) / count
        assert each < IDLE, f"{each:.0f} bytes for each of {count} journals just made"
        print(f"{each / 1024:.1f} KiB each, just made")  # noqa: T201
    with served(tmp_path / "data") as broker, Client(broker.address) as client:
        for name in idle_names(count)[:: count // 20]:
            client.append(name, b"")
        until_listed(client, idle_names(count)[-1])
        each = (broker.process.memory_info().rss - base) / count
        assert each < IDLE, f"{each:.0f} bytes for each of {count} journals found again"
        assert broker.process.num_fds() < before + 64, "journals that nobody uses hold descriptors"
        print(f"{each / 1024:.1f} KiB each, found again")  # noqa: T201


def until_listed(client: Client, name: str) -> None:
    """A barrier waits for the first listing of the journal's store, and journals are listed in order."""
    client.append(name, b"")


@pytest.mark.timeout(120)
@pytest.mark.soak
def test_idle_journals_cost_little(tmp_path: Path) -> None:
    hold_idle_journals(tmp_path, 2_000, 8)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_soak_idle_journals_cost_little(tmp_path: Path) -> None:
    hold_idle_journals(tmp_path, 10_000, 2)


def test_a_journal_that_nobody_writes_to_holds_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is parked by a pulse, and opened again by the next append."""
    monkeypatch.setattr(replicas, "_PARK_AFTER", -1.0)

    async def test() -> None:
        async with opened(path := tmp_path / "data") as broker:
            names = [JOURNAL, *(f"b/{number:03d}" for number in range(20))]
            for name in names[1:]:
                await create(broker, name)
            for name in names:
                await append(broker, b"content", name)
            spools = path / "spools"
            assert len(open_files(spools)) == len(names)
            for name in names:
                await broker._pulse(name)
            assert not open_files(spools)
            for name in names:
                await append(broker, b" and more", name)
                assert await content(broker, name) == b"content and more"

    in_loop(test)
