"""Patterns are found as Python's engine finds them, in time that grows with the text, whatever stands in it."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import searching
from penstock.base.errors import UsageError
from penstock.base.patterns import checked_pattern
from penstock.base.searching import finder

PARTS = st.sampled_from(
    [
        "a", "K", ".", "[ab]", "[^a]", r"\w", r"\W", r"\s", r"\d", r"\b", r"\B", "^", "$", r"\A", "\n", "(?i:k)",
        "(?s:.)", "(?m:^a)", "(?m:$)",
    ]
)  # fmt: skip
ENDS = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?", "+?", "??"])
PATTERNS = st.recursive(
    PARTS,
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("({})".format, inner),
        st.builds("(?:{}){}".format, inner, ENDS),
    ),
    max_leaves=6,
)


@given(PATTERNS, st.lists(st.text(alphabet="abKk \n_1\u212a", max_size=8), min_size=1, max_size=8))
def test_it_finds_what_pythons_engine_finds(pattern: str, texts: list[str]) -> None:
    try:
        quick = checked_pattern(pattern, "pattern")
    except UsageError:
        return
    places = searching._Places(searching._parser.parse(pattern, re.ASCII))
    for text in texts:
        assert places.found_in(text) == (quick.search(text) is not None)


@pytest.mark.parametrize("flag", ["(?i)", "(?m)", "(?s)", "(?ims)"])
def test_flags_of_the_whole_pattern_count(flag: str) -> None:
    for text in ("A\nB", "a\nb", "x\na\n"):
        pattern = f"{flag}^(?:a.b|a)+$"
        places = searching._Places(searching._parser.parse(pattern, re.ASCII))
        assert places.found_in(text) == (re.search(pattern, text, re.ASCII) is not None)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(a+)+$", "a" * 100_000 + "!"),
        ("(a|aa)+$", "a" * 100_000 + "!"),
        ("(a?){30}a{30}b", "a" * 100_000),
        (".*a.*b.*c", "ab" * 100_000),
        (r"^([a-z0-9_.-]+)+@", "a" * 100_000),
        ("(a|b|ab)*c", "ab" * 50_000),
    ],
)
def test_no_text_keeps_it_busy(pattern: str, text: str) -> None:
    before = time.monotonic()
    assert not finder(pattern)(text)
    assert time.monotonic() - before < 20


@pytest.mark.parametrize("pattern", ["^orders$", r"public\.(orders|items)", "a.*b", r"\d{1,3}"])
def test_pythons_engine_is_asked_where_it_is_done_soon(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: object, text: str) -> bool:
        raise AssertionError(text)

    monkeypatch.setattr(searching._Places, "found_in", never)
    finder.cache_clear()
    finder(pattern)("a" * 10_000)
    finder.cache_clear()


def test_a_pattern_of_too_many_places_is_left_to_pythons_engine() -> None:
    assert finder("((a{100}){100}){100}")("a" * 999_999) is False
    assert finder("(?:(?:(a|b){90}){90}){90}c")("ab") is False
