"""A client that was given several addresses: the first that can be reached is asked, and after it is gone the next."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest
from tests.servers.ports import free_port

from penstock.base.errors import UsageError
from penstock.journal.client import Appender, AsyncClient, BrokerGoneError, Client
from penstock.journal.client.connection import addresses_of
from penstock.journal.protocol import ListResponse

from .client_servers import JOURNAL, AbortError, MemoryBroker, lost_after_landing, run


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("http://a:1", ["http://a:1"]),
        ("http://a:1,https://b:2", ["http://a:1", "https://b:2"]),
        (" a:1 , b:2,", ["a:1", "b:2"]),
        ("unix:/a,b", ["unix:/a,b"]),
    ],
)
def test_an_address_names_one_or_several(address: str, found: list[str]) -> None:
    assert addresses_of(address) == found


@pytest.mark.parametrize("address", ["", " , "])
def test_no_address_is_told(address: str) -> None:
    with pytest.raises(UsageError, match="no broker is named"):
        Client(address)


def test_each_of_several_addresses_is_checked_at_once() -> None:
    with pytest.raises(UsageError, match="nonsense"):
        Client("http://a:1,nonsense")


def nobody() -> str:
    return f"127.0.0.1:{free_port()}"


def test_who_cannot_be_reached_is_passed_over_by_every_call() -> None:
    async def test() -> None:
        async with MemoryBroker() as broker:
            broker.lists += [[ListResponse(header=broker.header)]] * 2
            for content in (b"small", bytes(3 << 20)):  # in one message, and as a stream
                with Client(f"{nobody()},{nobody()},{broker.address}") as client:
                    before = len(broker.content)
                    landed = await asyncio.to_thread(client.append, JOURNAL, content)
                    assert landed.begin == before
            with Client(f"{nobody()},{broker.address}") as client:
                assert await asyncio.to_thread(client.list) == []
            with Client(f"{nobody()},{broker.address}") as client:
                assert await asyncio.to_thread(client.read_bytes, JOURNAL, 0, 5) == b"small"
            async with AsyncClient(f"{nobody()},{nobody()},{broker.address}") as there:
                assert await there.list() == []
                assert await there.read_bytes(JOURNAL, 0, 5) == b"small"

    run(test())


def test_when_nobody_can_be_reached_that_is_told_after_each_was_asked() -> None:
    async def test() -> None:
        with Client(f"{nobody()},{nobody()}") as client, pytest.raises(BrokerGoneError) as gone:
            await asyncio.to_thread(client.append, JOURNAL, b"x")
        assert gone.value.harmless
        async with AsyncClient(f"{nobody()},{nobody()}") as there:
            with pytest.raises(BrokerGoneError):
                await there.list()

    run(test())


def test_what_may_have_landed_is_not_sent_to_another_but_the_next_is() -> None:
    async def test() -> None:
        async with MemoryBroker() as first, MemoryBroker() as second:
            first.outcomes.append(lost_after_landing)
            with Client(f"{first.address},{second.address}") as client:
                with pytest.raises(BrokerGoneError) as gone:
                    await asyncio.to_thread(client.append, JOURNAL, b"in doubt")
                assert not gone.value.harmless
                await asyncio.to_thread(client.append, JOURNAL, b"next")
            assert (bytes(first.content), bytes(second.content)) == (b"in doubt", b"next")

    run(test())


def test_what_only_asks_is_asked_again_of_another() -> None:
    async def test() -> None:
        async with MemoryBroker() as first, MemoryBroker() as second:
            for _ in range(2):
                first.lists.append([AbortError(grpc.StatusCode.UNAVAILABLE)])
                second.lists.append([ListResponse(header=second.header)])
            first.reads.append([AbortError(grpc.StatusCode.UNAVAILABLE)])
            second.content += b"there"
            with Client(f"{first.address},{second.address}") as client:
                assert await asyncio.to_thread(client.list) == []
            with Client(f"{first.address},{second.address}") as client:
                assert await asyncio.to_thread(client.read_bytes, JOURNAL, 0, 5) == b"there"
            async with AsyncClient(f"{first.address},{second.address}") as there:
                assert await there.list() == []

    run(test())


def test_after_its_broker_has_gone_everything_goes_on_with_the_next() -> None:
    async def test() -> None:
        async with AsyncExitStack() as life, MemoryBroker() as second:
            first = await life.enter_async_context(MemoryBroker())
            async with AsyncClient(f"{first.address},{second.address}") as client:
                async with Appender(client, JOURNAL) as appender:
                    appender.add(b"before ")
                    await appender.flush()
                    assert first.content == b"before "
                    second.content += first.content  # as a replica has it
                    reader = client.read(JOURNAL, 0, block=True)
                    assert await anext(aiter(reader)) == (0, b"before ")
                    await life.aclose()
                    appender.add(b"after")
                    await appender.flush()
                    assert second.content == b"before after"
                    assert await anext(aiter(reader)) == (7, b"after")
                    await reader.aclose()
                second.lists.append([ListResponse(header=second.header)])
                assert await client.list() == []

    run(test())
