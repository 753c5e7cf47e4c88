"""The runner's side of a sink, without Spark: messages in a log, staged in parts, published, acknowledged.

The steps are those of a batch (`penstock.spark.batch`): tasks stage ranges of the log under names of their own, the
publisher makes them visible, the offset log moves. Each can be done alone, so that a test may crash between any two
of them: the next publisher is made anew, by a sink that was made anew, and hears only what the offset log says.
"""

from __future__ import annotations

import gc
import pickle
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import Publisher, Refusal, Sink, SinkPosition, Stage, Staged, Stager
from penstock.base.errors import AwayError
from penstock.log.message import Message, Mode, Op
from penstock.log.schema import Field, Kind, KnownSchemas, Schema, Schemas, Told, still
from penstock.testing.adaptors.subject import SinkSubject

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = Schema((Field("id", Kind.INT, nullable=False), Field("text", Kind.STRING)), key=("id",))
"""The schema of the kit's own messages."""

_PATIENCE = 60.0
"""Seconds for a server to come back."""
NOW = 1_750_000_000_000_000


def message(
    ns: str, id: int, text: str = "", op: Op = Op.INSERT, *, was: int | None = None, **more: str
) -> Message:
    """A message about a row; `was` is the number that the row had before."""
    data = msgspec.json.encode({"id": id, "text": text, **more})
    old_key = None if was is None else msgspec.json.encode({"id": was})
    mode = Mode.COPY if op is Op.INSERT else Mode.SYNC
    return Message(ns, data, op, NOW + id, mode, msgspec.json.encode({"id": id}), old_key)


def truncate(ns: str) -> Message:
    return Message(ns, b'{"command":"truncate"}', Op.COMMAND, NOW, Mode.SYNC)


class GivenSchemas(Schemas):
    """The schemas that a test has given: one for all messages of a namespace, or each from a message on.

    As the dict has them now; in a task, as it had them when that was made.
    """

    def __init__(self, given: Mapping[str, Schema | Sequence[Told]], otherwise: Schema | None = None) -> None:
        self._given = given
        self._otherwise = otherwise

    def told(self, ns: str) -> Sequence[Told]:
        given = self._given.get(ns, self._otherwise)
        return () if given is None else (Told(0, given),) if isinstance(given, Schema) else given

    def since(self, offset: int) -> KnownSchemas:
        return KnownSchemas({ns: still(self.told(ns), offset) for ns in self._given})


