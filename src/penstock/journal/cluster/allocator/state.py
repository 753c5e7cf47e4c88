"""One moment of the cluster, as the allocator sees it (reference 13), and what follows from it alone.

Words: a member is a broker, an item a journal, an assignment says that a member serves an item in a slot; slot 0 is
the primary. A state never changes; the next moment is another one.

An exiting member keeps its limit, and sheds capacity as far as the others have room for it: the *effective* limit is
what is left. With no room to spare nobody drains, and as many members as the largest replication keep all they have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b

from google.protobuf.message import DecodeError

from penstock.journal.keys import Assignment, MemberId
from penstock.journal.protocol import Route


@dataclass(frozen=True, slots=True)
class Member:
    """A broker, as its key announces it."""

    id: MemberId
    limit: int
    """The most assignments that it takes."""
    exiting: bool
    create_revision: int
    mod_revision: int
    lease: int


@dataclass(frozen=True, slots=True)
class Item:
    """A journal."""

    journal: str
    replication: int
    """How many members are to serve it."""
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Held:
    """An assignment as its key and value are."""

    assignment: Assignment
    value: bytes
    """Empty, or the Route that the replicas last agreed on."""
    mod_revision: int
    lease: int

    @property
    def member(self) -> MemberId:
        return self.assignment.member

    @property
    def slot(self) -> int:
        return self.assignment.slot


@dataclass(frozen=True)
class State:
    """All members, items and assignments at one revision. Not to be changed, nor what it was made of."""

    members: Mapping[MemberId, Member]
    items: Mapping[str, Item]
    held: Mapping[str, tuple[Held, ...]]
    """The assignments of a journal, in the order of their slots; also of journals that are gone."""
    unread: frozenset[str] = frozenset()
    """Journals whose item is there and cannot be read: what they have is left alone."""

    @cached_property
    def leader(self) -> Member | None:
        return leader_of(self.members)

    @cached_property
    def wanted(self) -> int:
        """Slots that the items ask for."""
        return sum(item.replication for item in self.items.values())

    @cached_property
    def available(self) -> int:
        """Slots that the members offer, exiting or not."""
        return sum(member.limit for member in self.members.values())

    @cached_property
    def shed(self) -> Mapping[MemberId, int]:
        """How much of its limit each exiting member is relieved of; those that were here first go first."""
        excess = self.available - self.wanted
        largest = max((item.replication for item in self.items.values()), default=0)
        may_go = len(self.members) - largest
        found: dict[MemberId, int] = {}
        leaving = [member for member in self.members.values() if member.exiting]
        for member in sorted(leaving, key=lambda member: member.create_revision)[: max(may_go, 0)]:
            amount = min(member.limit, excess)
            if amount <= 0:
                break
            found[member.id] = amount
            excess -= amount
        return found

    @cached_property
    def limits(self) -> Mapping[MemberId, int]:
        """The effective limit of each member."""
        shed = self.shed
        return {member.id: member.limit - shed.get(member.id, 0) for member in self.members.values()}

    @cached_property
    def loads(self) -> Counter[MemberId]:
        """Assignments by member, also of members that are gone."""
        return Counter(held.member for group in self.held.values() for held in group)

    @cached_property
    def primaries(self) -> Counter[MemberId]:
        return Counter(held.member for group in self.held.values() for held in group if held.slot == 0)

    @cached_property
    def fingerprint(self) -> bytes:
        """Equal as long as the problem is the same one, so that it need not be solved again.

        Who serves what now is no part of it: the steps towards a solution must not pose a new problem.
        """
        digest = blake2b(digest_size=16)
        for member in sorted(self.members.values(), key=lambda member: member.id):
            digest.update(f"member {member.id.zone}#{member.id.suffix} {member.limit}\n".encode())
        for journal in sorted(self.items):
            digest.update(f"item {journal} {self.items[journal].replication}\n".encode())
        for id in sorted(self.shed):
            digest.update(f"shed {id.zone}#{id.suffix} {self.shed[id]}\n".encode())
        return digest.digest()

    def is_consistent(self, journal: str) -> bool:
        """Whether every replica has agreed on the route that the assignments make now: all of them, or none has.

        A change in the set of assignments makes the routes that were agreed on stale.
        """
        group = self.held.get(journal, ())
        ordered = sorted(group, key=lambda held: held.member)
        members = tuple(held.member for held in ordered)
        primary = next((at for at, held in enumerate(ordered) if held.slot == 0), -1)
        return all(agreed(held.value) == (members, primary) for held in group)


def leader_of(members: Mapping[MemberId, Member]) -> Member | None:
    """The member that was here first acts for all."""
    return min(members.values(), key=lambda member: member.create_revision, default=None)


@lru_cache(maxsize=4096)
def agreed(value: bytes) -> tuple[tuple[MemberId, ...], int] | None:
    """The members and the primary of the Route in an assignment's value; None if it is no Route."""
    try:
        route = Route.FromString(value)
    except DecodeError:
        return None
    members = tuple(MemberId(member.zone, member.suffix) for member in route.members)
    return members, route.primary if members else -1
