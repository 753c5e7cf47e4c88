"""What all tests share: one Spark session, one Spark cluster, and hypothesis without deadlines.

The JVMs that tests start, and those of the commands that tests start, compile for a quick start: most live for
seconds, and half of their time would go into code that runs once. Name options of your own in the environment
to test with others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.spark.standalone import Standalone

for _options in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_options, "-XX:TieredStopAtLevel=1")

# Machines are noisy.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


_FIRST_HALF = ("test_runner.py", "test_hostile_spark.py", "test_examples.py")
"""Of the tests that share a session; about half of them by time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a Spark session share a process: two sessions, one for each of two cores.

    So do those that share the cluster; those with sessions of their own stay together by module. The others run
    beside them (`-n 2`).
    """
    for item in items:
        if item.get_closest_marker("spark") is None:
            continue
        fixtures = getattr(item, "fixturenames", ())
        group = item.nodeid.partition("::")[0]
        if "spark" in fixtures:
            group = "spark 1" if item.path.name in _FIRST_HALF else "spark 2"
        elif "standalone_master" in fixtures:
            group = "standalone master"
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session, started once for all tests that ask for one. Leave no query running in it."""
    from penstock.spark.session import session, stop

    spark = session(app="tests", cores=2, short_lived=True, scratch=tmp_path_factory.mktemp("spark"))
    yield spark
    stop(spark)


@pytest.fixture(scope="session")
def standalone_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A Spark master with two workers, each with a core, started once for all tests that ask for it."""
    from tests.spark.standalone import standalone

    with standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
