"""What the key space says of members, items and assignments, kept up to date key by key.

Reading ten thousand journals for every change of one would be most of a leader's work, so a change is applied where
it happened. A key or a value that does not read as what it should be is as if it were not there, and is reported
once; a later good value repairs it.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Protocol

from google.protobuf.message import DecodeError

from penstock.journal import keys
from penstock.journal.cluster.allocator.state import Held, Item, Member, State, leader_of
from penstock.journal.keys import MemberId
from penstock.journal.protocol import BrokerSpec, JournalSpec
from penstock.journal.resolver import desired_replication

log = logging.getLogger(__name__)


class Entry(Protocol):
    """A value of the key space with its revisions and lease."""

    @property
    def value(self) -> bytes: ...
    @property
    def create_revision(self) -> int: ...
    @property
    def mod_revision(self) -> int: ...
    @property
    def lease(self) -> int: ...


class Picture:
    """Members, items and assignments as of the last `update`."""

    def __init__(self, max_replication: int) -> None:
        self._max_replication = max_replication
        self._members: dict[MemberId, Member] = {}
        self._items: dict[str, Item] = {}
        self._held: dict[str, tuple[Held, ...]] = {}
        self._loads: Counter[MemberId] = Counter()
        self._unread_items: set[str] = set()
        self._reported: dict[str, str] = {}
        """Why a key could not be read, for the log's sake."""

    def state(self) -> State:
        """What is known now, which later updates do not change."""
        return State(dict(self._members), dict(self._items), dict(self._held), frozenset(self._unread_items))

    def member(self, id: MemberId) -> Member | None:
        return self._members.get(id)

    @property
    def leader(self) -> Member | None:
        """As in `State`."""
        return leader_of(self._members)

    def load(self, id: MemberId) -> int:
        """How many assignments name the member."""
        return self._loads[id]

    def update(self, key: str, entry: Entry | None) -> None:
        """A key has this entry now; None: it is gone."""
        if key.startswith(keys.ASSIGN):
            read = self._assignment
        elif key.startswith(keys.ITEMS):
            read = self._item
        elif key.startswith(keys.MEMBERS):
            read = self._member
        else:
            return
        try:
            read(key, entry)
        except (ValueError, DecodeError) as error:
            if entry is not None and self._reported.get(key) != str(error):
                self._reported[key] = str(error)
                log.warning("the key %s is left aside: %s", key, error)
        else:
            self._reported.pop(key, None)

    def _member(self, key: str, entry: Entry | None) -> None:
        zone, _, suffix = key.removeprefix(keys.MEMBERS).partition("#")
        id = MemberId(zone, suffix)
        self._members.pop(id, None)
        if entry is None:
            return
        spec = BrokerSpec.FromString(entry.value)
        named = spec.process_spec.id
        if (named.zone, named.suffix) != id:
            raise ValueError(f"its value names another broker ({named.zone}#{named.suffix})")
        self._members[id] = Member(
            id, spec.journal_limit, spec.exiting, entry.create_revision, entry.mod_revision, entry.lease
        )

    def _item(self, key: str, entry: Entry | None) -> None:
        journal = key.removeprefix(keys.ITEMS)
        self._items.pop(journal, None)
        self._unread_items.discard(journal)
        if entry is None:
            return
        # An item that does not read is not one that is gone: its replicas stay until someone repairs it.
        self._unread_items.add(journal)
        spec = JournalSpec.FromString(entry.value)
        if spec.name != journal:
            raise ValueError(f"its value names another journal ({spec.name})")
        self._unread_items.discard(journal)
        wanted = max(desired_replication(spec, self._max_replication), 0)
        self._items[journal] = Item(journal, wanted, entry.mod_revision)

    def _assignment(self, key: str, entry: Entry | None) -> None:
        assignment = keys.parse_assignment(key)
        if assignment.slot < 0 or keys.assignment_key(assignment) != key:
            raise ValueError("it does not end in a slot")
        before = self._held.get(assignment.journal, ())
        others = [held for held in before if held.assignment != assignment]
        if entry is not None:
            others.append(Held(assignment, entry.value, entry.mod_revision, entry.lease))
            others.sort(key=lambda held: (held.slot, held.member))
        self._loads[assignment.member] += len(others) - len(before)
        if others:
            self._held[assignment.journal] = tuple(others)
        else:
            self._held.pop(assignment.journal, None)
