"""The kit and workers that say something else than ours, or nothing more: what comes with OK, addresses, silence."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.connector.rig import COOKIE, WAIT, Numbers, Raw, Rig, eventually, ids_of, rigged

from penstock.base.errors import UsageError
from penstock.connector import frames as fr
from penstock.connector.link import connect
from penstock.connector.source import (
    Columns,
    Connector,
    Record,
    Records,
    SourceFailedError,
    Stream,
    stream_id,
)

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
        before = running.link
        async with talking(STRANGE[0]) as strange:
            await worker.migrate("i", strange)
            await eventually(lambda: running.link is not before or serving.done())
            stream.gate = 100
            async with asyncio.timeout(WAIT):
                await serving
        assert ids_of(await rig.frames()) == {stream_id("s"): list(range(1, 101))}

    rigged(tmp_path / "d", test)
