"""The kit and workers that say something else than ours, or nothing more: what comes with OK, addresses, silence."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.connector.rig import COOKIE, WAIT, Numbers, Raw, Rig, eventually, ids_of, rigged

from penstock.base.errors import UsageError
from penstock.connector import frames as fr
from penstock.connector.link import WorkerRefusedError, connect
from penstock.connector.source import (
    Columns,
    Connector,
    Record,
    Records,
    SourceFailedError,
    Stream,
    stream_id,
)
from penstock.connector.worker import Worker

HELLO = fr.Hello(fr.SOURCE_VERSION, COOKIE, "test", "i", frozenset({fr.MIGRATE}))


@asynccontextmanager
async def answering(*answers: fr.Frame) -> AsyncIterator[str]:
    """The address of a worker that answers HELLO with these, all in one piece, and never closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Raw(reader, writer)
        assert isinstance(await peer.next(), fr.Hello)
        await peer.send(*answers)
        while await peer.next() is not None:
            pass
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def ending(*first: fr.Frame) -> AsyncIterator[str]:
    """The address of a worker that takes all streams to be as long as they say; who comes first hears this only."""
    answers = list(first)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, last = Raw(reader, writer), fr.NOTHING_SEEN
        while (frame := await peer.next()) is not None:
            match frame:
                case fr.Hello():
                    await peer.send(*(answers or [fr.Ok(1000)]))
                    answers.clear()
                case fr.Notify(stream=stream):
                    await peer.send(fr.NotifyAck(True, stream, fr.NOTHING_SEEN))
                case fr.Message(stream=stream, id=number):
                    last = number
                    await peer.send(fr.Ack(1, ((stream, last),)))
                case fr.EosMessage(stream=stream):
                    await peer.send(fr.Ack(0, ((stream, last),)))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def ended(addresses: Sequence[str], **settings: object) -> Connector:
    running = Connector(addresses, "i", [Numbers("s", 10)], cookie=COOKIE, **settings)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        await running.serve()
    return running


@pytest.mark.parametrize("behind", [fr.Restart("127.0.0.1:1"), fr.Migrate("127.0.0.1", 1), fr.Ack(3)])
def test_what_a_worker_says_in_one_piece_with_ok_is_heard(behind: fr.Frame) -> None:
    async def test() -> None:
        async with answering(fr.Ok(10), behind) as address, asyncio.timeout(20):
            link = await connect(address, HELLO)
            assert await anext(link.frames()) == behind
            await link.close()

    asyncio.run(test())


def test_a_connector_goes_where_a_restart_sends_it_that_came_with_ok() -> None:
    async def test() -> None:
        async with ending() as new, answering(fr.Ok(10), fr.Restart(new)) as old:
            assert (await ended([old])).acked == {"s": 10}

    asyncio.run(test())


def test_patience_counts_from_the_end_of_a_session_and_not_from_its_begin() -> None:
    async def test() -> None:
        cut = asyncio.Event()

        async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = Raw(reader, writer)
            await peer.next()
            await peer.send(fr.Ok(10))
            await cut.wait()
            writer.close()

        async with await asyncio.start_server(once, "127.0.0.1", 0) as server, ending() as other:
            first = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            running = asyncio.create_task(ended([first, other], patience=0.5))
            await asyncio.sleep(1)
            cut.set()
            assert (await running).acked == {"s": 10}

    asyncio.run(test())


def test_patience_that_has_come_to_its_end_says_so() -> None:
    with pytest.raises(SourceFailedError, match=r"no worker answered for 0\.1 s"):
        asyncio.run(ended(["127.0.0.1:1"], patience=0.1))


@pytest.mark.parametrize("address", ["worker-2", ":7110", "127.0.0.1:x", f"{'x' * 64}.example:7110"])
def test_an_address_that_is_none_does_not_end_a_connector_that_is_sent_there(address: str) -> None:
    async def test() -> None:
        async with ending(fr.Ok(10), fr.Restart(address)) as worker:
            assert (await ended([worker])).acked == {"s": 10}

    asyncio.run(test())


def test_an_address_that_is_none_is_refused_where_it_was_given() -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        Connector(["127.0.0.1:7110", "worker-2"], "i", [Numbers("s", 1)])


def test_a_worker_that_is_gone_without_a_word_is_noticed_by_the_kernel() -> None:
    """A connector that waits for an ACK or for credits sends nothing that could tell it."""

    async def test() -> None:
        async with answering(fr.Ok(10)) as address:
            link = await connect(address, HELLO)
            option = link._writer.get_extra_info("socket").getsockopt
            assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
            assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
            await link.close()

    asyncio.run(test())


