"""Appends of many tasks to one journal go together, and each stands for itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from penstock.base.errors import PenstockError
from penstock.journal.client import (
    AsyncClient,
    BrokerGoneError,
    JournalError,
    RegisterMismatchError,
    TimedOutError,
    UnauthenticatedError,
)
from penstock.journal.client import shared as shared_module
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.labels import label_set, parse_selector
from penstock.log.commitlog import journal_spec

from .brokers import JOURNAL
from .client_servers import MemoryBroker


async def opened(broker: EmbeddedBroker) -> AsyncClient:
    client = AsyncClient(broker.address)
    await client.create(journal_spec(JOURNAL, 1 << 20, {}))
    return client


def test_appends_of_many_tasks_share_a_stream_and_land_apart(broker: EmbeddedBroker) -> None:
    async def test() -> None:
        async with await opened(broker) as client:
            contents = [b"%05d;" % number * (1 + number % 50) for number in range(500)]
            landed = await asyncio.gather(*(client.append(JOURNAL, content) for content in contents))
            assert len(client._sharing.streams) == 1, "they did not share"
            whole = await client.read_bytes(JOURNAL, 0)
            assert len(whole) == sum(map(len, contents))
            for content, place in zip(contents, landed, strict=True):
                assert whole[place.begin : place.end] == content

    asyncio.run(test())


def test_one_that_is_refused_takes_nobody_else_with_it(broker: EmbeddedBroker) -> None:
    async def test() -> None:
        async with await opened(broker) as client:
            await client.append(JOURNAL, b"x", union=label_set({"epoch": "1"}))
            wrong = parse_selector("epoch=2")
            outcomes = await asyncio.gather(
                *(
                    client.append(JOURNAL, b"%d" % number, check=wrong if number % 3 else None)
                    for number in range(30)
                ),
                return_exceptions=True,
            )
            refused = [isinstance(outcome, RegisterMismatchError) for outcome in outcomes]
            assert refused == [bool(number % 3) for number in range(30)]
            missing = await asyncio.gather(
                *(client.append("no/such/journal", b"x") for _ in range(3)), return_exceptions=True
            )
            assert all(isinstance(outcome, JournalError) for outcome in missing)

    asyncio.run(test())


def test_one_whose_request_is_nonsense_is_told_so_and_the_others_land(broker: EmbeddedBroker) -> None:
    async def test() -> None:
        async with await opened(broker) as client:
            outcomes = await asyncio.gather(
                client.append(JOURNAL, b"a"),
                client.append(JOURNAL, b"", union=label_set({"epoch": "1"})),
                client.append(JOURNAL, b"b"),
                return_exceptions=True,
            )
            assert isinstance(outcomes[1], PenstockError)
            assert "register modification requires non-empty Append" in str(outcomes[1])
            assert await client.read_bytes(JOURNAL, 0) in (b"ab", b"ba")

    asyncio.run(test())


def test_a_broker_that_goes_away_leaves_those_under_way_in_doubt_and_nobody_waiting(tmp_path: Path) -> None:
    async def test() -> None:
        broker = EmbeddedBroker(tmp_path / "data")
        client = await opened(broker)
        appends = [asyncio.create_task(client.append(JOURNAL, b"x" * 100, timeout=3)) for _ in range(200)]
        await asyncio.wait(appends, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(broker.stop)
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        landed = sum(not isinstance(outcome, BaseException) for outcome in outcomes)
        assert all(
            isinstance(outcome, PenstockError) for outcome in outcomes if isinstance(outcome, BaseException)
        )
        await client.close()
        with EmbeddedBroker(tmp_path / "data") as again:
            async with AsyncClient(again.address) as reader:
                head = await reader.head(JOURNAL)
        assert landed * 100 <= head <= 20_000
        assert head % 100 == 0

    asyncio.run(test())


def test_an_idle_stream_ends_and_the_next_appends_open_another(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_module, "IDLE", 0.05)

    async def test() -> None:
        async with await opened(broker) as client:
            for _ in range(2):
                await asyncio.gather(*(client.append(JOURNAL, b"x") for _ in range(10)))
                [shared] = client._sharing.streams.values()
                async with asyncio.timeout(5):
                    while not shared._running.done():  # noqa: ASYNC110 - it ends by itself
                        await asyncio.sleep(0.01)
            assert await client.head(JOURNAL) == 20

    asyncio.run(test())


def test_a_closed_client_ends_its_streams(broker: EmbeddedBroker) -> None:
    async def test() -> None:
        client = await opened(broker)
        await asyncio.gather(*(client.append(JOURNAL, b"x") for _ in range(10)))
        tasks = [asyncio.create_task(client.append(JOURNAL, b"x")) for _ in range(10)]
        await asyncio.sleep(0)
        await client.close()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, BrokerGoneError | asyncio.CancelledError)
        # gRPC's own tasks take a turn or two to notice; ours have ended.
        async with asyncio.timeout(5):
            while asyncio.all_tasks() != {asyncio.current_task()}:  # noqa: ASYNC110 - they end by themselves
                await asyncio.sleep(0.01)

    asyncio.run(test())


def test_a_stream_under_constant_load_is_replaced_before_its_token_is_old(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_module, "LIFE", 0.1)
    opened_streams = []
    real = shared_module.SharedAppends.__init__

    def counted(self: shared_module.SharedAppends, *arguments: object) -> None:
        opened_streams.append(self)
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shared_module.SharedAppends, "__init__", counted)

    async def test() -> None:
        async with await opened(broker) as client:
            until = asyncio.get_running_loop().time() + 0.6

            async def busy() -> int:
                done = 0
                while asyncio.get_running_loop().time() < until:
                    await client.append(JOURNAL, b"x", retry=False)
                    done += 1
                return done

            landed = sum(await asyncio.gather(*(busy() for _ in range(8))))
            assert await client.head(JOURNAL) == landed
            assert len(opened_streams) > 2

    asyncio.run(test())


def test_appends_that_follow_each_other_go_over_one_stream_and_the_first_is_a_call() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            for number in range(5):
                assert (await client.append(JOURNAL, b"x")).begin == number
            assert broker.calls == ["Local.Append", "Appends"]
            await client.append("another/journal", b"x")
            await client.append(JOURNAL, bytes(shared_module.SMALL + 1))
            assert broker.calls[2:] == ["Local.Append", "Local.Append"], "out of the blue, and too large"

    asyncio.run(test())


def test_an_append_long_after_the_last_one_is_a_call_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_module, "IDLE", 0.05)

    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            for _ in range(2):
                await client.append(JOURNAL, b"x")
                await asyncio.sleep(0.1)
            assert broker.calls == ["Local.Append", "Local.Append"]

    asyncio.run(test())


def test_a_broker_that_takes_no_streams_of_batches_gets_calls_and_is_asked_once() -> None:
    async def test() -> None:
        async with MemoryBroker(ours=False) as broker, AsyncClient(broker.address) as client:
            for _ in range(3):
                await client.append(JOURNAL, b"one")
            await asyncio.gather(*(client.append(JOURNAL, b"two") for _ in range(5)))
            assert broker.calls == ["Append"] * 8
            assert len(broker.content) == 24

    asyncio.run(test())


def test_a_broker_that_was_started_again_between_two_appends_leaves_no_doubt(tmp_path: Path) -> None:
    """The stream of the first ones is gone with the old broker; nothing must be written to it."""

    async def test() -> None:
        broker = EmbeddedBroker(tmp_path / "data")
        async with await opened(broker) as client:
            for _ in range(3):
                await client.append(JOURNAL, b"before")
            await asyncio.to_thread(broker.stop)
            with pytest.raises(BrokerGoneError) as gone:
                await client.append(JOURNAL, b"lost", retry=False)
            assert gone.value.harmless
            broker = await asyncio.to_thread(EmbeddedBroker, tmp_path / "data")
            try:
                assert (await client.append(JOURNAL, b"after")).begin == 18
                assert await client.read_bytes(JOURNAL, 0) == b"before" * 3 + b"after"
            finally:
                await asyncio.to_thread(broker.stop)

    asyncio.run(test())


def test_a_stream_that_is_refused_tells_why_and_is_not_tried_until_the_time_is_up() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            await client.append(JOURNAL, b"x")
            broker.refuses = grpc.StatusCode.UNAUTHENTICATED
            outcomes = await asyncio.gather(
                *(client.append(JOURNAL, b"y") for _ in range(3)), return_exceptions=True
            )
            assert [type(outcome) for outcome in outcomes] == [UnauthenticatedError] * 3
            assert len(set(map(id, outcomes))) == 3, "each waiter has an error of its own"
            broker.refuses = None
            assert (await client.append(JOURNAL, b"z")).begin == 1

    asyncio.run(test())


def test_a_broker_that_is_being_stopped_is_waited_for() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            await client.append(JOURNAL, b"x")
            broker.refuses = grpc.StatusCode.CANCELLED
            appending = asyncio.ensure_future(client.append(JOURNAL, b"y"))
            async with asyncio.timeout(60):
                while not broker.refused and not appending.done():  # noqa: ASYNC110 - told by nobody
                    await asyncio.sleep(0.01)
            broker.refuses = None
            assert (await appending).begin == 1

    asyncio.run(test())


def test_an_append_whose_time_is_up_is_in_doubt_and_one_that_was_not_sent_never_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_module, "IN_FLIGHT", 1)

    async def test() -> None:
        async with MemoryBroker() as broker, AsyncClient(broker.address) as client:
            await client.append(JOURNAL, b"first")
            await client.append(JOURNAL, b"second")
            broker.hangs = 1
            sent = asyncio.create_task(client.append(JOURNAL, b"sent", timeout=0.3))
            await asyncio.sleep(0.05)
            unsent = asyncio.create_task(client.append(JOURNAL, b"unsent", timeout=0.1))
            for late in (unsent, sent):
                with pytest.raises(TimedOutError):
                    await late
            [stream] = client._sharing.streams.values()
            assert [request.content for request, _ in stream._flight] == [b"sent"]
            assert [future.done() for _, future in stream._queue] == [True], "it will be passed over"

    asyncio.run(test())


def test_while_nobody_answers_an_append_is_in_no_doubt_be_it_a_call_or_for_the_stream() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, AsyncClient(f"127.0.0.1:{port}") as client:
            for streams in (0, 1):
                with pytest.raises(BrokerGoneError) as gone:
                    await client.append(JOURNAL, b"x", timeout=0.2, retry=False)
                assert gone.value.harmless
                assert len(client._sharing.streams) == streams

    asyncio.run(test())
