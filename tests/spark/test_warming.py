"""The first batch's work done before it."""

from __future__ import annotations

import threading
from typing import cast

import pytest
from pyspark.sql import SparkSession

from penstock.spark.warming import warm_up


@pytest.mark.spark
def test_a_warm_up_ends_by_itself(spark: SparkSession) -> None:
    thread = warm_up(spark)
    thread.join(60)
    assert not thread.is_alive()


def test_a_warm_up_of_a_session_that_has_ended_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended:
        sparkContext = None  # noqa: N815

    said: list[object] = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    warm_up(cast(SparkSession, Ended())).join(60)
    assert said == []
