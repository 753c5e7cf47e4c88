"""Spark's home as its Python processes should find it: with PySpark as files, not as a zip.

Spark starts several Python processes for a session and one more for every query, and has each of them import PySpark
from `python/lib/pyspark.zip`. Out of a zip Python compiles every module anew, which takes a second of each process's
life. A home made here is the real one, link by link; only where the zips are expected it has directories of the same
names, with the installed packages in them. Those are compiled once, for all.

Its `spark-submit` may be the JVM itself (`start_directly`). Spark's own is two shell scripts and a small JVM, which
only finds out what the command line of the real one is: a third of a second of each start.
"""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Sequence
from pathlib import Path

_LINKED = ("conf", "data", "jars", "sbin")
_SUBMIT = "spark-submit"


def make_home(place: Path, spark_home: Path) -> Path:
    """Make such a home at `place`, which is empty, for the Spark in `spark_home`. Returns the one to use."""
    library = spark_home / "python" / "lib"
    packages = {"pyspark": spark_home, "py4j": _package("py4j")}
    zips = {found: next((zip for zip in library.glob(f"{found}*.zip")), None) for found in packages}
    for name in _LINKED:
        if (spark_home / name).exists():
            (place / name).symlink_to(spark_home / name)
    (place / "bin").mkdir()
    for program in (spark_home / "bin").glob("*"):
        (place / "bin" / program.name).symlink_to(program)
    for name, package in packages.items():
        zip = zips[name]
        if zip is None or package is None:  # an installation of another shape: leave it as it is
            return spark_home
        directory = place / "python" / "lib" / zip.name
        directory.mkdir(parents=True)
        (directory / name).symlink_to(package)
    return place


def start_directly(home: Path, command: Sequence[str]) -> None:
    """Have the `spark-submit` of a home made here be this command, which gets its arguments.

    Where nothing in that home can be executed, only starting it tells.
    """
    submit = home / "bin" / _SUBMIT
    submit.unlink()
    # As Spark's own does, so that equal texts have equal hashes in all workers.
    submit.write_text(f'#!/bin/sh\nexport PYTHONHASHSEED=0\nexec {shlex.join(command)} "$@"\n')
    submit.chmod(0o700)


def start_by_launcher(home: Path, spark_home: Path) -> None:
    """Have it be Spark's own again."""
    submit = home / "bin" / _SUBMIT
    submit.unlink()
    submit.symlink_to(spark_home / "bin" / _SUBMIT)


def _package(name: str) -> Path | None:
    found = importlib.util.find_spec(name)
    return Path(found.origin).parent if found is not None and found.origin is not None else None
