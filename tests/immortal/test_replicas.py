"""Three replicas of one instance while parts are killed and frozen; take-over times are printed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.immortal.processes import Instance, broker, running, until

ACTIVE = ("--active", "--log-trigger", "0.01")


def trio(place: str, folder: Path, total: int) -> tuple[Instance, list[Instance]]:
    asker = Instance(place, folder, "asker", "asker", {"peer": "echo", "total": total})
    replicas = []
    for number in range(3):
        one = Instance(place, folder, "echo", "echo", {"peer": "asker"}, *ACTIVE, "--replica", str(number))
        one.report_file = folder / f"echo-{number}.json"
        replicas.append(one)
    return asker, replicas


def primaries(replicas: list[Instance]) -> list[Instance]:
    return [one for one in replicas if one.is_primary]


def takes_over(replicas: list[Instance], old: Instance, since: float, what: str) -> Instance:
    until(lambda: [one for one in primaries(replicas) if one is not old], "a take-over")
    print(f"take-over after {what}: {time.monotonic() - since:.2f} s")  # noqa: T201 - the figure is the point
    return next(one for one in primaries(replicas) if one is not old)


def check(asker: Instance, replicas: list[Instance], total: int) -> None:
    while not asker.report().get("done"):
        progress(asker)
    assert asker.report()["errors"] == []
    assert asker.report()["echoed"] == total
    [primary] = primaries(replicas)
    until(lambda: primary.report().get("last") == total, "the last call")
    assert primary.report()["errors"] == []


def progress(asker: Instance) -> None:
    before = asker.report().get("echoed", 0)
    until(lambda: asker.report().get("echoed", 0) > before or asker.report().get("done"), "progress")


def test_a_killed_and_a_frozen_primary_are_replaced_and_do_no_harm(tmp_path: Path) -> None:
    with broker(tmp_path) as place:
        asker, replicas = trio(place, tmp_path, 4000)
        with running(asker, *replicas):
            until(lambda: primaries(replicas), "a first primary")
            [first] = primaries(replicas)
            progress(asker)
            others = [one for one in replicas if one is not first]
            until(lambda: all("Following" in one.said() for one in others), "secondaries")
            since = time.monotonic()
            first.stop()
            second = takes_over(replicas, first, since, "kill -9")
            progress(asker)
            first.start()
            assert second.coordinator is not None
            since = time.monotonic()
            os.kill(second.coordinator.pid, signal.SIGSTOP)
            takes_over(replicas, second, since, "SIGSTOP")
            progress(asker)
            os.kill(second.coordinator.pid, signal.SIGCONT)
            second.fail_together()
            assert "FATAL ERROR 5: another coordinator is primary now" in second.said()
            check(asker, [one for one in replicas if one is not second], 4000)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_replicas_killed_in_turn(tmp_path: Path, seed: int) -> None:
    import random

    draw = random.Random(seed)
    with broker(tmp_path) as place:
        total = 20000
        asker, replicas = trio(place, tmp_path, total)
        with running(asker, *replicas):
            until(lambda: primaries(replicas), "a first primary")
            for _ in range(8):
                progress(asker)
                time.sleep(draw.random() * 0.5)
                for victim in replicas if draw.random() < 0.2 else [draw.choice(replicas)]:
                    victim.stop()
                    victim.start()
                until(lambda: primaries(replicas), "a primary")
            check(asker, replicas, total)
