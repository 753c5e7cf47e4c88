"""The key space of a cluster, as its brokers change it: journals, suspensions, trims, and what replicas agreed on.

Each change is one transaction in etcd that compares what it rests on. Won or lost, the caller reads the mirror through
the revision that it gets, and looks again. Who serves what is the allocator's to change, not ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from penstock.journal import keys
from penstock.journal.cluster.advertise import stored_route
from penstock.journal.cluster.etcd_errors import EtcdError
from penstock.journal.cluster.etcd_values import KEEP_LEASE, Compare, Field, Operation, Put
from penstock.journal.cluster.mirror import EtcdKeySpace
from penstock.journal.keys import MemberId
from penstock.journal.protocol import ApplyRequest, Header, JournalSpec, Route
from penstock.journal.replication import NotSynchronisedError
from penstock.journal.resolver import Resolution

_AFTER_A_LOSS = 0.01
"""Seconds until we look again, if what overtook us was a deletion, of which the loser learns no revision."""


class EtcdTopology:
    """`Topology` of a broker among others."""

    def __init__(self, keyspace: EtcdKeySpace, me: MemberId) -> None:
        self._keyspace = keyspace
        self._me = me

    def journals(self) -> Iterable[tuple[str, JournalSpec]]:
        for key, entry in self._keyspace.under(keys.ITEMS):
            yield key.removeprefix(keys.ITEMS), JournalSpec.FromString(entry.value)

    def serves(self, journal: str) -> bool:
        assigned = self._keyspace.under(keys.assignments_of(journal))
        return any(keys.parse_assignment(key).member == self._me for key, _ in assigned)

    def leads(self, journal: str) -> bool:
        """Whether we are the journal's primary."""
        assigned = (
            keys.parse_assignment(key) for key, _ in self._keyspace.under(keys.assignments_of(journal))
        )
        return any(assignment.member == self._me and assignment.slot == 0 for assignment in assigned)

    def trimmed(self, journal: str) -> int:
        entry = self._keyspace.get(keys.trim_key(journal))
        return int(entry.value) if entry is not None else 0

    async def announce(self, endpoint: str) -> None:
        """Our session has done so already."""

    async def apply(self, changes: Sequence[ApplyRequest.Change]) -> bool:
        """Make, change and delete journals; False if one is not at the revision expected."""
        expected: dict[str, int] = {}
        puts: list[tuple[str, bytes]] = []
        deletes: list[str] = []
        for change in changes:
            name = change.upsert.name if change.HasField("upsert") else change.delete
            if change.expect_mod_revision >= 0:
                expected[keys.item_key(name)] = change.expect_mod_revision
            if change.HasField("upsert"):
                puts.append((keys.item_key(name), change.upsert.SerializeToString(deterministic=True)))
                continue
            deletes.append(keys.item_key(name))
            if self._keyspace.get(keys.trim_key(name)) is not None:
                deletes.append(keys.trim_key(name))
        return await self._keyspace.transact(expected, puts, deletes)

    async def trim(self, journal: str, offset: int) -> None:
        """Write down, before anything is deleted, below which offset that is to be."""
        while offset > self.trimmed(journal):
            entry = self._keyspace.get(keys.trim_key(journal))
            expected = {keys.trim_key(journal): entry.mod_revision if entry is not None else 0}
            await self._keyspace.transact(expected, [(keys.trim_key(journal), b"%d" % offset)], [])

    async def suspend(self, known: JournalSpec, suspend: JournalSpec.Suspend) -> None:
        raise AssertionError("a cluster's suspensions rest on the route as well: `update_suspend`")

    # What the append machine asks for.

    async def advertise(self, journal: str, route: Route, header: Header) -> int:
        """As `advertise.Advertise`."""
        assigned = dict(self._keyspace.under(keys.assignments_of(journal)))
        if self._keyspace.revision != header.etcd.revision and not _same(assigned, route):
            return self._keyspace.revision
        value = stored_route(route)
        compares = [Compare(key, Field.MOD_REVISION, entry.mod_revision) for key, entry in assigned.items()]
        puts = [Put(key, value, KEEP_LEASE) for key, entry in assigned.items() if entry.value != value]
        return await self._committed(journal, compares, puts)

    async def update_suspend(self, resolution: Resolution, suspend: JournalSpec.Suspend) -> int:
        """As `Appending.update_suspend`."""
        known, journal = resolution.spec, resolution.journal
        assert known is not None
        entry = self._keyspace.get(keys.item_key(journal))
        if entry is None or JournalSpec.FromString(entry.value) != known:
            return self._keyspace.revision
        spec = JournalSpec()
        spec.CopyFrom(known)
        spec.suspend.CopyFrom(suspend)
        assigned = self._keyspace.under(keys.assignments_of(journal))
        compares = [Compare(keys.item_key(journal), Field.MOD_REVISION, entry.mod_revision)]
        compares += [Compare(key, Field.MOD_REVISION, held.mod_revision) for key, held in assigned]
        put = Put(keys.item_key(journal), spec.SerializeToString(deterministic=True))
        return await self._committed(journal, compares, [put])

    async def _committed(
        self, journal: str, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> int:
        if not operations:
            return self._keyspace.revision
        try:
            committed = await self._keyspace.commit(compares, operations)
        except EtcdError as error:
            raise NotSynchronisedError(f"{journal}: {error}", hint=error.hint) from error
        if not committed.ok and committed.revision <= self._keyspace.revision:
            await asyncio.sleep(_AFTER_A_LOSS)
        return committed.revision


def _same(assigned: Iterable[str], route: Route) -> bool:
    """Whether these are the assignments that a route was made of."""
    found = sorted((keys.parse_assignment(key) for key in assigned), key=lambda assignment: assignment.member)
    members = [(assignment.member.zone, assignment.member.suffix) for assignment in found]
    primary = next((at for at, assignment in enumerate(found) if assignment.slot == 0), -1)
    return members == [(member.zone, member.suffix) for member in route.members] and primary == route.primary
