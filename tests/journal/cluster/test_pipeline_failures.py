"""Replication when something is wrong: peers that go, routes that change, disks that fail, a primary that is none."""

from __future__ import annotations

import asyncio
import errno
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.servers.proxy import proxied

from penstock.journal.append import AppendMachine, State
from penstock.journal.appending import NotInChargeError
from penstock.journal.claims import EVERYTHING
from penstock.journal.cluster import peers
from penstock.journal.cluster.proxy import ProxyError
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.protocol import AppendRequest, Status
from penstock.journal.replication import NotSynchronisedError, ReplicationError

from ..brokers import Gate, HookedDisk, in_loop, until
from .nodes import JOURNAL, Cluster, cluster_of, require_ok, sums


async def walked(machine: AppendMachine, states: list[State]) -> list[State]:
    """The states on the way to the end, of which `states` tells meanwhile."""
    states.append(machine.state)
    try:
        while machine.state not in (State.ERROR, State.PROXY, State.FINISHED):
            await machine.step()
            states.append(machine.state)
    finally:
        machine.release()
    return states


def machine_at(cluster: Cluster, name: str, **fields: object) -> AppendMachine:
    first = AppendRequest(journal=JOURNAL, **fields)  # type: ignore[arg-type]
    return AppendMachine(first, (b"x",), cluster[name].appending, EVERYTHING)


def test_a_peer_lost_before_its_acknowledgement_fails_the_append_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, "abcd") as cluster:
            with proxied(cluster["c"].port) as to_c:
                cluster.announce("c", to_c.uri)
                cluster.create()
                await cluster["a"].append_bytes(b"acknowledged ")
                to_c.stall()
                pending = asyncio.create_task(cluster["a"].append_bytes(b"in doubt "))
                await until(lambda: cluster["b"].replica().spool.end == 22)
                await asyncio.sleep(0.05)
                assert not pending.done()
                assert await cluster["a"].content_now() == b"acknowledged "
                to_c.cut()
                with pytest.raises(ReplicationError, match="broker-c"):
                    await pending
                assert cluster["a"].broken == [JOURNAL]
                # While the route has it, nothing is accepted; afterwards what two had is part of the journal.
                with pytest.raises(NotSynchronisedError, match="broker-c"):
                    await cluster["a"].append_bytes(b"refused")
                cluster.assign("abd")
                assert require_ok(await cluster["a"].append_bytes(b"after")) == (22, 27)
                assert await cluster["a"].content() == b"acknowledged in doubt after"
                assert len(sums(cluster, "abd")) == 1

    in_loop(test)


