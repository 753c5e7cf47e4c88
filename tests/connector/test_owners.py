"""Workers that ask each other: who lives, who has an instance, and to whom one may be moved."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.connector.rig import COOKIE, SETTINGS, WAIT, Rig, eventually, ids_of, rigged

from penstock.base.errors import PenstockError, UsageError
from penstock.connector import frames as fr
from penstock.connector.directory import (
    PROBE,
    STOPPING,
    Entry,
    _registers,
    directory_journal,
    enter,
    leave,
    workers,
)
from penstock.connector.records import Point
from penstock.connector.registry import Owner
from penstock.connector.settings import split
from penstock.connector.status import request, survey
from penstock.connector.web import serve
from penstock.journal.client import AsyncClient
from penstock.journal.served import served


def test_an_instance_is_not_moved_to_its_own_worker_by_another_name(tmp_path: Path) -> None:
    """Its connectors would be sent to and fro between the names for ever."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        with pytest.raises(UsageError, match="is this worker itself"):
            await worker.migrate("i", f"localhost:{split(worker.me.address)[1]}")
        await peer.send(fr.Message(7, 1))
        await peer.acked(7, 1)

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"cookie": b"another"}, "would take none of our connectors: Bad cookie"),
        ({"instances": frozenset({"j"})}, "would take none of our connectors: unknown instance 'i'"),
        ({"journals": "other"}, "into other journals than this one"),
    ],
)
def test_an_instance_is_not_moved_to_a_worker_that_cannot_go_on_with_it(
    tmp_path: Path, other: dict[str, Any], reason: str
) -> None:
    """A connector takes a bad cookie for final, and sends all again to whoever says that nothing was seen."""

    async def test(rig: Rig) -> None:
        worker, stranger = await rig.worker(), await rig.worker("stranger", **other)
        peer = await rig.streaming(worker, 7)
        with pytest.raises(UsageError, match=reason):
            await worker.migrate("i", stranger.me.address)
        await peer.send(fr.Message(7, 1))
        await peer.acked(7, 1)

    rigged(tmp_path / "d", test)


def test_a_worker_that_starts_again_at_its_address_takes_what_it_had_however_many_come_back(
    tmp_path: Path,
) -> None:
    """It asked itself whether its owner lives, had no place left for the question, and took that for a yes."""

    async def test(rig: Rig) -> None:
        before = await rig.worker("w")
        peers = [await rig.peer(before, name) for name in "ab"]
        for peer in peers:
            await peer.ok()
        await before.stop()
        after = await rig.worker("w", listen=before.me.address, max_sessions=2)
        for peer in [await rig.peer(after, name) for name in "ab"]:
            await peer.ok()
            assert (await peer.open(7)).success

    rigged(tmp_path / "d", test)


def test_a_worker_that_is_full_says_truly_that_it_is_another_one_now(tmp_path: Path) -> None:
    """An instance of the worker that was killed at its address would be nobody's."""

    async def test(rig: Rig) -> None:
        before, other = await rig.worker("w"), await rig.worker("x")
        await (await rig.peer(before)).ok()
        await before.stop()
        after = await rig.worker("w", listen=before.me.address, max_sessions=1)
        await (await rig.peer(after, "another")).ok()
        peer = await rig.peer(other)
        await peer.ok()
        assert (await peer.open(7)).success

    rigged(tmp_path / "d", test)


