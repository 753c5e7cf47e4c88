"""The spool's file: what recovery makes of every state that a crash can leave it in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.base.disk import Disk
from penstock.base.errors import CorruptError
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
