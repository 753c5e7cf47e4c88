"""Who should serve what: a target for all items at once (reference 13).

In this order: every item has as many members as it asks for, if the limits allow it; with two or more it spans two
zones, if they allow that; no member has more than its fair share (its limit's part of what is wanted, rounded up), or
else no more than its limit; whoever serves an item now goes on. The same input gives the same answer, and an
answer, once reached, is the answer again.

If there is too little room for all, each item gets one member first; what is left makes items whole, one after
the other, since one that is not whole takes no appends.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from penstock.journal.cluster.allocator.network import Network, Unit
from penstock.journal.cluster.allocator.state import State
from penstock.journal.keys import MemberId

Desired: TypeAlias = Mapping[str, tuple[MemberId, ...]]
"""The members of every journal, sorted; fewer than it asks for if there is no room."""


def solve(state: State) -> Desired:
    """The target of a state."""
    members = sorted(id for id, limit in state.limits.items() if limit > 0)
    # Not in the order of names, so that what moves together was not made together.
    journals = sorted(state.items, key=lambda journal: (zlib.crc32(journal.encode()), journal))
    solution = _Solution(state, members, journals)
    solution.keep()
    solution.fill()
    return {
        journal: tuple(members[at] for at in sorted(placed))
        for journal, placed in zip(journals, solution.plan(), strict=True)
    }


class _Solution:
    """Members and items by number; the network does the work."""

    def __init__(self, state: State, members: Sequence[MemberId], journals: Sequence[str]) -> None:
        self._state = state
        self._journals = journals
        self._limits = [state.limits[id] for id in members]
        self._number = {id: at for at, id in enumerate(members)}
        zones = {zone: at for at, zone in enumerate(sorted({id.zone for id in members}))}
        self._primary: list[int | None] = []
        units = [self._unit(journal) for journal in journals]
        self._zones = [zones[id.zone] for id in members]
        self.network = Network(self._zones, self._limits, units)
        self._fair = _shares(self._limits, sum(unit.replication for unit in units))

    def keep(self) -> None:
        """Begin with what is served now, as far as it goes; a plan that moves nothing costs nothing."""
        network = self.network
        for item, unit in enumerate(network.units):
            for member in self._served(self._journals[item]):
                if len(unit.placed) < unit.replication and network.fits(item, member):
                    network.put(item, member)
        leads = _shares(self._limits, len(self._journals))
        excess = [max(load - fair, 0) for load, fair in zip(network.loads, self._fair, strict=True)]
        orders = {at: self._to_leave(at, leads[at]) for at, count in enumerate(excess) if count}
        left: set[int] = set()
        for member, order in orders.items():
            # An item that leaves two members at once is harder to place.
            leaving = sorted(order, key=left.__contains__)[: excess[member]]
            left.update(leaving)
            for item in leaving:
                network.take(item, member)

    def fill(self) -> None:
        """Place what is missing: within fair shares, then within limits, then within one zone."""
        for capacities, one_zone in ((self._fair, False), (self._limits, False), (self._limits, True)):
            self.network.allow(capacities, one_zone=one_zone)
            for least in (1, max((unit.replication for unit in self.network.units), default=0)):
                self._fill_to(least)

    def plan(self) -> Sequence[AbstractSet[int]]:
        """The members of each item: as they are now, if that is as good as what was found."""
        units = self.network.units
        now = [unit.current for unit in units]
        found = [unit.placed for unit in units]
        if any(len(unit.current) != unit.replication for unit in units):
            return found
        loads = Counter(member for members in now for member in members)
        fits = all(count <= self._limits[member] for member, count in loads.items())
        return now if fits and self._worth(now) <= self._worth(found) else found

    def _worth(self, plan: Sequence[AbstractSet[int]]) -> tuple[int, int]:
        """The less, the better: items within one zone, assignments beyond fair shares."""
        within_one = sum(
            len(members) > 1 and len({self._zones[at] for at in members}) == 1 for members in plan
        )
        loads = Counter(member for members in plan for member in members)
        return within_one, sum(max(0, count - self._fair[member]) for member, count in loads.items())

    def _fill_to(self, count: int) -> None:
        for item, unit in enumerate(self.network.units):
            while len(unit.placed) < min(unit.replication, count):
                if not self.network.place(item):
                    break

    def _unit(self, journal: str) -> Unit:
        served = self._served(journal)
        group = self._state.held.get(journal, ())
        first = group[0] if group and group[0].slot == 0 else None
        self._primary.append(self._number.get(first.member) if first is not None else None)
        return Unit(min(self._state.items[journal].replication, len(self._limits)), frozenset(served))

    def _served(self, journal: str) -> list[int]:
        """Those that serve a journal now and may go on, by slot."""
        found = (self._number.get(held.member) for held in self._state.held.get(journal, ()))
        return list(dict.fromkeys(number for number in found if number is not None))

    def _to_leave(self, member: int, leads: int) -> list[int]:
        """The items of a member that has too many, those that go first in front.

        Items that others serve as well go first; then so many primaries that the member keeps its share of these:
        otherwise one that joins would have replicas only, and never lead.
        """
        network = self.network
        ours = network.on(member)
        spare = [item for item in ours if network.units[item].spare]
        rest = [item for item in ours if not network.units[item].spare]
        led = [item for item in rest if self._primary[item] == member]
        first = set(led[: max(len(led) - leads, 0)])
        return [
            *spare,
            *(item for item in rest if item in first),
            *(item for item in rest if item not in first),
        ]


def _shares(limits: Sequence[int], wanted: int) -> list[int]:
    """What each member's part of `wanted` is, in the measure of its limit, rounded up; at most the limit."""
    available = sum(limits)
    return [min(limit, -(-limit * wanted // available)) for limit in limits]
