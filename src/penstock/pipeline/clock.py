"""The time of day as the log has it, and a clock for what is done now and then."""

from __future__ import annotations

import time


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


class Clock:
    """Says whether it is time again for something that is done now and then."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def __call__(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now - self._last.get(what, float("-inf")) < seconds:
            return False
        self._last[what] = now
        return True
