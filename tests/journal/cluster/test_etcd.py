"""The client of etcd against real members: transactions, leases, watches, and what is certain after a fault."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.servers.etcd import PASSWORD, EtcdServer, ServerFiles, running, running_cluster
from tests.servers.proxy import proxied

from penstock.base.errors import UsageError
from penstock.base.secrets import mask
from penstock.journal.cluster import etcd_endpoints, etcd_watch
from penstock.journal.cluster.etcd import EtcdClient
from penstock.journal.cluster.etcd_endpoints import endpoint_of
from penstock.journal.cluster.etcd_errors import (
    CompactedError,
    EtcdAwayError,
    EtcdError,
    EtcdInDoubtError,
    EtcdRefusedError,
    ForeignError,
    LeaseGoneError,
)
from penstock.journal.cluster.etcd_values import KEEP_LEASE, Changes, Compare, Delete, Field, Put
from penstock.journal.tls import ClientTls

from ..authority import Authority
from .etcds import run


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> bytes:
    return f"/{request.node.name}/".encode()


@pytest.mark.parametrize("field", Field)
def test_a_comparison_holds_for_the_number_that_the_key_has(
    server: EtcdServer, prefix: bytes, field: Field
) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client:
            lease = (await client.grant(60)).lease
            made = await client.commit(prefix, [], [Put("a", b"1", lease)])
            changed = await client.commit(prefix, [], [Put("a", b"2", lease)])
            number = {
                Field.CREATE_REVISION: made.revision,
                Field.MOD_REVISION: changed.revision,
                Field.LEASE: lease,
            }[field]
            for wrong in (0, number + 1, 1):
                told = await client.commit(prefix, [Compare("a", field, wrong)], [Put("a", b"3", lease)])
                assert not told.ok
            assert (await client.commit(prefix, [Compare("a", field, number)], [Delete("a")])).ok
            assert (await client.commit(prefix, [Compare("a", field, 0)], [])).ok
            await client.revoke(lease)

    run(main())


def test_a_failed_transaction_changes_nothing_and_tells_a_revision_that_can_be_waited_for(
    server: EtcdServer, prefix: bytes
) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client:
            made = await client.commit(prefix, [], [Put("a", b"1"), Put("b", b"1")])
            await client.commit(b"/elsewhere/", [], [Put("a", b"1")])
            stale = [Compare("a", Field.MOD_REVISION, 1), Compare("missing", Field.CREATE_REVISION, 0)]
            failed = await client.commit(prefix, stale, [Put("a", b"2"), Delete("b")])
            assert (failed.ok, failed.revision) == (False, made.revision)
            assert [one.value for one in (await client.snapshot(prefix)).keys] == [b"1", b"1"]

    run(main())


def test_a_transaction_that_changes_nothing_has_no_revision(server: EtcdServer, prefix: bytes) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client:
            done = await client.commit(prefix, [Compare("a", Field.CREATE_REVISION, 0)], [Delete("a")])
            assert (done.ok, done.revision) == (True, 0)

    run(main())


def test_a_put_can_keep_the_lease_of_its_key_or_drop_it(server: EtcdServer, prefix: bytes) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client:
            lease = (await client.grant(60)).lease
            await client.commit(prefix, [], [Put("a", b"1", lease), Put("b", b"1", lease)])
            await client.commit(prefix, [], [Put("a", b"2", KEEP_LEASE), Put("b", b"2")])
            assert [one.lease for one in (await client.snapshot(prefix)).keys] == [lease, 0]
            with pytest.raises(EtcdRefusedError):
                await client.commit(prefix, [], [Put("missing", b"", KEEP_LEASE)])
            await client.revoke(lease)
            assert [one.key for one in (await client.snapshot(prefix)).keys] == [prefix + b"b"]

    run(main())


def test_a_lease_that_is_gone_is_told_apart_from_trouble(server: EtcdServer, prefix: bytes) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client:
            granted = await client.grant(60)
            assert granted.ttl == 60
            assert await client.keep_alive(granted.lease) == 60
            assert 58 <= await client.time_to_live(granted.lease) <= 60
            await client.revoke(granted.lease)
            await client.revoke(granted.lease)
            with pytest.raises(LeaseGoneError):
                await client.keep_alive(granted.lease)
            with pytest.raises(LeaseGoneError):
                await client.time_to_live(granted.lease)
            with pytest.raises(LeaseGoneError):
                await client.commit(prefix, [], [Put("a", b"", granted.lease)])

    run(main())


def test_a_snapshot_is_of_one_revision_however_many_answers_it_takes(
    server: EtcdServer, prefix: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = ("grpc.max_receive_message_length", 100_000)
    options = (*(one for one in etcd_endpoints._OPTIONS if one[0] != limit[0]), limit)
    monkeypatch.setattr(etcd_endpoints, "_OPTIONS", options)

    async def main() -> None:
        async with EtcdClient([server.uri]) as client:
            for at in range(0, 700, 100):
                puts = [Put(f"{number:03}", b"1" * 1000) for number in range(at, at + 100)]
                before = await client.commit(prefix, [], puts)
            ends = asyncio.Event()

            async def change() -> None:
                while not ends.is_set():
                    await client.commit(prefix, [], [Put("000", b"2"), Put("699", b"2")])

            changing = asyncio.create_task(change())
            for _ in range(3):
                found = await client.snapshot(prefix)
                assert [one.key.removeprefix(prefix) for one in found.keys] == [
                    b"%03d" % n for n in range(700)
                ]
                first, last = found.keys[0], found.keys[-1]
                assert first.mod_revision == last.mod_revision <= found.origin.revision
            ends.set()
            await changing
            old = await client.snapshot(prefix, before.revision)
            assert {one.value for one in old.keys} == {b"1" * 1000}

    run(main())


def test_a_revision_that_etcd_has_forgotten_is_named(tmp_path: Path) -> None:
    async def main(server: EtcdServer) -> None:
        async with EtcdClient([server.uri]) as client:
            first = await client.commit(b"/p/", [], [Put("a", b"1")])
            await client.commit(b"/p/", [], [Put("a", b"2")])
            await client.commit(b"/p/", [], [Put("a", b"3")])
            server.compact()
            with pytest.raises(CompactedError):
                await client.snapshot(b"/p/", first.revision)
            with pytest.raises(CompactedError):
                await anext(watch_of(client, b"/p/", first.revision, only_changes=True))

    with running(tmp_path) as server:
        run(main(server))


async def watch_of(client: EtcdClient, prefix: bytes, start: int, *, only_changes: bool):  # type: ignore[no-untyped-def]
    async with aclosing(client.watch(prefix, start)) as watch:
        async for changes in watch:
            if changes.changes or not only_changes:
                yield changes


def test_a_watch_tells_each_change_once_in_order_though_answers_are_split(
    server: EtcdServer, prefix: bytes
) -> None:
    """Replayed history of some megabytes comes in fragments."""

    async def main() -> None:
        async with EtcdClient([server.uri]) as client:
            made = [await client.commit(prefix, [], [Put(f"{n % 7}", b"x" * 60_000)]) for n in range(80)]
            gone = await client.commit(prefix, [], [Delete("0"), Delete("1"), Put("2", b"")])
            seen: list[tuple[int, bytes, bool]] = []
            async with aclosing(client.watch(prefix, made[0].revision)) as watch:
                async for changes in watch:
                    for change in changes.changes:
                        entry = change.entry
                        seen.append((entry.mod_revision, entry.key.removeprefix(prefix), change.deleted))
                    if seen and seen[-1][0] == gone.revision:
                        break
            assert seen[:-3] == [(done.revision, b"%d" % (n % 7), False) for n, done in enumerate(made)]
            last = gone.revision
            assert sorted(seen[-3:]) == [(last, b"0", True), (last, b"1", True), (last, b"2", False)]

    run(main())


def test_a_watch_does_not_see_longer_prefixes(server: EtcdServer) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client:
            begin = await client.commit(b"/near2/", [], [Put("a", b"1")])
            await client.commit(b"/near/", [], [Put("b", b"1")])
            async with aclosing(client.watch(b"/near/", begin.revision)) as watch:
                async for changes in watch:
                    if changes.changes:
                        assert [one.entry.key for one in changes.changes] == [b"/near/b"]
                        break

    run(main())


def test_a_silent_watch_is_a_failed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_watch, "ASK_EVERY", 0.1)
    monkeypatch.setattr(etcd_watch, "SILENCE", 3.0)

    async def main(server: EtcdServer) -> None:
        async with EtcdClient([server.uri]) as client, aclosing(client.watch(b"/p/", 1)) as watch:
            until_then = time.monotonic() + 3.1
            async for _ in watch:  # quiet, but alive: longer than the silence that is allowed
                if time.monotonic() > until_then:
                    break
            monkeypatch.setattr(etcd_watch, "SILENCE", 0.3)
            server.freeze()
            with pytest.raises(EtcdAwayError, match="no sign of life"):
                await ends_of(watch)
            server.thaw()

    with running(tmp_path) as server:
        run(main(server))


async def ends_of(watch) -> None:  # type: ignore[no-untyped-def]
    async for _ in watch:
        pass


def test_after_a_fault_it_is_known_whether_a_change_may_have_been_made(tmp_path: Path) -> None:
    async def main(server: EtcdServer) -> None:
        with proxied(server.port) as link:
            async with EtcdClient([link.uri]) as client:
                await client.commit(b"/p/", [], [Put("a", b"1")])
                client._timeout = 0.5
                link.stall()
                with pytest.raises(EtcdInDoubtError):
                    await client.commit(b"/p/", [], [Put("a", b"2")])
                with pytest.raises(EtcdAwayError):
                    await client.snapshot(b"/p/")
            server.kill()
            async with EtcdClient([server.uri], timeout=0.5) as client:
                await is_certain(client)

    with running(tmp_path) as server:
        run(main(server))


async def is_certain(client: EtcdClient) -> None:
    """A change that could not be sent was not made; it is in doubt only if the time was up while it was tried."""
    while True:
        try:
            await client.commit(b"/p/", [], [Put("a", b"3")])
        except EtcdInDoubtError:
            continue
        except EtcdAwayError:
            return
        raise AssertionError("there is nobody to make it")


def test_calls_wait_for_etcd_to_come_back_within_their_time(tmp_path: Path) -> None:
    async def main(server: EtcdServer) -> None:
        async with EtcdClient([server.uri], timeout=40) as client:
            await client.commit(b"/p/", [], [Put("a", b"1")])
            server.kill()
            asking = asyncio.create_task(client.snapshot(b"/p/"))
            await asyncio.sleep(0.3)
            assert not asking.done()
            await asyncio.to_thread(server.start)
            assert [one.value for one in (await asking).keys] == [b"1"]

    with running(tmp_path) as server:
        run(main(server))


def test_an_answer_of_another_etcd_is_refused(tmp_path: Path) -> None:
    async def main(first: EtcdServer, other: EtcdServer) -> None:
        with proxied(first.port) as link:
            async with EtcdClient([link.uri], timeout=2) as client:
                await client.commit(b"/p/", [], [Put("a", b"1")])
                link.lead_to(other.port)
                with pytest.raises(ForeignError):
                    await client.snapshot(b"/p/")
                with pytest.raises(ForeignError):
                    await ends_of(client.watch(b"/p/", 1))
                link.lead_to(first.port)
                assert len((await client.snapshot(b"/p/")).keys) == 1
            async with EtcdClient([first.uri, other.uri], timeout=2) as client:
                await client.snapshot(b"/p/")
                first.kill()
                with pytest.raises(EtcdError):
                    await client.commit(b"/p/", [Compare("a", Field.MOD_REVISION, 77)], [Delete("a")])

    with running(tmp_path / "first") as first, running(tmp_path / "other") as other:
        run(main(first, other))


@pytest.mark.soak
def test_of_three_members_one_may_die_and_one_may_hang(tmp_path: Path) -> None:
    async def main(servers: list[EtcdServer]) -> None:
        async with EtcdClient([one.uri for one in servers]) as client:
            for at, server in enumerate(servers):
                await client.commit(b"/p/", [], [Put("a", b"%d" % at)])
                server.kill()
                began = time.monotonic()
                assert (await client.snapshot(b"/p/")).keys[0].value == b"%d" % at
                made = await client.commit(b"/p/", [], [Put("a", b"again")])
                assert made.ok
                assert time.monotonic() - began < 4
                await asyncio.to_thread(server.start)
            for server in servers:
                server.freeze()
                began = time.monotonic()
                assert (await client.snapshot(b"/p/")).keys[0].value == b"again"
                assert time.monotonic() - began < 4
                server.thaw()

    with running_cluster(tmp_path) as servers:
        run(main(servers))


def test_with_authentication_a_user_is_needed_and_nothing_shows_the_password(tmp_path: Path) -> None:
    async def main(server: EtcdServer) -> None:
        async with EtcdClient([server.uri]) as nobody:
            with pytest.raises(EtcdRefusedError, match="user name is empty") as unnamed:
                await nobody.snapshot(b"/p/")
            assert unnamed.value.hint
        async with EtcdClient([server.uri], user="root", password="wrong-word") as liar:
            with pytest.raises(EtcdRefusedError, match="authentication failed") as refused:
                await liar.snapshot(b"/p/")
            assert "wrong-word" not in f"{liar!r} {refused.value} {refused.value.hint}"
        async with EtcdClient([server.uri], user="root", password=PASSWORD) as client:
            assert (await client.commit(b"/p/", [], [Put("a", b"1")])).ok
            assert PASSWORD not in mask(f"it is {PASSWORD}")

    with running(tmp_path) as server:
        server.enable_authentication()
        run(main(server))


def test_a_token_that_etcd_does_not_know_is_replaced_unnoticed(tmp_path: Path) -> None:
    async def main(server: EtcdServer) -> None:
        async with EtcdClient([server.uri], user="root", password=PASSWORD) as client:
            lease = (await client.grant(60)).lease
            for ask in (
                client.commit(b"/p/", [], [Put("a", b"1", lease)]),
                client.snapshot(b"/p/"),
                client.grant(60),
                first_changes(client, b"/p/"),
            ):
                client._token = forgotten = "forgotten.1"
                assert await ask
                assert client._token != forgotten
            assert await client.keep_alive(lease) == 60

    with running(tmp_path) as server:
        server.enable_authentication()
        run(main(server))


@pytest.mark.soak
def test_a_token_that_has_become_too_old_is_replaced_unnoticed(tmp_path: Path) -> None:
    async def main(server: EtcdServer) -> None:
        async with EtcdClient([server.uri], user="root", password=PASSWORD) as client:
            assert (await client.commit(b"/p/", [], [Put("a", b"1")])).ok
            for ask in (client.snapshot(b"/p/"), client.grant(60), first_changes(client, b"/p/")):
                token = client._token
                await asyncio.sleep(3)  # tokens live for a second here, and are looked at once in a second
                assert await ask
                assert client._token != token

    with running(tmp_path, token_ttl=1) as server:
        server.enable_authentication()
        run(main(server))


async def first_changes(client: EtcdClient, prefix: bytes) -> Changes:
    """The first of a watch; one with an old token is refused once."""
    for _ in range(2):
        try:
            async with aclosing(client.watch(prefix, 1)) as watch:
                async for changes in watch:
                    if changes.changes:
                        return changes
        except EtcdRefusedError:
            continue
    raise AssertionError("the watch was refused twice")


def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "authority"), Authority(tmp_path, "stranger")
    pair, ours, other = authority.pair("server"), authority.pair("broker"), stranger.pair("stranger's")

    async def fails(uri: str, tls: ClientTls | None) -> EtcdError:
        async with EtcdClient([uri], tls=tls, timeout=1.0) as client:
            with pytest.raises(EtcdError) as error:
                await client.snapshot(b"/p/")
            return error.value

    async def main(server: EtcdServer) -> None:
        tls = ClientTls(authority.ca_file, ours.cert_file, ours.key_file)
        async with EtcdClient([server.uri], tls=tls) as client:
            assert (await client.commit(b"/p/", [], [Put("a", b"1")])).ok
        assert "CA" in str((await fails(server.uri, ClientTls(stranger.ca_file))).hint)
        await fails(server.uri, ClientTls(authority.ca_file))
        await fails(server.uri, ClientTls(authority.ca_file, other.cert_file, other.key_file))
        await fails(server.uri.replace("https", "http"), None)

    files = ServerFiles(pair.cert_file, pair.key_file, authority.ca_file, ask_clients=True)
    with running(tmp_path / "etcd", tls=files) as server:
        run(main(server))


def test_too_many_operations_are_refused_with_a_hint(server: EtcdServer, prefix: bytes) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client:
            with pytest.raises(EtcdRefusedError) as error:
                await client.commit(prefix, [], [Put(f"{n}", b"") for n in range(129)])
            assert "max-txn-ops" in str(error.value.hint)

    run(main())


@pytest.mark.parametrize(
    ("address", "tls", "target", "secure"),
    [
        ("http://etcd:2379", False, "etcd:2379", False),
        ("https://etcd:2379/", False, "etcd:2379", True),
        ("etcd:2379", False, "etcd:2379", False),
        ("etcd:2379", True, "etcd:2379", True),
        ("http://[::1]:2379", False, "[::1]:2379", False),
    ],
)
def test_addresses(address: str, tls: bool, target: str, secure: bool) -> None:
    endpoint = endpoint_of(address, tls=tls)
    assert (endpoint.target, endpoint.secure) == (target, secure)


@pytest.mark.parametrize(
    ("address", "tls"),
    [
        ("etcd", False),
        ("http://etcd", False),
        ("http://etcd:0", False),
        ("http://etcd:99999", False),
        ("ftp://etcd:2379", False),
        ("http://etcd:2379/path", False),
        ("http://root:secret@etcd:2379", False),
        ("http://root:secret@[::1:2379", False),
        ("http://[::1:2379", False),
        ("http://etcd:2379", True),
        ("", False),
    ],
)
def test_what_is_no_address(address: str, tls: bool) -> None:
    with pytest.raises(UsageError) as error:
        endpoint_of(address, tls=tls)
    assert "secret" not in str(error.value)


def test_no_address_at_all() -> None:
    with pytest.raises(UsageError):
        EtcdClient([])
