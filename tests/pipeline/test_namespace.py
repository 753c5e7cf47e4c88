"""Namespace patterns: what they match, what they refuse, and when they mean more than they seem to."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from penstock.base.errors import UsageError
from penstock.pipeline.namespace import Namespace


@pytest.mark.parametrize(
    ("pattern", "ns", "found"),
    [
        ("users", "users", True),
        ("users", "old_users", True),  # searched for, not matched from end to end
        ("users", "users_archive", True),
        ("^users$", "old_users", False),
        ("^users$", "users", True),
        ("/users/", "users", True),  # slashes around it are trimmed
        ("//users//", "users", True),
        ("a/b", "a/b", True),  # those inside stay
        ("", "anything", True),
        ("/", "anything", True),
        (".*", "", True),
        ("(?i)USERS", "users", True),
        (r"public\.(orders|items)", "public.items", True),
        (r"public\.(orders|items)", "publicXitems", False),
        (r"^\w+$", "größe", False),  # \w is ASCII, as in RE2
        ("größe", "größe", True),
        ("[a-c]{2,3}x?", "zabz", True),
    ],
)
def test_matching(pattern: str, ns: str, found: bool) -> None:
    assert Namespace(pattern).matches(ns) is found
    assert Namespace(pattern).matches(ns) is found  # the second time from memory


@pytest.mark.parametrize("pattern", ["", "/", ".*", "/.*/", "^.*", ".*$"])
def test_everything(pattern: str) -> None:
    assert Namespace(pattern).everything


@pytest.mark.parametrize("pattern", ["a", "^.+$", "^$", ".", "a|.*x"])
def test_not_everything(pattern: str) -> None:
    assert not Namespace(pattern).everything


@pytest.mark.parametrize(
    ("pattern", "character", "words"),
    [
        ("a(?=b)", 2, "look-around"),
        ("a(?!b)", 2, "look-around"),
        ("(?<=a)b", 1, "look-around"),
        ("(?<!a)b", 1, "look-around"),
        (r"(a)\1", 4, "backreference"),
        ("(?P<x>a)", 1, "a named group"),
        ("(?>a)", 1, "atomic group"),
        ("(a)?(?(1)b|c)", 5, "conditional"),
        ("a*+", 2, "possessive"),
        ("a++", 2, "possessive"),
        ("a?+", 2, "possessive"),
        ("a{2,3}+", 2, "possessive"),
        ("(?#note)a", 1, "comment"),
        ("(?x)a b", 1, "flag other than"),
        ("(?-x:a)", 1, "flag other than"),
        ("a{,3}", 2, "lower end"),
        ("a{2000}", 2, "above 999"),
        (r"a\Z", 2, r"'\Z'"),
        (r"a\Bb", 2, r"'\B'"),
        (r"\u0041", 1, "character code"),
        ("[[:alpha:]]", 2, "engines disagree"),
        ("x[a[b]]", 2, "a set within a set"),
        ("[a&&b]", 3, "engines disagree"),
        ("x[&&b]", 2, "begins with '&&'"),  # Java intersects, Python takes the signs
        ("x[^&&b]", 2, "begins with '&&'"),
        (r"[a\b]", 1, r"'\b' in a set"),  # a backspace in Python only
        (r"\v", 1, r"'\v'"),  # one character in Python, seven in Java
        (r"[^\v]", 1, r"'\v'"),
        (r"\é", 1, "an escaped letter"),  # RE2 has none
        ("[a--b]", 3, "engines disagree"),
        ("a{b", 2, "no repetition"),
        ("{", 1, "no repetition"),
        ("a(b", 2, "unterminated subpattern"),
        ("*a", 1, "nothing to repeat"),
        ("[z-a]", 2, "bad character range"),
        (r"\p{L}", 1, r"bad escape \p"),
        ("a(?i)b", 2, "flags not at the start"),
        (
            r"users\/",
            6,
            "bad escape",
        ),  # trimming takes the slash and leaves the backslash, as in the original
    ],
)
def test_what_engines_do_not_share_is_refused_with_its_place(
    pattern: str, character: int, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        Namespace(pattern)
    assert f"character {character}: " in caught.value.message
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "pattern",
    [
        r"a\(?=b",
        r"[(?=]",
        r"a\+\+",
        r"[*+]+",
        r"\\1",
        r"(?:a)",
        r"[a\[b]",
        r"[\]&]",
        r"[&b]",
        r"[\\b]\b",
        r"\\v[\\v]",
        r"[]a]",
        r"\{a\}",
        r"a{2}b{3,}c{4,5}",
        r"(?i:a)",
        r"(?-i:a)b",
        r"a+?",
    ],
)
def test_what_only_looks_foreign_is_taken(pattern: str) -> None:
    Namespace(pattern)


def test_flags_behind_a_slash_are_refused() -> None:
    """In the original `/x/i` became the pattern `x/i`, which matches nothing useful."""
    with pytest.raises(UsageError, match="flags after the closing slash") as caught:
        Namespace("/users/i")
    assert "(?i)" in (caught.value.hint or "")


def test_what_is_no_text_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(UsageError, match="a namespace pattern is text, not int"):
        Namespace(wrong)


def test_equal_patterns_are_equal_values_and_pickle() -> None:
    assert Namespace("/x/") == Namespace("x")
    assert hash(Namespace("/x/")) == hash(Namespace("x"))
    copy = pickle.loads(pickle.dumps(Namespace("^x")))
    assert copy == Namespace("^x")
    assert copy.matches("xy")


@pytest.mark.parametrize(
    ("pattern", "namespaces", "surprising"),
    [
        ("users", ["users", "old_users", "users_archive"], ["old_users", "users_archive"]),
        ("orders|items", ["orders", "items", "order_items"], ["order_items"]),
        ("users", ["public.users", "public.users_old"], ["public.users_old"]),
        (r"public\.(orders|items)", ["public.orders", "public.items", "public.items2"], ["public.items2"]),
        ("public.orders", ["public.orders", "public_orders"], []),
        ("^users", ["users", "users_archive"], []),
        ("users.*", ["users", "users_archive"], []),
        (".*", ["users", "old_users"], []),
        ("", ["users"], []),
        ("absent", ["users"], []),
    ],
)
def test_names_that_match_more_than_the_pattern_seems_to_say(
    pattern: str, namespaces: list[str], surprising: list[str]
) -> None:
    assert Namespace(pattern).surprises(namespaces) == surprising


def test_no_name_holds_the_matcher_up() -> None:
    assert not Namespace("^(a+)+$").matches("a" * 60 + "!")
    assert Namespace("^(a+)+$").matches("a" * 60)
