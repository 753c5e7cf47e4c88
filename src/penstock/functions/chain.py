"""The chain: what happens to a batch between the log and one sink.

1. The sink's own filter is asked about the namespace as the log has it; what it does not mean is left out.
2. Behind a function of a DataFrame, what it gave back is looked at (`functions.givenback`).
3. Each function is applied, in order, to the messages whose current namespace its filter accepts. Commands
   are given to no function.
4. What a function dropped is left out. What it could not decide is left out too, and reported.

The batch keeps its columns `offset, ts, mode, op, ns, key, old_key, data` and gains `origin`, the namespace as logged.
Namespaces are matched once for each distinct name, rows that no function is asked about are not looked at,
and without functions the batch goes on as it came, in the same memory. Functions are free of side effects, so
each one is led over the whole batch before the next: neighbours that take one message over the same Python
values (`functions.rows`), those that take a batch over the batch.

A message may have several rows, which share its offset. If one of them is refused, the message is: none of
its rows goes on.

A chain is pickled and sent to Spark's workers; it holds settings and nothing live.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.functions.givenback import usable
from penstock.functions.kinds import BatchFunction
from penstock.functions.rows import Rows, as_unicode
from penstock.functions.steps import NamespaceMatcher, Refused, Step, StepCount
from penstock.log import names

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_REASON = 64 << 10
"""Of the reason of a refusal so many characters are told: a thousand of them must fit into a report."""

__all__ = ["Applied", "Chain", "NamespaceMatcher", "Refused", "Step", "StepCount"]


class Applied(NamedTuple):
    """What became of a batch: what goes on, what was refused, and the count of each step by its node's name."""

    batch: pa.RecordBatch
    refused: list[Refused]
    counts: dict[str, StepCount]


class Chain:
    """The functions in front of one sink, in their order; `behind` is the DataFrame function before them, if any."""

    def __init__(self, steps: Sequence[Step], behind: str | None = None) -> None:
        self.steps = tuple(steps)
        self.behind = behind

    def apply(self, batch: pa.RecordBatch, sink_accept: NamespaceMatcher) -> Applied:
        """Filter and transform one batch."""
        wanted = _rows_named(batch, sink_accept.matches)
        if wanted is not None:
            batch = batch.filter(wanted)
        if "origin" not in batch.schema.names:
            batch = batch.append_column("origin", batch.column("ns"))
        unusable: list[Refused] = []
        if self.behind is not None:
            batch, unusable = usable(batch, self.behind)
        passage = _Passage(batch)
        for takes_batches, steps in itertools.groupby(self.steps, _takes_batches):
            if takes_batches:
                for step in steps:
                    passage.over_the_batch(step)
            else:
                passage.over_the_rows(list(steps))
        return Applied(passage.batch, sorted([*unusable, *passage.refused()]), passage.counts)


class _Passage:
    """A batch on its way: what is left of it, and what has been said about the rest."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.counts: dict[str, StepCount] = {}
        self._refused: dict[int, Refused] = {}

    def refused(self) -> list[Refused]:
        return sorted(self._refused.values())

    def over_the_rows(self, steps: Sequence[Step]) -> None:
        """Lead functions of one message over the rows that at least one of them is asked about."""
        for step in steps:
            self._count(step, StepCount())
        asked = _rows_asked_about(self.batch, steps)
        if asked is None:
            return
        distinct = _distinct(self.batch)
        rows = Rows(self.batch, asked, distinct=distinct)
        for step in steps:
            self._count(step, rows.take(step))
        self.batch = rows.result()
        self._refuse(rows.refused, siblings=not distinct)

    def over_the_batch(self, step: Step) -> None:
        """Give a function of a batch the rows that it is asked about, as a batch of their own."""
        assert isinstance(step.function, BatchFunction)
        self._count(step, StepCount())
        asked = _rows_asked_about(self.batch, [step])
        if asked is None:
            return
        mine, others = self.batch, None
        if asked.true_count < self.batch.num_rows:
            mine, others = self.batch.filter(asked), self.batch.filter(_inverted(asked))
        result, refused = step.function.apply_batch(mine)
        self._count(step, _counted(mine, result, len(refused)))
        self.batch = result if others is None else _merged(result, others)
        self._refuse(_named(step.name, mine, dict(refused)), siblings=others is not None)

    def _count(self, step: Step, count: StepCount) -> None:
        self.counts[step.name] = self.counts.get(step.name, StepCount()).and_(count)

    def _refuse(self, refused: Iterable[Refused], *, siblings: bool) -> None:
        """Note refusals; `siblings`: other rows of these messages may be left."""
        new = {one.offset: one._replace(error=as_unicode(one.error[:LONGEST_REASON])) for one in refused}
        if not new:
            return
        self._refused = new | self._refused
        if siblings:
            import pyarrow as pa
            import pyarrow.compute as pc

            gone = pc.is_in(self.batch.column("offset"), pa.array(new, pa.int64()))
            self.batch = self.batch.filter(_inverted(gone))


def _takes_batches(step: Step) -> bool:
    return isinstance(step.function, BatchFunction)


def _rows_asked_about(batch: pa.RecordBatch, steps: Sequence[Step]) -> pa.BooleanArray | None:
    """Which rows at least one of the functions is asked about; None if there is no such row."""
    import pyarrow.compute as pc

    asked = pc.not_equal(batch.column("op"), "command")
    named = _rows_named(batch, lambda ns: any(step.accept.matches(ns) for step in steps))
    if named is not None:
        asked = pc.and_(asked, named)
    return asked if asked.true_count else None


def _rows_named(batch: pa.RecordBatch, matches: Callable[[str], bool]) -> pa.BooleanArray | None:
    """Which rows have a namespace that `matches`; None if all of them have."""
    import pyarrow as pa

    if (ns := names.only(batch.column("ns"))) is not None and matches(ns):
        return None
    found = batch.column("ns").dictionary_encode()
    answers = [matches(ns) for ns in found.dictionary.to_pylist()]
    return None if all(answers) else pa.array(answers, pa.bool_()).take(found.indices)


def _distinct(batch: pa.RecordBatch) -> bool:
    """Whether every message has one row. A batch comes in the order of the log, so neighbours tell."""
    import numpy as np

    offsets = batch.column("offset").to_numpy(zero_copy_only=False)
    if bool((np.diff(offsets) > 0).all()):
        return True
    return len(np.unique(offsets)) == len(offsets)


def _counted(mine: pa.RecordBatch, result: pa.RecordBatch, refused: int) -> StepCount:
    import pyarrow.compute as pc

    into = pc.count_distinct(mine.column("offset")).as_py()
    out = pc.count_distinct(result.column("offset")).as_py()
    return StepCount(into, out, into - out - refused, refused)


def _named(node: str, mine: pa.RecordBatch, refused: dict[int, str]) -> list[Refused]:
    """Refusals by offset, with the namespace as logged."""
    if not refused:
        return []
    origins = dict(zip(mine.column("offset").to_pylist(), mine.column("origin").to_pylist(), strict=True))
    return [Refused(offset, origins[offset], error, node) for offset, error in refused.items()]


def _merged(one: pa.RecordBatch, two: pa.RecordBatch) -> pa.RecordBatch:
    """Both together, in the order of the log; rows of one message stay in theirs."""
    import pyarrow as pa
    import pyarrow.compute as pc

    both = pa.concat_batches([one, two])
    return both.take(pc.sort_indices(both.column("offset")))


def _inverted(mask: pa.BooleanArray) -> pa.BooleanArray:
    import pyarrow.compute as pc

    return pc.invert(mask)
