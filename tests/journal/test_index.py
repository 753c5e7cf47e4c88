"""The index as a cover set (reference, 19 "Index" and 20 "Read"), against a brute-force model."""

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.journal.fragment import Fragment
from penstock.journal.index import Entry, Index, Summary

STORE = "file:///"


def local(begin: int, end: int) -> Fragment:
    return Fragment("a/journal", begin, end)


def stored(begin: int, end: int, mod_time: int = 1) -> Fragment:
    return Fragment("a/journal", begin, end, backing_store=STORE, mod_time=mod_time)


def index_of(*fragments: Fragment) -> Index[str]:
    index: Index[str] = Index()
    for fragment in fragments:
        index.add(fragment, name_of(fragment))
    return index


def name_of(fragment: Fragment) -> str:
    return f"{'L' if fragment.is_local else 'S'}{fragment.begin}-{fragment.end}"


def names(entries: Iterable[Entry[str]]) -> list[str]:
    return [entry.payload for entry in entries]


# What is there, what is added, what is there then, what went.
ADDITIONS: list[tuple[list[Fragment], Fragment, list[str], list[str]]] = [
    ([], local(0, 5), ["L0-5"], []),
    ([local(0, 5)], local(5, 9), ["L0-5", "L5-9"], []),
    ([local(5, 9)], local(0, 5), ["L0-5", "L5-9"], []),
    ([local(0, 5)], local(0, 9), ["L0-9"], ["L0-5"]),
    ([local(3, 5)], local(0, 9), ["L0-9"], ["L3-5"]),
    ([local(4, 9)], local(0, 9), ["L0-9"], ["L4-9"]),
    ([local(0, 9)], local(0, 5), ["L0-9"], ["L0-5"]),
    ([local(0, 9)], local(4, 9), ["L0-9"], ["L4-9"]),
    ([local(0, 9)], local(3, 5), ["L0-9"], ["L3-5"]),
    ([local(0, 5)], stored(0, 5), ["S0-5"], ["L0-5"]),
    ([stored(0, 5)], local(0, 5), ["L0-5"], ["S0-5"]),
    ([local(0, 5)], local(3, 9), ["L0-5", "L3-9"], []),
    ([local(0, 3), local(3, 6), local(6, 9)], local(2, 7), ["L0-3", "L2-7", "L6-9"], ["L3-6"]),
    ([local(0, 3), local(3, 6), local(6, 9)], local(0, 9), ["L0-9"], ["L0-3", "L3-6", "L6-9"]),
    ([local(0, 5), local(3, 9)], local(4, 5), ["L0-5", "L3-9"], ["L4-5"]),
    ([local(0, 5)], local(5, 5), ["L0-5"], ["L5-5"]),
    ([], local(7, 7), [], ["L7-7"]),
]


@pytest.mark.parametrize("before, added, after, dropped", ADDITIONS)
def test_add(before: list[Fragment], added: Fragment, after: list[str], dropped: list[str]) -> None:
    index = index_of(*before)
    assert names(index.add(added, name_of(added))) == dropped
    assert names(index) == after


def test_a_growing_fragment_keeps_its_file() -> None:
    index: Index[object] = Index()
    file, other = object(), object()
    assert index.add(local(0, 5), file) == []
    assert index.add(local(0, 9), file) == []
    assert index.add(local(0, 7), file) == []  # late news of the same file
    assert [entry.fragment.end for entry in index] == [9]
    assert index.add(local(0, 12), other) == [Entry(local(0, 9), file)]


# Offset, payload found, whether it contains the offset; over [2,5) [4,8) [8,9), a gap, [12,14).
LOOKUPS = [
    (0, "L2-5", False),
    (2, "L2-5", True),
    (3, "L2-5", True),
    (4, "L4-8", True),  # both contain it, this one reaches further
    (7, "L4-8", True),
    (8, "L8-9", True),
    (9, "L12-14", False),
    (11, "L12-14", False),
    (13, "L12-14", True),
    (14, None, False),
    (99, None, False),
]


