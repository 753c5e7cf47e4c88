"""What a sink's steps do to a micro-batch, as one Spark plan.

Functions of Penstock run in Python workers, neighbours fused into one pass (`functions.chain`). A DataFrame
function runs wherever Spark plans it. The last pass stages for the sink, so a pipeline without DataFrame
functions crosses into Python once.

A DataFrame function sees `data` as VARIANT, a view for reading. The text it came from travels along in a
hidden column and is what goes on, unless the function assigned `data`: then the new value is written as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.adaptors import staging
from penstock.base.errors import PenstockError, UsageError
from penstock.functions.callables import told
from penstock.functions.chain import Chain, NamespaceMatcher, Refused, Step, StepCount
from penstock.spark.returned import TEXT, TYPES, messages_of
from penstock.spark.stateless import refuse_state

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, Observation

PASSED_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
_MEANT = "_penstock_meant"
"""Whether a DataFrame function means the row's namespace; decided by the one matcher there is, in Python."""

UNREAD = "Spark cannot read the text as JSON (a name twice, perhaps, or a number out of range)"

REPORTED_REFUSALS = 100
"""A task reports so many refusals in full; the first one is what stops the sink."""

BURIED_AT_ONCE = 1000
"""Where refused messages become dead letters, a task reports so many; a batch with more of them ends there."""


@dataclass(frozen=True, slots=True)
class FrameStep:
    """A function of a DataFrame, for the namespaces that `accept` lets through (None: all)."""

    name: str
    function: Callable[[DataFrame], DataFrame]
    accept: NamespaceMatcher | None


class Everything:
    """The matcher behind the first pass: the sink's own filter is asked once, at the front."""

    def matches(self, ns: str) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring functions that run in one pass, and the DataFrame function behind them, if any."""

    chain: Chain
    accept: NamespaceMatcher
    frame_step: FrameStep | None


def segments(steps: Sequence[Step | FrameStep], accept: NamespaceMatcher) -> list[Segment]:
    """The passes: each but the last ends with a DataFrame function."""
    found: list[Segment] = []
    pending: list[Step] = []
    behind: str | None = None
    for step in steps:
        if isinstance(step, Step):
            pending.append(step)
        else:
            found.append(Segment(Chain(pending, behind), accept if not found else Everything(), step))
            pending, behind = [], step.name
    found.append(Segment(Chain(pending, behind), accept if not found else Everything(), None))
    return found


class Seen(NamedTuple):
    """What passes before the last one tell: refusals, the highest offset of each namespace, counts of steps."""

    refused: tuple[Refused, ...] = ()
    namespaces: tuple[tuple[str, int], ...] = ()
    counts: tuple[tuple[str, StepCount], ...] = ()

    def and_(self, other: Seen, limit: int) -> Seen:
        """Both together. A task that ran twice refuses the same twice: no harm; it may count twice."""
        refused = sorted({*self.refused, *other.refused})[:limit]
        highest = dict(sorted([*self.namespaces, *other.namespaces], key=lambda pair: pair[1]))
        counts = summed(dict(self.counts), dict(other.counts))
        return Seen(tuple(refused), tuple(highest.items()), tuple(counts.items()))


def summed(one: Mapping[str, StepCount], two: Mapping[str, StepCount]) -> dict[str, StepCount]:
    """Counts of the same steps, taken together."""
    return {
        name: one.get(name, StepCount()).and_(two.get(name, StepCount()))
        for name in dict.fromkeys((*one, *two))
    }


class Earlier:
    """The passes before the last one in a batch: the frame behind them, and what they have to tell.

    `leave_out` are offsets that must not be sent (an operator acknowledged them, or they are dead); `limit` is how
    many refusals are told.
    """

    def __init__(
        self,
        frame: DataFrame,
        passes: Sequence[Segment],
        leave_out: Sequence[int],
        limit: int,
        *,
        check: bool,
    ) -> None:
        self._limit = limit
        self._told: Accumulator[Seen] = _accumulator(frame, limit)
        self._looks: list[tuple[str, Observation, Observation]] = []
        for place, segment in enumerate(passes[:-1]):
            assert segment.frame_step is not None
            step = segment.frame_step
            task = _Pass(segment, self._told, limit, leave_out if not place else ())
            frame = frame.mapInArrow(task, f"{PASSED_SCHEMA}, {_MEANT} BOOLEAN")
            frame = self._apply(step, frame, check=check)
        self.frame = frame

    def seen(self) -> Seen:
        """To be asked once the batch has been staged."""
        seen = self._told.value
        for step, before, after in self._looks:
            unread = [
                Refused(at["offset"], at["origin"], UNREAD, step) for at in observed(before, "unread") or ()
            ]
            seen = seen.and_(Seen(tuple(unread)), self._limit)
            into, out = observed(before, "rows") or 0, observed(after, "rows") or 0
            count = StepCount(into, out, max(into - out, 0), 0)
            seen = seen.and_(Seen(counts=((step, count),)), self._limit)
        return seen

    def _apply(self, step: FrameStep, frame: DataFrame, *, check: bool) -> DataFrame:
        """Give a DataFrame function what it may see, and make of its result a frame of messages again."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as sf

        others = None
        if step.accept is not None:
            others = frame.where(~sf.col(_MEANT)).drop(_MEANT)
            frame = frame.where(sf.col(_MEANT))
        frame = frame.drop(_MEANT)
        shown = frame.withColumn(TEXT, sf.col("data")).withColumn("data", sf.try_parse_json("data"))
        # A text that does not parse is a null here, which the function would drop without a word.
        before, after = Observation(), Observation()
        unread = sf.collect_list(sf.when(sf.col("data").isNull(), sf.struct("offset", "origin")))
        told = sf.slice(sf.array_sort(unread), 1, self._limit)
        shown = shown.observe(before, told.alias("unread"), sf.count(sf.lit(1)).alias("rows"))
        back = _planned(step, shown, check=check).observe(after, sf.count(sf.lit(1)).alias("rows"))
        self._looks.append((step.name, before, after))
        return back if others is None else back.unionByName(others)


