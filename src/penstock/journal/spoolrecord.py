"""Commit records: what a spool file says of itself.

A record says: content up to `end` hashes to `sum`. There is room for two of them in a file, its *slots*.

    magic "PnSp" | crc32 of the rest u32 | sequence u64 | begin i64 | end i64 | first append µs i64 |
    codec u8 | sum 20 bytes | registers length u32 | registers (a protobuf LabelSet)

All integers big-endian.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from penstock.base.errors import PenstockError
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.protocol import LabelSet

MAGIC = b"PnSp"
SLOT_BYTES = 64 * 1024
SLOTS_BYTES = 2 * SLOT_BYTES

_OUTER = struct.Struct(">4sI")
_RECORD = struct.Struct(">QqqqB20sI")
MAX_REGISTER_BYTES = SLOT_BYTES - _OUTER.size - _RECORD.size


class RegistersTooLargeError(PenstockError):
    """The registers of a journal must fit a commit record."""


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """What is known to be committed in a file."""

    sequence: int
    fragment: Fragment
    registers: LabelSet
    first_append: int

    @property
    def slot(self) -> int:
        """Where it stands among the slots: they take turns."""
        return SLOT_BYTES * (self.sequence % 2)


def require_fitting(journal: str, registers: LabelSet) -> None:
    """Refuse registers that no commit record can hold, before anything rests on them."""
    size = registers.ByteSize()
    if size > MAX_REGISTER_BYTES:
        raise RegistersTooLargeError(
            f"{journal}: registers take {size} bytes, at most {MAX_REGISTER_BYTES} fit"
        )


def encode_record(record: CommitRecord) -> bytes:
    require_fitting(record.fragment.journal, record.registers)
    registers = record.registers.SerializeToString(deterministic=True)
    fragment = record.fragment
    body = _RECORD.pack(
        record.sequence,
        fragment.begin,
        fragment.end,
        record.first_append,
        int(fragment.codec),
        fragment.sum,
        len(registers),
    )
    body += registers
    return _OUTER.pack(MAGIC, zlib.crc32(body)) + body


def encode_slots(record: CommitRecord) -> bytes:
    """Both slots at their full size, this record alone in its own.

    Once they have their room on the disk, a commit needs none for its record.
    """
    return (bytes(record.slot) + encode_record(record)).ljust(SLOTS_BYTES, b"\0")


def decode_record(journal: str, slot: bytes) -> CommitRecord | None:
    """The record in a slot, or None if the slot holds none that is whole."""
    if len(slot) < _OUTER.size + _RECORD.size:
        return None
    magic, crc = _OUTER.unpack_from(slot)
    if magic != MAGIC:
        return None
    fields = _RECORD.unpack_from(slot, _OUTER.size)
    sequence, begin, end, first_append, codec, digest, length = fields
    stop = _OUTER.size + _RECORD.size + length
    if stop > len(slot) or zlib.crc32(slot[_OUTER.size : stop]) != crc:
        return None
    registers = LabelSet.FromString(slot[stop - length : stop])
    fragment = Fragment(journal, begin, end, digest, Codec(codec))
    return CommitRecord(sequence, fragment, registers, first_append)


def decode_slots(journal: str, slots: bytes) -> list[CommitRecord]:
    """The records in both slots that are whole, the newer one first."""
    decoded = (decode_record(journal, slots[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES))
    return sorted((record for record in decoded if record is not None), key=lambda record: -record.sequence)
