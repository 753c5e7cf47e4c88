"""The one dialect of regular expressions; what it refuses is listed with the namespaces."""

from __future__ import annotations

import pytest

from penstock.base.errors import UsageError
from penstock.base.patterns import checked_pattern


def test_a_pattern_is_compiled_and_knows_ascii_only() -> None:
    pattern = checked_pattern(r"^\w+$", "pattern")
    assert pattern.search("abc")
    assert not pattern.search("größe")


def test_the_refusal_says_what_the_pattern_is_for_and_where_it_is_wrong() -> None:
    with pytest.raises(UsageError) as caught:
        checked_pattern("ab(?=c)", "setting 'match'")
    assert caught.value.message == "setting 'match' 'ab(?=c)', character 3: look-around is not supported"
    assert caught.value.hint == "name what is meant: 'orders|items'"


@pytest.mark.parametrize("pattern", ["(" * 3000 + ")" * 3000, "a{99999999999}"])
def test_a_pattern_that_no_engine_takes_is_refused_and_does_not_raise_anything_else(pattern: str) -> None:
    with pytest.raises(UsageError):
        checked_pattern(pattern, "pattern")
