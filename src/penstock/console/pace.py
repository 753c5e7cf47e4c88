"""How fast counts grow, from what was seen of them over the last seconds. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping


class Pace:
    """Of some counts by name. One that falls, since it began anew, does not grow."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque()

    def rates(self, now: float, counts: Mapping[str, int], window: float) -> dict[str, float]:
        """What each grows by in a second, over about `window` seconds; nothing if this is the first that is seen."""
        self._seen.append((now, dict(counts)))
        while len(self._seen) > 2 and now - self._seen[1][0] >= window:
            self._seen.popleft()
        began, before = self._seen[0]
        if now <= began:
            return {}
        elapsed = now - began
        return {name: round(max(at - before.get(name, at), 0) / elapsed, 1) for name, at in counts.items()}
