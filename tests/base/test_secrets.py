"""Secrets never show: in any spelling that a text on its way out may give them."""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import secrets
from penstock.base.secrets import MaskingFilter, mask, mask_logs, register


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    secrets.forget_all()
    yield
    secrets.forget_all()


def test_a_registered_value_is_masked_wherever_it_stands() -> None:
    register("s3cr3t!")
    assert mask("a s3cr3t! b, s3cr3t!") == "a *** b, ***"
    assert mask("nothing") == "nothing"


SPELLINGS: dict[str, Callable[[str], str]] = {
    "percent": lambda value: quote(value, safe=""),
    "form": quote_plus,
    "json": json.dumps,
    "unicode": lambda value: json.dumps(value, ensure_ascii=False),
    "repr": repr,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_secret_is_recognised_in_the_spellings_of_texts(spelling: str) -> None:
    value = 'pä ss/w"o\\rd\n&more'
    register(value)
    shown = mask(f"<{SPELLINGS[spelling](value)}>")
    assert "***" in shown
    assert "ss" not in shown


def test_the_longest_secret_goes_first() -> None:
    register("pass")
    register("password")
    assert mask("password pass") == "*** ***"


def test_the_lines_of_a_key_are_masked_one_by_one() -> None:
    register("-----BEGIN KEY-----\nMIIEvQIBADANBg\n}\n-----END KEY-----\n")
    assert mask("line 2 is MIIEvQIBADANBg }") == "line 2 is *** }"


def test_too_short_a_value_does_not_mask_ordinary_text() -> None:
    register("a")
    register("")
    assert mask("a banana") == "a banana"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot reach pg://me:pw@host/x now", "cannot reach pg://me:***@host/x now"),
        ('{"uri":"pg://me:p@w@host","mail":"a@b"}', '{"uri":"pg://me:***@host","mail":"a@b"}'),
        ("http://host:80/x?token=abc&a=1", "http://host:80/x?token=***&a=1"),
        ("host=h password=abc user=u", "host=h password=*** user=u"),
        ("http://host:80/x", "http://host:80/x"),
    ],
)
def test_passwords_in_uris_are_masked_without_being_registered(text: str, shown: str) -> None:
    assert mask(text) == shown


@settings(max_examples=100)
@given(
    st.lists(st.text(min_size=4, max_size=12), min_size=1, max_size=4),
    st.lists(st.text(max_size=8), min_size=5, max_size=5),
)
def test_no_registered_value_survives_in_any_text(values: list[str], between: list[str]) -> None:
    secrets.forget_all()
    for value in values:
        register(value)
    text = "".join(part + value for part, value in zip(between, values, strict=False))
    shown = mask(text)
    assert not any(value in shown for value in values if "*" not in value)


def logged(format: str = "%(message)s") -> tuple[logging.Logger, io.StringIO]:
    out = io.StringIO()
    logger = logging.Logger("test")
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter(format))
    logger.addHandler(handler)
    mask_logs(logger)
    return logger, out


@given(st.text(alphabet="a:/@?#'\" \n", max_size=30))
def test_of_each_word_what_stands_between_user_and_last_at_sign_is_masked(text: str) -> None:
    slowly = re.sub(r"""(://[^:/?#@\s"']*):[^\s"']*@""", r"\1:***@", text)
    assert mask(text) == slowly


@pytest.mark.parametrize("part", ["://a:", "://", "://:@", "a:@://"])
def test_a_text_of_anybody_is_masked_in_time(part: str) -> None:
    """Functions log messages, and errors quote them: 5 MB of this took hours."""
    before = time.monotonic()
    mask(part * 1_000_000)
    assert time.monotonic() - before < 10


def test_logs_are_masked_arguments_and_tracebacks_too() -> None:
    register("s3cr3t!")
    logger, out = logged()
    logger.warning("cannot use %s", "s3cr3t!")
    try:
        raise ValueError("bad s3cr3t!")
    except ValueError:
        logger.exception("failed", stack_info=True)
    shown = out.getvalue()
    assert "s3cr3t!" not in shown.replace('"s3cr3t!"', "")  # the test's own source, in the stack
    assert "cannot use ***" in shown
    assert "ValueError: bad ***" in shown


def test_a_handler_is_given_one_filter_however_often_it_is_asked_for() -> None:
    logger, _ = logged()
    mask_logs(logger)
    assert [type(known) for known in logger.handlers[0].filters] == [MaskingFilter]


def test_what_is_registered_later_is_masked_as_well() -> None:
    logger, out = logged()
    register("latecomer")
    logger.warning("the latecomer")
    assert out.getvalue() == "the ***\n"
