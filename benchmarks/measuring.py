"""What the benchmarks of pipelines share: cases in rotated order, and the log beside other formats that Spark reads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def rotated(rounds: int, cases: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Run each case once a round, starting with another one each time; the median of each."""
    names = list(cases)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken[name].append(cases[name]())
    return {name: statistics.median(values) for name, values in taken.items()}


def log_to_spark(
    root: Path, spark: SparkSession, options: dict[str, str], messages: int, rounds: int
) -> dict[str, float]:
    """A log into Spark's noop sink, beside the same rows from Parquet and from JSON text."""

    def from_log() -> DataFrame:
        return spark.read.format("penstock").options(**options).load()

    schema = from_log().schema
    from_log().write.parquet(str(root / "parquet"))
    from_log().write.json(str(root / "json"))
    frames: dict[str, Callable[[], DataFrame]] = {
        "log": from_log,
        "parquet": lambda: spark.read.parquet(str(root / "parquet")),
        "json": lambda: spark.read.schema(schema).json(str(root / "json")),
    }

    def noop(make: Callable[[], DataFrame]) -> Callable[[], float]:
        return lambda: timed(lambda: make().write.format("noop").mode("overwrite").save())

    for make in frames.values():
        noop(make)()
    seconds = rotated(rounds, {name: noop(make) for name, make in frames.items()})
    return {
        "rows_per_second": messages / seconds["log"],
        "parquet_rows_per_second": messages / seconds["parquet"],
        "json_rows_per_second": messages / seconds["json"],
        "ratio_to_parquet": seconds["parquet"] / seconds["log"],
        "ratio_to_json": seconds["json"] / seconds["log"],
    }
