"""The spool as a machine: every transition of reference 15, and a model that it must agree with."""

from __future__ import annotations

import errno
import hashlib
import random
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.base.disk import Buffer
from penstock.journal.fragment import ZERO_SUM, Codec, Fragment
from penstock.journal.labels import label_set
from penstock.journal.protocol import LabelSet
from penstock.journal.spool import _PIECE, ContentGapError, Outcome, Spool, empty_fragment


class Memory:
    """Storage that keeps the bytes in memory."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, content: Buffer, position: int) -> None:
        assert position <= len(self.content)
        self.content[position : position + len(content)] = content


def a_spool(begin: int = 0) -> tuple[Spool, Memory]:
    memory = Memory()
    return Spool(empty_fragment("a/journal", begin, Codec.NONE), LabelSet(), memory), memory


def test_a_new_spool_is_empty_and_its_sum_is_all_zeros() -> None:
    spool, _ = a_spool()
    assert spool.fragment == Fragment("a/journal", 0, 0, ZERO_SUM, Codec.NONE)
    assert spool.next() == spool.fragment


def test_content_commits_by_the_fragment_that_covers_it() -> None:
    spool, memory = a_spool()
    spool.content(b"foo", 0)
    spool.content(b"bar", 3)
    proposal = spool.next()
    assert (proposal.begin, proposal.end) == (0, 6)
    assert proposal.sum.hex() == "8843d7f92416211de9ebb963ff4ce28125932878"
    assert spool.propose(proposal, label_set({"AA": "11"})) is Outcome.COMMITTED
    assert spool.fragment == proposal
    assert spool.registers == label_set({"AA": "11"})
    assert bytes(memory.content) == b"foobar"


@pytest.mark.parametrize("size", [_PIECE - 1, _PIECE, _PIECE + 1, 3 * _PIECE, 3 * _PIECE + 5])
def test_a_large_chunk_is_written_and_summed_as_one(size: int) -> None:
    spool, memory = a_spool()
    content = random.Random(size).randbytes(size)
    spool.content(b"before", 0)
    spool.content(content, 6)
    spool.commit(LabelSet())
    assert bytes(memory.content) == b"before" + content
    assert spool.fragment.sum == hashlib.sha1(b"before" + content).digest()


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_chunk_that_its_storage_fails_in_is_no_part_of_the_spool(written: int) -> None:
    """Also if some of it was written: what comes next is written over that."""
    spool, memory = a_spool()
    spool.content(b"kept", 0)
    write, left = memory.write, [written]

    def failing(content: Buffer, position: int) -> None:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        write(content, position)

    memory.write = failing  # type: ignore[method-assign]
    with pytest.raises(OSError, match="No space"):
        spool.content(bytes(3 * _PIECE), 4)
    assert spool.delta == 4
    memory.write = write  # type: ignore[method-assign]
    spool.content(b" and more", 4)
    spool.commit(LabelSet())
    assert bytes(memory.content[:13]) == b"kept and more"
    assert spool.fragment.sum == hashlib.sha1(b"kept and more").digest()


def test_a_repeated_fragment_rolls_back_and_its_bytes_are_written_over() -> None:
    spool, memory = a_spool()
    spool.content(b"kept", 0)
    spool.propose(spool.next(), LabelSet())
    spool.content(b"dropped", 0)
    assert spool.propose(spool.fragment, LabelSet()) is Outcome.ROLLED_BACK
    assert spool.delta == 0
    spool.content(b"!", 0)
    spool.propose(spool.next(), LabelSet())
    assert bytes(memory.content[:5]) == b"kept!"
    assert spool.fragment.sum == hashlib.sha1(b"kept!").digest()


def test_content_that_leaves_a_gap_breaks_the_stream() -> None:
    spool, _ = a_spool()
    spool.content(b"abc", 0)
    with pytest.raises(ContentGapError, match="delta 4 where 3 was expected"):
        spool.content(b"d", 4)


@pytest.mark.parametrize(
    "change",
    [{"end": 4}, {"sum": hashlib.sha1(b"other").digest()}, {"begin": 1}, {"codec": Codec.GZIP}],
)
def test_a_proposal_that_is_not_what_the_spool_has_is_a_mismatch(change: dict[str, object]) -> None:
    spool, _ = a_spool()
    spool.content(b"abc", 0)
    before = spool.fragment
    assert spool.propose(replace(spool.next(), **change), LabelSet()) is Outcome.MISMATCH  # type: ignore[arg-type]
    assert spool.fragment == before
    assert spool.delta == 3


def test_equal_fragment_with_other_registers_is_a_mismatch() -> None:
    spool, _ = a_spool()
    assert spool.propose(spool.fragment, label_set({"AA": "1"})) is Outcome.MISMATCH


@pytest.mark.parametrize(
    ("begin", "end", "rolls"),
    [
        (3, 3, True),  # empty, at our end
        (9, 9, True),  # beyond all content
        (0, 9, True),  # reaches beyond all content
        (0, 5, False),  # covers the pending content
        (0, 3, False),  # what is adopted
        (2, 2, False),  # empty, but inside
    ],
)
def test_when_a_proposal_rolls(begin: int, end: int, rolls: bool) -> None:
    spool, _ = a_spool()
    spool.content(b"abc", 0)
    spool.propose(spool.next(), LabelSet())
    spool.content(b"de", 0)
    assert spool.rolls_at(Fragment("a/journal", begin, end, ZERO_SUM, Codec.NONE)) is rolls


def test_rolling_adopts_registers_only_if_the_proposal_skips_ahead() -> None:
    spool, _ = a_spool()
    spool.content(b"abc", 0)
    spool.propose(spool.next(), label_set({"AA": "ours"}))
    here = spool.rolled(empty_fragment("a/journal", 3, Codec.GZIP), label_set({"AA": "theirs"}), Memory())
    ahead = spool.rolled(empty_fragment("a/journal", 9, Codec.NONE), label_set({"AA": "theirs"}), Memory())
    assert here.registers == label_set({"AA": "ours"})
    assert here.fragment == empty_fragment("a/journal", 3, Codec.GZIP)
    assert ahead.registers == label_set({"AA": "theirs"})
    assert ahead.fragment.begin == 9


class SpoolModel(RuleBasedStateMachine):
    """The model is two byte strings: what is committed, and what is pending."""

    @initialize()
    def start(self) -> None:
        self.spool, self.memory = a_spool()
        self.begin = 0
        self.committed = b""
        self.pending = b""

    @rule(chunk=st.binary(min_size=1, max_size=20))
    def content(self, chunk: bytes) -> None:
        self.spool.content(chunk, len(self.pending))
        self.pending += chunk

    @rule(value=st.sampled_from(["1", "2"]))
    def commit(self, value: str) -> None:
        outcome = self.spool.propose(self.spool.next(), label_set({"AA": value}))
        if self.pending:
            assert outcome is Outcome.COMMITTED
            self.committed += self.pending
            self.pending = b""

    @rule()
    def roll_back(self) -> None:
        assert self.spool.propose(self.spool.fragment, self.spool.registers) is Outcome.ROLLED_BACK
        self.pending = b""

    @rule()
    def nonsense_changes_nothing(self) -> None:
        wrong = replace(self.spool.next(), sum=b"\xff" * 20, end=self.spool.end + len(self.pending))
        assert self.spool.propose(wrong, self.spool.registers) is Outcome.MISMATCH

    @rule()
    def roll(self) -> None:
        self.memory = Memory()
        self.begin += len(self.committed)
        started = empty_fragment("a/journal", self.begin, Codec.NONE)
        assert self.spool.rolls_at(started)
        self.spool = self.spool.rolled(started, LabelSet(), self.memory)
        self.committed = self.pending = b""

    @invariant()
    def agrees(self) -> None:
        fragment = self.spool.fragment
        assert (fragment.begin, fragment.end) == (self.begin, self.begin + len(self.committed))
        expected = hashlib.sha1(self.committed).digest() if self.committed else ZERO_SUM
        assert fragment.sum == expected
        assert self.spool.delta == len(self.pending)
        held = bytes(self.memory.content[: len(self.committed) + len(self.pending)])
        assert held == self.committed + self.pending


TestSpoolModel = SpoolModel.TestCase
