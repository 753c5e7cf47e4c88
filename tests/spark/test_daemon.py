"""Workers begin with what our tasks need, whatever they are to do."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.spark import daemon
from penstock.spark.daemon import LOADED

pytestmark = pytest.mark.spark


def test_a_worker_is_forked_with_our_modules_loaded_and_frozen(spark: SparkSession) -> None:
    wanted = LOADED

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc
        import sys

        import psutil

        missing = [module for module in wanted if module not in sys.modules]
        daemon = psutil.Process().parents()[0].cmdline()
        for _ in batches:
            yield pa.RecordBatch.from_pylist(
                [{"daemon": daemon, "missing": missing, "frozen": gc.get_freeze_count()}]
            )

    schema = "daemon ARRAY<STRING>, missing ARRAY<STRING>, frozen BIGINT"
    (row,) = spark.range(1).coalesce(1).mapInArrow(look, schema).collect()
    assert row.daemon[-2:] == ["penstock.spark.daemon", "pyspark.worker"]
    assert row.missing == []
    assert row.frozen > 10_000


def test_what_is_loaded_opens_no_connection(spark: SparkSession) -> None:
    """Modules alone may be there at a fork: what gRPC starts, it starts with the first channel."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        from pathlib import Path

        links = [os.readlink(one) for one in Path(f"/proc/{os.getppid()}/fd").iterdir()]
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"sockets": sum(link.startswith("socket:") for link in links)}])

    (row,) = spark.range(1).coalesce(1).mapInArrow(look, "sockets BIGINT").collect()
    assert row.sockets == 1, "the one that it listens on"


def test_a_module_that_cannot_be_loaded_is_left_to_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark of another version may lack what one of ours needs, and the task at hand may not need that one."""
    started = []
    monkeypatch.setattr(daemon, "LOADED", ("pyspark.no_such_module", "colorsys"))
    monkeypatch.setattr(sys, "argv", ["daemon", "pyspark.worker"])
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr("pyspark.daemon.manager", lambda: started.append("colorsys" in sys.modules))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    daemon.main()
    assert started == [True]
