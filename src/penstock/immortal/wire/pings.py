"""Pings (types 6 and 7): calls whose last 40 bytes are five LongFixed slots for times (reference 4).

    Ping          0  when it leaves its sender's coordinator    1  when it reaches its receiver's
                  2  for the binding that turns it round
    PingReturn    3  when it leaves                             4  when it is back

Coordinators fill their slots in passing, and treat the rest as any call. A time is the number of 100 ns since 1601. One
that comes in company is not looked at, as in the original; no binding that is known sends or expects any.
"""

from __future__ import annotations

from penstock.immortal.wire.messages import MessageType
from penstock.immortal.wire.zigzag import CorruptWireError

_SLOT = 8
_SLOTS = 5
_LEAVING = {int(MessageType.PING): 0, int(MessageType.PING_RETURN): 3}
_FROM_1601_TO_1970 = 11_644_473_600


def is_ping(kind: int) -> bool:
    """Whether messages of this type have slots for times."""
    return kind in _LEAVING


def leaving(kind: int, data: bytes, now: float) -> bytes:
    """The data of a ping that a binding sends, with its time."""
    return _stamped(data, _LEAVING[kind], now)


def arriving(kind: int, data: bytes, now: float) -> bytes:
    """The data of a ping that came from another coordinator, with its time."""
    return _stamped(data, _LEAVING[kind] + 1, now)


def _stamped(data: bytes, slot: int, now: float) -> bytes:
    at = len(data) - (_SLOTS - slot) * _SLOT
    if len(data) < _SLOTS * _SLOT:
        raise CorruptWireError(f"a ping of {len(data)} bytes, without its five times", position=0)
    time = int((now + _FROM_1601_TO_1970) * 10_000_000).to_bytes(_SLOT, "little")
    return data[:at] + time + data[at + _SLOT :]
