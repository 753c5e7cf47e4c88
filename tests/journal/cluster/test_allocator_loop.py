"""The leader's loop: its decisions against a scripted key space, then whole clusters of loops on a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.servers.etcd import EtcdServer, running

from penstock.journal import keys
from penstock.journal.cluster import allocate
from penstock.journal.cluster.allocate import Allocation
from penstock.journal.cluster.allocator.changes import Step
from penstock.journal.cluster.allocator.picture import Picture
from penstock.journal.cluster.allocator.state import State
from penstock.journal.cluster.entries import LeasedEntry
from penstock.journal.cluster.etcd import EtcdClient
from penstock.journal.cluster.etcd_errors import EtcdAwayError, EtcdError, EtcdInDoubtError
from penstock.journal.cluster.etcd_values import Committed, Compare, Delete, Operation, Put
from penstock.journal.cluster.mirror import EtcdKeySpace
from penstock.journal.protocol import BrokerSpec, JournalSpec

from .allocating import ORIGIN, Etcd, id_of, name_of, route
from .etcds import run, until


class Scripted(Etcd):
    """A key space whose transactions can go wrong, and which can fall behind etcd."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Callable[[Sequence[Compare], Sequence[Operation]], Committed]] = []
        """What becomes of the next transactions."""
        self.log: list[Sequence[Operation]] = []
        self.seen: dict[str, LeasedEntry] = {}
        self.seen_revision = 1
        self.unseen: list[str] = []
        self.frozen = False
        self._observers: list[Callable[[Sequence[str]], None]] = []
        self._moved = asyncio.Event()

    def get(self, key: str) -> LeasedEntry | None:
        return self.seen.get(key)

    def under(self, prefix: str) -> Iterator[tuple[str, LeasedEntry]]:
        return iter([(key, entry) for key, entry in sorted(self.seen.items()) if key.startswith(prefix)])

    def observe(self, changed: Callable[[Sequence[str]], None]) -> None:
        self._observers.append(changed)

    def tell(self, changed: Sequence[str]) -> None:
        super().tell(changed)
        self.unseen += changed
        if not self.frozen:
            self.catch_up()

    def catch_up(self) -> None:
        self.frozen = False
        self.seen, self.seen_revision = dict(self.entries), self.revision
        changed, self.unseen = self.unseen, []
        for observer in self._observers:
            observer(changed)
        self._moved.set()
        self._moved = asyncio.Event()

    async def wait_for_revision(self, revision: int) -> None:
        while self.seen_revision < revision:
            await self._moved.wait()

    async def commit(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Committed:
        await asyncio.sleep(0)
        self.log.append(operations)
        if self.faults:
            return self.faults.pop(0)(compares, operations)
        return self.commit_now(compares, operations)

    @asynccontextmanager
    async def allocated_by(self, name: str) -> AsyncIterator[Allocation]:
        allocation = Allocation(self, id_of(name), max_replication=3, delay=0.0)
        task = asyncio.create_task(allocation.run())
        try:
            yield allocation
            assert not task.done(), "the loop has died"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def serving(self, journal: str) -> list[str]:
        return [name_of(held.member) for held in self.picture.state().held.get(journal, ())]


@pytest.fixture
def etcd() -> Scripted:
    etcd = Scripted()
    for at, name in enumerate(("a1", "b1", "c1")):
        etcd.announce(name, 10, lease=at + 1)
    etcd.make("x", 2)
    return etcd


async def quiet(allocation: Allocation) -> None:
    """Until it has no news, and waits for some."""
    while allocation._news.is_set() or not allocation._news._waiters:  # noqa: ASYNC110 - it never tells
        await asyncio.sleep(0.002)


def test_only_the_member_that_was_here_first_acts(etcd: Scripted) -> None:
    async def main() -> None:
        async with etcd.allocated_by("b1") as second:
            await quiet(second)
            assert not second.is_leader
            assert etcd.log == []
            async with etcd.allocated_by("a1") as first:
                assert first.is_leader
                await until(lambda: len(etcd.serving("x")) == 2)
            etcd.expire(1)
            assert second.is_leader
            etcd.make("y", 1)
            await until(lambda: etcd.serving("y"))

    run(main())


def test_a_problem_is_solved_once_and_again_when_it_changes(etcd: Scripted) -> None:
    async def main() -> None:
        async with etcd.allocated_by("a1") as allocation:
            await quiet(allocation)
            for _ in range(3):
                etcd.sync("x")
                etcd.make("x", 2)
                await quiet(allocation)
            assert allocation.counts.solutions == 1
            etcd.make("x", 3)
            await quiet(allocation)
            assert allocation.counts.solutions == 2
            assert len(etcd.serving("x")) == 3
            assert allocation.counts.steps == {Step.ADD: 3}
            assert (allocation.counts.members, allocation.counts.items, allocation.counts.wanted) == (3, 1, 3)

    run(main())


def test_at_rest_nothing_is_sent(etcd: Scripted) -> None:
    async def main() -> None:
        async with etcd.allocated_by("a1") as allocation:
            await quiet(allocation)
            sent = len(etcd.log)
            etcd.put("trims/x", b"5")
            etcd.sync("x")
            await quiet(allocation)
            assert len(etcd.log) == sent

    run(main())


def test_a_failed_comparison_ends_the_round_and_news_begin_the_next(etcd: Scripted) -> None:
    async def main() -> None:
        for at in range(300):
            etcd.make(f"j{at:03}", 1)
        etcd.frozen = False

        def overtaken(compares: Sequence[Compare], operations: Sequence[Operation]) -> Committed:
            etcd.announce("b1", 400, lease=2)
            return etcd.commit_now(compares, operations)

        for name, lease in (("a1", 1), ("b1", 2), ("c1", 3)):
            etcd.announce(name, 400, lease=lease)
        etcd.faults = [etcd.commit_now, overtaken]
        async with etcd.allocated_by("a1") as allocation:
            await until(lambda: all(etcd.serving(f"j{at:03}") for at in range(300)))
            assert allocation.counts.overtaken == 1
            assert allocation.counts.steps == {Step.ADD: 302}
            assert allocation.counts.solutions == 1

    run(main())


def test_no_round_begins_before_the_last_one_can_be_seen(etcd: Scripted) -> None:
    async def main() -> None:
        def behind(compares: Sequence[Compare], operations: Sequence[Operation]) -> Committed:
            etcd.frozen = True
            return etcd.commit_now(compares, operations)

        etcd.faults = [behind]
        async with etcd.allocated_by("a1") as allocation:
            await until(lambda: etcd.log)
            for _ in range(5):
                allocation._news.set()
                await asyncio.sleep(0.02)
            assert len(etcd.log) == 1
            etcd.catch_up()
            await quiet(allocation)
            assert len(etcd.log) == 1

    run(main())


def test_what_was_done_before_trouble_is_waited_for_as_well(
    etcd: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocate, "_FIRST_PAUSE", 0.01)

    async def main() -> None:
        for at in range(200):
            etcd.make(f"j{at:03}", 1)
        etcd.announce("a1", 400, lease=1)

        def behind(compares: Sequence[Compare], operations: Sequence[Operation]) -> Committed:
            etcd.frozen = True
            return etcd.commit_now(compares, operations)

        def away(compares: Sequence[Compare], operations: Sequence[Operation]) -> Committed:
            raise EtcdAwayError("no endpoint answers")

        etcd.faults = [behind, away]
        async with etcd.allocated_by("a1") as allocation:
            await until(lambda: allocation.counts.troubles == 1)
            await asyncio.sleep(0.1)
            assert len(etcd.log) == 2
            etcd.catch_up()
            await until(lambda: all(etcd.serving(f"j{at:03}") for at in range(200)))
            assert allocation.counts.overtaken == 0

    run(main())


@pytest.mark.parametrize(
    "error", [EtcdAwayError("gone"), EtcdInDoubtError("?"), TimeoutError(), OSError("cut")]
)
def test_trouble_ends_a_round_and_never_the_loop(
    etcd: Scripted, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocate, "_FIRST_PAUSE", 0.01)

    async def main() -> None:
        def fail(compares: Sequence[Compare], operations: Sequence[Operation]) -> Committed:
            raise error

        etcd.faults = [fail] * 4
        async with etcd.allocated_by("a1") as allocation:
            await until(lambda: len(etcd.serving("x")) == 2)
            assert allocation.counts.troubles == 4

    run(main())


def test_a_transaction_in_doubt_can_have_no_effect_after_the_next_decision(
    etcd: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocate, "_FIRST_PAUSE", 0.01)

    async def main() -> None:
        late: list[tuple[Sequence[Compare], Sequence[Operation]]] = []

        def lost(compares: Sequence[Compare], operations: Sequence[Operation]) -> Committed:
            late.append((compares, operations))
            raise EtcdInDoubtError("etcd did not answer in time")

        etcd.faults = [lost]
        async with etcd.allocated_by("a1") as allocation:
            await until(lambda: len(etcd.serving("x")) == 2)
            (fence,) = etcd.log[1]
            assert isinstance(fence, Put)
            assert fence.key == "members/a#1"
            assert (fence.value, fence.lease) == (etcd.entries[fence.key].value, 1)
            assert not etcd.commit_now(*late[0]).ok
            await quiet(allocation)
            assert allocation.counts.steps == {Step.ADD: 2}

    run(main())


def test_a_transaction_in_doubt_that_was_made_is_seen_before_the_next_decision(
    etcd: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocate, "_FIRST_PAUSE", 0.01)

    async def main() -> None:
        def made(compares: Sequence[Compare], operations: Sequence[Operation]) -> Committed:
            etcd.frozen = True
            assert etcd.commit_now(compares, operations).ok
            raise EtcdInDoubtError("etcd did not answer in time")

        etcd.faults = [made]
        async with etcd.allocated_by("a1") as allocation:
            await until(lambda: len(etcd.log) == 2)
            await asyncio.sleep(0.1)
            assert len(etcd.log) == 2, "only the leader's own key was written"
            etcd.catch_up()
            await quiet(allocation)
            assert len(etcd.log) == 2
            assert len(etcd.serving("x")) == 2

    run(main())


def test_a_revision_that_never_comes_is_not_waited_for_for_ever(
    etcd: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocate, "_LOOK_AGAIN", 0.05)

    async def main() -> None:
        def elsewhere(compares: Sequence[Compare], operations: Sequence[Operation]) -> Committed:
            assert etcd.commit_now(compares, operations).ok
            return Committed(True, etcd.revision + 1000, ORIGIN)

        etcd.faults = [elsewhere]
        async with etcd.allocated_by("a1") as allocation:
            await quiet(allocation)
            etcd.make("y", 1)
            await until(lambda: etcd.serving("y"))

    run(main())


def test_one_step_that_never_holds_does_not_hold_up_the_others(
    etcd: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocate, "_LOOK_AGAIN", 0.05)

    async def main() -> None:
        async with etcd.allocated_by("a1") as allocation:
            await quiet(allocation)
            etcd.sync("x")
            # What the mirror shows of a journal whose newest value it could not read: an older one.
            spec = JournalSpec(name="x", replication=1).SerializeToString(deterministic=True)
            etcd.seen["items/x"] = LeasedEntry(spec, 1, 1)
            for observer in etcd._observers:
                observer(["items/x"])
            etcd.entries["items/y"] = etcd.seen["items/y"] = LeasedEntry(
                JournalSpec(name="y", replication=3).SerializeToString(deterministic=True), 2, 2
            )
            for observer in etcd._observers:
                observer(["items/y"])
            etcd.picture.update("items/y", etcd.entries["items/y"])
            await until(lambda: len(etcd.serving("y")) == 3)
            assert allocation.counts.overtaken > 0
            assert len(etcd.serving("x")) == 2

    run(main())


def test_a_member_is_drained_when_it_leaves_and_holds_nothing(etcd: Scripted) -> None:
    async def main() -> None:
        async with etcd.allocated_by("a1") as allocation:
            await until(lambda: len(etcd.serving("x")) == 2)
            (name, *_) = etcd.serving("x")
            leaving = Allocation(etcd, id_of(name), max_replication=3)
            assert not leaving.holds_nothing
            drained = asyncio.create_task(leaving.drained())
            etcd.announce(name, 10, etcd.entries[keys.member_key(id_of(name))].lease, exiting=True)
            await until(lambda: len(etcd.serving("x")) == 3)
            await quiet(allocation)
            assert not drained.done(), "the new one has not agreed yet"
            etcd.sync("x")
            await asyncio.wait_for(drained, 5)
            assert leaving.holds_nothing
            assert name not in etcd.serving("x")
            await quiet(allocation)
            etcd.sync("x")
            assert len(etcd.serving("x")) == 2
            others = Allocation(etcd, id_of(etcd.serving("x")[0]), max_replication=3)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(others.drained(), 0.05)

    run(main())


# On a real etcd.


class Node:
    """A broker as far as the allocator sees it: a lease, a member key, a mirror, the loop; it leads in earnest, in
    that it has its replicas agree."""

    def __init__(self, server: EtcdServer, prefix: str, name: str, limit: int) -> None:
        self.client = EtcdClient([server.uri])
        self.space = EtcdKeySpace(self.client, prefix, delay=0.005)
        self.id = id_of(name)
        self._limit = limit
        self._tasks: list[asyncio.Task[None]] = []
        self.lease = 0
        self.allocation: Allocation

    async def start(self) -> None:
        self.lease = (await self.client.grant(60)).lease
        revision = await self.announce()
        await self.space.load(revision)
        self.allocation = Allocation(self.space, self.id, max_replication=3)
        self._tasks = [
            asyncio.create_task(work()) for work in (self.space.run, self.allocation.run, self._agree)
        ]

    async def announce(self, *, exiting: bool = False) -> int:
        spec = BrokerSpec(journal_limit=self._limit, exiting=exiting)
        spec.process_spec.id.zone, spec.process_spec.id.suffix = self.id
        put = Put(keys.member_key(self.id), spec.SerializeToString(), self.lease)
        return (await self.space.commit([], [put])).revision

    async def stop(self) -> None:
        assert not any(task.done() for task in self._tasks)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()

    async def die(self) -> None:
        await self.client.revoke(self.lease)
        await self.stop()

    def state(self) -> State:
        picture = Picture(3)
        for key, entry in self.space.under(""):
            picture.update(key, entry)
        return picture.state()

    async def _agree(self) -> None:
        while True:
            state = self.state()
            for journal, group in state.held.items():
                led = [held for held in group if held.slot == 0 and held.member == self.id]
                if led and not state.is_consistent(journal):
                    value = route([name_of(held.member) for held in group], name_of(self.id))
                    puts = [Put(keys.assignment_key(held.assignment), value, held.lease) for held in group]
                    with suppress(EtcdError):  # it may restart, and will be asked again
                        await self.space.commit([], puts)
            await asyncio.sleep(0.03)

    def at_rest(self, replication: int) -> bool:
        state = self.state()
        return bool(state.items) and all(
            len(state.held.get(journal, ())) == replication and state.is_consistent(journal)
            for journal in state.items
        )


async def make_journals(client: EtcdClient, prefix: str, count: int, replication: int) -> None:
    for at in range(0, count, 100):
        puts = [
            Put(
                keys.item_key(f"j/{n:04}"),
                JournalSpec(name=f"j/{n:04}", replication=replication).SerializeToString(),
            )
            for n in range(at, min(at + 100, count))
        ]
        await client.commit(f"{prefix}/".encode(), [], puts)


async def leave_in_the_end(node: Node) -> None:
    """What was on its way to an etcd that restarts is in doubt."""
    while True:
        with suppress(EtcdInDoubtError):
            await node.announce(exiting=True)
            return


def test_a_cluster_on_etcd_survives_deaths_drains_and_restarts_of_etcd(tmp_path: Path) -> None:
    async def main(server: EtcdServer, stack: AsyncExitStack) -> None:
        async def started(name: str) -> Node:
            node = Node(server, "/cluster", name, 200)
            await node.start()
            return node

        first, second, third, fourth = [await started(name) for name in ("a1", "a2", "b1", "b2")]
        for node in (third, fourth):
            stack.push_async_callback(node.stop)
        await make_journals(fourth.client, "/cluster", 60, 2)
        await until(lambda: fourth.at_rest(2))
        assert first.allocation.is_leader
        assert set(fourth.state().loads.values()) == {30}
        await first.die()
        await until(lambda: second.allocation.is_leader and fourth.at_rest(2))
        server.restart()
        await leave_in_the_end(second)
        await second.allocation.drained()
        await second.die()
        await until(lambda: third.allocation.is_leader and fourth.at_rest(2))
        assert set(fourth.state().loads) == {third.id, fourth.id}
        assert all(25 <= led <= 35 for led in fourth.state().primaries.values())
        fifth = await started("a1")
        stack.push_async_callback(fifth.stop)
        await until(
            lambda: fourth.at_rest(2) and fourth.state().loads[fifth.id] == 60
        )  # the only one of its zone
        deletes = [Delete(keys.item_key(f"j/{n:04}")) for n in range(60)]
        await fourth.space.commit([], deletes)
        await until(lambda: not fourth.state().held)
        await until(lambda: third.allocation.counts.steps[Step.REMOVE] >= 120)  # it counts after it is seen

    async def with_nodes(server: EtcdServer) -> None:
        async with AsyncExitStack() as stack:
            await main(server, stack)

    with running(tmp_path) as server:
        run(with_nodes(server))


@pytest.mark.soak
def test_a_thousand_journals_are_assigned_in_few_transactions(server: EtcdServer) -> None:
    async def main() -> None:
        nodes = [Node(server, "/thousand", name, 4000) for name in ("a1", "b1", "c1")]
        for node in nodes:
            node._agree = asyncio.Event().wait  # type: ignore[assignment, method-assign]
            await node.start()
        await make_journals(nodes[0].client, "/thousand", 1000, 3)
        await until(lambda: sum(len(group) for group in nodes[2].state().held.values()) == 3000)
        counts = nodes[0].allocation.counts
        await until(lambda: counts.steps == {Step.ADD: 3000})  # others may see it before it counts it
        assert counts.transactions - counts.overtaken <= 24 + counts.rounds
        for node in nodes:
            await node.stop()

    run(main())
