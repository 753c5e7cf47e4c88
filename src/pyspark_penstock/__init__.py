"""What lets Spark find the data source by itself: a top-level module `pyspark_*` with a `DefaultSource`.

With Penstock installed, `.format("penstock")` works without `spark.dataSource.register`.
"""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
