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
_NONE = b"\xff" * 16
"""What no call begins with."""


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


def route(kind: int, data: bytes, own: bytes = b"") -> dict[bytes, Routed]:
    """The RPCs of a message of type 0 or 5, or a ping, from a binding, by destination (UTF-8; empty for itself).

    Its `own` name is itself as well: what goes there under either name stays in one order.
    """
    routed: dict[bytes, Routed] = {}
    try:
        if kind in CALLS:
            _one(routed, data, 0, len(data), own)
            if kind != MessageType.RPC:
                [alone] = routed.values()
                alone.pieces = [_as(kind, *alone.pieces)]
        else:
            count, _, at = batch_counts(kind, data)
            _many(routed, data, count, at, own)
    except IndexError:
        raise CorruptWireError("an RPC that breaks off", position=len(data)) from None
    return routed


def _as(kind: int, message: bytes) -> bytes:
    _, at = decode_int(message, 0)
    return message[:at] + bytes((kind,)) + message[at + 1 :]


def _many(routed: dict[bytes, Routed], data: bytes, count: int, at: int, own: bytes) -> None:
    """Most calls of a batch begin as the one before did: to the same destination, of the same method and type."""
    head = _NONE
    mine, is_impulse, skipped, whole = Routed(), False, 0, len(data)
    for _ in range(count):
        size, start = data[at], at + 1
        if size >= 0x80:
            size, start = (size & 0x7F) | data[start] << 7, at + 2
            if size >= 0x4000:
                size, start = decode_int(data, at)
                size <<= 1
        at = start + (size >> 1)
        if size < 2 or size & 1 or at > whole or data[start]:
            raise CorruptWireError(f"a batch of {count} that breaks off or holds no RPC", position=start)
        begin = start + 1
        if not data.startswith(head, begin) or begin + len(head) > at:
            head, mine, is_impulse, skipped = _one(routed, data, begin, at, own)
            continue
        begin += skipped
        size = at - begin + 1
        mine.pieces.append((_HEADS[size] if size < 8192 else encode_int(size) + b"\0") + data[begin:at])
        mine.count += 1
        mine.impulses += is_impulse
    if at != whole:
        raise CorruptWireError(f"a batch of {count} with bytes behind the last RPC", position=at)


def _one(
    routed: dict[bytes, Routed], data: bytes, at: int, end: int, own: bytes
) -> tuple[bytes, Routed, bool, int]:
    """Take one RPC. What calls like it begin with; whose it is, whether it is an Impulse, what is left out of it."""
    length, name_at = decode_int(data, at)
    begin = name_at + length
    if length < 0:
        raise CorruptWireError(f"a destination of {length} bytes", position=name_at)
    name = data[name_at:begin]
    mine = routed.setdefault(b"" if name == own else name, Routed())
    head, is_impulse = _NONE, False
    if not data[begin]:  # a call; answers have another byte there, and are always replayable
        _, kind_at = decode_int(data, begin + 1)
        is_impulse = data[kind_at] == _IMPULSE
        if kind_at >= end:
            raise CorruptWireError("an RPC without a type", position=kind_at)
        head = data[at : kind_at + 1]
    elif begin >= end:
        raise CorruptWireError("an RPC without content", position=begin)
    size = end - begin + 1
    mine.pieces.append((_HEADS[size] if size < 8192 else encode_int(size) + b"\0") + data[begin:end])
    mine.count += 1
    mine.impulses += is_impulse
    return head, mine, is_impulse, begin - at
