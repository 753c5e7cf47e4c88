"""What the tasks of a batch do in Spark's workers, and what they tell (`batch.py` says when).

A `StageTask` is the last pass over a partition: the functions behind the last DataFrame function, then the sink's
stager. Where there is no DataFrame function it is the only pass, and reads the log, too (`LogRead`). A `SingleTask`
delivers a whole range by itself, one message at a time. Both are pickled, and find the settings of their sink where the
runner has put them (`sealed.py`). A refused message is a result, not an exception, since Spark would retry a raised one
four times.
"""

from __future__ import annotations

import dataclasses
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import Refusal, Stage, Staged
from penstock.base import faults
from penstock.functions.chain import Refused, StepCount
from penstock.log.offsets import OffsetLog
from penstock.spark.options import SourceOptions
from penstock.spark.reach import Reach
from penstock.spark.sealed import Sealed, discreet
from penstock.spark.single import Delivered, SingleDelivery, now_us
from penstock.spark.transform import Segment, highest_offsets, summed, without

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition


@dataclass(frozen=True, slots=True)
class Task:
    """What a task of a batch tells; free of message bodies. `more` says that it refused more than it reports."""

    staged: Staged
    counts: Mapping[str, StepCount] = field(default_factory=dict)
    more: bool = False
    read: int = 0
    """Rows that it was given, or has read itself."""


@dataclass(frozen=True, slots=True)
class LogRead:
    """Messages [begin, end) of the log, for tasks that read it themselves, a range each: no message passes the JVM."""

    options: SourceOptions
    ranges: Sequence[InputPartition]
    begin: int
    end: int
    lanes: int = 0
    """If there are lanes, each task reads all ranges and takes the messages of its own."""

    def of_frame(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `rows`, for `mapInArrow` over the numbers."""
        for batch in numbers:
            yield from self.rows(batch.column(0).to_pylist())

    def rows(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """The messages in the ranges of these numbers; or those of the lanes of these numbers."""
        for number in numbers:
            if not self.lanes:
                yield from self._read(self.ranges[number])
                continue
            for part in self.ranges:
                for rows in self._read(part):
                    yield rows if self.lanes == 1 else in_lane(rows, number, self.lanes)

    def _read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark.formats import read_range

        return map(self._within, read_range(self.options, None, part, stream=True))

    def _within(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the batch: in a range they are in the order of their offsets."""
        import numpy as np

        offsets = rows.column("offset").to_numpy()
        first, last = np.searchsorted(offsets, [self.begin, self.end])
        return rows.slice(first, last - first)


def in_lane(rows: pa.RecordBatch, lane: int, lanes: int) -> pa.RecordBatch:
    """The rows whose key belongs to this lane: by namespace and key, so wherever and whenever it is asked."""
    import pyarrow as pa

    keys = rows.column("key").to_pylist()
    named = zip(rows.column("ns").to_pylist(), keys, strict=True)
    return rows.filter(pa.array([lane_of(ns, key, lanes) == lane for ns, key in named], pa.bool_()))


def lane_of(ns: str, key: str | None, lanes: int) -> int:
    """A message without a key goes by its namespace alone."""
    return zlib.crc32(f"{ns}\0{key or ''}".encode()) % lanes


class StageTask:
    """The last pass of a batch, in a worker: the chain, then the sink's stager. Yields one report."""

    def __init__(
        self,
        segment: Segment,
        sealed: Sealed,
        directory: Path,
        skip_below: int,
        sink: str,
        limit: int,
        leave_out: Sequence[int],
        reads: LogRead | None = None,
        plan: str = "",
        begin: int = 0,
        shared: bool = False,
    ) -> None:
        """`reads` is for tasks that read the log themselves (`of_ranges`); all others are given rows."""
        self._segment = segment
        self._plan = plan
        self._begin = begin
        self._shared = shared
        self._reads = reads
        self._sealed = sealed
        self._directory = directory
        self._skip_below = skip_below
        self._sink = sink
        self._limit = limit
        self._leave_out = tuple(leave_out)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"report": [self._report(batches)]})

    def of_ranges(self, numbers: Iterable[int]) -> Iterator[str]:
        """For a job that is none of Spark SQL: there is nothing to plan where no row passes the JVM."""
        assert self._reads is not None
        yield self._report(self._reads.rows(numbers))

    def _report(self, batches: Iterator[pa.RecordBatch]) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        name = f"{context.partitionId():05d}-{context.attemptNumber()}-{uuid.uuid4().hex[:8]}"
        tally = _Tally(self._limit)
        with discreet(), faults.step("stage"):
            stage = Stage(
                self._directory, name, self._skip_below, self._plan, context.partitionId(), self._begin, self._shared
            )  # fmt: skip
            staged = self._sealed.open().stager().stage(stage, self._rows(batches, tally))
        by_the_sink = [dataclasses.replace(refusal, node=self._sink) for refusal in staged.refused]
        refused = sorted([*by_the_sink, *tally.refused], key=lambda refusal: refusal.offset)
        report = dataclasses.replace(
            staged, refused=refused[: self._limit], namespaces={**staged.namespaces, **tally.namespaces}
        )
        more = tally.more or len(refused) > self._limit
        return msgspec.json.encode(Task(report, tally.counts, more=more, read=tally.read)).decode()

    def _rows(self, batches: Iterator[pa.RecordBatch], tally: _Tally) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            tally.count(batch)
            batch = without(batch, self._leave_out)
            tally.refuse(self._made_up(batch))
            applied = self._segment.chain.apply(batch, self._segment.accept)
            tally.refuse(applied.refused)
            tally.counts = summed(tally.counts, applied.counts)
            yield applied.batch

    def _made_up(self, batch: pa.RecordBatch) -> list[Refused]:
        """A row from before the batch, which the sink would take for one that it has; whoever stages refuses it."""
        import pyarrow.compute as pc

        behind = self._segment.chain.behind
        if behind is None or not batch.num_rows:
            return []
        lowest: int = pc.min(batch.column("offset")).as_py()
        return [Refused(lowest, "", "of no message", behind)] if lowest < self._begin else []


