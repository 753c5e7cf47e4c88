"""What the first batch would wait for, done before it, while the query is still being set up.

Behind the session's start Spark sets up the query, on one core; only with the first task would it start the process
that it forks workers from, which has half a second of modules to load. A job of one task that does nothing has that
done meanwhile. It is none of Spark SQL: a query of its own would take as long to plan as the one that it is to help.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def warm_up(spark: SparkSession) -> threading.Thread:
    """Run the job in a thread of its own; nobody waits for it, and its failure is the first batch's to tell."""
    thread = threading.Thread(target=_run, args=(spark,), name="warm up", daemon=True)
    thread.start()
    return thread


def _run(spark: SparkSession) -> None:
    try:
        spark.sparkContext.parallelize([0], 1).mapPartitions(_nothing).collect()
    except Exception as error:  # noqa: BLE001 - a session that ends meanwhile may raise anything
        log.debug("no warm-up: %s", error)


def _nothing(rows: Iterable[int]) -> Iterator[int]:
    return iter(())
