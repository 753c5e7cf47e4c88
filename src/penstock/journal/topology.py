"""The topology of a broker that is alone: it serves every journal, and nobody else writes its key space.

The same keys as in a cluster (`keys.py`), so that resolution reads one layout. What the allocator does there is
trivial here: a journal has one assignment, to us, unless it is fully suspended; it is written in the transaction
that changes the journal, with the route that our single replica agrees on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol

from penstock.journal import keys
from penstock.journal.keys import Assignment, MemberId
from penstock.journal.keyspace import LocalKeySpace, Transaction
from penstock.journal.protocol import ApplyRequest, BrokerSpec, JournalSpec, Route
from penstock.journal.suspension import FULL
from penstock.journal.uncancelled import uncancelled


class Topology(Protocol):
    """What a broker wants to know of the key space, and how it changes it."""

    def journals(self) -> Iterable[tuple[str, JournalSpec]]: ...

    def serves(self, journal: str) -> bool:
        """Whether the journal is assigned to us."""
        ...

    def trimmed(self, journal: str) -> int:
        """Below which offset the journal was trimmed."""
        ...

    async def announce(self, endpoint: str) -> None: ...

    async def apply(self, changes: Sequence[ApplyRequest.Change]) -> bool: ...

    async def suspend(self, known: JournalSpec, suspend: JournalSpec.Suspend) -> None: ...

    async def trim(self, journal: str, offset: int) -> None: ...


class LocalTopology:
    """Changes the key space of a lone broker, one transaction at a time."""

    def __init__(self, keyspace: LocalKeySpace, me: MemberId, threads: Executor) -> None:
        self.keyspace = keyspace
        self._me = me
        self._threads = threads
        route = Route(primary=0)
        route.members.add(zone=me.zone, suffix=me.suffix)
        self._route = route.SerializeToString(deterministic=True)

    def settle(self, endpoint: str) -> None:
        """At the start: announce ourselves, and take over every journal, also those of our earlier names. Blocks."""
        puts: list[tuple[str, bytes]] = []
        deletes: list[str] = []
        me = keys.member_key(self._me)
        deletes += [key for key, _ in self.keyspace.under(keys.MEMBERS) if key != me]
        if (announcement := self.announced(endpoint)) is not None:
            puts.append((me, announcement))
        ours = {self._assigned(journal) for journal, spec in self.journals() if spec.suspend.level != FULL}
        held = {key for key, _ in self.keyspace.under(keys.ASSIGN)}
        puts += [(key, self._route) for key in sorted(ours - held)]
        deletes += sorted(held - ours)
        if puts or deletes:
            self.keyspace.transact({}, puts, deletes)

    def announced(self, endpoint: str) -> bytes | None:
        """What our member key is to say, if that is not what it says."""
        entry = self.keyspace.get(keys.member_key(self._me))
        wanted = self._announcement(endpoint)
        return None if entry is not None and entry.value == wanted else wanted

    def journals(self) -> Iterable[tuple[str, JournalSpec]]:
        for key, entry in self.keyspace.under(keys.ITEMS):
            yield key.removeprefix(keys.ITEMS), JournalSpec.FromString(entry.value)

    def serves(self, journal: str) -> bool:
        return any(True for _ in self.keyspace.under(keys.assignments_of(journal)))

    def trimmed(self, journal: str) -> int:
        entry = self.keyspace.get(keys.trim_key(journal))
        return int(entry.value) if entry is not None else 0

    async def announce(self, endpoint: str) -> None:
        """Tell under which address clients reach us."""
        value = self.announced(endpoint)
        if value is not None:
            await self.transact({}, [(keys.member_key(self._me), value)], [])

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
                self._upsert(change.upsert, puts, deletes)
            else:
                deletes += [keys.item_key(name), keys.trim_key(name), self._assigned(name)]
        return await self.transact(expected, puts, deletes)

    async def suspend(self, known: JournalSpec, suspend: JournalSpec.Suspend) -> None:
        """Change a journal's suspension, unless the journal has changed since `known` was read."""
        entry = self.keyspace.get(keys.item_key(known.name))
        if entry is None or JournalSpec.FromString(entry.value) != known:
            return
        spec = JournalSpec()
        spec.CopyFrom(known)
        spec.suspend.CopyFrom(suspend)
        puts: list[tuple[str, bytes]] = []
        deletes: list[str] = []
        self._upsert(spec, puts, deletes)
        await self.transact({keys.item_key(known.name): entry.mod_revision}, puts, deletes)

    async def trim(self, journal: str, offset: int) -> None:
        """Write down, before anything is deleted, below which offset that is to be."""
        if offset > self.trimmed(journal):
            await self.transact({}, [(keys.trim_key(journal), b"%d" % offset)], [])

    async def transact(
        self, expected: Mapping[str, int], puts: Sequence[tuple[str, bytes]], deletes: Sequence[str]
    ) -> bool:
        """As the key space's, without blocking the loop; the caller sees to one at a time."""
        transaction = self.keyspace.planned(expected, puts, deletes)
        if transaction is None:
            return False
        if not transaction.puts and not transaction.deletes:
            return True  # nothing changes, so there is no new revision either
        # To the end, though the caller may be cancelled: disk and memory must say the same.
        await uncancelled(self._commit(transaction))
        return True

    async def _commit(self, transaction: Transaction) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self.keyspace.write, transaction)
        self.keyspace.adopt(transaction)

    def _upsert(self, spec: JournalSpec, puts: list[tuple[str, bytes]], deletes: list[str]) -> None:
        puts.append((keys.item_key(spec.name), spec.SerializeToString(deterministic=True)))
        assigned = self._assigned(spec.name)
        if spec.suspend.level == FULL:
            deletes.append(assigned)
        elif self.keyspace.get(assigned) is None:
            puts.append((assigned, self._route))

    def _assigned(self, journal: str) -> str:
        return keys.assignment_key(Assignment(journal, self._me, 0))

    def _announcement(self, endpoint: str) -> bytes:
        spec = BrokerSpec(journal_limit=1 << 17)
        spec.process_spec.id.zone, spec.process_spec.id.suffix = self._me
        spec.process_spec.endpoint = endpoint
        return spec.SerializeToString(deterministic=True)
