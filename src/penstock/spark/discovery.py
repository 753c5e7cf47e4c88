"""Spark's look for data sources in Python, left out where it would find nothing but Penstock's own.

Before the first data source is used Spark starts two Python processes that import every module named `pyspark_*`, which
takes as long as half a second. A run registers Penstock's source by itself. So if there is no module of that name but
Penstock's, the look is told its result beforehand; otherwise it is left to Spark.
"""

from __future__ import annotations

import logging
import pkgutil
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS = "pyspark_penstock"
_PREFIX = "pyspark_"
_MANAGER = "org.apache.spark.sql.execution.datasources.DataSourceManager$"

log = logging.getLogger(__name__)


def leave_out_discovery(spark: SparkSession) -> bool:
    """Whether Spark was told that there is nothing to find. Of another Spark than is known here it is not."""
    if found := others():
        log.debug("Spark looks for the data sources of %s", ", ".join(found))
        return False
    jvm: Any = spark._jvm
    try:
        manager = getattr(getattr(jvm, _MANAGER), "MODULE$")
        if manager.dataSourceBuilders().isEmpty():
            nothing = getattr(getattr(jvm, "scala.collection.immutable.Map$"), "MODULE$").empty()
            getattr(manager, "dataSourceBuilders_$eq")(jvm.scala.Some(nothing))
    except (Py4JError, TypeError, AttributeError) as error:
        log.debug("Spark looks for data sources: %s", error)
        return False
    return True


def others() -> list[str]:
    """The modules that Spark would look into, but for our own."""
    names = {module.name for module in pkgutil.iter_modules()}
    return sorted(name for name in names if name.startswith(_PREFIX) and name != OURS)