@pytest.mark.parametrize("offset, payload, covered", LOOKUPS)
def test_lookup(offset: int, payload: str | None, covered: bool) -> None:
    index = index_of(local(2, 5), local(4, 8), local(8, 9), local(12, 14))
    entry, found = index.lookup(offset)
    assert (entry.payload if entry else None, found) == (payload, covered)


def test_lookup_in_an_empty_index() -> None:
    assert Index[str]().lookup(0) == (None, False)


def test_summary_and_size() -> None:
    assert Index[str]().summary() == Summary(0, 0, 0)
    index = index_of(stored(2, 5, mod_time=7), stored(4, 8, mod_time=9))
    assert index.summary() == (index.begin, index.end, 9) == (2, 8, 9)
    assert index.size == 6
    index.add(local(12, 14), "L12-14")
    assert index.summary() == (2, 14, 0)
    assert index.size == 8


def test_walking_starts_at_a_begin_not_inside_a_fragment() -> None:
    index = index_of(local(2, 5), local(4, 8), local(8, 9))
    assert names(list(index.starting_at(0))) == ["L2-5", "L4-8", "L8-9"]
    assert names(list(index.starting_at(3))) == ["L4-8", "L8-9"]
    assert names(list(index.starting_at(8))) == ["L8-9"]
    assert names(list(index.starting_at(9))) == []


def test_a_walk_is_not_disturbed_by_additions() -> None:
    index = index_of(local(0, 2), local(2, 4))
    walk, pages = iter(index), index.starting_at(0)
    index.add(local(0, 9), "L0-9")
    assert names(list(walk)) == names(list(pages)) == ["L0-2", "L2-4"]


# What is there, the listing, what is there then, the local ones that went.
REFRESHES: list[tuple[list[Fragment], list[Fragment], list[str], list[str]]] = [
    ([], [], [], []),
    ([local(0, 5)], [], ["L0-5"], []),
    ([stored(0, 5)], [], [], []),
    ([stored(0, 5)], [stored(5, 9)], ["S5-9"], []),
    ([local(0, 5)], [stored(0, 5)], ["S0-5"], ["L0-5"]),
    ([local(0, 5), local(5, 9)], [stored(0, 5)], ["S0-5", "L5-9"], ["L0-5"]),
    ([local(2, 4)], [stored(0, 5)], ["S0-5"], ["L2-4"]),
    ([local(0, 9)], [stored(0, 5)], ["L0-9"], []),
    ([local(0, 9)], [stored(0, 5), stored(5, 9)], ["S0-5", "S5-9"], ["L0-9"]),
    ([local(0, 9)], [stored(0, 4), stored(5, 9)], ["L0-9"], []),
    ([local(3, 7)], [stored(0, 5)], ["S0-5", "L3-7"], []),
    ([stored(0, 5), local(5, 9)], [stored(0, 5), stored(2, 4)], ["S0-5", "L5-9"], []),
]


@pytest.mark.parametrize("before, listing, after, dropped", REFRESHES)
def test_replace_remote(
    before: list[Fragment], listing: list[Fragment], after: list[str], dropped: list[str]
) -> None:
    index = index_of(*before)
    gone = index.replace_remote((fragment, name_of(fragment)) for fragment in listing)
    assert names(gone) == dropped
    assert names(index) == after


def test_a_listing_that_fails_half_way_changes_nothing() -> None:
    index = index_of(local(0, 5), stored(5, 9))
    with pytest.raises(ValueError, match="must name its store"):
        index.replace_remote([(stored(0, 5), "S0-5"), (local(5, 9), "L5-9")])
    assert names(index) == ["L0-5", "S5-9"]


def test_a_hidden_remote_fragment_returns_with_the_next_listing() -> None:
    index = index_of(local(0, 9))
    index.replace_remote([(stored(0, 5), "S0-5")])
    index.replace_remote([(stored(0, 5), "S0-5"), (stored(0, 9), "S0-9")])
    assert names(index) == ["S0-9"]


SPANS = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda pair: (min(pair), max(pair)))


