"""What all tests share: one Spark session, and hypothesis without deadlines, since machines are noisy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share the Spark session share a process; those with sessions of their own stay together by module.

    The others run beside them (`-n 2`).
    """
    for item in items:
        if item.get_closest_marker("spark") is not None:
            shared = "spark" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("spark" if shared else item.nodeid.partition("::")[0]))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session, started once for all tests that ask for one. Leave no query running in it."""
    from penstock.spark.session import session, stop

    spark = session(app="tests", cores=2, short_lived=True, scratch=tmp_path_factory.mktemp("spark"))
    yield spark
    stop(spark)
