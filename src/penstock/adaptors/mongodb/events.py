"""What a change event of MongoDB means for the namespaces that are read. Values in, values out: nothing connects.

insert, replace      the whole document
update               the document as it is when the stream looks it up, or as it was if post-images are kept; none if it
                     is gone by then: its delete follows
delete               the key, or the whole document before it if pre-images are kept
drop, dropDatabase   the namespace is emptied; it may be made again
rename               the old name is emptied; the new one is emptied and copied anew
invalidate           the stream ends here, and begins anew behind
all others           nothing: indexes, shards, options
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.adaptors.mongodb.client import Name
from penstock.adaptors.mongodb.place import Time


class Act(Enum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    EMPTY = "empty"
    RENAME = "rename"
    END = "end"
    NOTHING = "nothing"


_ACTS = {
    "insert": Act.INSERT,
    "update": Act.UPDATE,
    "replace": Act.UPDATE,
    "delete": Act.DELETE,
    "drop": Act.EMPTY,
    "rename": Act.RENAME,
    "invalidate": Act.END,
}


@dataclass(frozen=True, slots=True)
class Change:
    """One event. `name` is the collection; of a rename, the old name, and `to` is the new one."""

    act: Act
    token: str
    time: Time
    ts: int
    name: Name | None = None
    id: Any = None
    document: Mapping[str, Any] | None = None
    to: Name | None = None
    transaction: object = None


def change_of(event: Mapping[str, Any], own: Name | None) -> Change:
    """Read an event; `own` is the collection of a stream that has only one, whose events need not name it."""
    act = _ACTS.get(event["operationType"], Act.NOTHING)
    stamp = event.get("clusterTime")
    time = (stamp.time, stamp.inc) if stamp is not None else (0, 0)
    name = _name(event.get("ns")) or (own if act in (Act.INSERT, Act.UPDATE, Act.DELETE) else None)
    document = event.get("fullDocument")
    if act is Act.UPDATE and "_id" not in (document or {}):
        act = Act.NOTHING
    if act is Act.DELETE:
        document = event.get("fullDocumentBeforeChange")
    return Change(
        act,
        event["_id"]["_data"],
        time,
        _microseconds(event, time),
        name,
        _id(event),
        document,
        _name(event.get("to")),
        _transaction(event),
    )


def _name(found: Mapping[str, str] | None) -> Name | None:
    return Name(found["db"], found["coll"]) if found and "coll" in found else None


def _id(event: Mapping[str, Any]) -> Any:
    for found in (event.get("documentKey"), event.get("fullDocument")):
        if found and "_id" in found:
            return found["_id"]
    return None


def _microseconds(event: Mapping[str, Any], time: Time) -> int:
    wall = event.get("wallTime")
    return int(wall.timestamp() * 1000) * 1000 if wall is not None else time[0] * 1_000_000


def _transaction(event: Mapping[str, Any]) -> object:
    """What the events of one transaction have in common; None for those outside."""
    number = event.get("txnNumber")
    return (str(event.get("lsid")), int(number)) if number is not None else None
