"""Things that lie one behind the other in a buffer, each telling how long it is: found many at a time.

Where one begins is only known from the one before it: a walk, a step for each. Bytes that they share show most of the
places at once, though: where these bytes stand, and each such place is where the thing at the one before it ends, a
walk would have gone the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]

MARK: Final = 8
"""Bytes that tell a thing from others."""
_SAMPLE: Final = 1 << 10
"""Bytes that show which of the mark's is seldom met elsewhere."""


def alike(
    raw: NDArray[np.uint8], begin: int, end: int, head: int, mark: int, ends: Callable[[Positions], Positions]
) -> Positions:
    """Where things begin, the first of them at `begin`, as long as each has its mark and lies behind the one before it.

    A thing begins with `head` bytes, all of them before `end`; those that it shares with the first are `mark` bytes
    behind its begin. `ends` tells of places where each thing would end.
    """
    count = end - begin - head + 1
    if count <= 0:
        return np.empty(0, np.int64)
    wanted = raw[begin + mark : begin + mark + MARK]
    seen = np.bincount(raw[begin : min(end, begin + _SAMPLE)], minlength=256)
    rare = int(np.argmin(seen[wanted]))
    seldom = begin + mark + rare
    places: Positions = np.flatnonzero(raw[seldom : seldom + count] == wanted[rare]) + begin
    marks: NDArray[np.uint64] = np.ndarray((len(raw) - mark - MARK + 1,), np.uint64, raw, mark, (1,))
    places = places[marks[places] == marks[begin]]
    apart = np.flatnonzero(places[1:] != ends(places[:-1]))
    return places[: apart[0] + 1] if apart.size else places
