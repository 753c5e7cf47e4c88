"""Memory to receive into, used again.

Fresh memory for every read costs as much as the copying: the system clears each page. So a few large buffers go round.
A buffer is free when nobody but the pool knows of it: each view into it counts as somebody, so what waits for the log
keeps its bytes for as long as it waits, however that ends.
"""

from __future__ import annotations

import sys
from typing import Final

SIZE: Final = 1 << 20
MOST: Final = 20
"""Buffers that are kept; when all are in use there are others, for once."""
_NOBODY: Final = 2
"""What `getrefcount` says of a thing that only a list has: the list, and the call itself."""


class Buffers:
    """Those of one worker."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self) -> bytearray:
        """A buffer of `SIZE` that nobody looks into. What it holds is whatever was there."""
        kept = self._kept
        for at in range(len(kept)):
            if sys.getrefcount(kept[at]) == _NOBODY:
                return kept[at]
        fresh = bytearray(SIZE)
        if len(kept) < MOST:
            kept.append(fresh)
        return fresh
