"""What others say is shown as it is where that does no harm, and spelled out where it would."""

from __future__ import annotations

import pytest

from penstock.base.texts import indented, one_line, visible


@pytest.mark.parametrize(
    ("text", "shown", "in_one_line"),
    [
        ("plain, ä 注", "plain, ä 注", "plain, ä 注"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab", r"two\nlines\tand a tab"),
        ("\x1b[31mred", r"\x1b[31mred", r"\x1b[31mred"),
        ("back\rto the \x9bbegin", r"back\rto the \x9bbegin", r"back\rto the \x9bbegin"),
        (
            "turned \u202eround, \u2028 cut",
            r"turned \u202eround, \u2028 cut",
            r"turned \u202eround, \u2028 cut",
        ),
        ("half \udc80", r"half \udc80", r"half \udc80"),
    ],
)
def test_control_characters_are_spelled_out(text: str, shown: str, in_one_line: str) -> None:
    assert visible(text) == shown
    assert one_line(text) == in_one_line


def test_a_line_that_is_cut_says_so() -> None:
    assert one_line("\n" * 100, 3) == r"\n\n\n..."
    assert one_line("abc", 3) == "abc"


def test_further_lines_do_not_begin_where_ours_do() -> None:
    assert indented("one\ntwo\r\nthree") == "one\n  two\\r\n  three"