class _Tally:
    """What a task saw before anything was filtered: the highest offset of each namespace, and refusals."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.namespaces: dict[str, int] = {}
        self.refused: list[Refusal] = []
        self.counts: dict[str, StepCount] = {}
        self.more = False
        self.read = 0

    def count(self, batch: pa.RecordBatch) -> None:
        self.read += batch.num_rows
        for ns, offset in highest_offsets(batch).items():
            self.namespaces[ns] = max(offset, self.namespaces.get(ns, -1))

    def refuse(self, refused: Sequence[Refused]) -> None:
        new = [Refusal(r.offset, r.ns, r.error, r.node) for r in refused]
        self.refused = sorted([*self.refused, *new], key=lambda refusal: refusal.offset)
        self.more = self.more or len(self.refused) > self._limit
        del self.refused[self._limit :]


class SingleTask:
    """One task that delivers what it gets one message at a time. Yields one report."""

    def __init__(
        self,
        segment: Segment,
        pipeline: str,
        sink_name: str,
        sealed: Sealed,
        reach: Reach,
        log_id: str,
        scratch: Path,
        end: int,
    ) -> None:
        self._segment = segment
        self._pipeline = pipeline
        self._sink_name = sink_name
        self._sealed = sealed
        self._reach = reach
        self._log_id = log_id
        self._scratch = scratch
        self._end = end

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with discreet():
            delivered = self._delivered(batches)
        yield pa.RecordBatch.from_pydict({"report": [msgspec.json.encode(delivered).decode()]})

    def _delivered(self, batches: Iterator[pa.RecordBatch]) -> Delivered:
        offsets = OffsetLog(self._reach.client(), self._pipeline, self._sink_name, now_us())
        delivery = SingleDelivery(
            sink_name=self._sink_name,
            sink=self._sealed.open(),
            accept=self._segment.accept,
            steps=self._segment.chain.steps,
            behind=self._segment.chain.behind,
            offsets=offsets,
            log_id=self._log_id,
            scratch=self._scratch,
        )
        with delivery:
            return delivery.deliver(batches, self._end)
