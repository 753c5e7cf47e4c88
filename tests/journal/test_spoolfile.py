"""The spool's file: what recovery makes of every state that a crash can leave it in."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.base.errors import CorruptError
from penstock.journal import spoolfile, spoollayout
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.labels import label_set
from penstock.journal.protocol import LabelSet
from penstock.journal.spool import Spool, empty_fragment
from penstock.journal.spoolfile import SpoolFile, committed_content
from penstock.journal.spoolrecord import (
    MAX_REGISTER_BYTES,
    SLOT_BYTES,
    SLOTS_BYTES,
    CommitRecord,
    RegistersTooLargeError,
    decode_record,
    encode_record,
    encode_slots,
)

from .brokers import as_earlier

JOURNAL = "a/journal"


def a_file(directory: Path, begin: int = 0) -> tuple[SpoolFile, Spool]:
    fragment = empty_fragment(JOURNAL, begin, Codec.NONE)
    file = SpoolFile.create(Disk(), directory, fragment, LabelSet())
    return file, Spool(fragment, LabelSet(), file)


def append(file: SpoolFile, spool: Spool, content: bytes, **registers: str) -> None:
    spool.content(content, 0)
    spool.propose(spool.next(), label_set(registers))
    file.commit(spool.fragment, spool.registers, 17)


ROOM = 32 << 10
"""In these tests: so little that content soon needs more."""


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spoollayout, "FIRST_ROOM", ROOM)


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


@pytest.mark.parametrize("earlier", [False, True])
def test_a_torn_last_append_is_cut_at_every_byte_of_content_and_record(tmp_path: Path, earlier: bool) -> None:
    """Power may go at any byte of the last append; the one before it must come back, whole, or the last one."""
    file, spool = a_file(tmp_path)
    append(file, spool, b"first", AA="1")
    before = file.path.read_bytes()
    append(file, spool, b"second", AA="2")
    file.close()
    after = file.path.read_bytes()
    slot = ROOM + file.record.slot
    record_length = len(encode_record(file.record))
    for written in range(len(b"second") + 1):
        for record_written in range(record_length + 1):
            torn = bytearray(before)
            torn[: len(b"first") + written] = after[: len(b"first") + written]
            torn[slot : slot + record_written] = after[slot : slot + record_written]
            file.path.write_bytes(torn)
            whole = written == len(b"second") and record_written == record_length
            expected = (b"firstsecond", "2") if whole else (b"first", "1")
            path = as_earlier(file.path) if earlier else file.path
            assert recovered(path) == (expected[0], label_set({"AA": expected[1]}))


def test_an_earlier_file_cut_short_anywhere_comes_back_at_its_last_proven_commit(tmp_path: Path) -> None:
    file, spool = a_file(tmp_path)
    append(file, spool, b"first")
    append(file, spool, b"second")
    file.close()
    cut = as_earlier(file.path)
    whole = cut.read_bytes()
    for length in range(SLOTS_BYTES, len(whole) + 1):
        cut.write_bytes(whole[:length])
        if length < SLOTS_BYTES + len(b"first"):
            with pytest.raises(CorruptError, match="borne out"):
                recovered(cut)
        else:
            expected = b"firstsecond" if length == len(whole) else b"first"
            assert recovered(cut) == (expected, LabelSet())


def test_an_earlier_file_is_gone_on_with(tmp_path: Path) -> None:
    """Its slots are never in the way, and what was rolled back gives its room back."""
    new, spool = a_file(tmp_path)
    append(new, spool, b"first", AA="1")
    new.close()
    path = as_earlier(new.path)
    found = SpoolFile.recover(Disk(), path, JOURNAL)
    assert found is not None
    file, spool = found
    assert not file.can_be_whole
    append(file, spool, b"x" * 3 * ROOM, AA="2")
    spool.content(b"y" * ROOM, 0)
    spool.roll_back()
    file.cut(spool.fragment.length)
    assert path.stat().st_size == SLOTS_BYTES + len(b"first") + 3 * ROOM
    file.close()
    assert recovered(path) == (b"first" + b"x" * 3 * ROOM, label_set({"AA": "2"}))


def test_slots_move_out_of_the_way_of_content(tmp_path: Path) -> None:
    file, spool = a_file(tmp_path)
    append(file, spool, b"a" * ROOM, AA="1")
    assert file.path.stat().st_size == ROOM + SLOTS_BYTES
    append(file, spool, b"b", AA="2")
    assert file.path.stat().st_size == 8 * ROOM + SLOTS_BYTES
    append(file, spool, b"c" * 64 * ROOM, AA="3")
    assert file.path.stat().st_size == 512 * ROOM + SLOTS_BYTES
    file.close()
    assert recovered(file.path) == (b"a" * ROOM + b"b" + b"c" * 64 * ROOM, label_set({"AA": "3"}))


def test_a_file_for_which_much_is_expected_has_its_slots_behind_that(tmp_path: Path) -> None:
    fragment = empty_fragment(JOURNAL, 0, Codec.NONE)
    file = SpoolFile.create(Disk(), tmp_path, fragment, LabelSet(), expected=8 * ROOM + 1)
    file.close()
    assert file.path.stat().st_size == 64 * ROOM + SLOTS_BYTES
    assert recovered(file.path) == (b"", LabelSet())


def test_a_move_of_the_slots_may_end_at_any_byte(tmp_path: Path) -> None:
    """The power goes meanwhile: what was committed is behind the one room or behind the other."""
    file, spool = a_file(tmp_path)
    append(file, spool, b"first", AA="1")
    file.close()
    before = file.path.read_bytes()
    slots = encode_slots(file.record)
    record_end = file.record.slot + len(encode_record(file.record))
    for written in [*range(0, SLOTS_BYTES, 4099), *range(file.record.slot, record_end + 1), SLOTS_BYTES]:
        for grown in (False, True):
            moved = before.ljust(8 * ROOM, b"\0") + slots[:written]
            file.path.write_bytes(moved.ljust(8 * ROOM + SLOTS_BYTES, b"\0") if grown else moved)
            assert recovered(file.path) == (b"first", label_set({"AA": "1"}))


class Failing(Disk):
    """A disk on which one step fails, and has done what it was to do all the same."""

    def __init__(self) -> None:
        self.fails = ""

    def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
        return FailingFile(self, path, super().open(path, create=create, mode=mode).fileno())


class FailingFile(DiskFile):
    def write_at(self, data: Buffer, position: int) -> None:
        super().write_at(data, position)
        self._fail("write")

    def sync(self) -> None:
        super().sync()
        try:
            self._fail("sync")
        except OSError as error:
            self._failure = error
            raise

    def _fail(self, step: str) -> None:
        assert isinstance(self.disk, Failing)
        if self.disk.fails == step:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["write", "sync"])
@pytest.mark.parametrize("parked", [False, True])
def test_slots_that_were_moved_in_vain_are_not_found_when_they_are_out_of_date(
    tmp_path: Path, step: str, parked: bool
) -> None:
    disk = Failing()
    file = SpoolFile.create(disk, tmp_path, empty_fragment(JOURNAL, 0, Codec.NONE), LabelSet())
    spool = Spool(file.fragment, LabelSet(), file)
    append(file, spool, b"first", AA="1")
    disk.fails = step
    with pytest.raises(OSError, match="No space"):
        spool.content(b"x" * ROOM, 0)
    spool.roll_back()
    disk.fails = ""
    assert recovered(file.path) == (b"first", label_set({"AA": "1"}))
    if parked:
        file.park()
    if step == "sync" and not parked:
        with pytest.raises(OSError, match="No space"):
            append(file, spool, b"second", AA="2")
        file.give_up()
        assert recovered(file.path) == (b"first", label_set({"AA": "1"}))
        spool = Spool(file.fragment, file.record.registers, file, summer=file.sum())
    append(file, spool, b"second", AA="2")
    assert recovered(file.path) == (b"firstsecond", label_set({"AA": "2"}))
    append(file, spool, b"x" * ROOM, AA="3")
    file.close()
    assert recovered(file.path) == (b"firstsecond" + b"x" * ROOM, label_set({"AA": "3"}))


def test_content_that_looks_like_a_record_is_none(tmp_path: Path) -> None:
    """Where slots have been, and behind which others are now, content may stand that says what it likes."""
    lie = CommitRecord(1 << 40, empty_fragment(JOURNAL, 0, Codec.NONE), label_set({"owner": "me"}), 0)
    content = b"x" * ROOM + encode_slots(lie)
    file, spool = a_file(tmp_path)
    append(file, spool, content, owner="you")
    file.close()
    assert recovered(file.path) == (content, label_set({"owner": "you"}))


def test_a_complete_file_is_content_and_nothing_else_under_a_name_that_says_the_rest(tmp_path: Path) -> None:
    file, spool = a_file(tmp_path, begin=7)
    append(file, spool, b"first", AA="1")
    file.close()
    old = file.path
    file.name_whole()
    file.name_whole()
    assert not old.exists()
    assert recovered(file.path) == (b"first", LabelSet())  # the records are still behind it
    file.make_whole()
    file.make_whole()
    assert file.path.read_bytes() == b"first"
    found = SpoolFile.recover(Disk(), file.path, JOURNAL)
    assert found is not None
    found[0].close()
    assert found[0].fragment == file.fragment
    assert found[0].record.first_append == 17
    damage(file.path, 3)
    with pytest.raises(CorruptError, match="borne out"):
        recovered(file.path)


@pytest.mark.parametrize("name", ["x", "0-5", f"{0:016x}-{5:016x}-{'0' * 39}-17"])
def test_a_name_that_does_not_say_it_all_is_reported(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}{spoollayout.WHOLE}"
    path.write_bytes(b"first")
    with pytest.raises(CorruptError, match="borne out"):
        recovered(path)


def test_the_room_of_what_was_rolled_back_is_given_back(tmp_path: Path) -> None:
    file, spool = a_file(tmp_path)
    append(file, spool, b"first")
    blocks = file.path.stat().st_blocks
    spool.content(b"x" * (4 << 20), 0)
    assert file.path.stat().st_blocks > blocks + 4096
    spool.roll_back()
    file.cut(spool.fragment.length)
    assert file.path.stat().st_blocks < blocks + 1024
    append(file, spool, b"second")
    file.close()
    assert recovered(file.path) == (b"firstsecond", LabelSet())


@pytest.mark.parametrize("content", [b"", b"PnSp", bytes(SLOT_BYTES), bytes(SLOTS_BYTES + 5)])
@pytest.mark.parametrize("suffix", [spoollayout.OPEN, spoollayout.SUFFIX])
def test_a_file_that_never_came_to_life_is_nothing(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    assert recovered(path) is None


def test_bytes_that_the_disk_had_confirmed_and_lost_are_reported(tmp_path: Path) -> None:
    file, spool = a_file(tmp_path)
    for word in (b"one", b"two", b"three"):
        append(file, spool, word)
    file.close()
    damage(file.path, 0)
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
        assert os.lseek(opened.fileno(), ROOM, os.SEEK_HOLE) >= ROOM + SLOTS_BYTES
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
    damage(path, 0)
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
    damage(path, 7)
    file, _ = trusted(path)
    with pytest.raises(CorruptError, match="borne out"):
        file.sum()
    file.close()


def test_a_settled_file_that_was_cut_is_found_out_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = settled(monkeypatch, tmp_path).path
    path = as_earlier(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptError, match="borne out"):
        trusted(path)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_file_of_which_either_record_is_torn_is_not_settled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slot: int
) -> None:
    """Nothing says any more that the sync of the content went well, so the content has to."""
    path = settled(monkeypatch, tmp_path).path
    damage(path, ROOM + slot * SLOT_BYTES + 30)
    file, spool = trusted(path)
    assert spool.takes_content
    file.close()
    damage(path, 0)
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
    damage(path, len(b"firstsecond"))
    file, spool = trusted(path)
    assert (file.fragment.length, spool.takes_content) == (len(b"firstsecond"), True)
    file.close()
