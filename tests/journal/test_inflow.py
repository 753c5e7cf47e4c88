"""Large content on its way into a spool: order, bounds, failures."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.base.disk import Buffer
from penstock.journal import inflow as inflow_module
from penstock.journal.inflow import Inflow


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.mark.parametrize("seed", range(5))
def test_chunks_are_written_in_order_whoever_is_faster(threads: ThreadPoolExecutor, seed: int) -> None:
    chance = random.Random(seed)
    written: list[Buffer] = []

    def write(chunk: Buffer) -> None:
        if chance.random() < 0.1:
            time.sleep(0.002)
        written.append(chunk)

    async def test() -> None:
        inflow = Inflow(write, threads)
        chunks = [b"%04d" % number for number in range(300)]
        for chunk in chunks:
            await inflow.put(chunk)
            if chance.random() < 0.1:
                await asyncio.sleep(0.001)
        await inflow.drained()
        assert written == chunks

    asyncio.run(test())


def test_no_more_waits_than_the_limit(threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflow_module, "LIMIT", 100)
    gate = threading.Event()
    written: list[Buffer] = []

    def write(chunk: Buffer) -> None:
        gate.wait(20)
        written.append(chunk)

    async def test() -> None:
        inflow = Inflow(write, threads)
        for _ in range(10):
            await inflow.put(bytes(10))
        held_back = asyncio.create_task(inflow.put(bytes(10)))
        await asyncio.sleep(0.05)
        assert not held_back.done()
        gate.set()
        await held_back
        await inflow.drained()
        assert len(written) == 11

    asyncio.run(test())


async def fill(inflow: Inflow) -> None:
    for _ in range(100):
        await inflow.put(bytes(10))


def test_a_failed_write_is_told_and_nothing_is_written_after_it(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflow_module, "LIMIT", 50)
    written: list[Buffer] = []

    def write(chunk: Buffer) -> None:
        if len(written) == 3:
            raise OSError("No space left on device")
        written.append(chunk)

    async def test() -> None:
        inflow = Inflow(write, threads)
        async with asyncio.timeout(10):
            with pytest.raises(OSError, match="No space"):
                await fill(inflow)
            with pytest.raises(OSError, match="No space"):
                await inflow.drained()
            await inflow.abandoned()
        assert len(written) == 3

    asyncio.run(test())


def test_who_gives_up_waits_for_the_write_under_way_and_no_other(threads: ThreadPoolExecutor) -> None:
    gate, reached = threading.Event(), threading.Event()
    written: list[Buffer] = []

    def write(chunk: Buffer) -> None:
        reached.set()
        gate.wait(20)
        written.append(chunk)

    async def test() -> None:
        inflow = Inflow(write, threads)
        for number in range(5):
            await inflow.put(b"%d" % number)
        await asyncio.to_thread(reached.wait, 10)
        leaving = asyncio.create_task(inflow.abandoned())
        await asyncio.sleep(0.05)
        assert not leaving.done()
        gate.set()
        await leaving
        assert written == [b"0"]

    asyncio.run(test())


def test_a_chunk_that_comes_while_the_thread_is_leaving_is_written(threads: ThreadPoolExecutor) -> None:
    """Often enough that every order of thread, callback and waiting is met."""

    async def one(written: list[Buffer]) -> None:
        inflow = Inflow(written.append, threads)
        for number in range(4):
            await inflow.put(b"%d" % number)
            if number % 2:
                await inflow.drained()
        await inflow.put(b"last")
        await inflow.drained()

    async def test() -> None:
        for _ in range(1500):
            written: list[Buffer] = []
            await one(written)
            assert written == [b"0", b"1", b"2", b"3", b"last"]

    asyncio.run(test())


def test_chunks_above_the_limit_are_all_written(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflow_module, "LIMIT", 10)

    async def test() -> None:
        for _ in range(300):
            written: list[Buffer] = []
            inflow = Inflow(written.append, threads)
            for size in (5, 40, 5, 40):
                await inflow.put(bytes(size))
            await inflow.drained()
            assert list(map(len, written)) == [5, 40, 5, 40]

    asyncio.run(test())
