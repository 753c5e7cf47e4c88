"""Back-pressure: a log that takes nothing for a while holds connectors back, and nothing grows without bound."""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path

import pytest
from tests.connector.rig import Numbers, Rig, eventually, ids_of, rigged
from tests.connector.test_source import connector

from penstock.connector import frames as fr
from penstock.connector.instancelog import InstanceLog, JournalLog, OnDurable
from penstock.connector.intake import Run
from penstock.connector.source import stream_id
from penstock.connector.worker import Worker
from penstock.journal.client import Pending
from penstock.journal.client.batching import MESSAGE_LIMIT


class Slow(JournalLog):
    """Tells of what is durable only when the gate is open."""

    gate: asyncio.Event

    def messages(self, run: Run, on_durable: OnDurable) -> None:
        def later() -> None:
            self.waiting.append(on_durable)
            if self.gate.is_set():
                self.release()

        super().messages(run, later)

    def release(self) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()

    waiting: list[OnDurable]


def test_a_log_that_is_slow_stops_the_reading_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(credits=1_000_000, max_pending=20_000)
        opened: list[InstanceLog] = []
        real = Worker.open_log

        async def slow(self: Worker, instance: object) -> InstanceLog:
            log = await real(self, instance)  # type: ignore[arg-type]
            log.__class__ = Slow
            assert isinstance(log, Slow)
            log.gate, log.waiting = asyncio.Event(), []
            opened.append(log)
            return log

        monkeypatch.setattr(Worker, "open_log", slow)
        streams = [Numbers("a", 20_000, 500), Numbers("b", 20_000, 500)]
        running = connector([worker.me.address], list(streams))
        serving = asyncio.create_task(running.serve())
        await eventually(lambda: any(not peer.wire.reading for peer in worker.peers) and bool(opened))
        held = worker.counters.messages
        assert held < 40_000
        assert worker.counters.bytes < 20_000 + (1 << 20)
        assert running.acked == {}
        log = opened[0]
        assert isinstance(log, Slow)
        log.gate.set()
        log.release()
        await serving
        assert ids_of(await rig.frames()) == {stream_id(s.name): list(range(1, 20_001)) for s in streams}

    rigged(tmp_path / "d", test)


def test_a_peer_that_goes_while_it_is_not_read_keeps_no_stream_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(credits=1000, max_pending=20_000)
        gate = asyncio.Event()
        real = JournalLog._landed

        async def late(self: JournalLog, pending: Pending) -> None:
            await real(self, pending)
            await gate.wait()

        peer, other = await rig.streaming(worker, 7), await rig.peer(worker)
        await other.ok()
        monkeypatch.setattr(JournalLog, "_landed", late)
        await peer.send(*(fr.Message(7, number, body=bytes(1000)) for number in range(1, 100)))
        await eventually(lambda: any(not each.wire.reading for each in worker.peers))
        (held,) = (each for each in worker.peers if not each.wire.reading)
        await other.send(fr.Notify(7, "s", 0))
        assert await other.until(is_answer) == fr.NotifyAck(False, 7, 0), "its peer is there"
        await peer.close()
        await eventually(lambda: held.is_absent)
        await other.send(fr.Notify(7, "s", 0))
        assert await other.until(is_answer) == fr.NotifyAck(False, 7, 0)
        await eventually(lambda: held not in worker.peers)
        await other.send(fr.Notify(7, "s", 0))
        gate.set()
        answer = await other.until(is_answer)
        assert isinstance(answer, fr.NotifyAck)
        assert answer.success
        assert ids_of(await rig.frames())[7][-1] == answer.point

    rigged(tmp_path / "d", test)


def is_answer(frame: fr.Frame) -> bool:
    return isinstance(frame, fr.NotifyAck)


@pytest.mark.parametrize("wait", [True, False], ids=["after a look", "when places are short"])
def test_a_peer_that_goes_while_its_instance_opens_takes_nobodys_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    """As long as a broker is away, all who come wait; those that lose patience, and come again, would fill a worker."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker(max_sessions=4)
        gate = asyncio.Event()
        real = Worker.open_log

        async def late(self: Worker, instance: object) -> InstanceLog:
            await gate.wait()
            return await real(self, instance)  # type: ignore[arg-type]

        monkeypatch.setattr(Worker, "open_log", late)
        waiting = [await rig.peer(worker, f"i{number}") for number in range(4)]
        await eventually(lambda: sum(not each.wire.reading for each in worker.peers) == 4)
        stays = waiting.pop()
        for each in waiting:
            await each.close()
        await eventually(lambda: sum(each.is_absent for each in worker.peers) == 3 or wait)
        if wait:
            await eventually(lambda: len(worker.peers) == 1)
        late_one = await rig.peer(worker, "i9")
        await eventually(lambda: len(worker.peers) == 2)
        gate.set()
        for each in (stays, late_one):
            await each.ok()

    rigged(tmp_path / "d", test)


def test_a_log_that_takes_no_more_asks_the_peer_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: Rig) -> None:
        from penstock.base.errors import PenstockError

        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)

        def full(run: Run, on_durable: OnDurable) -> None:
            raise PenstockError("full")

        monkeypatch.setattr(worker.instances["i"], "messages", full)
        await peer.send(fr.Message(7, 1))
        assert await peer.until(lambda frame: isinstance(frame, fr.Restart)) == fr.Restart(worker.me.address)

    rigged(tmp_path / "d", test)


def test_a_worker_that_does_not_trust_us_is_alive_all_the_same(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        theirs, ours = await rig.worker("a", cookie=b"other"), await rig.worker("b")
        peer = await rig.peer(theirs, cookie=b"other")
        await peer.ok()
        await peer.open(7)
        plain = await rig.peer(ours)
        await plain.ok()
        assert await plain.next() == fr.Restart(theirs.me.address)
        await peer.send(fr.Message(7, 1))
        await peer.acked(7, 1)

    rigged(tmp_path / "d", test)


def test_what_is_durable_is_kept_by_nobody_also_if_nothing_comes_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each instance that was ever used would keep as much as the last of its messages had."""
    received: list[weakref.ref[memoryview]] = []
    take = JournalLog.messages

    def messages(self: JournalLog, run: Run, on_durable: OnDurable) -> None:
        received.extend(map(weakref.ref, run.pieces))
        take(self, run, on_durable)

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        monkeypatch.setattr(JournalLog, "messages", messages)
        await peer.send(fr.Message(7, 1, body=bytes(MESSAGE_LIMIT)))
        await peer.acked(7, 1)
        await eventually(lambda: [each() for each in received] == [None])

    rigged(tmp_path / "d", test)
