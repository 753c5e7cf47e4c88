"""What the operator's commands read out of a pipeline's journals, as values.

`penstock.pipeline.operations` and its neighbours fill them, the commands and the console show them. Offsets are
message offsets; `ts` and other times count microseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.log.transaction import Transaction
from penstock.pipeline.progress import NodeProgress

if TYPE_CHECKING:
    from penstock.log.record import Record

NEAR_FULL = (0.5, 0.8)
"""Shares of a limit at which a person is told: in time, and urgently."""


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
    old_key: str | None = None
    """The key that the row had before, if the message changes it."""


@dataclass(frozen=True, slots=True)
class Quota:
    """How much of a limit is used. `what` names it: `log_limit`, `max_lag bytes`, `max_lag age`."""

    what: str
    used: float
    limit: float

    @property
    def share(self) -> float:
        return self.used / self.limit if self.limit else 1.0

    @property
    def worth_telling(self) -> bool:
        return self.share >= NEAR_FULL[0]


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
    state: str | None = None
    """What a run says of it: running, waiting, retrying, stopped …; None while none runs."""
    error: str | None = None
    pending_ts: int | None = None
    """When the oldest message that the sink lacks was logged; None if it lacks none."""
    careful: int = 0
    """Messages below it are delivered one at a time."""
    acked: tuple[int, ...] = ()
    """Offsets ahead of the watermark that an operator acknowledged."""
    dead_letters: int = 0
    """Of `dead`, those that are still among the dead letters: neither replayed nor dropped."""
    paused: bool = False
    detached: bool = False
    quotas: Sequence[Quota] = ()
    """How much of its `max_lag` the sink has used."""
    transaction: Transaction | None = None
    """Of a sink that votes, while it runs: the two-phase commit on its way."""

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
class RunStatus:
    """A run that goes on now."""

    pid: int
    host: str
    http: str | None = None
    started_ts: int | None = None
    phase: str = "running"
    told_ts: int | None = None
    """When it last told in its file how its nodes stand; None if nobody here can see that file."""


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
    run: RunStatus | None = None
    first: int = 0
    """Messages below it went through compaction: of them the newest of each namespace is kept."""
    log_limit: int | None = None
    """Where readers pause; None if no run has told."""
    readers: str | None = None
    """Why nothing is read at the moment; None if nothing is in the way."""
    holder: str | None = None
    """The sink that keeps the log from being compacted further: the one that lacks most."""
    ended: str | None = None
    """How the last run ended, if that was not in order."""
    bad: int = 0
    """What the source could make no message of, and is still among the dead letters."""
    source: NodeProgress | None = None
    """The source as its run tells, with what it measures and how far its copies are; None if nothing runs."""


@dataclass(frozen=True, slots=True)
class Move:
    """An edit of a sink's offset: from `before` to `after`, both being the last offset acknowledged."""

    sink: str
    before: int
    after: int
    generation: int
    """In which the sink goes on."""
    again: int = 0
    """Messages that will be sent again."""
    gone: int = 0
    """Messages that would be sent again, but compaction has removed them."""
    skipped: int = 0
    """Messages that count as acknowledged without having been sent."""
    was_detached: bool = False

    @property
    def changes(self) -> bool:
        return self.before != self.after or self.was_detached


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What acknowledging without sending came to: the sink's last offset, and what waits for its turn."""

    sink: str
    before: int
    after: int
    ahead: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Passing:
    """A message at some place on its way; `ns` and `op` may differ from those in the log by then."""

    offset: int
    ts: int
    mode: str
    op: str
    ns: str
    key: str | None
    data: str
    old_key: str | None = None
    """The key that the row had before, if the message changes it."""


@dataclass(frozen=True, slots=True)
class StepTrace:
    """What a function made of one message."""

    node: str
    function: str
    outcome: str
    """passed | changed | dropped | refused | not asked | not reached | not known"""
    out: Sequence[Passing] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SinkTrace:
    """What became of one message on its way to one sink, and where that is known from."""

    sink: str
    outcome: str
    """acknowledged | left out | dropped | pending | dead | replayed | given up | skipped by operator | missed"""
    detail: str
    steps: Sequence[StepTrace] = ()
    watermark: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """What became of one message at every node. `entry` is None if compaction has removed the message."""

    pipeline: str
    offset: int
    entry: LogEntry | None
    sinks: Sequence[SinkTrace]
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Stepped:
    """What happened when a message was delivered by hand."""

    sink: str
    offset: int
    ns: str
    outcome: str
    """delivered | dropped | refused | dead"""
    error: str | None = None
    node: str | None = None

    @property
    def words(self) -> str:
        """As a sentence."""
        words = {
            "delivered": "delivered",
            "dropped": "acknowledged without being sent: a filter, a function or an operator left it out",
            "dead": "refused, and kept among the dead letters",
            "refused": f"refused by '{self.node}': {self.error}",
        }
        return f"{self.sink}: message {self.offset} of '{self.ns}' {words[self.outcome]}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What happened when a dead letter was sent again."""

    number: int
    sink: str
    offset: int
    outcome: str
    """replayed | refused"""
    error: str | None = None
    node: str | None = None


def passing(record: Record) -> Passing:
    """A message as it leaves the log."""
    return Passing(
        offset=record.offset,
        ts=record.ts,
        mode=record.mode.word,
        op=record.op.word,
        ns=record.ns,
        key=record.key.decode(errors="replace") if record.key is not None else None,
        data=record.data.decode(errors="replace"),
        old_key=record.old_key.decode(errors="replace") if record.old_key is not None else None,
    )


def entry(record: Record) -> LogEntry:
    """A message of the log as the operator reads it."""
    shown = passing(record)
    return LogEntry(
        shown.offset, shown.ts, shown.mode, shown.op, shown.ns, shown.key, shown.data, shown.old_key
    )
