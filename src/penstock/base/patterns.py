"""Regular expressions in one dialect, and one engine that searches for them.

A pattern keeps to what Python, Java and RE2 read alike, and anything else is refused when the file is read, with the
place and a way out. `\\w`, `\\d` and `\\b` know ASCII only. The engine is RE2, as it was the original's: texts come
from anywhere, and it takes a time that grows with the text, where others try 2^n ways for `(a+)+$` in n letters.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.base.errors import UsageError


def found(pattern: str, text: str) -> bool:
    """Whether a pattern that was checked before is found anywhere in the text."""
    return _compiled(pattern).search(text.encode(errors="surrogatepass")) is not None


def checked_pattern(text: str, what: str) -> str:
    """The pattern, if every engine would read it alike; `what` names it in errors, as in `namespace pattern`."""
    try:
        _check(text)
    except _RefusalError as error:
        place, complaint, instead = error.args
        raise UsageError(f"{what} '{text}', character {place + 1}: {complaint}", hint=instead) from None
    return text


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern.encode(), options=options)


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
    _Foreign(re.compile(r"\\B"), "'\\B'", "name the letters beside it"),
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
        at = int(place[1]) if (place := re.search(r"position (\d+)", str(error))) else 0
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
    while token := _TOKEN.match(pattern, position):
        for foreign in _FOREIGN:
            if foreign.sign.match(pattern, position):
                raise _RefusalError(position, f"{foreign.what} is not supported", foreign.instead)
        position = token.end()
    _check_by_engine(pattern)


def _check_by_engine(pattern: str) -> None:
    """What is left to refuse is mostly size: repetitions within repetitions are written out."""
    import re2

    try:
        _compiled(pattern)
    except re2.error as error:
        complaint = error.args[0]
        shown = complaint.decode() if isinstance(complaint, bytes) else str(complaint)
        raise _RefusalError(0, shown, "write a simpler pattern") from None
