"""A source that gives what a test tells it to, and a sink that writes down what it was given and how.

The sink's target is a directory: `rows.jsonl` has each row with its keys, `batches` the first and last offset of each
publishing, `told` what the publisher knew of the schema of the first namespace. With a file `poison` in it, publishing
more than one message is refused, so that these go one at a time, in a task.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from penstock.adaptors.base import (
    Adaptor,
    Batch,
    Guarantee,
    Order,
    Publisher,
    Schemas,
    Sink,
    SinkPosition,
    Source,
    Stage,
    Staged,
    Stager,
)
from penstock.adaptors.staging import Tally
from penstock.base.errors import RefusedError
from penstock.log.message import Resume

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Given(Adaptor):
    """Reads these batches, once."""

    name: ClassVar[str] = "given"
    description: ClassVar[str] = "for tests"
    reads: ClassVar[bool] = True
    batches: Sequence[Batch] = field(default=(), compare=False)

    def source(self) -> Source:
        return GivenSource(self.batches)


class GivenSource(Source):
    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches

    def namespaces(self) -> Sequence[str]:
        return sorted({message.ns for batch in self._batches for message in batch.messages})

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        return iter(self._batches if not resume else ())


@dataclass(frozen=True)
class Witness(Adaptor):
    """Writes into `directory`."""

    name: ClassVar[str] = "witness"
    description: ClassVar[str] = "for tests"
    writes: ClassVar[bool] = True
    directory: Path = Path()

    def sink(self) -> Sink:
        return WitnessSink(self.directory)


class WitnessSink(Sink):
    order = Order.TOTAL
    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def stager(self) -> Stager:
        return WitnessStager()

    def publisher(self) -> Publisher:
        return WitnessPublisher(self._directory, self.schemas, self.name)

    def staging(self, scratch: Path) -> Path:
        return scratch


class WitnessStager(Stager):
    def stage(self, stage: Stage, rows: Iterator[pa.RecordBatch]) -> Staged:
        tally = Tally(stage.skip_below)
        path = stage.directory / stage.name
        with path.open("w") as file:
            for batch in rows:
                fresh = tally.fresh(batch)
                tally.add(fresh)
                for row in fresh.select(["offset", "ns", "op", "key", "old_key", "data"]).to_pylist():
                    file.write(json.dumps(row) + "\n")
        return tally.staged(str(path), path.stat().st_size)


class WitnessPublisher(Publisher):
    def __init__(self, directory: Path, schemas: Schemas, name: str) -> None:
        self._directory = directory
        self._schemas = schemas
        self._name = name

    def open(self, start: SinkPosition) -> SinkPosition | None:
        return None

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        if (self._directory / "poison").exists() and sum(part.messages for part in parts) > 1:
            raise RefusedError("too much at once")
        rows = [line for part in parts for line in Path(part.part).read_text().splitlines(keepends=True)]
        with (self._directory / "rows.jsonl").open("a") as file:
            file.writelines(rows)
        with (self._directory / "batches").open("a") as file:
            print(min(part.first for part in parts), max(part.last for part in parts), file=file)
        with (self._directory / "told").open("a") as file:
            print(self._name, self._schemas(json.loads(rows[0])["ns"]), file=file)

    def close(self) -> None:
        return


def rows(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "rows.jsonl").read_text().splitlines()]


def batches(directory: Path) -> list[tuple[int, int]]:
    """The first and last offset of each publishing."""
    lines = (directory / "batches").read_text().splitlines()
    return [(int(first), int(last)) for first, last in map(str.split, lines)]


def told(directory: Path) -> set[str]:
    return set((directory / "told").read_text().splitlines())
