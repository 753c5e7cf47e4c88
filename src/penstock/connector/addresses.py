"""Where a connector finds a worker: the addresses that it knows, whose turn it is, and how long it waits in between."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Final

from penstock.connector.settings import split

_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 5.0
_MISSES: Final = 5
"""So often nobody is found at an address that a worker has named before it is forgotten."""


def wait_after(failures: int) -> float:
    """Seconds before the next attempt; some more, some less, so that not all connectors come back at once."""
    longest = min(_FIRST_WAIT * 2.0 ** min(failures, 10), _LONGEST_WAIT)
    return longest * random.uniform(0.5, 1.0)


class Addresses:
    """Those that were given, and those that workers have named."""

    def __init__(self, given: Sequence[str]) -> None:
        for address in given:
            split(address)
        self._given = frozenset(given)
        self._known = list(dict.fromkeys(given))
        self._turn = 0
        self._refused: frozenset[str] = frozenset()
        """Those that refused for good, one after the other, and those that name nobody but them."""
        self._missed: Counter[str] = Counter()
        """How often nobody was found there, one time after the other."""

    @property
    def current(self) -> str:
        """The one to try."""
        return self._known[self._turn % len(self._known)]

    def failed(self, address: str, *, for_good: bool, missed: bool = False) -> bool:
        """It is the next one's turn. True if there is none that might take us: all have refused for good.

        One that does anything else, be it that nobody is found there (`missed`), may yet be mended, and so may the
        others by then.
        """
        self._turn += 1
        self._refused = self._refused | {address} if for_good else frozenset()
        self._missed[address] = self._missed[address] + 1 if missed else 0
        if missed:
            self._forget(address)
        return self._refused.issuperset(self._known)

    def _forget(self, address: str) -> None:
        """One that a worker has named and that is gone; not while nobody else is found either."""
        others = [other for other in self._known if other != address]
        gone = address not in self._given and self._missed[address] >= _MISSES
        if gone and not all(self._missed[other] for other in others):
            at = self._known.index(address)
            self._known, self._turn = others[at:] + others[:at], 0
            del self._missed[address]

    def redirected(self, address: str, to: str) -> bool:
        """A worker names another one instead of taking us. True if there is none left, as after `failed`.

        What has been refused stays so: workers that name one which refuses would be asked for ever.
        """
        if to in self._refused:
            return self.failed(address, for_good=True)
        self._missed[address] = 0
        self.prefer(to)
        return False

    def prefer(self, *addresses: str) -> None:
        """Use these from now on, the first of them first; the others are tried if nobody answers there."""
        self._known = list(dict.fromkeys([*addresses, *self._known]))
        self._turn = 0

    def took(self, address: str) -> None:
        """It has taken a stream: what others said before that counts no longer."""
        self._refused, self._missed[address] = frozenset(), 0

    def fall_back(self, old: str, new: str) -> None:
        """What to try, the one before the other, if a migration comes to nothing and the connection is lost."""
        self.prefer(old, new)
        self._turn, self._refused = -1, frozenset()
