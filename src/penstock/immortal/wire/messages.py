"""Messages: `size (ZigZagInt) | type (1 byte) | data`; the size counts type and data (seed 002, "Message Formats").

What a binding sends is a bare sequence of messages. The blob of a checkpoint stands behind its message, outside of
it, and may be of any length; `MessageDecoder` hands it on in the pieces in which it came.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from penstock.base.disk import Buffer
from penstock.immortal.wire.decoding import Decoder, checkpoint_length
from penstock.immortal.wire.zigzag import (
    CorruptWireError,
    ShortWireError,
    decode_int,
    encode_int,
    encode_long,
)

MAX_MESSAGE = 256 << 20
"""The largest message that is taken from a socket; blobs of checkpoints do not count."""


class MessageType(IntEnum):
    """What the byte behind the size says."""

    RPC = 0
    ATTACH_TO = 1
    TAKE_CHECKPOINT = 2
    COMMIT = 3
    REPLAY_FROM = 4
    RPC_BATCH = 5
    PING = 6
    PING_RETURN = 7
    CHECKPOINT = 8
    INITIAL_MESSAGE = 9
    UPGRADE_TAKE_CHECKPOINT = 10
    TAKE_BECOMING_PRIMARY_CHECKPOINT = 11
    UPGRADE_SERVICE = 12
    COUNT_REPLAYABLE_RPC_BATCH = 13
    TRIM_TO = 14
    BECOMING_PRIMARY = 15


CALLS = frozenset({int(MessageType.RPC), int(MessageType.PING), int(MessageType.PING_RETURN)})
"""Types whose data is one call or answer."""


class Message(NamedTuple):
    """One message; `data` is what follows the type."""

    type: int
    data: bytes


class CheckpointStart(NamedTuple):
    """A Checkpoint message: `length` bytes of blob follow."""

    length: int


def encode_message(kind: int, data: Buffer = b"") -> bytes:
    """A whole message."""
    return b"".join((encode_int(len(data) + 1), bytes((kind,)), data))


def checkpoint_message(length: int) -> bytes:
    """What announces a blob of `length` bytes."""
    return encode_message(MessageType.CHECKPOINT, encode_long(length))


def initial_message(data: Buffer) -> bytes:
    """What the first start of an instance sends, and gets back as its first input."""
    return encode_message(MessageType.INITIAL_MESSAGE, data)


def split_messages(body: Buffer) -> Iterator[Message]:
    """The messages of a record's body, which must hold whole ones."""
    at, end = 0, len(body)
    while at < end:
        size, start = decode_int(body, at)
        if size < 1 or start + size > end:
            raise CorruptWireError(f"a message of {size} bytes where {end - start} are left", position=at)
        yield Message(body[start], bytes(body[start + 1 : start + size]))
        at = start + size


class MessageDecoder(Decoder[Message | CheckpointStart]):
    """Messages out of a stream that is cut anywhere."""

    def __init__(self, *, limit: int = MAX_MESSAGE, fixed_lengths: bool = False) -> None:
        super().__init__()
        self._limit = limit
        self._fixed = fixed_lengths

    def _part(self, view: memoryview, at: int) -> tuple[Message | CheckpointStart, int] | None:
        try:
            size, start = decode_int(view, at)
        except ShortWireError:
            return None
        if size < 1 or size > self._limit:
            raise CorruptWireError(
                f"a message of {size} bytes; from 1 to {self._limit} are taken", position=self._position + at
            )
        end = start + size
        if end > len(view):
            return None
        kind, body = view[start], bytes(view[start + 1 : end])
        if kind != MessageType.CHECKPOINT:
            return Message(kind, body), end
        length = checkpoint_length(body, fixed=self._fixed)
        self._begin_blob(length)
        return CheckpointStart(length), end