def test_content_under_way_to_a_peer_that_goes_is_rolled_back_at_the_others(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            cluster.create()
            await cluster["a"].append_bytes(b"before")

            async def sent() -> AsyncIterator[AppendRequest]:
                yield AppendRequest(content=b"half")
                await until(lambda: cluster["b"].replica().spool.delta == 4)
                await cluster.kill("c")
                await until(lambda: bool(cluster["a"].broken))
                yield AppendRequest(content=b"other half")
                yield AppendRequest()

            first = AppendRequest(journal=JOURNAL)
            with pytest.raises(ReplicationError, match="broker-c"):
                await cluster["a"].append(first, sent(), EVERYTHING)
            await cluster.start("c")
            assert require_ok(await cluster["a"].append_bytes(b"after")) == (6, 11)
            assert len(sums(cluster)) == 1
            assert await cluster["c"].content() == b"beforeafter"

    in_loop(test)


def test_a_route_that_a_peer_knows_better_is_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            cluster.create()
            cluster["a"].view.hold()
            cluster.assign("bca")
            machine, states = machine_at(cluster, "a"), list[State]()
            walking = asyncio.create_task(walked(machine, states))
            await until(lambda: State.RECV_PIPELINE_SYNC in states and states[-1] is State.RESOLVE)
            await asyncio.sleep(0.05)
            assert not walking.done()
            assert machine.state is State.RESOLVE
            cluster["a"].view.catch_up()
            await walking
            assert states[:6] == [
                State.RESOLVE,
                State.ACQUIRE_PIPELINE,
                State.START_PIPELINE,
                State.SEND_PIPELINE_SYNC,
                State.RECV_PIPELINE_SYNC,
                State.RESOLVE,
            ]
            assert states[-1] is State.PROXY
            assert machine.header.process_id.suffix == "broker-b"
            assert cluster["a"].replica().pipeline is None

    in_loop(test)


def test_a_peer_that_has_not_read_as_far_reads_on_first(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            cluster["c"].view.hold()
            cluster.create()
            appending = asyncio.create_task(cluster["a"].append_bytes(b"x"))
            await asyncio.sleep(0.2)
            assert not appending.done()
            cluster["c"].view.catch_up()
            require_ok(await appending)

    in_loop(test)


def test_too_many_replicas_are_waited_for_and_too_few_are_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, "abcd") as cluster:
            cluster.create(names="abcd")
            appending = asyncio.create_task(cluster["a"].append_bytes(b"x"))
            await until(lambda: bool(cluster.advertised))
            await asyncio.sleep(0.1)
            assert not appending.done(), "the allocator is about to take one away"
            assert all(cluster[name].replica().guest is not None for name in "bcd")
            cluster.assign("abd")
            require_ok(await appending)
            assert len(sums(cluster, "abd")) == 1
            cluster.assign("ab")
            for name in "abc":
                response = await cluster[name].append_bytes(b"x")
                assert response.status == Status.INSUFFICIENT_JOURNAL_BROKERS
            cluster.assign("")
            assert (await cluster["a"].append_bytes(b"x")).status == Status.NO_JOURNAL_PRIMARY_BROKER

    in_loop(test)


def test_an_append_under_way_when_a_replica_joins_is_acknowledged_first(tmp_path: Path) -> None:
    """The streams of the new route would take the spools from those of the old one."""

    async def test() -> None:
        disk, gate = HookedDisk(), Gate()
        async with cluster_of(tmp_path, "abd") as cluster:
            await cluster.start("c", disk=disk)
            cluster.create(length=64 << 20)
            await cluster["a"].append_bytes(b"before ")
            disk.before = lambda step, path: gate.wait() if step == "write" else None
            pending = asyncio.create_task(cluster["a"].append_bytes(bytes(1 << 20)))
            assert await asyncio.to_thread(gate.reached.wait, 60)
            cluster.assign("abcd")
            pulsing = asyncio.create_task(cluster["a"].pulse())
            await asyncio.sleep(0.2)
            gate.open()
            assert require_ok(await pending) == (7, 7 + (1 << 20))
            await until(lambda: bool(cluster["d"].replica().guest))
            cluster.assign("abd")
            await pulsing
            require_ok(await cluster["a"].append_bytes(b"after"))
            assert len(sums(cluster, "abd")) == 1

    in_loop(test)


@pytest.mark.parametrize("answers", [True, False], ids=["in time", "not in time"])
def test_who_is_passed_on_to_a_broker_that_leaves_the_cluster_is_answered(
    tmp_path: Path, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not answers:
        monkeypatch.setattr(peers, "FAREWELL", 0.05)

    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            with proxied(cluster["a"].port) as to_a:
                cluster.announce("a", to_a.uri)
                cluster.create()
                await cluster["a"].pulse()
                to_a.stall()
                passed_on = asyncio.create_task(cluster["b"].append_bytes(b"x"))
                await until(lambda: bool(cluster["b"].peers._channels))
                leaving = asyncio.create_task(cluster["b"].peers.retain(()))
                if answers:
                    to_a.heal()
                    require_ok(await passed_on)
                else:
                    with pytest.raises(ProxyError, match="left the cluster") as told:
                        await passed_on
                    assert not told.value.harmless
                await leaving

    in_loop(test)


def test_who_waits_for_the_pipeline_while_the_route_goes_resolves_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            cluster.create()
            await cluster["a"].append_bytes(b"x")
            gate = asyncio.Event()

            async def slow() -> AsyncIterator[AppendRequest]:
                await gate.wait()
                yield AppendRequest()

            holder = asyncio.create_task(
                cluster["a"].append(AppendRequest(journal=JOURNAL), slow(), EVERYTHING)
            )
            await until(lambda: cluster["a"].replica().pipeline_slot.owned)
            waiting = asyncio.create_task(cluster["a"].append_bytes(b"y"))
            await asyncio.sleep(0.05)
            cluster.assign("bca")
            # Its turn never came: it is passed on to the new primary, who waits for the lock that the first one has.
            await asyncio.sleep(0.1)
            gate.set()
            require_ok(await waiting)
            await asyncio.gather(holder, return_exceptions=True)
            assert len(sums(cluster)) == 1
            assert await cluster["b"].content() == b"xy"

    in_loop(test)


@pytest.mark.parametrize("when", ["before", "while it waits"])
def test_a_primary_whose_lease_ran_out_acknowledges_nothing(tmp_path: Path, when: str) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            with proxied(cluster["c"].port) as to_c:
                cluster.announce("c", to_c.uri)
                cluster.create()
                await cluster["a"].append_bytes(b"x")
                to_c.stall()
                cluster["a"].alive = when != "before"
                appending = asyncio.create_task(cluster["a"].append_bytes(b"y"))
                if when != "before":
                    await until(lambda: cluster["b"].replica().spool.end == 2)
                    cluster["a"].alive = False
                    to_c.heal()
                with pytest.raises(NotInChargeError, match="lease"):
                    await appending
                if when == "before":
                    assert cluster["b"].replica().spool.end == 1, "it was not even proposed"

    in_loop(test)


def test_a_primary_that_does_not_know_that_it_was_replaced_loses_the_spools(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, "abcd") as cluster:
            cluster.create()
            await cluster["a"].append_bytes(b"old ")
            cluster["a"].view.hold()
            cluster.assign("bcd")
            require_ok(await cluster["b"].append_bytes(b"new"))
            zombie = asyncio.create_task(cluster["a"].append_bytes(b"!"))
            await asyncio.sleep(0.2)
            assert not zombie.done(), "its peers know a later route, which it waits for"
            require_ok(await cluster["b"].append_bytes(b"er"))
            assert await cluster["c"].content() == b"old newer"
            cluster.assign("bca")
            cluster["a"].view.catch_up()
            assert require_ok(await zombie) == (9, 10)
            assert await cluster["c"].content() == b"old newer!"
            assert len(sums(cluster, "bca")) == 1

    in_loop(test)


def test_a_replica_whose_disk_is_full_fails_the_append_and_comes_back(tmp_path: Path) -> None:
    async def test() -> None:
        disk = HookedDisk()
        async with cluster_of(tmp_path, "ab") as cluster:
            await cluster.start("c", disk=disk)
            cluster.create()
            await cluster["a"].append_bytes(b"before ")

            def full(step: str, path: Path) -> None:
                if step == "sync" and path.suffix == ".spool":
                    raise OSError(errno.ENOSPC, "no space left", str(path))

            disk.before = full
            with pytest.raises(ReplicationError, match="broker-c"):
                await cluster["a"].append_bytes(b"in doubt ")
            disk.before = lambda step, path: None
            assert require_ok(await cluster["a"].append_bytes(b"after")) == (16, 21)
            assert len(sums(cluster)) == 1
            assert await cluster["b"].content() == b"before in doubt after"

    in_loop(test)


def test_INDEX_HAS_GREATER_OFFSET_until_the_head_is_reset_at_every_replica(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            stored = Fragment(JOURNAL, 0, 4, hashlib.sha1(b"lost").digest(), Codec.NONE)
            path = cluster.store / stored.content_path
            path.parent.mkdir(parents=True)
            path.write_bytes(b"lost")
            cluster.create(stores=("file:///",))
            assert (await cluster["a"].append_bytes(b"x")).status == Status.INDEX_HAS_GREATER_OFFSET
            assert (await cluster["a"].append_bytes(b"", offset=5)).status == Status.WRONG_APPEND_OFFSET
            assert require_ok(await cluster["a"].append_bytes(b"", offset=4)) == (4, 4)
            assert sums(cluster) == {(4, 4, bytes(20))}
            assert require_ok(await cluster["a"].append_bytes(b"x")) == (4, 5)

    in_loop(test)
