"""Regular expressions in one dialect, whoever runs them.

A pattern in a pipeline file may be searched for by Python, by Java inside Spark, or by a tool that uses RE2. So it
keeps to what these three share, and anything else is refused when the file is read, with the place and a way
out. `\\w`, `\\d` and `\\b` know ASCII only.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import NamedTuple

from penstock.base.errors import UsageError


def checked_pattern(text: str, what: str) -> re.Pattern[str]:
    """Compile `text` if every engine would read it alike; `what` names it in errors, as in `namespace pattern`."""
    try:
        _check(text)
    except _RefusalError as error:
        place, complaint, instead = error.args
        raise UsageError(f"{what} '{text}', character {place + 1}: {complaint}", hint=instead) from None
    return compiled(text)


@lru_cache(maxsize=256)
def compiled(text: str) -> re.Pattern[str]:
    """A pattern that was checked before."""
    return re.compile(text, re.ASCII)


class _RefusalError(Exception):
    """Place, complaint, what to write instead."""


class _Foreign(NamedTuple):
    """A construct that only some engines know, and what to write instead."""

    sign: re.Pattern[str]
    what: str
    instead: str


_NAME_THEM = "name what is meant: 'orders|items'"

_FOREIGN = (
    _Foreign(re.compile(r"\(\?<?[=!]"), "look-around", _NAME_THEM),
    _Foreign(re.compile(r"\(\?P<"), "a named group", "use an ordinary group: '(...)'"),
    _Foreign(re.compile(r"\(\?>"), "an atomic group", "use an ordinary group: '(?:...)'"),
    _Foreign(re.compile(r"\(\?\("), "a conditional", "use alternatives: 'a|b'"),
    _Foreign(re.compile(r"\(\?#"), "a comment", "put the comment beside the pattern"),
    _Foreign(re.compile(r"\(\?[a-zA-Z-]*[aLux][a-zA-Z-]*[:)]"), "a flag other than i, m, s", "use '(?i)'"),
    _Foreign(re.compile(r"(?:[*+?]|\{\d*,?\d*\})\+"), "a possessive quantifier", "leave out the last '+'"),
    _Foreign(re.compile(r"\{,\d+\}"), "a repetition without its lower end", "write it: '{0,9}'"),
    _Foreign(re.compile(r"\{[\d,]*\d{4}[\d,]*\}"), "a repetition above 999", "use '*' or '+'"),
    _Foreign(re.compile(r"\{(?!\d+(?:,\d*)?\})"), "a brace that is no repetition", r"write '\{'"),
    _Foreign(re.compile(r"\\[0-9]"), "a backreference", _NAME_THEM),
    _Foreign(re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*?\["), "a set within a set", r"write '\['"),
    _Foreign(re.compile(r"\[\^?&&"), "a set that begins with '&&'", r"write '\&'"),
    _Foreign(re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*?\\b"), "'\\b' in a set", "leave it out"),
    _Foreign(re.compile(r"\\v|\[\^?\]?(?:\\.|[^\]\\])*?\\v"), "'\\v'", r"write '\x0b'"),
    _Foreign(re.compile(r"\\[^\x00-\x7f]"), "an escaped letter", "leave out the backslash"),
    _Foreign(re.compile(r"\\Z"), "'\\Z'", "write '$'"),
    _Foreign(re.compile(r"\\[uUN]"), "an escaped character code", "write the character itself"),
)  # fmt: skip

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
"""One escape, one set, or one character; what stands inside a set starts no construct."""


def _check(pattern: str) -> None:
    try:
        with warnings.catch_warnings():
            # Python warns where a set will change its meaning; other engines have changed it already.
            warnings.simplefilter("error", FutureWarning)
            re.compile(pattern, re.ASCII)
    except FutureWarning as error:
        at = int(found[1]) if (found := re.search(r"position (\d+)", str(error))) else 0
        raise _RefusalError(
            at, "engines disagree about this set", r"escape '[', '&', '-', '|' and '~' in it"
        ) from None
    except re.error as error:
        raise _RefusalError(
            error.pos or 0, error.msg, "to mean a character itself, put '\\' before it"
        ) from None
    except (OverflowError, RecursionError) as error:
        raise _RefusalError(0, str(error), "write a shorter pattern") from None
    position = 0
    while found := _TOKEN.match(pattern, position):
        for foreign in _FOREIGN:
            if foreign.sign.match(pattern, position):
                raise _RefusalError(position, f"{foreign.what} is not supported", foreign.instead)
        position = found.end()
