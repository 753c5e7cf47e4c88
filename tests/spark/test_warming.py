"""The first batch's work done before it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.spark.warming import warm_up


@pytest.mark.spark
def test_a_warm_up_ends_by_itself(spark: SparkSession) -> None:
    thread = warm_up(spark)
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.spark
def test_tasks_of_a_query_and_those_of_none_are_forked_from_one_process(spark: SparkSession) -> None:
    """Which a warm-up has started, and which takes half a second."""
    warm_up(spark).join(60)
    context = spark.sparkContext
    of_none = context.parallelize([0], 1).map(lambda _: os.getppid()).collect()

    def parent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"pid": [os.getppid()]})

    of_a_query = spark.range(1).coalesce(1).mapInArrow(parent, "pid LONG").collect()
    assert of_none == [row.pid for row in of_a_query]


def test_a_warm_up_of_a_session_that_has_ended_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended:
        sparkContext = None  # noqa: N815

    said: list[object] = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    warm_up(cast(SparkSession, Ended())).join(60)
    assert said == []
