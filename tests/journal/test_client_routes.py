"""Routes: appends go to the primary, reads nearby, and a route to nobody is forgotten."""

from __future__ import annotations

import asyncio

import pytest

from penstock.journal.client import AsyncClient, BrokerGoneError, backoff
from penstock.journal.client.routes import Lines, RouteCache
from penstock.journal.protocol import Header, ProcessSpec, Route, Status

from .brokers import until
from .client_servers import JOURNAL, MemoryBroker, run, status


def header(*members: tuple[str, str], primary: int = 0) -> Header:
    return Header(
        route=Route(
            members=[ProcessSpec.ID(zone=zone, suffix=f"broker-{i}") for i, (zone, _) in enumerate(members)],
            endpoints=[endpoint for _, endpoint in members],
            primary=primary,
        )
    )


THREE = (("a", "http://one:1"), ("b", "http://two:2"), ("c", "http://three:3"))


def test_the_primary_and_the_nearest_member_are_found() -> None:
    routes = RouteCache()
    assert routes.primary(JOURNAL) is None
    routes.observe(JOURNAL, header(*THREE, primary=2))
    assert routes.primary(f"{JOURNAL};meta") == "http://three:3"
    assert routes.member(JOURNAL, "b") == "http://two:2"
    assert routes.member(JOURNAL, "elsewhere") == "http://three:3"
    assert routes.member(JOURNAL, "") == "http://three:3"
    routes.observe(JOURNAL, header(*THREE, primary=-1))
    assert routes.primary(JOURNAL) is None
    assert routes.member(JOURNAL, "") == "http://one:1"
    routes.forget(JOURNAL)
    assert routes.member(JOURNAL, "b") is None


@pytest.mark.parametrize(
    "useless",
    [
        Header(route=Route(primary=-1)),
        Header(route=Route(members=[ProcessSpec.ID(zone="a", suffix="one")], primary=0)),
        header(("a", "http://one:1"), ("b", "")),
    ],
)
def test_a_route_without_endpoints_is_none(useless: Header) -> None:
    routes = RouteCache()
    routes.observe(JOURNAL, header(*THREE))
    routes.observe(JOURNAL, useless)
    assert routes.member(JOURNAL, "") is None


def test_the_least_recently_used_routes_go_first() -> None:
    routes = RouteCache(2)
    for name in ("j/one", "j/two"):
        routes.observe(name, header(*THREE))
    assert routes.primary("j/one")
    routes.observe("j/three", header(*THREE))
    assert [bool(routes.primary(name)) for name in ("j/one", "j/two", "j/three")] == [True, False, True]


def test_appends_go_to_the_primary_and_reads_to_the_own_zone() -> None:
    async def test() -> None:
        async with MemoryBroker() as front, MemoryBroker() as primary, MemoryBroker() as near:
            route = header(("x", f"http://{primary.address}"), ("y", f"http://{near.address}"))
            for broker in (front, primary, near):
                broker.header = route
            near.content += b"abc"
            async with AsyncClient(front.address, follow_routes=True, zone="y") as client:
                await client.append(JOURNAL, b"abc")
                await client.append(JOURNAL, b"abc")
                assert await client.read_bytes(JOURNAL, 0, 3) == b"abc"
                assert (front.calls, primary.calls, near.calls) == (
                    ["Local.Append"],
                    ["Appends"],
                    ["Read"],
                )
            async with AsyncClient(front.address) as client:
                await client.append(JOURNAL, b"abc")
                await client.append(JOURNAL, b"abc")
                assert len(front.calls) == 3

    run(test())


def test_a_refusal_tells_the_route_and_the_next_attempt_follows_it() -> None:
    async def test() -> None:
        async with MemoryBroker() as front, MemoryBroker() as primary:
            front.header = primary.header = header(("x", f"http://{primary.address}"))
            front.outcomes.append(status(Status.NOT_JOURNAL_PRIMARY_BROKER))
            async with AsyncClient(front.address, follow_routes=True) as client:
                await client.append(JOURNAL, b"abc")
            assert primary.appends == [b"abc"]

    run(test())


def test_a_route_without_anybody_to_take_appends_is_not_followed() -> None:
    """A broker that passed an append on in vain names the one that is not there."""

    async def test() -> None:
        async with MemoryBroker() as front:
            front.header = header(("x", "http://127.0.0.1:1"))
            refusals = (Status.NO_JOURNAL_PRIMARY_BROKER, Status.INSUFFICIENT_JOURNAL_BROKERS)
            front.outcomes += [status(value) for value in refusals]
            async with AsyncClient(front.address, follow_routes=True) as client:
                await client.append(JOURNAL, b"abc")
                assert client.lines.open == frozenset()
            assert front.appends == [b"abc"]

    run(test())


def test_who_was_refused_asks_again_within_a_second() -> None:
    waits = [backoff.delay(attempt) for attempt in (1, 6, 7, 20)]
    assert waits == [0.05, 1.0, 5.0, 5.0]
    assert [backoff.delay(attempt, refused=True) for attempt in (1, 7, 20)] == [0.05, 1.0, 1.0]


def test_a_route_to_a_broker_that_is_gone_is_dropped() -> None:
    async def test() -> None:
        async with MemoryBroker() as gone:
            pass
        async with MemoryBroker() as front:
            front.header = header(("x", f"http://{gone.address}"))
            async with AsyncClient(front.address, follow_routes=True) as client:
                await client.append(JOURNAL, b"one")
                front.header = Header(route=Route(primary=-1))
                await client.append(JOURNAL, b"two")  # tried there, and then at the front
                assert front.appends == [b"one", b"two"]
                client.observe(JOURNAL, header(("x", f"http://{gone.address}")))
                with pytest.raises(BrokerGoneError):
                    await client.head(JOURNAL)
                assert await client.head(JOURNAL) == 6

    run(test())


def test_a_client_with_tls_follows_no_route_without() -> None:
    async def test() -> None:
        lines = Lines("https://localhost:1", None)
        assert lines.to("http://other:2") is lines.home
        assert lines.to("unix:///socket") is lines.home
        assert lines.to("nonsense") is lines.home
        assert lines.to("https://other:2") is not lines.home
        await lines.close()

    run(test())


def test_connections_that_nobody_uses_are_closed() -> None:
    async def test() -> None:
        lines = Lines("localhost:1", None, sweep=0.05)
        used = lines.to("http://localhost:2")
        lines.to("http://localhost:3")
        assert lines.to("http://localhost:2") is used
        with used.busy():
            await until(lambda: "http://localhost:3" not in lines.open)
            await asyncio.sleep(0.2)  # some sweeps
            assert lines.open == {"http://localhost:2"}
        await until(lambda: not lines.open)
        await lines.close()

    run(test())
