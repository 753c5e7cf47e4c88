"""Namespaces: the pattern by which a source, a function or a sink says which messages it means.

As in the Transporter design a pattern is a regular expression that is searched for, not matched from end to
end: `users` also means `old_users`. Slashes around it are trimmed, an empty one means everything.

A pattern means the same to every engine that may run it, so it keeps to what Python's `re`, Java's and RE2
share; anything else is refused when the pipeline file is read, with the place and a way out. `\\w`, `\\d` and
`\\b` know ASCII only.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from penstock.base.errors import UsageError

_ALWAYS = frozenset({"", ".*", "^", "$", "^.*", ".*$"})
"""Patterns that are found in any text."""

_PLAIN = re.compile(r"(?:[\w.|()-]|\\[.-])+", re.ASCII)
"""Names, alternatives of names, and nothing by which a person would say 'and more'."""

_FLAGGED = re.compile(r"/+[^/].*/[gimsuy]{1,4}", re.DOTALL)
"""JavaScript's `/name/i`, whose last part is not a flag here."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A checked pattern. Equal patterns are equal values; it pickles as its text."""

    pattern: str = ""

    def __post_init__(self) -> None:
        given: object = self.pattern
        if not isinstance(given, str):
            raise UsageError(
                f"a namespace pattern is text, not {type(given).__name__}",
                hint=r'write it as a string: ns=r"public\.(orders|items)"',
            )
        if _FLAGGED.fullmatch(given):
            raise UsageError(
                f"namespace pattern '{given}': flags after the closing slash have no meaning here",
                hint="write flags inside: '(?i)name'; if it is part of the name, leave out the first slash",
            )
        pattern = given.strip("/")
        _check(pattern)
        object.__setattr__(self, "pattern", pattern)

    @property
    def everything(self) -> bool:
        """Whether every namespace matches, so that nobody needs to ask."""
        return self.pattern in _ALWAYS

    def matches(self, ns: str) -> bool:
        """Whether the pattern is found in `ns`. Remembered: a log has few namespaces and many messages."""
        return _found(self.pattern, ns)

    def surprises(self, namespaces: Iterable[str]) -> list[str]:
        """Those of `namespaces` that match although the pattern reads like the name of others.

        `users` reads like one name, so `old_users` surprises; `public.users` does not, since the last part
        of a qualified name is often all that a person writes. Anchored patterns and those with wildcards
        say openly that they mean more.
        """
        if not _PLAIN.fullmatch(self.pattern) or self.everything:
            return []
        whole = _compiled(rf"(?:^|\.)(?:{self.pattern})$")
        return [ns for ns in namespaces if self.matches(ns) and not whole.search(ns)]

    def __str__(self) -> str:
        return self.pattern or ".*"


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


@lru_cache(maxsize=16_384)
def _found(pattern: str, ns: str) -> bool:
    return _compiled(pattern).search(ns) is not None


class _Foreign(NamedTuple):
    """A construct that only some engines know, and what to write instead."""

    sign: re.Pattern[str]
    what: str
    instead: str


_NAME_THEM = "name the namespaces that are meant: 'orders|items'"

_FOREIGN = (
    _Foreign(re.compile(r"\(\?<?[=!]"), "look-around", _NAME_THEM),
    _Foreign(re.compile(r"\(\?P<"), "a named group", "use an ordinary group: '(...)'"),
    _Foreign(re.compile(r"\(\?>"), "an atomic group", "use an ordinary group: '(?:...)'"),
    _Foreign(re.compile(r"\(\?\("), "a conditional", "use alternatives: 'a|b'"),
    _Foreign(re.compile(r"\(\?#"), "a comment", "put the comment into the pipeline file"),
    _Foreign(re.compile(r"\(\?[a-zA-Z-]*[aLux][a-zA-Z-]*[:)]"), "a flag other than i, m, s", "use '(?i)'"),
    _Foreign(re.compile(r"(?:[*+?]|\{\d*,?\d*\})\+"), "a possessive quantifier", "leave out the last '+'"),
    _Foreign(re.compile(r"\{,\d+\}"), "a repetition without its lower end", "write it: '{0,9}'"),
    _Foreign(re.compile(r"\{[\d,]*\d{4}[\d,]*\}"), "a repetition above 999", "use '*' or '+'"),
    _Foreign(re.compile(r"\{(?!\d+(?:,\d*)?\})"), "a brace that is no repetition", r"write '\{'"),
    _Foreign(re.compile(r"\\[0-9]"), "a backreference", _NAME_THEM),
    _Foreign(re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*?\["), "a set within a set", r"write '\['"),
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
        raise _refusal(
            pattern, at, "engines disagree about this set", r"escape '[', '&', '-', '|' and '~' in it"
        ) from None
    except re.error as error:
        raise _refusal(
            pattern, error.pos or 0, error.msg, "to mean a character itself, put '\\' before it"
        ) from None
    except (OverflowError, RecursionError) as error:
        raise _refusal(pattern, 0, str(error), "write a shorter pattern") from None
    position = 0
    while found := _TOKEN.match(pattern, position):
        for foreign in _FOREIGN:
            if foreign.sign.match(pattern, position):
                raise _refusal(pattern, position, f"{foreign.what} is not supported", foreign.instead)
        position = found.end()


def _refusal(pattern: str, position: int, what: str, instead: str) -> UsageError:
    return UsageError(f"namespace pattern '{pattern}', character {position + 1}: {what}", hint=instead)
