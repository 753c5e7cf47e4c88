"""Spark's home as its Python processes should find it: with PySpark as files, not as a zip.

Spark starts several Python processes for a session and one more for every query, and has each of them import PySpark
from `python/lib/pyspark.zip`. Out of a zip Python compiles every module anew, which takes a second of each process's
life. A home made here is the real one, link by link; only where the zips are expected it has directories of the same
names, with the installed packages in them. Those are compiled once, for all.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

_LINKED = ("bin", "conf", "data", "jars", "sbin")


def make_home(place: Path, spark_home: Path) -> Path:
    """Make such a home at `place`, which is empty, for the Spark in `spark_home`. Returns the one to use."""
    library = spark_home / "python" / "lib"
    packages = {"pyspark": spark_home, "py4j": _package("py4j")}
    zips = {found: next((zip for zip in library.glob(f"{found}*.zip")), None) for found in packages}
    for name in _LINKED:
        if (spark_home / name).exists():
            (place / name).symlink_to(spark_home / name)
    for name, package in packages.items():
        zip = zips[name]
        if zip is None or package is None:  # an installation of another shape: leave it as it is
            return spark_home
        directory = place / "python" / "lib" / zip.name
        directory.mkdir(parents=True)
        (directory / name).symlink_to(package)
    return place


def _package(name: str) -> Path | None:
    found = importlib.util.find_spec(name)
    return Path(found.origin).parent if found is not None and found.origin is not None else None
