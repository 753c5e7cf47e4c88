"""Connectors of Spark from Maven Central, and a Spark that those of Delta Lake and Iceberg support.

No release of the two runs on the Spark that Penstock is made for, yet. Their tests run in a process of their own, on
the PySpark of `PYSPARK`, which is kept in the cache of the test servers and put in front of the usual one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.servers.cache import UnavailableError, cached
from tests.servers.maven import jars

from penstock.adaptors.delta.tables import PACKAGE as DELTA_PACKAGE
from penstock.adaptors.delta.tables import SETTINGS
from penstock.adaptors.iceberg.tables import EXTENSIONS
from penstock.adaptors.iceberg.tables import PACKAGE as ICEBERG_PACKAGE
from penstock.adaptors.lake.session import joined

PYSPARK = "4.1.4"
SPARK = "4.1"
DELTA, ICEBERG = DELTA_PACKAGE.coordinate(SPARK), ICEBERG_PACKAGE.coordinate(SPARK)
CATALOG = "lake"


def jars_of(*coordinates: str) -> str:
    """The jars of connectors, as `spark.jars` takes them. Raises `UnavailableError` if they cannot be fetched."""
    found = []
    for coordinate in coordinates:
        _, artifact, version = coordinate.split(":")
        place = jars(f"{artifact}-{version}", coordinate, exclude=["org.scala-lang:scala-library"])
        found += sorted(map(str, place.glob("*.jar")))
    return ",".join(found)


def pyspark() -> Path:
    """A directory with the PySpark that the connectors are made for."""

    def fetch(place: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place)]
        wanted = [f"pyspark=={PYSPARK}", "py4j==0.10.9.9"]
        done = subprocess.run([*command, *wanted], capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            raise UnavailableError(f"cannot fetch pyspark {PYSPARK}: {done.stderr[-500:]}")

    return cached(f"pyspark-{PYSPARK}", fetch)


def settings(warehouse: Path) -> Mapping[str, str]:
    """For a session that has both connectors; Iceberg's tables are in the catalog `lake`."""
    catalog = f"spark.sql.catalog.{CATALOG}"
    return joined(
        SETTINGS,
        {
            "spark.jars": jars_of(DELTA, ICEBERG),
            "spark.sql.extensions": EXTENSIONS,
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": str(warehouse),
            # Of tables that are as small as those of tests, the state is one partition.
            "spark.databricks.delta.snapshotPartitions": "1",
        },
    )


def version_of(coordinate: str) -> str:
    """As the table of results names it: `delta-spark_4.1_2.13 4.4.0, Spark 4.1.4`."""
    _, artifact, version = coordinate.split(":")
    return f"{artifact} {version}, Spark {PYSPARK}"
