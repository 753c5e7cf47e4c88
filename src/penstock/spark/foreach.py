"""For plain Spark: `foreachBatch` into a connector sink, each micro-batch one transaction there.

    from penstock.spark.foreach import ConnectorBatches

    batches = ConnectorBatches("sink:7200", name="orders", decisions="/var/lib/orders", cookie=..., offset="offset")
    stream.writeStream.foreachBatch(batches).option("checkpointLocation", ...).start()

Rows become lines of JSON, one object of all columns each. The decision on a batch is a file in the directory
`decisions`, replaced durably before the sink is told to commit. That directory belongs to the sink, not to Spark's
checkpoint: with the name of an `offset` column whose numbers grow from batch to batch (the source `penstock` has one),
a batch is recognised by its offsets, also when the checkpoint is gone and batches are numbered and cut anew. Without
one it is recognised by Spark's number, so checkpoint and decisions are to be kept, or deleted, together.

A batch that is voted down is sent again, later each time, and then fails the query. If `connections` is lowered, the
sink is told which of its workers have left.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import AbortedError, Sink, Stage, Staged, Voting
from penstock.adaptors.connector import Connector
from penstock.base import faults
from penstock.base.disk import Disk
from penstock.base.errors import CorruptError
from penstock.base.locks import lock_directory
from penstock.base.settings import load
from penstock.log.offsets import Lane
from penstock.log.schema import KnownSchemas
from penstock.spark.sealed import Sealed, discreet, private_file, seal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

TRIES = 5
_FIRST_PAUSE = 0.5


class Decision(msgspec.Struct, frozen=True):
    """The last batch that was committed. `watermark` is behind its highest offset; where there are none, it is 0."""

    batch: int = -1
    watermark: int = 0
    lanes: dict[str, Lane] = {}
    format: int = 1
    leaving: tuple[str, ...] = ()
    """Worker names that the sink is still to be told have left."""


class Lines:
    """What a task does: the rows of its lane to the sink, and one report."""

    def __init__(self, sealed: Sealed, plan: str, watermark: int) -> None:
        self._sealed = sealed
        self._plan = plan
        self._watermark = watermark

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        with discreet(), faults.step("stage"):
            stage = Stage(Path(), "", self._watermark, self._plan, context.partitionId())
            staged = self._sealed.open().stager().stage(stage, batches)
        yield pa.RecordBatch.from_pydict({"report": [msgspec.json.encode(staged).decode()]})


class ConnectorBatches:
    """To be given to `foreachBatch`. One query at a time has the directory of decisions."""

    def __init__(
        self,
        sink: str,
        *,
        name: str,
        decisions: str | Path,
        cookie: str = "",
        connections: int = 1,
        key: str | None = None,
        offset: str | None = None,
        timeout: float = 60.0,
        disk: Disk | None = None,
    ) -> None:
        """`name` is the worker name at the sink; rows with the same `key` go over the same connection, in order."""
        settings = {"sink": sink, "cookie": cookie, "connections": connections, "timeout": timeout}
        adaptor = load("the sink", Connector, settings)
        self._key, self._offset = key, offset
        self._sink: Sink = adaptor.sink()
        self._sink.use(KnownSchemas({}), name)
        publisher = self._sink.publisher()
        assert isinstance(publisher, Voting)
        self._publisher = publisher
        self._settled = False
        self._directory = Path(decisions)
        self._path = self._directory / f"{name}.decision"
        self._disk = disk or Disk()
        self._disk.make_dirs(self._directory)
        self._lock = lock_directory(
            self._directory,
            f"another query decides in {self._directory}",
            "stop it first, or give this one another directory",
        )
        try:
            # What a killed query has left is told to the sink: no power loss may undo it then.
            self._disk.sync_dir(self._directory)
            self.decision = _loaded(self._path)
            """What was committed last."""
            place = private_file(self._directory / f".sealed-{uuid.uuid4().hex}", seal(self._sink))
        except BaseException:
            os.close(self._lock)
            raise
        self._sealed = Sealed(name, place, self._sink.schemas, name)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Carry out one batch. Returns when the sink has committed it."""
        if not self._settled:
            self._open()
        self._settled = False
        if self._offset is not None or batch_id > self.decision.batch:
            self._decide(frame, batch_id)
        self._settled = True

    def close(self) -> None:
        """Let the directory go."""
        if self._sealed.place is not None:
            self._sealed.place.unlink(missing_ok=True)
        descriptor, self._lock = self._lock, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _open(self) -> None:
        """Make good what a crash has left undone; then let go of connections that are no more.

        That they have left is on record first: a name that comes back begins at 0.
        """
        self._tell_who_left()
        self._publisher.settle(self.decision.lanes, lambda: None)
        lanes, workers = self.decision.lanes, self._publisher.workers
        if gone := tuple(worker for worker in lanes if worker not in workers):
            kept = {worker: lane for worker, lane in lanes.items() if worker in workers}
            self._record(msgspec.structs.replace(self.decision, lanes=kept, leaving=gone))
            self._tell_who_left()

    def _tell_who_left(self) -> None:
        if self.decision.leaving:
            self._publisher.leave(self.decision.leaving)
            self._record(msgspec.structs.replace(self.decision, leaving=()))

    def _record(self, decision: Decision) -> None:
        """Durable on return."""
        self._disk.replace_file(self._path, msgspec.json.encode(decision))
        self.decision = decision

    def _decide(self, frame: DataFrame, batch_id: int) -> None:
        parts, lanes = self._voted(frame, batch_id)
        watermark = max([self.decision.watermark, *(part.last + 1 for part in parts)])
        decision = Decision(batch_id, watermark if self._offset else 0, {**self.decision.lanes, **lanes})
        with faults.step("decide"):
            self._record(decision)
        self._publisher.tell(lanes)

    def _voted(self, frame: DataFrame, batch_id: int) -> tuple[Sequence[Staged], dict[str, Lane]]:
        """Send the batch until all vote to commit; what they voted on."""
        pause = _FIRST_PAUSE
        for left in reversed(range(TRIES)):
            span = (
                (self.decision.watermark, self.decision.watermark)
                if self._offset
                else (batch_id, batch_id + 1)
            )
            plan = self._publisher.begin(self.decision.lanes, lambda: None, span, 0)
            task = Lines(self._sealed, plan, self.decision.watermark if self._offset else 0)
            reports = self._shaped(frame).mapInArrow(task, "report STRING").collect()
            parts = [msgspec.json.decode(report[0], type=Staged) for report in reports]
            try:
                return parts, dict(self._publisher.judge(parts))
            except AbortedError:
                if not left:
                    self._publisher.settle(self.decision.lanes, lambda: None)
                    raise
                time.sleep(pause)
                pause *= 2
        raise AssertionError("unreachable")

    def _shaped(self, frame: DataFrame) -> DataFrame:
        """The columns that a stager takes, a partition for each lane, in order."""
        from pyspark.sql import functions as sf

        lanes = self._sink.lanes
        number = sf.col(self._offset).cast("bigint") if self._offset else sf.monotonically_increasing_id()
        key = sf.lit("") if self._key is None else sf.coalesce(sf.col(self._key).cast("string"), sf.lit(""))
        rows = frame.select(
            number.alias("offset"),
            key.alias("key"),
            sf.lit("").alias("ns"),
            sf.lit("").alias("origin"),
            sf.to_json(sf.struct("*")).alias("data"),
        )
        if lanes == 1:
            return rows.repartition(1).sortWithinPartitions("offset")
        lane = sf.pmod(sf.crc32(sf.encode(sf.col("key"), "UTF-8")), sf.lit(lanes)).cast("int")
        return rows.repartitionById(lanes, lane).sortWithinPartitions("offset")


def _loaded(path: Path) -> Decision:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Decision)
    except FileNotFoundError:
        return Decision()
    except msgspec.DecodeError as error:
        raise CorruptError(f"not a record of decisions: {error}", where=str(path), position=0) from None
    if found.format > 1:
        raise CorruptError(f"format {found.format}, this version knows 1", where=str(path), position=0)
    return found
