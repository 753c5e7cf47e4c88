"""A client with the habits of the original's Python SDK against real workers, a row of the protocol's reference each.

    OK in one piece · OK(0) · ERROR instead of OK · ERROR while streaming · unknown tags · a refused NOTIFY · another
    point of reference · ACK of an unknown stream · ACKs that go back · the final ACK, exact · RESTART · TCP close ·
    a NOTIFY with 2^64-1

The client dies of whatever the reference says that it dies of (`sdk`), so a test that ends well has kept all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest
from tests.connector.rig import COOKIE, Rig, eventually, ids_of, rigged
from tests.connector.sdk import (
    NOTHING,
    SdkClient,
    SdkDiedError,
    SdkError,
    SdkRestartedError,
    SdkSource,
    frame,
)

from penstock.connector import frames as fr
from penstock.connector.worker import Worker


def sources(count: int = 50) -> list[SdkSource]:
    """One that calls records by their ends, one by their beginnings, the first of which is 0, and a third."""
    return [SdkSource("ends", count), SdkSource("starts", count, starts=True), SdkSource("third", count)]


def client(worker: Worker, *streams: SdkSource, **options: float) -> SdkClient:
    return SdkClient(worker.me.address, list(streams), COOKIE, **options)  # type: ignore[arg-type]


def running(made: SdkClient) -> Awaitable[None]:
    return asyncio.create_task(asyncio.to_thread(made.run))


async def whole(rig: Rig, streams: list[SdkSource]) -> None:
    """Everything is there once, and no ACK ever went back."""
    assert ids_of(await rig.frames()) == {source.id: source.ids() for source in streams}
    assert [source.rewinds for source in streams] == [0] * len(streams)


@pytest.mark.parametrize("credits", [4, 10, 67, 500])
def test_from_hello_to_the_last_ack_with_any_number_of_credits(tmp_path: Path, credits: int) -> None:
    """OK in one piece; more credits than streams; no tag above 8; monotone ACKs; the last one is the last id."""

    async def test(rig: Rig) -> None:
        worker, streams = await rig.worker(credits=credits), sources()
        made = client(worker, *streams)
        await running(made)
        await whole(rig, streams)
        assert made.most_credits == credits, "what was not paid is not given back: EOS is free"

    rigged(tmp_path / "d", test)


def test_ok_comes_in_one_piece_also_after_a_wait(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        for number in range(20):
            made = SdkClient(worker.me.address, sources(), COOKIE, f"i{number}")
            await asyncio.to_thread(made.connect)  # each has a journal to be made first
            assert made.sock is not None
            made.sock.close()

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize(
    ("cookie", "instance", "reason"),
    [(b"wrong", "i", "Bad cookie"), (COOKIE, "../x", "no instance can be called")],
)
def test_an_error_instead_of_ok_is_read_by_connect(
    tmp_path: Path, cookie: bytes, instance: str, reason: str
) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        with pytest.raises(SdkError, match=reason):
            await asyncio.to_thread(SdkClient(worker.me.address, sources(), cookie, instance).connect)

    rigged(tmp_path / "d", test)


def test_an_error_while_streaming_is_followed_by_the_end_of_the_connection(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker = await rig.worker()
        made = client(worker, *sources())
        await asyncio.to_thread(made.connect)
        made.out += frame(9, b"")

        def turn_on() -> None:
            while True:
                made.turn()

        with pytest.raises(SdkDiedError, match="tag 9"):
            await asyncio.to_thread(turn_on)
        assert made.sock is not None
        assert await asyncio.to_thread(made.sock.recv, 1) == b""
        await eventually(lambda: not worker.instances["i"].registry.held)

    rigged(tmp_path / "d", test)


def test_a_refused_stream_is_asked_for_again_when_an_ack_comes_and_had_in_the_end(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker, streams = await rig.worker(), [SdkSource("ends", 50)]
        holder = await rig.peer(worker)
        await holder.ok()
        await holder.open(streams[0].id, "ends")
        made = client(worker, *streams)
        ended = running(made)
        await eventually(lambda: made.refusals > 2)
        await holder.send(fr.Message(streams[0].id, 10, body=b"%010d" % 0))
        await holder.acked(streams[0].id, 10)
        await holder.close()
        await ended
        await whole(rig, streams)

    rigged(tmp_path / "d", test)


def test_a_connection_that_closes_is_made_again_and_the_point_of_reference_is_gone_to(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker, streams = await rig.worker(credits=10), sources(100)
        made = client(worker, *streams)
        ended = running(made)
        for turn in range(1, 6):
            await eventually(lambda turn=turn: worker.counters.messages > 30 * turn)  # type: ignore[misc]
            for peer in list(worker.peers):
                assert peer.wire.transport is not None
                peer.wire.transport.abort()
        await ended
        await whole(rig, streams)
        assert made.connects > 1

    rigged(tmp_path / "d", test)


def test_a_notify_that_says_nothing_seen_is_accepted(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker, streams = await rig.worker(), sources()
        first = client(worker, *streams)
        await asyncio.to_thread(first.connect)

        def opened() -> None:
            first.credits -= 1000  # nothing but the NOTIFYs goes out
            assert first.sock is not None
            first.sock.sendall(first.out)
            while len(first.active) < len(streams):
                first.taken(first.read(first.read(4)))
            first.sock.close()

        await asyncio.to_thread(opened)
        assert {source.point for source in streams} == {NOTHING}
        await running(client(worker, *streams))
        await whole(rig, streams)

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize("how", ["migrate", "stop"])
def test_a_restart_ends_the_process_and_the_next_goes_on_at_the_address_that_was_named(
    tmp_path: Path, how: str
) -> None:
    async def test(rig: Rig) -> None:
        old, new = await rig.worker("old", credits=10), await rig.worker("new")
        await eventually(lambda: not old._tasks and not new._tasks)
        streams = sources(100)
        made = client(old, *streams, pause=0.001)
        ended = running(made)
        await eventually(lambda: old.counters.messages > 50)
        await (old.migrate("i", new.me.address) if how == "migrate" else old.stop())
        with pytest.raises(SdkRestartedError) as told:
            await ended
        address = str(told.value)
        assert address == new.me.address
        assert address.count(":") == 1
        again = sources(100)
        await asyncio.to_thread(SdkClient(address, again, COOKIE).run)
        await whole(rig, again)

    rigged(tmp_path / "d", test)
