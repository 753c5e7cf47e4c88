"""Replication between brokers: real streams on loopback, one key space that the test writes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.servers.proxy import proxied

from penstock.journal.append import AppendMachine
from penstock.journal.auth import KeyedAuthorizer, Keys
from penstock.journal.claims import EVERYTHING
from penstock.journal.cluster.pipeline import PeerPipeline
from penstock.journal.labels import label_set
from penstock.journal.protocol import AppendRequest, Status
from penstock.journal.replication import NotSynchronisedError

from ..brokers import Gate, HookedDisk, in_loop, until
from .nodes import JOURNAL, Node, cluster_of, require_ok, sums


def pipeline_of(node: Node) -> PeerPipeline:
    pipeline = node.replica().pipeline
    assert isinstance(pipeline, PeerPipeline)
    return pipeline


def test_an_append_reaches_every_replica_with_equal_bytes(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            cluster.create()
            first = await cluster["a"].append_bytes(b"hello", union_registers=label_set({"AA": "1"}))
            assert require_ok(first) == (0, 5)
            response = await cluster["a"].append_bytes(b", world")
            assert require_ok(response) == (5, 12)
            assert response.registers == label_set({"AA": "1"})
            assert len(sums(cluster)) == 1
            for name in "abc":
                assert cluster[name].spooled() == {0: b"hello, world"}
                assert cluster[name].replica().local.registers == label_set({"AA": "1"})
                assert await cluster[name].content() == b"hello, world"

    in_loop(test)


def test_in_the_steady_state_an_append_is_one_round_trip(tmp_path: Path) -> None:
    """Content and commit out, one acknowledgement in; the synchronisation was once."""

    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            cluster.create()
            await cluster["a"].append_bytes(b"builds the pipeline")
            streams = pipeline_of(cluster["a"])._streams
            answered = [stream.answered for stream in streams]
            for name in "bc":
                assert cluster[name].received[0] == "proposal with header"
                cluster[name].received.clear()
            for _ in range(10):
                await cluster["a"].append_bytes(b"one round trip")
            assert [stream.answered for stream in streams] == [count + 10 for count in answered]
            for name in "bc":
                assert cluster[name].received.count("content") == 10
                # One of each that is answered, and at most one that is not: it tells what all have by now.
                assert 10 <= cluster[name].received.count("proposal") <= 21
                assert "proposal with header" not in cluster[name].received
            # A barrier has nothing but the proposal, and is acknowledged all the same.
            require_ok(await cluster["a"].append_bytes(b""))
            assert [stream.answered for stream in streams] == [count + 11 for count in answered]
            assert cluster.advertised == [JOURNAL], "the route that was agreed on is told once"

    in_loop(test)


def test_appends_overlap_on_links_with_a_delay(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            with (
                proxied(cluster["b"].port, delay=0.25) as to_b,
                proxied(cluster["c"].port, delay=0.25) as to_c,
            ):
                cluster.announce("b", to_b.uri)
                cluster.announce("c", to_c.uri)
                cluster.create()
                await cluster["a"].append_bytes(b"builds the pipeline")
                stream = pipeline_of(cluster["a"])._streams[0]
                answered, proposals = stream.answered, cluster["b"].received.count("proposal")
                waiting: list[int] = []

                def count() -> None:
                    arrived = cluster["b"].received.count("proposal") - proposals
                    waiting.append(arrived - (stream.answered - answered))

                cluster["b"].on_received = count
                done = await asyncio.gather(*(cluster["a"].append_bytes(b"%02d" % n) for n in range(20)))
                assert max(waiting) >= 5, "appends do not wait for the acknowledgements of those before them"
                assert sorted(require_ok(each) for each in done) == [
                    (19 + 2 * n, 21 + 2 * n) for n in range(20)
                ]
                assert len(sums(cluster)) == 1

    in_loop(test)


def test_acknowledgements_come_in_the_order_of_the_proposals(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            cluster.create()
            ended: list[int] = []

            async def append(number: int) -> None:
                response = await cluster["a"].append_bytes(b"x%d" % number)
                assert response.commit.begin == 2 * number
                ended.append(number)

            await asyncio.gather(*(append(number) for number in range(9)))
            assert ended == sorted(ended)

    in_loop(test)


def test_a_replica_acknowledges_only_what_its_disk_has_and_then_many_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        disk, gate = HookedDisk(), Gate()
        async with cluster_of(tmp_path, "ab") as cluster:
            await cluster.start("c", disk=disk)
            cluster.create()
            await cluster["a"].append_bytes(b"before")
            syncs: list[str] = []

            def slow(step: str, path: Path) -> None:
                if step == "sync":
                    syncs.append(path.name)
                    gate.wait()

            disk.before = slow
            at_once = [asyncio.create_task(cluster["a"].append_bytes(b"%02d" % n)) for n in range(10)]
            assert await asyncio.to_thread(gate.reached.wait, 10)
            await until(lambda: cluster["c"].replica().spool.end == 26)
            assert not any(append.done() for append in at_once)
            assert await cluster["a"].content_now() == b"before", "nor is it read before every replica has it"
            gate.open()
            await asyncio.gather(*at_once)
            assert len(syncs) == 2, "the first commit, then all that came meanwhile"
            assert len(await cluster["a"].content()) == 26

    in_loop(test)


def test_content_that_a_client_gave_up_is_rolled_back_everywhere(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            cluster.create()
            await cluster["a"].append_bytes(b"before")

            async def given_up() -> AsyncIterator[AppendRequest]:
                yield AppendRequest(content=b"half")
                await until(lambda: all(cluster[name].replica().spool.delta == 4 for name in "abc"))

            machine = AppendMachine(
                AppendRequest(journal=JOURNAL), given_up(), cluster["a"].appending, EVERYTHING
            )
            with pytest.raises(Exception, match="unexpected EOF"):
                await machine.run()
            assert require_ok(await cluster["a"].append_bytes(b"after")) == (6, 11)
            assert [cluster[name].spooled() for name in "abc"] == [{0: b"beforeafter"}] * 3

    in_loop(test)


def test_a_large_chunk_is_sent_in_pieces(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            cluster.create(length=64 << 20)
            content = bytes(range(256)) * (14 << 10)
            require_ok(await cluster["a"].append_bytes(content))
            require_ok(await cluster["a"].append_bytes(content))
            ((begin, end, digest),) = sums(cluster)
            assert (begin, end) == (0, 2 * len(content))
            assert digest == hashlib.sha1(content * 2).digest()
            assert cluster["b"].received.count("content") == 8

    in_loop(test)


def test_a_fragment_is_closed_everywhere_and_stored_once_all_have_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            cluster.create(length=1024, stores=("file:///",))
            for _ in range(3):
                require_ok(await cluster["a"].append_bytes(b"x" * 800))
            assert {cluster[name].replica().local.fragment.begin for name in "abc"} == {1600}
            await until(lambda: not cluster["a"].replica()._persisting)
            (stored,) = (cluster.store / JOURNAL).iterdir()
            assert stored.read_bytes() == b"x" * 1600
            # The others keep theirs for a while, in case the primary does not manage.
            assert cluster["b"].spooled() == {0: b"x" * 1600, 1600: b"x" * 800}
            await cluster["b"].replica().persisted()
            assert cluster["b"].spooled() == {1600: b"x" * 800}
            assert list((cluster.store / JOURNAL).iterdir()) == [stored]

    in_loop(test)


def test_a_broker_that_joins_closes_the_fragment_and_begins_the_next_with_all(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, "abcd") as cluster:
            cluster.create()
            await cluster["a"].append_bytes(b"of three", union_registers=label_set({"AA": "1"}))
            cluster.assign("abd")
            assert require_ok(await cluster["a"].append_bytes(b"with d")) == (8, 14)
            assert sums(cluster, "abd") == {(8, 14, hashlib.sha1(b"with d").digest())}
            assert cluster["d"].replica().local.registers == label_set({"AA": "1"})
            assert cluster["b"].spooled() == {0: b"of three", 8: b"with d"}

    in_loop(test)


def test_a_replica_that_is_ahead_sets_the_offset_and_the_registers(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, "abcd") as cluster:
            cluster.create()
            await cluster["a"].append_bytes(b"known to a, b, c", union_registers=label_set({"AA": "1"}))
            cluster.assign("dbc")
            response = await cluster["d"].append_bytes(b"d")
            assert require_ok(response) == (16, 17)
            assert response.registers == label_set({"AA": "1"})
            assert len(sums(cluster, "dbc")) == 1
            assert await cluster["b"].content() == b"known to a, b, cd"

    in_loop(test)


def test_brokers_show_each_other_tokens_of_the_key_they_share(tmp_path: Path) -> None:
    async def test() -> None:
        keys, others = Keys((b"secret",)), Keys((b"another",))
        async with cluster_of(tmp_path, auth=keys, authorizer=KeyedAuthorizer(keys)) as cluster:
            cluster.create()
            require_ok(await cluster["a"].append_bytes(b"x"))
        (tmp_path / "others").mkdir()
        async with cluster_of(tmp_path / "others", auth=keys, authorizer=KeyedAuthorizer(others)) as cluster:
            cluster.create()
            with pytest.raises(NotSynchronisedError, match="invalid Authorization token") as refused:
                await cluster["a"].append_bytes(b"x")
            assert "secret" not in str(refused.value)

    in_loop(test)


def test_an_append_at_another_broker_is_passed_on_to_the_primary(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, "abcd") as cluster:
            cluster.create()
            for name in "bd":  # a replica, and one that has nothing to do with the journal
                response = await cluster[name].append_bytes(b"x")
                require_ok(response)
                assert response.header.process_id.suffix == "broker-a"
            response = await cluster["b"].append_bytes(b"x", do_not_proxy=True)
            assert response.status == Status.NOT_JOURNAL_PRIMARY_BROKER
            response = await cluster["b"].append_bytes(b"x", offset=1)
            assert response.status == Status.WRONG_APPEND_OFFSET, "what the primary says is the answer"
            assert len(sums(cluster)) == 1

    in_loop(test)


def test_a_pulse_synchronises_a_journal_to_which_nobody_writes(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path) as cluster:
            cluster.create()
            for name in "cba":
                await cluster[name].pulse()
            assert cluster.advertised == [JOURNAL]
            assert all(cluster[name].replica().guest is not None for name in "bc"), "they are locked"
            cluster.assign("bca")
            await cluster["b"].pulse()
            assert cluster.advertised == [JOURNAL] * 2
            assert cluster["a"].replica().pipeline is None, "who was primary let go"
            require_ok(await cluster["b"].append_bytes(b"x"))
            assert len(sums(cluster)) == 1

    in_loop(test)
