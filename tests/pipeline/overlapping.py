"""A file that takes its time to publish, and may fail at it: for tests of batches that overlap.

In `directory`: `out.jsonl` is the target, `seen` has a line for each batch published, with how many others were being
staged meanwhile; it waits for one, unless it is the last. `fail` names a kind of error and the first message of the
batch that it is for, once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from penstock.adaptors.base import Adaptor, Publisher, Sink, SinkPosition, Staged
from penstock.adaptors.file.sink import FilePublisher, FileSink, staging_of
from penstock.base.errors import AwayError, PenstockError, RefusedError

_ERRORS: dict[str, type[PenstockError]] = {
    "away": AwayError,
    "refused": RefusedError,
    "other": PenstockError,
}


@dataclass(frozen=True)
class Overlapping(Adaptor):
    name: ClassVar[str] = "overlapping"
    description: ClassVar[str] = "for tests"
    writes: ClassVar[bool] = True
    directory: Path = Path()
    messages: int = 0
    patience: float = 2.0

    def sink(self) -> Sink:
        return OverlappingSink(self)


class OverlappingSink(FileSink):
    def __init__(self, settings: Overlapping) -> None:
        super().__init__(settings.directory / "out.jsonl")
        self._settings = settings

    def publisher(self) -> Publisher:
        return OverlappingPublisher(self._settings)


class OverlappingPublisher(FilePublisher):
    def __init__(self, settings: Overlapping) -> None:
        super().__init__(settings.directory / "out.jsonl")
        self._directory, self._patience = settings.directory, settings.patience
        self._messages = settings.messages

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        begin = min(part.first for part in parts)
        later = self._staged_meanwhile(begin) if position.watermark < self._messages else []
        self._fail(begin)
        super().publish(parts, position)
        with (self._directory / "seen").open("a") as seen:
            seen.write(f"{begin} {len(later)}\n")

    def _staged_meanwhile(self, begin: int) -> list[int]:
        """The batches behind this one that are being staged; waits for one to appear."""
        deadline = time.monotonic() + self._patience
        while True:
            names = [entry.name for entry in staging_of(self._directory / "out.jsonl").glob("*-*-*")]
            later = [int(name.partition("-")[0]) for name in names if int(name.partition("-")[0]) > begin]
            if later or time.monotonic() > deadline:
                return later
            time.sleep(0.01)

    def _fail(self, begin: int) -> None:
        told = self._directory / "fail"
        if not told.exists():
            return
        kind, at = told.read_text().split()
        if int(at) == begin:
            told.unlink()
            raise _ERRORS[kind](f"the batch from {begin} on")


def seen(directory: Path) -> list[tuple[int, int]]:
    """The first message of each batch that was published, and how many others were being staged."""
    lines = (directory / "seen").read_text().splitlines()
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines]
