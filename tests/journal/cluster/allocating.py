"""States of the allocator in few words, and a key space like etcd's, in memory, that is as strict as etcd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from penstock.journal import keys
from penstock.journal.cluster.allocator.picture import Picture
from penstock.journal.cluster.allocator.state import Held, Item, Member, State
from penstock.journal.cluster.entries import LeasedEntry
from penstock.journal.cluster.etcd_values import Committed, Compare, Delete, Field, Operation, Origin
from penstock.journal.keys import Assignment, MemberId
from penstock.journal.protocol import BrokerSpec, JournalSpec, Route

ORIGIN = Origin(1, 1, 1, 1)


def id_of(name: str) -> MemberId:
    """`a1` is the broker 1 of zone a."""
    return MemberId(name[0], name[1:])


def name_of(id: MemberId) -> str:
    return id.zone + id.suffix


def members(limits: Mapping[str, int], *, exiting: Iterable[str] = ()) -> dict[MemberId, Member]:
    """In the order in which they came; each has its own lease."""
    made = {}
    for at, (name, limit) in enumerate(limits.items(), 1):
        made[id_of(name)] = Member(id_of(name), limit, name in exiting, at, 10 + at, 100 + at)
    return made


def items(replication: Mapping[str, int]) -> dict[str, Item]:
    return {journal: Item(journal, count, 50) for journal, count in replication.items()}


def route(names: Iterable[str], primary: str | None) -> bytes:
    """What replicas of these members have agreed on."""
    ordered = sorted(map(id_of, names))
    made = Route(primary=ordered.index(id_of(primary)) if primary else -1)
    for id in ordered:
        made.members.add(zone=id.zone, suffix=id.suffix)
    return made.SerializeToString(deterministic=True)


def held(journal: str, slots: Mapping[str, int], *, synced: bool = True) -> tuple[Held, ...]:
    """The assignments of a journal, by member; synced: all agree on the route that these make."""
    primary = next((name for name, slot in slots.items() if slot == 0), None)
    value = route(slots, primary) if synced else b""
    found = [Held(Assignment(journal, id_of(name), slot), value, 70, 0) for name, slot in slots.items()]
    return tuple(sorted(found, key=lambda held: (held.slot, held.member)))


def serving(desired: Mapping[str, Sequence[MemberId]]) -> dict[str, tuple[Held, ...]]:
    """As if a target had been reached."""
    return {
        journal: held(journal, {name_of(id): slot for slot, id in enumerate(ids)}, synced=False)
        for journal, ids in desired.items()
        if ids
    }


def moved(state: State, desired: Mapping[str, Sequence[MemberId]]) -> int:
    """How many assignments a target asks for that are not there."""
    now = {journal: {held.member for held in group} for journal, group in state.held.items()}
    return sum(len(set(ids) - now.get(journal, set())) for journal, ids in desired.items())


def loads(desired: Mapping[str, Sequence[MemberId]]) -> Counter[MemberId]:
    return Counter(id for ids in desired.values() for id in ids)


class Etcd:
    """Keys with revisions and leases; every change is told to `pictures`."""

    def __init__(self) -> None:
        self.revision = 1
        self.entries: dict[str, LeasedEntry] = {}
        self.picture = Picture(max_replication=5)

    def commit_now(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Committed:
        assert len(compares) <= 128
        assert len(operations) <= 128
        changed = [operation.key for operation in operations]
        assert len(set(changed)) == len(changed), "etcd refuses to change a key twice"
        if not all(self._holds(compare) for compare in compares):
            known = [self.entries[compare.key] for compare in compares if compare.key in self.entries]
            return Committed(False, max((entry.mod_revision for entry in known), default=0), ORIGIN)
        self.revision += 1
        for operation in operations:
            if isinstance(operation, Delete):
                self.entries.pop(operation.key, None)
            else:
                before = self.entries.get(operation.key)
                created = before.create_revision if before else self.revision
                self.entries[operation.key] = LeasedEntry(
                    operation.value, created, self.revision, operation.lease
                )
        self.tell(changed)
        return Committed(True, self.revision, ORIGIN)

    def put(self, key: str, value: bytes, lease: int = 0) -> None:
        self.revision += 1
        before = self.entries.get(key)
        created = before.create_revision if before else self.revision
        self.entries[key] = LeasedEntry(value, created, self.revision, lease)
        self.tell([key])

    def delete(self, *gone: str) -> None:
        self.revision += 1
        for key in gone:
            del self.entries[key]
        self.tell(gone)

    def tell(self, changed: Sequence[str]) -> None:
        for key in changed:
            self.picture.update(key, self.entries.get(key))

    def announce(self, name: str, limit: int, lease: int, *, exiting: bool = False) -> None:
        spec = BrokerSpec(journal_limit=limit, exiting=exiting)
        spec.process_spec.id.zone, spec.process_spec.id.suffix = id_of(name)
        self.put(keys.member_key(id_of(name)), spec.SerializeToString(deterministic=True), lease)

    def make(self, journal: str, replication: int) -> None:
        spec = JournalSpec(name=journal, replication=replication)
        self.put(keys.item_key(journal), spec.SerializeToString(deterministic=True))

    def expire(self, lease: int) -> None:
        self.delete(*[key for key, entry in self.entries.items() if entry.lease == lease])

    def sync(self, journal: str) -> bool:
        """What a primary does: all assignments get the route that they make; False if they have it, or cannot."""
        state = self.picture.state()
        group = state.held.get(journal, ())
        primaries = [name_of(held.member) for held in group if held.slot == 0]
        if len(primaries) != 1 or state.is_consistent(journal):
            return False
        value = route([name_of(held.member) for held in group], primaries[0])
        for held in group:
            self.put(keys.assignment_key(held.assignment), value, held.lease)
        return True

    def _holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        if entry is None:
            return compare.number == 0
        values = {
            Field.CREATE_REVISION: entry.create_revision,
            Field.MOD_REVISION: entry.mod_revision,
            Field.LEASE: entry.lease,
        }
        return values[compare.field] == compare.number
