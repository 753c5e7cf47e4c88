"""How long a client waits before it tries again (reference 23)."""

from __future__ import annotations

DELAYS = (0.05, 0.05, 0.1, 0.1, 1.0, 1.0, 5.0)


def delay(attempt: int) -> float:
    """Seconds to wait after this many failures in a row, the first being 1."""
    return DELAYS[min(max(attempt, 1), len(DELAYS)) - 1]
