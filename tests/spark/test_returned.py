"""What becomes of the frame that a DataFrame function gave back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from penstock.base.errors import UsageError
from penstock.spark.returned import NO_OFFSET, TEXT, TYPES, messages_of

pytestmark = pytest.mark.spark

Function = Callable[[DataFrame], DataFrame]

NEW = "parse_json('{\"new\": 1.0}')"


def returned(spark: SparkSession, function: Function) -> list[dict[str, object]]:
    """The rows of two messages, 0 and 1, behind a function."""
    rows = [(n, None, "copy", "insert", "a", None, None, f'{{"n": {n}.0}}', "a") for n in range(2)]
    frame = spark.createDataFrame(rows, ", ".join(f"{name} {kind}" for name, kind in TYPES.items()))
    shown = frame.withColumn(TEXT, sf.col("data")).withColumn("data", sf.try_parse_json("data"))
    messages = messages_of("step", shown, function(shown))
    assert dict(messages.dtypes) == {name: kind.lower() for name, kind in TYPES.items()}
    return [row.asDict() for row in messages.orderBy("offset").collect()]


def texts(spark: SparkSession, function: Function) -> list[object]:
    return [row["data"] for row in returned(spark, function)]


@pytest.mark.parametrize("assigned", [0, 1])
def test_what_one_part_of_a_union_assigns_counts_and_the_others_keep_their_text(
    spark: SparkSession, assigned: int
) -> None:
    """Spark gives a union the columns of its first part, which nobody assigned."""
    wanted: list[object] = ['{"n": 0.0}', '{"n": 1.0}']
    wanted[assigned] = '{"new":1}'

    def parts(df: DataFrame) -> tuple[DataFrame, DataFrame]:
        new = df.where(f"offset = {assigned}").withColumn("data", sf.expr(NEW))
        return new, df.where(f"offset <> {assigned}")

    assert texts(spark, lambda df: parts(df)[0].union(parts(df)[1])) == wanted
    assert texts(spark, lambda df: parts(df)[1].union(parts(df)[0])) == wanted


def test_what_goes_through_a_name_of_a_query_keeps_its_text(spark: SparkSession) -> None:
    """There Spark gives all columns new identities, also those that nobody assigned."""

    def query(df: DataFrame) -> DataFrame:
        df.createOrReplaceTempView("named")
        return spark.sql("WITH all AS (SELECT * FROM named) SELECT * FROM all WHERE op = 'insert'")

    assert texts(spark, query) == ['{"n": 0.0}', '{"n": 1.0}']


def test_a_field_that_is_null_stays_one(spark: SparkSession) -> None:
    struct = sf.struct(sf.lit(1).alias("a"), sf.lit(None).cast("string").alias("b"))
    assert texts(spark, lambda df: df.withColumn("data", struct)) == ['{"a":1,"b":null}'] * 2


def test_columns_of_other_types_become_those_of_a_message(spark: SparkSession) -> None:
    def odd(df: DataFrame) -> DataFrame:
        offset = sf.when(sf.col("offset") == 0, "0").otherwise("one")
        ts = sf.when(sf.col("offset") == 0, "2026-11-16T02:14:14Z").otherwise("never")
        return df.withColumns({"offset": offset, "ts": ts, "key": sf.lit(5), "origin": sf.lit(None)})

    rows = returned(spark, odd)
    assert [(row["offset"], row["key"], row["origin"]) for row in rows] == [
        (0, "5", "a"),
        (NO_OFFSET, "5", "a"),
    ]
    assert [row["ts"] is None for row in rows] == [False, True]


@pytest.mark.parametrize(
    "function, complaint",
    [
        (lambda df: df.drop("op"), "transformation 'step' lost columns of the message: op"),
        (lambda df: df.count(), "transformation 'step' returned int, expected a DataFrame"),
        (
            lambda df: df.select("*", sf.lit("{}").alias("Data")),
            "transformation 'step' returned more than one column 'data'",
        ),
    ],
)
def test_what_is_no_frame_of_messages_is_refused(
    spark: SparkSession, function: Function, complaint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        returned(spark, function)
    assert refused.value.message == complaint
