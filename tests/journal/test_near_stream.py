"""The batching appender in the event loop of its broker: without a socket, and otherwise the same."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.base.disk import Disk
from penstock.journal.broker import Broker
from penstock.journal.client import (
    Appender,
    AppenderFailedError,
    AsyncClient,
    BrokerGoneError,
    FencedError,
    claim,
)
from penstock.journal.client.stubs import AppendsCall
from penstock.journal.near import NearCall
from penstock.journal.protocol import AppendBatchResult, AppendRequest, Status
from penstock.journal.served import served
from penstock.journal.wholes import Whole, Wholes
from penstock.log.commitlog import journal_spec

from .brokers import JOURNAL, HookedDisk, opened

Test = Callable[[AsyncClient, list[AppendsCall]], Awaitable[None]]


@asynccontextmanager
async def near(path: Path, disk: Disk | None = None) -> AsyncIterator[tuple[AsyncClient, list[AppendsCall]]]:
    """A client of a broker in this event loop, and the streams that it has begun."""
    begun: list[AppendsCall] = []
    async with served(path, disk=disk) as broker:

        def counted() -> AppendsCall:
            call = broker.near()
            assert call is not None
            begun.append(call)
            return call

        client = AsyncClient(broker.address, near=counted)
        try:
            await client.create(journal_spec(JOURNAL, 8 << 20, {}))
            yield client, begun
        finally:
            await client.close()


def run(path: Path, test: Test, disk: Disk | None = None) -> None:
    async def go() -> None:
        async with asyncio.timeout(60), near(path, disk) as made:
            await test(*made)

    asyncio.run(go())


async def everything(client: AsyncClient, end: int) -> bytes:
    async with client.read(JOURNAL, 0, end) as reader:
        return b"".join([chunk async for _, chunk in reader])


def test_records_land_in_order_over_one_stream_without_a_socket(tmp_path: Path) -> None:
    async def test(client: AsyncClient, begun: list[AppendsCall]) -> None:
        owner = await claim(client, JOURNAL, "me", b"claim")
        records = [os.urandom(100_000) for _ in range(60)]
        async with Appender(client, JOURNAL, owner=owner) as appender:
            landed = [appender.append(record) for record in records]
            ends = [(await each).end for each in landed]
        assert len(begun) == 1
        assert ends == [5 + 100_000 * count for count in range(1, 61)]
        assert await everything(client, ends[-1]) == b"claim" + b"".join(records)

    run(tmp_path / "d", test)


def test_messages_that_wait_go_together_unless_they_want_something_else(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            call = NearCall(broker)
            call.cancel()
            names = iter("abcde")
            sent = [
                Wholes([Whole(AppendRequest(journal=next(names)), b"")], unsummed=unsummed)
                for unsummed in (True, True, False, False, True)
            ]
            for message in sent:
                await call.write(message)
            messages = call._messages()
            got = [await anext(messages) for _ in range(3)]
            assert ["".join(each.first.journal for each in message.appends) for message in got] == [
                "ab",
                "cd",
                "e",
            ]
            assert [message.unsummed for message in got] == [True, False, True]

    asyncio.run(go())


def test_another_claim_fences_the_stream(tmp_path: Path) -> None:
    async def test(client: AsyncClient, begun: list[AppendsCall]) -> None:
        owner = await claim(client, JOURNAL, "me", b"claim")
        appender = await Appender(client, JOURNAL, owner=owner).__aenter__()
        await appender.append(b"mine")
        other = await claim(client, JOURNAL, "other", b"claim")
        with pytest.raises(AppenderFailedError) as error:
            await appender.append(b"late")
        await appender.close()
        assert isinstance(error.value.__cause__, FencedError)
        assert await everything(client, other.end) == b"claimmineclaim"
        assert begun

    run(tmp_path / "d", test)


def test_a_write_that_fails_leaves_nothing_and_what_follows_lands_once(tmp_path: Path) -> None:
    disk = HookedDisk()
    failures = iter([True])

    def full(step: str, path: Path) -> None:
        if step == "write" and path.suffix == ".spool" and next(failures, False):
            raise OSError(errno.ENOSPC, "No space left on device")

    async def test(client: AsyncClient, begun: list[AppendsCall]) -> None:
        owner = await claim(client, JOURNAL, "me", b"claim")
        async with Appender(client, JOURNAL, owner=owner) as appender:
            await appender.append(b"before")
            disk.before = full
            landed = [await each for each in [appender.append(b"a" * 300_000), appender.append(b"after")]]
        assert next(failures, None) is None
        assert len(begun) > 1
        assert (await everything(client, landed[-1].end)).count(b"after") == 1

    run(tmp_path / "d", test, disk)


def test_a_stream_that_broke_off_says_so_to_whoever_reads_and_reads_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            await require_answers(broker)

    async def require_answers(broker: Broker) -> None:
        call = NearCall(broker)
        await call.write(Wholes([Whole(AppendRequest(journal="none"), b"content")]))
        answer = await call.read()
        assert isinstance(answer, AppendBatchResult)
        assert [result.response.status for result in answer.results] == [Status.JOURNAL_NOT_FOUND]
        reading = asyncio.create_task(call.read())
        await asyncio.sleep(0)
        call.cancel()
        for _ in range(2):
            with pytest.raises(BrokerGoneError, match="broke off"):
                await reading
            reading = asyncio.create_task(call.read())
        with pytest.raises(BrokerGoneError):
            await reading
        metrics = broker.metrics
        assert (metrics.started["Appends"], metrics.completed["Appends", "<error>"]) == (1, 1)

    asyncio.run(go())


def test_a_stream_that_is_broken_off_before_it_began_says_so_too(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            call = NearCall(broker)
            call.cancel()
            with pytest.raises(BrokerGoneError, match="broke off"):
                async with asyncio.timeout(5):
                    await call.read()

    asyncio.run(go())


def test_what_is_sent_to_a_broker_that_has_closed_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with opened(tmp_path) as broker:
            call = NearCall(broker)
            await broker.close()
            await call.write(Wholes([Whole(AppendRequest(journal=JOURNAL), b"late")]))
            async with asyncio.timeout(10):
                answer = await call.read()
            assert isinstance(answer, AppendBatchResult)
            statuses = [result.response.status for result in answer.results]
            assert statuses == [Status.NO_JOURNAL_PRIMARY_BROKER]
            call.cancel()

    asyncio.run(go())


def test_a_client_that_is_closed_ends_the_streams_that_needed_no_line_as_well(tmp_path: Path) -> None:
    async def test(client: AsyncClient, begun: list[AppendsCall]) -> None:
        appender = await Appender(client, JOURNAL, outage_limit=0.5).__aenter__()
        await appender.append(b"before")
        await client.close()
        with pytest.raises(AppenderFailedError):
            await appender.append(b"after")
        await appender.close()
        assert len(begun) == 1

    run(tmp_path / "d", test)
