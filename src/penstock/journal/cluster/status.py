"""A look at a whole cluster: which brokers there are, who serves what, who agrees with whom, who lags behind.

Members, journals and routes are etcd's word, read at one revision. Write heads are asked of each replica itself, so
that one which does not answer is seen as such.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import grpc.aio

from penstock.base.errors import PenstockError
from penstock.journal import keys, labels
from penstock.journal.client.connection import Tls, Tokens, aio_channel, bearer
from penstock.journal.client.stubs import AsyncStubs
from penstock.journal.cluster.allocator.picture import Picture
from penstock.journal.cluster.allocator.state import State
from penstock.journal.cluster.etcd import EtcdClient
from penstock.journal.cluster.mirror import EtcdKeySpace
from penstock.journal.keys import MemberId
from penstock.journal.protocol import (
    BrokerSpec,
    FragmentStoreHealthRequest,
    JournalSpec,
    LabelSelector,
    ReadRequest,
    ReadResponse,
    Status,
)

PATIENCE = 5.0
"""Seconds that a broker has to answer."""
_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A broker."""

    zone: str
    id: str
    endpoint: str
    replicas: int
    primaries: int
    limit: int
    exiting: bool
    leader: bool


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A journal at one broker. Without a write head, `trouble` says why."""

    zone: str
    id: str
    primary: bool
    write_head: int | None
    lag: int | None
    """Bytes that the furthest replica has and this one does not show."""
    trouble: str


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """A journal and its replicas, the primary first."""

    name: str
    replication: int
    suspended: bool
    consistent: bool
    """Whether all replicas have agreed on the route as it is now."""
    replicas: tuple[ReplicaStatus, ...]

    @property
    def state(self) -> str:
        """In a word."""
        if self.suspended and not self.replicas:
            return "suspended"
        if not any(replica.primary for replica in self.replicas):
            return "no primary"
        if len(self.replicas) < self.replication:
            return "too few brokers"
        if not self.consistent:
            return "not agreed"
        if any(replica.trouble for replica in self.replicas):
            return "a replica is silent"
        return "ok"

    @property
    def is_well(self) -> bool:
        return self.state in ("ok", "suspended")


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """A fragment store, as the brokers that serve its journals see it."""

    url: str
    journals: int
    troubles: dict[str, str]
    """What is wrong with it, by broker; empty if nothing is."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All of it, at one revision."""

    prefix: str
    revision: int
    members: tuple[MemberStatus, ...]
    journals: tuple[JournalStatus, ...]
    stores: tuple[StoreStatus, ...]
    """Empty if nobody was asked."""

    @property
    def is_well(self) -> bool:
        troubles = any(store.troubles for store in self.stores)
        return not troubles and all(journal.is_well for journal in self.journals)


async def cluster_status(
    client: EtcdClient,
    prefix: str,
    *,
    selector: LabelSelector,
    max_replication: int,
    tls: Tls | None,
    tokens: Tokens,
    heads: bool = True,
) -> ClusterStatus:
    """Look once. Without `heads` no broker is asked."""
    mirror = EtcdKeySpace(client, prefix)
    await mirror.load()
    picture = Picture(max_replication)
    for key, entry in mirror.under(""):
        picture.update(key, entry)
    state = picture.state()
    specs = _selected(mirror, selector)
    endpoints = _endpoints(mirror)
    asked: dict[tuple[str, MemberId], int | str] = {}
    stores: tuple[StoreStatus, ...] = ()
    if heads:
        async with _Asking(endpoints, tls, tokens) as asking:
            asked = await asking.heads(state, [spec.name for spec in specs])
            stores = await asking.stores(specs)
    journals = tuple(_journal(state, spec, asked) for spec in specs)
    return ClusterStatus(prefix, mirror.revision, _members(state, endpoints), journals, stores)


def _selected(mirror: EtcdKeySpace, selector: LabelSelector) -> list[JournalSpec]:
    wanted = labels.for_list(selector)
    specs = [JournalSpec.FromString(entry.value) for _, entry in mirror.under(keys.ITEMS)]
    return [spec for spec in specs if labels.match(wanted, labels.with_name(spec.labels, spec.name))]


def _endpoints(mirror: EtcdKeySpace) -> dict[MemberId, str]:
    found = [BrokerSpec.FromString(entry.value).process_spec for _, entry in mirror.under(keys.MEMBERS)]
    return {MemberId(spec.id.zone, spec.id.suffix): spec.endpoint for spec in found}


