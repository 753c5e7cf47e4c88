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
