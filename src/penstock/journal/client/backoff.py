"""How long a client waits before it tries again (reference 23)."""

from __future__ import annotations

DELAYS = (0.05, 0.05, 0.1, 0.1, 1.0, 1.0, 5.0)
_REFUSED = 1.0
"""At most, after a broker's own refusal: somebody is there to ask, and others may have taken over in the meantime."""


def delay(attempt: int, *, refused: bool = False) -> float:
    """Seconds to wait after this many failures in a row, the first being 1; `refused`: by a broker that answered."""
    wait = DELAYS[min(max(attempt, 1), len(DELAYS)) - 1]
    return min(wait, _REFUSED) if refused else wait
