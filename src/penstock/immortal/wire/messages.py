"""Messages: `size (ZigZagInt) | type (1 byte) | data`; the size counts type and data (seed 002, "Message Formats").

What a binding sends is a bare sequence of messages. The blob of a checkpoint stands behind its message, outside of
it, and may be of any length; `MessageDecoder` hands it on in the pieces in which it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from penstock.base.disk import Buffer
from penstock.immortal.wire.zigzag import (
    CorruptWireError,
    ShortWireError,
    decode_int,
    decode_long,
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


TYPES = frozenset(int(kind) for kind in MessageType)


class Message(NamedTuple):
    """One message; `data` is what follows the type."""

    type: int
    data: bytes


class CheckpointStart(NamedTuple):
    """A Checkpoint message: `length` bytes of blob follow."""

    length: int


class Blob(NamedTuple):
    """A piece of the blob that was announced last; `left` bytes of it are still to come.

    A blob of no bytes is one empty piece, so that every blob ends with a piece of which nothing is left.
    """

    piece: bytes
    left: int


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


def checkpoint_length(data: Buffer, *, fixed: bool = False) -> int:
    """The length that a Checkpoint message announces; `fixed`: as eight bytes, the way of old bindings."""
    if fixed and len(data) == 8:
        length, end = int.from_bytes(data, "little", signed=True), 8
    else:
        length, end = decode_long(data, 0)
    if end != len(data) or length < 0:
        raise CorruptWireError(f"a checkpoint of {length} bytes, announced in {len(data)} bytes", position=0)
    return length


class BlobPart:
    """What is left of a blob, for the decoders of both directions: bytes are handed on as they come."""

    def __init__(self) -> None:
        self.left = -1

    def begin(self, length: int) -> None:
        self.left = length

    @property
    def is_open(self) -> bool:
        return self.left >= 0

    def take(self, data: Buffer) -> tuple[Blob, int]:
        """The next piece from the front of `data`, and how long it is."""
        taken = min(self.left, len(data))
        self.left -= taken
        piece = Blob(bytes(data[:taken]), self.left)
        if self.left == 0:
            self.left = -1
        return piece, taken


Event = Message | CheckpointStart | Blob


class MessageDecoder:
    """Messages out of a stream that is cut anywhere."""

    def __init__(self, *, limit: int = MAX_MESSAGE, fixed_lengths: bool = False) -> None:
        self._buffer = bytearray()
        self._limit = limit
        self._fixed = fixed_lengths
        self._blob = BlobPart()
        self._position = 0

    @property
    def is_between(self) -> bool:
        """Whether the stream may end here: nothing has begun that is not whole."""
        return not self._buffer and not self._blob.is_open

    def feed(self, data: Buffer) -> list[Event]:
        """What is whole with these bytes."""
        if self._blob.is_open and not self._buffer:
            piece, taken = self._blob.take(data)
            self._position += taken
            return [piece, *self.feed(memoryview(data)[taken:])] if taken < len(data) else [piece]
        self._buffer += data
        events: list[Event] = []
        with memoryview(self._buffer) as view:
            used = self._walk(view, events.append)
        del self._buffer[:used]
        self._position += used
        return events

    def _walk(self, view: memoryview, out: Callable[[Event], None]) -> int:
        at, end = 0, len(view)
        while at < end or self._blob.left == 0:
            if self._blob.is_open:
                piece, taken = self._blob.take(view[at:])
                at += taken
                out(piece)
                continue
            try:
                size, start = decode_int(view, at)
            except ShortWireError:
                return at
            if size < 1 or size > self._limit:
                raise CorruptWireError(
                    f"a message of {size} bytes; from 1 to {self._limit} are taken",
                    position=self._position + at,
                )
            if start + size > end:
                return at
            at = start + size
            kind, body = view[start], bytes(view[start + 1 : at])
            if kind == MessageType.CHECKPOINT:
                self._blob.begin(checkpoint_length(body, fixed=self._fixed))
                out(CheckpointStart(self._blob.left))
            else:
                out(Message(kind, body))
        return at
