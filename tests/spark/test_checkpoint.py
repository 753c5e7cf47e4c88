"""A checkpoint that was begun here is one that Spark takes for its own."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.checkpoint import begun

pytestmark = pytest.mark.spark


def test_a_query_runs_on_it_and_keeps_its_name(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = begun(tmp_path / "a" / "1")
    given = json.loads((checkpoint / "metadata").read_text())["id"]
    ticked = threading.Event()
    ticks = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="1", numPartitions="1").load()
    writer = ticks.writeStream.foreachBatch(lambda frame, number: ticked.set())
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        assert ticked.wait(60)
        assert query.id == given
    finally:
        query.stop()
    assert (checkpoint / "offsets" / "0").exists()


def test_nothing_may_be_there(tmp_path: Path) -> None:
    begun(tmp_path / "1")
    with pytest.raises(FileExistsError):
        begun(tmp_path / "1")
