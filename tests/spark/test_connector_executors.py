"""Connector sinks on a real cluster: tasks run twice, fail behind their vote, and lose their executor in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.connector.sinking import SinkProcess
from tests.spark.standalone import Standalone

from penstock.connector.sink.workers import transactions

pytestmark = pytest.mark.spark
COUNT = 3000

JOB = '''
"""Runs a pipeline into two sinks, whose tasks meet with a mishap each time that there is one left."""
import json, os, signal, sys, time
from pathlib import Path

import psutil

from penstock import Pipeline, adaptors as a
from penstock.adaptors.connector import Connector
from penstock.adaptors.connector.sink import ConnectorSink, ConnectorStager
from penstock.pipeline.runner import run
from penstock.spark.session import session, stop

root, (master, settings, ports, count) = Path(sys.argv[1]), json.loads(sys.argv[2])
notes = root / "notes"
notes.mkdir()


def happens(kind, when):
    """Whether this mishap is this task's: each comes once, to the first attempt of a task."""
    from pyspark import TaskContext

    if TaskContext.get().attemptNumber() > 0 or (notes / kind).exists():
        return False
    if when and not (notes / when).exists():
        return False
    try:
        (notes / kind).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def lose_executor():
    java = [process for process in psutil.Process().parents() if "java" in process.name()]
    java[0].kill()
    time.sleep(60)


class UnluckyStager(ConnectorStager):
    def stage(self, stage, rows):
        from pyspark import TaskContext

        if happens("slow", ""):  # goes on when a second attempt of it has its vote, or is killed before
            deadline = time.monotonic() + 120
            while not (notes / "speculated").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        elif happens("lost before the vote", "speculated"):
            list(rows)
            lose_executor()
        staged = super().stage(stage, rows)
        if happens("lost behind the vote", "lost before the vote"):
            lose_executor()
        if happens("failed behind the vote", "lost behind the vote"):
            raise RuntimeError("unlucky")
        if TaskContext.get().attemptNumber() > 0 and not (notes / "lost before the vote").exists():
            (notes / "speculated").touch()
        return staged


class UnluckySink(ConnectorSink):
    def stager(self):
        return UnluckyStager(self._settings, self.name)


real_sink = Connector.sink


def unlucky(self):
    sink = real_sink(self)
    sink.__class__ = UnluckySink
    return sink


Connector.sink = unlucky
made = Pipeline("p", batch_messages=300)
made.modules = ("__main__",)
source = made.source("numbers", a.generate(count=count, rate=1000, namespaces=["a", "b", "c", "d"]))
for name, port in ports.items():
    source.save(name, a.connector(sink=f"127.0.0.1:{port}", connections=2))
speculation = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.task.duration.threshold": "2s",
}
spark = session(app="unlucky", master=master, settings=settings | speculation, scratch=root / "spark")
summary = run(made, data_dir=root / "data", once=True, spark=spark)
stop(spark)
assert summary.exit_code == 0, summary
print(json.dumps(sorted(path.name for path in notes.iterdir())))
'''


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_speculation_failed_tasks_and_lost_executors_leave_exactly_the_stream(
    tmp_path: Path, standalone_master: Standalone
) -> None:
    sinks = {}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        sinks[name] = SinkProcess(tmp_path / name)
        sinks[name].start()
    ports = {name: sink.port for name, sink in sinks.items()}
    (tmp_path / "job.py").write_text(JOB)
    told = json.dumps([standalone_master.master, dict(standalone_master.settings), ports, COUNT])
    try:
        done = subprocess.run(
            [sys.executable, str(tmp_path / "job.py"), str(tmp_path), told],
            env=os.environ | dict(standalone_master.environment),
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{standalone_master.log()}"
        assert json.loads(done.stdout.splitlines()[-1]) == [
            "failed behind the vote", "lost before the vote", "lost behind the vote", "slow", "speculated",
        ]  # fmt: skip
        for name, sink in sinks.items():
            lanes = [sink.committed(f"p.{name}.{lane}").splitlines() for lane in range(2)]
            found = [[json.loads(line)["seq"] for line in lines] for lines in lanes]
            assert all(lane and lane == sorted(lane) for lane in found)
            assert sorted([*found[0], *found[1]]) == list(range(COUNT))
            assert [view.in_flight for view in transactions(sink.root / "txns")] == [(), ()]
    finally:
        for sink in sinks.values():
            sink.kill()
