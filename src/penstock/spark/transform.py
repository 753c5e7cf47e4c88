"""What a sink's steps do to a micro-batch, as one Spark plan.

Functions of Penstock run in Python workers, neighbours fused into one pass (`functions.chain`). A DataFrame
function runs wherever Spark plans it. The last pass stages for the sink, so a pipeline without DataFrame
functions crosses into Python once.

A DataFrame function sees `data` as VARIANT, a view for reading. The text it came from travels along in a
hidden column and is what goes on, unless the function assigned `data`: then the new value is written as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.base.errors import UsageError
from penstock.functions.chain import Chain, NamespaceMatcher, Refused, Step

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, Observation

REQUIRED = ("offset", "ts", "mode", "op", "ns", "data")
PASSED_SCHEMA = (
    "offset BIGINT, ts TIMESTAMP, mode STRING, op STRING, ns STRING, key STRING, data STRING, origin STRING"
)
_TEXT = "_penstock_text"

REPORTED_REFUSALS = 100
"""A task reports so many refusals in full; the first one is what stops the sink."""


@dataclass(frozen=True, slots=True)
class FrameStep:
    """A function of a DataFrame, for the namespaces that `pattern` finds (None: all)."""

    name: str
    function: Callable[[DataFrame], DataFrame]
    pattern: str | None


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
    for step in steps:
        if isinstance(step, Step):
            pending.append(step)
        else:
            found.append(Segment(Chain(pending), accept if not found else Everything(), step))
            pending = []
    found.append(Segment(Chain(pending), accept if not found else Everything(), None))
    return found


class Seen(NamedTuple):
    """What passes before the last one tell: what they refused, and the highest offset of each namespace."""

    refused: tuple[Refused, ...] = ()
    namespaces: tuple[tuple[str, int], ...] = ()

    def and_(self, other: Seen) -> Seen:
        """Both together. A task that ran twice tells the same twice: no harm."""
        refused = sorted({*self.refused, *other.refused})[:REPORTED_REFUSALS]
        highest = dict(sorted([*self.namespaces, *other.namespaces], key=lambda pair: pair[1]))
        return Seen(tuple(refused), tuple(highest.items()))


class Earlier:
    """The passes before the last one in a batch: the frame behind them, and what they have to tell."""

    def __init__(self, frame: DataFrame, passes: Sequence[Segment]) -> None:
        self._told: Accumulator[Seen] = _accumulator(frame)
        self._unparsed: list[tuple[str, Observation]] = []
        for segment in passes[:-1]:
            assert segment.frame_step is not None
            frame = frame.mapInArrow(_Pass(segment.chain, segment.accept, self._told), PASSED_SCHEMA)
            frame = self._apply(segment.frame_step, frame)
        self.frame = frame

    def seen(self) -> Seen:
        """To be asked once the batch has been staged."""
        seen = self._told.value
        for step, observation in self._unparsed:
            first = observed(observation, "first")
            if first is not None:
                error = "Spark cannot read the text as JSON (a name twice, perhaps, or a number out of range)"
                seen = seen.and_(Seen((Refused(first["offset"], first["ns"], error, step),)))
        return seen

    def _apply(self, step: FrameStep, frame: DataFrame) -> DataFrame:
        """Give a DataFrame function what it may see, and make of its result a frame of messages again."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as sf

        others = None
        if step.pattern is not None:
            matches = sf.col("ns").rlike(step.pattern)
            others = frame.where(~matches)
            frame = frame.where(matches)
        shown = frame.withColumn(_TEXT, sf.col("data")).withColumn("data", sf.try_parse_json("data"))
        # A text that does not parse is a null here, which the function would drop without a word.
        unparsed = Observation()
        place = sf.when(sf.col("data").isNull(), sf.struct("offset", "ns"))
        shown = shown.observe(unparsed, sf.min(place).alias("first"))
        self._unparsed.append((step.name, unparsed))
        result = step.function(shown)
        _require_columns(step, result)
        back = _back_to_text(shown, result)
        return back if others is None else back.unionByName(others)


def observed(observation: Observation, name: str) -> Any:
    """What Spark observed in a batch; None if it saw that the plan has no rows and read nothing."""
    from py4j.protocol import Py4JJavaError

    try:
        return observation.get[name]
    except Py4JJavaError:
        return None


def _accumulator(frame: DataFrame) -> Accumulator[Seen]:
    from pyspark.accumulators import AccumulatorParam

    class Gather(AccumulatorParam[Seen]):
        def zero(self, value: Seen) -> Seen:
            return Seen()

        def addInPlace(self, one: Seen, two: Seen) -> Seen:  # noqa: N802
            return one.and_(two)

    return frame.sparkSession.sparkContext.accumulator(Seen(), Gather())


def highest_offsets(batch: pa.RecordBatch) -> dict[str, int]:
    """The highest offset of each namespace, as the log names it."""
    import pyarrow as pa

    names = "origin" if "origin" in batch.schema.names else "ns"
    table = pa.Table.from_batches([batch.select([names, "offset"])])
    rows = table.group_by(names).aggregate([("offset", "max")]).to_pylist()
    return {row[names]: row["offset_max"] for row in rows}


class _Pass:
    """One pass through a chain, in a worker; what it has to tell goes back through the accumulator."""

    def __init__(self, chain: Chain, accept: NamespaceMatcher, told: Accumulator[Seen]) -> None:
        self._chain = chain
        self._accept = accept
        self._told = told

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            highest = highest_offsets(batch)
            passed, refused = self._chain.apply(batch, self._accept)
            self._told.add(Seen(tuple(refused[:REPORTED_REFUSALS]), tuple(highest.items())))
            yield passed


def _require_columns(step: FrameStep, result: object) -> None:
    from pyspark.sql import DataFrame

    if not isinstance(result, DataFrame):
        raise UsageError(
            f"transformation '{step.name}' returned {type(result).__name__}, expected a DataFrame",
            hint="return the DataFrame you made from the one you were given",
        )
    missing = [name for name in REQUIRED if name not in result.columns]
    if missing:
        raise UsageError(
            f"transformation '{step.name}' lost of the message's columns: {', '.join(missing)}",
            hint="keep the message's columns; use withColumn and where rather than select",
        )


def _back_to_text(shown: DataFrame, result: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StringType

    untouched = _attribute(shown, "data") == _attribute(result, "data")
    if untouched and _TEXT in result.columns:
        text = sf.col(_TEXT)
    elif isinstance(result.schema["data"].dataType, StringType):
        text = sf.col("data")
    else:
        text = sf.to_json("data")
    key = sf.col("key") if "key" in result.columns else sf.lit(None).cast("string")
    origin = sf.col("origin") if "origin" in result.columns else sf.col("ns")
    return result.select(
        "offset", "ts", "mode", "op", "ns", key.alias("key"), text.alias("data"), origin.alias("origin")
    )


def _attribute(frame: DataFrame, name: str) -> int:
    """The identity of a column: the same number as long as nobody assigned it."""
    output = frame._jdf.queryExecution().analyzed().output()
    for i in range(output.size()):
        if output.apply(i).name() == name:
            return int(output.apply(i).exprId().id())
    return -1
