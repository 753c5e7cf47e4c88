"""Resolution: which status, which route, which local replica a journal has at which revision (reference 11).

Every call on a journal begins here, and every response carries the header made here. The caller's selector hides
journals that it does not match as if they were not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.base.errors import PenstockError
from penstock.journal import keys, tokens
from penstock.journal.claims import Claims
from penstock.journal.keys import Assignment, MemberId
from penstock.journal.keyspace import Entry
from penstock.journal.protocol import BrokerSpec, Header, JournalSpec, Route, Status
from penstock.journal.replica import Replica
from penstock.journal.suspension import FULL, PARTIAL


class KeySpace(Protocol):
    """What is read of a key space, be it a file of ours or etcd's."""

    @property
    def revision(self) -> int: ...

    def get(self, key: str) -> Entry | None: ...

    def under(self, prefix: str) -> Iterator[tuple[str, Entry]]: ...

    def observe(self, changed: Callable[[Sequence[str]], None]) -> None: ...

    async def wait_for_revision(self, revision: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this broker is, and which key space it serves. The numbers are stable, and none is zero."""

    member: MemberId
    cluster_id: int
    member_id: int
    raft_term: int = 1


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of one journal's name."""

    status: Status
    header: Header
    journal: str
    """Without its meta suffix."""
    spec: JournalSpec | None
    replica: Replica | None
    """Ours, if we are in the route."""


class Resolver:
    """Reads the key space; nothing here changes it."""

    def __init__(
        self, keyspace: KeySpace, identity: Identity, replica_of: Callable[[str], Replica | None]
    ) -> None:
        self._keyspace = keyspace
        self.identity = identity
        self._replica_of = replica_of
        self._routes: dict[str, tuple[int, Route]] = {}
        self._specs: dict[str, tuple[int, JournalSpec]] = {}
        self._answers: dict[tuple[str, bool, bool], tuple[int, Resolution]] = {}

    async def resolve(
        self,
        name: str,
        claims: Claims,
        *,
        may_proxy: bool = True,
        require_primary: bool = False,
        min_revision: int = 0,
        header: Header | None = None,
    ) -> Resolution:
        """Wait for the revisions asked for, then look. `header` is that of a broker that sent the caller on."""
        journal = tokens.split_meta(name)[0]
        if header is None and claims.is_unlimited and min_revision <= self._keyspace.revision:
            return self._resolved(journal, may_proxy, require_primary)
        if header is not None:
            min_revision = max(min_revision, self._required_by(header))
        await self._keyspace.wait_for_revision(min_revision)
        spec = self.spec(journal)
        if spec is not None and not claims.allows(spec):
            return self._answer(Status.JOURNAL_NOT_FOUND, journal, None, Route(primary=-1), None)
        return self._resolved(journal, may_proxy, require_primary)

    def _resolved(self, journal: str, may_proxy: bool, require_primary: bool) -> Resolution:
        """What resolves in the same way every time is remembered until the next revision; the replica is not."""
        key = (journal, may_proxy, require_primary)
        known = self._answers.get(key)
        if known is not None and known[0] == self._keyspace.revision:
            resolution = known[1]
            if resolution.replica is not None and resolution.replica is self._replica_of(journal):
                return resolution
        resolution = self._look(journal, may_proxy, require_primary)
        if resolution.spec is not None:
            self._answers[key] = (self._keyspace.revision, resolution)
        return resolution

    def _look(self, journal: str, may_proxy: bool, require_primary: bool) -> Resolution:
        spec = self.spec(journal)
        if spec is None:
            return self._answer(Status.JOURNAL_NOT_FOUND, journal, None, Route(primary=-1), None)
        route = self.route(journal)
        ours = self._index_in(route)
        replica = self._replica_of(journal) if ours is not None else None
        status = self._status(spec, route, ours, may_proxy=may_proxy, require_primary=require_primary)
        return self._answer(status, journal, spec, route, replica, require_primary=require_primary)

    def spec(self, journal: str) -> JournalSpec | None:
        """The journal's spec as of now. Not to be changed by the caller."""
        item = self._keyspace.get(keys.item_key(journal))
        if item is None:
            self.forget(journal)
            return None
        known = self._specs.get(journal)
        if known is None or known[0] != item.mod_revision:
            known = self._specs[journal] = (item.mod_revision, JournalSpec.FromString(item.value))
        return known[1]

    def forget(self, journal: str) -> None:
        """What is remembered of a journal may no longer hold, though the revision has not moved."""
        self._specs.pop(journal, None)
        self._routes.pop(journal, None)
        for may_proxy in (False, True):
            for require_primary in (False, True):
                self._answers.pop((journal, may_proxy, require_primary), None)

    def route(self, journal: str) -> Route:
        """The journal's members, in order, with their endpoints. Not to be changed by the caller."""
        known = self._routes.get(journal)
        if known is not None and known[0] == self._keyspace.revision:
            return known[1]
        route = Route(primary=-1)
        found = [keys.parse_assignment(key) for key, _ in self._keyspace.under(keys.assignments_of(journal))]
        for at, assignment in enumerate(sorted(found, key=_by_member)):
            route.members.add(zone=assignment.member.zone, suffix=assignment.member.suffix)
            route.endpoints.append(self._endpoint(assignment.member))
            if assignment.slot == 0:
                route.primary = at
        self._routes[journal] = (self._keyspace.revision, route)
        return route

    def header(self, route: Route | None = None) -> Header:
        """A header of ours, as of now; without a route it has the empty one."""
        header = Header(route=route if route is not None else Route(primary=-1))
        me = self.identity
        header.process_id.zone, header.process_id.suffix = me.member
        header.etcd.cluster_id = me.cluster_id
        header.etcd.member_id = me.member_id
        header.etcd.revision = self._keyspace.revision
        header.etcd.raft_term = me.raft_term
        return header

    def _required_by(self, header: Header) -> int:
        """The revision that a proxying broker had read; refuses a header that was meant for someone else."""
        me = self.identity
        if header.etcd.cluster_id != me.cluster_id:
            raise PenstockError(
                f"proxied request Etcd ClusterId doesn't match our own ({header.etcd.cluster_id} vs {me.cluster_id})"
            )
        meant = header.process_id
        if (meant.zone or meant.suffix) and (meant.zone, meant.suffix) != me.member:
            raise PenstockError(
                f"proxied request ProcessId doesn't match our own (zone:{meant.zone} suffix:{meant.suffix}"
                f" vs zone:{me.member.zone} suffix:{me.member.suffix})"
            )
        return header.etcd.revision

    def _index_in(self, route: Route) -> int | None:
        for at, member in enumerate(route.members):
            if (member.zone, member.suffix) == self.identity.member:
                return at
        return None

    def _status(
        self, spec: JournalSpec, route: Route, ours: int | None, *, may_proxy: bool, require_primary: bool
    ) -> Status:
        """In the order of reference 8."""
        if spec.suspend.level == FULL:
            return Status.SUSPENDED
        if require_primary and route.primary < 0:
            return Status.NO_JOURNAL_PRIMARY_BROKER
        if not route.members:
            return Status.INSUFFICIENT_JOURNAL_BROKERS
        if require_primary and not may_proxy and ours != route.primary:
            return Status.NOT_JOURNAL_PRIMARY_BROKER
        if not require_primary and not may_proxy and ours is None:
            return Status.NOT_JOURNAL_BROKER
        return Status.OK

    def _answer(
        self,
        status: Status,
        journal: str,
        spec: JournalSpec | None,
        route: Route,
        replica: Replica | None,
        *,
        require_primary: bool = False,
    ) -> Resolution:
        header = self.header(route)
        if status == Status.OK and require_primary:
            header.process_id.CopyFrom(route.members[route.primary])
        elif status == Status.OK and replica is None:
            header.ClearField("process_id")
        return Resolution(status, header, journal, spec, replica)

    def _endpoint(self, member: MemberId) -> str:
        entry = self._keyspace.get(keys.member_key(member))
        return BrokerSpec.FromString(entry.value).process_spec.endpoint if entry is not None else ""

    def is_ours(self, header: Header) -> bool:
        """Whether the header says that we are to answer."""
        return (header.process_id.zone, header.process_id.suffix) == self.identity.member


def desired_replication(spec: JournalSpec, limit: int) -> int:
    """How many replicas a journal is to have: its spec's number, less while it is suspended."""
    if spec.suspend.level == FULL:
        return 0
    wanted = 1 if spec.suspend.level == PARTIAL else spec.replication
    return min(wanted, limit)


def _by_member(assignment: Assignment) -> MemberId:
    return assignment.member
