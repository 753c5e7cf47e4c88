"""One message at a time: what a sink gets after a refused batch, and when an operator steps it (seed 004).

Each message goes through the functions, is staged, published and acknowledged before the next one is looked
at, so the first one that fails is known by name and everything before it is delivered. `SingleDelivery` needs
no Spark: `step` and the replay of dead letters use it in their own process. In a run it works inside one task
of Spark (`singlejob.py`), which claims the sink's offset log for itself: a second attempt of that task, or the
runner, fences the first one off.
"""

from __future__ import annotations

import itertools
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import Publisher, Refusal, Sink, SinkPosition, Stage, Staged
from penstock.base import faults
from penstock.base.errors import CorruptError, RefusedError
from penstock.functions.chain import Chain, NamespaceMatcher, Step
from penstock.log.offsets import Commit, OffsetLog
from penstock.log.record import Record

if TYPE_CHECKING:
    import pyarrow as pa

Bury = Callable[[Refusal], None]
"""Keeps a refused message among the dead letters; durable on return."""

NOTHING = Staged("", 0, 0, 0, -1, -1, True, {})


@dataclass(frozen=True, slots=True)
class Delivered:
    """How far a delivery came. `refused` is the message it ended before, if one was."""

    watermark: int
    delivered: int = 0
    dropped: int = 0
    dead: int = 0
    refused: Refusal | None = None


def now_us() -> int:
    return time.time_ns() // 1000


class SingleStager:
    """Takes one message through the functions in front of a sink, and stages it."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        accept: NamespaceMatcher,
        steps: Sequence[Step],
        scratch: Path,
        behind: str | None = None,
    ) -> None:
        """`behind` is the DataFrame function that the rows come from, if any."""
        self.name = name
        self.sink = sink
        self._accept = accept
        self._chain = Chain(steps, behind)
        self._directory = sink.staging(scratch)

    def stage(
        self, rows: pa.RecordBatch, skip_below: int, plan: str = "", lane: int = 0
    ) -> tuple[Staged, Refusal | None]:
        """What was staged of the message, nothing if the functions leave it out; and who refused it, if someone did."""
        applied = self._chain.apply(rows, self._accept)
        if applied.refused:
            first = applied.refused[0]
            return NOTHING, Refusal(first.offset, first.ns, first.error, first.node)
        name = f"single-{uuid.uuid4().hex[:8]}"
        stage = Stage(self._directory / name, name, skip_below, plan, lane)
        stage.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = self.sink.stager().stage(stage, iter([applied.batch]))
        return staged, replace(staged.refused[0], node=self.name) if staged.refused else None

    def clear(self) -> None:
        """Nothing of what was staged is needed any more."""
        shutil.rmtree(self._directory, ignore_errors=True)


class SingleDelivery:
    """Delivers to one sink, message by message. Owns the sink's target and offset log while it is open."""

    def __init__(
        self,
        *,
        sink_name: str,
        sink: Sink,
        accept: NamespaceMatcher,
        steps: Sequence[Step],
        offsets: OffsetLog,
        log_id: str,
        scratch: Path,
        behind: str | None = None,
        bury: Bury | None = None,
        clock: Callable[[], int] = now_us,
    ) -> None:
        """`behind` is the DataFrame function that the messages come from, if any.

        `bury`, if given, takes refused messages; without it the first one ends the delivery.
        """
        self._name = sink_name
        self._stager = SingleStager(sink_name, sink, accept, steps, scratch, behind)
        self._offsets = offsets
        self._log_id = log_id
        self._bury = bury
        self._clock = clock
        self._publisher: Publisher | None = None
        self._in_target = 0

    def open(self) -> None:
        """Open the target and learn what it has."""
        commit = self._offsets.state.commit
        self._publisher = self._stager.sink.publisher()
        held = self._publisher.open(SinkPosition(self._log_id, commit.generation, commit.watermark))
        if held is not None:
            refuse_older_target(self._name, held.watermark, commit.in_target)
        self._in_target = held.watermark if held is not None else 0

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
        self._stager.clear()

    def __enter__(self) -> SingleDelivery:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def deliver(self, batches: Iterable[pa.RecordBatch], end: int) -> Delivered:
        """Deliver the messages of `batches`, which come in the order of their offsets and lie below `end`.

        Offsets between the watermark and `end` that have no rows were dropped before they came here.
        """
        so_far = Delivered(self._offsets.state.commit.watermark)
        for rows in _by_message(batches):
            offset: int = rows.column("offset")[0].as_py()
            if offset < so_far.watermark:
                continue  # an earlier attempt has acknowledged it
            so_far = self._one(offset, rows, so_far)
            if so_far.refused is not None:
                return so_far
        if end > so_far.watermark:
            missing = end - so_far.watermark
            self._commit(end, {}, dropped=missing)
            so_far = replace(so_far, watermark=end, dropped=so_far.dropped + missing)
        return so_far

    def deliver_records(self, records: Iterable[Record]) -> Delivered:
        """Deliver messages as the log has them, the next ones of this sink."""
        so_far = Delivered(self._offsets.state.commit.watermark)
        for record in records:
            so_far = self._one(record.offset, batch_of([record]), so_far)
            if so_far.refused is not None:
                break
        return so_far

    def redeliver(self, record: Record) -> Refusal | None:
        """Send a message that was acknowledged before (a dead letter); the sink's position stays."""
        assert self._publisher is not None
        staged, refused = self._stager.stage(batch_of([record]), skip_below=0)
        if refused is not None:
            return refused
        commit = self._offsets.state.commit
        position = SinkPosition(self._log_id, commit.generation, max(commit.watermark, self._in_target))
        try:
            self._publisher.publish([staged] if staged.part else [], position)
        except RefusedError as error:
            self._reopen()
            return Refusal(record.offset, record.ns, error.message, self._name)
        self._in_target = position.watermark
        return None

    def _one(self, offset: int, rows: pa.RecordBatch, so_far: Delivered) -> Delivered:
        """One message, acknowledged on return, or refused."""
        before = offset - so_far.watermark
        so_far = replace(so_far, dropped=so_far.dropped + before)
        ns = origin_of(rows)
        if offset in self._offsets.state.commit.acked:
            self._commit(offset + 1, {ns: offset}, dropped=before + 1)
            return replace(so_far, watermark=offset + 1, dropped=so_far.dropped + 1)
        with faults.step("stage"):
            staged, refused = self._stager.stage(rows, self._in_target)
        sent = staged.messages > 0
        if refused is None and sent:
            refused = self._published(offset, ns, staged)
        if refused is None:
            dropped = before + (0 if sent else 1)
            self._commit(offset + 1, {ns: offset}, dropped=dropped, delivered=int(sent), rows=staged.rows)
            return replace(
                so_far,
                watermark=offset + 1,
                delivered=so_far.delivered + int(sent),
                dropped=so_far.dropped + (0 if sent else 1),
            )
        if self._bury is None:
            if before:
                self._commit(offset, {}, dropped=before)
            return replace(so_far, watermark=offset, refused=refused)
        self._bury(refused)
        self._commit(offset + 1, {ns: offset}, dropped=before, dead=1)
        return replace(so_far, watermark=offset + 1, dead=so_far.dead + 1)

    def _published(self, offset: int, ns: str, staged: Staged) -> Refusal | None:
        assert self._publisher is not None
        generation = self._offsets.state.commit.generation
        position = SinkPosition(self._log_id, generation, max(offset + 1, self._in_target))
        try:
            with faults.step("publish"):
                self._publisher.publish([staged] if staged.part else [], position)
        except RefusedError as error:
            self._reopen()
            return Refusal(offset, ns, error.message, self._name)
        self._in_target = position.watermark
        return None

    def _reopen(self) -> None:
        """After an exception the state of a publisher is unknown."""
        self.close()
        self.open()

    def _commit(
        self,
        watermark: int,
        namespaces: dict[str, int],
        *,
        delivered: int = 0,
        dropped: int = 0,
        dead: int = 0,
        rows: int = 0,
    ) -> None:
        commit = advanced(
            self._offsets.state.commit,
            watermark,
            delivered=delivered,
            dropped=dropped,
            dead=dead,
            rows=rows,
        )
        self._offsets.commit(commit, namespaces, self._clock())


