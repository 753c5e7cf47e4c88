"""What a binding sends, sorted by destination and turned into what the destinations' bindings get (seed 002, type 0).

The destination is dropped and the size counted anew; everything else travels as it came. This is the coordinator's
innermost loop: each call of each binding passes through it once.
"""

from __future__ import annotations

from penstock.immortal.wire.messages import CALLS, MessageType
from penstock.immortal.wire.rpc import RpcType, batch_counts
from penstock.immortal.wire.zigzag import CorruptWireError, decode_int, encode_int

_HEADS = tuple(encode_int(size) + b"\0" for size in range(8192))
_IMPULSE = int(RpcType.IMPULSE)


class Routed:
    """Messages for one destination, in the order in which they were sent."""

    __slots__ = ("count", "impulses", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.impulses = 0
        self.count = 0

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def replayable(self) -> int:
        return self.count - self.impulses


def route(kind: int, data: bytes) -> dict[bytes, Routed]:
    """The RPCs of a message of type 0 or 5, or a ping, from a binding, by destination (UTF-8; empty for itself)."""
    routed: dict[bytes, Routed] = {}
    try:
        if kind in CALLS:
            _one(routed, data, 0, len(data))
            if kind != MessageType.RPC:
                [alone] = routed.values()
                alone.pieces = [_as(kind, *alone.pieces)]
        else:
            count, _, at = batch_counts(kind, data)
            _many(routed, data, count, at)
    except IndexError:
        raise CorruptWireError("an RPC that breaks off", position=len(data)) from None
    return routed


def _as(kind: int, message: bytes) -> bytes:
    _, at = decode_int(message, 0)
    return message[:at] + bytes((kind,)) + message[at + 1 :]


def _many(routed: dict[bytes, Routed], data: bytes, count: int, at: int) -> None:
    for _ in range(count):
        size = data[at]
        if size < 0x80 and not size & 1:
            size >>= 1
            start = at + 1
        else:
            size, start = decode_int(data, at)
        at = start + size
        if size < 1 or at > len(data) or data[start]:
            raise CorruptWireError(f"a batch of {count} that breaks off or holds no RPC", position=start)
        _one(routed, data, start + 1, at)
    if at != len(data):
        raise CorruptWireError(f"a batch of {count} with bytes behind the last RPC", position=at)


def _one(routed: dict[bytes, Routed], data: bytes, at: int, end: int) -> None:
    length = data[at]
    if length < 0x80 and not length & 1:
        at += 1
        begin = at + (length >> 1)
    else:
        length, at = decode_int(data, at)
        begin = at + length
        if length < 0:
            raise CorruptWireError(f"a destination of {length} bytes", position=at)
    name = data[at:begin]
    mine = routed.get(name)
    if mine is None:
        mine = routed[name] = Routed()
    if not data[begin]:  # a call; answers have another byte there, and are always replayable
        at = begin + 1
        while data[at] >= 0x80:
            at += 1
        if data[at + 1] == _IMPULSE:
            mine.impulses += 1
        if at + 1 >= end:
            raise CorruptWireError("an RPC without a type", position=at)
    elif begin >= end:
        raise CorruptWireError("an RPC without content", position=begin)
    size = end - begin + 1
    mine.pieces.append((_HEADS[size] if size < 8192 else encode_int(size) + b"\0") + data[begin:end])
    mine.count += 1
