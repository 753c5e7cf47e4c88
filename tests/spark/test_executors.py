"""Spark is the engine: on two executor processes functions and writers run there; the driver stays small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

JOB = '''
"""Runs a pipeline twice on two executor processes, and tells what ran where and what the driver took."""
import gc, json, os, sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil

from penstock import Pipeline, adaptors as a
from penstock.adaptors.file_sink import FileSink, FileStager
from penstock.functions.base import Editable, Function
from penstock.pipeline.runner import run
from penstock.spark import batch
from penstock.spark.session import session, stop

root, many = Path(sys.argv[1]), int(sys.argv[2])
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


class NotingStager(FileStager):
    def stage(self, stage, rows):
        note("writer")
        return super().stage(stage, rows)


FileSink.stager = lambda self: NotingStager(self._envelope)

reports = []
real_decode = batch._decode_staged
batch._decode_staged = lambda text: (reports.append(text), real_decode(text))[1]


def pipeline(name, count):
    made = Pipeline(name, partitions=4, batch_messages=100_000)
    made.modules = ("__main__",)
    source = made.source("in", a.generate(count=count, size=200, namespaces=["marker-in-every-message"]))
    source.transform("note", Note()).save("out", a.file(uri=f"file://{root}/{name}.jsonl"))
    return made


spark = session(app="executors", master="local-cluster[2,1,1024]", scratch=root / "spark")


def memory():
    gc.collect()
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    return psutil.Process().memory_info().rss, runtime.totalMemory() - runtime.freeMemory()


told = {}
for name, count in (("warm", 10_000), ("few", 10_000), ("many", many)):
    summary = run(pipeline(name, count), data_dir=root / name, once=True, spark=spark)
    assert summary.exit_code == 0, summary
    told[name] = memory()
told["driver"] = [os.getpid(), int(spark._jvm.java.lang.ProcessHandle.current().pid())]
told["reports"] = [len(text) for text in reports]
told["bodies"] = sum("seq" in text for text in reports)
told["lines"] = sum(1 for _ in (root / "many.jsonl").open())
stop(spark)
print(json.dumps(told))
'''


def run_job(tmp_path: Path, many: int) -> tuple[dict[str, Any], list[dict[str, object]]]:
    (tmp_path / "job.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py"), str(tmp_path), str(many)],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    notes = [json.loads(path.read_text()) for path in (tmp_path / "notes").iterdir()]
    return json.loads(done.stdout.splitlines()[-1]), notes


def check_job(told: dict[str, Any], notes: list[dict[str, object]], many: int) -> None:
    driver_python, driver_jvm = told["driver"]
    for kind in ("function", "writer"):
        ran = [note for note in notes if note["kind"] == kind]
        assert {note["pid"] for note in ran}.isdisjoint({driver_python}), f"a {kind} ran in the runner"
        executors = {note["jvm"] for note in ran}
        assert len(executors) == 2, f"{kind}s ran in {executors}, expected two executors"
        assert driver_jvm not in executors
    assert told["lines"] == many
    assert told["bodies"] == 0, "a report carries a message's body"
    assert max(told["reports"]) < 2000, "a report grows with the data"
    for before, after, what in zip(told["few"], told["many"], ("Python", "JVM"), strict=True):
        grown = (after - before) / 2**20
        assert grown < 64, f"the driver's {what} grew by {grown:.0f} MiB from 10,000 to {many:,} documents"


@pytest.mark.timeout(400)
def test_functions_and_writers_run_on_the_executors_and_no_body_reaches_the_driver(tmp_path: Path) -> None:
    check_job(*run_job(tmp_path, 100_000), 100_000)


@pytest.mark.soak
def test_soak_the_driver_stays_small_from_ten_thousand_to_a_million_documents(tmp_path: Path) -> None:
    check_job(*run_job(tmp_path, 1_000_000), 1_000_000)
