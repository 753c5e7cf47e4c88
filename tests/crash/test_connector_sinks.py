"""`penstock run` into two connector sinks that commit together, all of them killed again and again.

At every moment what is committed at each sink is a prefix of the stream; at the end it is all of it. The runner is
killed at each step of the two-phase commit by name and at random; the sinks, Spark's JVM and its Python workers at
random. Nothing of Spark's own directories has to outlive a run. The same for plain Spark, whose checkpoint is kept, or
deleted.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.connector.sinking import SinkProcess
from tests.connector.targets import Target, files, rows, watched
from tests.crash.crashing import Loop
from tests.servers.postgres import PostgresServer

from penstock.connector.sink.workers import transactions
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import CommitLog
from penstock.log.message import Message

pytestmark = [pytest.mark.spark]
STEPS = ("stage", "vote", "offset commit", "phase2", "settle")
PIPELINE = """
from penstock import Pipeline, adaptors as a

crash = Pipeline("crash", batch_messages=500, partitions=2)
source = crash.source("numbers", a.generate(count={count}, rate={rate}, size=3000, namespaces=["a", "b"]))
source.save("one", a.connector(sink="127.0.0.1:PORT1"))
source.save("two", a.connector(sink="127.0.0.1:PORT2"))
"""


class Rig:
    """Two sinks and the loop of runs."""

    def __init__(self, directory: Path, messages: int, target: Callable[[Path], Target]) -> None:
        self.targets: dict[str, Target] = {}
        text = PIPELINE
        for number, name in enumerate(("one", "two"), 1):
            (directory / name).mkdir()
            made = self.targets[name] = target(directory / name)
            made.process.start()
            text = text.replace(f"PORT{number}", str(made.process.port))
        self.loop = Loop(directory, messages=messages, rate=2000, pipeline=text)

    def committed(self, name: str) -> list[int]:
        return [json.loads(line)["seq"] for line in self.targets[name].lines(f"crash.{name}.0")]

    def look(self) -> int:
        """Prefixes; the two may be one decision apart while one of them is still to be told."""
        total = 0
        for name in self.targets:
            found = self.committed(name)
            assert found == list(range(len(found)))
            total += len(found)
        return total

    def finish(self) -> None:
        assert self.loop.finish().exit_code == 0, self.loop.log_of()
        for name, target in self.targets.items():
            assert self.committed(name) == list(range(self.loop.count))
            assert [view.in_flight for view in transactions(target.process.root / "txns")] == [()]
            target.check()

    def close(self) -> None:
        for target in self.targets.values():
            target.process.kill()


@pytest.fixture
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    target: Callable[[Path], Target] = files
    if getattr(request, "param", "") == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        target = lambda root: rows(root, server)  # noqa: E731
    made = Rig(tmp_path, 600, target)
    yield made
    made.close()


def killed(rig: Rig, dice: random.Random, number: int) -> None:
    """A round in which the runner, Spark's JVM or one of its workers is killed, and perhaps a sink as well."""
    sink = rig.targets[dice.choice(["one", "two"])].process

    def restart() -> None:
        sink.kill()
        sink.start()

    timer = threading.Timer(dice.uniform(3.0, 12.0), restart)
    if dice.random() < 0.5:
        timer.start()
    match number % 4:
        case 0:
            rig.loop.kill_after(dice.uniform(0.0, 2.0))
        case 1:
            rig.loop.kill_below("jvm", dice.uniform(0.0, 2.0))
        case 2:
            rig.loop.kill_below("worker", dice.uniform(0.0, 2.0))
        case _:
            rig.loop.kill_at(STEPS[number // 4 % len(STEPS)], dice.randint(1, 3))
    timer.cancel()
    if timer.ident is not None:
        timer.join()


def test_a_runner_is_killed_behind_its_decision_and_then_at_random_with_a_sink(rig: Rig) -> None:
    """The decision is on record, and no sink has heard of it: the next run tells it."""
    assert rig.loop.kill_at("phase2", 1).killed
    assert rig.committed("one") == rig.committed("two") == []
    with watched(rig.look):
        killed(rig, random.Random(2), 0)
        rig.finish()


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("rig", ["files", "postgres"], indirect=True)
def test_sinks_runners_jvms_and_workers_are_killed_in_thirty_rounds(rig: Rig, seed: int) -> None:
    dice = random.Random(seed)
    with watched(rig.look):
        for number in range(30):
            killed(rig, dice, number)
            if dice.random() < 0.3:
                shutil.rmtree(rig.loop.directory / "data" / "scratch", ignore_errors=True)
        rig.finish()
    assert {"stage", "phase2"} <= set(rig.loop.hit())


PLAIN = """
import os, sys
from pathlib import Path
from penstock.spark.foreach import ConnectorBatches
from penstock.spark.session import session

root, port = Path(sys.argv[1]), sys.argv[2]
os.environ["PENSTOCK_RUNNER_PID"] = str(os.getpid())
spark = session(app="plain", master="local[2]", scratch=root / "spark")
batches = ConnectorBatches(f"127.0.0.1:{port}", name="plain", decisions=root / "decisions", offset="offset")
stream = spark.readStream.format("penstock").options(
    pipeline="crash", dataDir=str(root / "data"), maxMessages="100"
).load()
query = (stream.select("offset", "ns").writeStream.foreachBatch(batches)
         .option("checkpointLocation", str(root / "checkpoint")).trigger(availableNow=True).start())
query.awaitTermination()
"""


@pytest.mark.soak
def test_plain_spark_is_killed_with_its_checkpoint_kept_or_deleted(tmp_path: Path) -> None:
    """The decisions belong to the sink: with them, batches that are numbered and cut anew are recognised."""
    (tmp_path / "sink").mkdir()
    sink, dice = SinkProcess(tmp_path / "sink"), random.Random(7)
    sink.start()

    def committed() -> list[int]:
        return [json.loads(line)["offset"] for line in sink.committed("plain.0").splitlines()]

    def look() -> int:
        found = committed()
        assert found == list(range(len(found)))
        return len(found)

    def run(number: int) -> int:
        environment = os.environ | {"PENSTOCK_TRACE_STEPS": str(tmp_path / f"steps-{number}")}
        if number < 11:
            step = dice.choice(["stage", "vote", "decide", "phase2"])
            environment |= {"PENSTOCK_KILL_AT": f"{step}:{dice.randint(1, 3)}"}
        command = [sys.executable, "-c", PLAIN, str(tmp_path), str(sink.port)]
        with (tmp_path / "plain.log").open("wb") as said:
            done = subprocess.run(
                command, env=environment, stdout=said, stderr=said, timeout=300, check=False
            )
        return done.returncode

    try:
        with (
            EmbeddedBroker(tmp_path / "data") as broker,
            Client(broker.address) as client,
            watched(look),
        ):
            log = CommitLog(client, "crash", tmp_path / "index", None, 1)
            ends = []
            for number in range(12):
                log.append([Message("a", b"{}") for _ in range(300)], {}, [], 1)
                ends.append(run(number))
                if dice.random() < 0.5:
                    shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)
                if dice.random() < 0.3:
                    sink.kill()
                    sink.start()
        assert ends[-1] == 0, (tmp_path / "plain.log").read_text()
        assert committed() == list(range(3600))
        assert -signal.SIGKILL in ends
    finally:
        sink.kill()
