"""Functions of a DataFrame led over a few messages: what `test` and `try` need Spark for.

A small session of its own, started at the first use and stopped with the block. The plan is the one of a run
(`penstock.spark.transform`); only its ends differ: rows come from the case and are collected.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.log.record import Record
from penstock.pipeline.definition import Pipeline, SinkNode
from penstock.pipeline.recompute import Course, Pass, rows_of
from penstock.pipeline.records import Passing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOLD = 1000


@contextmanager
def frame_courses(
    pipeline: Pipeline, starting: Callable[[], None]
) -> Iterator[Callable[[Sequence[Record], SinkNode], Course]]:
    """Something that works out courses with Spark; `starting` is called before Spark starts, if it must."""
    with ExitStack() as stack:
        running: list[SparkSession] = []

        def course(records: Sequence[Record], sink: SinkNode) -> Course:
            if not running:
                starting()
                running.append(_session(pipeline, stack))
            return _course(running[0], records, sink)

        yield course


def _session(pipeline: Pipeline, stack: ExitStack) -> SparkSession:
    from pyspark import cloudpickle

    from penstock.spark.session import session, stop

    for module in pipeline.modules:
        cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-test-")))
    spark = session(app=f"penstock test {pipeline.name}", cores=1, short_lived=True, scratch=scratch)
    stack.callback(stop, spark)
    return spark


def _course(spark: SparkSession, records: Sequence[Record], sink: SinkNode) -> Course:
    import pyarrow as pa

    from penstock.pipeline.compiled import compiled
    from penstock.spark.single import batch_of
    from penstock.spark.transform import Earlier, segments

    steps = [compiled(step) for step in sink.steps]
    passes = segments(steps, sink.ns)
    frame = spark.createDataFrame(pa.Table.from_batches([batch_of(records)]))
    earlier = Earlier(frame, passes, (), _TOLD, check=True)
    table = earlier.frame.coalesce(1).toArrow().combine_chunks()
    rows: list[Passing] = []
    refused = {refusal.offset: (refusal.node, refusal.error) for refusal in earlier.seen().refused}
    for batch in table.to_batches():
        applied = passes[-1].chain.apply(batch, passes[-1].accept)
        rows += rows_of(applied.batch)
        refused.update({refusal.offset: (refusal.node, refusal.error) for refusal in applied.refused})
    left_out = frozenset(record.offset for record in records if not sink.ns.matches(record.ns))
    out = [row for row in rows if row.offset not in refused]
    return Course(left_out, _refusals(sink, refused), out, None)


def _refusals(sink: SinkNode, refused: dict[int, tuple[str, str]]) -> list[Pass]:
    """What functions refused, each told as the pass of its node."""
    nodes = {step.name: step for step in sink.steps}
    told: dict[str, dict[int, str]] = {}
    for offset, (node, error) in refused.items():
        told.setdefault(node, {})[offset] = error
    return [Pass(nodes[node], (), (), errors) for node, errors in told.items() if node in nodes]
