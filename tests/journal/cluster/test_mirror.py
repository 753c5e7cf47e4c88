"""The mirror of a prefix of etcd: equal to it after any fault, at a revision that all mirrors agree on."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.servers.etcd import EtcdServer, running_cluster
from tests.servers.proxy import Proxy, proxied

from penstock.base.errors import UsageError
from penstock.journal.cluster import etcd_watch, mirror
from penstock.journal.cluster.entries import Entries, LeasedEntry
from penstock.journal.cluster.etcd import EtcdClient
from penstock.journal.cluster.etcd_errors import EtcdError, EtcdInDoubtError
from penstock.journal.cluster.etcd_values import Change, Compare, Delete, Field, Operation, Put
from penstock.journal.cluster.mirror import EtcdKeySpace, Health, prefix_bytes

from .etcds import run, until

Held = dict[str, LeasedEntry]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a watch left out is noticed, and etcd is asked again, at once."""
    monkeypatch.setattr(etcd_watch, "ASK_EVERY", 0.05)
    monkeypatch.setattr(mirror, "_PAUSES", (0.0, 0.01, 0.05))


@pytest.fixture
def suspicious(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is found out at once, so a slow machine may be taken for a fault as well."""
    monkeypatch.setattr(etcd_watch, "SILENCE", 0.3)


@asynccontextmanager
async def mirrored(
    uris: Sequence[str], prefix: str = "/p", *, asked: int = 0, limit: float = 5.0, **options: float
) -> AsyncIterator[EtcdKeySpace]:
    """A mirror that is loaded and follows."""
    async with EtcdClient(uris, timeout=limit) as client:
        space = EtcdKeySpace(client, prefix, **options)  # type: ignore[arg-type]
        await space.load(asked)
        following = asyncio.create_task(space.run())
        try:
            yield space
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def healths_of(space: EtcdKeySpace) -> list[Health]:
    """All that it goes through from now on, however short."""
    healths: list[Health] = []
    space.on_health.append(healths.append)
    return healths


def held(space: EtcdKeySpace) -> Held:
    return dict(space.under(""))


async def there(client: EtcdClient, prefix: str = "/p", revision: int = 0) -> Held:
    """What etcd says."""
    found = await client.snapshot(prefix_bytes(prefix), revision)
    return {
        one.key.removeprefix(prefix_bytes(prefix)).decode(): LeasedEntry(
            one.value, one.create_revision, one.mod_revision, one.lease
        )
        for one in found.keys
    }


class Observer:
    """Follows what it is told, and complains about what it should not be told."""

    def __init__(self, space: EtcdKeySpace) -> None:
        self._space = space
        self.told = held(space)
        self.steps: list[tuple[int, int, Held]] = []
        self.complaints: list[str] = []
        space.observe(self.changed)

    def changed(self, keys: Sequence[str]) -> None:
        for key in keys:
            before, entry = self.told.pop(key, None), self._space.get(key)
            if entry is not None:
                self.told[key] = entry
            if before == entry:
                self.complaints.append(f"{key} is as it was")
            if before is not None and entry is not None and entry.mod_revision <= before.mod_revision:
                self.complaints.append(f"{key} went back from {before} to {entry}")
        if self.told != held(self._space):
            self.complaints.append(f"not told of a change among those of {keys}")
        if self.steps and self.steps[-1][0] > self._space.revision:
            self.complaints.append("the revision went back")
        self.steps.append((self._space.revision, self._space._entries.read_at, dict(self.told)))


def test_it_is_loaded_at_the_revision_asked_for_and_moves_with_its_prefix_only(
    server: EtcdServer, prefix: str
) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client:
            at, near = prefix_bytes(prefix), prefix_bytes(f"{prefix}2")
            first = await client.commit(at, [], [Put("a", b"1")])
            await client.commit(near, [], [Put("b", b"1")])
            ours = await client.commit(at, [], [Put("members/me", b"")])
            later = await client.commit(at, [], [Put("a", b"2")])
            async with mirrored([server.uri], prefix, asked=ours.revision) as space:
                assert space.revision in (ours.revision, later.revision)
                await space.wait_for_revision(later.revision)
                await client.commit(near, [], [Put("c", b"1")])
                await asyncio.sleep(0.1)
                assert space.revision == later.revision
                assert held(space) == {
                    "a": LeasedEntry(b"2", first.revision, later.revision),
                    "members/me": LeasedEntry(b"", ours.revision, ours.revision),
                }
                assert [key for key, _ in space.under("members/")] == ["members/me"]
                assert space.origin is not None
                assert space.origin.cluster_id == ours.origin.cluster_id
            async with mirrored([server.uri], prefix) as space:
                assert space.revision == later.revision
            gone = await client.commit(at, [], [Delete("a")])
            async with mirrored([server.uri], prefix) as space:  # the deletion is known from history only
                await space.wait_for_revision(gone.revision)
                assert (space.revision, list(held(space))) == (gone.revision, ["members/me"])

    run(main())


def test_a_transaction_can_be_seen_when_it_returns(server: EtcdServer, prefix: str) -> None:
    async def main() -> None:
        async with mirrored([server.uri], prefix) as space:
            assert await space.transact({"a": 0}, [("a", b"1")], [])
            entry = space.get("a")
            assert entry is not None
            assert entry == LeasedEntry(b"1", space.revision, space.revision)
            assert not await space.transact({"a": 0}, [("a", b"2")], [])
            assert await space.transact({"a": entry.mod_revision}, [("b", b"2")], ["a"])
            assert list(held(space)) == ["b"]
            assert await space.transact({}, [], ["missing"])
            assert await space.transact({"missing": 0}, [], [])

    run(main())


def test_what_others_changed_can_be_seen_when_a_transaction_has_failed(
    server: EtcdServer, prefix: str
) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as other, mirrored([server.uri], prefix, delay=0.3) as space:
            await space.transact({}, [("a", b"1")], [])
            old = space.get("a")
            assert old is not None
            await other.commit(space.prefix, [], [Put("a", b"2")])
            assert not await space.transact({"a": old.mod_revision}, [("a", b"3")], [])
            entry = space.get("a")
            assert entry is not None
            assert entry.value == b"2"

    run(main())


def test_leases_are_seen(server: EtcdServer, prefix: str) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client, mirrored([server.uri], prefix) as space:
            lease = (await client.grant(60)).lease
            made = await space.commit([Compare("a", Field.CREATE_REVISION, 0)], [Put("a", b"1", lease)])
            await space.wait_for_revision(made.revision)
            assert space.get("a") == LeasedEntry(b"1", made.revision, made.revision, lease)
            await client.revoke(lease)
            await until(lambda: space.get("a") is None)
            assert space.revision == made.revision + 1

    run(main())


def test_changes_that_come_together_are_told_together(server: EtcdServer, prefix: str) -> None:
    delay = 0.5

    async def main() -> None:
        async with EtcdClient([server.uri]) as client, mirrored([server.uri], prefix, delay=delay) as space:
            observer, began = Observer(space), time.monotonic()
            for number in range(40):
                made = await client.commit(space.prefix, [], [Put(f"{number % 4}", b"%d" % number)])
            await space.wait_for_revision(made.revision)
            assert len(observer.steps) <= 1 + (time.monotonic() - began) / delay
            assert observer.complaints == []
            assert held(space) == await there(client, prefix)

    run(main())


def test_waiting_for_a_revision_can_be_given_up(server: EtcdServer, prefix: str) -> None:
    async def main() -> None:
        async with mirrored([server.uri], prefix) as space:
            waiting = [
                asyncio.create_task(space.wait_for_revision(space.revision + far)) for far in (1, 1, 10**9)
            ]
            await asyncio.sleep(0)
            waiting[1].cancel()
            await space.transact({}, [("a", b"1")], [])
            await waiting[0]
            assert [task.done() for task in waiting] == [True, True, False]
            waiting[2].cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert space._waits._waiting == []

    run(main())


def test_a_failing_observer_does_not_stop_the_others(server: EtcdServer, prefix: str) -> None:
    async def main() -> None:
        async with mirrored([server.uri], prefix) as space:

            def fails(keys: Sequence[str]) -> None:
                raise ZeroDivisionError

            space.observe(fails)
            observer = Observer(space)
            assert await space.transact({}, [("a", b"1")], [])
            assert observer.told == held(space)

    run(main())


def test_refused_values_are_skipped_and_named(server: EtcdServer, prefix: str) -> None:
    async def main() -> None:
        async with EtcdClient([server.uri]) as client:
            space = EtcdKeySpace(
                client, prefix, refuses=lambda key, value: "bad" if value == b"bad" else None
            )
            await client.commit(space.prefix, [], [Put("a", b"bad"), Put("b", b"good")])
            await space.load()
            assert (list(held(space)), space.refused) == (["b"], {"a": "bad"})

    run(main())


async def changed_behind_its_back(link: Proxy, client: EtcdClient, fault: Callable[[], object]) -> int:
    """Cut the mirror off; put, change and delete; have the fault happen; the revision of the last change."""
    link.cut()
    await client.commit(b"/p/", [], [Put("a", b"changed"), Put("new", b"1")])
    await client.commit(b"/p/", [], [Put("brief", b"1")])
    await client.commit(b"/p/", [], [Delete("b"), Delete("brief")])
    await asyncio.to_thread(fault)
    return (await client.commit(b"/p/", [Compare("b", Field.CREATE_REVISION, 0)], [Delete("c")])).revision


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["none", "restart", "compaction"])
def test_what_happened_while_it_was_cut_off_is_found_and_told(own: EtcdServer, fault: str) -> None:
    faults = {"none": lambda: None, "restart": own.restart, "compaction": lambda: None}

    async def main(link: Proxy) -> None:
        async with EtcdClient([own.uri]) as client, mirrored([link.uri]) as space:
            await space.transact({}, [(key, b"1") for key in ("a", "b", "c", "same")], [])
            observer, gaps = Observer(space), list[int]()
            space.on_gap.append(lambda: gaps.append(space.revision))
            last = await changed_behind_its_back(link, client, faults[fault])
            await until(lambda: space.health is Health.BEHIND)
            assert space.trouble is not None
            elsewhere = await client.commit(b"/elsewhere/", [], [Put("x", b"")])
            if fault == "compaction":
                own.compact()
            link.heal()
            await until(lambda: space.health is Health.CURRENT and space.revision >= last)
            assert held(space) == observer.told == await there(client)
            assert observer.complaints == []
            if fault == "compaction":
                assert (space.revision, gaps) == (elsewhere.revision, [elsewhere.revision])
            else:
                assert (space.revision, gaps) == (last, [])
            assert await space.transact({}, [("a", b"on")], [])
            assert held(space) == observer.told == await there(client)

    with proxied(own.port) as link:
        run(main(link))


@pytest.mark.usefixtures("impatient", "suspicious")
def test_a_stalled_connection_is_left(own: EtcdServer) -> None:
    async def main(link: Proxy) -> None:
        async with EtcdClient([own.uri]) as client, mirrored([link.uri]) as space:
            await space.transact({}, [("a", b"1")], [])
            healths = healths_of(space)
            link.stall()
            made = await client.commit(b"/p/", [], [Put("a", b"2")])
            await until(lambda: Health.BEHIND in healths)
            link.heal()
            await space.wait_for_revision(made.revision)
            await until(lambda: space.health is Health.CURRENT)
            assert held(space) == await there(client)

    with proxied(own.port) as link:
        run(main(link))


@pytest.mark.usefixtures("impatient")
def test_an_etcd_that_was_set_back_is_not_believed(own: EtcdServer, tmp_path: Path) -> None:
    def lose_everything() -> None:
        own.kill()
        shutil.rmtree(tmp_path / "etcd" / "data")
        own.start()

    async def main() -> None:
        async with mirrored([own.uri]) as space:
            await space.transact({}, [("a", b"1")], [])
            await space.transact({}, [("b", b"1")], [])
            before, at, troubles = held(space), space.revision, list[str]()
            space.on_health.append(lambda health: troubles.append(f"{health} {space.trouble}"))
            await asyncio.to_thread(lose_everything)
            await until(lambda: any(one.startswith(str(Health.BACKWARDS)) for one in troubles))
            assert (held(space), space.revision) == (before, at)
            assert any("set back" in one for one in troubles)

    run(main())


@pytest.mark.usefixtures("impatient")
def test_an_event_that_a_watch_leaves_out_is_found(own: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd is not known to do this; if it ever does, everything is read anew."""
    applied = Entries.apply
    left_out = list[Change]()

    def leaves_out(entries: Entries, changes: Sequence[Change]) -> list[str]:
        if not left_out:
            left_out.extend(changes[:1])
            changes = changes[1:]
        return applied(entries, changes)

    async def main() -> None:
        async with EtcdClient([own.uri]) as client, mirrored([own.uri]) as space:
            await space.transact({}, [("a", b"1"), ("b", b"1")], [])
            observer, healths = Observer(space), healths_of(space)
            monkeypatch.setattr(Entries, "apply", leaves_out)
            await client.commit(b"/p/", [], [Put("a", b"2"), Put("b", b"2")])
            await until(lambda: left_out)
            last = await client.commit(b"/p/", [], [Put("a", b"3")])
            await until(lambda: Health.BEHIND in healths and space.health is Health.CURRENT)
            await space.wait_for_revision(last.revision)
            assert held(space) == observer.told == await there(client)

    run(main())


@pytest.mark.usefixtures("impatient")
def test_another_etcd_is_not_believed_and_the_right_one_is_again(own: EtcdServer, server: EtcdServer) -> None:
    async def main(link: Proxy) -> None:
        async with EtcdClient([own.uri]) as client, mirrored([link.uri], limit=2.0) as space:
            await space.transact({}, [("a", b"1")], [])
            before, healths = held(space), healths_of(space)
            link.lead_to(server.port)
            await until(lambda: Health.FOREIGN in healths)
            assert held(space) == before
            made = await client.commit(b"/p/", [], [Put("a", b"2")])
            link.lead_to(own.port)
            await space.wait_for_revision(made.revision)
            assert held(space) == await there(client)

    with proxied(own.port) as link:
        run(main(link))


@pytest.mark.soak
@pytest.mark.usefixtures("impatient")
def test_of_three_members_any_may_die_and_without_a_majority_it_waits(tmp_path: Path) -> None:
    async def main(servers: list[EtcdServer]) -> None:
        uris = [one.uri for one in servers]
        async with EtcdClient(uris, timeout=1.0) as client, mirrored(uris, limit=2.0) as space:
            observer = Observer(space)
            for server in servers:
                await asyncio.to_thread(server.kill)
                await space.wait_for_revision(await put_in_the_end(client, server.uri.encode()))
                await asyncio.to_thread(server.start)
            for server in servers[:2]:
                server.kill()
            await until(lambda: space.health is Health.BEHIND)
            assert held(space) == observer.told
            for server in servers[:2]:
                server.start(wait=False)
            await until(lambda: space.health is Health.CURRENT)
            assert await space.transact({}, [("b", b"1")], ["a"])
            assert held(space) == observer.told == await there(client)
            assert observer.complaints == []

    with running_cluster(tmp_path) as servers:
        run(main(servers))


async def put_in_the_end(client: EtcdClient, value: bytes) -> int:
    """What was on its way to a leader that died is in doubt."""
    while True:
        with suppress(EtcdInDoubtError):
            return (await client.commit(b"/p/", [], [Put("a", value)])).revision


@pytest.mark.usefixtures("impatient", "suspicious")
@pytest.mark.parametrize("seed", [1])
def test_random_changes_and_faults_end_in_a_mirror_equal_to_etcd(own: EtcdServer, seed: int) -> None:
    with proxied(own.port) as link:
        run(random_faults(own, link, random.Random(seed), faults=8))


@pytest.mark.soak
@pytest.mark.usefixtures("impatient", "suspicious")
@pytest.mark.parametrize("seed", range(10, 30))
def test_many_random_changes_and_faults(own: EtcdServer, seed: int) -> None:
    with proxied(own.port) as link:
        run(random_faults(own, link, random.Random(seed), faults=25))


async def random_faults(own: EtcdServer, link: Proxy, chance: random.Random, faults: int) -> None:
    """Several write, at random; the mirror's connection and etcd itself fail, at random."""
    async with EtcdClient([own.uri]) as client, mirrored([link.uri], limit=0.5, delay=0.01) as space:
        observer, gaps = Observer(space), list[int]()
        space.on_gap.append(lambda: gaps.append(space.revision))
        enough = asyncio.Event()
        writers = [asyncio.create_task(write(client, chance, enough)) for _ in range(3)]
        compacted = False
        for _ in range(faults):
            await asyncio.sleep(chance.uniform(0, 0.1))
            fault = chance.choice(["reset", "cut", "stall", "restart", "compact", "late compact"])
            compacted |= fault.endswith("compact")
            await fail(fault, own, link, chance)
        enough.set()
        await asyncio.gather(*writers)
        last = await client.commit(b"/p/", [], [Put("last", b"")])
        await space.wait_for_revision(last.revision)
        assert observer.complaints == []
        assert space.revision == last.revision
        assert held(space) == observer.told == await there(client)
        assert compacted or not gaps
        assert observer.steps
        for revision, read_at, state in observer.steps:
            assert await is_history(client, state, revision, read_at)


async def write(client: EtcdClient, chance: random.Random, enough: asyncio.Event) -> None:
    while not enough.is_set():
        keys = chance.sample("abcdefgh", 3)
        operations: list[Operation] = [
            Put(key, b"%d" % chance.randrange(4)) if chance.random() < 0.6 else Delete(key)
            for key in keys[: chance.randint(1, 3)]
        ]
        if chance.random() < 0.2:
            operations = [Put("x", b"")]
        prefix = b"/elsewhere/" if chance.random() < 0.2 else b"/p/"
        compares = [Compare("a", Field.CREATE_REVISION, 0)] if chance.random() < 0.3 else []
        try:
            await client.commit(prefix, compares, operations)
        except EtcdError:
            continue  # in doubt, or etcd is away: both are meant
        await asyncio.sleep(chance.uniform(0, 0.01))


async def fail(fault: str, own: EtcdServer, link: Proxy, chance: random.Random) -> None:
    match fault:
        case "reset":
            link.reset()
        case "restart":
            await asyncio.to_thread(own.restart)
        case "compact":
            await asyncio.to_thread(own.compact)
        case "late compact":
            link.cut()
            await asyncio.sleep(chance.uniform(0, 0.2))
            await asyncio.to_thread(own.compact)
            link.heal()
        case "cut" | "stall":
            (link.cut if fault == "cut" else link.stall)()
            await asyncio.sleep(chance.uniform(0, 0.5))
            link.heal()


async def is_history(client: EtcdClient, state: Held, revision: int, read_at: int) -> bool:
    """Whether this was etcd's state at the revision; right after a reading, that of the reading will do."""
    for at in (revision, read_at):
        try:
            if await there(client, revision=at) == state:
                return True
        except EtcdError:
            return True  # forgotten: nobody can tell
    return False


@pytest.mark.parametrize("prefix", ["", "/", "p", "/p/", "//p", "/p//q", "/p/../q", "/./p"])
def test_what_is_no_prefix(prefix: str) -> None:
    with pytest.raises(UsageError):
        prefix_bytes(prefix)