def observed(observation: Observation, name: str) -> Any:
    """What Spark observed in a batch; None if it saw that the plan has no rows and read nothing."""
    from py4j.protocol import Py4JJavaError

    try:
        return observation.get[name]
    except Py4JJavaError:
        return None


def _accumulator(frame: DataFrame, limit: int) -> Accumulator[Seen]:
    from pyspark.accumulators import AccumulatorParam

    class Gather(AccumulatorParam[Seen]):
        def zero(self, value: Seen) -> Seen:
            return Seen()

        def addInPlace(self, one: Seen, two: Seen) -> Seen:  # noqa: N802
            return one.and_(two, limit)

    return frame.sparkSession.sparkContext.accumulator(Seen(), Gather())


def highest_offsets(batch: pa.RecordBatch) -> dict[str, int]:
    """The highest offset of each namespace, as the log names it."""
    return staging.highest_offsets(batch, "origin" if "origin" in batch.schema.names else "ns")


def without(batch: pa.RecordBatch, leave_out: Sequence[int]) -> pa.RecordBatch:
    """The batch without the rows of these messages."""
    import numpy as np
    import pyarrow as pa

    if not leave_out:
        return batch
    out = np.isin(batch.column("offset").to_numpy(), np.array(leave_out, dtype=np.int64))
    return batch.filter(pa.array(~out)) if out.any() else batch


class _Pass:
    """One pass through a chain, in a worker; what it has to tell goes back through the accumulator."""

    def __init__(
        self, segment: Segment, told: Accumulator[Seen], limit: int, leave_out: Sequence[int]
    ) -> None:
        assert segment.frame_step is not None
        self._chain = segment.chain
        self._accept = segment.accept
        # Only this of the DataFrame function, which stays here: it may hold columns, which cannot be pickled.
        self._meant = segment.frame_step.accept
        self._told = told
        self._limit = limit
        self._leave_out = tuple(leave_out)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            highest = highest_offsets(batch)
            applied = self._chain.apply(without(batch, self._leave_out), self._accept)
            refused = tuple(applied.refused[: self._limit])
            self._told.add(Seen(refused, tuple(highest.items()), tuple(applied.counts.items())))
            yield self._marked(applied.batch)

    def _marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch, and for each row whether the DataFrame function behind this pass means it."""
        import pyarrow as pa

        accept = self._meant
        names = batch.column("ns").dictionary_encode()
        answers = [accept is None or accept.matches(ns) for ns in names.dictionary.to_pylist()]
        return batch.append_column(_MEANT, pa.array(answers, pa.bool_()).take(names.indices))


def _planned(step: FrameStep, shown: DataFrame, *, check: bool) -> DataFrame:
    """The messages that the function makes of the frame. A plan that Spark refuses would be refused every time."""
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        result = step.function(shown)
        messages = messages_of(step.name, shown, result)
    except (AnalysisException, ParseException) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"transformation '{step.name}': {reason}", hint="see the query or function there"
        ) from None
    except (PenstockError, PySparkException, Py4JError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PenstockError(f"transformation '{step.name}': {told(error, step.function)}") from error
    if check:
        refuse_state(step.name, shown, result)
    return messages