class IndexModel(RuleBasedStateMachine):
    """A list of fragments, searched from end to end, must agree with the index in every answer."""

    def __init__(self) -> None:
        super().__init__()
        self.index: Index[int] = Index()
        self.model: list[tuple[Fragment, int]] = []
        self.serial = 0

    def model_add(self, fragment: Fragment, payload: int) -> list[int]:
        if fragment.begin == fragment.end:
            return [payload]
        for other, _ in self.model:
            if other.covers(fragment) and other.length > fragment.length:
                return [payload]
        gone = [payload for other, payload in self.model if fragment.covers(other)]
        self.model = [item for item in self.model if not fragment.covers(item[0])]
        self.model.append((fragment, payload))
        self.model.sort(key=lambda item: item[0].begin)
        return gone

    @rule(span=SPANS, is_local=st.booleans())
    def add(self, span: tuple[int, int], is_local: bool) -> None:
        held = self.bytes()
        self.serial += 1000  # beyond the small numbers that Python keeps one object of
        fragment = local(*span) if is_local else stored(*span)
        gone = self.index.add(fragment, self.serial)
        assert [entry.payload for entry in gone] == self.model_add(fragment, self.serial)
        assert self.bytes() == held | set(range(*span))

    @rule(spans=st.lists(SPANS, max_size=5))
    def refresh(self, spans: list[tuple[int, int]]) -> None:
        listing = []
        for span in spans:
            self.serial += 1000
            listing.append((stored(*span), self.serial))
        listed = {offset for span in spans for offset in range(*span)}
        ours = [item for item in self.model if item[0].is_local]
        kept = [item for item in ours if not set(range(item[0].begin, item[0].end)) <= listed]
        self.model = []
        for item in [*listing, *kept]:
            self.model_add(*item)
        gone = self.index.replace_remote(listing)
        assert [entry.payload for entry in gone] == [item[1] for item in ours if item not in kept]
        assert self.bytes() == listed | {
            offset for item in kept for offset in range(item[0].begin, item[0].end)
        }

    def bytes(self) -> set[int]:
        return {n for entry in self.index for n in range(entry.fragment.begin, entry.fragment.end)}

    @invariant()
    def entries_agree(self) -> None:
        assert [(entry.fragment, entry.payload) for entry in self.index] == self.model
        assert len(self.index) == len(self.model)
        assert [entry.payload for entry in self.index.local()] == [p for f, p in self.model if f.is_local]

    @invariant()
    def it_is_a_cover_set(self) -> None:
        fragments = [entry.fragment for entry in self.index]
        for i, fragment in enumerate(fragments):
            assert fragment.length > 0
            assert not any(other.covers(fragment) for other in fragments[:i] + fragments[i + 1 :])

    @invariant()
    def summary_agrees(self) -> None:
        held = self.bytes()
        assert self.index.size == len(held)
        assert (self.index.begin, self.index.end) == ((min(held), max(held) + 1) if held else (0, 0))

    @invariant()
    def lookups_agree(self) -> None:
        for offset in range(-1, 14):
            holding = [item for item in self.model if item[0].contains(offset)]
            after = [item for item in self.model if item[0].begin > offset]
            expected = max(holding, key=lambda item: item[0].end, default=None) or min(
                after, key=lambda item: item[0].begin, default=None
            )
            entry, covered = self.index.lookup(offset)
            assert (None if entry is None else (entry.fragment, entry.payload)) == expected
            assert covered is bool(holding)


IndexModel.TestCase.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
TestIndexModel = IndexModel.TestCase


@given(st.lists(SPANS, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_a_listing_does_not_matter(spans: list[tuple[int, int]], random: Random) -> None:
    shuffled = list(spans)
    random.shuffle(shuffled)
    first, second = Index[str](), Index[str]()
    first.replace_remote([(stored(*span), "") for span in spans])
    second.replace_remote([(stored(*span), "") for span in shuffled])
    assert [entry.fragment for entry in first] == [entry.fragment for entry in second]
