"""The signs that a run leaves in the control journal: that it began, lives and ended, and whom it does not feed.

Who has its data directory sees much more in its file (`progress.py`). For the others, behind a broker, these signs must
do: by them they know that it runs, and which of its sinks stand still, so that these can be edited meanwhile.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from penstock.base import process
from penstock.log.control import RUN_BEAT, RUN_BEGIN, RUN_END, Control, ControlEntry, Detail, Standing
from penstock.pipeline.clock import now_us
from penstock.pipeline.definition import Pipeline
from penstock.pipeline.graph import as_values, graph_of
from penstock.pipeline.identity import source_identity


class Signs:
    """Of one run. `beat` may come from a thread of its own."""

    def __init__(self, control: Control, run: str) -> None:
        self.http: str | None = None
        """Where its `/status` and `/metrics` are."""
        self._control = control
        self._run = run
        self._standing: Mapping[str, Standing] = {}
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
            self._beat(self._standing)

    def stand(self, standing: Mapping[str, Standing]) -> None:
        """Tell which sinks stand still, at once if that has changed: somebody may wait for it."""
        with self._lock:
            if standing != self._standing:
                self._beat(standing)
                self._standing = standing

    def end(self, exit_code: int) -> None:
        self._note(RUN_END, {"exit_code": exit_code})

    def _beat(self, standing: Mapping[str, Standing]) -> None:
        told: Detail = {"standing": msgspec.to_builtins(standing)} if standing else {}
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
