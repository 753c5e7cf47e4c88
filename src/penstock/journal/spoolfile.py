"""The spool on disk: one file that survives `kill -9` and power loss with a single sync a commit.

Commit records alternate between two slots (`spoolrecord.py`), which lie behind the content (`spoollayout.py`). Writing
content and record needs no order between them, so one sync serves both and every append that waits: after a crash the
newer record is believed only if the content bears it out; otherwise the older one stands, whose content was synced
before the newer one was begun.

Content that needs the place of the slots has them moved first: the record is written and synced behind eight times the
room, and only then are the old slots written over. If that fails nothing has been lost, but what stands there now must
not be found later, when it is out of date: the next commit cuts it off, by the same sync.

Who closes a file with much content leaves it settled: one more record, which tells the same fragment as the one before
it. By the same rule that content was synced, so it need not be gone through to be believed, only before more is added
to it: then the running SHA1 is needed. Nothing has to be taken back: the next commit is a record of another fragment.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from penstock.base import faults
from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.base.errors import CorruptError
from penstock.journal.fragment import ZERO_SUM, Fragment
from penstock.journal.protocol import LabelSet
from penstock.journal.spool import Spool
from penstock.journal.spoollayout import (
    GROWTH,
    Layout,
    behind,
    content_at,
    is_whole,
    layouts,
    open_name,
    parse_whole,
    room_for,
    whole_name,
)
from penstock.journal.spoolrecord import (
    SLOT_BYTES,
    SLOTS_BYTES,
    CommitRecord,
    decode_slots,
    encode_record,
    encode_slots,
)
from penstock.journal.stores import LocalSpan

WRITE_OUT = 2 << 20
"""A large append is written out in the background every so many bytes, so that its commit has little left to sync."""

WORTH_SETTLING = 8 << 20
"""Bytes of content that take longer to hash than a record to sync."""

_HASH_CHUNK = 1 << 20


class SpoolFile:
    """A spool file, written by one owner; the storage of a `Spool`. Commits are serialised by the caller.

    Readers open the path themselves. A file that nobody writes to is parked: closed until the next write. Once it is
    complete, it may be made `whole` and given away under another name.
    """

    def __init__(
        self, file: DiskFile, record: CommitRecord, layout: Layout, *, settled: bool = False
    ) -> None:
        self._disk = file.disk
        self._file = file
        self.path = file.path
        self.record = record
        self._layout = layout
        self._settled = settled
        self._ahead = 0
        """Bytes written that the kernel has not been told to write out."""
        self._slots = threading.Lock()
        """Held while a record is written: content may come meanwhile that needs their place."""
        self._moved_in_vain = False
        """Whether there may be a record behind the slots, of a move that failed."""

    @property
    def fragment(self) -> Fragment:
        """What this file is known to hold for good."""
        return self.record.fragment

    @classmethod
    def create(
        cls, disk: Disk, directory: Path, fragment: Fragment, registers: LabelSet, *, expected: int = 0
    ) -> SpoolFile:
        """A new file for an empty fragment, durable with its registers before anything rests on it.

        For `expected` bytes of content its slots need not be moved.
        """
        record = CommitRecord(0, fragment, registers, 0)
        slots, layout = encode_slots(record), behind(room_for(expected))
        file = disk.open(directory / open_name(fragment.begin), create=True)
        try:
            file.truncate(0)
            file.write_at(slots, layout.slots)
            file.sync()
            disk.sync_dir(directory)
        except BaseException:
            file.close()
            raise
        return cls(file, record, layout)

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
            found = cls._whole(file, journal) if is_whole(path) else cls._believed(file, journal, trust)
        except BaseException:
            file.close()
            raise
        if found is None:
            file.close()
        return found

    @classmethod
    def _believed(cls, file: DiskFile, journal: str, trust: bool) -> tuple[SpoolFile, Spool] | None:
        """The newer of the two commit records if the content bears it out, else the older one."""
        layout, records = _records(file, journal)
        settled = len(records) == 2 and _repeats(*records)
        if trust and settled and file.size() >= layout.content + records[0].fragment.length:
            spool_file = cls(file, records[0], layout, settled=True)
            return spool_file, Spool(records[0].fragment, records[0].registers, spool_file)
        file.read_anew(layout.content)
        for record in records:
            summer = _hash(file, layout.content, record.fragment.length)
            if summer is not None and _matches(record.fragment, summer):
                spool_file = cls(file, record, layout, settled=settled)
                return spool_file, Spool(record.fragment, record.registers, spool_file, summer=summer)
        if records:
            raise _not_borne_out(file.path)
        return None

    @classmethod
    def _whole(cls, file: DiskFile, journal: str) -> tuple[SpoolFile, Spool]:
        """What the name says, if the content bears it out."""
        record = parse_whole(journal, file.path)
        if record is None:
            raise _not_borne_out(file.path)
        file.read_anew()
        summer = _hash(file, 0, record.fragment.length)
        if summer is None or not _matches(record.fragment, summer):
            raise _not_borne_out(file.path)
        spool_file = cls(file, record, behind(record.fragment.length))
        return spool_file, Spool(record.fragment, record.registers, spool_file, summer=summer)

    def sum(self) -> hashlib._Hash:
        """The SHA1 state after the committed content, which must bear its record out. Blocks."""
        fragment = self.fragment
        with self._disk.open(self.path) as file:
            summer = _hash(file, self._layout.content, fragment.length)
        if summer is None or not _matches(fragment, summer):
            raise _not_borne_out(self.path)
        return summer

    def has_room(self, length: int) -> bool:
        """Whether content of this length leaves the slots where they are."""
        return self._layout.room is None or length <= self._layout.room

    def write(self, content: Buffer, position: int) -> None:
        """Write content that is not committed yet. Blocks for a sync if there is no room for it."""
        end = position + len(content)
        while not self.has_room(end):
            self._move_slots(self._layout.slots * GROWTH)
        file, content_at = self._opened(), self._layout.content
        file.write_at(content, content_at + position)
        self._ahead += len(content)
        if self._ahead >= WRITE_OUT:
            file.start_writing_out(content_at + end - self._ahead, self._ahead)
            self._ahead = 0

    def _move_slots(self, room: int) -> None:
        with self._slots, faults.step("move"):
            file = self._opened()
            self._moved_in_vain = True
            file.write_at(encode_slots(self.record), room)
            file.sync()
            self._moved_in_vain = False
            self._layout = behind(room)

    def commit(self, fragment: Fragment, registers: LabelSet, first_append: int) -> None:
        """Make this fragment durable; returns when it is. Blocks: call it in a thread, one at a time.

        After an OSError nothing more may be committed: what reached the disk is unknown.
        """
        with self._slots:
            file = self._opened()
            record = CommitRecord(self.record.sequence + 1, fragment, registers, first_append)
            encoded = encode_record(record)
            self._cut_off(file)
            file.write_at(encoded, self._layout.slots + record.slot)
            file.sync()
            self._moved_in_vain = False
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
        self._cut_off(file)
        file.write_at(bytes(SLOT_BYTES), self._layout.slots + SLOT_BYTES - self.record.slot)
        file.sync()
        self._moved_in_vain = False

    def _cut_off(self, file: DiskFile) -> None:
        """Take away what a move that failed may have left, before the record that it has is out of date."""
        if self._moved_in_vain:
            file.truncate(self._layout.slots + SLOTS_BYTES)

    def cut(self, length: int) -> None:
        """Give back the room of content beyond the first `length` bytes. No promise: a failure harms nothing."""
        with suppress(OSError):
            if self._layout.room is None:
                self._opened().truncate(self._layout.content + length)
            else:
                self._opened().free(length, self._layout.room - length)
        self._ahead = 0

    def park(self) -> None:
        """Close the file until it is written to again. Everything in it must have been synced."""
        self._file.close()

    def close(self) -> None:
        self._file.close()

    @property
    def can_be_whole(self) -> bool:
        """Whether content begins where the file does."""
        return self._layout.content == 0

    def name_whole(self) -> None:
        """Let the name of a complete file say what its record does. Readers have to be told of its new path."""
        target = self.path.with_name(whole_name(self.record))
        if target != self.path:
            self._disk.rename(self.path, target)
            self.path = target

    def make_whole(self) -> None:
        """Cut the records off a file that has its name for that. Blocks; on return it is content alone, durably."""
        self._disk.sync_dir(self.path.parent)  # or it might come back without records, and without that name
        with faults.step("whole"), self._disk.open(self.path) as file:
            file.truncate(self.fragment.length)
            file.sync()

    def _opened(self) -> DiskFile:
        if self._file.closed:
            self._file = self._disk.open(self.path)
        return self._file


def committed_content(disk: Disk, path: Path, length: int) -> Iterator[bytes]:
    """The first `length` bytes of a spool file's content, as a source for a store. Blocks."""
    with disk.open(path) as file:
        yield from LocalSpan(file, content_at(path), length)


def _records(file: DiskFile, journal: str) -> tuple[Layout, list[CommitRecord]]:
    """Where the slots are, and what they say, read from the disk; nothing if they never came to life."""
    for layout in layouts(file.path, file.size()):
        file.read_anew(layout.slots, SLOTS_BYTES)
        records = decode_slots(journal, file.read_at(SLOTS_BYTES, layout.slots))
        if records:
            break
    return layout, records


def _hash(file: DiskFile, begin: int, size: int) -> hashlib._Hash | None:
    """The SHA1 state after `size` bytes of content; None if the file is shorter."""
    summer = hashlib.sha1()
    position = 0
    while position < size:
        chunk = file.read_at(min(_HASH_CHUNK, size - position), begin + position)
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
        position=content_at(path),
        hint="the disk lost or changed bytes it had confirmed; keep the file and restore from a copy",
    )


def _matches(fragment: Fragment, summer: hashlib._Hash) -> bool:
    if fragment.begin == fragment.end:
        return fragment.sum == ZERO_SUM
    return summer.digest() == fragment.sum
