"""Several brokers in one process, over real gRPC on loopback, with a key space that the test writes itself.

A `Node` is made of the broker's own parts: resolver, replicas, append machine, both sides of replication, surveys. Only
the key space is not etcd: all nodes share one, each through a `View` that the test can hold back. A node can be killed
(its streams break, nothing is closed in order) and started again on what it left on its disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import grpc.aio
import pytest

from penstock.base.disk import Disk
from penstock.journal import batches, keys, maintenance, read, replicate, wire
from penstock.journal.append import Appending, AppendMachine
from penstock.journal.auth import Authorizer, Keys, OpenAuthorizer
from penstock.journal.chunks import Content, whole
from penstock.journal.claims import EVERYTHING, Claims
from penstock.journal.cluster import proxy, reading
from penstock.journal.cluster.advertise import Advertising, stored_route
from penstock.journal.cluster.peers import Peers
from penstock.journal.cluster.pipeline import Pipelines
from penstock.journal.cluster.reading import Reading
from penstock.journal.cluster.survey import Surveyor
from penstock.journal.flow import FlowLimits
from penstock.journal.keys import Assignment, MemberId
from penstock.journal.keyspace import LocalKeySpace
from penstock.journal.localspool import Workshop
from penstock.journal.metrics import Metrics
from penstock.journal.protocol import (
    AppendRequest,
    AppendResponse,
    BrokerSpec,
    Header,
    JournalSpec,
    ReadRequest,
    ReadResponse,
    ReplicateRequest,
    ReplicateResponse,
    Route,
    Status,
)
from penstock.journal.replica import Replica, Surroundings
from penstock.journal.resolver import Identity, Resolution, Resolver
from penstock.journal.service import Service
from penstock.journal.spoollayout import content_at
from penstock.journal.storeset import Stores

from ..foreign import journal as journal_spec
from .views import View

JOURNAL = "a/journal"
FLOW = FlowLimits(minimum_rate=1, grace=60.0)


class NodeService:
    """What the other brokers and the test's clients call; of the rest of the service nothing is there."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def replicate(
        self, requests: AsyncIterator[ReplicateRequest], claims: Claims
    ) -> AsyncIterator[ReplicateResponse]:
        node = self._node
        return replicate.replicate(node.counted(requests), claims, node.resolver, node.pipelines.examine)

    async def append(
        self, requests: AsyncIterator[AppendRequest | Content], claims: Claims
    ) -> AppendResponse:
        first = await anext(requests)
        return await self._node.append(whole(first), requests, claims)

    def read(
        self, request: ReadRequest, claims: Claims, chunk: int = read.CHUNK
    ) -> AsyncIterator[ReadResponse]:
        return self._node.read(request, claims)

    def __getattr__(self, name: str) -> object:
        def missing(*_: object) -> None:
            raise AssertionError(f"these brokers do not serve {name}")

        return missing


