"""Connections and streams that break off: whatever a client leaves half done, nothing of it stays with the broker."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import logging
import socket
from pathlib import Path

import grpc
import grpc.aio
import pytest

from penstock.journal.protocol import (
    AppendBatch,
    AppendBatchResult,
    AppendRequest,
    AppendResult,
    ListRequest,
    ReadRequest,
    ReplicateRequest,
    Status,
)
from penstock.journal.server import GRPC_LOG

from .brokers import Gate, HookedDisk, in_loop, open_files, until
from .foreign import JOURNAL, dialed, journal, leaves_nothing, opened, served
from .foreign_rules import sum_of
from .test_fuzz import SOUND, is_well

_HUNG_UP = importlib.import_module("grpc._cython.cygrpc").ExecuteBatchError
GARBAGE = [
    b"",
    b"\x00",
    b"GET / HTTP/1.1\r\n\r\n",
    bytes(range(256)) * 16,
    b"PRI * HTTP/2.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x04\x01\x05\x00\x00\x00\x01abcd",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\xff\xff\x04\x00\x00\x00\x00\x00" + bytes(100),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
]


def test_garbage_on_the_port_and_connections_that_only_open_hurt_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(SOUND)) as (foreign, running):
            host, port = running.address.split(":")
            await is_well(foreign, running)
            async with leaves_nothing():
                opened_only = [socket.create_connection((host, int(port))) for _ in range(20)]
                for garbage in GARBAGE:
                    with socket.create_connection((host, int(port))) as raw:
                        raw.sendall(garbage)
                    half = socket.create_connection((host, int(port)))
                    half.sendall(garbage)
                    half.shutdown(socket.SHUT_WR)
                    opened_only.append(half)
                await is_well(foreign, running)
                for raw in opened_only:
                    raw.close()

    in_loop(test)


@pytest.mark.parametrize("take", [0, 1, 2, 5])
def test_a_read_dropped_after_any_message_leaves_nothing(tmp_path: Path, take: int) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(SOUND, length=1 << 24)) as (foreign, running):
            for _ in range(3):
                await foreign.append(SOUND, bytes(1 << 20))
            async with leaves_nothing():
                for block in (False, True):
                    calls = [foreign.stubs.read(ReadRequest(journal=SOUND, block=block)) for _ in range(5)]
                    for call in calls:
                        for _ in range(take):
                            await call.read()
                    for call in calls:
                        call.cancel()
            await is_well(foreign, running)

    in_loop(test)


def test_who_hangs_up_while_something_is_sent_to_it_is_no_error_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(SOUND)) as (foreign, running):
            await is_well(foreign, running)
            for error in (_HUNG_UP("Failed to send"), KeyError("a fault of ours")):
                try:
                    raise error
                except Exception:
                    logging.getLogger(GRPC_LOG).exception("raised by a method")

    in_loop(test)
    told = [record.exc_info for record in caplog.records if record.name == GRPC_LOG]
    assert [info[0] for info in told if info] == [KeyError]


@pytest.mark.parametrize("kind", ["cancel", "connection"])
def test_appends_dropped_after_any_message_leave_nothing(tmp_path: Path, kind: str) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(SOUND)) as (foreign, running):
            await is_well(foreign, running)
            async with leaves_nothing():
                for count in range(4):
                    await _dropped(running.address, count, cancel=kind == "cancel")
                    await is_well(foreign, running)

    in_loop(test)


async def _dropped(address: str, count: int, *, cancel: bool) -> None:
    """Several appends on a connection of their own, none of which gets beyond `count` messages."""
    messages = [AppendRequest(journal=SOUND), AppendRequest(content=b"a"), AppendRequest(content=b"b")]
    async with dialed(address) as other:
        calls = [other.stubs.append() for _ in range(8)]
        for call in calls:
            for message in messages[:count]:
                await call.write(message)
        if cancel:
            for call in calls:
                call.cancel()
    await asyncio.gather(*(_ended(call) for call in calls))


async def _ended(call: object) -> None:
    try:
        await call  # type: ignore[misc]
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        return


def test_a_stream_of_appends_dropped_while_the_disk_is_slow_leaves_nothing(tmp_path: Path) -> None:
    """More appends than may wait for the disk: the queue is full when the client goes."""

    async def test() -> None:
        disk, gate = HookedDisk(), Gate()
        async with opened(tmp_path, journal(SOUND), disk=disk) as (foreign, running):
            for _ in range(3):  # past the first fragment, so that nothing rolls while the disk is slow
                await is_well(foreign, running)
            disk.before = lambda step, path: gate.wait() if step == "sync" else None
            async with leaves_nothing():
                call = foreign.stubs.appends()
                one = AppendRequest(journal=SOUND, content=b"y")
                for _ in range(6):
                    await call.write(AppendBatch(appends=[one] * 100))
                assert await asyncio.to_thread(gate.reached.wait, 10)
                await asyncio.sleep(0.1)
                call.cancel()
                await asyncio.sleep(0.1)
                disk.before = lambda step, path: None
                gate.open()
            await is_well(foreign, running)

    in_loop(test)


def test_a_stream_of_appends_keeps_its_order_and_a_failed_one_stops_its_journal(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(), journal(SOUND)) as (foreign, _):
            call = foreign.stubs.appends()
            appends = [
                AppendRequest(journal=JOURNAL, content=b"1"),
                AppendRequest(journal=JOURNAL, content=b"2", offset=99),
                AppendRequest(journal=JOURNAL, content=b"3"),
                AppendRequest(journal=SOUND, content=b"4"),
                AppendRequest(journal="/bad", content=b"5"),
            ]
            await call.write(AppendBatch(appends=appends))
            await call.done_writing()
            results: list[AppendResult] = []
            while isinstance(answer := await call.read(), AppendBatchResult):
                results += answer.results
            statuses = [result.response.status for result in results]
            assert statuses[:4] == [
                Status.OK,
                Status.WRONG_APPEND_OFFSET,
                Status.WRONG_APPEND_OFFSET,
                Status.OK,
            ]
            assert "cannot begin with '/'" in results[4].error
            assert await foreign.content(JOURNAL) == b"1"

    in_loop(test)


def test_watches_dropped_at_any_time_leave_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path, journal(SOUND)) as (foreign, running):
            await is_well(foreign, running)
            async with leaves_nothing():
                for take in range(4):
                    calls = [foreign.stubs.list(ListRequest(watch=True)) for _ in range(5)]
                    for call in calls:
                        for _ in range(min(take, 2)):
                            await call.read()
                    if take == 3:
                        await foreign.upsert(journal(SOUND))
                    for call in calls:
                        call.cancel()
            await foreign.upsert(journal(SOUND))
            await until(lambda: not running.broker._local._waits._waiting)

    in_loop(test)


def test_a_broker_stops_though_clients_hang_on_every_call(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as running, dialed(running.address) as foreign:
            await foreign.upsert(journal(SOUND), journal())
            fragments = await foreign.fragments(JOURNAL)
            hanging = [
                foreign.stubs.read(ReadRequest(journal=SOUND, block=True)),
                foreign.stubs.list(ListRequest(watch=True)),
                foreign.stubs.append(),
                foreign.stubs.appends(),
                foreign.stubs.replicate(),
                foreign.stubs.read(ReadRequest(journal=SOUND, min_etcd_revision=1 << 40)),
            ]
            await hanging[2].write(AppendRequest(journal=SOUND))  # type: ignore[attr-defined]
            await hanging[2].write(AppendRequest(content=b"half"))  # type: ignore[attr-defined]
            first = ReplicateRequest(header=fragments.header, acknowledge=True)
            first.proposal.journal = JOURNAL
            first.proposal.compression_codec = 1  # type: ignore[assignment]
            await hanging[4].write(first)  # type: ignore[attr-defined]
            await until(lambda: running.broker._replicas[JOURNAL].spool_slot.owned)
            await until(lambda: running.broker._replicas[SOUND].spool.delta == 4)
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 5
        assert len(asyncio.all_tasks()) == 1
        assert not open_files(tmp_path)

    in_loop(test)


def test_large_and_small_chunks_stay_in_order_though_appends_among_them_are_dropped(tmp_path: Path) -> None:
    """Large ones are written by a thread, and the broker reads on meanwhile."""

    async def test() -> None:
        sizes = [1, 5, 128 << 10, 7, 3 << 20, (128 << 10) - 1, 2, 1 << 20, 1 << 20, 1 << 20, 9]
        chunks = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
        async with opened(tmp_path, journal(SOUND, length=1 << 30)) as (foreign, running):
            replica = running.broker._replicas[SOUND]
            expected = b""
            for turn in range(len(chunks)):
                dropped = foreign.stubs.append()
                await dropped.write(AppendRequest(journal=SOUND))
                for chunk in chunks[turn:]:
                    await dropped.write(AppendRequest(content=chunk))
                dropped.cancel()
                if turn % 4:
                    continue
                content = chunks[turn:] + chunks[:turn]
                response = await foreign.append(SOUND, *content)
                assert response.commit.begin == len(expected)
                assert sum_of(response.commit) == hashlib.sha1(b"".join(content)).hexdigest()
                expected += b"".join(content)
            await until(lambda: not replica.pipeline_slot.owned)
            assert await foreign.content(SOUND) == expected

    in_loop(test)
