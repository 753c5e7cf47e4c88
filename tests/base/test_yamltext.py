"""YAML's values by the core rules of 1.2; the rest of the reader is tested with the journal specs."""

from __future__ import annotations

import pytest

from penstock.base.errors import UsageError
from penstock.base.yamltext import parse, plain


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("FALSE", False),
        ("yes", "yes"),
        ("on", "on"),
        ("~", None),
        ("null", None),
        ("17", 17),
        ("-17", -17),
        ("007", 7),
        ("1_000", "1_000"),
        ("0x1f", "0x1f"),
        ("1:30", "1:30"),
        ("1.50", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1e", "1e"),
        (".", "."),
        (".inf", ".inf"),
        ("2024-01-01", "2024-01-01"),
        ("'17'", "17"),
        ('"true"', "true"),
        ("[1, {a: b}, null]", [1, {"a": "b"}, None]),
        ("|\n  one\n  two\n", "one\ntwo\n"),
        ("&x [1]", [1]),
    ],
)
def test_scalars_are_what_the_core_rules_say(text: str, value: object) -> None:
    document = parse(f"key: {text}\n")
    assert document is not None
    assert plain(document) == {"key": value}


def test_an_alias_stands_for_its_anchor() -> None:
    document = parse("a: &x {k: 1}\nb: *x\n")
    assert document is not None
    assert plain(document) == {"a": {"k": 1}, "b": {"k": 1}}


def test_a_number_without_end_is_refused() -> None:
    document = parse(f"a: {'9' * 5000}\n")
    assert document is not None
    with pytest.raises(UsageError, match="line 1: a number of more than 1000 digits"):
        plain(document)


def test_a_tab_before_a_key_is_named() -> None:
    with pytest.raises(UsageError, match="line 2: not YAML") as refused:
        parse("source:\n\tname: db\n")
    assert refused.value.hint == "indent with blanks: this line begins with a tab"
    with pytest.raises(UsageError) as refused:
        parse("source: [")
    assert refused.value.hint is None
