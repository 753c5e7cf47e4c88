"""What a task reports about the rows it staged, counted a batch at a time and a column at a time.

A stager shows each batch to a `Tally`: `fresh` takes away what the target already has, `add` counts what the
stager then writes, `staged` is the report. Messages are counted by distinct offset, since a function may make
several rows of one; the rows of a message follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.adaptors.base import Refusal, Staged
from penstock.log import names

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

NOTHING = -1
"""`first` and `last` of a task that staged no rows."""


class Tally:
    """Counts the rows of one task attempt."""

    def __init__(self, skip_below: int) -> None:
        self._skip_below = skip_below
        self._skipped = _Offsets()
        self._staged = _Offsets()
        self._namespaces: dict[str, int] = {}

    def fresh(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` that are not in the target yet; the others count as delivered."""
        import pyarrow as pa

        offsets = batch.column("offset").to_numpy()
        known = offsets < self._skip_below
        if not known.any():
            return batch
        self._skipped.add(offsets[known])
        self._note_namespaces(batch.filter(pa.array(known)))
        return batch.filter(pa.array(~known))

    def add(self, batch: pa.RecordBatch) -> None:
        """Count rows as staged."""
        if batch.num_rows:
            self._staged.add(batch.column("offset").to_numpy())
            self._note_namespaces(batch)

    def staged(self, part: str, size: int, refused: Sequence[Refusal] = ()) -> Staged:
        """The report. `messages` are those delivered: what was staged, and what the target had already."""
        return Staged(
            part=part,
            rows=self._staged.rows,
            messages=self._staged.messages + self._skipped.messages,
            bytes=size,
            first=self._staged.lowest,
            last=self._staged.highest,
            ordered=self._staged.ordered,
            namespaces=dict(self._namespaces),
            refused=tuple(refused),
        )

    def _note_namespaces(self, batch: pa.RecordBatch) -> None:
        for ns, offset in highest_offsets(batch, "origin").items():
            self._namespaces[ns] = max(offset, self._namespaces.get(ns, NOTHING))


def highest_offsets(batch: pa.RecordBatch, column: str) -> dict[str, int]:
    """The highest offset of each namespace that this column names. Mostly there is one alone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if (ns := names.only(batch.column(column))) is not None:
        return {ns: pc.max(batch.column("offset")).as_py()}
    table = pa.Table.from_batches([batch.select([column, "offset"])])
    found = table.group_by(column, use_threads=False).aggregate([("offset", "max")])
    return dict(zip(found.column(column).to_pylist(), found.column("offset_max").to_pylist(), strict=True))


class _Offsets:
    """The offsets of some rows: how many, how many different ones, from where to where, in order or not."""

    def __init__(self) -> None:
        self.rows = 0
        self.messages = 0
        self.lowest = NOTHING
        self.highest = NOTHING
        self.ordered = True
        self._previous = NOTHING

    def add(self, offsets: npt.NDArray[np.int64]) -> None:
        import numpy as np

        steps = np.diff(offsets, prepend=self._previous)
        lowest = int(offsets.min())
        self.rows += len(offsets)
        self.messages += int(np.count_nonzero(steps))
        self.lowest = lowest if self.lowest == NOTHING else min(self.lowest, lowest)
        self.highest = max(self.highest, int(offsets.max()))
        self.ordered = self.ordered and not bool((steps < 0).any())
        self._previous = int(offsets[-1])
