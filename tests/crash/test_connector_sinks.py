"""`penstock run` into two connector sinks that commit together, all of them killed again and again.

At every moment what is committed at each sink is a prefix of the stream; at the end it is all of it. The runner is
killed at each step of the two-phase commit by name and at random; the sinks at random.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.connector.sinking import SinkProcess
from tests.crash.crashing import Loop

from penstock.connector.sink.workers import transactions

pytestmark = [pytest.mark.spark]
STEPS = ("stage", "vote", "offset commit", "phase2", "settle")
PIPELINE = """
from penstock import Pipeline, adaptors as a

crash = Pipeline("crash", batch_messages=500, partitions=2)
source = crash.source("numbers", a.generate(count={count}, rate={rate}, namespaces=["a", "b"]))
source.save("one", a.connector(sink="127.0.0.1:PORT1"))
source.save("two", a.connector(sink="127.0.0.1:PORT2"))
"""


class Rig:
    """Two sinks and the loop of runs."""

    def __init__(self, directory: Path, messages: int) -> None:
        self.sinks = {}
        for name in ("one", "two"):
            (directory / name).mkdir()
            self.sinks[name] = SinkProcess(directory / name)
            self.sinks[name].start()
        text = PIPELINE
        for number, sink in enumerate(self.sinks.values(), 1):
            text = text.replace(f"PORT{number}", str(sink.port))
        self.loop = Loop(directory, messages=messages, rate=2000, pipeline=text)

    def committed(self, name: str) -> list[int]:
        content = self.sinks[name].committed(f"crash.{name}.0")
        return [json.loads(line)["seq"] for line in content.splitlines()]

    def check(self) -> None:
        """Prefixes; the two may be one decision apart while one of them is still to be told."""
        for name in self.sinks:
            found = self.committed(name)
            assert found == list(range(len(found)))

    def finish(self) -> None:
        assert self.loop.finish().exit_code == 0
        for name, sink in self.sinks.items():
            assert self.committed(name) == list(range(self.loop.count))
            assert [view.in_flight for view in transactions(sink.root / "txns")] == [()]

    def close(self) -> None:
        for sink in self.sinks.values():
            sink.kill()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, 600)
    yield made
    made.close()


def test_a_runner_that_dies_before_it_tells_its_decision(rig: Rig) -> None:
    """The decision is on record, and no sink has heard of it: the next run tells it."""
    assert rig.loop.kill_at("phase2", 1).killed
    assert rig.committed("one") == rig.committed("two") == []
    rig.finish()


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1])
def test_runs_and_sinks_are_killed_thirty_times(rig: Rig, seed: int) -> None:
    dice = random.Random(seed)
    for number in range(30):
        sink = rig.sinks[dice.choice(["one", "two"])]
        timer = threading.Timer(dice.uniform(3.0, 12.0), lambda sink=sink: (sink.kill(), sink.start()))
        if dice.random() < 0.5:
            timer.start()
        if number % 2:
            rig.loop.kill_after(dice.uniform(0.0, 2.0))
        else:
            rig.loop.kill_at(STEPS[number // 2 % len(STEPS)], dice.randint(1, 3))
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        rig.check()
    rig.finish()
    assert {"stage", "vote", "phase2"} <= set(rig.loop.hit())