def refuse_older_target(sink: str, held: int, acknowledged: int) -> None:
    """A target that has less than was acknowledged was brought back from a copy: what lies between would be lost."""
    if held < acknowledged:
        raise CorruptError(
            f"the target of sink '{sink}' has the messages below {held}, "
            f"but those below {acknowledged} were acknowledged",
            where=sink,
            position=held,
            hint="an older copy was put in its place: bring the newer one back",
        )


def advanced(
    before: Commit, watermark: int, *, delivered: int = 0, dropped: int = 0, dead: int = 0, rows: int = 0
) -> Commit:
    """The commit after `before` that acknowledges everything below `watermark`.

    Only where something was delivered has the target been told.
    """
    return msgspec.structs.replace(
        before,
        watermark=watermark,
        published=None if delivered else before.in_target,
        delivered=before.delivered + delivered,
        dropped=before.dropped + dropped,
        dead=before.dead + dead,
        rows=before.rows + rows,
        careful=before.careful if before.careful > watermark else 0,
        acked=tuple(offset for offset in before.acked if offset >= watermark),
    )


def origin_of(rows: pa.RecordBatch) -> str:
    """The namespace of a message in the log, whatever functions have made of it."""
    origin: str = rows.column("origin" if "origin" in rows.schema.names else "ns")[0].as_py()
    return origin


def batch_of(records: Sequence[Record]) -> pa.RecordBatch:
    """Messages of the log as the columns that functions and stagers take."""
    import pyarrow as pa

    from penstock.spark.columns import SCHEMA

    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.offset for record in records], pa.int64()),
            pa.array([record.ts for record in records], pa.int64()).view(pa.timestamp("us", tz="UTC")),
            pa.array([record.mode.word for record in records], pa.string()),
            pa.array([record.op.word for record in records], pa.string()),
            pa.array([record.ns for record in records], pa.string()),
            _texts([record.key for record in records]),
            _texts([record.old_key for record in records]),
            pa.array([record.data.decode() for record in records], pa.string()),
        ],
        schema=SCHEMA,
    )


def _texts(values: Sequence[bytes | None]) -> pa.Array:
    import pyarrow as pa

    return pa.array([value.decode() if value is not None else None for value in values], pa.string())


def _by_message(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of each message, together; a message may be spread over two batches."""
    import numpy as np
    import pyarrow as pa

    carried: pa.RecordBatch | None = None
    for batch in batches:
        if carried is not None:
            batch = pa.Table.from_batches([carried, batch]).combine_chunks().to_batches()[0]
        if not batch.num_rows:
            continue
        offsets = batch.column("offset").to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(offsets)) + 1).tolist()]
        for begin, end in itertools.pairwise(starts):
            yield batch.slice(begin, end - begin)
        carried = batch.slice(starts[-1])
    if carried is not None:
        yield carried
