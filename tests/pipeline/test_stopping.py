"""SIGTERM to a run as a process: sinks have their time to commit, and a second signal waits for nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import Pipeline
from penstock import adaptors as a
from penstock.journal.embedded import connect
from penstock.log.control import Control, ControlEntry
from penstock.pipeline import runner
from penstock.pipeline.definition import load_pipeline
from penstock.pipeline.progress import Progress
from penstock.pipeline.runner import run
from penstock.pipeline.stopping import signals

DEAF = """
import time
from dataclasses import dataclass
from typing import ClassVar
from penstock import Pipeline, adaptors as a
from penstock.adaptors.base import Adaptor, Source

@dataclass(frozen=True)
class Deaf(Adaptor):
    name: ClassVar[str] = "deaf"
    description: ClassVar[str] = "a source that does not hear that it is to end"
    reads: ClassVar[bool] = True

    def source(self):
        return DeafSource()

class DeafSource(Source):
    def namespaces(self):
        return []

    def read(self, accept, resume, stop):
        while True:
            time.sleep(1)
        yield

p = Pipeline("p", stop_timeout="{patience}")
p.source("in", Deaf()).save("out", a.discard())
"""

SLOW = """
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from penstock import Pipeline, adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.adaptors.file.sink import FilePublisher, FileSink

HERE = Path({here!r})

@dataclass(frozen=True)
class Slow(Adaptor):
    name: ClassVar[str] = "slow"
    description: ClassVar[str] = "a file whose publisher waits until it is let go on"
    writes: ClassVar[bool] = True

    def sink(self):
        return SlowSink(HERE / "out.jsonl")

class SlowSink(FileSink):
    def publisher(self):
        return SlowPublisher(HERE / "out.jsonl")

class SlowPublisher(FilePublisher):
    def publish(self, parts, position):
        (HERE / "publishing").touch()
        while not (HERE / "go").exists():
            time.sleep(0.05)
        super().publish(parts, position)

p = Pipeline("p", stop_timeout="1s")
p.source("in", a.generate(count=100)).save("out", Slow())
"""


def started(path: Path, text: str) -> subprocess.Popen[bytes]:
    (path / "p.py").write_text(text)
    command = [sys.executable, "-m", "penstock", "run", "p.py", "--follow", "--data-dir", "data"]
    with (path / "said").open("wb") as said:
        return subprocess.Popen(command, cwd=path, stdout=said, stderr=said)


def phases(path: Path) -> list[str]:
    lines = (path / "said").read_text().splitlines()
    return [json.loads(line).get("phase", "") for line in lines if line.startswith("{")]


def wait_for(process: subprocess.Popen[bytes], path: Path, true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 250
    while not true():
        assert process.poll() is None, (path / "said").read_text()
        assert time.monotonic() < deadline, (path / "said").read_text()
        time.sleep(0.02)


def test_a_wait_ends_by_a_nudge_by_a_signal_and_with_its_time() -> None:
    with signals() as stop:
        stop.nudge()
        stop.wait(600)
        assert not stop.is_set()
        stop.wait(0.01)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        stop.wait(600)
        assert stop.is_set()


@pytest.mark.spark
def test_a_run_that_has_nothing_more_to_do_waits_for_nothing(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to start nor to end: with ten minutes between two looks it would not be over for long."""
    monkeypatch.setattr(runner, "_TICK", 600.0)
    (tmp_path / "in.jsonl").write_text('{"n":0}\n{"n":1}\n')
    pipeline = Pipeline("p", batch_messages=1)
    pipeline.source("in", a.file(uri=f"file://{tmp_path}/in.jsonl")).save("out", a.discard())
    for delivered in (2, 0):
        began = time.monotonic()
        summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
        assert (summary.exit_code, summary.sinks[0].delivered) == (0, delivered)
        assert time.monotonic() - began < 500


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_run_at_once(tmp_path: Path, second: signal.Signals) -> None:
    process = started(tmp_path, DEAF.format(patience="10m"))
    try:
        wait_for(process, tmp_path, lambda: "running" in phases(tmp_path))
        os.kill(process.pid, signal.SIGTERM)
        wait_for(process, tmp_path, lambda: "stopping" in phases(tmp_path))
        os.kill(process.pid, second)
        assert process.wait(200) == 128 + second, (
            "the ten minutes that the first one gives are not waited for"
        )
    finally:
        process.kill()
        process.wait()


def test_a_source_that_does_not_end_keeps_no_run_from_its_end(tmp_path: Path) -> None:
    process = started(tmp_path, DEAF.format(patience="500ms"))
    try:
        wait_for(process, tmp_path, lambda: "running" in phases(tmp_path))
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(200) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.spark
def test_a_batch_that_outlasts_the_time_to_stop_is_left_and_repeated(
    tmp_path: Path, spark: SparkSession
) -> None:
    """The process ends, whatever its batch does; what the target was not given is pending, and comes once."""
    process = started(tmp_path, SLOW.format(here=str(tmp_path)))
    try:
        wait_for(process, tmp_path, (tmp_path / "publishing").exists)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(200) == 0
    finally:
        process.kill()
        process.wait()
    *_, summary = (
        json.loads(line) for line in (tmp_path / "said").read_text().splitlines() if line.startswith("{")
    )
    (sink,) = summary["sinks"]
    assert (sink["delivered"], sink["pending"]) == (0, 100)
    (tmp_path / "go").touch()
    again = run(load_pipeline(tmp_path / "p.py"), data_dir=tmp_path / "data", once=True, spark=spark)
    assert (again.exit_code, again.sinks[0].delivered) == (0, 100)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(100))


@pytest.mark.spark
def test_a_sink_is_paused_once_its_batch_has_ended_and_nobody_waits_for_that(
    tmp_path: Path, spark: SparkSession
) -> None:
    """A target that takes its time holds up neither the run nor who resumes the sink meanwhile."""
    from .picky import Picky
    from .story import Slow

    (tmp_path / "in.jsonl").write_text('{"n":0,"slow":1}\n')
    pipeline = Pipeline("p")
    pipeline.modules = (Slow.__module__, Picky.__module__)
    source = pipeline.source("in", a.file(uri=f"file://{tmp_path}/in.jsonl", tail=True, poll_interval=0.05))
    source.save("held", Slow(directory=tmp_path))
    source.save("free", a.discard())
    asked: list[str] = []
    meanwhile: list[str] = []

    def ask(action: str) -> None:
        asked.append(action)
        with connect(tmp_path / "data") as client:
            Control(client, "p").append(ControlEntry(len(asked), "test", action, "held"))

    def report(progress: Progress) -> None:
        held = progress.nodes[1]
        if not asked and (tmp_path / "publishing").exists():
            ask("pause")
        elif len(asked) == 1 and not (tmp_path / "asked").exists():
            meanwhile.append(held.state)
            if len(meanwhile) == 8:  # the run goes on telling, some two seconds long
                (tmp_path / "asked").touch()
        elif asked == ["pause"] and held.state == "paused":
            with (tmp_path / "in.jsonl").open("a") as file:
                file.write('{"n":1}\n')
            ask("resume")
        elif held.delivered == 2 and progress.phase == "running":
            os.kill(os.getpid(), signal.SIGINT)

    summary = run(pipeline, data_dir=tmp_path / "data", once=False, spark=spark, report=report)
    assert (summary.exit_code, asked) == (0, ["pause", "resume"])
    assert set(meanwhile) == {"running"}, "not paused while its batch is under way: nobody may edit it"
    assert (tmp_path / "out.jsonl").read_text() == '{"n":0,"slow":1}\n{"n":1}\n'
