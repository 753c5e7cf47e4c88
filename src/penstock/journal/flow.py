"""Flow control of appends (reference 17): a client must be fast enough, and may not be too fast.

An append that streams holds the journal's pipeline, and others wait for it. `MinimumRate` says until when the
next chunk must have come; `MaximumRate` how long a chunk that came must wait. Clocks are arguments, in seconds; one
that runs backwards is taken to stand still.
"""

from __future__ import annotations

from dataclasses import dataclass

MINIMUM_RATE = 65536
GRACE = 1.0
BANKED = 10.0


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Rates in bytes a second; 0 means no limit."""

    minimum_rate: int = MINIMUM_RATE
    grace: float = GRACE
    """A client may be silent for so long; more than that it cannot save up."""
    maximum_rate: int = 0
    """Lowers the rate of journals that have one."""

    def maximum_of(self, rate: int) -> int:
        """The rate that a journal is held to whose spec asks for `rate`."""
        return min(rate, self.maximum_rate) if rate and self.maximum_rate else rate


class MinimumRate:
    """Police of one append. It begins with `grace` seconds of credit, and can never have more."""

    __slots__ = ("_credit", "_grace", "_now", "_rate")

    def __init__(self, limits: FlowLimits, now: float) -> None:
        self._rate = limits.minimum_rate
        self._grace = limits.grace
        self._credit = limits.grace * limits.minimum_rate
        self._now = now

    @property
    def deadline(self) -> float | None:
        """When the credit is used up unless a chunk comes; None: never."""
        return self._now + self._credit / self._rate if self._rate else None

    def chunk(self, size: int, now: float) -> None:
        """A chunk has come."""
        elapsed = max(0.0, now - self._now)
        self._credit = max(0.0, self._credit - elapsed * self._rate)
        self._credit = min(self._credit + size, self._grace * self._rate)
        self._now = max(self._now, now)

    def excuse(self, now: float) -> None:
        """Time up to now was ours, not the client's."""
        self._now = max(self._now, now)


class MaximumRate:
    """The balance of one journal, kept between appends. Starts with a second's worth, saves up to ten."""

    __slots__ = ("_balance", "_now", "_rate")

    def __init__(self) -> None:
        self._rate = 0
        self._balance = 0.0
        self._now = 0.0

    def delay(self, size: int, rate: int, now: float) -> float:
        """Seconds that a chunk of `size` must wait under `rate` (0: unlimited) before it counts as taken.

        A chunk larger than all that can be saved waits for a full balance and leaves a debt.
        """
        if not rate:
            self._rate = 0
            return 0.0
        if not self._rate:
            self._balance, self._now = float(rate), now
        self._rate = rate
        elapsed = max(0.0, now - self._now)
        self._now = max(self._now, now)
        self._balance = min(self._balance + elapsed * rate, BANKED * rate)
        wanted = min(float(size), BANKED * rate)
        wait = max(0.0, (wanted - self._balance) / rate)
        self._balance -= size
        return wait

    def forgive(self) -> None:
        """Nobody waits for a debt that is left."""
        self._balance = max(0.0, self._balance)
