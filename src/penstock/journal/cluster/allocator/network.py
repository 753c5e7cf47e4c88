"""The flow network of an allocation: units flow from items through (item, zone) to members and out of them.

Arcs hold: from an item its replication, to one zone of an item all but one of it (all of it once `one_zone` allows
that), to a member of a zone one unit, out of a member its capacity. A unit is placed along a path of least cost,
which may move units of other items on its way: from a full member to another, and so on, to one with room. A unit
costs where its item is not served now, more where a member has its fair share already, and most where it puts the
whole item into one zone.

What makes this quick is that such a path is a walk over members, of which there are few: an edge is any item that one
member has, the other has not, and whose zones allow the move. The items of a member are grouped by what moving them
costs (`Kind`), so that the first one at hand will do. A search that fails has seen a set of members that nothing can
leave; by the law of flows nothing ever will, until capacities grow, so later searches stay out of it (`closed`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_MOVE = 1
_OVER = 1 << 20
"""For a member beyond its fair share. Dearer than any path's moves: a path visits a member once."""

_ONE_ZONE = 1 << 30

_NOWHERE = 1 << 60


@dataclass(slots=True)
class Unit:
    """An item on its way: who serves it now, and who will."""

    replication: int
    current: frozenset[int]
    placed: set[int] = field(default_factory=set)
    zones: dict[int, int] = field(default_factory=dict)
    """Members placed, by zone."""

    @property
    def spare(self) -> bool:
        """Whether some that serve it now have no place in the plan, so that one may still be kept."""
        return not self.current <= self.placed


class Kind(NamedTuple):
    """What matters of an item on a member when it is to go elsewhere."""

    kept: bool
    """Whether the member serves it now, so that leaving costs a move."""
    filled: int
    """The zones, a bit each, that have all but one of it, or all: they take no more of it, or at a high price."""
    whole: bool
    """Whether one zone has all of it, so that leaving the zone gives back what that cost."""


