"""Two instances exchange numbered calls while parts of them are killed: nothing is lost, nothing comes twice.

Then each log is run again, and what its instance sends in the re-run is what the other one's log really got.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.immortal.lb import APPS
from tests.immortal.logs import rerun
from tests.immortal.processes import Instance, broker, running, until

WHAT = ("coordinator", "binding", "both", "peer", "everything")
STEPS = (
    "immortal-checkpoint-begin",
    "immortal-checkpoint-data",
    "immortal-checkpoint-commit",
    "immortal-commit",
    "immortal-deliver",
    "immortal-tell",
    "immortal-roll",
    "immortal-trim",
)
TINY = ("--log-trigger", "0.01")
KEPT = ("--keep-checkpoints", "1000")


def pair(place: str, folder: Path, total: int, *arguments: str) -> tuple[Instance, Instance]:
    asker = Instance(place, folder, "asker", "asker", {"peer": "echo", "total": total}, *arguments)
    return asker, Instance(place, folder, "echo", "echo", {"peer": "asker"}, *arguments)


def check(asker: Instance, echo: Instance, total: int) -> None:
    while not asker.report().get("done"):
        progress(asker)
    assert asker.report()["errors"] == []
    assert asker.report()["echoed"] == total
    assert echo.report()["errors"] == []
    assert echo.report()["last"] == total
    assert echo.report()["impulses"] > 0


def check_logs(place: str, asker: Instance, echo: Instance, total: int) -> None:
    """Both have ended. Run again, each makes the calls that the other one got, and comes to where it was."""
    again = {}
    for one, from_peer in ((asker, 4), (echo, 2)):
        app = APPS[one.app]()
        app.options = one.options
        again[one] = rerun(place, one.name, app, from_peer=from_peer)
    assert list(again[asker].sent) == list(range(1, total + 1))
    assert again[asker].sent == again[echo].got
    assert again[echo].sent == again[asker].got
    assert again[asker].state == asker.report()
    assert again[echo].state["errors"] == []
    assert again[echo].state["last"] == total


def kill(instance: Instance, what: str) -> None:
    assert instance.coordinator is not None
    assert instance.binding is not None
    if what in ("coordinator", "both"):
        os.kill(instance.coordinator.pid, signal.SIGKILL)
    if what in ("binding", "both"):
        os.kill(instance.binding.pid, signal.SIGKILL)
    instance.fail_together()


def progress(asker: Instance) -> None:
    before = asker.report().get("echoed", 0)
    until(lambda: asker.report().get("echoed", 0) > before, "progress")


def rounds(place: str, folder: Path, what: str, seed: int, count: int) -> None:
    draw = random.Random(seed)
    total = 2000 * (count + 1)
    asker, echo = pair(place, folder, total, *TINY, *KEPT)
    with running(asker, echo):
        for _ in range(count):
            progress(asker)
            time.sleep(draw.random() * 0.3)
            victim = draw.choice((asker, echo))
            if what == "everything":
                asker.stop()
                echo.stop()
                asker.start()
                echo.start()
            else:
                kill(echo if what == "peer" else victim, "both" if what == "peer" else what)
                (echo if what == "peer" else victim).start()
        check(asker, echo, total)
    check_logs(place, asker, echo, total)


@pytest.mark.parametrize("what", [pytest.param("both", marks=pytest.mark.soak), "everything"])
def test_kill_9_of_parts_loses_nothing(tmp_path: Path, what: str) -> None:
    with broker(tmp_path) as place:
        rounds(place, tmp_path, what, 1, 2)


@pytest.mark.soak
@pytest.mark.parametrize("what", WHAT)
def test_kill_9_twenty_times(tmp_path: Path, what: str) -> None:
    with broker(tmp_path) as place:
        rounds(place, tmp_path, what, 7, 20)


@pytest.mark.soak
def test_coordinators_that_share_a_directory_are_killed_with_its_broker(tmp_path: Path) -> None:
    rounds(str(tmp_path / "journals"), tmp_path, "both", 3, 20)


def dies_at(victim: Instance, step: str, trace: Path) -> None:
    """Start it anew, and wait until it has died in that step."""
    victim.stop()
    trace.unlink(missing_ok=True)
    victim.start(PENSTOCK_TRACE_STEPS=str(trace), PENSTOCK_KILL_AT=f"{step}:2")
    victim.fail_together()
    assert f"!{step} " in trace.read_text()


def test_every_step_of_a_coordinator_survives_a_kill(tmp_path: Path) -> None:
    """Impulses never end: who sends them always sends, who gets them always does all the rest."""
    with broker(tmp_path) as place:
        total = 3000
        asker, echo = pair(place, tmp_path, total, *TINY)
        trace = tmp_path / "trace"
        with running(asker, echo):
            for step in STEPS:
                dies_at(echo, step, trace)
            echo.start()
            dies_at(asker, "immortal-send", trace)
            asker.start()
            check(asker, echo, total)
