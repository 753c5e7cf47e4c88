"""What a running pipeline tells about itself: while it runs, and when it has ended.

The runner makes these values and hands each `Progress` to whoever asked for reports; nobody keeps one.
For a sink, `messages_in = delivered + dropped + dead + pending` holds at the end of every run;
`Summary.adds_up` says whether it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """A source or a sink at one moment. `rate` is in messages a second, `lag` and `pending` in messages."""

    node: str
    kind: str
    """source | sink"""
    adaptor: str
    state: str
    """starting | running | waiting | stopped | restarting | done"""
    messages_in: int = 0
    delivered: int = 0
    dropped: int = 0
    dead: int = 0
    pending: int = 0
    rate: float = 0.0
    lag: int = 0
    batch_ms: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The whole pipeline at one moment. `elapsed` counts seconds since the start."""

    pipeline: str
    elapsed: float
    phase: str
    """opening | starting spark | running | stopping"""
    log_next: int
    nodes: Sequence[NodeProgress] = ()


@dataclass(frozen=True, slots=True)
class SinkSummary:
    """What became of the messages a sink had to take in this run. `rows` is what its target got."""

    sink: str
    messages_in: int
    delivered: int
    dropped: int
    dead: int
    pending: int
    rows: int
    target: str
    error: str | None = None

    @property
    def adds_up(self) -> bool:
        return self.messages_in == self.delivered + self.dropped + self.dead + self.pending


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended. `read` counts the messages that this run appended to the log."""

    pipeline: str
    elapsed: float
    read: int
    log_next: int
    sinks: Sequence[SinkSummary]
    adds_up: bool
    exit_code: int
    message: str | None = None
