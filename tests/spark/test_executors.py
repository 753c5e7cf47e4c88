"""Spark is the engine: on a cluster functions and writers run in its executors, and the driver stays small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.spark.standalone import Standalone

pytestmark = pytest.mark.spark

JOB = '''
"""Runs a pipeline twice on a cluster, and tells what ran where and what the driver took."""
import gc, json, os, sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil
from pyspark.sql.classic.dataframe import DataFrame

from penstock import Pipeline, adaptors as a, functions as f
from penstock.adaptors.file import File
from penstock.adaptors.file.sink import FileSink, FileStager
from penstock.functions.base import Editable, Function
from penstock.pipeline.runner import run
from penstock.spark.session import session, stop

root, (master, settings, many, size) = Path(sys.argv[1]), json.loads(sys.argv[2])
notes = root / "notes"
notes.mkdir()


def note(kind):
    """Leave a note which process this is, and which JVM it works for."""
    mark = notes / f"{kind}-{os.getpid()}"
    if not mark.exists():
        java = [p.pid for p in psutil.Process().parents() if "java" in p.name()]
        mark.write_text(json.dumps({"kind": kind, "pid": os.getpid(), "jvm": java[0] if java else None}))


@dataclass(frozen=True)
class Note(Function):
    name: ClassVar[str] = "note"
    description: ClassVar[str] = "for tests"

    def apply(self, message: Editable) -> bool:
        note("function")
        return True


def by_python(message):
    note("python")
    message.data["by"] = "python"
    return message


SCRIPT = "function transform(msg) { msg.data.and = 'js'; return msg }"


class NotingStager(FileStager):
    def stage(self, stage, rows):
        note("writer")
        return super().stage(stage, rows)


class NotingSink(FileSink):
    def stager(self):
        return NotingStager(self._writing, self._target)


real_sink = File.sink


def noting(self):
    sink = real_sink(self)
    sink.__class__ = NotingSink
    return sink


File.sink = noting

reports = []
real_collect = DataFrame.collect


def collect(frame):
    rows = real_collect(frame)
    reports.extend(str(tuple(row)) for row in rows)
    return rows


def refuse(*arguments):
    raise AssertionError("rows are brought to the driver in a way that is not looked at")


DataFrame.collect = collect
DataFrame.toArrow = DataFrame.toPandas = DataFrame.toLocalIterator = refuse


def pipeline(name, count):
    made = Pipeline(name, partitions=4, batch_messages=100_000)
    made.modules = ("__main__",)
    source = made.source("in", a.generate(count=count, size=size, namespaces=["marker-in-every-message"]))
    noted = source.transform("note", Note()).transform("python", f.python(by_python))
    framed = noted.transform("js", f.js(source=SCRIPT)).transform("frame", lambda df: df.where("data:seq::int >= 0"))
    framed.save("out", a.file(uri=f"file://{root}/{name}.jsonl"))
    return made


spark = session(app="executors", master=master, settings=settings, scratch=root / "spark")


def memory():
    gc.collect()
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    return psutil.Process().memory_info().rss, runtime.totalMemory() - runtime.freeMemory()


told = {}
for name, count in (("few", 2_000), ("many", many)):
    summary = run(pipeline(name, count), data_dir=root / name, once=True, spark=spark)
    assert summary.exit_code == 0, summary
    told[name] = memory()
told["driver"] = [os.getpid(), int(spark._jvm.java.lang.ProcessHandle.current().pid())]
told["reports"] = [len(text) for text in reports]
told["bodies"] = sum("seq" in text for text in reports)
documents = [json.loads(line) for line in (root / "many.jsonl").open()]
told["lines"] = sum(document["by"] == "python" and document["and"] == "js" for document in documents)
stop(spark)
print(json.dumps(told))
'''


def run_job(
    tmp_path: Path, cluster: Standalone, many: int, size: int
) -> tuple[dict[str, Any], list[dict[str, object]]]:
    (tmp_path / "job.py").write_text(JOB)
    told = json.dumps([cluster.master, dict(cluster.settings), many, size])
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py"), str(tmp_path), told],
        env=os.environ | dict(cluster.environment),
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{cluster.log()}"
    notes = [json.loads(path.read_text()) for path in (tmp_path / "notes").iterdir()]
    return json.loads(done.stdout.splitlines()[-1]), notes


def check_job(told: dict[str, Any], notes: list[dict[str, object]], many: int) -> None:
    driver_python, driver_jvm = told["driver"]
    for kind in ("function", "python", "writer"):
        ran = [note for note in notes if note["kind"] == kind]
        assert {note["pid"] for note in ran}.isdisjoint({driver_python}), f"a {kind} ran in the runner"
        executors = {note["jvm"] for note in ran}
        assert len(executors) == 2, f"{kind}s ran in {executors}, expected two executors"
        assert driver_jvm not in executors
    assert told["lines"] == many
    assert told["reports"], "nothing was looked at"
    assert told["bodies"] == 0, "a report carries a message's body"
    assert max(told["reports"]) < 2000, "a report grows with the data"
    for before, after, what in zip(told["few"], told["many"], ("Python", "JVM"), strict=True):
        grown = (after - before) / 2**20
        assert grown < 64, f"the driver's {what} grew by {grown:.0f} MiB from 2,000 to {many:,} documents"


@pytest.mark.timeout(400)
def test_functions_and_writers_run_on_the_executors_and_no_body_reaches_the_driver(
    tmp_path: Path, standalone_master: Standalone
) -> None:
    """The documents come to 120 MB: a driver that held them would have grown by twice what it may."""
    many, size = 7_500, 16_000
    check_job(*run_job(tmp_path, standalone_master, many, size), many)


@pytest.mark.soak
def test_soak_the_driver_stays_small_from_two_thousand_to_a_million_documents(
    tmp_path: Path, standalone_master: Standalone
) -> None:
    many, size = 1_000_000, 200
    check_job(*run_job(tmp_path, standalone_master, many, size), many)