class Network:
    """A flow that only grows; `place` adds one unit of an item at the least cost, and says whether it could."""

    def __init__(self, zones: Sequence[int], weights: Sequence[int], units: Sequence[Unit]) -> None:
        """`zones` and `weights` (limits) by member."""
        self._zones = zones
        self._weights = weights
        self._count = len(zones)
        self._several = len(set(zones)) > 1
        self.units = units
        self.loads = [0] * self._count
        self._capacities = [0] * self._count
        self._fair: list[int] = []
        self._one_zone = False
        self.closed = [False] * self._count
        """Members from which a search has found no way to room."""
        self.away = [0] * self._count
        """The least that the way from a member to room costs, as far as is known; as room is taken it only grows."""
        self.kinds: list[dict[Kind, dict[int, None]]] = [{} for _ in zones]
        """The items of each member."""
        self.returning: list[dict[int, None]] = [{} for _ in zones]
        """Those of each member that are served now by another with no place in the plan, where they may go for less."""

    def allow(self, capacities: Sequence[int], *, one_zone: bool = False) -> None:
        """Let members take this many, no less than before. With `one_zone`, which comes last, items may stay within
        one; then a member is preferred that has room in the first capacities that were given, the fair ones."""
        self._capacities = list(capacities)
        self._fair = self._fair or self._capacities
        self._one_zone = one_zone
        self.closed = [False] * self._count
        self.away = [0] * self._count

    def toll(self, member: int) -> int:
        """What the last step of a path costs, into a member with room."""
        return _OVER if self._one_zone and self.loads[member] >= self._fair[member] else 0

    def has_room(self, member: int) -> bool:
        return self.loads[member] < self._capacities[member]

    def ratio(self, member: int) -> float:
        """What the member has, for its size."""
        return self.loads[member] / self._weights[member]

    def on(self, member: int) -> list[int]:
        """The items that are placed on a member, in order."""
        return sorted(item for items in self.kinds[member].values() for item in items)

    def fits(self, item: int, member: int) -> bool:
        """Whether the item's zones allow it on the member, in addition to where it is."""
        unit = self.units[item]
        return member not in unit.placed and self._zone_allows(unit, self._zones[member])

    def put(self, item: int, member: int) -> None:
        """Place a unit where there is room for it."""
        unit = self.units[item]
        self._unlist(item)
        unit.placed.add(member)
        zone = self._zones[member]
        unit.zones[zone] = unit.zones.get(zone, 0) + 1
        self.loads[member] += 1
        self._list(item)

    def take(self, item: int, member: int) -> None:
        """Undo a `put`. Only before the first `place`, or to put the unit elsewhere at once."""
        unit = self.units[item]
        self._unlist(item)
        unit.placed.remove(member)
        unit.zones[self._zones[member]] -= 1
        self.loads[member] -= 1
        self._list(item)

    def place(self, item: int) -> bool:
        """Place one more unit of an item."""
        unit = self.units[item]
        if not unit.spare and not self._one_zone:
            # No member can cost less than any that it is not on: the best one with room will do.
            member = self._best(item)
            if member is not None:
                self.put(item, member)
                return True
        path = _Search(self, item, priced=True).path()
        if path is not None and not self._walk(item, path):
            path = _Search(self, item, priced=False).path()
            assert path is not None
            walked = self._walk(item, path)
            assert walked, "a shortest path uses no arc twice"
        return path is not None

    def _best(self, item: int) -> int | None:
        """The member with room that has the least for its size; among equals, in the zone the item has least of."""
        unit = self.units[item]
        best, found = (2.0, 0), None
        for member in range(self._count):
            if not self.has_room(member) or not self.fits(item, member):
                continue
            rank = (self.ratio(member), unit.zones.get(self._zones[member], 0))
            if rank < best:
                best, found = rank, member
        return found

    def _zone_allows(self, unit: Unit, zone: int) -> bool:
        if unit.replication < 2 or self._one_zone or not self._several:
            return True
        return unit.zones.get(zone, 0) < unit.replication - 1

    def _list(self, item: int) -> None:
        unit = self.units[item]
        for member, kind in self._listed(unit):
            self.kinds[member].setdefault(kind, {})[item] = None
            if unit.spare:
                self.returning[member][item] = None

    def _unlist(self, item: int) -> None:
        unit = self.units[item]
        for member, kind in self._listed(unit):
            del self.kinds[member][kind][item]
            self.returning[member].pop(item, None)

    def _listed(self, unit: Unit) -> Iterator[tuple[int, Kind]]:
        filled, whole = 0, False
        if unit.replication > 1 and self._several:
            for zone, count in unit.zones.items():
                filled |= (count >= unit.replication - 1) << zone
                whole = whole or count == unit.replication
        for member in unit.placed:
            yield member, Kind(member in unit.current, filled, whole)

    def _walk(self, item: int, path: list[tuple[int, int]]) -> bool:
        """Make the moves of a path, from its end; False, and nothing is changed, if they do not go together."""
        done: list[tuple[int, int, int]] = []
        for at in range(len(path) - 1, 0, -1):
            moved, target = path[at]
            source = path[at - 1][1]
            if not self.moves(moved, source, target):
                for undone, left, entered in reversed(done):
                    self.take(undone, entered)
                    self.put(undone, left)
                return False
            self.take(moved, source)
            self.put(moved, target)
            done.append((moved, source, target))
        self.put(item, path[0][1])
        return True

    def moves(self, item: int, source: int, target: int) -> bool:
        """Whether the item can go from one member to the other."""
        unit = self.units[item]
        if source not in unit.placed or target in unit.placed:
            return False
        zone = self._zones[target]
        return zone == self._zones[source] or self._zone_allows(unit, zone)

    def entry(self, item: int, member: int) -> int:
        """What it costs to place an item on a member that it fits."""
        unit = self.units[item]
        cost = 0 if member in unit.current else _MOVE
        if not self._several or unit.replication < 2:
            return cost
        return cost + _ONE_ZONE * (unit.zones.get(self._zones[member], 0) == unit.replication - 1)

    def price(self, kind: Kind, source: int, target: int) -> int | None:
        """What it costs to move an item of a kind to a member that does not serve it now; None: it cannot be."""
        cost = _MOVE if kind.kept else 0
        if self._zones[source] == self._zones[target]:
            return cost
        if kind.filled >> self._zones[target] & 1:
            return cost + _ONE_ZONE if self._one_zone else None
        return cost - _ONE_ZONE if kind.whole else cost

    def back(self, item: int, source: int, target: int) -> int:
        """What it costs to move an item to a member that serves it now. Not less than nothing, unless for the zone:
        who moved away once may return, but is not sought out."""
        unit = self.units[item]
        if self._zones[source] == self._zones[target] or not self._several or unit.replication < 2:
            return 0
        filled = unit.zones.get(self._zones[target], 0) == unit.replication - 1
        whole = unit.zones[self._zones[source]] == unit.replication
        return _ONE_ZONE * (filled - whole)


