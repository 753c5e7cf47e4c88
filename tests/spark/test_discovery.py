"""Spark's look for data sources: left out only where it would find nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from penstock.spark.discovery import leave_out_discovery, others


def test_a_module_of_somebody_else_is_left_for_spark_to_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert others() == []
    (tmp_path / "pyspark_other.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert others() == ["pyspark_other"]
    assert not leave_out_discovery(cast(SparkSession, None)), "Spark is not even asked"


def test_a_spark_that_is_made_otherwise_looks_as_ever() -> None:
    class Other:
        _jvm = None

    assert not leave_out_discovery(cast(SparkSession, Other()))


@pytest.mark.spark
def test_spark_knows_that_there_is_nothing_to_find(spark: SparkSession) -> None:
    assert leave_out_discovery(spark)
    manager: Any = getattr(
        getattr(spark._jvm, "org.apache.spark.sql.execution.datasources.DataSourceManager$"), "MODULE$"
    )
    assert manager.dataSourceBuilders().isDefined()
