"""The kit against `delta` and `iceberg`, for a process whose PySpark their connectors support.

`test_delta.py` and `test_iceberg.py` start it; by hand:

    PYTHONPATH=$(python -c 'from tests.servers.lake import pyspark; print(pyspark())') pytest tests/adaptors/lake_kit.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.adaptors.lake_subjects import DeltaTables, DeltaTarget, IcebergTables, IcebergTarget
from tests.servers.lake import settings

from penstock.testing.adaptors import SinkConformance, SourceConformance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with both connectors."""
    from penstock.spark.session import session, stop

    chosen = settings(tmp_path_factory.mktemp("warehouse"))
    scratch = tmp_path_factory.mktemp("spark")
    spark = session(app="lake", cores=2, scratch=scratch, settings=chosen, fast_start=False)
    yield spark
    stop(spark)


class TestDeltaSink(SinkConformance):
    @pytest.fixture
    def subject(self, lake: SparkSession, tmp_path: Path) -> DeltaTarget:
        return DeltaTarget(lake, tmp_path / "lake")


class TestDeltaSource(SourceConformance):
    @pytest.fixture
    def subject(self, lake: SparkSession, tmp_path: Path) -> DeltaTables:
        return DeltaTables(lake, tmp_path / "lake")


class TestIcebergSink(SinkConformance):
    @pytest.fixture
    def subject(self, lake: SparkSession, tmp_path: Path) -> IcebergTarget:
        return IcebergTarget(lake, tmp_path)


class TestIcebergSource(SourceConformance):
    @pytest.fixture
    def subject(self, lake: SparkSession, tmp_path: Path) -> IcebergTables:
        return IcebergTables(lake, tmp_path)
