"""A file sink whose target refuses whole batches that hold a poisonous document, without saying which.

As bulk interfaces of real systems do. The refused documents and whether the target is away are told by files, so that
a test can change them while a run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from penstock.adaptors.base import Adaptor, Publisher, Sink, SinkPosition, Staged
from penstock.adaptors.file.sink import FilePublisher, FileSink
from penstock.base.errors import AwayError, RefusedError


@dataclass(frozen=True)
class Picky(Adaptor):
    """Writes `directory/out.jsonl`; `directory/poison` holds a text that it refuses, `directory/away` shuts it."""

    name: ClassVar[str] = "picky"
    description: ClassVar[str] = "for tests"
    writes: ClassVar[bool] = True
    directory: Path = Path()

    def sink(self) -> Sink:
        return PickySink(self.directory)


class PickySink(FileSink):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "out.jsonl")
        self._directory = directory

    def publisher(self) -> Publisher:
        return PickyPublisher(self._directory)


class PickyPublisher(FilePublisher):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "out.jsonl")
        self._directory = directory

    def open(self, start: SinkPosition) -> SinkPosition:
        self._answer()
        return super().open(start)

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        self._answer()
        poison = self._directory / "poison"
        texts = [Path(part.part).read_text() for part in parts if part.part]
        with (self._directory / "attempts").open("a") as file:
            file.writelines(f"{text.count(chr(10))}\n" for text in texts)
        if poison.exists() and any(poison.read_text() in text for text in texts):
            raise RefusedError("the target refused the batch")
        super().publish(parts, position)

    def _answer(self) -> None:
        if (self._directory / "away").exists():
            raise AwayError("the target does not answer")


def attempts(directory: Path) -> list[int]:
    """How many documents each attempt to publish had."""
    return [int(line) for line in (directory / "attempts").read_text().split()]
