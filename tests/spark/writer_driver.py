"""A program that copies a journal of lines to another with a streaming query, for tests that kill it.

`writer_driver.py DATA_DIR SCRATCH CHECKPOINT`: copies `copied/in` to `copied/out`, ten lines a batch, until it has all.
It registers nothing: Spark finds the data source by itself.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.base import faults
from penstock.spark.session import session, stop


def copy(spark: SparkSession, data_dir: str, checkpoint: str) -> None:
    lines = spark.readStream.format("penstock").options(dataDir=data_dir, journal="copied/in", maxMessages=10)
    writer = lines.load().select("value").writeStream.format("penstock")
    query = (
        writer.options(dataDir=data_dir, journal="copied/out", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(data_dir: str, scratch: str, checkpoint: str) -> None:
    os.environ[faults.RUNNER] = str(os.getpid())
    spark = session(app="copies", cores=2, short_lived=True, scratch=Path(scratch))
    copy(spark, data_dir, checkpoint)
    stop(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
