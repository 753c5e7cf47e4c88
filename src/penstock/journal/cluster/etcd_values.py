"""What is asked of etcd and answered by it, as values; the wire's messages stay behind `etcd.py`.

A transaction is a list of comparisons and a list of operations that are done, all at one revision, if every
comparison holds. No key may be changed twice in one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from penstock.journal.cluster import etcd_pb2 as pb

KEEP_LEASE: Final = -1
"""As the lease of a put: the one that the key has. etcd refuses it for a key that is not there."""


class Field(Enum):
    """What of a key is compared."""

    CREATE_REVISION = pb.Compare.CREATE
    MOD_REVISION = pb.Compare.MOD
    LEASE = pb.Compare.LEASE


@dataclass(frozen=True, slots=True)
class Compare:
    """Holds if the key's field is equal to the number. A key that is not there has zeroes."""

    key: str
    field: Field
    number: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0
    """0: none, so that the key loses one that it has; see `KEEP_LEASE`."""


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


Operation: TypeAlias = Put | Delete


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as etcd has it."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int
    version: int = 0
    """How often it was put since it was made; 0: not known."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who answered: which cluster of etcd, which of its members, in which term, at which revision of all of etcd."""

    cluster_id: int
    member_id: int
    raft_term: int
    revision: int


@dataclass(frozen=True, slots=True)
class Found:
    """Keys in order, as they were at the origin's revision (or at the one asked for)."""

    origin: Origin
    keys: tuple[KeyValue, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a transaction.

    `ok`: it was made, at `revision`, or 0 if there was nothing to change. Otherwise a comparison did not hold, and
    `revision` is the newest mod revision of the keys compared (0: none is there). So waiting for it always ends,
    which is not so of the revision of all of etcd.
    """

    ok: bool
    revision: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class Granted:
    """A lease and its time to live, which may be longer than was asked for."""

    lease: int
    ttl: int


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch. `entry` of a deletion has the key and the deletion's mod revision, nothing else."""

    entry: KeyValue
    deleted: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """Events of whole revisions, in their order; none: only word that the watch is alive."""

    origin: Origin
    changes: tuple[Change, ...]


def origin_of(header: pb.ResponseHeader) -> Origin:
    return Origin(header.cluster_id, header.member_id, header.raft_term, header.revision)


def key_value(kv: pb.KeyValue) -> KeyValue:
    return KeyValue(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.lease, kv.version)


def change_of(event: pb.Event) -> Change:
    return Change(key_value(event.kv), event.type == pb.Event.DELETE)


def after(prefix: bytes) -> bytes:
    """The first key that is behind all that begin with `prefix`, which ends in a byte below 0xff."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def transaction(prefix: bytes, compares: Iterable[Compare], operations: Iterable[Operation]) -> pb.TxnRequest:
    """As a request; keys are below `prefix`. If it fails, the keys that were compared are read."""
    compares = tuple(compares)
    request = pb.TxnRequest()
    for compare in compares:
        request.compare.append(_compare(prefix, compare))
    for operation in operations:
        request.success.append(_operation(prefix, operation))
    for key in sorted({compare.key for compare in compares}):
        request.failure.add().request_range.key = prefix + key.encode()
    return request


def committed(response: pb.TxnResponse) -> Committed:
    origin = origin_of(response.header)
    if response.succeeded:
        changed = any(
            one.HasField("response_put") or one.response_delete_range.deleted for one in response.responses
        )
        return Committed(True, origin.revision if changed else 0, origin)
    seen = [kv.mod_revision for one in response.responses for kv in one.response_range.kvs]
    return Committed(False, max(seen, default=0), origin)


def _compare(prefix: bytes, compare: Compare) -> pb.Compare:
    made = pb.Compare(result=pb.Compare.EQUAL, key=prefix + compare.key.encode())
    match compare.field:
        case Field.CREATE_REVISION:
            made.target, made.create_revision = pb.Compare.CREATE, compare.number
        case Field.MOD_REVISION:
            made.target, made.mod_revision = pb.Compare.MOD, compare.number
        case Field.LEASE:
            made.target, made.lease = pb.Compare.LEASE, compare.number
    return made


def _operation(prefix: bytes, operation: Operation) -> pb.RequestOp:
    key = prefix + operation.key.encode()
    if isinstance(operation, Delete):
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))
    if operation.lease == KEEP_LEASE:
        return pb.RequestOp(request_put=pb.PutRequest(key=key, value=operation.value, ignore_lease=True))
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=operation.value, lease=operation.lease))
