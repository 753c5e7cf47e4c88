"""The spool on disk: one file that survives `kill -9` and power loss with a single sync a commit.

    0        slot A     64 KiB   a commit record, or what is left of one
    65536    slot B     64 KiB   the other
    131072   content             the fragment's bytes, uncompressed, from its begin

Commit records alternate between the slots. A record says: content up to `end` hashes to `sum`. Writing
content and record needs no order between them, so one sync serves both and every append that waits: after a
crash the newer record is believed only if the content bears it out; otherwise the older one stands, whose
content was synced before the newer one was begun.

Who closes a file with much content leaves it settled: one more record, which tells the same fragment as the one before
it. By the same rule that content was synced, so it need not be gone through to be believed, only before more is added
to it: then the running SHA1 is needed. Nothing has to be taken back: the next commit is a record of another fragment.

    magic "PnSp" | crc32 of the rest u32 | sequence u64 | begin i64 | end i64 | first append µs i64 |
    codec u8 | sum 20 bytes | registers length u32 | registers (a protobuf LabelSet)

All integers big-endian.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.base.errors import CorruptError, PenstockError
from penstock.journal.fragment import ZERO_SUM, Codec, Fragment
from penstock.journal.protocol import LabelSet
from penstock.journal.spool import Spool
from penstock.journal.stores import LocalSpan

MAGIC = b"PnSp"
SLOT_BYTES = 64 * 1024
CONTENT_AT = 2 * SLOT_BYTES
SUFFIX = ".spool"
WRITE_OUT = 8 << 20
"""A large append is written out in the background every so many bytes, so that its commit has little left to sync."""

WORTH_SETTLING = 8 << 20
"""Bytes of content that take longer to hash than a record to sync."""

_OUTER = struct.Struct(">4sI")
_RECORD = struct.Struct(">QqqqB20sI")
MAX_REGISTER_BYTES = SLOT_BYTES - _OUTER.size - _RECORD.size
_HASH_CHUNK = 1 << 20


class RegistersTooLargeError(PenstockError):
    """The registers of a journal must fit a commit record."""


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """What is known to be committed in this file."""

    sequence: int
    fragment: Fragment
    registers: LabelSet
    first_append: int


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


class SpoolFile:
    """A spool file, written by one owner; the storage of a `Spool`. Commits are serialised by the caller.

    Readers open the path themselves. A file that nobody writes to is parked: closed until the next write.
    """

    def __init__(self, file: DiskFile, record: CommitRecord, *, settled: bool = False) -> None:
        self._disk = file.disk
        self._file = file
        self.path = file.path
        self.record = record
        self._settled = settled
        self._ahead = 0
        """Bytes written that the kernel has not been told to write out."""

    @property
    def fragment(self) -> Fragment:
        """What this file is known to hold for good."""
        return self.record.fragment

    @classmethod
    def create(cls, disk: Disk, directory: Path, fragment: Fragment, registers: LabelSet) -> SpoolFile:
        """A new file for an empty fragment, durable with its registers before anything rests on it."""
        record = CommitRecord(0, fragment, registers, 0)
        encoded = encode_record(record)
        file = disk.open(directory / f"{fragment.begin:016x}{SUFFIX}", create=True)
        try:
            file.truncate(0)
            # Both slots at their full size: once they have their room, a commit needs none for its record.
            file.write_at(encoded.ljust(CONTENT_AT, b"\0"), 0)
            file.sync()
            disk.sync_dir(directory)
        except BaseException:
            file.close()
            raise
        return cls(file, record)

    @classmethod
    def recover(
        cls, disk: Disk, path: Path, journal: str, *, trust: bool = False
    ) -> tuple[SpoolFile, Spool] | None:
        """Open a file that a crash may have left in any state; None if it never came to life.

        With `trust` one that was left settled is not gone through: its spool lacks the sum to go on from (`sum`).

        A file comes to life with the sync in `create`; before that nothing was promised about it. What is found
        is synced first: the process that wrote it may have died before its own sync; and read from the disk, for its
        sync may have failed. The caller sees to the directory.
        """
        file = disk.open(path)
        try:
            file.sync()
            file.read_anew(0, CONTENT_AT)
            found = cls._believed(file, journal, trust)
        except BaseException:
            file.close()
            raise
        if found is None:
            file.close()
        return found

    @classmethod
    def _believed(cls, file: DiskFile, journal: str, trust: bool) -> tuple[SpoolFile, Spool] | None:
        """The newer of the two commit records if the content bears it out, else the older one."""
        slots = [decode_record(journal, file.read_at(SLOT_BYTES, at)) for at in (0, SLOT_BYTES)]
        records = sorted((slot for slot in slots if slot is not None), key=lambda slot: -slot.sequence)
        settled = len(records) == 2 and _repeats(*records)
        if trust and settled and file.size() >= CONTENT_AT + records[0].fragment.length:
            spool_file = cls(file, records[0], settled=True)
            return spool_file, Spool(records[0].fragment, records[0].registers, spool_file)
        file.read_anew(CONTENT_AT)
        for record in records:
            summer = _hash(file, record.fragment.end - record.fragment.begin)
            if summer is not None and _matches(record.fragment, summer):
                spool_file = cls(file, record, settled=settled)
                return spool_file, Spool(record.fragment, record.registers, spool_file, summer=summer)
        if records:
            raise _not_borne_out(file.path)
        return None

    def sum(self) -> hashlib._Hash:
        """The SHA1 state after the committed content, which must bear its record out. Blocks."""
        fragment = self.fragment
        with self._disk.open(self.path) as file:
            summer = _hash(file, fragment.length)
        if summer is None or not _matches(fragment, summer):
            raise _not_borne_out(self.path)
        return summer

    def write(self, content: Buffer, position: int) -> None:
        file = self._opened()
        file.write_at(content, CONTENT_AT + position)
        self._ahead += len(content)
        if self._ahead >= WRITE_OUT:
            end = CONTENT_AT + position + len(content)
            file.start_writing_out(end - self._ahead, self._ahead)
            self._ahead = 0

    def commit(self, fragment: Fragment, registers: LabelSet, first_append: int) -> None:
        """Make this fragment durable; returns when it is. Blocks: call it in a thread, one at a time.

        After an OSError nothing more may be committed: what reached the disk is unknown.
        """
        file = self._opened()
        record = CommitRecord(self.record.sequence + 1, fragment, registers, first_append)
        file.write_at(encode_record(record), SLOT_BYTES * (record.sequence % 2))
        file.sync()
        self._ahead = 0
        self._settled = _repeats(record, self.record)
        self.record = record

    @property
    def is_settled(self) -> bool:
        """Whether the next owner is spared the way through the content already, or it is not worth a sync."""
        return self._settled or self.fragment.length < WORTH_SETTLING

    def settle(self) -> None:
        """Spare the next owner the way through the content. Blocks; no promise."""
        if not self.is_settled:
            with suppress(OSError):
                self.commit(self.fragment, self.record.registers, self.record.first_append)

    def give_up(self) -> None:
        """After a commit that failed: see to it, durably, that its record is never believed. Blocks.

        By a descriptor of its own: what the old one says of a sync says nothing any more.
        """
        self._file.close()
        file = self._opened()
        file.write_at(bytes(SLOT_BYTES), SLOT_BYTES * ((self.record.sequence + 1) % 2))
        file.sync()

    def cut(self, length: int) -> None:
        """Give back the room of content beyond the first `length` bytes. No promise: a failure harms nothing."""
        with suppress(OSError):
            self._opened().truncate(CONTENT_AT + length)
        self._ahead = 0

    def park(self) -> None:
        """Close the file until it is written to again. Everything in it must have been synced."""
        self._file.close()

    def close(self) -> None:
        self._file.close()

    def _opened(self) -> DiskFile:
        if self._file.closed:
            self._file = self._disk.open(self.path)
        return self._file


def committed_content(disk: Disk, path: Path, length: int) -> Iterator[bytes]:
    """The first `length` bytes of a spool file's content, as a source for a store. Blocks."""
    with disk.open(path) as file:
        yield from LocalSpan(file, CONTENT_AT, length)


def _hash(file: DiskFile, size: int) -> hashlib._Hash | None:
    """The SHA1 state after `size` bytes of content; None if the file is shorter."""
    summer = hashlib.sha1()
    position = 0
    while position < size:
        chunk = file.read_at(min(_HASH_CHUNK, size - position), CONTENT_AT + position)
        if not chunk:
            return None
        summer.update(chunk)
        position += len(chunk)
    return summer


def _repeats(newer: CommitRecord, older: CommitRecord) -> bool:
    """Whether the newer record says of much content that the older one was synced, and nothing else."""
    return newer.fragment == older.fragment and newer.fragment.length >= WORTH_SETTLING


def _not_borne_out(path: Path) -> CorruptError:
    return CorruptError(
        "no commit record is borne out by the content",
        where=str(path),
        position=CONTENT_AT,
        hint="the disk lost or changed bytes it had confirmed; keep the file and restore from a copy",
    )


def _matches(fragment: Fragment, summer: hashlib._Hash) -> bool:
    if fragment.begin == fragment.end:
        return fragment.sum == ZERO_SUM
    return summer.digest() == fragment.sum
