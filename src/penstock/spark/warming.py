"""The first batch's work done once before it, while the query is still being set up.

A query's start is a chain of questions to Python processes, one after the other, which leaves cores idle; only then
would Spark start the process that it forks workers from, which has a second of modules to load, and meet the code of a
staging job for the first time. A job of the same form that does nothing has all of this done meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def warm_up(spark: SparkSession) -> threading.Thread:
    """Run the job in a thread of its own; nobody waits for it, and its failure is the first batch's to tell."""
    thread = threading.Thread(target=_run, args=(spark,), name="warm up", daemon=True)
    thread.start()
    return thread


def _run(spark: SparkSession) -> None:
    try:
        tasks = spark.sparkContext.defaultParallelism
        spark.range(0, tasks, 1, tasks).mapInArrow(_nothing, "report STRING").collect()
    except Exception as error:  # noqa: BLE001 - a session that ends meanwhile may raise anything
        log.debug("no warm-up: %s", error)


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())
