"""Calls and answers, and batches of them (seed 002, types 0, 5 and 13).

    call      reserved 0 | method id (ZigZagInt) | rpc type | arguments
    async     reserved 0 | method id | 0 | sender length (ZigZagInt) | sender | call number (ZigZagLong) | arguments
    answer    reserved 1, 2 or 3 | responder length (ZigZagInt) | responder | call number (ZigZagLong) | payload
    payload   1 value, 3 exception: length (ZigZagInt) | bytes;  2: nothing

Outgoing, `destination length (ZigZagInt) | destination` stands before it; a call to oneself has length 0. Lengths are
of UTF-8 bytes. Incoming is the same without these two fields. All functions here take and give whole messages, size
and type included, except where they say `data`: what follows the type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from penstock.base.disk import Buffer
from penstock.immortal.wire.messages import CALLS, MessageType, encode_message
from penstock.immortal.wire.zigzag import CorruptWireError, decode_int, decode_long, encode_int, encode_long

_MANY = 64
"""RPCs of a batch that are worth a look at all of them together."""
_CALL_BYTES = bytes(CALLS)


class RpcType(IntEnum):
    """How a call is made: with an answer, without one, or from outside of any handler."""

    ASYNC = 0
    FORK = 1
    IMPULSE = 2


OWN_METHODS = range(-21, -27, -1)
"""Of Impulses by which an instance tells itself what happens outside: they mean something from itself alone."""
_SHORT = bytes(encode_int(method)[0] for method in OWN_METHODS)
_PADDED = bytes(byte | 0x80 for byte in _SHORT)
_FIRST = _SHORT + _PADDED
_OWN = re.compile(b"\0(?:[%b]|[%b]\x80{0,3}\0)\2" % (re.escape(_SHORT), re.escape(_PADDED)))
"""What one of them begins with: reserved 0, the method, also in a longer form than it needs, and the type."""


class ReplyKind(IntEnum):
    """The reserved byte of an answer; 0 there means a call."""

    VALUE = 1
    VOID = 2
    EXCEPTION = 3


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a method. `sender` and `number` belong to `RpcType.ASYNC` alone."""

    method: int
    kind: RpcType
    arguments: bytes = b""
    sender: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to the call `number`; `payload` is None where none stands, as with `ReplyKind.VOID`."""

    kind: ReplyKind
    responder: str
    number: int
    payload: bytes | None = None


Rpc = Call | Reply


def incoming(rpc: Rpc) -> bytes:
    """The message that the binding of the destination receives."""
    return encode_message(MessageType.RPC, _fields(rpc))


def outgoing(destination: str, rpc: Rpc) -> bytes:
    """The message by which a binding sends; an empty destination is itself."""
    return encode_message(MessageType.RPC, _text(destination) + _fields(rpc))


def decode_incoming(data: Buffer) -> Rpc:
    """The call or answer in the data of an incoming message."""
    if not data:
        raise CorruptWireError("an RPC without content", position=0)
    if data[0] == 0:
        return _decode_call(data)
    if data[0] > ReplyKind.EXCEPTION:
        raise CorruptWireError(f"reserved byte {data[0]}; 0 to 3 are known", position=0)
    responder, at = _decode_text(data, 1)
    number, at = decode_long(data, at)
    kind, payload = ReplyKind(data[0]), None
    if at < len(data):
        length, at = decode_int(data, at)
        payload = bytes(data[at:])
        if length != len(payload) or kind == ReplyKind.VOID:
            raise CorruptWireError(f"an answer of {len(payload)} bytes that says {length}", position=at)
    return Reply(kind, responder, number, payload)


def decode_outgoing(data: Buffer) -> tuple[str, Rpc]:
    """Destination, and the call or answer, in the data of an outgoing message."""
    destination, at = _decode_text(data, 0)
    return destination, decode_incoming(data[at:])


def batch(messages: Sequence[Buffer]) -> bytes:
    """A batch (type 5) of whole messages. One alone is not put into a batch by coordinators: bindings misread it."""
    return encode_message(MessageType.RPC_BATCH, b"".join((encode_int(len(messages)), *messages)))


def counted_batch(messages: Sequence[Buffer], replayable: int) -> bytes:
    """A batch (type 13) of which `replayable` are not Impulses."""
    head = encode_int(len(messages)) + encode_int(replayable)
    return encode_message(MessageType.COUNT_REPLAYABLE_RPC_BATCH, b"".join((head, *messages)))


def batch_counts(kind: int, data: Buffer) -> tuple[int, int, int]:
    """How many RPCs a message of type 0, 5 or 13 holds, how many may be replayed, and where they begin in `data`.

    For type 0 and 5 the second is only known to be as large as the first: who sends them so knows that there is no
    Impulse among several. A single message, which a ping is as well, has to be looked at (`is_replayable`).
    """
    if kind in CALLS:
        return 1, int(is_replayable(data)), 0
    count, at = decode_int(data, 0)
    replayable = count
    if kind == MessageType.COUNT_REPLAYABLE_RPC_BATCH:
        replayable, at = decode_int(data, at)
    if not 0 <= replayable <= count:
        raise CorruptWireError(f"a batch of {count} RPCs with {replayable} replayable ones", position=0)
    return count, replayable, at


def require_sound(kind: int, data: Buffer) -> None:
    """Refuse from others what no binding could go past, or be safe from: a batch that does not hold as many RPCs as it
    says, and nothing else; and what an instance sends to itself alone, since bindings are not told whose a call is."""
    if kind in CALLS:
        _refuse_own(data, 0, len(data))
        return
    count, _, at = batch_counts(kind, data)
    if count >= _MANY and _are_alike(data, at, count):
        return
    end = len(data)
    for _ in range(count):
        if at + 2 > end:
            raise CorruptWireError(f"a batch of {count} RPCs that has fewer", position=at)
        size, start = data[at], at + 1
        if size >= 0x80:
            size, start = (size & 0x7F) | data[start] << 7, at + 2
        if size & 1 or size >= 0x4000:  # below zero, or of more than two bytes
            size, start = decode_int(data, at)
            size <<= 1
        at = start + (size >> 1)
        if size < 4 or at > end or data[start] not in CALLS:
            raise CorruptWireError(
                f"a batch of {count} RPCs that breaks off or holds something else", position=start
            )
        if size > 6 and data[start + 2] in _FIRST:
            _refuse_own(data, start + 1, at)
    if at != end:
        raise CorruptWireError(f"a batch of {count} RPCs with bytes behind the last one", position=at)


def _refuse_own(data: Buffer, at: int, end: int) -> None:
    if _OWN.match(data, at, end):
        raise CorruptWireError("an Impulse that an instance sends to itself alone", position=at)


def _are_alike(data: Buffer, at: int, count: int) -> bool:
    """Whether from `at` on there are just so many RPCs of one length, none of which can be an instance's own: seen at
    once, and the rule where much is sent."""
    if len(data) - at < 2 * count:
        return False
    size, start = decode_int(data, at)
    stride = start - at + size
    if size < 1 or len(data) - at != count * stride:
        return False
    view = memoryview(data)
    lengths = (bytes(view[place::stride]) == bytes((view[place],)) * count for place in range(at, start))
    if not all(lengths) or bytes(view[start::stride]).strip(_CALL_BYTES):
        return False
    methods = bytes(view[start + 2 :: stride])
    return len(methods.translate(None, _FIRST)) == len(methods)


def rpcs_of(kind: int, data: Buffer) -> Iterator[bytes]:
    """The data of each RPC of a message of type 0, 5 or 13, or of a ping."""
    if kind in CALLS:
        yield bytes(data)
        return
    count, _, at = batch_counts(kind, data)
    end = len(data)
    for _ in range(count):
        size, start = decode_int(data, at)
        at = start + size
        if size < 1 or at > end or data[start] not in CALLS:
            raise CorruptWireError(
                f"a batch of {count} RPCs that breaks off or holds something else", position=start
            )
        yield bytes(data[start + 1 : at])
    if at != end:
        raise CorruptWireError(f"a batch of {count} RPCs with bytes behind the last one", position=at)


def is_replayable(data: Buffer) -> bool:
    """Whether an incoming RPC comes again when its sender replays: anything but an Impulse."""
    if not data:
        raise CorruptWireError("an RPC without content", position=0)
    if data[0]:
        return True
    _, at = decode_int(data, 1)
    if at >= len(data):
        raise CorruptWireError("an RPC without a type", position=at)
    return data[at] != RpcType.IMPULSE


def _fields(rpc: Rpc) -> bytes:
    if isinstance(rpc, Call):
        parts = [b"\0", encode_int(rpc.method), bytes((rpc.kind,))]
        if rpc.kind == RpcType.ASYNC:
            parts += [_text(rpc.sender), encode_long(rpc.number)]
        return b"".join((*parts, rpc.arguments))
    parts = [bytes((rpc.kind,)), _text(rpc.responder), encode_long(rpc.number)]
    if rpc.payload is not None:
        if rpc.kind == ReplyKind.VOID:
            raise ValueError("an answer without a value carries no payload")
        parts += [encode_int(len(rpc.payload)), rpc.payload]
    return b"".join(parts)


def _decode_call(data: Buffer) -> Call:
    method, at = decode_int(data, 1)
    if at >= len(data) or data[at] > RpcType.IMPULSE:
        raise CorruptWireError("an RPC without a known type (0 to 2)", position=at)
    kind, sender, number = RpcType(data[at]), "", 0
    at += 1
    if kind == RpcType.ASYNC:
        sender, at = _decode_text(data, at)
        number, at = decode_long(data, at)
    return Call(method, kind, bytes(data[at:]), sender, number)


def _text(name: str) -> bytes:
    encoded = name.encode()
    return encode_int(len(encoded)) + encoded


def _decode_text(data: Buffer, position: int) -> tuple[str, int]:
    length, at = decode_int(data, position)
    end = at + length
    if length < 0 or end > len(data):
        raise CorruptWireError(f"a name of {length} bytes where {len(data) - at} are left", position=position)
    try:
        return str(data[at:end], "utf-8"), end
    except UnicodeDecodeError:
        raise CorruptWireError("a name that is not UTF-8", position=at) from None