class _Search:
    """The cheapest walk of one unit over members to one with room; of equals, that with the fewest moves.

    Labels are corrected until none can be: leaving a zone that holds a whole item earns what entering it cost. That
    the flow is a cheapest one at all times has two uses here: no walk in a circle earns anything, and from any member
    the way out costs nothing or more, and never less than it did before: a member from where a walk could only end at
    the price of a finished one is not looked at further.
    """

    def __init__(self, network: Network, item: int, priced: bool) -> None:
        self._network = network
        self._item = item
        self._priced = priced
        count = len(network.loads)
        self._costs = [_NOWHERE] * count
        self._hops = [0] * count
        self._came: list[tuple[int, int]] = [(-1, -1)] * count
        """The item that moves here, and the member that it leaves (-1: it is the one to be placed)."""
        self._queue: deque[int] = deque()
        self._best = _NOWHERE

    def path(self) -> list[tuple[int, int]] | None:
        """The moves, (item, member that it enters), each from the member that the one before enters."""
        network = self._network
        for member in range(len(self._costs)):
            if not network.closed[member] and network.fits(self._item, member):
                self._reach(member, self._paid(network.entry(self._item, member)), 1, (self._item, -1))
        while self._queue:
            member = self._queue.popleft()
            if self._costs[member] + network.away[member] < self._best and self._hops[member] <= len(
                self._costs
            ):
                self._leave(member)
        ends = [at for at, cost in enumerate(self._costs) if cost < _NOWHERE and network.has_room(at)]
        if not ends:
            for member, cost in enumerate(self._costs):
                network.closed[member] = network.closed[member] or cost < _NOWHERE
            return None
        for member, cost in enumerate(self._costs):
            network.away[member] = max(network.away[member], self._best - cost)
        return self._way(min(ends, key=self._rank))

    def _rank(self, member: int) -> tuple[int, int, float]:
        cost = self._costs[member] + self._paid(self._network.toll(member))
        return cost, self._hops[member], self._network.ratio(member)

    def _way(self, member: int) -> list[tuple[int, int]]:
        found = []
        while member >= 0:
            item, before = self._came[member]
            found.append((item, member))
            member = before
        return found[::-1]

    def _reach(self, member: int, cost: int, hops: int, came: tuple[int, int]) -> None:
        if (cost, hops) >= (self._costs[member], self._hops[member]):
            return
        self._costs[member] = cost
        self._hops[member] = hops
        self._came[member] = came
        toll = self._network.toll(member)
        if self._network.has_room(member):
            self._best = min(self._best, cost + self._paid(toll))
        if toll or not self._network.has_room(member):
            self._queue.append(member)

    def _leave(self, member: int) -> None:
        """Reach what can be reached by moving one item away from a full member."""
        network = self._network
        cost, hops = self._costs[member], self._hops[member] + 1
        for item in network.returning[member]:
            unit = network.units[item]
            for target in sorted(unit.current - unit.placed):
                if not network.closed[target] and network.moves(item, member, target):
                    self._reach(
                        target, cost + self._paid(network.back(item, member, target)), hops, (item, member)
                    )
        for kind, items in network.kinds[member].items():
            targets = self._targets(member, kind)
            for item in items:
                if not targets:
                    break
                placed = network.units[item].placed
                for target in targets:
                    if target not in placed:
                        price = network.price(kind, member, target)
                        assert price is not None
                        self._reach(target, cost + self._paid(price), hops, (item, member))
                targets = [target for target in targets if target in placed]

    def _targets(self, member: int, kind: Kind) -> list[int]:
        """Where an item of the kind would come cheaper than what has come there yet."""
        network = self._network
        cost, hops = self._costs[member], self._hops[member] + 1
        found = []
        for target in range(len(self._costs)):
            if target == member or network.closed[target]:
                continue
            price = network.price(kind, member, target)
            if price is not None:
                new = cost + self._paid(price), hops
                if new < (self._costs[target], self._hops[target]):
                    found.append(target)
        return found

    def _paid(self, price: int) -> int:
        return price if self._priced else 0