def test_an_owner_that_takes_no_more_connections_lives_and_keeps_its_instance(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        owner, other = await rig.worker("a", max_sessions=1), await rig.worker("b")
        peer = await rig.streaming(owner, 7)
        for _ in range(5):
            await rig.peer(owner, hello=False)
        await eventually(lambda: owner.counters.faults == 4)  # and the last has a moment
        second = await rig.peer(other)
        await second.ok()
        assert await second.next() == fr.Restart(owner.me.address)
        await peer.send(fr.Message(7, 1))
        await peer.acked(7, 1)

    rigged(tmp_path / "d", test)


def test_a_worker_that_asks_another_is_no_fault_of_a_peer(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        one, other = await rig.worker("a"), await rig.worker("b")
        await (await rig.peer(one)).ok()
        await one._announce()
        await other._announce()
        await one.stop()
        assert other.counters.faults == 0

    rigged(tmp_path / "d", test)


def test_a_worker_that_stops_opens_no_instance_that_it_has_just_let_go(tmp_path: Path) -> None:
    """Its claim would fence the log that is being made durable."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        late = await rig.peer(worker, hello=False)
        await eventually(lambda: len(worker.peers) == 2)
        instance, flushing, asked = worker.instances["i"], asyncio.Event(), asyncio.Event()
        flush = instance.flush

        async def held_up() -> None:
            flushing.set()
            await asked.wait()
            await flush()

        instance.flush = held_up  # type: ignore[method-assign]
        stopping = asyncio.create_task(worker.stop())
        await flushing.wait()
        await late.send(fr.Hello("0.0.1", COOKIE, "late", "i"))
        assert await late.error() == "this worker is stopping"
        await peer.send(fr.Message(7, 1), fr.Message(7, 2))
        async with asyncio.timeout(WAIT):
            while worker.counters.messages < 2:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        asked.set()
        await peer.acked(7, 2)
        assert isinstance(await peer.next(), fr.Restart)
        await stopping
        assert ids_of(await rig.frames()) == {7: [1, 2]}

    rigged(tmp_path / "d", test)


def killed(number: int, address: str) -> Entry:
    return Entry(Owner("killed", address, f"{number:016x}"), "")


def test_a_worker_takes_the_place_of_those_that_were_killed_at_its_address(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        for number in range(3):
            gone = killed(number, worker.me.address)
            await enter(rig.client, worker.journals, gone, replication=1, store="file:///")
        await enter(rig.client, worker.journals, killed(9, "127.0.0.1:1"), replication=1, store="file:///")
        await worker._announce()
        known = await workers(rig.client, worker.journals)
        assert [entry.owner for entry in known] == [killed(9, "127.0.0.1:1").owner, worker.me]

    rigged(tmp_path / "d", test)


def test_a_directory_that_is_full_of_the_dead_makes_room_for_the_living(tmp_path: Path) -> None:
    """Each that was killed at an address of its own stays in the registers, which take 64 KiB."""

    async def test(rig: Rig) -> None:
        living, worker = await rig.worker("living"), await rig.worker()
        await living._announce()
        many = [killed(number, f"127.0.0.1:{number % 100 + 1}") for number in range(2000)]
        for count in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
            while True:
                try:
                    content, union = b"", _registers(*many[:count])
                    await rig.client.append(directory_journal(worker.journals), content, union=union)
                except PenstockError:
                    break
                del many[:count]
        await worker._announce()
        known = [entry.owner for entry in await workers(rig.client, worker.journals)]
        assert living.me in known
        assert worker.me in known

    rigged(tmp_path / "d", test)


def test_who_asks_for_a_move_is_answered_though_nobody_answers_at_the_target(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        await rig.streaming(worker, 7)
        server = await serve(worker, "127.0.0.1:0")
        with socket.socket() as deaf:  # takes the connection, and says nothing
            deaf.bind(("127.0.0.1", 0))
            deaf.listen()
            to = f"127.0.0.1:{deaf.getsockname()[1]}"
            body = msgspec.json.encode({"what": "i", "to": to})
            code, answer = await asyncio.to_thread(request, worker.http, "POST", "/migrate", body, COOKIE)
        assert (code, msgspec.json.decode(answer)) == (200, {"instance": "i", "to": to})
        server.close()

    rigged(tmp_path / "d", test)


def test_a_worker_tells_of_all_its_streams_however_many(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        await rig.streaming(worker, 7)
        server = await serve(worker, "127.0.0.1:0")
        await worker._announce()
        name = "x" * 20_000
        worker.instances["i"].registry.points |= {number: Point(1, name=name) for number in range(100, 1000)}
        (found,) = await survey(rig.client, worker.journals)
        assert found.answers
        assert len(found.streams) == 901
        server.close()

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_addresses_that_are_told_to_others_can_be_dialled(tmp_path: Path, host: str) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        server = await serve(worker, f"{host}:0")
        told, port = split(worker.http)
        assert told == (host if host == "127.0.0.1" else socket.gethostname())
        assert port == server.sockets[0].getsockname()[1]
        server.close()

    rigged(tmp_path / "d", test)


def test_a_worker_that_stops_sends_nobody_to_one_that_would_not_take_them(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker("w")
        stranger = await rig.worker("a", replace(SETTINGS, cookie=b"another"))
        full = await rig.worker("b", max_sessions=1)
        for each in (worker, stranger, full):
            await each._announce()
        await (await rig.peer(full, "other")).ok()
        peer = await rig.streaming(worker, 7)
        await worker.stop()
        assert await peer.until(lambda frame: isinstance(frame, fr.Restart)) == fr.Restart()
        known = [entry.owner for entry in await workers(rig.client, worker.journals)]
        assert known == [stranger.me, full.me], "they live all the same"

    rigged(tmp_path / "d", test)


def test_an_instance_is_not_moved_to_a_worker_that_is_full_or_stops(tmp_path: Path) -> None:
    """Its connectors would be refused there, and have nowhere to go."""

    async def test(rig: Rig) -> None:
        worker, full = await rig.worker(), await rig.worker("full", max_sessions=1)
        await (await rig.peer(full, "another")).ok()
        peer = await rig.streaming(worker, 7)
        with pytest.raises(UsageError, match="none of our connectors: too many connections"):
            await worker.migrate("i", full.me.address)
        await peer.send(fr.Message(7, 1))
        await peer.acked(7, 1)

    rigged(tmp_path / "d", test)


def test_an_instance_that_was_moved_to_a_worker_that_is_full_by_now_is_taken_back(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker, other = await rig.worker(), await rig.worker("other", max_sessions=1)
        await (await rig.streaming(worker, 7)).close()
        await worker.migrate("i", other.me.address)
        await eventually(lambda: "i" in worker.moved)
        await (await rig.peer(other, "another")).ok()
        peer = await rig.peer(worker)
        await peer.ok()
        assert (await peer.open(7)).success

    rigged(tmp_path / "d", test)


def test_an_instance_may_be_moved_to_a_worker_that_was_taken_for_dead_once(tmp_path: Path) -> None:
    """One that did not answer for a while is in no directory any more; what it takes goes into the same journals."""

    async def test(rig: Rig) -> None:
        worker, other = await rig.worker(), await rig.worker("other")
        await eventually(lambda: bool(worker.place and other.place))
        await leave(rig.client, worker.journals, other._entry)
        await (await rig.streaming(worker, 7)).close()
        assert await worker.migrate("i", other.me.address) == "i"

    rigged(tmp_path / "d", test)


def test_a_worker_of_another_broker_is_another_place_though_its_directory_has_the_same_name(
    tmp_path: Path,
) -> None:
    async def test(rig: Rig) -> None:
        async with served(tmp_path / "e") as broker:
            elsewhere = AsyncClient(broker.address, near=broker.near)
            rig.using.push_async_callback(elsewhere.close)
            worker = await rig.worker()
            stranger = await Rig(elsewhere, rig.using).worker("stranger")
            await (await rig.streaming(worker, 7)).close()
            with pytest.raises(UsageError, match="into other journals than this one"):
                await worker.migrate("i", stranger.me.address)
            await stranger.stop()

    rigged(tmp_path / "d", test)


def test_a_worker_that_stops_has_let_nothing_go_until_it_is_durable(tmp_path: Path) -> None:
    """Who asks it for an instance on a connection that it had taken before waits, and fences nobody."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        await rig.streaming(worker, 7)
        asking = await rig.peer(worker, hello=False)
        await eventually(lambda: len(worker.peers) == 2)
        worker._stopping = True
        await asking.send(fr.Hello("0.0.1", COOKIE, "penstock", "i", frozenset({PROBE + worker.me.nonce})))
        assert await asking.error() == STOPPING
        worker._stopping = False

    rigged(tmp_path / "d", test)
