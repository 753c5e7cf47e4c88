"""The one dialect of regular expressions; what it refuses is listed with the namespaces."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import UsageError
from penstock.base.patterns import checked_pattern, found

PARTS = st.sampled_from(
    [
        "a", "K", ".", "[ab]", "[^a]", r"\w", r"\W", r"\s", r"\d", r"\b", r"\B", "^", "$", r"\A", "\n", "é", "(?i:k)",
        "(?s:.)", "(?m:^a)", "(?m:$)", "(?i)", "(?ms)",
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


def test_a_pattern_is_searched_for_and_knows_ascii_only() -> None:
    pattern = checked_pattern(r"^\w+$", "pattern")
    assert found(pattern, "abc")
    assert not found(pattern, "größe")


@given(PATTERNS, st.lists(st.text(alphabet="abKk é\n_1", min_size=1, max_size=8), min_size=1, max_size=8))
def test_it_is_found_where_pythons_engine_finds_it(pattern: str, texts: list[str]) -> None:
    """All but one thing: a newline at the end of a text stands in front of its end, as it does for RE2."""
    try:
        checked_pattern(pattern, "pattern")
    except UsageError:
        return
    for text in texts:
        if not text.endswith("\n"):
            assert found(pattern, text) == (re.search(pattern, text, re.ASCII) is not None)
    assert not found("a$", "a\n")


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
    assert not found(checked_pattern(pattern, "pattern"), text)
    assert time.monotonic() - before < 20


def test_half_a_character_is_one_that_no_letter_means() -> None:
    assert found("^a.$", "a\ud800")
    assert not found(r"\w", "\ud800")


def test_the_refusal_says_what_the_pattern_is_for_and_where_it_is_wrong() -> None:
    with pytest.raises(UsageError) as caught:
        checked_pattern("ab(?=c)", "setting 'match'")
    assert caught.value.message == "setting 'match' 'ab(?=c)', character 3: look-around is not supported"
    assert caught.value.hint == "name what is meant: 'orders|items'"


@pytest.mark.parametrize("pattern", ["(" * 3000 + ")" * 3000, "a{99999999999}", "((a{90}){90}){90}"])
def test_a_pattern_that_no_engine_takes_is_refused_and_does_not_raise_anything_else(pattern: str) -> None:
    with pytest.raises(UsageError):
        checked_pattern(pattern, "pattern")
