"""Namespaces: the pattern by which a source, a function or a sink says which messages it means.

As in the Transporter design a pattern is a regular expression that is searched for, not matched from end to
end: `users` also means `old_users`. Slashes around it are trimmed, an empty one means everything.

A pattern keeps to the dialect that all engines share (`penstock.base.patterns`), and one matcher, this one, decides
for reader, plan, functions and sinks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from penstock.base.errors import UsageError
from penstock.base.patterns import checked_pattern, found

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
        checked_pattern(pattern, "namespace pattern")
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
        whole = rf"(?:^|\.)(?:{self.pattern})$"
        return [ns for ns in namespaces if self.matches(ns) and not found(whole, ns)]

    def __str__(self) -> str:
        return self.pattern or ".*"


@lru_cache(maxsize=16_384)
def _found(pattern: str, ns: str) -> bool:
    return found(pattern, ns)
