"""The pipeline files that the console needs for what only they know: functions, filters and targets.

Files that were named when the console was started come first. Of a data directory, which nobody else can write to,
the file that the last run on this machine was given serves as well; what a journal behind a broker names is never run.
Relative places in a file count from the directory that a program was started in, so a recorded file serves only a
console that was started where the run was.

A file is read anew each time, with the modules beside it: it may have been mended meanwhile.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.base.errors import UsageError
from penstock.log.control import ControlState
from penstock.pipeline.definition import Pipeline
from penstock.pipeline.loading import load_pipeline

Load = Callable[[Path, str | None], Pipeline]


class Definitions:
    """May be used by several threads."""

    def __init__(
        self,
        given: Mapping[str, str],
        *,
        recorded: bool,
        settings: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        """`given` are files by the names of their pipelines; `recorded`: whether to believe what runs recorded."""
        self._given = dict(given)
        self._recorded = recorded
        self._settings, self._secrets = settings, secrets
        self._lock = threading.Lock()

    def file(self, pipeline: str, control: ControlState) -> str | None:
        """Where the pipeline is defined, as FILE or FILE:NAME; None if that is not known."""
        if pipeline in self._given:
            return self._given[pipeline]
        run = control.run
        if run is None or not run.file or self._obstacle(control) is not None:
            return None
        return run.file

    def problem(self, pipeline: str, control: ControlState) -> UsageError | None:
        """Why the file cannot be had; None if it can."""
        if self.file(pipeline, control) is not None:
            return None
        why = self._obstacle(control) or "no run has recorded it"
        return UsageError(
            f"the file of pipeline '{pipeline}', with its functions and targets, is not at hand: {why}",
            hint="name it when you start the console: penstock console FILE",
        )

    def _obstacle(self, control: ControlState) -> str | None:
        """Why what the last run recorded does not serve."""
        run = control.run
        if not self._recorded:
            return "what is recorded behind a broker is not run"
        if run is not None and run.host != socket.gethostname():
            return f"its last run was on {run.host}"
        if run is not None and run.cwd and Path(run.cwd) != Path.cwd():
            return f"its last run was started in {run.cwd}, and this console was not"
        return None

    def load(self, pipeline: str, control: ControlState) -> Pipeline:
        """The pipeline as its file has it now."""
        place = self.file(pipeline, control)
        if place is None:
            raise self.problem(pipeline, control) or UsageError(f"no file of '{pipeline}'")
        path, name = split(place)
        with self._lock:
            _forget_beside(path)
            return load_pipeline(path, name or pipeline, settings=self._settings, secrets=self._secrets)


def split(place: str) -> tuple[Path, str | None]:
    """`FILE` or `FILE:NAME`; a file whose own name has a colon is that file."""
    file, colon, name = place.rpartition(":")
    if not colon or Path(place).exists():
        return Path(place), None
    return Path(file), name


def _forget_beside(path: Path) -> None:
    """Have modules that lie beside the file imported anew."""
    directory = path.resolve().parent
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name != "__main__" and _is_beside(Path(file), directory):
            del sys.modules[name]


def _is_beside(file: Path, directory: Path) -> bool:
    resolved = file.resolve()
    return directory in resolved.parents and "site-packages" not in resolved.parts
