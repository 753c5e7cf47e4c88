"""The spool's file: what recovery makes of every state that a crash can leave it in."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.base.errors import CorruptError
from penstock.journal import spoolfile
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.labels import label_set
from penstock.journal.protocol import LabelSet
from penstock.journal.spool import Spool, empty_fragment
from penstock.journal.spoolfile import (
    CONTENT_AT,
    MAX_REGISTER_BYTES,
    SLOT_BYTES,
    CommitRecord,
    RegistersTooLargeError,
    SpoolFile,
    committed_content,
    decode_record,
    encode_record,
)

JOURNAL = "a/journal"


def a_file(directory: Path, begin: int = 0) -> tuple[SpoolFile, Spool]:
    fragment = empty_fragment(JOURNAL, begin, Codec.NONE)
    file = SpoolFile.create(Disk(), directory, fragment, LabelSet())
    return file, Spool(fragment, LabelSet(), file)


def append(file: SpoolFile, spool: Spool, content: bytes, **registers: str) -> None:
    spool.content(content, 0)
    spool.propose(spool.next(), label_set(registers))
    file.commit(spool.fragment, spool.registers, 17)


def recovered(path: Path) -> tuple[bytes, LabelSet] | None:
    found = SpoolFile.recover(Disk(), path, JOURNAL)
    if found is None:
        return None
    file, spool = found
    content = b"".join(committed_content(Disk(), path, spool.fragment.length))
    file.close()
    assert spool.fragment == file.fragment
    return content, spool.registers


class Kernel(Disk):
    """A disk behind a cache, as Linux has it: of what a sync could not write the cache forgets that it was not written.

    The files are what is in the cache; `durable` is what is on the disk.
    """

    def __init__(self) -> None:
        self.durable: dict[Path, bytes] = {}
        self.dirty: set[Path] = set()
        self.broken = False

    def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
        return KernelFile(self, path, super().open(path, create=create, mode=mode).fileno())


class KernelFile(DiskFile):
    def write_at(self, data: Buffer, position: int) -> None:
        self._kernel.dirty.add(self.path)
        super().write_at(data, position)

    def sync(self) -> None:
        if self.path not in self._kernel.dirty:
            return
        self._kernel.dirty.discard(self.path)
        if self._kernel.broken:
            raise OSError(errno.EIO, "Input/output error")
        self._kernel.durable[self.path] = self.path.read_bytes()

    def read_anew(self, position: int = 0, size: int = 0) -> None:
        if self.path not in self._kernel.dirty:
            self.path.write_bytes(self._kernel.durable[self.path])

    @property
    def _kernel(self) -> Kernel:
        assert isinstance(self.disk, Kernel)
        return self.disk


def test_what_a_failed_sync_left_in_the_cache_alone_is_not_believed_by_the_next_owner(tmp_path: Path) -> None:
    kernel = Kernel()
    file = SpoolFile.create(kernel, tmp_path, empty_fragment(JOURNAL, 0, Codec.NONE), LabelSet())
    spool = Spool(file.fragment, LabelSet(), file)
    append(file, spool, b"kept")
    kernel.broken = True
    with pytest.raises(OSError, match="Input/output"):
        append(file, spool, b"lost")
    file.close()
    kernel.broken = False
    found = SpoolFile.recover(kernel, file.path, JOURNAL, trust=True)
    assert found is not None
    found[0].close()
    assert found[1].fragment.end == 4


def test_a_record_reads_back_as_it_was_written() -> None:
    fragment = Fragment(JOURNAL, 5, 1 << 40, bytes(range(20)), Codec.SNAPPY)
    record = CommitRecord(7, fragment, label_set({"AA": "11", "BB": "22"}), 1_700_000_000_000_000)
    assert decode_record(JOURNAL, encode_record(record)) == record


def test_recovery_gives_content_registers_and_the_running_sum_back(tmp_path: Path) -> None:
    file, spool = a_file(tmp_path, begin=100)
    append(file, spool, b"foo", AA="1")
    append(file, spool, b"bar", AA="2")
    file.close()
    found = SpoolFile.recover(Disk(), file.path, JOURNAL)
    assert found is not None
    again, spool = found
    assert (spool.fragment.begin, spool.fragment.end) == (100, 106)
    assert spool.registers == label_set({"AA": "2"})
    append(again, spool, b"baz")
    again.close()
    assert recovered(file.path) == (b"foobarbaz", LabelSet())


def test_a_torn_last_append_is_cut_at_every_byte_of_content_and_record(tmp_path: Path) -> None:
    """Power may go at any byte of the last append; the one before it must come back, whole, or the last one."""
    file, spool = a_file(tmp_path)
    append(file, spool, b"first", AA="1")
    before = file.path.read_bytes()
    append(file, spool, b"second", AA="2")
    file.close()
    after = file.path.read_bytes()
    slot = SLOT_BYTES * (file.record.sequence % 2)
    record_length = len(encode_record(file.record))
    torn = file.path.with_name("torn.spool")
    for written in range(len(b"second") + 1):
        content_end = CONTENT_AT + len(b"first") + written
        content = after[CONTENT_AT:content_end]
        for record_written in range(record_length + 1):
            slots = bytearray(before[:CONTENT_AT])
            slots[slot : slot + record_written] = after[slot : slot + record_written]
            torn.write_bytes(bytes(slots) + content)
            whole = written == len(b"second") and record_written == record_length
            expected = (b"firstsecond", "2") if whole else (b"first", "1")
            assert recovered(torn) == (expected[0], label_set({"AA": expected[1]}))


def test_a_file_cut_short_anywhere_comes_back_at_its_last_proven_commit(tmp_path: Path) -> None:
    file, spool = a_file(tmp_path)
    append(file, spool, b"first")
    append(file, spool, b"second")
    file.close()
    whole = file.path.read_bytes()
    cut = file.path.with_name("cut.spool")
    for length in range(CONTENT_AT, len(whole) + 1):
        cut.write_bytes(whole[:length])
        if length < CONTENT_AT + len(b"first"):
            with pytest.raises(CorruptError, match="borne out"):
                recovered(cut)
        else:
            expected = b"firstsecond" if length == len(whole) else b"first"
            assert recovered(cut) == (expected, LabelSet())


@pytest.mark.parametrize("content", [b"", b"PnSp", bytes(SLOT_BYTES), bytes(CONTENT_AT + 5)])
def test_a_file_that_never_came_to_life_is_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.spool"
    path.write_bytes(content)
    assert recovered(path) is None


def test_bytes_that_the_disk_had_confirmed_and_lost_are_reported(tmp_path: Path) -> None:
    file, spool = a_file(tmp_path)
    for word in (b"one", b"two", b"three"):
        append(file, spool, word)
    file.close()
    damaged = bytearray(file.path.read_bytes())
    damaged[CONTENT_AT] ^= 1
    file.path.write_bytes(damaged)
    with pytest.raises(CorruptError) as error:
        recovered(file.path)
    assert error.value.exit_code == 5
    assert error.value.hint


def test_registers_that_do_not_fit_a_record_are_refused(tmp_path: Path) -> None:
    file, spool = a_file(tmp_path)
    spool.content(b"x", 0)
    large = label_set([(f"name-{i:04d}", "v" * 1000) for i in range(MAX_REGISTER_BYTES // 1000)])
    with pytest.raises(RegistersTooLargeError, match="at most"):
        file.commit(spool.next(), large, 0)
    file.close()


def test_the_slots_take_their_room_at_once_so_that_a_full_disk_cannot_fail_a_commit(tmp_path: Path) -> None:
    """Content that does not fit is refused; a commit record that does not would fail the journal."""
    file, _ = a_file(tmp_path)
    with file.path.open("rb") as opened:
        assert os.lseek(opened.fileno(), 0, os.SEEK_HOLE) >= CONTENT_AT
    file.close()


def settled(monkeypatch: pytest.MonkeyPatch, directory: Path) -> SpoolFile:
    """A file of two appends that was left settled, where even they are worth it."""
    monkeypatch.setattr(spoolfile, "WORTH_SETTLING", 1)
    file, spool = a_file(directory)
    append(file, spool, b"first", AA="1")
    append(file, spool, b"second", AA="2")
    file.settle()
    file.close()
    return file


def trusted(path: Path) -> tuple[SpoolFile, Spool]:
    found = SpoolFile.recover(Disk(), path, JOURNAL, trust=True)
    assert found is not None
    return found


def test_a_settled_file_is_gone_through_only_before_more_is_added(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = settled(monkeypatch, tmp_path).path
    file, spool = trusted(path)
    assert not spool.takes_content
    assert (spool.fragment, spool.registers) == (file.fragment, label_set({"AA": "2"}))
    assert file.fragment.length == len(b"firstsecond")
    spool.go_on_from(file.sum())
    append(file, spool, b"third")
    spool.go_on_from(file.sum())  # too late to matter: it goes on already
    append(file, spool, b"fourth")
    file.close()
    assert recovered(path) == (b"firstsecondthirdfourth", LabelSet())


def test_a_file_is_settled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = settled(monkeypatch, tmp_path).path
    before = path.read_bytes()
    for trust in (True, False):
        found = SpoolFile.recover(Disk(), path, JOURNAL, trust=trust)
        assert found is not None
        found[0].settle()
        found[0].close()
    assert path.read_bytes() == before


def test_who_does_not_trust_goes_through_a_settled_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = settled(monkeypatch, tmp_path).path
    assert recovered(path) == (b"firstsecond", label_set({"AA": "2"}))
    damage(path, CONTENT_AT)
    with pytest.raises(CorruptError, match="borne out"):
        recovered(path)


def test_little_content_is_not_worth_settling(tmp_path: Path) -> None:
    file, spool = a_file(tmp_path)
    append(file, spool, b"first")
    before = file.path.read_bytes()
    file.settle()
    file.close()
    assert file.path.read_bytes() == before


def damage(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_settled_file_that_was_changed_is_found_out_before_more_is_added(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = settled(monkeypatch, tmp_path).path
    damage(path, CONTENT_AT + 7)
    file, _ = trusted(path)
    with pytest.raises(CorruptError, match="borne out"):
        file.sum()
    file.close()


def test_a_settled_file_that_was_cut_is_found_out_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = settled(monkeypatch, tmp_path).path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptError, match="borne out"):
        trusted(path)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_file_of_which_either_record_is_torn_is_not_settled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slot: int
) -> None:
    """Nothing says any more that the sync of the content went well, so the content has to."""
    path = settled(monkeypatch, tmp_path).path
    damage(path, slot * SLOT_BYTES + 30)
    file, spool = trusted(path)
    assert spool.takes_content
    file.close()
    damage(path, CONTENT_AT)
    with pytest.raises(CorruptError, match="borne out"):
        trusted(path)


def test_an_append_to_a_settled_file_is_believed_only_if_the_content_bears_it_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Power goes before its content is on the disk, but not before its record is."""
    path = settled(monkeypatch, tmp_path).path
    file, spool = trusted(path)
    spool.go_on_from(file.sum())
    append(file, spool, b"third")
    file.close()
    damage(path, CONTENT_AT + len(b"firstsecond"))
    file, spool = trusted(path)
    assert (file.fragment.length, spool.takes_content) == (len(b"firstsecond"), True)
    file.close()
