"""A worker and hand-made peers: what it answers to each frame, good and bad, and what the journal holds then."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from tests.connector.rig import COOKIE, Rig, eventually, ids_of, rigged

from penstock.connector import frames as fr
from penstock.connector import records, status
from penstock.connector.frames import NOTHING_SEEN
from penstock.connector.worker import Worker


def test_messages_are_acknowledged_when_durable_and_stand_in_the_journal_once(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        peer = await rig.peer(await rig.worker())
        assert await peer.ok() == 64
        assert await peer.open(7) == fr.NotifyAck(True, 7, NOTHING_SEEN)
        sent = [fr.Message(7, number, number, b"k", b"x" * number) for number in (1, 2, 5, 9)]
        await peer.send(*sent)
        await peer.acked(7, 9)
        assert await rig.frames() == sent

    rigged(tmp_path / "d", test)


def test_ok_comes_alone_and_credits_come_back(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        peer = await rig.peer(await rig.worker(credits=4))
        assert await peer.ok() == 4
        await peer.open(7)
        held = 3
        for number in range(1, 30):
            while not held:
                ack = await peer.until(lambda frame: isinstance(frame, fr.Ack))
                assert isinstance(ack, fr.Ack)
                held += ack.credits
            await peer.send(fr.Message(7, number))
            held -= 1
        assert held <= 4
        await peer.send(fr.EosMessage(7))
        await peer.acked(7, 29)

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([fr.Message(7, 1)], "Bad/unregistered stream_id 7 with message_id 1"),
        ([fr.EosMessage(7)], "Unable to decode message"),
        ([fr.Ok(1)], "Invalid message: ok"),
        ([fr.NotifyAck(True, 7, 0)], "Invalid message: notify_ack"),
        ([fr.Ack(1)], "Invalid message: ack"),
        ([fr.Restart()], "Invalid message: restart"),
        ([fr.Hello("0.0.1", COOKIE, "p", "i")], "Bad protocol FSM state"),
        ([fr.MigrationAck()], "Bad protocol FSM state"),
        ([fr.Notify(7, "s", 0), fr.Message(7, NOTHING_SEEN)], "message_id"),
    ],
)
def test_frames_that_are_not_for_now_end_the_connection_with_the_reason(
    tmp_path: Path, frames: list[fr.Frame], reason: str
) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.peer(worker)
        await peer.ok()
        await peer.send(*frames)
        assert reason in await peer.error()
        await eventually(lambda: not worker.instances["i"].registry.held)
        other = await rig.peer(worker)
        await other.ok()
        assert (await other.open(7)).success

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "the limit is"),
        (
            bytes.fromhex("000600000000"),
            "the limit is 327,686",
        ),  # nobody without a cookie has us keep megabytes
        (bytes(4), "length 0"),
        (bytes.fromhex("0000000109"), "tag 9"),
        (fr.encode(fr.Notify(1, "s", 0)), "Bad protocol FSM state"),
        (fr.encode(fr.EosMessage(1)), "Unable to decode message"),
        (fr.encode(fr.Hello("9.9.9", COOKIE, "p", "i")), "Unknown protocol version: 9.9.9"),
        (fr.encode(fr.Hello("0.0.1", b"guess", "p", "i")), "Bad cookie"),
        (fr.encode(fr.Hello("0.0.1", b"", "p", "i")), "Bad cookie"),
        (fr.encode(fr.Hello("0.0.1", COOKIE, "p", "../x")), "no instance can be called"),
        (fr.encode(fr.Hello("0.0.1", COOKIE, "p", "a..b")), "no instance can be called"),
        (fr.encode(fr.Hello("0.0.1", COOKIE, "p", "x" * 65)), "no instance can be called"),
        (fr.encode(fr.Hello("0.0.1", COOKIE, "p", "_workers")), "no instance can be called"),
        (fr.encode(fr.Hello("0.0.1", COOKIE, "p", "")), "no name"),
    ],
)
def test_what_is_no_good_hello_is_answered_with_the_reason_and_never_the_secret(
    tmp_path: Path, raw: bytes, reason: str
) -> None:
    async def test(rig: Rig) -> None:
        peer = await rig.peer(await rig.worker(), hello=False)
        await peer.raw(raw)
        told = await peer.error()
        assert reason in told
        assert COOKIE.decode() not in told

    rigged(tmp_path / "d", test)


def test_a_version_is_looked_at_before_the_rest_of_a_hello(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        peer = await rig.peer(await rig.worker(), hello=False)
        await peer.raw(bytes.fromhex("0000000d 00 0005 392e392e39 0001 61 ffff".replace(" ", "")))
        assert "Unknown protocol version" in await peer.error()

    rigged(tmp_path / "d", test)


def test_more_than_the_credits_is_an_error(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        peer = await rig.peer(await rig.worker(credits=4))
        await peer.ok()
        await peer.open(7)
        await peer.send(*(fr.Message(7, number) for number in range(1, 40)))
        assert "credit limit exceeded" in await peer.error()

    rigged(tmp_path / "d", test)


def test_silent_and_slow_peers_are_cut_off_and_quiet_ones_stay(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(hello_timeout=0.3, frame_timeout=0.3)
        silent = await rig.peer(worker, hello=False)
        slow = await rig.peer(worker)
        quiet = await rig.streaming(worker, 1)
        await slow.ok()
        await slow.raw(b"\x00\x00\x00\x10\x05")
        assert "no HELLO within" in await silent.error()
        assert "did not end in time" in await slow.error()
        await quiet.send(fr.Message(1, 1))
        await quiet.acked(1, 1)

    rigged(tmp_path / "d", test)


def test_connections_beyond_the_limit_are_refused_with_a_reason(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(max_sessions=2)
        first, second = await rig.peer(worker), await rig.peer(worker)
        await first.ok()
        await second.ok()
        third = await rig.peer(worker, hello=False)
        assert "too many connections" in await third.error()
        await first.close()
        await eventually(lambda: len(worker.peers) < 2)
        fourth = await rig.peer(worker)
        await fourth.ok()

    rigged(tmp_path / "d", test)


def test_connections_that_were_refused_take_no_place_while_they_end(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(max_sessions=1)
        first = await rig.peer(worker)
        await first.ok()
        for _ in range(3):
            refused = await rig.peer(worker, hello=False)  # and stays as long as it may
            assert isinstance(await refused.next(), fr.Error)
        await first.close()
        await eventually(lambda: not worker.peers)
        await (await rig.peer(worker)).ok()

    rigged(tmp_path / "d", test)


def test_a_stream_belongs_to_one_session_and_a_refusal_is_followed_by_an_ack(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        first, second = await rig.peer(worker), await rig.peer(worker)
        await first.ok()
        await second.ok()
        assert (await first.open(7)).success
        assert (await first.open(7)) == fr.NotifyAck(False, 7, 0)
        assert (await second.open(7)) == fr.NotifyAck(False, 7, 0)
        await second.until(lambda frame: isinstance(frame, fr.Ack) and frame.credits == 1)
        await first.send(fr.Message(7, 3))
        await first.acked(7, 3)
        await first.close()
        await eventually(lambda: not worker.instances["i"].registry.held)
        assert await second.open(7) == fr.NotifyAck(True, 7, 3)

    rigged(tmp_path / "d", test)


def test_a_reconnect_resumes_behind_all_that_came_and_repeats_are_dropped(tmp_path: Path) -> None:
    """The original resumed at the last acknowledged id, and processed what lay behind it twice."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        await peer.send(*(fr.Message(7, number) for number in range(1, 11)))
        await eventually(lambda: worker.counters.messages == 10)
        await peer.close()
        again = await rig.peer(worker)
        await again.ok()
        await eventually(lambda: not worker.instances["i"].registry.held)
        assert await again.open(7) == fr.NotifyAck(True, 7, 10)
        await again.send(*(fr.Message(7, number) for number in range(8, 13)))
        await again.acked(7, 12)
        assert ids_of(await rig.frames()) == {7: list(range(1, 13))}
        assert worker.counters.dropped == 3

    rigged(tmp_path / "d", test)


