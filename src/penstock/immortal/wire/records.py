"""Log records: everything that a coordinator sends to its binding (seed 002, "Message Formats").

    committer id i32 | size i32 | check bytes u64 | sequence id i64 | body

Little endian. The size counts header and body. The check bytes are xxHash64 (seed 0) of the body. Sequence ids are
0, 1, 2 … without a gap for what is in the log, -1 for a record with one control message, -2 for one with a Checkpoint
message: its check bytes are 0, and its blob follows the record without being counted.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import xxhash

from penstock.base.disk import Buffer
from penstock.immortal.wire.decoding import Decoder, checkpoint_length
from penstock.immortal.wire.messages import (
    MAX_MESSAGE,
    MessageType,
    checkpoint_message,
    encode_message,
    split_messages,
)
from penstock.immortal.wire.zigzag import CorruptWireError

HEADER = Struct("<iiQq")
HEADER_BYTES = HEADER.size
CONTROL_ID, CHECKPOINT_ID = -1, -2
MAX_RECORD = MAX_MESSAGE + (16 << 20)
CONTROLS = frozenset(
    {
        MessageType.TAKE_CHECKPOINT,
        MessageType.UPGRADE_TAKE_CHECKPOINT,
        MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT,
        MessageType.UPGRADE_SERVICE,
        MessageType.BECOMING_PRIMARY,
    }
)


class Record(NamedTuple):
    """A record with a sequence id of 0 or more, or of -1; `body` holds whole messages."""

    committer: int
    sequence: int
    body: bytes


class CheckpointRecord(NamedTuple):
    """A record with the sequence id -2: `length` bytes of blob follow."""

    committer: int
    length: int


def check_bytes(body: Buffer) -> int:
    """xxHash64 of a body."""
    return xxhash.xxh64_intdigest(body)


def record_header(committer: int, sequence: int, size: int, check: int) -> bytes:
    """The header of a record whose body has `size` bytes."""
    return HEADER.pack(committer, HEADER_BYTES + size, check, sequence)


def encode_record(committer: int, sequence: int, body: Buffer) -> bytes:
    """A whole record with its check bytes."""
    return record_header(committer, sequence, len(body), check_bytes(body)) + body


def control_record(committer: int, kind: MessageType) -> bytes:
    """A record with one control message."""
    return encode_record(committer, CONTROL_ID, encode_message(kind))


def checkpoint_record(committer: int, length: int) -> bytes:
    """What announces a blob of `length` bytes, which follows."""
    body = checkpoint_message(length)
    return record_header(committer, CHECKPOINT_ID, len(body), 0) + body


class RecordDecoder(Decoder[Record | CheckpointRecord]):
    """Records out of a stream that is cut anywhere.

    Check bytes are verified; sequence ids from 0 up must rise by one, whatever the first of them is.
    """

    def __init__(self, *, limit: int = MAX_RECORD) -> None:
        super().__init__()
        self._limit = limit
        self._next: int | None = None

    def _part(self, view: memoryview, at: int) -> tuple[Record | CheckpointRecord, int] | None:
        there = len(view) - at
        if there < HEADER_BYTES:
            return None
        committer, size, check, sequence = HEADER.unpack_from(view, at)
        if not HEADER_BYTES < size <= self._limit:
            raise self._corrupt(f"a record of {size} bytes", at)
        if there < size:
            return None
        body = bytes(view[at + HEADER_BYTES : at + size])
        return self._record(committer, sequence, check, body, at), at + size

    def _record(
        self, committer: int, sequence: int, check: int, body: bytes, at: int
    ) -> Record | CheckpointRecord:
        if sequence == CHECKPOINT_ID:
            messages = list(split_messages(body))
            if len(messages) != 1 or messages[0].type != MessageType.CHECKPOINT:
                raise self._corrupt("a checkpoint record without exactly one Checkpoint message", at)
            length = checkpoint_length(messages[0].data)
            self._begin_blob(length)
            return CheckpointRecord(committer, length)
        if check_bytes(body) != check:
            raise self._corrupt(f"record {sequence} whose check bytes do not match its body", at)
        if sequence == CONTROL_ID:
            if len(body) != 2 or body[1] not in CONTROLS:
                raise self._corrupt("a control record without exactly one control message", at)
        elif sequence < 0 or (self._next is not None and sequence != self._next):
            raise self._corrupt(f"record {sequence} where {self._next} was to come", at)
        else:
            self._next = sequence + 1
        return Record(committer, sequence, body)

    def _corrupt(self, what: str, at: int) -> CorruptWireError:
        return CorruptWireError(what, position=self._position + at, where="record")
