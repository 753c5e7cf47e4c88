"""Faults of a journal: where fragments leave a hole or overlap, and content that is not what its sum says."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.journal import check
from penstock.journal.check import Fault
from penstock.journal.fragment import Fragment

CONTENT = bytes(range(256)) * 4


def fragment(begin: int, end: int) -> Fragment:
    digest = hashlib.sha1(CONTENT[begin:end]).digest()
    return Fragment("a/journal", begin, end, digest)


LAYOUTS = [
    ([], 0, []),
    ([], 5, []),
    ([(0, 5)], 5, []),
    ([(3, 5)], 5, []),
    ([(0, 5), (5, 9)], 9, []),
    ([(0, 5), (5, 9)], 7, []),
    ([(0, 5), (6, 9)], 9, [(Fault.HOLE, 5, 6)]),
    ([(0, 5), (6, 9)], 12, [(Fault.HOLE, 5, 6), (Fault.HOLE, 9, 12)]),
    ([(0, 5), (4, 9)], 9, [(Fault.OVERLAP, 4, 5)]),
    ([(0, 5), (3, 7), (4, 9)], 9, [(Fault.OVERLAP, 3, 5), (Fault.OVERLAP, 4, 7)]),
    ([(0, 9), (3, 7)], 9, [(Fault.OVERLAP, 3, 7)]),
]


@pytest.mark.parametrize(("spans", "head", "faults"), LAYOUTS)
def test_holes_and_overlaps(
    spans: list[tuple[int, int]], head: int, faults: list[tuple[Fault, int, int]]
) -> None:
    found = check.layout([fragment(begin, end) for begin, end in spans], head)
    assert [(finding.fault, finding.begin, finding.end) for finding in found] == faults


@given(st.lists(st.integers(1, 50), max_size=10), st.integers(0, 100))
def test_adjacent_fragments_have_no_fault_wherever_they_begin(lengths: list[int], begin: int) -> None:
    spans = []
    for length in lengths:
        spans.append(fragment(begin, begin + length))
        begin += length
    assert check.layout(spans, begin) == []


def test_content_that_matches_its_sum() -> None:
    chunks = [(10, CONTENT[10:20]), (20, CONTENT[20:30])]
    assert check.content(fragment(10, 30), chunks) is None
    assert check.content(Fragment("a/journal", 7, 7), []) is None


@pytest.mark.parametrize(
    ("chunks", "fault", "begin", "end"),
    [
        ([(10, CONTENT[10:29] + b"!")], Fault.SUM, 10, 30),
        ([(10, CONTENT[10:20])], Fault.MISSING, 20, 30),
        ([], Fault.MISSING, 10, 30),
        ([(12, CONTENT[12:30])], Fault.MISSING, 10, 12),
        ([(10, CONTENT[10:20]), (25, CONTENT[25:30])], Fault.MISSING, 20, 25),
        ([(40, CONTENT[40:50])], Fault.MISSING, 10, 30),
    ],
)
def test_content_that_does_not(chunks: list[tuple[int, bytes]], fault: Fault, begin: int, end: int) -> None:
    found = check.content(fragment(10, 30), chunks)
    assert found is not None
    assert (found.fault, found.begin, found.end) == (fault, begin, end)