def test_a_worker_that_does_not_read_is_borne_longer_than_one_that_says_nothing() -> None:
    """It may wait for its log. The kernel has one limit for both, and takes the one that was set last."""

    async def test() -> None:
        async with answering(fr.Ok(10)) as address:
            link = await connect(address, HELLO)
            sock = link._writer.get_extra_info("socket")
            link._writer.write(bytes(32 << 20))  # more than both kernels keep
            link.watch()
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 300_000
            await link.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    "last", [[Record(1, b"a"), Record(fr.NOTHING_SEEN, b"b")], Columns([1, fr.NOTHING_SEEN], [b"a", b"b"])]
)
def test_a_source_whose_id_stands_for_nothing_is_told_and_does_not_try_for_ever(last: Records) -> None:
    class Whole(Stream):
        name = "whole"

        def seek(self, point: int | None) -> None:
            return

        def read(self) -> Records:
            return last

    async def test() -> None:
        async with ending() as address, asyncio.timeout(20):
            with pytest.raises(SourceFailedError, match="which stands for none at all"):
                await Connector([address], "i", [Whole()]).serve()

    asyncio.run(test())


@asynccontextmanager
async def talking(answer: bytes) -> AsyncIterator[str]:
    """The address of something else."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def senseless(nonsense: bytes, heard: list[str]) -> AsyncIterator[str]:
    """The address of a worker that says this to who comes first, once it has a stream, and then keeps to the rules."""
    left = [nonsense]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, last, first = Raw(reader, writer), fr.NOTHING_SEEN, bool(left)
        while (frame := await peer.next()) is not None:
            match frame:
                case fr.Hello():
                    await peer.send(fr.Ok(1000))
                case fr.Notify(stream=stream):
                    await peer.send(fr.NotifyAck(True, stream, fr.NOTHING_SEEN))
                    if first:
                        await peer.raw(left.pop())
                case fr.Message(stream=stream, id=number) if not first:
                    last = number
                    await peer.send(fr.Ack(1, ((stream, last),)))
                case fr.EosMessage(stream=stream):
                    await peer.send(fr.Ack(0, ((stream, last),)))
                case fr.Error(reason=reason):
                    heard.append(reason)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("nonsense", "told"),
    [
        (b"\0\0\0\x01\x63", "no frame has the tag 99"),
        (bytes(4), "a frame of length 0"),
        (b"\xff\xff\xff\xff", "a frame of 4,294,967,295 bytes"),
        (fr.encode(fr.NotifyAck(True, 7, 0))[:3] + b"\x02\x04\x01", "NOTIFY_ACK is cut short"),
        (fr.encode(fr.NotifyAck(True, stream_id("s"), 3)), "NOTIFY_ACK success of stream_id"),
        (fr.encode(fr.Ok(5)), "Bad protocol FSM state: OK"),
        (fr.encode(fr.Notify(7, "s", 0)), "Invalid message: notify"),
    ],
)
def test_a_worker_that_breaks_the_protocol_is_told_so_and_asked_again_after_a_while(
    nonsense: bytes, told: str
) -> None:
    async def test() -> None:
        heard: list[str] = []
        async with senseless(nonsense, heard) as address:
            assert (await ended([address])).acked == {"s": 10}
        assert [told in reason for reason in heard] == [True], heard

    asyncio.run(test())


def test_a_refusal_of_what_was_not_asked_for_changes_nothing() -> None:
    async def test() -> None:
        strange = fr.encode(fr.NotifyAck(False, 7, 0)) + fr.encode(fr.NotifyAck(False, stream_id("s"), 0))
        heard: list[str] = []
        async with senseless(strange + fr.encode(fr.Error("come again")), heard) as address:
            assert (await ended([address])).acked == {"s": 10}
        assert heard == []

    asyncio.run(test())


def test_a_worker_that_breaks_the_protocol_again_and_again_is_not_asked_without_a_pause() -> None:
    sessions = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sessions
        sessions += 1
        peer = Raw(reader, writer)
        await peer.next()
        await peer.send(fr.Ok(1000), fr.NotifyAck(True, 7, 0))
        while await peer.next() is not None:
            pass
        writer.close()

    async def test() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await Connector([address], "i", [Numbers("s", 1)], cookie=COOKIE).serve()

    asyncio.run(test())
    assert 1 < sessions <= 8


def taken(
    worker: Worker, *others: str, streams: int = 1, cookie: bytes = COOKIE
) -> Coroutine[None, None, None]:
    """Be taken by one of these, or not."""
    numbers = [Numbers(f"s{n}", 10) for n in range(streams)]
    return Connector([worker.me.address, *others], "i", numbers, cookie=cookie, patience=20).serve()


def test_a_refusal_that_no_waiting_mends_ends_the_connector_and_says_what_does(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        other = await rig.worker("other", instances=frozenset({"other"}))
        with pytest.raises(WorkerRefusedError, match="refused: unknown instance 'i'") as unknown:
            await taken(other)
        assert "--instance" in (unknown.value.hint or "")
        few = await rig.worker("few", max_streams=2)
        with pytest.raises(
            WorkerRefusedError, match="ended the session: too many streams: 2 are open"
        ) as many:
            await taken(few, streams=3)
        assert many.value.hint == "spread them over several connectors"

    rigged(tmp_path / "d", test)


def test_a_refusal_ends_the_connector_only_once_every_address_refuses(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        stranger = await rig.worker("stranger", cookie=b"another")
        other = await rig.worker("other", instances=frozenset({"other"}))
        with pytest.raises(WorkerRefusedError):
            await taken(stranger, other.me.address)
        takes = await rig.worker("takes")
        await taken(stranger, other.me.address, takes.me.address)
        assert ids_of(await rig.frames()) == {stream_id("s0"): list(range(1, 11))}

    rigged(tmp_path / "d", test)


@pytest.mark.parametrize("knows", ["the one that names it", "both"])
def test_a_refusal_for_good_ends_a_connector_that_another_worker_sends_there(knows: str) -> None:
    """It was asked for ever, in turn with the one that named it."""

    async def test() -> None:
        async with turned(fr.Error("Bad cookie")) as refuses:
            host, _, port = refuses.rpartition(":")
            async with turned(fr.Migrate(host, int(port))) as names:
                with pytest.raises(WorkerRefusedError, match="Bad cookie"):
                    await ended([names] if knows != "both" else [refuses, names])

    asyncio.run(test())


@asynccontextmanager
async def turned(answer: fr.Frame) -> AsyncIterator[str]:
    """The address of a worker that says this to HELLO, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Raw(reader, writer)
        await peer.next()
        await peer.send(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_a_worker_that_is_away_may_take_what_another_refuses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both are told, each once."""

    async def test(rig: Rig) -> None:
        stranger = await rig.worker("stranger", cookie=b"another")
        running = Connector(["127.0.0.1:1", stranger.me.address], "i", [Numbers("s", 1)], patience=1)
        with caplog.at_level(logging.WARNING), pytest.raises(SourceFailedError, match="no worker answered"):
            await running.serve()
        told = [one.getMessage() for one in caplog.records if one.name == "penstock.connector.source"]
        assert ["127.0.0.1:1" in told[0], "Bad cookie" in told[1], len(told)] == [True, True, 2]

    rigged(tmp_path / "d", test)


def test_a_worker_that_refuses_who_is_moved_there_does_not_end_the_connector() -> None:
    async def test() -> None:
        async with answering(fr.Error("Bad cookie")) as stranger:
            host, _, port = stranger.rpartition(":")
            async with ending(fr.Ok(1000), fr.Migrate(host, int(port))) as worker:
                assert (await ended([worker])).acked == {"s": 10}

    asyncio.run(test())


STRANGE = [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x01\xff", fr.encode(fr.Notify(7, "s", 0)), b"\0\0"]


@pytest.mark.parametrize("answer", STRANGE)
def test_what_is_no_worker_does_not_end_a_connector(answer: bytes) -> None:
    async def test() -> None:
        async with talking(answer) as strange, ending() as worker:
            assert (await ended([strange, worker])).acked == {"s": 10}

    asyncio.run(test())


def test_a_connector_that_is_told_to_move_to_what_is_no_worker_comes_back(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        worker, stream = await rig.worker(), Numbers("s", 100)
        stream.gate = 50
        running = Connector([worker.me.address], "i", [stream], cookie=COOKIE, migration_tries=2)
        serving = asyncio.create_task(running.serve())
        await eventually(lambda: running.acked.get("s") == 50)
        async with talking(STRANGE[0]) as strange:
            await worker.migrate("i", strange)
            await eventually(lambda: worker.counters.given_up == 1)
            stream.gate = 100
            async with asyncio.timeout(WAIT):
                await serving
        assert ids_of(await rig.frames()) == {stream_id("s"): list(range(1, 101))}

    rigged(tmp_path / "d", test)
