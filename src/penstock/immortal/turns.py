"""Whose turn it is to take the checkpoint where the log is rolled: a secondary's, while one listens.

One that was named and has not taken any for a while is frozen, or cut off: then it is another one's turn, or, if there
is none, the primary's own. Without checkpoints the log would grow without end. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

PATIENCE = 60.0
"""Seconds that a secondary has for a checkpoint."""
_AGAIN = 10
"""After so many times the patience one that was late is asked again."""


class Turns:
    """As one primary gives them."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._named = ""
        self._since = 0.0
        self._last = -1
        self._late: dict[str, float] = {}
        """Until when nothing is expected of them."""

    def next(self, listening: Iterable[str], last: int, now: float) -> str:
        """Who is to take it, empty for the primary itself; `last` is the number of the last checkpoint there is."""
        if last != self._last:
            self._since = now
        elif self._named and now - self._since > self._patience:
            self._late[self._named] = now + _AGAIN * self._patience
        found = min((one for one in listening if self._late.get(one, now) <= now), default="")
        if found != self._named:
            self._named, self._since = found, now
        self._last = last
        return found