class Node:
    """One broker."""

    def __init__(self, cluster: Cluster, member: MemberId, directory: Path, disk: Disk) -> None:
        self.cluster = cluster
        self.member = member
        self.view = View(cluster.shared)
        self.directory = directory
        self.metrics = Metrics()
        self.peers = Peers(keys=cluster.keys)
        self.replicas: dict[str, Replica] = {}
        self.alive = True
        """Whether its session is: `may_act`."""
        self.received: list[str] = []
        """The kinds of messages of replication that came here."""
        self.on_received: Callable[[], None] = lambda: None
        self.broken: list[str] = []
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._ended = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(4)
        self._stores = Stores(
            cluster.store, disk, self._threads, self.metrics, file_only=False, spawn=self._spawn
        )
        shop = Workshop(disk, self._threads, self._spawn, self.metrics, lambda: time.time_ns() // 1000)
        self.surroundings = Surroundings(
            shop,
            self._stores,
            self._threads,
            self._threads,
            watched=lambda url: False,
            nested=lambda journal: (),
            clustered=True,
        )
        self.reading = Reading(self.peers, member, self._threads, asyncio.Event())
        self.resolver = Resolver(self.view, Identity(member, 7, 8), self.replicas.get)
        self.pipelines = Pipelines(self.peers, member, self._spawn, self._threads, self.broken.append)
        self.appending = Appending(
            self.resolver,
            Advertising(self.view, self._advertise),
            self._update_suspend,
            FLOW,
            9,
            False,
            asyncio.get_running_loop().time,
            self._threads,
            pipeline_of=self.pipelines,
            may_act=lambda: self.alive,
        )
        self.server = grpc.aio.server(options=(("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0)))
        wire.register(self.server, cast("Service", NodeService(self)), cluster.authorizer, self.metrics)
        surveyor = Surveyor(self.resolver, self._threads)
        self.server.add_generic_rpc_handlers((surveyor.handler(cluster.authorizer),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        for key, _ in self.view.under(keys.ITEMS):
            self._converge(key.removeprefix(keys.ITEMS))
        self.view.observe(self._follow)

    # What the broker's shell does.

    def _spawn(self, work: Awaitable[None], name: str) -> asyncio.Task[None]:
        task = asyncio.ensure_future(cast("Coroutine[None, None, None]", work))
        task.set_name(f"{self.member.suffix}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _follow(self, changed: Sequence[str]) -> None:
        for key in changed:
            if key.startswith(keys.ASSIGN):
                self._converge(keys.parse_assignment(key).journal)
            elif key.startswith(keys.ITEMS):
                self._converge(key.removeprefix(keys.ITEMS))

    def _converge(self, journal: str) -> None:
        spec = self.resolver.spec(journal)
        members = [tuple(member) for member in _members(self.resolver.route(journal))]
        replica = self.replicas.get(journal)
        if spec is None or tuple(self.member) not in members:
            if replica is not None:
                del self.replicas[journal]
                replica.retire()
                task = self._closing[journal] = asyncio.create_task(replica.close(persist=True))
                task.add_done_callback(lambda _: self._closed(journal))
        elif journal in self._closing:
            return  # its files belong to the one that goes, until that has gone
        elif replica is None:
            self.replicas[journal] = Replica(spec, self.directory / journal, self.surroundings)
            self._spawn(self.replicas[journal].refresh(), "list")
        else:
            replica.respecify(spec)
            replica.invalidate()

    def _closed(self, journal: str) -> None:
        del self._closing[journal]
        if not self._ended:
            self._converge(journal)

    async def settled(self) -> None:
        """Wait until what was let go is closed, and opened again if it came back."""
        while self._closing:
            await asyncio.wait(tuple(self._closing.values()))

    async def _advertise(self, journal: str, route: Route, header: Header) -> int:
        return self.cluster.advertise(journal, route)

    async def _update_suspend(self, resolution: Resolution, suspend: JournalSpec.Suspend) -> int:
        raise AssertionError("no test of these brokers suspends a journal")

    async def counted(self, requests: AsyncIterator[ReplicateRequest]) -> AsyncIterator[ReplicateRequest]:
        await self.settled()
        async for request in requests:
            kind = "content" if not request.HasField("proposal") else "proposal"
            self.received.append(kind + (" with header" if request.HasField("header") else ""))
            self.on_received()
            yield request

    # What clients do.

    async def append(
        self, first: AppendRequest, requests: AsyncIterator[AppendRequest | Content], claims: Claims
    ) -> AppendResponse:
        await self.settled()
        machine = AppendMachine(first, requests, self.appending, claims)
        await machine.run()
        if machine.state is machine.state.PROXY:
            return await proxy.append(self.peers, machine.header, first, requests)
        return batches.response_of(machine)

    async def append_bytes(self, content: bytes, journal: str = JOURNAL, **fields: object) -> AppendResponse:
        """One append, as if a client had sent it here."""
        first = AppendRequest(journal=journal, **fields)  # type: ignore[arg-type]
        return await self.append(first, _sent(content), EVERYTHING)

    async def read(self, request: ReadRequest, claims: Claims) -> AsyncIterator[ReadResponse]:
        await self.settled()
        resolution = await self.resolver.resolve(request.journal, claims)
        assert resolution.replica is not None
        await self.reading.until_known(resolution.replica, request)
        async for response in read.read(request, resolution.replica, resolution.header, self._threads):
            yield response

    async def content(self, journal: str = JOURNAL, offset: int = 0) -> bytes:
        """What a reader gets here."""
        request = ReadRequest(journal=journal, offset=offset)
        return b"".join([response.content async for response in self.read(request, EVERYTHING)])

    async def content_now(self) -> bytes:
        """What a reader gets here who does not wait for what may be known soon."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "PATIENCE", 0.1)
            return await self.content()

    async def pulse(self, journal: str = JOURNAL) -> None:
        await self.settled()
        await maintenance.pulse(journal, self.appending, EVERYTHING, suspend=False)

    def replica(self, journal: str = JOURNAL) -> Replica:
        return self.replicas[journal]

    def spooled(self, journal: str = JOURNAL) -> dict[int, bytes]:
        """The committed content of its spool files, by their begin, as they are on its disk."""
        return {
            file.fragment.begin: file.path.read_bytes()[content_at(file.path) :][: file.fragment.length]
            for file in self.replica(journal).files
            if file.fragment.length
        }

    async def start(self) -> None:
        await self.server.start()

    async def kill(self) -> None:
        """Break everything off, as a process that is killed does. What its threads were at is done, though."""
        self._ended = True
        self.view._observers.clear()
        await self.server.stop(0)
        await self._stop_tasks()
        await self.peers.close()
        self._threads.shutdown(wait=True)
        for replica in self.replicas.values():
            replica.abandon()

    async def close(self) -> None:
        self._ended = True
        await self.server.stop(0.2)
        self.view._observers.clear()
        closing = self._closing.values()
        await asyncio.gather(*(replica.close() for replica in self.replicas.values()), *closing)
        await self._stores.close()
        await self.kill()

    async def _stop_tasks(self) -> None:
        tasks = (*self._tasks, *self._closing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Cluster:
    """The nodes of a test, by a letter each; and the hand that the allocator would have."""

    def __init__(self, path: Path, *, auth: Keys | None, authorizer: Authorizer) -> None:
        self._path = path
        self.keys = auth
        self.authorizer = authorizer
        self.store = path / "store"
        self.store.mkdir()
        self.shared = LocalKeySpace(Disk(), path / "keyspace")
        self.nodes: dict[str, Node] = {}
        self.advertised: list[str] = []

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    async def start(self, name: str, *, disk: Disk | None = None, endpoint: str = "") -> Node:
        """A node, new or on what an earlier one of the name left; `endpoint` is where the others reach it."""
        member = MemberId("zone", f"broker-{name}")
        node = self.nodes[name] = Node(self, member, self._path / name, disk or Disk())
        await node.start()
        self.announce(name, endpoint or f"http://127.0.0.1:{node.port}")
        return node

    async def kill(self, name: str) -> None:
        await self.nodes.pop(name).kill()

    def announce(self, name: str, endpoint: str) -> None:
        spec = BrokerSpec(journal_limit=100)
        member = MemberId("zone", f"broker-{name}")
        spec.process_spec.id.zone, spec.process_spec.id.suffix = member
        spec.process_spec.endpoint = endpoint
        self.shared.transact({}, [(keys.member_key(member), spec.SerializeToString())], [])

    def assign(self, names: str, journal: str = JOURNAL) -> None:
        """Have these nodes serve the journal, the first as its primary; values of assignments that stay are kept."""
        wanted = [
            keys.assignment_key(Assignment(journal, MemberId("zone", f"broker-{name}"), slot))
            for slot, name in enumerate(names)
        ]
        before = dict(self.shared.under(keys.assignments_of(journal)))
        puts = [(key, b"") for key in wanted if key not in before]
        self.shared.transact({}, puts, [key for key in before if key not in wanted])

    def create(self, replication: int = 3, names: str = "abc", **fields: object) -> None:
        fields = {"stores": (), **fields}
        spec = journal_spec(JOURNAL, replication=replication, **fields)  # type: ignore[arg-type]
        self.shared.transact({}, [(keys.item_key(JOURNAL), spec.SerializeToString())], [])
        self.assign(names)

    def advertise(self, journal: str, route: Route) -> int:
        self.advertised.append(journal)
        value = stored_route(route)
        assigned = self.shared.under(keys.assignments_of(journal))
        self.shared.transact({}, [(key, value) for key, _ in assigned], [])
        return self.shared.revision

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.close()
        self.shared.close()


@asynccontextmanager
async def cluster_of(
    path: Path, names: str = "abc", *, auth: Keys | None = None, authorizer: Authorizer | None = None
) -> AsyncIterator[Cluster]:
    cluster = Cluster(path, auth=auth, authorizer=authorizer or OpenAuthorizer())
    try:
        for name in names:
            await cluster.start(name)
        yield cluster
    finally:
        await cluster.close()


async def _sent(content: bytes) -> AsyncIterator[AppendRequest]:
    if content:
        yield AppendRequest(content=content)
    yield AppendRequest()


def _members(route: Route) -> Iterable[MemberId]:
    return [MemberId(member.zone, member.suffix) for member in route.members]


def require_ok(response: AppendResponse) -> tuple[int, int]:
    """Where an append landed."""
    assert response.status == Status.OK, Status.Name(response.status)
    return response.commit.begin, response.commit.end


def sums(cluster: Cluster, names: str = "abc") -> set[tuple[int, int, bytes]]:
    """The fragments under construction at these nodes: one, if they agree."""
    fragments = [cluster[name].replica().local.fragment for name in names]
    for name in names:
        content = cluster[name].spooled()
        fragment = cluster[name].replica().local.fragment
        if fragment.length:
            assert hashlib.sha1(content[fragment.begin]).digest() == fragment.sum
    return {(fragment.begin, fragment.end, fragment.sum) for fragment in fragments}
