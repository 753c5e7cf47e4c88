"""What a running pipeline tells about itself: while it runs, and when it has ended.

The runner makes these values, hands each `Progress` to whoever asked for reports, and leaves the newest in a file
of the data directory, so that `status` and `top` can show it. For a sink,
`messages_in = delivered + dropped + dead + pending` holds at the end of every run; `Summary.adds_up` says whether
it did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.base.errors import UNREADABLE
from penstock.log.transaction import Transaction


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far the copy of a namespace is: rows read, of about `of`, at `rate` rows a second, `left` seconds to go.

    None where nobody knows.
    """

    ns: str
    rows: int
    of: int | None
    rate: float
    left: float | None


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """A source, function or sink at one moment. `rate` is in messages a second, `lag` and `pending` in messages.

    A function that leads to several sinks works once for each of them, and counts so. `dead` of a source is what it
    could make no message of.
    """

    node: str
    kind: str
    """source | function | sink"""
    adaptor: str
    """Of a function: which one it is."""
    state: str
    """A source: running | paused | away | stopped | done.

    A sink: starting | running | waiting | one at a time | retrying | away | restarting | paused | detached | stopped |
    done."""
    messages_in: int = 0
    delivered: int = 0
    dropped: int = 0
    dead: int = 0
    pending: int = 0
    rate: float = 0.0
    lag: int = 0
    batch_ms: float | None = None
    error: str | None = None
    lag_bytes: int = 0
    lag_seconds: float = 0.0
    """How long ago the oldest message that a sink lacks was logged."""
    max_lag_bytes: int | None = None
    max_lag_seconds: float | None = None
    gauges: Mapping[str, float] = field(default_factory=dict)
    """Of a source: what it measures at the outside system, such as `held_back_bytes`.

    Of a sink that votes: `aborts`, the votes to abort in a row."""
    copies: Sequence[CopyProgress] = ()
    """Of a source: the copies under way."""
    transaction: Transaction | None = None
    """Of a sink that votes: the two-phase commit on its way."""

    @property
    def out(self) -> int:
        """What left the node: of a function what it let through, of a sink what it delivered."""
        return self.delivered


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A micro-batch that is done: the messages [begin, end), and where its time went, in ms by Spark's own steps."""

    ended: int
    """When, in microseconds since 1970."""
    begin: int
    end: int
    delivered: int
    dropped: int
    dead: int
    rows: int
    seconds: float
    steps: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """The query of one sink, and its last batches, the newest last."""

    sink: str
    name: str
    active: bool
    batches: Sequence[BatchProgress] = ()


@dataclass(frozen=True, slots=True)
class SparkProgress:
    """The Spark session of a run. `ui` is the address of Spark's own page; None while that is switched off."""

    version: str
    master: str
    app: str
    ui: str | None
    queries: Sequence[QueryProgress] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """The whole pipeline at one moment. `elapsed` counts seconds since the start."""

    pipeline: str
    elapsed: float
    phase: str
    """opening | starting spark | running | stopping"""
    log_next: int
    nodes: Sequence[NodeProgress] = ()
    log_bytes: int = 0
    log_limit: int | None = None
    readers: str | None = None
    """Why nothing is read at the moment; None if nothing is in the way."""
    spark: SparkProgress | None = None
    """None while Spark does not run."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """What a run leaves in `runs/PIPELINE.json`: who it is, and how it stands. Times in microseconds since 1970."""

    run: str
    pid: int
    host: str
    started: int
    written: int
    progress: Progress
    http: str | None = None
    """Where its `/status` and `/metrics` are, as HOST:PORT."""
    exit_code: int | None = None
    """Set once it has ended in order."""


def run_file(directory: Path, pipeline: str) -> Path:
    return directory / "runs" / f"{pipeline}.json"


def publish(directory: Path, content: RunFile) -> None:
    """Leave it for others to read. A view of the moment, so never synced; without room for it nothing is lost."""
    path = run_file(directory, content.progress.pipeline)
    aside = path.with_suffix(".partial")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    aside.write_bytes(msgspec.json.encode(content))
    aside.rename(path)


def published(directory: Path, pipeline: str) -> RunFile | None:
    """What the newest run left; None if there is none that reads."""
    try:
        return msgspec.json.decode(run_file(directory, pipeline).read_bytes(), type=RunFile)
    except (FileNotFoundError, *UNREADABLE):
        return None


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
    """How a run ended. `read` counts the messages that this run appended to the log.

    `bad` counts what the source could make no message of, and is kept among the dead letters: it never was in the log,
    so no sink has to account for it.
    """

    pipeline: str
    elapsed: float
    read: int
    log_next: int
    sinks: Sequence[SinkSummary]
    adds_up: bool
    exit_code: int
    message: str | None = None
    bad: int = 0
