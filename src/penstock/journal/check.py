"""Whether a journal is whole: holes and overlaps between its fragments, and sums that do not match.

Pure: fragments come from a listing (`ListFragments`), content from whoever reads it. Bytes are taken as a reader
gets them, so where fragments overlap a sum that matches says that both hold the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.journal.fragment import Fragment


class Fault(StrEnum):
    """What can be wrong."""

    HOLE = "hole"
    OVERLAP = "overlap"
    SUM = "sum"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of the bytes [begin, end) of a journal."""

    fault: Fault
    begin: int
    end: int
    text: str


def layout(fragments: Sequence[Fragment], head: int) -> list[Finding]:
    """Holes and overlaps of fragments in the order of a listing, up to the write head.

    What lies before the first fragment was trimmed or pruned, and is no hole. Pass a head that was read before
    the listing: fragments may end beyond it, never before.
    """
    findings: list[Finding] = []
    reached = fragments[0].begin if fragments else head
    for fragment in fragments:
        if fragment.begin > reached:
            findings.append(_hole(reached, fragment.begin, "no fragment holds these bytes"))
        elif fragment.begin < reached:
            end = min(reached, fragment.end)
            findings.append(
                Finding(Fault.OVERLAP, fragment.begin, end, "more than one fragment holds these bytes")
            )
        reached = max(reached, fragment.end)
    if reached < head:
        findings.append(_hole(reached, head, f"the fragments end before the write head, {head}"))
    return findings


def _hole(begin: int, end: int, text: str) -> Finding:
    return Finding(Fault.HOLE, begin, end, text)


def content(fragment: Fragment, chunks: Iterable[tuple[int, bytes]]) -> Finding | None:
    """What is wrong with a fragment's content, read from its begin to its end as (offset, bytes)."""
    sum_of = hashlib.sha1(usedforsecurity=False)
    position = fragment.begin
    for offset, chunk in chunks:
        if offset != position:
            return _missing(position, min(offset, fragment.end))
        sum_of.update(chunk)
        position += len(chunk)
    if position < fragment.end:
        return _missing(position, fragment.end)
    if fragment.length and sum_of.digest() != fragment.sum:
        expected, found = fragment.sum.hex(), sum_of.hexdigest()
        return Finding(
            Fault.SUM, fragment.begin, fragment.end, f"the SHA1 should be {expected}, the content has {found}"
        )
    return None


def _missing(begin: int, end: int) -> Finding:
    return Finding(Fault.MISSING, begin, end, "listed in a fragment, but a read does not return these bytes")
