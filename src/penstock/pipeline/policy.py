"""What a sink does when a message is refused, and when it falls behind.

orders.save("search", a.file(...), on_error="dead-letter")
orders.save("mart", a.file(...), on_error=retry(5, backoff="2s"), max_lag={"bytes": "10GB", "then": "detach"})
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class OnError(Enum):
    """What happens to a message that a function or the sink refuses for good."""

    STOP = "stop"
    """The sink stops before it and waits for an operator; the seed's rule."""
    DEAD_LETTER = "dead-letter"
    """It is kept with its reason among the dead letters, and the sink goes on."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Try again `retries` times, each time after twice the last pause, then do as `then` says."""

    then: OnError = OnError.STOP
    retries: int = 0
    backoff: float = 1.0
    """Seconds before the first retry."""


class WhenBehind(Enum):
    """What happens when a sink reaches its `max_lag`."""

    HOLD = "hold"
    """The log keeps what the sink lacks; warned at 50 and 80 %."""
    DETACH = "detach"
    """The sink stops holding the log, is marked incomplete and wants a backfill."""


@dataclass(frozen=True, slots=True)
class MaxLag:
    """How far a sink may fall behind; a limit that is None is none."""

    bytes: int | None = None
    seconds: float | None = None
    then: WhenBehind = WhenBehind.HOLD
