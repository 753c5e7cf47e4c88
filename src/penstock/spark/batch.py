"""One micro-batch, from a range of the log to a moved offset (DESIGN 5).

1. Know the range [from, to) of the log: where the sink stands, and the end that Spark planned.
2. Filter and transform (`transform.py`).
3. Stage: tasks write under names of their own and report; no message body reaches this process.
4. Decide: rows that Spark read must be all messages of the range, each delivered, dropped or refused. A
   refused message ends the batch before it: what lies ahead of it is staged again and published, then the
   sink stops.
5. Publish: the sink's publisher makes the staged rows visible and moves the position inside the target.
6. Commit: the offset log moves.

A crash between 5 and 6 publishes nothing twice: the target's own position says what it has, and a batch is
recognised by its offsets, never by Spark's number for it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import Order, Publisher, Refusal, Sink, SinkPosition, Stage, Staged, Stager
from penstock.base import faults
from penstock.base.errors import CorruptError, PenstockError, RefusedError
from penstock.functions.chain import Step
from penstock.log.message import ByteOffset, MessageOffset
from penstock.log.offsets import Commit, OffsetLog
from penstock.log.positions import LogPoint
from penstock.spark.transform import (
    REPORTED_REFUSALS,
    Earlier,
    FrameStep,
    Seen,
    Segment,
    highest_offsets,
    observed,
    segments,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from penstock.functions.chain import NamespaceMatcher, Refused


class AccountError(PenstockError):
    """What Spark read is not what the log holds. Nothing of the batch was published."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch came to."""

    begin: LogPoint
    end: LogPoint
    delivered: int
    dropped: int
    rows: int
    seconds: float


