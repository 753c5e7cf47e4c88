"""What a worker owes to the peers that there are, a row of the protocol's reference each, where no other test has it.

The Python SDK of the original, for one, reads OK with a single `recv`, asks again for a refused stream only when an ACK
comes, rewinds on an ACK that goes back, and fails on one that is beyond the end of a stream.
"""

from __future__ import annotations

import asyncio
import random
import socket
from itertools import pairwise
from pathlib import Path

import pytest
from tests.connector.rig import COOKIE, Raw, Rig, eventually, ids_of, rigged

from penstock.base.errors import UsageError
from penstock.connector import frames as fr
from penstock.connector.frames import NOTHING_SEEN
from penstock.connector.records import MAX_RECORD
from penstock.connector.settings import WorkerSettings
from penstock.connector.worker import Worker

HELLO = fr.Hello("0.0.1", COOKIE, "test", "i")


def test_every_frame_is_one_write_and_ok_goes_out_alone_though_more_was_asked(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.peer(worker, hello=False)
        await eventually(lambda: bool(worker.peers))
        (served,) = worker.peers
        transport = served.wire.transport
        assert transport is not None
        written: list[bytes] = []
        write = transport.write

        def noted(data: bytes) -> None:
            written.append(data)
            write(data)

        transport.write = noted  # type: ignore[method-assign, assignment]
        await peer.send(HELLO, fr.Notify(7, "s", 0))
        await peer.until(lambda frame: isinstance(frame, fr.NotifyAck))
        assert written[0] == fr.encode(fr.Ok(64))
        assert fr.encode(fr.NotifyAck(True, 7, NOTHING_SEEN)) in written[1:]

    rigged(tmp_path / "d", test)


def test_a_worker_that_could_grant_too_little_does_not_start() -> None:
    with pytest.raises(UsageError, match="too few"):
        WorkerSettings(credits=1)


def test_a_worker_that_could_grant_more_than_ok_can_say_does_not_start() -> None:
    with pytest.raises(UsageError, match="too many"):
        WorkerSettings(credits=2**32)


def test_a_hello_may_be_longer_than_the_longest_frame(tmp_path: Path) -> None:
    """The names in it are not for the worker's limit to cut: no connector could know it yet."""

    async def test(rig: Rig) -> None:
        worker = await rig.worker(max_frame=64)
        peer = await rig.peer(worker, "i" * 64)
        await peer.ok()
        await peer.open(7)
        await peer.send(fr.Message(7, 1, body=b"x" * 38))
        assert "a frame of 65 bytes, the limit is 64" in await peer.error()

    rigged(tmp_path / "d", test)


def test_where_instances_are_named_every_other_one_is_unknown_and_makes_no_journal(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker(instances=frozenset({"orders", "items"}))
        for known in ("orders", "items"):
            assert await (await rig.peer(worker, known)).ok() == 64
        stranger = await rig.peer(worker, "order")
        assert await stranger.error() == "unknown instance 'order'"
        listed = [found.spec.name for found in await rig.client.list()]
        assert "connectors/orders" in listed
        assert "connectors/order" not in listed

    rigged(tmp_path / "d", test)


def test_a_worker_for_an_instance_that_cannot_be_does_not_start() -> None:
    with pytest.raises(UsageError, match=r"no instance can be called '\.\./x'"):
        WorkerSettings(instances=frozenset({"../x"}))


def test_a_worker_that_nobody_could_be_sent_to_does_not_start() -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT, got 'name'"):
        asyncio.run(Worker(WorkerSettings()).start("127.0.0.1:0", "name"))


def test_a_worker_that_could_take_what_no_journal_gives_back_does_not_start() -> None:
    with pytest.raises(UsageError, match="too long for a journal"):
        WorkerSettings(max_frame=MAX_RECORD + 1)


def test_as_many_streams_as_there_are_credits_but_one_may_be_opened_at_once(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        peer = await rig.peer(await rig.worker(credits=5))
        assert await peer.ok() == 5
        await peer.send(*(fr.Notify(stream, "s", 0) for stream in range(4)), fr.Message(9, 1))
        assert "Bad/unregistered stream_id 9" in await peer.error(), "the fifth credit was there"

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize("hint", [0, 400, NOTHING_SEEN])
def test_the_point_of_reference_of_a_notify_is_never_trusted(tmp_path: Path, hint: int) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        for known in (NOTHING_SEEN, 3):
            peer = await rig.peer(worker)
            await peer.ok()
            await peer.send(fr.Notify(7, "s", hint))
            assert await answered(peer) == fr.NotifyAck(True, 7, known)
            await peer.send(fr.Notify(7, "s", hint))
            assert await answered(peer) == fr.NotifyAck(False, 7, hint), "a refusal echoes it"
            await peer.send(fr.Message(7, 3))
            await eventually(lambda: worker.counters.messages == 1)
            await peer.close()
            await eventually(lambda: not worker.peers)

    rigged(tmp_path / "d", test)


async def answered(peer: Raw) -> fr.Frame:
    return await peer.until(lambda frame: isinstance(frame, fr.NotifyAck))


def test_acks_never_go_back_nor_beyond_what_was_sent_and_end_with_the_last_id(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rng = random.Random(5)
        peer = await rig.peer(await rig.worker(credits=10_000))
        await peer.ok()
        highest = {7: 0, 8: 0}
        for stream in highest:
            await peer.open(stream)
        for _ in range(60):
            stream = rng.choice([7, 8])
            begin = max(1, highest[stream] - rng.randrange(5))  # some of it again
            highest[stream] = end = max(highest[stream], begin + rng.randrange(20))
            await peer.send(*(fr.Message(stream, number) for number in range(begin, end + 1)))
        await peer.send(*map(fr.EosMessage, highest))
        acked: dict[int, list[int]] = {stream: [0] for stream in highest}
        while any(points[-1] != highest[stream] for stream, points in acked.items()):
            frame = await peer.next()
            assert isinstance(frame, fr.Ack), frame
            for stream, point in frame.points:
                acked[stream].append(point)
        for stream, points in acked.items():
            assert all(before <= after for before, after in pairwise(points))
            assert max(points) == highest[stream]
        stored = ids_of(await rig.frames())
        assert stored == {stream: list(range(1, last + 1)) for stream, last in highest.items()}

    rigged(tmp_path / "d", test)


def test_repeats_and_refusals_cost_a_credit_that_comes_back(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        peer = await rig.peer(await rig.worker(credits=8))
        held = await peer.ok() - 2
        await peer.send(fr.Notify(7, "s", 0), fr.Notify(7, "s", 0))
        answers: set[bool] = set()
        while len(answers) < 2 or held < 8:
            frame = await peer.next()
            if isinstance(frame, fr.NotifyAck):
                answers.add(frame.success)
            else:
                assert isinstance(frame, fr.Ack)
                held += frame.credits
        await peer.send(fr.Message(7, 5), fr.Message(7, 5), fr.Message(7, 4))
        held -= 3
        while held < 8:
            frame = await peer.next()
            assert isinstance(frame, fr.Ack)
            held += frame.credits
        assert held == 8

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([fr.EosMessage(7), fr.EosMessage(7)], "Unable to decode message: EOS_MESSAGE of stream_id 7"),
        ([fr.EosMessage(7), fr.Message(7, 1)], "Bad/unregistered stream_id 7"),
        ([fr.Migrate("h", 1)], "Invalid message: migrate"),
    ],
)
def test_frames_out_of_their_turn_are_named(tmp_path: Path, frames: list[fr.Frame], reason: str) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        await peer.send(*frames)
        assert reason in await peer.error()

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize(
    ("early", "reason"),
    [
        (fr.Notify(7, "s", 0), "Bad protocol FSM state"),
        (fr.Message(7, 1), "Bad protocol FSM state"),
        (fr.MigrationAck(), "Bad protocol FSM state"),
        (fr.EosMessage(7), "Unable to decode message"),
        (fr.Ok(5), "Invalid message: ok"),
        (fr.NotifyAck(True, 7, 1), "Invalid message: notify_ack"),
        (fr.Ack(1), "Invalid message: ack"),
        (fr.Restart(), "Invalid message: restart"),
        (fr.Migrate("h", 1), "Invalid message: migrate"),
    ],
)
def test_frames_before_hello_are_named(tmp_path: Path, early: fr.Frame, reason: str) -> None:
    async def test(rig: Rig) -> None:
        peer = await rig.peer(await rig.worker(), hello=False)
        await peer.send(early)
        assert (await peer.error()).startswith(reason)

    rigged(tmp_path / "d", test)


def test_a_connector_that_gives_up_before_it_says_hello_is_no_fault_and_gets_no_answer(
    tmp_path: Path,
) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.peer(worker, hello=False)
        await peer.send(fr.Error("my file is gone"))
        assert await peer.next() is None
        assert worker.counters.faults == 0
        assert (worker.counters.given_up, list(worker.counters.recent)) == (0, [])

    rigged(tmp_path / "d", test)


def test_workers_that_crash_before_anything_is_durable_say_that_nothing_was_seen(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        for number in range(4):
            worker = await rig.worker(f"w{number}")
            peer = await rig.peer(worker)
            await peer.ok()
            assert await peer.open(7, f"name {number}") == fr.NotifyAck(True, 7, NOTHING_SEEN)
            assert worker._server is not None
            worker._server.close()  # as if it were gone: nobody answers there

    rigged(tmp_path / "d", test)


def test_a_connection_that_is_gone_without_a_word_is_noticed_by_the_kernel(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.peer(worker)
        await peer.ok()
        (served,) = worker.peers
        assert served.wire.transport is not None
        options = served.wire.transport.get_extra_info("socket")
        assert options.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, every, count = (
            options.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + every * count <= 60
        # An ACK that is on its way to a peer that is gone keeps the kernel from asking.
        assert options.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"\xff\xfe latin", r"\xff\xfe latin"),
        (b"", ""),
        (b"a\x00\n/..", "a\0\n/.."),
        (b"\xff" * 65535, r"\xff" * 16383),
    ],
)
def test_a_stream_may_have_any_bytes_as_its_name_since_its_id_is_what_tells_it(
    tmp_path: Path, name: bytes, shown: str
) -> None:
    async def test(rig: Rig) -> None:
        for number, known in enumerate((NOTHING_SEEN, 3)):
            worker = await rig.worker(f"w{number}")
            peer = await rig.peer(worker)
            await peer.ok()
            await peer.raw(framed(3, fr.U64.pack(7) + fr.short(name, "name") + fr.U64.pack(0)))
            assert await answered(peer) == fr.NotifyAck(True, 7, known)
            assert worker.instances["i"].registry.points[7].name.startswith(shown)
            await peer.send(fr.Message(7, 3))
            await eventually(lambda worker=worker: worker.counters.messages + worker.counters.dropped == 1)  # type: ignore[misc]
            await peer.close()
            await worker.stop()
        assert ids_of(await rig.frames()) == {7: [3]}

    rigged(tmp_path / "d", test)


def framed(tag: int, body: bytes) -> bytes:
    return fr.TAG.pack(len(body) + 1, tag) + body


def test_the_name_of_a_program_and_the_reason_of_an_error_may_be_any_bytes(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.peer(worker, hello=False)
        fields = (b"0.0.1", COOKIE, b"caf\xe9", b"i")
        await peer.raw(framed(0, b"".join(fr.short(field, "field") for field in fields)))
        assert await peer.ok()
        await peer.raw(framed(2, fr.short(b"d\xe9sol\xe9", "reason")))
        assert await peer.next() is None, "an ERROR is not answered"

    rigged(tmp_path / "d", test)


def test_a_stream_that_ended_empty_may_be_opened_again_by_a_peer_that_is_not_told_of_its_end(
    tmp_path: Path,
) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        peer = await rig.streaming(worker, 7)
        await peer.send(fr.EosMessage(7))
        await eventually(lambda: not worker.instances["i"].registry.held)
        assert await peer.open(7) == fr.NotifyAck(True, 7, NOTHING_SEEN)
        await peer.send(fr.Message(7, 1), fr.EosMessage(7))
        await peer.acked(7, 1)
        assert ids_of(await rig.frames()) == {7: [1]}

    rigged(tmp_path / "d", test)
