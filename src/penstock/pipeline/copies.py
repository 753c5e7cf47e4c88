"""How far the copies of a source are, how fast they go, and how long they will take: what people ask first."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence

from penstock.adaptors.base import Copying, Source
from penstock.pipeline.errortext import first_line
from penstock.pipeline.progress import CopyProgress

log = logging.getLogger(__name__)

WINDOW = 30.0
"""Seconds over which the rate is taken: long enough for ranges that come in lumps."""


class Copies:
    """Remembers what a source said, to tell how fast it goes."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def told(self, copying: Sequence[Copying], now: float) -> list[CopyProgress]:
        """What the source says now, at the second `now` of any clock that runs on."""
        self._seen = {one.ns: self._seen.get(one.ns, deque()) for one in copying}
        return [self._one(one, now) for one in copying]

    def _one(self, one: Copying, now: float) -> CopyProgress:
        seen = self._seen[one.ns]
        seen.append((now, one.rows))
        while now - seen[0][0] > WINDOW:
            seen.popleft()
        began, rows = seen[0]
        rate = max(one.rows - rows, 0) / (now - began) if now > began else 0.0
        left = None if one.of is None or not rate else max(one.of - one.rows, 0) / rate
        return CopyProgress(one.ns, one.rows, one.of, rate, left)


def gauges_of(source: Source) -> Mapping[str, float]:
    """What the source measures; nothing if it fails at that, since no run should end for a number."""
    try:
        return {name: float(value) for name, value in source.gauges().items()}
    except Exception as error:  # noqa: BLE001 - an adaptor of any author
        log.warning("the source cannot tell its numbers: %s", first_line(error))
        return {}


def copying_of(source: Source) -> Sequence[Copying]:
    """The copies under way; none if the source cannot tell."""
    try:
        return list(source.copying())
    except Exception as error:  # noqa: BLE001 - an adaptor of any author
        log.warning("the source cannot tell how far it is: %s", first_line(error))
        return []
