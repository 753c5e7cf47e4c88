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


def _users(kept: list[bytearray], at: int) -> int:
    """How many know of a buffer, by the interpreter's own count; what that is for nobody depends on its version."""
    return sys.getrefcount(kept[at])


_NOBODY: Final = _users([bytearray()], 0)


class Buffers:
    """Those of one worker."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self) -> bytearray:
        """A buffer of `SIZE` that nobody looks into. What it holds is whatever was there."""
        kept = self._kept
        for at in range(len(kept)):
            if _users(kept, at) == _NOBODY:
                return kept[at]
        fresh = bytearray(SIZE)
        if len(kept) < MOST:
            kept.append(fresh)
        return fresh
