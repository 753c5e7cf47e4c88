"""The path postfix of a fragment, from the template of its journal's spec (reference, 19 "Path postfix").

The original takes any Go template; the documented use is text with actions of one form, which is what is
understood here, and everything else is refused by name:

    date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}/hour={{ .Spool.FirstAppendTime.Format "15" }}

It may be written in the template's other ways: `{{- … -}}` takes the space around it away, the layout may stand in
backquotes, and `.FirstAppendTime.UTC` is the same time.

A layout shows how the moment Mon Jan 2 15:04:05 MST 2006 would be written. Times are UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.journal.fragment import POSTFIX_LENGTH
from penstock.journal.tokens import ValidationError, check_path

ZERO_TIME = datetime(1, 1, 1, tzinfo=UTC)
"""What Go calls the zero time; a template is tried with it."""

_ACTION = re.compile(
    r"""\{\{(?P<after>-\s)? \s* \.Spool\.FirstAppendTime(?:\.UTC)?\.Format
        \s+ (?:"(?P<quoted>[^"\\\n]*)" | `(?P<raw>[^`]*)`) \s* (?P<before>\s-)?\}\}""",
    re.VERBOSE,
)
_SPACE = " \t\r\n"

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

# Longer elements stand before those they begin with. `Jan` and `Mon` are elements only where no lower-case
# letter goes on, and a fraction only where no digit does.
_ELEMENT = re.compile(
    r"January|Jan(?![a-z])|Monday|Mon(?![a-z])|MST|2006|__2|_2(?!006)|002|0[1-6]|15|PM|pm"
    r"|[Z-]07(?:0000|:00:00|00|:00)?|[.,](?:0+|9+)(?![0-9])|[1-5]"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """An action of a template: the time of the first append in this layout."""

    text: str


def parse(template: str) -> tuple[str | Layout, ...]:
    """The template as literal texts and layouts, in order; ValidationError if it holds any other action."""
    parts: list[str | Layout] = []
    position, trims = 0, False
    while (start := template.find("{{", position)) >= 0:
        action = _ACTION.match(template, start)
        if action is None:
            raise ValidationError(
                f"unsupported template action at '{template[start:]}' "
                '(expected {{ .Spool.FirstAppendTime.Format "LAYOUT" }})'
            )
        text = _trimmed(template[position:start], trims, bool(action["after"]))
        parts += [text, Layout(action["quoted"] or action["raw"] or "")]
        position, trims = action.end(), bool(action["before"])
    parts.append(_trimmed(template[position:], trims, False))
    return tuple(part for part in parts if part != "")


def _trimmed(text: str, left: bool, right: bool) -> str:
    text = text.lstrip(_SPACE) if left else text
    return text.rstrip(_SPACE) if right else text


def evaluate(template: str, first_append_time: datetime) -> str:
    """The postfix of a fragment whose first append was at this (aware) time; ValidationError if illegal."""
    moment = first_append_time.astimezone(UTC)
    postfix = "".join(
        part if isinstance(part, str) else format_time(part.text, moment) for part in parse(template)
    )
    check_path(postfix, *POSTFIX_LENGTH)
    return postfix


def format_time(layout: str, moment: datetime) -> str:
    """A UTC time in a Go layout."""
    return _ELEMENT.sub(lambda element: _write(element[0], moment), layout)


def _write(element: str, moment: datetime) -> str:
    if element[0] in ".,":
        return _fraction(element, moment.microsecond)
    if element[0] == "Z":
        return "Z"
    if element[0] == "-":
        return "+" + element[1:].replace("7", "0")
    return _WRITERS[element](moment)


def _fraction(element: str, microsecond: int) -> str:
    digits = f"{microsecond:06d}000"[: len(element) - 1].ljust(len(element) - 1, "0")
    if element[1] == "9":
        digits = digits.rstrip("0")
    return element[0] + digits if digits else ""


def _hour12(moment: datetime) -> int:
    return moment.hour % 12 or 12


_WRITERS: dict[str, Callable[[datetime], str]] = {
    "2006": lambda moment: f"{moment.year:04d}",
    "06": lambda moment: f"{moment.year % 100:02d}",
    "January": lambda moment: _MONTHS[moment.month - 1],
    "Jan": lambda moment: _MONTHS[moment.month - 1][:3],
    "01": lambda moment: f"{moment.month:02d}",
    "1": lambda moment: str(moment.month),
    "Monday": lambda moment: _DAYS[moment.weekday()],
    "Mon": lambda moment: _DAYS[moment.weekday()][:3],
    "02": lambda moment: f"{moment.day:02d}",
    "_2": lambda moment: f"{moment.day:2d}",
    "2": lambda moment: str(moment.day),
    "002": lambda moment: f"{moment.timetuple().tm_yday:03d}",
    "__2": lambda moment: f"{moment.timetuple().tm_yday:3d}",
    "15": lambda moment: f"{moment.hour:02d}",
    "03": lambda moment: f"{_hour12(moment):02d}",
    "3": lambda moment: str(_hour12(moment)),
    "04": lambda moment: f"{moment.minute:02d}",
    "4": lambda moment: str(moment.minute),
    "05": lambda moment: f"{moment.second:02d}",
    "5": lambda moment: str(moment.second),
    "PM": lambda moment: "PM" if moment.hour >= 12 else "AM",
    "pm": lambda moment: "pm" if moment.hour >= 12 else "am",
    "MST": lambda moment: "UTC",
}