def _members(state: State, endpoints: dict[MemberId, str]) -> tuple[MemberStatus, ...]:
    leader = state.leader
    return tuple(
        MemberStatus(
            member.id.zone,
            member.id.suffix,
            endpoints.get(member.id, ""),
            state.loads[member.id],
            state.primaries[member.id],
            member.limit,
            member.exiting,
            leader is not None and leader.id == member.id,
        )
        for member in sorted(state.members.values(), key=lambda member: member.id)
    )


def _journal(state: State, spec: JournalSpec, asked: dict[tuple[str, MemberId], int | str]) -> JournalStatus:
    held = sorted(state.held.get(spec.name, ()), key=lambda one: one.slot)
    answers = {one.member: asked.get((spec.name, one.member)) for one in held}
    furthest = max((answer for answer in answers.values() if isinstance(answer, int)), default=0)
    replicas = []
    for one in held:
        answer = answers[one.member]
        head = answer if isinstance(answer, int) else None
        trouble = answer if isinstance(answer, str) else ""
        lag = furthest - head if head is not None else None
        replicas.append(ReplicaStatus(one.member.zone, one.member.suffix, one.slot == 0, head, lag, trouble))
    item = state.items.get(spec.name)
    return JournalStatus(
        spec.name,
        item.replication if item is not None else spec.replication,
        spec.suspend.level != JournalSpec.Suspend.NONE,
        bool(held) and state.is_consistent(spec.name),
        tuple(replicas),
    )


class _Asking:
    """Asks brokers for write heads and for the health of stores, many at a time."""

    def __init__(self, endpoints: dict[MemberId, str], tls: Tls | None, tokens: Tokens) -> None:
        self._tokens = tokens
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._channels = {
            member: aio_channel(endpoint, tls if endpoint.startswith("https") else None)
            for member, endpoint in endpoints.items()
        }
        self._calls = {member: AsyncStubs(channel) for member, channel in self._channels.items()}

    async def __aenter__(self) -> _Asking:
        return self

    async def __aexit__(self, *exception: object) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def heads(self, state: State, journals: Sequence[str]) -> dict[tuple[str, MemberId], int | str]:
        """What each replica of each journal says, or why it says nothing."""
        pairs = [(name, one.member) for name in journals for one in state.held.get(name, ())]
        answers = await asyncio.gather(*(self._one(name, self._calls.get(member)) for name, member in pairs))
        return dict(zip(pairs, answers, strict=True))

    async def stores(self, specs: Sequence[JournalSpec]) -> tuple[StoreStatus, ...]:
        """Every store that journals put fragments into, as every broker sees it."""
        users = Counter(spec.fragment.stores[0] for spec in specs if spec.fragment.stores)
        found = []
        for url, journals in sorted(users.items()):
            answers = await asyncio.gather(*(self._health(url, calls) for calls in self._calls.values()))
            named = {
                f"{member.zone}/{member.suffix}": answer
                for member, answer in zip(self._calls, answers, strict=True)
            }
            found.append(
                StoreStatus(url, journals, {who: trouble for who, trouble in named.items() if trouble})
            )
        return tuple(found)

    async def _health(self, url: str, calls: AsyncStubs) -> str:
        request = FragmentStoreHealthRequest(fragment_store=url)
        try:
            metadata = bearer(self._tokens.for_health())
            response = await calls.fragment_store_health(request, timeout=PATIENCE, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name
        except PenstockError as error:
            return str(error)
        return response.store_health_error

    async def _one(self, journal: str, calls: AsyncStubs | None) -> int | str:
        if calls is None:
            return "its broker is gone"
        request = ReadRequest(journal=journal, offset=-1, metadata_only=True, do_not_proxy=True)
        async with self._turns:
            try:
                metadata = bearer(self._tokens.for_read(journal))
                call = calls.read(request, timeout=PATIENCE, metadata=metadata)
                try:
                    response = await call.read()
                finally:
                    call.cancel()
            except grpc.aio.AioRpcError as error:
                return error.details() or error.code().name
            except PenstockError as error:
                return str(error)
        if not isinstance(response, ReadResponse):
            return "no answer"
        if response.status not in (Status.OK, Status.OFFSET_NOT_YET_AVAILABLE):
            return Status.Name(response.status)
        return response.write_head
