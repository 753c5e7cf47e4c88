"""Rows set aside in files, for sinks whose target has no place to stage.

Tasks write what they are given into Arrow files, a file a task attempt; the publisher reads these in the order of the
log and sends from the runner's process. A sink that can tell in the task which messages its target will never
take passes a `check`: what that names is reported as refused, and no row of such a message is in a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.adaptors.away import telling
from penstock.adaptors.base import Refusal, Stage, Staged, Stager
from penstock.adaptors.staging import Tally
from penstock.base.errors import PenstockError

if TYPE_CHECKING:
    import pyarrow as pa

Check = Callable[["pa.RecordBatch"], Sequence[Refusal]]
"""Which messages of a batch the target can never take. Pickled with the stager; is given whole messages only."""


_COLUMNS = ("offset", "op", "ns", "key", "old_key", "data", "ts")


class Row(NamedTuple):
    """A row of a batch, texts as bytes."""

    offset: int
    op: str
    ns: str
    key: bytes | None
    old_key: bytes | None
    data: bytes | None
    ts: int


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch, for sinks that send them one by one."""
    import pyarrow as pa

    kinds = {"offset": pa.int64(), "op": pa.string(), "ns": pa.string(), "ts": pa.int64()}
    columns = [batch.column(name).cast(kinds.get(name, pa.binary())).to_pylist() for name in _COLUMNS]
    return map(Row._make, zip(*columns, strict=True))


class PartStager(Stager):
    """Writes the rows of a task into one file, as they come; `Staged.part` is its path, `bytes` its size."""

    def __init__(self, check: Check | None = None) -> None:
        self._check = check

    def stage(self, stage: Stage, rows: Iterator[pa.RecordBatch]) -> Staged:
        tally = Tally(stage.skip_below)
        refused: list[Refusal] = []
        taken = self._taken(tally, whole_messages(map(tally.fresh, rows)), refused)
        part = stage.directory / stage.name
        with telling(f"cannot write {part}"):
            size = _written(part, taken)
        return tally.staged(str(part) if size else "", size, refused)

    def _taken(
        self, tally: Tally, batches: Iterator[pa.RecordBatch], refused: list[Refusal]
    ) -> Iterator[pa.RecordBatch]:
        """The rows to stage, counted; those of refused messages are left out, and `refused` grows."""
        for batch in batches:
            refusals = self._check(batch) if self._check is not None else ()
            refused += refusals
            taken = _without(batch, {refusal.offset for refusal in refusals})
            tally.add(taken)
            if taken.num_rows:
                yield taken


def read_parts(parts: Sequence[Staged], columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """The rows of these parts, a batch at a time, in the order of the parts and in each as it was staged.

    Where `columns` are named, nothing else is read.
    A part that is not what its task reported is an error before any row of it: something else was at the files.
    """
    import pyarrow as pa

    for staged in parts:
        if not staged.part:
            continue
        with telling(f"cannot read {staged.part}"):
            size = Path(staged.part).stat().st_size
            if size != staged.bytes:
                raise PenstockError(
                    f"the part {staged.part} has {size} bytes, its task reported {staged.bytes}",
                    hint="something else writes to that directory, or its disk fails; start again",
                )
            with pa.OSFile(staged.part) as file:
                reader = _reader(file, columns)
                for index in range(reader.num_record_batches):
                    yield reader.get_batch(index)


def _reader(file: pa.NativeFile, columns: Sequence[str]) -> pa.RecordBatchFileReader:
    import pyarrow as pa

    reader = pa.ipc.open_file(file)
    if not columns:
        return reader
    wanted = [reader.schema.get_field_index(name) for name in columns]
    return pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=wanted))


def whole_messages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, cut so that all rows of a message are in one batch; empty batches are left out."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if held is not None:
            rest = _leading(batch, held.column("offset")[-1].as_py())
            if rest:
                held = _joined(held, batch.slice(0, rest))
                batch = batch.slice(rest)
            if not batch.num_rows:
                continue
            yield held
        held = batch
    if held is not None:
        yield held


def _written(part: Path, batches: Iterator[pa.RecordBatch]) -> int:
    """Write the batches; how many bytes that makes. Without any there is no file."""
    import pyarrow as pa

    first = next(batches, None)
    if first is None:
        return 0
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("xb") as file:
        with pa.ipc.new_file(file, first.schema) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)
        return file.tell()


def _without(batch: pa.RecordBatch, offsets: set[int]) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    if not offsets:
        return batch
    refused = np.isin(batch.column("offset").to_numpy(), list(offsets))
    return batch.filter(pa.array(~refused))


def _leading(batch: pa.RecordBatch, offset: int) -> int:
    """How many rows at the front of the batch have this offset."""
    others = (batch.column("offset").to_numpy() != offset).nonzero()[0]
    return int(others[0]) if len(others) else int(batch.num_rows)


def _joined(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.Table.from_batches([first, second]).combine_chunks().to_batches()[0]
