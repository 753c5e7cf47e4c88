"""What a sink does after its query has ended, by what ended it. Pure.

a message or a batch was refused   the sink's policy: try again, bury it, or stop and wait for an operator
the target does not answer         tried again without end, later each time; `status` shows it
settings or data are wrong         stop: only a person can help
anything else                      tried again, later each time, up to `RESTARTS` times without moving
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.errors import AwayError, CorruptError, PenstockError, RefusedError, UsageError
from penstock.pipeline.policy import OnError, Policy

RESTARTS = 5
DELAYS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_LONGEST = 60.0


@dataclass
class Troubles:
    """What has gone wrong since the sink last moved, and what follows from it. Pure."""

    policy: Policy
    failures: int = 0
    refusals: int = 0
    buries: bool = False
    """Whether the next refused message becomes a dead letter."""

    def __post_init__(self) -> None:
        self.moved()

    def moved(self) -> None:
        """The sink has acknowledged something: count anew."""
        self.failures = self.refusals = 0
        self.buries = self.policy.then is OnError.DEAD_LETTER and not self.policy.retries

    def after(self, reason: PenstockError) -> tuple[str, float] | None:
        """The state to wait in, and for how long; None if the sink must stop."""
        if isinstance(reason, RefusedError):
            return self._after_refusal()
        if isinstance(reason, AwayError):
            self.failures += 1
            return "away", self._delay()
        if isinstance(reason, (UsageError, CorruptError)):
            return None
        self.failures += 1
        return None if self.failures > RESTARTS else ("restarting", self._delay())

    def _after_refusal(self) -> tuple[str, float] | None:
        if self.refusals < self.policy.retries:
            self.refusals += 1
            longest = max(_LONGEST, self.policy.backoff)
            return "retrying", min(self.policy.backoff * 2 ** (self.refusals - 1), longest)
        if self.policy.then is not OnError.DEAD_LETTER or self.failures > RESTARTS:
            return None
        self.failures += 1
        self.buries = True
        return "retrying", 0.0

    def _delay(self) -> float:
        return DELAYS[min(self.failures, len(DELAYS)) - 1]
