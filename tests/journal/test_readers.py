"""Readers over the socket: those that wait, dawdle or leave, and what becomes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest

from penstock.journal import read as read_module
from penstock.journal.client import BrokerGoneError, Client
from penstock.journal.client.stubs import Stubs
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.protocol import FragmentsRequest, FragmentsResponse, Header, ReadRequest, ReadResponse
from penstock.journal.replica import Replica
from penstock.log.commitlog import journal_spec

from .brokers import JOURNAL


def test_the_clients_pages_are_put_together(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    real = client._calls.list_fragments

    def in_small_pages(request: FragmentsRequest, timeout: float) -> FragmentsResponse:
        request.page_limit = 2
        return real(request, timeout=timeout)

    monkeypatch.setattr(client._calls, "list_fragments", in_small_pages)
    client.create(journal_spec("small/fragments", 1024, {}))
    for _ in range(7):
        client.append("small/fragments", b"x" * 1200)
    assert [fragment.spec.begin for fragment in client.fragments("small/fragments")] == [
        1200 * number for number in range(7)
    ]


async def _tasks() -> list[str]:
    return sorted(repr(task.get_coro()) for task in asyncio.all_tasks())


def tasks_of(broker: EmbeddedBroker) -> list[str]:
    assert broker._loop is not None
    return asyncio.run_coroutine_threadsafe(_tasks(), broker._loop).result(10)


def quiet_count(broker: EmbeddedBroker) -> int:
    """How many tasks a broker has that nobody asks for anything; calls take a moment to be over."""
    counts = []
    for _ in range(30):
        counts.append(len(tasks_of(broker)))
        time.sleep(0.01)
    return min(counts)


def settled(broker: EmbeddedBroker, expected: int) -> None:
    deadline = time.monotonic() + 60
    while len(tasks_of(broker)) > expected:
        assert time.monotonic() < deadline, f"left behind: {tasks_of(broker)}"
        time.sleep(0.01)


def test_a_waiting_read_that_is_cancelled_expires_or_is_dropped_leaves_no_task(
    broker: EmbeddedBroker, client: Client
) -> None:
    client.append(JOURNAL, b"abc")
    client.head(JOURNAL)
    quiet = quiet_count(broker)
    with grpc.insecure_channel(broker.address) as channel:
        stubs = Stubs(channel)
        request = ReadRequest(journal=JOURNAL, offset=0, block=True)
        calls = [stubs.read(request) for _ in range(5)]
        for call in calls:
            assert next(iter(call)).write_head == 3
        assert len(tasks_of(broker)) >= quiet + 5
        for call in calls:
            call.cancel()
        settled(broker, quiet)
        expiring = stubs.read(request, timeout=0.2)
        with pytest.raises(grpc.RpcError) as expired:
            list(expiring)
        assert expired.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        settled(broker, quiet)
        hanging = stubs.read(request)
        next(iter(hanging))
    settled(broker, quiet)
    for _ in client.read(JOURNAL, 0, block=True):
        break
    settled(broker, quiet)
    client.wait(JOURNAL, 3, 0.05)
    settled(broker, quiet)


def test_a_slow_reader_takes_no_memory_and_holds_nobody_up(
    broker: EmbeddedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    produced = []
    real = read_module.read

    async def counted(
        request: ReadRequest,
        replica: Replica,
        header: Header,
        threads: Executor,
        chunk: int,
    ) -> AsyncGenerator[ReadResponse, None]:
        async with aclosing(real(request, replica, header, threads, chunk)) as responses:
            async for response in responses:
                produced.append(len(response.content))
                yield response

    monkeypatch.setattr(read_module, "read", counted)
    size = 32 << 20
    client.append(JOURNAL, bytes(size))
    with grpc.insecure_channel(broker.address) as channel:
        slow = Stubs(channel).read(ReadRequest(journal=JOURNAL))
        next(iter(slow))
        time.sleep(0.3)
        ahead = sum(produced)
        assert ahead < size / 4, "the broker runs ahead of its reader"
        assert client.append(JOURNAL, b"meanwhile").begin == size
        assert sum(len(answer.content) for answer in slow) == size + 9


def test_a_shutdown_ends_waiting_reads_at_once(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "data")
    with Client(broker.address) as client:
        client.create(journal_spec(JOURNAL, 1 << 20, {}))
        client.append(JOURNAL, b"abc")
        reading = client.read(JOURNAL, 0, block=True)
        assert next(reading) == (0, b"abc")
        broker.stop()  # the suite's time-out is what would notice a shutdown that waits for readers
        with pytest.raises(BrokerGoneError):
            list(reading)
