"""`delta` and `iceberg`: what their connectors do not have to be there for, and the kit where they are.

The kit runs in a process of its own, on a PySpark that the connectors are made for (`tests/servers/lake.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.servers.cache import UnavailableError, missing

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, SinkPosition
from penstock.adaptors.lake.session import joined
from penstock.base.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIT = Path(__file__).with_name("lake_kit.py")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("adaptor", ["Delta", "Iceberg"])
@pytest.mark.parametrize("side", ["Sink", "Source"])
def test_the_kit_holds_with_the_spark_of_the_connector(adaptor: str, side: str, tmp_path: Path) -> None:
    from tests.servers.lake import DELTA, ICEBERG, jars_of, pyspark

    try:
        place = pyspark()
        jars_of(DELTA, ICEBERG)
    except UnavailableError as error:
        missing("connector of Spark", error)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        str(KIT),
        "-k",
        f"Test{adaptor}{side}",
        "--basetemp",
        str(tmp_path),
    ]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(place)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout


ADAPTORS = {
    "io.delta:delta-spark_4.3_2.13": a.delta(uri="/srv/lake"),
    "org.apache.iceberg:iceberg-spark-runtime-4.3_2.13": a.iceberg(catalog="lake"),
}


@pytest.mark.spark
@pytest.mark.parametrize("package", ADAPTORS)
def test_a_spark_without_the_connector_is_told_with_its_coordinate(spark: SparkSession, package: str) -> None:
    adaptor: Adaptor = ADAPTORS[package]
    for findings in (adaptor.sink().inspect(), adaptor.source().inspect(lambda ns: True).findings):
        (finding,) = findings
        assert finding.fatal
        assert package in (finding.fix or "")
    with pytest.raises(UsageError, match="has no connector"):
        adaptor.sink().publisher().open(SinkPosition("log", 0, 0))
    with pytest.raises(UsageError, match="has no connector"):
        adaptor.source().namespaces()


def test_settings_of_spark_from_several_hands_are_joined() -> None:
    delta, iceberg = (adaptor.spark_settings() for adaptor in ADAPTORS.values())
    both = joined(delta, iceberg, delta, {"spark.jars.packages": "a:b:1"})
    assert both["spark.sql.extensions"].split(",") == [
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    ]
    assert both["spark.jars.packages"] == "a:b:1"


def test_a_warehouse_sets_up_a_catalog_of_files() -> None:
    found = a.iceberg(catalog="lake", warehouse="/srv/lake").spark_settings()
    assert found["spark.sql.catalog.lake.type"] == "hadoop"
    assert found["spark.sql.catalog.lake.warehouse"] == "/srv/lake"


def test_a_catalog_is_one_name() -> None:
    with pytest.raises(UsageError, match="without dots"):
        a.iceberg(catalog="lake.shop")
