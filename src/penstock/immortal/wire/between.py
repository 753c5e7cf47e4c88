"""What coordinators tell each other about a stream of calls (types 3, 4 and 14).

ReplayFrom   the receiver's first word on a data stream: the next number, and the next replayable one, that it wants
TrimTo       the receiver's first word on a control stream: how far it has trimmed its own output, -1 for never
Commit       what is durable at the receiver: the last number, and the last replayable one
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

from penstock.base.disk import Buffer
from penstock.immortal.wire.messages import MessageType, encode_message
from penstock.immortal.wire.zigzag import CorruptWireError, decode_long, encode_long


class _Numbers(NamedTuple):
    number: int
    replayable: int


class _Pair(_Numbers):
    KIND: ClassVar[MessageType]

    def encode(self) -> bytes:
        return encode_message(self.KIND, encode_long(self.number) + encode_long(self.replayable))

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """From the data of the message."""
        number, at = decode_long(data, 0)
        replayable, at = decode_long(data, at)
        if at != len(data) or not 0 <= replayable <= number:
            raise CorruptWireError(f"{cls.__name__} with the numbers {number} and {replayable}", position=0)
        return cls(number, replayable)


class ReplayFrom(_Pair):
    """The next number wanted, and the next replayable one."""

    KIND = MessageType.REPLAY_FROM


class Commit(_Pair):
    """The last durable number, and the last durable replayable one."""

    KIND = MessageType.COMMIT


class TrimTo(NamedTuple):
    """How far the receiver of a control stream has trimmed its own output."""

    number: int

    def encode(self) -> bytes:
        return encode_message(MessageType.TRIM_TO, encode_long(self.number))

    @classmethod
    def decode(cls, data: Buffer) -> TrimTo:
        """From the data of the message."""
        number, at = decode_long(data, 0)
        if at != len(data) or number < -1:
            raise CorruptWireError(f"TrimTo with the number {number}", position=0)
        return cls(number)