class BatchRunner:
    """Carries out the batches of one sink, one at a time, in the runner's process."""

    def __init__(
        self,
        *,
        sink_name: str,
        sink: Sink,
        accept: NamespaceMatcher,
        steps: Sequence[Step | FrameStep],
        offsets: OffsetLog,
        log_id: str,
        scratch: Path,
        done: Callable[[BatchReport], None],
    ) -> None:
        self._name = sink_name
        self._sink = sink
        self._passes = segments(steps, accept)
        self._offsets = offsets
        self._log_id = log_id
        self._staging = sink.staging(scratch)
        self._done = done
        self._publisher: Publisher | None = None
        self._in_target = 0
        self._at = LogPoint(MessageOffset(0), ByteOffset(0))
        self._checkpoint = Path()
        self._busy = threading.Lock()
        self._stopping = False
        self.failure: BaseException | None = None

    @property
    def watermark(self) -> int:
        return self._offsets.state.commit.watermark

    def open(self, log_end: int) -> None:
        """Open the target and learn what it has; before the first batch, and after any failure.

        A target that has less than was acknowledged, or more than the log has messages, belongs to another time
        of this pipeline: one of the two was brought back from a copy.
        """
        self.close()
        self.failure = None
        self._stopping = False
        commit = self._offsets.state.commit
        publisher = self._sink.publisher()
        held = publisher.open(SinkPosition(self._log_id, commit.generation, commit.watermark))
        self._publisher = publisher
        if held is not None and held.watermark < commit.watermark:
            raise CorruptError(
                f"the target of sink '{self._name}' has the messages below {held.watermark}, "
                f"but those below {commit.watermark} were acknowledged",
                where=self._name,
                position=held.watermark,
                hint="an older copy was put in its place: bring the newer one back",
            )
        if held is not None and held.watermark > log_end:
            raise CorruptError(
                f"the target of sink '{self._name}' has the messages below {held.watermark}, "
                f"but the log ends at {log_end}",
                where=self._name,
                position=log_end,
                hint="the data directory is an older copy: bring the newer one back, or move the target away",
            )
        self._in_target = held.watermark if held is not None else 0

    def start(self, at: LogPoint, checkpoint: Path) -> None:
        """Tell where the query begins, and which checkpoint directory it was given."""
        self._at = at
        self._checkpoint = checkpoint

    def stop(self, patience: float) -> bool:
        """Let no further batch begin, and wait for the one under way; False if it takes too long."""
        self._stopping = True
        if not self._busy.acquire(timeout=patience):
            return False
        self._busy.release()
        return True

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
        shutil.rmtree(self._staging, ignore_errors=True)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Called by Spark for each batch; an exception ends the query."""
        with self._busy:
            if self._stopping:
                return
            try:
                self._run(frame, batch_id)
            except BaseException as error:
                self.failure = error
                raise

    def _run(self, frame: DataFrame, batch_id: int) -> None:
        started = time.monotonic()
        begin, end = self._at, planned_end(self._checkpoint, batch_id)
        if end.offset == begin.offset:
            self._at = end
            return
        refused: Refusal | None = None
        parts = self._staged(frame, begin, end)
        while (first := _first_refusal(parts)) is not None:
            refused = first
            end = LogPoint(MessageOffset(first.offset), end.byte)
            parts = self._staged(frame, begin, end) if end.offset > begin.offset else []
        report = self._publish(parts, begin, end, started)
        self._at = end
        self._done(report)
        if refused is not None:
            raise refusal_error(self._name, refused)

    def _staged(self, frame: DataFrame, begin: LogPoint, end: LogPoint) -> list[Staged]:
        """Steps 2 to 4. Plans that keep the order of the log need no sort; others are staged anew, sorted.

        Also where the sink asks for no order but a DataFrame function may have spread one message over tasks,
        which would count it more than once.
        """
        parts = self._stage(frame, begin, end, sort=False)
        matters = self._sink.order is not Order.NONE or len(self._passes) > 1
        if matters and not _in_order(parts):
            parts = self._stage(frame, begin, end, sort=True)
        return sorted(parts, key=lambda part: part.first)

    def _stage(self, frame: DataFrame, begin: LogPoint, end: LogPoint, *, sort: bool) -> list[Staged]:
        from pyspark.sql import Observation
        from pyspark.sql import functions as sf

        directory = self._staging / f"{begin.offset}-{end.offset}-{uuid.uuid4().hex[:8]}"
        directory.mkdir(mode=0o700, parents=True)
        seen = Observation()
        # Cuts only if a refused message ends the batch.
        whole = frame.where(sf.col("offset") < end.offset)
        frame = whole.observe(seen, sf.count(sf.lit(1)).alias("messages"))
        earlier = Earlier(frame, self._passes)
        frame = earlier.frame
        if sort:
            # In one task, since a range sort would run the plan twice, and count twice what it reads.
            frame = frame.repartition(1).sortWithinPartitions("offset")
        task = _StageTask(
            self._passes[-1],
            self._sink.stager(),
            directory,
            self._in_target,
            self._name,
        )
        rows = frame.mapInArrow(task, "report STRING").collect()
        read = observed(seen, "messages")
        if read is None:  # a function that keeps nothing, which Spark found out without reading anything
            read = whole.count()
        if read != end.offset - begin.offset:
            raise AccountError(
                f"sink '{self._name}': the log holds {end.offset - begin.offset} messages in "
                f"[{begin.offset}, {end.offset}), Spark read {read}; nothing of them was published"
            )
        parts = [_decode_staged(row[0]) for row in rows]
        if len(self._passes) > 1:
            parts.append(_told_by(earlier.seen()))
        return parts

    def _publish(
        self, parts: Sequence[Staged], begin: LogPoint, end: LogPoint, started: float
    ) -> BatchReport:
        """Steps 5 and 6."""
        assert self._publisher is not None
        before = self._offsets.state.commit
        delivered = sum(part.messages for part in parts)
        rows = sum(part.rows for part in parts)
        dropped = end.offset - begin.offset - delivered
        if dropped < 0:
            raise AccountError(
                f"sink '{self._name}': {delivered} messages staged of {end.offset - begin.offset} in "
                f"[{begin.offset}, {end.offset}); a function made up offsets"
            )
        with faults.step("publish"):
            position = SinkPosition(self._log_id, before.generation, max(end.offset, self._in_target))
            self._publisher.publish([part for part in parts if part.part], position)
        self._in_target = position.watermark
        commit = Commit(
            watermark=end.offset,
            generation=before.generation,
            delivered=before.delivered + delivered,
            dropped=before.dropped + dropped,
            dead=before.dead,
            rows=before.rows + rows,
        )
        namespaces: dict[str, int] = {}
        for part in parts:
            for ns, offset in part.namespaces.items():
                namespaces[ns] = max(offset, namespaces.get(ns, -1))
        self._offsets.commit(commit, namespaces, time.time_ns() // 1000)
        for entry in self._staging.glob("*-*-*"):
            shutil.rmtree(entry, ignore_errors=True)
        return BatchReport(begin, end, delivered, dropped, rows, time.monotonic() - started)


class _StageTask:
    """The last pass of a batch, in a worker: the chain, then the sink's stager. Yields one report."""

    def __init__(self, segment: Segment, stager: Stager, directory: Path, skip_below: int, sink: str) -> None:
        self._segment = segment
        self._stager = stager
        self._directory = directory
        self._skip_below = skip_below
        self._sink = sink

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        name = f"{context.partitionId():05d}-{context.attemptNumber()}-{uuid.uuid4().hex[:8]}"
        tally = _Tally()
        with faults.step("stage"):
            stage = Stage(self._directory, name, self._skip_below)
            staged = self._stager.stage(stage, self._rows(batches, tally))
        by_the_sink = [dataclasses.replace(refusal, node=self._sink) for refusal in staged.refused]
        refused = sorted([*by_the_sink, *tally.refused], key=lambda refusal: refusal.offset)
        report = dataclasses.replace(
            staged, refused=refused[:REPORTED_REFUSALS], namespaces={**staged.namespaces, **tally.namespaces}
        )
        yield pa.RecordBatch.from_pydict({"report": [_encode_staged(report)]})

    def _rows(self, batches: Iterator[pa.RecordBatch], tally: _Tally) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute as pc

        for batch in batches:
            tally.count(batch)
            nulls = batch.filter(pc.is_null(batch.column("data")))
            if nulls.num_rows:
                tally.refuse_nulls(nulls, self._sink)
                batch = batch.filter(pc.is_valid(batch.column("data")))
            passed, refused = self._segment.chain.apply(batch, self._segment.accept)
            tally.refuse(refused)
            yield passed