def test_points_of_reference_are_read_from_the_log_by_the_next_worker(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.peer(worker)
        await peer.ok()
        await peer.open(7, "seven")
        await peer.open(8, "eight")
        await peer.send(fr.Message(7, 4), fr.Message(7, 6))
        await peer.acked(7, 6)
        await worker.stop()
        other = await rig.worker("other")
        again = await rig.peer(other)
        await again.ok()
        assert await again.open(7, "seven") == fr.NotifyAck(True, 7, 6)
        assert await again.open(8, "eight") == fr.NotifyAck(True, 8, NOTHING_SEEN)

    rigged(tmp_path / "d", test)


def test_eos_is_recorded_and_acknowledged_with_the_last_id_and_the_stream_may_come_again(
    tmp_path: Path,
) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        await peer.send(fr.Message(7, 4), fr.EosMessage(7))
        await peer.acked(7, 4)
        assert await peer.open(7) == fr.NotifyAck(True, 7, 4)
        await peer.send(fr.Message(7, 5))
        await peer.acked(7, 5)
        assert await rig.frames() == [fr.Message(7, 4), fr.EosMessage(7), fr.Message(7, 5)]

    rigged(tmp_path / "d", test)


def test_an_empty_stream_that_ends_is_told_only_to_peers_that_can_take_it(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        plain, ours = await rig.peer(worker), await rig.peer(worker, tokens=["migrate"])
        await plain.ok()
        await ours.ok()
        await plain.open(7)
        await ours.open(8)
        await plain.send(fr.EosMessage(7))
        await ours.send(fr.EosMessage(8))
        await ours.acked(8, NOTHING_SEEN)
        await eventually(lambda: not worker.instances["i"].registry.held)
        await plain.send(fr.Error("done"))
        while (frame := await plain.next()) is not None:
            assert not isinstance(frame, fr.Ack) or not frame.points

    rigged(tmp_path / "d", test)


def test_instances_have_journals_of_their_own(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        for name in ("a", "b"):
            peer = await rig.peer(worker, name)
            await peer.ok()
            assert (await peer.open(7)).point == NOTHING_SEEN
            await peer.send(fr.Message(7, 1, body=name.encode()))
            await peer.acked(7, 1)
        assert [frame.body for frame in await rig.frames("b") if isinstance(frame, fr.Message)] == [b"b"]

    rigged(tmp_path / "d", test)


def test_a_worker_that_lost_its_claim_sends_everybody_to_start_again(tmp_path: Path) -> None:
    """A rollback: what was not acknowledged is asked for again, and NOTIFY_ACK is not ahead of the log."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        await peer.send(fr.Message(7, 1))
        await peer.acked(7, 1)
        from penstock.connector import records
        from penstock.journal.client import claim

        await claim(rig.client, "connectors/i", "nobody", records.claim("nobody"))
        await peer.send(fr.Message(7, 2))
        restart = await peer.until(lambda frame: isinstance(frame, fr.Restart))
        assert restart == fr.Restart(worker.me.address)
        assert await peer.next() is None
        again = await rig.peer(worker)
        await again.ok()
        assert await again.open(7) == fr.NotifyAck(True, 7, 1)
        assert worker.counters.rollbacks == 1

    rigged(tmp_path / "d", test)


def test_two_workers_never_both_have_a_stream_and_the_wrong_one_sends_to_the_right_one(
    tmp_path: Path,
) -> None:
    async def test(rig: Rig) -> None:
        first, second = await rig.worker("a"), await rig.worker("b")
        peer = await rig.peer(first)
        await peer.ok()
        await peer.open(7)
        host, port = first.me.address.split(":")
        able = await rig.peer(second, tokens=["migrate"])
        assert await able.next() == fr.Migrate(host, int(port))
        await able.send(fr.MigrationAck())
        assert await able.next() is None
        plain = await rig.peer(second)
        await plain.ok()
        assert await plain.next() == fr.Restart(first.me.address)
        assert second.instances == {}

    rigged(tmp_path / "d", test)


def test_an_owner_that_is_dead_is_replaced(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        first, second = await rig.worker("a"), await rig.worker("b")
        peer = await rig.peer(first)
        await peer.ok()
        await peer.open(7)
        await peer.send(fr.Message(7, 1))
        await peer.acked(7, 1)
        assert first._server is not None
        first._server.close()  # as if the machine were gone: nobody answers there
        again = await rig.peer(second)
        await again.ok()
        assert await again.open(7) == fr.NotifyAck(True, 7, 1)
        await peer.send(fr.Message(7, 2))
        assert isinstance(await peer.until(lambda frame: isinstance(frame, fr.Restart)), fr.Restart)
        assert ids_of(await rig.frames()) == {7: [1]}

    rigged(tmp_path / "d", test)


def test_a_worker_that_stops_acknowledges_and_sends_its_sessions_to_a_live_one(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        first, second = await rig.worker("a"), await rig.worker("b")
        await eventually(lambda: not first._tasks and not second._tasks)
        peer = await rig.peer(first)
        await peer.ok()
        await peer.open(7)
        await peer.send(*(fr.Message(7, number) for number in range(1, 21)))
        await eventually(lambda: first.counters.messages == 20)
        stopping = asyncio.create_task(first.stop())
        restart = await peer.until(lambda frame: isinstance(frame, fr.Restart))
        assert restart == fr.Restart(second.me.address)
        await peer.close()
        await stopping
        again = await rig.peer(second)
        await again.ok()
        assert await again.open(7) == fr.NotifyAck(True, 7, 20)

    rigged(tmp_path / "d", test)


def test_a_connection_that_dies_before_its_answer_leaves_the_stream_free(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        for _ in range(5):
            peer = await rig.peer(worker)
            await peer.send(fr.Notify(7, "s", 0))
            await peer.close()
        await eventually(lambda: not worker.peers)
        last = await rig.peer(worker)
        await last.ok()
        assert await last.open(7) == fr.NotifyAck(True, 7, NOTHING_SEEN)

    rigged(tmp_path / "d", test)


def test_what_a_connector_says_on_giving_up_is_counted_and_shown(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.peer(worker)
        await peer.ok()
        await peer.send(fr.Error("the file was replaced"))
        assert await peer.next() is None
        shown = status.snapshot(worker)
        assert shown.counters["given_up"] == 1
        assert "the file was replaced" in shown.recent[-1]

    rigged(tmp_path / "d", test)


def test_status_and_metrics_show_streams_of_which_nothing_was_seen_and_those_that_come_back(
    tmp_path: Path,
) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        first = await rig.streaming(worker, 7)
        shown = status.metrics(status.snapshot(worker))
        assert 'penstock_connector_stream{instance="i",stream="7",name="s",state="active",session="' in shown
        await first.send(fr.Message(7, 4))
        await first.acked(7, 4)
        await first.close()
        await eventually(lambda: not worker.peers)
        assert 'state="inactive",session=""} 1' in status.metrics(status.snapshot(worker))
        again = await rig.peer(worker)
        await again.ok()
        assert await again.open(7) == fr.NotifyAck(True, 7, 4)
        (stream,) = status.snapshot(worker).streams
        assert (stream.last_seen, stream.last_durable, stream.last_acked) == (4, 4, 4)

    rigged(tmp_path / "d", test)


def test_status_and_metrics_show_sessions_and_streams(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        from penstock.connector import web

        worker = await rig.worker()
        await eventually(lambda: not worker._tasks)
        server = await web.serve(worker, "127.0.0.1:0")
        await worker._announce()
        peer = await rig.peer(worker)
        await peer.ok()
        await peer.open(7, 'a "name"')
        await peer.send(fr.Message(7, 4))
        await peer.acked(7, 4)
        (found,) = [each for each in await status.survey(rig.client, "connectors") if each.answers]
        (stream,) = found.streams
        assert (stream.id, stream.name, stream.state) == (7, 'a "name"', "active")
        assert (stream.last_durable, stream.last_acked) == (4, 4)
        assert found.sessions[0].credits == 64
        code, page = await asyncio.to_thread(status.request, worker.http, "GET", "/metrics")
        assert code == 200
        session = next(iter(worker.peers)).number
        named = 'instance="i",stream="7",name="a \\"name\\"",state="active"'
        lines = page.decode().splitlines()
        for wanted in (
            f'penstock_connector_session{{session="{session}",instance="i",peer="{found.sessions[0].peer}",'
            'program="test",state="streaming"} 1',
            f'penstock_connector_session_credits{{session="{session}",instance="i"}} 64',
            f'penstock_connector_stream{{{named},session="{session}"}} 1',
            f"penstock_connector_stream_last_seen{{{named}}} 4",
            f"penstock_connector_stream_last_durable{{{named}}} 4",
            f"penstock_connector_stream_last_acked{{{named}}} 4",
        ):
            assert wanted in lines
        assert (await asyncio.to_thread(status.request, worker.http, "POST", "/migrate", b"{}"))[0] == 403
        assert (await asyncio.to_thread(status.request, worker.http, "GET", "/x"))[0] == 404
        server.close()

    rigged(tmp_path / "d", test)


def test_who_takes_nothing_of_an_answer_or_asks_nothing_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of each such client, as much was kept as it did not take, for as long as it liked."""

    waiting: list[socket.socket] = []

    async def large(worker: Worker, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        return 200, "text/plain", bytes(32 << 20)

    async def test(rig: Rig) -> None:
        from penstock.connector import web

        monkeypatch.setattr(web, "_TIMEOUT", 0.5)
        monkeypatch.setitem(web._HANDLERS, ("GET", "/status"), large)
        worker = await rig.worker()
        server = await web.serve(worker, "127.0.0.1:0")
        host, _, port = worker.http.rpartition(":")
        idle, asking = (socket.create_connection((host, int(port))) for _ in range(2))
        with idle, asking:
            asking.sendall(b"GET /status HTTP/1.1\r\n\r\n")
            await eventually(lambda: ended(idle))
            assert await asyncio.to_thread(taken, asking) < 32 << 20
        monkeypatch.setattr(web, "_TIMEOUT", 60.0)
        before = len(asyncio.all_tasks())
        waits = socket.create_connection((host, int(port)))
        await eventually(lambda: len(asyncio.all_tasks()) > before)
        server.close()
        waiting.append(waits)

    rigged(tmp_path / "d", test)
    waiting[0].close()
    assert "Exception in callback" not in caplog.text


def ended(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def taken(client: socket.socket) -> int:
    """How many bytes come until the other side has gone."""
    count = 0
    client.setblocking(True)
    try:
        while piece := client.recv(1 << 20):
            count += len(piece)
    except ConnectionResetError:
        pass
    return count


def test_snapshots_of_the_points_keep_claims_short_and_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: Rig) -> None:
        monkeypatch.setattr("penstock.connector.instancelog.SNAPSHOT_EVERY", 500)
        worker = await rig.worker()
        peer = await rig.peer(worker)
        await peer.ok()
        for stream in (1, 2, 3):
            await peer.open(stream, f"s{stream}")
        for number in range(1, 40):
            await peer.send(fr.Message(1 + number % 3, number, body=bytes(40)))
            await peer.acked(1 + number % 3, number)
        await worker.stop()
        head = await rig.client.head("connectors/i")
        from penstock.connector.instancelog import points_of

        whole = await points_of(rig.client, "connectors/i", head)
        assert {stream: point.last for stream, point in whole.items()} == {1: 39, 2: 37, 3: 38}

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize("partitions", [1, 2])
def test_names_that_fit_no_record_of_the_journal_are_refused_and_the_rest_can_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr(records, "MAX_RECORD", 10_000)

    async def test(rig: Rig) -> None:
        worker = await rig.worker(partitions=partitions)
        peer = await rig.peer(worker)
        await peer.ok()
        streams = range(0, 10 * partitions, partitions)  # all of them in the first partition
        for stream in streams[:9]:
            await peer.send(fr.Notify(stream, "n" * 1000, 0))  # at once, so that some wait for the log
        await peer.send(fr.Notify(streams[9], "n" * 1000, 0))
        assert (await peer.error()).startswith("too many streams")
        peer = await rig.peer(worker)
        await peer.ok()
        assert (await peer.open(streams[0], "n" * 1000)).success
        await peer.send(fr.Message(streams[0], 1, 0, b"", b"kept"))
        await peer.acked(streams[0], 1)
        await worker.stop()
        peer = await rig.peer(await rig.worker("next", partitions=partitions))
        await peer.ok()
        assert await peer.open(streams[0], "n" * 1000) == fr.NotifyAck(True, streams[0], 1)

    rigged(tmp_path / "d", test)
