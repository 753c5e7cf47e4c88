"""Keys of the key space (reference 12): which journals there are, which brokers, and who serves what.

    items/{journal}                        a JournalSpec
    members/{zone}#{suffix}                a BrokerSpec
    assign/{journal}#{zone}#{suffix}#{slot}    empty, or the Route that the replicas last agreed on
    trims/{journal}                        ours: the offset, in decimal, below which the journal was trimmed

`#` sorts below every character of a name, so the keys of one journal stand together. In etcd the same keys lie
below the cluster's prefix.
"""

from __future__ import annotations

from typing import NamedTuple

ITEMS = "items/"
MEMBERS = "members/"
ASSIGN = "assign/"
TRIMS = "trims/"


class MemberId(NamedTuple):
    """A broker's name: its zone, and what tells it from others there. Sorts as routes do."""

    zone: str
    suffix: str


class Assignment(NamedTuple):
    """A journal is served by a member; slot 0 is the primary."""

    journal: str
    member: MemberId
    slot: int


def item_key(journal: str) -> str:
    return f"{ITEMS}{journal}"


def trim_key(journal: str) -> str:
    return f"{TRIMS}{journal}"


def member_key(member: MemberId) -> str:
    return f"{MEMBERS}{member.zone}#{member.suffix}"


def assignments_of(journal: str) -> str:
    """What the keys of all assignments of a journal begin with."""
    return f"{ASSIGN}{journal}#"


def assignment_key(assignment: Assignment) -> str:
    member = assignment.member
    return f"{assignments_of(assignment.journal)}{member.zone}#{member.suffix}#{assignment.slot}"


def parse_assignment(key: str) -> Assignment:
    journal, zone, suffix, slot = key.removeprefix(ASSIGN).split("#")
    return Assignment(journal, MemberId(zone, suffix), int(slot))
