"""Where a connector finds a worker: the addresses that it knows, whose turn it is, and how long it waits in between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from penstock.connector.settings import split

_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 5.0


def wait_after(failures: int) -> float:
    """Seconds before the next attempt; some more, some less, so that not all connectors come back at once."""
    longest = min(_FIRST_WAIT * 2.0 ** min(failures, 10), _LONGEST_WAIT)
    return longest * random.uniform(0.5, 1.0)


class Addresses:
    """Those that were given, and those that workers have named."""

    def __init__(self, given: Sequence[str]) -> None:
        for address in given:
            split(address)
        self._known = list(dict.fromkeys(given))
        self._turn = 0
        self._refused: frozenset[str] = frozenset()
        """Those that refused for good, one after the other."""

    @property
    def current(self) -> str:
        """The one to try."""
        return self._known[self._turn % len(self._known)]

    def failed(self, address: str, *, for_good: bool) -> bool:
        """It is the next one's turn. True if there is none that might take us: all have refused for good.

        One that does anything else, be it that it does not answer, may yet be mended, and so may the others by then.
        """
        self._turn += 1
        self._refused = self._refused | {address} if for_good else frozenset()
        return self._refused.issuperset(self._known)

    def prefer(self, *addresses: str) -> None:
        """Use these from now on, the first of them first; the others are tried if nobody answers there."""
        self._known = list(dict.fromkeys([*addresses, *self._known]))
        self._turn, self._refused = 0, frozenset()

    def fall_back(self, old: str, new: str) -> None:
        """What to try, the one before the other, if a migration comes to nothing and the connection is lost."""
        self.prefer(old, new)
        self._turn = -1
