"""The home of Spark that sessions are given: the real one, with PySpark as files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
import pytest

from penstock.spark.home import make_home, start_by_launcher, start_directly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REAL = Path(pyspark.__file__).parent


def test_the_home_has_what_spark_looks_for(tmp_path: Path) -> None:
    home = make_home(tmp_path, REAL)
    assert home == tmp_path
    assert (home / "bin" / "spark-submit").is_file()
    assert sorted(jar.name for jar in (home / "jars").iterdir()) == sorted(
        jar.name for jar in (REAL / "jars").iterdir()
    )
    assert {entry.name for entry in (home / "python" / "lib").iterdir()} == {
        zip.name for zip in (REAL / "python" / "lib").iterdir()
    }


def test_its_spark_submit_may_be_another_command(tmp_path: Path) -> None:
    home = make_home(tmp_path, REAL)
    start_directly(home, ["/bin/echo", "a 'quoted' word", "$HOME"])
    told = subprocess.run([home / "bin" / "spark-submit", "and one *"], capture_output=True, text=True)
    assert told.stdout == "a 'quoted' word $HOME and one *\n"
    start_by_launcher(home, REAL)
    assert (home / "bin" / "spark-submit").resolve() == REAL / "bin" / "spark-submit"


def test_python_finds_the_same_packages_there_uncompressed(tmp_path: Path) -> None:
    library = make_home(tmp_path, REAL) / "python" / "lib"
    path = os.pathsep.join(str(entry) for entry in library.iterdir())
    code = "import pyspark, py4j; print(pyspark.__file__); print(pyspark.__version__); print(py4j.__file__)"
    told = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    file, version, py4j = told.stdout.split()
    assert Path(file).is_relative_to(library)
    assert Path(py4j).is_relative_to(library)
    assert Path(file).resolve() == REAL / "__init__.py"
    assert version == pyspark.__version__


def test_an_installation_of_another_shape_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    place = tmp_path / "home"
    place.mkdir()
    assert make_home(place, tmp_path / "spark") == tmp_path / "spark"


@pytest.mark.spark
def test_workers_import_pyspark_from_files_that_stay_compiled(spark: SparkSession) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__]})

    (row,) = spark.range(1, numPartitions=1).mapInArrow(where, "file STRING").collect()
    assert Path(row.file).is_file()
    assert Path(row.file).resolve() == REAL / "__init__.py"
