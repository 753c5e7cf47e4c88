"""The signs that a run leaves in the control journal: that it began, lives and ended, and how some of its sinks stand.

Who has its data directory sees much more in its file (`progress.py`). For the others, behind a broker, these signs must
do: by them they know that it runs, which of its sinks stand still, so that these can be edited meanwhile, and which
two-phase commits take their time, with their votes. That is told when it changes. What changes all the time, the
counts of the functions and Spark's last batches, goes with the beats alone: a journal keeps what it is told.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.base import process
from penstock.base.errors import PenstockError
from penstock.base.secrets import mask
from penstock.log.control import (
    RUN_BEAT,
    RUN_BEGIN,
    RUN_END,
    STANDING,
    Control,
    ControlEntry,
    Detail,
    Standing,
)
from penstock.log.transaction import Transaction
from penstock.pipeline.clock import now_us
from penstock.pipeline.definition import Pipeline
from penstock.pipeline.errortext import first_line
from penstock.pipeline.graph import as_values, graph_of
from penstock.pipeline.identity import source_identity
from penstock.pipeline.progress import Progress

_BATCHES = 3
"""As many of each query are told in a beat."""


class Sink(Protocol):
    """What is told of a sink, or of several that commit together (`supervisor.SupervisedSink`)."""

    state: str
    error: PenstockError | None

    @property
    def names(self) -> frozenset[str]: ...

    @property
    def transactions(self) -> Mapping[str, Transaction]: ...


class Signs:
    """Of one run, whose moment `look` gives. `beat` may come from a thread of its own."""

    def __init__(self, control: Control, run: str, look: Callable[[], Progress]) -> None:
        self.http: str | None = None
        """Where its `/status` and `/metrics` are."""
        self._control = control
        self._run = run
        self._look = look
        self._told: Detail = {}
        self._lock = threading.Lock()

    def begin(self, pipeline: Pipeline) -> None:
        what: Detail = {
            "source": source_identity(pipeline),
            "file": pipeline.file,
            "cwd": str(Path.cwd()),
            "graph": as_values(graph_of(pipeline)),
        }
        self._note(RUN_BEGIN, {**self._who(), **what})

    def beat(self) -> None:
        """To be given every few seconds."""
        with self._lock:
            self._beat({**self._told, **moment(self._look())})

    def tell(self, sinks: Sequence[Sink]) -> None:
        """Tell how the sinks stand, at once if that has changed: somebody may wait for it."""
        told = standing(sinks, now_us())
        with self._lock:
            if told != self._told:
                self._beat(told)
                self._told = told

    def end(self, exit_code: int) -> None:
        self._note(RUN_END, {"exit_code": exit_code})

    def _beat(self, told: Detail) -> None:
        self._note(RUN_BEAT, {**self._who(), **told})

    def _who(self) -> Detail:
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "http": self.http,
            "process": process.identity(),
        }

    def _note(self, action: str, detail: Detail) -> None:
        entry = ControlEntry(now_us(), "penstock run", action, None, {"run": self._run, **detail})
        self._control.append(entry)


def standing(sinks: Sequence[Sink], now: int) -> Detail:
    """The sinks that stand still at `now` (us), and the transactions that have lasted for a while by then."""
    still = {
        name: Standing(sink.state, mask(first_line(sink.error)) if sink.error else None)
        for sink in sinks
        if sink.state in STANDING
        for name in sorted(sink.names)
    }
    in_flight = {
        name: transaction
        for sink in sinks
        for name, transaction in sink.transactions.items()
        if transaction.lasts(now)
    }
    told = {"standing": still, "in_flight": in_flight}
    return {name: msgspec.to_builtins(what) for name, what in told.items() if what}


def moment(progress: Progress) -> Detail:
    """What is another thing with every batch."""
    spark = progress.spark
    if spark is not None:
        queries = [replace(query, batches=query.batches[-_BATCHES:]) for query in spark.queries]
        spark = replace(spark, queries=queries)
    functions = [node for node in progress.nodes if node.kind == "function"]
    return {"functions": msgspec.to_builtins(functions), "spark": msgspec.to_builtins(spark)}