class _Tally:
    """What a task saw before anything was filtered: the highest offset of each namespace, and refusals."""

    def __init__(self) -> None:
        self.namespaces: dict[str, int] = {}
        self.refused: list[Refusal] = []

    def count(self, batch: pa.RecordBatch) -> None:
        for ns, offset in highest_offsets(batch).items():
            self.namespaces[ns] = max(offset, self.namespaces.get(ns, -1))

    def refuse(self, refused: Sequence[Refused]) -> None:
        self.refused += [Refusal(r.offset, r.ns, r.error, r.node) for r in refused[:REPORTED_REFUSALS]]

    def refuse_nulls(self, batch: pa.RecordBatch, sink: str) -> None:
        for row in batch.slice(0, REPORTED_REFUSALS).select(["offset", "ns"]).to_pylist():
            error = "data is null: the text is not JSON, or a DataFrame function made it so"
            self.refused.append(Refusal(row["offset"], row["ns"], error, sink))


def planned_end(checkpoint: Path, batch_id: int) -> LogPoint:
    """The end of a batch, from the file in which Spark notes it before the batch runs."""
    lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    end = json.loads(lines[-1])
    return LogPoint(MessageOffset(end["offset"]), ByteOffset(end["byte"]))


def refusal_error(sink: str, refusal: Refusal) -> RefusedError:
    """What a person reads when a sink stops at a message."""
    return RefusedError(
        f"sink '{sink}' stopped before message {refusal.offset} of namespace '{refusal.ns}', "
        f"which '{refusal.node}' refused: {refusal.error}",
        hint=f"look at it with `penstock xlog show {refusal.offset}`; everything before it is delivered",
    )


def _first_refusal(parts: Sequence[Staged]) -> Refusal | None:
    refused = [refusal for part in parts for refusal in part.refused]
    return min(refused, key=lambda refusal: refusal.offset, default=None)


def _in_order(parts: Sequence[Staged]) -> bool:
    """Whether the parts, put one behind the other, are in the order of their offsets."""
    staged = sorted((part for part in parts if part.rows), key=lambda part: part.first)
    apart = all(one.last < two.first for one, two in itertools.pairwise(staged))
    return apart and all(part.ordered for part in staged)


def _told_by(seen: Seen) -> Staged:
    """What the passes before the last one told, as if a task had staged nothing and reported it."""
    refusals = [Refusal(r.offset, r.ns, r.error, r.node) for r in seen.refused]
    return Staged("", 0, 0, 0, -1, -1, True, dict(seen.namespaces), refusals)


def _encode_staged(staged: Staged) -> str:
    return msgspec.json.encode({**dataclasses.asdict(staged), "pid": os.getpid()}).decode()


def _decode_staged(text: str) -> Staged:
    return msgspec.json.decode(text, type=Staged)
