"""Path postfixes from templates (reference, 19 "Path postfix")."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock.journal.postfix import ZERO_TIME, Layout, evaluate, format_time, parse
from penstock.journal.tokens import ValidationError

MOMENT = datetime(2026, 3, 4, 15, 6, 7, 890_120, tzinfo=UTC)  # a Wednesday, day 63 of its year
FORMAT = '{{ .Spool.FirstAppendTime.Format "%s" }}'


def test_the_documented_use() -> None:
    template = f"date={FORMAT % '2006-01-02'}/hour={FORMAT % '15'}"
    assert evaluate(template, MOMENT) == "date=2026-03-04/hour=15"
    assert evaluate(template, ZERO_TIME) == "date=0001-01-01/hour=00"


def test_no_template_gives_no_postfix() -> None:
    assert parse("") == ()
    assert evaluate("", MOMENT) == ""


def test_parts_of_a_template() -> None:
    assert parse('a{{.Spool.FirstAppendTime.Format "2006"}}/b') == ("a", Layout("2006"), "/b")
    assert parse("plain") == ("plain",)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ('date={{ .Spool.FirstAppendTime.UTC.Format "2006-01-02" }}', "date=2026-03-04"),
        ("hour={{.Spool.FirstAppendTime.Format `15`}}", "hour=15"),
        ('a/ {{- .Spool.FirstAppendTime.Format "2006" -}} /b', "a/2026/b"),
        (f"{FORMAT % '2006'}\n{{{{- .Spool.FirstAppendTime.Format `/01` -}}}}\n", "2026/03"),
    ],
)
def test_other_ways_to_write_it(template: str, expected: str) -> None:
    assert evaluate(template, MOMENT) == expected


def test_times_are_utc() -> None:
    there = MOMENT.astimezone(timezone(timedelta(hours=10)))
    assert evaluate(FORMAT % "2006-01-02/15", there) == "2026-03-04/15"


LAYOUTS = [
    ("2006-01-02", "2026-03-04"),
    ("15", "15"),
    ("15:04:05", "15:06:07"),
    ("20060102", "20260304"),
    ("06/1/2", "26/3/4"),
    ("January Jan", "March Mar"),
    ("Monday Mon", "Wednesday Wed"),
    ("3 03 4 04 5 05", "3 03 6 06 7 07"),
    ("PM pm", "PM pm"),
    ("_2|__2|002", " 4| 63|063"),
    ("MST", "UTC"),
    ("-0700 -07:00 -07 -070000 -07:00:00", "+0000 +00:00 +00 +000000 +00:00:00"),
    ("Z0700 Z07:00 Z07", "Z Z Z"),
    ("05.000", "07.890"),
    ("05.000000000", "07.890120000"),
    ("05.999999999", "07.89012"),
    ("05,00", "07,89"),
    ("Janet Monster", "Janet Monster"),
    ("_2006", "_2026"),
    ("year=2006", "year=2026"),
    ("plain text", "plain text"),
]


@pytest.mark.parametrize("layout, expected", LAYOUTS)
def test_layouts(layout: str, expected: str) -> None:
    assert format_time(layout, MOMENT) == expected


def test_midnight_and_noon_on_a_clock_of_twelve_hours() -> None:
    assert format_time("3PM", datetime(2026, 1, 1, 0, tzinfo=UTC)) == "12AM"
    assert format_time("03pm", datetime(2026, 1, 1, 12, tzinfo=UTC)) == "12pm"


def test_a_fraction_of_nothing_is_left_out() -> None:
    assert format_time("05.999", datetime(2026, 1, 1, tzinfo=UTC)) == "00"


UNSUPPORTED = [
    "{{ .JournalSpec.Name }}",
    "{{ .Spool.Begin }}",
    "{{ .Spool.FirstAppendTime }}",
    "{{ .Spool.FirstAppendTime.Format }}",
    "{{ .Spool.FirstAppendTime.Format 2006 }}",
    '{{-.Spool.FirstAppendTime.Format "2006"-}}',
    '{{ .Spool.FirstAppendTime.Format"2006" }}',
    '{{ .Spool.FirstAppendTime.Local.Format "2006" }}',
    '{{ .Spool.FirstAppendTime.Format "2006" | printf "%s" }}',
    "{{ if true }}x{{ end }}",
    '{{ .Spool.FirstAppendTime.Format "20\\"06" }}',
    '{{ .Spool.FirstAppendTime.Format "2006"',
    "{{",
]


@pytest.mark.parametrize("template", UNSUPPORTED)
def test_other_actions_are_refused_by_name(template: str) -> None:
    with pytest.raises(ValidationError, match="unsupported template action at"):
        parse(f"x/{template}")


@pytest.mark.parametrize(
    "template", [FORMAT % "15:04", f"/{FORMAT % '15'}", f"{FORMAT % '15'}/", "a//b", "../x", "a b"]
)
def test_a_template_whose_postfix_is_no_legal_path_is_refused(template: str) -> None:
    with pytest.raises(ValidationError):
        evaluate(template, ZERO_TIME)
