"""`discard`: a sink that counts what it is given and keeps nothing.

For measuring a source and functions by themselves, and for pipelines under construction. It has no position,
so after a crash it is given some messages again, which nobody can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from penstock.adaptors.base import (
    Adaptor,
    Guarantee,
    Order,
    Publisher,
    Sink,
    SinkPosition,
    Stage,
    Staged,
    Stager,
)
from penstock.adaptors.staging import Tally

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Discard(Adaptor):
    """The adaptor; it has no settings."""

    name: ClassVar[str] = "discard"
    description: ClassVar[str] = "a sink that counts messages and keeps none, for measuring and trying out"
    writes: ClassVar[bool] = True

    def sink(self) -> Sink:
        return DiscardSink()


class DiscardSink(Sink):
    order = Order.NONE
    guarantee = Guarantee.AT_LEAST_ONCE

    def stager(self) -> Stager:
        return DiscardStager()

    def publisher(self) -> Publisher:
        return DiscardPublisher()

    def staging(self, scratch: Path) -> Path:
        return scratch


class DiscardStager(Stager):
    """Counts; `bytes` are those of the data."""

    def stage(self, stage: Stage, rows: Iterator[pa.RecordBatch]) -> Staged:
        import pyarrow.compute as pc

        tally = Tally(stage.skip_below)
        size = 0
        for batch in rows:
            fresh = tally.fresh(batch)
            tally.add(fresh)
            size += pc.sum(pc.binary_length(fresh.column("data"))).as_py() or 0
        return tally.staged("", size)


class DiscardPublisher(Publisher):
    """Has nothing to open, publish or close."""

    def open(self, start: SinkPosition) -> SinkPosition | None:
        return None

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        return

    def close(self) -> None:
        return
