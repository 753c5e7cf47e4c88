"""The two-phase commit of sinks: what the body of a MESSAGE on stream 0 holds, both directions.

    201 LIST_UNCOMMITTED    u64 rtag                                          worker -> sink
    202 REPLY_UNCOMMITTED   u64 rtag | u32 n | n x short transaction          sink -> worker
    203 PHASE1              short transaction | u32 n | n x (u64 stream, u64 start, u64 end)
    204 REPLY               short transaction | u8 commit                     sink -> worker, to PHASE1 only
    205 PHASE2              short transaction | u8 commit                     worker -> sink, never answered
    206 WORKERS_LEFT        u64 rtag | u32 n | n x short worker               worker -> sink, never answered

There is no inner length: the body begins with the tag. The MESSAGE around it has stream, id and time 0 and no key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias, cast

import msgspec

from penstock.connector.frames import U32, U64, Cursor, FrameError, Message, encode, short

CONTROL_STREAM: Final = 0
DATA_STREAM: Final = 1
RANGE: Final = Struct(">QQQ")


class InnerTag(IntEnum):
    """The first byte of the body."""

    LIST_UNCOMMITTED = 201
    REPLY_UNCOMMITTED = 202
    PHASE1 = 203
    REPLY = 204
    PHASE2 = 205
    WORKERS_LEFT = 206


class ListUncommitted(msgspec.Struct, frozen=True):
    """Which transactions has the sink voted on, and heard no decision of?"""

    rtag: int


class ReplyUncommitted(msgspec.Struct, frozen=True):
    """All of them, whichever way it voted."""

    rtag: int
    transactions: tuple[str, ...] = ()


class Phase1(msgspec.Struct, frozen=True):
    """Make these ranges (stream, start, end) durable, and vote."""

    transaction: str
    where: tuple[tuple[int, int, int], ...]


class Reply(msgspec.Struct, frozen=True):
    """The vote."""

    transaction: str
    commit: bool


class Phase2(msgspec.Struct, frozen=True):
    """The decision."""

    transaction: str
    commit: bool


class WorkersLeft(msgspec.Struct, frozen=True):
    """These workers are gone for good: forget what is kept for them."""

    rtag: int
    workers: tuple[str, ...]


Inner: TypeAlias = ListUncommitted | ReplyUncommitted | Phase1 | Reply | Phase2 | WorkersLeft


def _texts(cursor: Cursor) -> tuple[str, ...]:
    return tuple(cursor.text() for _ in range(cursor.count(2)))


def _phase1(cursor: Cursor) -> Phase1:
    transaction = cursor.text()
    raw = cursor.take(cursor.count(RANGE.size) * RANGE.size)
    return Phase1(transaction, tuple(cast("list[tuple[int, int, int]]", list(RANGE.iter_unpack(raw)))))


_DECODERS: Final[dict[int, Callable[[Cursor], Inner]]] = {
    InnerTag.LIST_UNCOMMITTED: lambda cursor: ListUncommitted(*cursor.unpack(U64)),
    InnerTag.REPLY_UNCOMMITTED: lambda cursor: ReplyUncommitted(cursor.unpack(U64)[0], _texts(cursor)),
    InnerTag.PHASE1: _phase1,
    InnerTag.REPLY: lambda cursor: Reply(cursor.text(), cursor.flag()),
    InnerTag.PHASE2: lambda cursor: Phase2(cursor.text(), cursor.flag()),
    InnerTag.WORKERS_LEFT: lambda cursor: WorkersLeft(cursor.unpack(U64)[0], _texts(cursor)),
}


def inner_of(body: memoryview | bytes) -> Inner:
    """What the body of a MESSAGE on stream 0 says."""
    view = memoryview(body)
    if not len(view):
        raise FrameError("a message on stream 0 without a body")
    decode = _DECODERS.get(view[0])
    if decode is None:
        raise FrameError(f"no message of the two-phase commit has the tag {view[0]}")
    return decode(Cursor(view, InnerTag(view[0]).name))


def _shorts(texts: Iterable[str], what: str) -> bytes:
    raw = [short(text.encode(), what) for text in texts]
    return U32.pack(len(raw)) + b"".join(raw)


def _vote(inner: Reply | Phase2) -> bytes:
    return short(inner.transaction.encode(), "a transaction's id") + bytes((inner.commit,))


def body_of(inner: Inner) -> bytes:
    """The body that carries it."""
    match inner:
        case ListUncommitted(rtag):
            return bytes((InnerTag.LIST_UNCOMMITTED,)) + U64.pack(rtag)
        case ReplyUncommitted(rtag, transactions):
            fields = U64.pack(rtag) + _shorts(transactions, "a transaction's id")
            return bytes((InnerTag.REPLY_UNCOMMITTED,)) + fields
        case Phase1(transaction, where):
            ranges = b"".join(RANGE.pack(*each) for each in where)
            fields = short(transaction.encode(), "a transaction's id") + U32.pack(len(where)) + ranges
            return bytes((InnerTag.PHASE1,)) + fields
        case Reply():
            return bytes((InnerTag.REPLY,)) + _vote(inner)
        case Phase2():
            return bytes((InnerTag.PHASE2,)) + _vote(inner)
        case WorkersLeft(rtag, workers):
            return bytes((InnerTag.WORKERS_LEFT,)) + U64.pack(rtag) + _shorts(workers, "a worker's name")


def wrapped(inner: Inner) -> Message:
    """The MESSAGE around it."""
    return Message(CONTROL_STREAM, 0, 0, b"", body_of(inner))


def encode_inner(inner: Inner) -> bytes:
    """The whole frame around it."""
    return encode(wrapped(inner))
