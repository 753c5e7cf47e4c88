"""Operators whose result depends on where a batch ends are found wherever they stand in a plan."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from penstock import functions as f
from penstock.base.errors import UsageError
from penstock.functions.sql import SqlFunction
from penstock.log.message import Mode, Op
from penstock.log.record import Record
from penstock.pipeline.compiled import compiled
from penstock.pipeline.definition import DataFrameFunction, TransformNode
from penstock.pipeline.namespace import Namespace
from penstock.spark.single import batch_of
from penstock.spark.transform import Earlier, FrameStep, segments

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "function, what",
    [
        (lambda df: df.limit(1), "a limit"),
        (lambda df: df.offset(1), "a limit"),
        (lambda df: df.drop("data").distinct().withColumn("data", sf.lit("{}")), "a de-duplication"),
        (lambda df: df.join(df.select("ns"), "ns"), "a join of the messages with themselves"),
        (
            lambda df: df.drop("data").groupBy("ns").applyInPandas(lambda rows: rows.head(1), df.drop("data").schema)
            .withColumn("data", sf.lit("{}")),
            "a function of groups",
        ),
        (
            f.sql("SELECT * FROM messages WHERE offset IN (SELECT max(offset) FROM messages GROUP BY key)"),
            "a subquery of the messages",
        ),
        (
            f.sql("SELECT * FROM messages m WHERE EXISTS (SELECT 1 FROM messages n WHERE n.offset > m.offset)"),
            "a subquery of the messages",
        ),
        (
            f.sql("WITH m AS (SELECT * FROM messages) SELECT a.* FROM m a JOIN m b ON a.ns = b.ns"),
            "a join of the messages with themselves",
        ),
    ],
)  # fmt: skip
def test_what_sees_more_than_one_message_is_refused_wherever_it_stands_in_the_plan(
    spark: SparkSession, function: SqlFunction | DataFrameFunction, what: str
) -> None:
    """After a restart batches are cut elsewhere: which messages are dropped would depend on it."""
    step = compiled(TransformNode("step", function, Namespace()))
    assert isinstance(step, FrameStep)
    records = [Record(0, 0, Mode.COPY, Op.INSERT, "a", b"{}")]
    frame = spark.createDataFrame(pa.Table.from_batches([batch_of(records)]))
    with pytest.raises(UsageError) as refused:
        Earlier(frame, segments([step], Namespace()), (), 1, check=True)
    assert refused.value.message == (
        f"transformation 'step' uses {what}, which sees only the messages of one batch"
    )
