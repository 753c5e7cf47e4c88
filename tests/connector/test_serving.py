"""A worker at the edges of time: between an append and its news, under load without a pause, while it waits."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.connector.rig import COOKIE, Raw, Rig, eventually, ids_of, rigged

from penstock.base.errors import PenstockError
from penstock.connector import frames as fr
from penstock.connector.frames import NOTHING_SEEN
from penstock.connector.instancelog import JournalLog, OnDurable
from penstock.connector.instances import Instance
from penstock.connector.serving import Peer
from penstock.connector.settings import split
from penstock.connector.wire import LINGER, Wire
from penstock.journal.client import Appender, Pending

FULL = "too many connections: this worker takes 5"


def log_of(instance: Instance) -> JournalLog:
    assert isinstance(instance._log, JournalLog)
    return instance._log


def test_a_stream_asked_for_the_moment_an_append_lands_resumes_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the broker's answer and the news of it the registry is behind the log: nobody may be told of that."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        first, second = await rig.peer(worker), await rig.peer(worker)
        await first.ok()
        await second.ok()
        await first.open(7)
        asker = max(worker.peers, key=lambda peer: peer.number)
        holder = min(worker.peers, key=lambda peer: peer.number)
        notify = Appender._notify

        def landed(self: Appender, *arguments: object) -> None:
            notify(self, *arguments)  # type: ignore[arg-type]
            if self.pending_bytes == 0 and holder.last_seen(7) == 3 and not holder._over:
                holder._let_go()
                asked = fr.encode(fr.Notify(7, "s", 0))
                asker.get_buffer(-1)[: len(asked)] = asked
                asker.buffer_updated(len(asked))

        monkeypatch.setattr(Appender, "_notify", landed)
        await first.send(*(fr.Message(7, number) for number in (1, 2, 3)))
        answer = await second.until(lambda frame: isinstance(frame, fr.NotifyAck))
        assert answer == fr.NotifyAck(True, 7, 3)
        await second.send(*(fr.Message(7, number) for number in (1, 2, 3, 4)))
        await second.acked(7, 4)
        assert ids_of(await rig.frames()) == {7: [1, 2, 3, 4]}

    rigged(tmp_path / "d", test)


@contextmanager
def never_idle(worker_instance: Instance) -> Iterator[None]:
    """Something is on its way to the log at every moment: what was is not over before the next is added."""
    log = log_of(worker_instance)
    filling, over = Appender._notify, False

    def more(self: Appender, *arguments: object) -> None:
        if not over and self is log._appender:
            log.opened(99, "other")
        filling(self, *arguments)  # type: ignore[arg-type]

    Appender._notify = more  # type: ignore[method-assign, assignment]
    log.opened(99, "other")
    try:
        yield
    finally:
        over = True
        Appender._notify = filling  # type: ignore[method-assign]


def test_a_stream_is_accepted_and_a_worker_stops_though_the_log_is_never_idle(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.peer(worker)
        await peer.ok()
        instance = worker.instances["i"]
        with never_idle(instance):
            async with asyncio.timeout(20):
                assert await peer.open(7) == fr.NotifyAck(True, 7, NOTHING_SEEN)
                await instance.flush()

    rigged(tmp_path / "d", test)


def test_who_has_not_said_hello_does_not_keep_a_worker_from_stopping(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        await eventually(lambda: not worker._tasks)
        silent = await rig.peer(worker, hello=False)
        await eventually(lambda: bool(worker.peers))
        stopping = asyncio.create_task(worker.stop())
        assert "stopping" in await silent.error()
        await silent.close()
        await stopping

    rigged(tmp_path / "d", test)


def test_each_frame_has_its_own_time_also_if_the_next_has_begun_when_it_ends(tmp_path: Path) -> None:
    """Large messages back to back: hardly ever does a read end where a frame ends."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        (served,) = worker.peers
        rest, timers = b"", [served._frame_end._handle]
        for number in range(1, 4):
            frame = rest + fr.encode(fr.Message(7, number, body=bytes(1000)))
            rest = frame[-500:]
            await peer.raw(frame[:-500])
            await eventually(lambda: served._frame_end._handle not in (*timers, None))
            assert all(timer is None or timer.cancelled() for timer in timers)
            timers.append(served._frame_end._handle)
        await peer.raw(rest)
        await peer.acked(7, 3)
        assert not served._frame_end.is_armed

    rigged(tmp_path / "d", test)


