"""Spools that a crash left, and what the others did meanwhile: one offset never has two contents (DESIGN, 10)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path

import pytest
from tests.servers.proxy import proxied

from penstock.journal.cluster import reading
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.labels import label_set

from ..brokers import in_loop, until
from .nodes import JOURNAL, Cluster, cluster_of, require_ok, sums


async def ahead_and_killed(cluster: Cluster) -> None:
    """Node a, the primary, has 6 bytes that all have and 7 that nobody else has; then it is killed."""
    with proxied(cluster["b"].port) as to_b, proxied(cluster["c"].port) as to_c:
        cluster.announce("b", to_b.uri)
        cluster.announce("c", to_c.uri)
        cluster.create(stores=("file:///",))
        require_ok(await cluster["a"].append_bytes(b"common"))
        to_b.stall()
        to_c.stall()
        pending = asyncio.create_task(cluster["a"].append_bytes(b"a alone"))
        await until(lambda: cluster["a"].replica().local._durable == 2)
        to_b.cut()
        to_c.cut()
        await asyncio.wait((pending,))
        assert pending.exception() is not None
        assert await cluster["a"].content_now() == b"common", "nobody has read it"
        assert cluster["b"].replica().spool.end == 6
        await cluster.kill("a")
    for name in "bc":
        cluster.announce(name, f"http://127.0.0.1:{cluster[name].port}")


def stored(cluster: Cluster) -> bytes:
    """Everything in the store, each offset once; differing bytes at one offset fail."""
    content: dict[int, int] = {}
    for path in (cluster.store / JOURNAL).glob("*-*"):
        begin = int(path.name[:16], 16)
        for at, byte in enumerate(path.read_bytes(), start=begin):
            assert content.setdefault(at, byte) == byte, f"two contents at {at}"
    return bytes(content[at] for at in sorted(content))


async def all_stored(cluster: Cluster, names: str) -> None:
    for name in names:
        await cluster[name].replica().persisted()


@pytest.mark.parametrize("route", ["bca", "abc", "acb"], ids=["as a replica", "as primary", "with others"])
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_a_primary_that_comes_back_with_what_nobody_else_has_sets_it_aside(
    tmp_path: Path, route: str, closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, "abcd") as cluster:
            await ahead_and_killed(cluster)
            cluster.assign("bcd")
            require_ok(await cluster["b"].append_bytes(b" and others"))
            if closed:  # what the others have in place of it is no longer in a spool under construction
                cluster.assign("bcd"[::-1])
                require_ok(await cluster["d"].append_bytes(b""))
                cluster.assign("bc")
                await cluster["b"].pulse()
                cluster.create(names="bcd", stores=("file:///",), length=1024)
                require_ok(await cluster["b"].append_bytes(b"." * 1200))
                require_ok(await cluster["b"].append_bytes(b"!"))
            await cluster.start("a")
            assert cluster["a"].replicas == {}
            with caplog.at_level(logging.ERROR):
                cluster.assign(route)
                shown = await cluster["a"].content()
                assert b"alone" not in shown, "nothing is shown that was not compared"
                require_ok(await cluster[route[0]].append_bytes(b" end"))
            assert "set aside" in caplog.text
            (path,) = cluster["a"].replica().set_aside
            assert path.suffix == ".aside"
            assert b"commona alone" in path.read_bytes()
            assert len(sums(cluster, "abc")) == 1
            wanted = b"common and others" + (b"." * 1200 + b"!" if closed else b"") + b" end"
            await all_stored(cluster, "abc")
            for name in "bc":
                assert await cluster[name].content() == wanted
            assert stored(cluster) == wanted[: len(stored(cluster))]
            assert b"a alone" not in stored(cluster)

    in_loop(test)


@pytest.mark.parametrize("route", ["bca", "abc"], ids=["as a replica", "as primary"])
def test_brokers_of_another_make_are_read_from_and_what_they_have_is_right(
    tmp_path: Path, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, "abcd") as cluster:
            await ahead_and_killed(cluster)
            cluster.assign("bcd")
            require_ok(await cluster["b"].append_bytes(b" and others"))
            a = await cluster.start("a")
            a.peers.foreign = {f"http://127.0.0.1:{cluster[name].port}" for name in "bc"}
            monkeypatch.setattr(a.peers, "survey", None)  # they do not know it
            monkeypatch.setattr(reading, "PATIENCE", 0.1)  # and tell what they have
            cluster.assign(route)
            require_ok(await cluster[route[0]].append_bytes(b" end"))
            (path,) = a.replica().set_aside
            assert b"commona alone" in path.read_bytes()
            assert len(sums(cluster, "abc")) == 1
            await all_stored(cluster, "abc")
            assert await cluster["b"].content() == b"common and others end"
            assert b"alone" not in stored(cluster)

    in_loop(test)


@pytest.mark.parametrize("foreign", [False, True], ids=["ours", "of another make"])
def test_content_that_nobody_contradicts_becomes_part_of_the_journal(tmp_path: Path, foreign: bool) -> None:
    """The others did not go on: what only one has is a failed append that is in the journal all the same."""

    async def test() -> None:
        async with cluster_of(tmp_path, "abcd") as cluster:
            await ahead_and_killed(cluster)
            a = await cluster.start("a")
            if foreign:
                a.peers.foreign = {f"http://127.0.0.1:{cluster[name].port}" for name in "bc"}
            cluster.assign("abc")
            assert require_ok(await cluster["a"].append_bytes(b" end")) == (13, 17)
            assert cluster["a"].replica().set_aside == []
            assert len(sums(cluster)) == 1
            assert await cluster["a"].content() == b"commona alone end"

    in_loop(test)


@pytest.mark.parametrize("route", ["abc", "bca", "dab"])
def test_all_killed_at_once_nothing_that_was_acknowledged_is_lost(tmp_path: Path, route: str) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, "abcd") as cluster:
            cluster.create(length=1024)
            wanted = b""
            for number in range(5):
                wanted += (b"%d" % number) * 400
                require_ok(
                    await cluster["a"].append_bytes(
                        wanted[-400:], union_registers=label_set({"epoch": str(number)})
                    )
                )
            for name in "abcd":
                await cluster.kill(name)
            for name in "abcd":
                await cluster.start(name)
            cluster.assign(route)
            response = await cluster[route[0]].append_bytes(b"after")
            assert require_ok(response) == (2000, 2005)
            assert response.registers == label_set({"epoch": "4"})
            assert len(sums(cluster, route)) == 1
            reader = next(name for name in route if name != "d")
            assert await cluster[reader].content() == wanted + b"after"
            assert all(not cluster[name].replica().set_aside for name in route)

    in_loop(test)


@pytest.mark.parametrize("route", ["abc", "bca", "cba"])
def test_of_two_that_were_both_killed_the_one_that_synchronised_later_is_believed(
    tmp_path: Path, route: str
) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, "abcd") as cluster:
            await ahead_and_killed(cluster)
            cluster.assign("bcd")
            require_ok(await cluster["b"].append_bytes(b" and others"))
            for name in "bcd":
                await cluster.kill(name)
            for name in "abcd":
                await cluster.start(name)
            cluster.assign(route)
            assert require_ok(await cluster[route[0]].append_bytes(b" end")) == (17, 21)
            assert len(cluster["a"].replica().set_aside) == 1
            assert all(not cluster[name].replica().set_aside for name in "bc")
            assert await cluster["b"].content() == b"common and others end"
            await all_stored(cluster, "abc")
            assert b"a alone" not in stored(cluster)

    in_loop(test)


@pytest.mark.parametrize("begin", [0, 3])
def test_a_store_that_has_other_bytes_is_right(tmp_path: Path, begin: int) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, "ab") as cluster:
            cluster.create(replication=1, names="a", stores=("file:///",))
            require_ok(await cluster["a"].append_bytes(b"mine alone"))
            await cluster.kill("a")
            other = Fragment(JOURNAL, begin, begin + 12, hashlib.sha1(b"of the store").digest(), Codec.NONE)
            path = cluster.store / other.content_path
            path.parent.mkdir(parents=True)
            path.write_bytes(b"of the store")
            await cluster.start("a")
            assert require_ok(await cluster["a"].append_bytes(b"", offset=begin + 12))
            assert len(cluster["a"].replica().set_aside) == 1
            assert (await cluster["a"].content(offset=begin)) == b"of the store"
            assert stored(cluster) == b"of the store"

    in_loop(test)


def test_a_store_that_has_the_same_bytes_lets_a_recovered_spool_go_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, "ab") as cluster:
            cluster.create(replication=1, names="a", stores=("file:///",))
            require_ok(await cluster["a"].append_bytes(b"the same"))
            await cluster.kill("a")
            same = Fragment(JOURNAL, 4, 8, hashlib.sha1(b"same").digest(), Codec.NONE)
            path = cluster.store / same.content_path
            path.parent.mkdir(parents=True)
            path.write_bytes(b"same")
            await cluster.start("a")
            assert require_ok(await cluster["a"].append_bytes(b"!")) == (8, 9)
            assert await cluster["a"].content() == b"the same!"

    in_loop(test)
