"""What the operator's commands read out of a data directory, as values.

`penstock.pipeline.operations` fills them, the commands and the console show them. Offsets are message
offsets; `ts` counts microseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One message of the commit log, with the words of its mode and op."""

    offset: int
    ts: int
    mode: str
    op: str
    ns: str
    key: str | None
    data: str


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """What a sink has: everything below `watermark`, in this `generation` of its history."""

    sink: str
    watermark: int
    generation: int
    delivered: int
    dropped: int
    dead: int
    lag: int
    """Messages of the log that the sink has not acknowledged."""
    lag_bytes: int | None
    updated_ts: int | None
    namespaces: Mapping[str, int] = field(default_factory=dict)
    """The last offset acknowledged for each namespace."""

    @property
    def offset(self) -> int:
        """The last offset acknowledged; -1 if none."""
        return self.watermark - 1


@dataclass(frozen=True, slots=True)
class NamespaceStatus:
    """How far the source is in one namespace: its phase, and the last offset logged."""

    mode: str
    offset: int


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """A pipeline's log, which holds the offsets from `oldest` to below `next`, and who has how much of it."""

    pipeline: str
    running: bool
    pid: int | None
    oldest: int
    next: int
    log_bytes: int
    namespaces: Mapping[str, NamespaceStatus] = field(default_factory=dict)
    sinks: Sequence[SinkStatus] = ()