def test_a_peer_that_the_worker_does_not_read_from_is_not_too_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(max_pending=1000, credits=1000)
        peer = await rig.streaming(worker, 7)
        (served,) = worker.peers
        log = log_of(worker.instances["i"])
        gate = asyncio.Event()
        landed = log._landed

        async def slow(pending: Pending) -> None:
            await gate.wait()
            await landed(pending)

        monkeypatch.setattr(log, "_landed", slow)
        whole = fr.encode(fr.Message(7, 2, body=bytes(100)))
        await peer.raw(fr.encode(fr.Message(7, 1, body=bytes(2000))) + whole[:50])
        await eventually(lambda: not served.wire.reading)
        assert not served._frame_end.is_armed, "it is the worker that does not read"
        gate.set()
        await eventually(lambda: served._frame_end.is_armed)
        await peer.raw(whole[50:])
        await peer.acked(7, 2)
        assert not served._frame_end.is_armed

    rigged(tmp_path / "d", test)


def test_a_refusal_of_the_log_leaves_no_trace_in_the_points_of_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a snapshot of the points would be ahead of the log, and what came between would be lost."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        log = log_of(worker.instances["i"])

        def full(record: bytes) -> None:
            raise PenstockError("full")

        with monkeypatch.context() as refusing:
            refusing.setattr(log._appender, "append", full)
            await peer.send(fr.Message(7, 5), fr.Message(7, 5), fr.Message(7, 6))
            await peer.until(lambda frame: isinstance(frame, fr.Restart))
        log._snapshot()
        await worker.stop()
        again = await rig.peer(await rig.worker("next"))
        await again.ok()
        assert await again.open(7) == fr.NotifyAck(True, 7, NOTHING_SEEN)

    rigged(tmp_path / "d", test)


