"""The query of a sink ticks; what a tick is for is planned in the runner's process."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from pyspark.sql import SparkSession

from penstock import Pipeline
from penstock import adaptors as a
from penstock.log.positions import LogPoint
from penstock.pipeline.progress import Progress
from penstock.pipeline.runner import run
from penstock.spark.work import Work

from .byhand import ByHand
from .test_overlap_by_hand import Batches

TICK = SimpleNamespace(sparkSession=None)
PATIENCE = 60.0


@pytest.fixture
def batches(here: ByHand) -> Batches:
    sink = Batches(here)
    sink.target.let_go.set()
    return sink


def ticking(batches: Batches) -> threading.Thread:
    thread = threading.Thread(target=batches.runner, args=(TICK, 0), daemon=True)
    thread.start()
    return thread


def until_waiting(batches: Batches) -> None:
    deadline = time.monotonic() + PATIENCE
    while batches.runner._upcoming._halt._call is None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not batches.runner.busy


def test_a_tick_takes_all_that_is_there(batches: Batches) -> None:
    given: list[tuple[int, int]] = []
    del batches.runner._more
    real = batches.runner._staged

    def staged(work: Work) -> list[object]:
        given.append((work.begin.offset, work.end.offset))
        return list(real(work))

    batches.runner._staged = staged  # type: ignore[assignment]
    planner = batches.runner._upcoming.planner
    seek = batches.here.log.reader.seek
    planner.upcoming = lambda begin: seek(begin.offset + 10)  # type: ignore[method-assign]
    batches.runner(TICK, 0)  # type: ignore[arg-type]
    batches.runner._overlap.wait()
    assert given == [(0, 10), (10, 20), (20, 30)]
    assert batches.lacking == (0, 0)


@pytest.mark.parametrize("how", ["stop", "pause", "fail"])
def test_a_tick_that_waits_for_more_lets_go_when_there_is_to_be_no_batch(batches: Batches, how: str) -> None:
    batches.give(30)
    batches.runner._overlap.wait()
    del batches.runner._upcoming.planner
    batches.runner._upcoming.planner.patience = 600.0
    thread = ticking(batches)
    until_waiting(batches)
    if how == "stop":
        assert batches.runner.stop(PATIENCE)
    elif how == "pause":
        batches.sink.pause()
        assert batches.sink.state == "paused"
    else:
        batches.runner.failed(OSError("beside it"))
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_what_cannot_be_planned_is_the_failure_of_the_sink(batches: Batches) -> None:
    def lost(begin: LogPoint) -> LogPoint:
        raise OSError(5, "Input/output error")

    batches.runner._upcoming.planner.upcoming = lost  # type: ignore[method-assign]
    with pytest.raises(OSError, match="Input/output"):
        batches.runner(TICK, 0)  # type: ignore[arg-type]
    assert isinstance(batches.runner.failure, OSError)
    assert batches.lacking[0] == 30


def test_a_tick_behind_a_stop_does_nothing(batches: Batches) -> None:
    batches.runner.ask_to_stop()
    batches.runner(TICK, 0)  # type: ignore[arg-type]
    assert batches.lacking[0] == 30


@pytest.mark.spark
def test_no_process_but_workers_serves_a_query(tmp_path: Path, spark: SparkSession) -> None:
    """Those that plan a Python source take a second to start, one after the other."""

    def planners() -> set[int]:
        found = set()
        for process in psutil.Process().children(recursive=True):
            try:
                words = " ".join(process.cmdline())
            except psutil.Error:  # others come and go meanwhile
                continue
            if "create_data_source" in words or "plan_data_source" in words or "source_runner" in words:
                found.add(process.pid)
        return found

    before, seen = planners(), set[int]()

    def look(progress: Progress) -> None:
        seen.update(planners())

    pipeline = Pipeline("p")
    source = pipeline.source("in", a.generate(count=3000))
    source.save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"))
    source.transform("some", lambda df: df.where("offset % 3 = 0")).save(
        "few", a.file(uri=f"file://{tmp_path}/few.jsonl")
    )
    summary = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark, report=look)
    assert summary.exit_code == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3000
    assert len((tmp_path / "few.jsonl").read_text().splitlines()) == 1000
    assert seen <= before
