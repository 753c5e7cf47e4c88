"""Steps of the allocator as checkpoints, and checkpoints as transactions.

A checkpoint is made as a whole or not at all, and only if what it was decided upon still holds. Several of different
items share a transaction, as many as etcd takes in one; each transaction holds only while the leader's own member
key is unchanged, so that one who has lost its lease, or was told to look again, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from penstock.journal import keys
from penstock.journal.cluster.allocator.state import Held, Item, Member
from penstock.journal.cluster.etcd_values import Compare, Delete, Field, Operation, Put
from penstock.journal.keys import Assignment

MAX_OPERATIONS = 128
"""What etcd takes in one transaction, of comparisons and of operations, unless told otherwise."""


class Step(Enum):
    """What a checkpoint does, for who counts."""

    ADD = "add"
    REMOVE = "remove"
    PROMOTE = "promote"
    PACK = "pack"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Changes of one item that belong together."""

    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]
    steps: tuple[Step, ...]

    def __add__(self, other: Checkpoint) -> Checkpoint:
        return Checkpoint(
            tuple(dict.fromkeys(self.compares + other.compares)),
            self.operations + other.operations,
            self.steps + other.steps,
        )


@dataclass(frozen=True, slots=True)
class Transaction:
    """Checkpoints that are made together."""

    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]
    steps: tuple[Step, ...]


def unchanged_member(member: Member) -> Compare:
    return Compare(keys.member_key(member.id), Field.MOD_REVISION, member.mod_revision)


def added(journal: str, member: Member, slot: int) -> Checkpoint:
    """A new assignment, which goes when the member's lease goes."""
    key = keys.assignment_key(Assignment(journal, member.id, slot))
    return Checkpoint((unchanged_member(member),), (Put(key, b"", member.lease),), (Step.ADD,))


def removed(item: Item, held: Held) -> Checkpoint:
    """The assignment goes, if neither it nor its item has changed."""
    of_item = Compare(keys.item_key(item.journal), Field.MOD_REVISION, item.mod_revision)
    return Checkpoint((of_item, _unchanged(held)), (Delete(_key(held)),), (Step.REMOVE,))


def orphaned(held: Held) -> Checkpoint:
    """The assignment goes, if its item is still gone."""
    gone = Compare(keys.item_key(held.assignment.journal), Field.CREATE_REVISION, 0)
    return Checkpoint((gone,), (Delete(_key(held)),), (Step.REMOVE,))


def shifted(held: Held, slot: int, step: Step) -> Checkpoint:
    """The assignment in another slot: another key, with the same value and lease."""
    key = keys.assignment_key(held.assignment._replace(slot=slot))
    return Checkpoint((_unchanged(held),), (Delete(_key(held)), Put(key, held.value, held.lease)), (step,))


def transactions(leader: Member, checkpoints: Iterable[Checkpoint]) -> Iterator[Transaction]:
    """Checkpoints, in their order, in as few transactions as etcd's limit allows."""
    own = unchanged_member(leader)
    compares: dict[Compare, None] = {own: None}
    operations: list[Operation] = []
    steps: list[Step] = []
    for checkpoint in checkpoints:
        more = compares | dict.fromkeys(checkpoint.compares)
        too_many = len(more) > MAX_OPERATIONS or len(operations) + len(checkpoint.operations) > MAX_OPERATIONS
        if operations and too_many:
            yield Transaction(tuple(compares), tuple(operations), tuple(steps))
            operations, steps = [], []
            more = {own: None} | dict.fromkeys(checkpoint.compares)
        compares = more
        operations += checkpoint.operations
        steps += checkpoint.steps
    if operations:
        yield Transaction(tuple(compares), tuple(operations), tuple(steps))


def _key(held: Held) -> str:
    return keys.assignment_key(held.assignment)


def _unchanged(held: Held) -> Compare:
    return Compare(_key(held), Field.MOD_REVISION, held.mod_revision)
