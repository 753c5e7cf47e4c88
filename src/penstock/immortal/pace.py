"""How many calls a second a primary takes: counted where they are accepted, and said every few seconds.

It is said in the instance's `about` journal, so whoever looks needs no connection to the coordinator and reads no log.
While nothing comes nothing is said: the last word, which is zero, holds. A last word that is not zero holds for a few
seconds only, since who said it may be gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from penstock.base.errors import PenstockError
from penstock.immortal import about

if TYPE_CHECKING:
    from penstock.immortal.coordinator import Coordinator

_log = logging.getLogger(__name__)

EVERY = 2.0


class Meter:
    """Turns a count that only grows into what is worth saying. Pure."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._calls = 0
        self._said: float | None = 0.0

    def measured(self, calls: int, now: float) -> float | None:
        """Calls a second since the last time; None if that is known already."""
        rate = (calls - self._calls) / (now - self._at) if now > self._at else 0.0
        self._at, self._calls = now, calls
        return rate if rate or self._said != 0.0 else None

    def said(self, rate: float | None) -> None:
        """What the others know by now; None if nobody can tell."""
        self._said = rate


async def tell_pace(coordinator: Coordinator) -> None:
    """For as long as it is primary. A broker that is away makes nobody wait: it is said the next time."""
    assert coordinator.fenced is not None
    meter = Meter(time.monotonic())
    while True:
        await asyncio.sleep(EVERY)
        calls = coordinator.state.calls
        rate = meter.measured(calls, time.monotonic())
        if rate is None:
            continue
        said = about.Pace(coordinator.fenced.epoch, calls, round(rate, 2), time.time())
        try:
            await about.say(coordinator.client, coordinator.options.name, said)
            meter.said(rate)
        except PenstockError as error:
            meter.said(None)
            _log.debug("the pace of %s was not said: %s", coordinator.options.name, error)
