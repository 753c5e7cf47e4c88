"""The next safe steps from what is to what should be, item by item (reference 13).

Members are added before any is taken away, so that a journal is over-replicated for a while and never under-: an
assignment goes only while those that remain have all agreed on their route and are as many as the journal asks for
(a journal that asks for none is let go at once). A journal whose primary goes gets another in the same step. Slots
are packed when nothing else is left to do. Steps that must wait are not here; they are found again after
the next change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add

from penstock.journal.cluster.allocator import changes
from penstock.journal.cluster.allocator.changes import Checkpoint, Step
from penstock.journal.cluster.allocator.solve import Desired
from penstock.journal.cluster.allocator.state import Held, Item, State, agreed
from penstock.journal.keys import MemberId


def converge(state: State, desired: Desired) -> list[Checkpoint]:
    """What can be done now, in an order in which no member exceeds its limit."""
    return list(_Round(state, desired).checkpoints())


class _Round:
    """Walks over the items, counting what each step does to the loads of members."""

    def __init__(self, state: State, desired: Desired) -> None:
        self._state = state
        self._desired = desired
        self._loads = state.loads.copy()
        self._primaries = state.primaries.copy()

    def checkpoints(self) -> Iterator[Checkpoint]:
        state = self._state
        for journal, group in sorted(state.held.items()):
            if journal not in state.items and journal not in state.unread:
                yield from map(changes.orphaned, group)
        for journal in sorted(state.items):
            group = state.held.get(journal, ())
            if journal in self._desired and not self._is_settled(group, self._desired[journal]):
                yield from self._steps(state.items[journal], group, self._desired[journal])

    def _is_settled(self, group: Sequence[Held], desired: Sequence[MemberId]) -> bool:
        if len(group) != len(desired) or any(held.slot != at for at, held in enumerate(group)):
            return False
        return {held.member for held in group} == set(desired)

    def _steps(self, item: Item, group: Sequence[Held], desired: Sequence[MemberId]) -> Iterator[Checkpoint]:
        adding = list(self._additions(item, group, desired))
        leaving = self._leaving(item, group, desired, joined=bool(adding))
        staying = [held for held in group if held not in leaving]
        parting = [changes.removed(item, held) for held in leaving]
        if staying and staying[0].slot != 0:
            best = min(staying, key=lambda held: self._fitness(held, desired))
            self._primaries[best.member] += 1
            parting.append(changes.shifted(best, 0, Step.PROMOTE))
        yield from adding
        if parting:
            yield reduce(add, parting)
        elif not adding:
            yield from _packed(group)

    def _additions(
        self, item: Item, group: Sequence[Held], desired: Sequence[MemberId]
    ) -> Iterator[Checkpoint]:
        present = {held.member for held in group}
        slot = group[-1].slot + 1 if group else 0
        missing = [id for id in desired if id not in present and id in self._state.members]
        if not group:
            missing.sort(key=self._leading)  # the first of them will be the primary
        for id in missing:
            if self._loads[id] < self._state.limits[id]:
                self._loads[id] += 1
                self._primaries[id] += slot == 0
                yield changes.added(item.journal, self._state.members[id], slot)
                slot += 1

    def _leaving(
        self, item: Item, group: Sequence[Held], desired: Sequence[MemberId], *, joined: bool
    ) -> list[Held]:
        """Those that go now, which has been counted. While somebody `joined`, not all have agreed: then nobody goes."""
        first = {held.member: held for held in reversed(group)}
        doubled = [held for held in group if first[held.member] is not held]
        unwanted = [held for held in group if held.member not in desired and held not in doubled]
        unwanted.sort(key=lambda held: (-self._load(held.member), -held.slot, held.member))
        may_go = len(unwanted)
        if item.replication > 0:
            settled = not joined and self._state.is_consistent(item.journal)
            may_go = max(len(group) - item.replication, 0) if settled else 0
        leaving = doubled + unwanted[:may_go]
        for held in leaving:
            self._loads[held.member] -= 1
            self._primaries[held.member] -= held.slot == 0
        return leaving

    def _fitness(self, held: Held, desired: Sequence[MemberId]) -> tuple[bool, bool, float, MemberId]:
        """As a primary, the least being the best: one that has agreed on a route before, and is to stay.

        Whether the journal is consistent says nothing here, since it is so for all of its replicas or for none.
        """
        route = agreed(held.value)
        is_new = route is None or held.member not in route[0]
        return is_new, held.member not in desired, *self._leading(held.member)

    def _leading(self, id: MemberId) -> tuple[float, MemberId]:
        """How much the member leads for its size."""
        return _ratio(self._primaries[id], self._limit(id)), id

    def _load(self, id: MemberId) -> float:
        return _ratio(self._loads[id], self._limit(id))

    def _limit(self, id: MemberId) -> int:
        member = self._state.members.get(id)
        return member.limit if member is not None else 0


def _ratio(count: int, limit: int) -> float:
    """Of a member without a limit, or unknown: more than any other's."""
    return count / limit if limit > 0 else float("inf")


def _packed(group: Sequence[Held]) -> Iterator[Checkpoint]:
    """One assignment put into the lowest free slot: one that shares its slot, or else the highest."""
    taken = [held.slot for held in group]
    if taken == list(range(len(group))):
        return
    free = next(slot for slot in range(len(group) + 1) if slot not in taken)
    sharing = [held for at, held in enumerate(group) if held.slot in taken[:at]]
    yield changes.shifted((sharing or group)[-1], free, Step.PACK)