def test_the_last_id_is_not_acknowledged_between_an_end_and_its_place_in_the_log(tmp_path: Path) -> None:
    """The peer would take that for the ACK of the end, and the worker might crash before it has one."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        await peer.send(fr.Message(7, 1))
        await peer.acked(7, 1)
        instance, (served,) = worker.instances["i"], worker.peers
        held: list[OnDurable] = []
        instance.ended = lambda stream, on_durable: held.append(on_durable)  # type: ignore[method-assign]
        served._points[7] = 1  # as if it were durable now, its ACK still to be sent
        await peer.send(fr.EosMessage(7))
        await eventually(lambda: bool(held))
        served._owe(5)
        assert await peer.next() == fr.Ack(5, ())
        held[0]()
        assert await peer.next() == fr.Ack(0, ((7, 1),))

    rigged(tmp_path / "d", test)


def test_a_stream_that_is_asked_for_when_the_log_rolls_back_is_accepted_at_the_next_try_at_its_true_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        first, second = await rig.streaming(worker, 7), await rig.peer(worker)
        await second.ok()
        await first.send(fr.Message(7, 1))
        await first.acked(7, 1)
        instance, asked = worker.instances["i"], asyncio.Event()

        async def never() -> None:
            asked.set()
            await asyncio.Event().wait()

        with (
            monkeypatch.context() as held
        ):  # what the first session sent is on its way when the second one asks
            held.setattr(type(instance), "pending_bytes", property(lambda self: 1))
            held.setattr(instance, "flush", never)
            await first.close()
            await eventually(lambda: len(worker.peers) == 1)
            await second.send(fr.Notify(7, "s", 0))
            await asked.wait()
            worker.failed(instance, PenstockError("as if the claim were lost"))
        assert await told(second) == fr.Restart(worker.me.address)
        again = await rig.peer(worker)
        await again.ok()
        assert await again.open(7) == fr.NotifyAck(True, 7, 1)
        await again.send(fr.Message(7, 1), fr.Message(7, 2))
        await again.acked(7, 2)
        assert ids_of(await rig.frames()) == {7: [1, 2]}

    rigged(tmp_path / "d", test)


def test_a_log_that_is_let_go_while_a_flush_waits_for_its_appender_leaves_no_error_that_nobody_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: Rig) -> None:
        unseen: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        log = log_of(worker.instances["i"])
        asked = asyncio.Event()

        async def never() -> None:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(log._appender, "flush", never)
        flushing = asyncio.create_task(log.flush())
        await asked.wait()
        await log.close()
        flushing.cancel()
        await asyncio.wait([flushing])
        await peer.close()
        await eventually(lambda: not worker.peers)
        worker.instances.clear()
        monkeypatch.undo()
        del flushing, log
        gc.collect()
        assert unseen == []

    rigged(tmp_path / "d", test)


def test_an_error_of_the_worker_itself_is_a_restart_and_not_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Peer, run: object) -> None:
        raise RuntimeError("a fault of ours")

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        with monkeypatch.context() as breaking:
            breaking.setattr(Peer, "_durable", broken)
            await peer.send(fr.Message(7, 1))
            assert await told(peer) == fr.Restart(worker.me.address)
        again = await rig.peer(worker)
        await again.ok()
        assert await again.open(7) == fr.NotifyAck(True, 7, 1)

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize("opened", [True, False])
def test_who_closes_its_streams_and_then_says_nothing_is_sent_away_in_time(
    tmp_path: Path, opened: bool
) -> None:
    async def test(rig: Rig) -> None:
        old, new = await rig.worker("old"), await rig.worker("new")
        peer = await rig.peer(old, tokens=["migrate"])
        await peer.ok()
        (served,) = old.peers
        if opened:
            await peer.open(7)
        await old.migrate("i", new.me.address)
        await peer.until(lambda frame: isinstance(frame, fr.Migrate))
        if opened:
            await peer.send(fr.Message(7, 1), fr.EosMessage(7))
            await peer.acked(7, 1)
        assert served._parting._handle is not None
        served._parting._handle._run()  # as if the time were over
        assert await told(peer) == fr.Restart(new.me.address)
        assert await peer.next() is None
        await peer.close()
        await eventually(lambda: not old.peers)

    rigged(tmp_path / "d", test)


def test_who_is_redirected_and_stays_is_sent_away_in_time(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        owner, other = await rig.worker("a"), await rig.worker("b", migration_timeout=0.3)
        await (await rig.peer(owner)).ok()
        stays = await rig.peer(other, tokens=["migrate"])
        assert await stays.next() == fr.Migrate(*split(owner.me.address))
        assert await stays.next() == fr.Restart(owner.me.address)
        assert await stays.next() is None

    rigged(tmp_path / "d", test)


def test_who_asked_for_a_stream_before_it_was_redirected_is_refused_it(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        owner, other = await rig.worker("a"), await rig.worker("b", strict_credits=False)
        await (await rig.peer(owner)).ok()
        hasty = await rig.peer(other, hello=False)
        await hasty.send(fr.Hello("0.0.1", COOKIE, "p", "i", frozenset({"migrate"})), fr.Notify(7, "s", 0))
        assert await hasty.next() == fr.Migrate(*split(owner.me.address))
        await hasty.send(fr.MigrationAck())
        assert await hasty.next() == fr.NotifyAck(False, 7, 0)
        while await hasty.next() is not None:
            pass
        assert not failures

    rigged(tmp_path / "d", test)


def test_streams_that_are_closed_leave_room_for_others(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(max_streams=3, credits=1000)
        peer = await rig.peer(worker)
        await peer.ok()
        for stream in range(10):
            assert (await peer.open(stream)).success
            await peer.send(fr.Message(stream, 1), fr.EosMessage(stream))
            await peer.until(lambda frame, stream=stream: is_final(frame, stream))  # type: ignore[misc]
            await eventually(lambda: not worker.instances["i"].registry.held)
        for stream in range(10, 13):
            await peer.open(stream)
        await peer.send(fr.Notify(13, "s", 0))
        assert "too many streams: 3" in await peer.error()

    rigged(tmp_path / "d", test)


def is_final(frame: fr.Frame, stream: int) -> bool:
    return isinstance(frame, fr.Ack) and (stream, 1) in frame.points


def test_a_peer_that_does_not_read_when_all_are_sent_away_keeps_no_other_from_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        raws = [await rig.streaming(worker, stream) for stream in (7, 8)]
        raw_of = dict(zip(sorted(worker.peers, key=lambda peer: peer.number), raws, strict=True))
        for served in raw_of:
            served._points[9] = 1  # as if something had become durable just now
        deaf, other = worker.instances["i"].peers  # in the order in which they are sent away
        monkeypatch.setattr(Wire, "is_deaf", property(lambda wire: wire is deaf.wire))
        worker.instances["i"].restart_all()
        assert await raw_of[deaf].error() == "this peer does not read what it is sent"
        assert await told(raw_of[other]) == fr.Restart("")

    rigged(tmp_path / "d", test)


def test_an_address_that_simple_peers_cannot_read_goes_only_to_those_that_can(tmp_path: Path) -> None:
    """Peers that name no capability cut `host:port` at its one colon, and fail at more."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        able, plain = await rig.peer(worker, tokens=["migrate"]), await rig.peer(worker)
        for peer in (able, plain):
            await peer.ok()
        for served in list(worker.peers):
            served.restart("[::1]:7110")
        assert await told(able) == fr.Restart("[::1]:7110")
        assert await told(plain) == fr.Restart("")

    rigged(tmp_path / "d", test)


async def told(peer: Raw) -> fr.Frame:
    return await peer.until(lambda frame: isinstance(frame, fr.Restart))


