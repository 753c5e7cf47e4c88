"""The pipeline files that the console needs for what only they know: functions, filters and targets.

Files that were named when the console was started come first. Of a data directory, which nobody else can write to,
the file that the last run on this machine was given serves as well; what a journal behind a broker names is never run.
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
        if self._recorded and run is not None and run.file and run.host == socket.gethostname():
            return run.file
        return None

    def load(self, pipeline: str, control: ControlState) -> Pipeline:
        """The pipeline as its file has it now."""
        place = self.file(pipeline, control)
        if place is None:
            raise UsageError(
                f"the file of pipeline '{pipeline}' is not known to the console, and its functions are in it",
                hint="name it when you start the console: penstock console FILE",
            )
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