class Delivery:
    """One sink of a pipeline. `watermark` and `generation` are what its offset log says."""

    def __init__(self, subject: SinkSubject, scratch: Path, log: str = "") -> None:
        self.subject = subject
        self.log = log or uuid.uuid4().hex
        self.messages: list[Message] = []
        self.schemas: dict[str, Schema | Sequence[Told]] = {}
        self.watermark = 0
        self.generation = 0
        self.in_target = 0
        self._scratch = scratch
        self._sink: Sink | None = None
        self._publisher: Publisher | None = None

    @property
    def sink(self) -> Sink:
        """Made at the first use after a start."""
        if self._sink is None:
            self._sink = self.subject.adaptor().sink()
            self._sink.use(GivenSchemas(self.schemas, ROWS), "kit.sink")
        return self._sink

    @property
    def staging(self) -> Path:
        return self.sink.staging(self._scratch)

    @property
    def end(self) -> int:
        return len(self.messages)

    @property
    def position(self) -> SinkPosition:
        return SinkPosition(self.log, self.generation, self.watermark)

    def add(self, *messages: Message) -> None:
        """Log messages."""
        self.messages += messages

    def open(self) -> SinkPosition | None:
        """Open the target, and learn what it has."""
        self._publisher = publisher = self.sink.publisher()
        held = publisher.open(self.position)
        self.in_target = held.watermark if held is not None else 0
        return held

    def stage(
        self, begin: int | None = None, end: int | None = None, parts: int = 3, attempts: int = 1
    ) -> list[Staged]:
        """Stage a range, in so many tasks; of several attempts the last one counts."""
        first, last = self.watermark if begin is None else begin, self.end if end is None else end
        directory = self.staging / f"{first}-{last}-{uuid.uuid4().hex[:8]}"
        directory.mkdir(parents=True, exist_ok=True)
        staged = []
        for task, (low, high) in enumerate(_ranges(first, last, parts)):
            for attempt in range(attempts):
                name = f"{task:05d}-{attempt}-{uuid.uuid4().hex[:8]}"
                rows = _slices(batch_of(self.messages[low:high], low))
                report = _pickled(self.sink.stager()).stage(
                    Stage(directory, name, self.in_target, shared=True), rows
                )
            staged.append(msgspec.json.decode(msgspec.json.encode(report), type=Staged))
        return sorted(staged, key=lambda part: part.first)

    def publish(self, staged: Sequence[Staged], end: int | None = None) -> None:
        """Make what is staged visible; the offset log does not know of it yet."""
        watermark = max(self.end if end is None else end, self.in_target)
        assert self._publisher is not None, "open comes first"
        self._publisher.publish(
            [part for part in staged if part.part], SinkPosition(self.log, self.generation, watermark)
        )
        self.in_target = watermark

    def commit(self, end: int | None = None) -> None:
        """The offset log moves."""
        self.watermark = self.end if end is None else end

    def deliver(self, parts: int = 3, attempts: int = 1) -> list[Refusal]:
        """Everything that is logged and not delivered, in one batch; tells what the tasks refused."""
        staged = self.stage(parts=parts, attempts=attempts)
        self.publish(staged)
        self.commit()
        return [refusal for part in staged for refusal in part.refused]

    def crash(self) -> None:
        """The process is gone: nothing is closed in order, and the next publisher knows nothing of this one."""
        if self._publisher is not None:
            self.subject.died(self._publisher)
        self._publisher = self._sink = None
        gc.collect()

    def reopen(self) -> SinkPosition | None:
        """Start again after a crash."""
        self.crash()
        return self.open()

    def reopen_when_back(self) -> SinkPosition | None:
        """As `reopen`, again and again, as a run does it, since a server may be a while in coming back."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return self.reopen()
            except AwayError:
                if time.monotonic() > until:
                    raise

    def close(self) -> None:
        """End in order."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
        shutil.rmtree(self.staging, ignore_errors=True)

    def rewind(self, to: int) -> None:
        """What an operator's `penstock offset mark` does: a new generation of the sink's history."""
        self.close()
        self._sink = None
        self.generation += 1
        self.watermark = to


def batch_of(messages: Sequence[Message], first: int) -> pa.RecordBatch:
    """Messages with offsets from `first` on, as a stager gets them."""
    import pyarrow as pa

    def text(content: bytes | None) -> str | None:
        return None if content is None else content.decode()

    columns = {
        "offset": pa.array(range(first, first + len(messages)), pa.int64()),
        "ts": pa.array([one.ts for one in messages], pa.timestamp("us", tz="UTC")),
        "mode": pa.array([one.mode.word for one in messages], pa.string()),
        "op": pa.array([one.op.word for one in messages], pa.string()),
        "ns": pa.array([one.ns for one in messages], pa.string()),
        "key": pa.array([text(one.key) for one in messages], pa.string()),
        "old_key": pa.array([text(one.old_key) for one in messages], pa.string()),
        "data": pa.array([text(one.data) for one in messages], pa.string()),
        "origin": pa.array([one.ns for one in messages], pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in two pieces, the second one a slice with an offset, as Arrow gives them."""
    half = batch.num_rows // 2
    if half:
        yield batch.slice(0, half)
    yield batch.slice(half)


def _ranges(begin: int, end: int, parts: int) -> list[tuple[int, int]]:
    """[begin, end) in so many ranges that follow each other; some may be empty, as Spark's partitions may."""
    size = max(1, -(-(end - begin) // parts))
    return [(min(begin + i * size, end), min(begin + (i + 1) * size, end)) for i in range(parts)]


def _pickled(stager: Stager) -> Stager:
    """As it comes to the task."""
    again: Stager = pickle.loads(pickle.dumps(stager))
    return again