def test_an_error_reaches_a_peer_that_was_sending_and_not_listening(tmp_path: Path) -> None:
    """Closed at once, the connection would be reset with the ERROR unread."""

    async def test(rig: Rig) -> None:
        peer = await rig.peer(await rig.worker())
        await peer.ok()
        await peer.raw(bytes(4) + bytes(8 << 20))
        assert "length 0" in await peer.error()

    rigged(tmp_path / "d", test)


def test_an_answer_goes_to_the_connection_that_asked_and_not_to_its_successor_at_the_same_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        await rig.streaming(worker, 1)
        first = await rig.peer(worker)
        await first.ok()
        asked = max(worker.peers, key=lambda peer: peer.number)
        descriptor = number_of(asked)
        gate, flush = asyncio.Event(), Instance.flush

        async def held(self: Instance) -> None:
            await gate.wait()
            await flush(self)

        monkeypatch.setattr(Instance, "flush", held)
        monkeypatch.setattr(Instance, "pending_bytes", 1)
        await first.send(fr.Notify(7, "first", 0))
        await eventually(lambda: 7 in worker.instances["i"].registry.held)
        await first.close()
        await eventually(lambda: asked not in worker.peers)
        assert 7 not in worker.instances["i"].registry.held, "the id must not stay active"
        second = await rig.peer(worker)
        await second.ok()
        asker = max(worker.peers, key=lambda peer: peer.number)
        assert number_of(asker) == descriptor, "the descriptor is used again"
        gate.set()
        await second.send(fr.Notify(8, "second", 0))
        assert await second.until(lambda frame: isinstance(frame, fr.NotifyAck)) == fr.NotifyAck(
            True, 8, NOTHING_SEEN
        )
        assert (await second.open(7, "second")).success

    rigged(tmp_path / "d", test)


def number_of(peer: Peer) -> int:
    assert peer.wire.transport is not None
    number = peer.wire.transport.get_extra_info("socket").fileno()
    assert isinstance(number, int)
    return number


def test_a_peer_that_is_gone_when_all_are_sent_away_keeps_no_other_from_being_told(tmp_path: Path) -> None:
    """What is written to it is answered with a reset, before the loop has heard that it closed."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        hello = fr.encode(fr.Hello("0.0.1", COOKIE, "p", "i"))
        gone = [socket.create_connection(split(worker.me.address)) for _ in range(3)]
        for each in gone:
            each.sendall(hello)
        stays = await rig.peer(worker)
        await stays.ok()
        await eventually(lambda: "i" in worker.instances and len(worker.instances["i"].peers) == 4)
        for each in gone:
            each.recv(100)
            each.close()
        worker.instances["i"].restart_all()
        assert await stays.next() == fr.Restart()
        await eventually(lambda: not worker.peers)

    rigged(tmp_path / "d", test)


def test_a_flood_of_connections_takes_no_more_descriptors_than_twice_the_limit(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(max_sessions=5)
        flood = [await rig.peer(worker, hello=False) for _ in range(50)]
        async with asyncio.timeout(LINGER / 2):
            while worker.counters.faults < 40:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            for each in flood[5:45]:
                assert await each.error() == FULL
        assert len(worker.peers) == len(worker.refused) == 5
        for each in flood[45:]:  # they have a moment for a HELLO, and one to read why
            assert await each.error() == FULL
        for each in flood:
            await each.close()
        await eventually(lambda: not worker.peers and not worker.refused)

    rigged(tmp_path / "d", test)


def test_what_a_peer_says_begins_no_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        await peer.send(fr.Error("giving up\nFAKE \x1b[31m" + "x" * 5000))
        await eventually(lambda: worker.counters.given_up == 1)
        other = await rig.peer(worker, hello=False)
        await other.send(fr.Hello("9\nFAKE", COOKIE, "test", "i"))
        await other.error()

    with caplog.at_level(logging.INFO, "penstock.connector"):
        rigged(tmp_path / "d", test)
    gave_up = next(line for line in caplog.messages if "gave up" in line)
    assert r"giving up\nFAKE \x1b[31mxxx" in gave_up
    assert len(gave_up) < 2100
    assert any(r"Unknown protocol version: 9\nFAKE" in line for line in caplog.messages)
    assert not any("\n" in line for line in caplog.messages)


def test_a_peer_that_speaks_tls_to_a_worker_that_does_not_is_named_so(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        peer = await rig.peer(await rig.worker(), hello=False)
        await peer.raw(bytes.fromhex("1603010200010001fc0303") + bytes(500))
        assert "this looks like TLS" in await peer.error()

    rigged(tmp_path / "d", test)
