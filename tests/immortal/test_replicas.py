"""Three replicas of one instance while parts are killed, frozen and cut off; take-over times are printed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.immortal.logs import calls_in, log_of
from tests.immortal.processes import Instance, broker, broker_on_a_network, running, until
from tests.servers.namespaces import Namespace, namespaces

from penstock.immortal.logformat import Claimed, LogRecord, Marked, Rolled

ACTIVE = ("--active", "--log-trigger", "0.01", "--keep-checkpoints", "1000")
PARTS = ("primary", "checkpointer", "secondary", "all")


def trio(place: str, folder: Path, spaces: Sequence[Namespace] = ()) -> tuple[Instance, list[Instance]]:
    """Who asks, and three who answer, each on a machine of its own if there are any."""
    near = ("--host", spaces[0].gate_among_others) if spaces else ()
    asking = {"peer": "echo", "batch": 5, "until": str(folder / "over")}
    asker = Instance(place, folder, "asker", "asker", asking, *near)
    replicas = []
    for number in range(3):
        there = ("--host", spaces[number].among_others) if spaces else ()
        options = (*ACTIVE, "--replica", str(number), *there)
        one = Instance(place, folder, "echo", "echo", {"peer": "asker"}, *options)
        one.enter = spaces[number].enter if spaces else []
        one.report_file = folder / f"echo-{number}.json"
        replicas.append(one)
    return asker, replicas


def primaries(replicas: list[Instance]) -> list[Instance]:
    return [one for one in replicas if one.is_primary]


def takes_over(replicas: list[Instance], old: Instance, since: float, what: str) -> Instance:
    until(lambda: [one for one in primaries(replicas) if one is not old], "a take-over")
    print(f"take-over after {what}: {time.monotonic() - since:.2f} s")  # noqa: T201 - the figure is the point
    return next(one for one in primaries(replicas) if one is not old)


def check(asker: Instance, replicas: list[Instance]) -> int:
    """Have the asker come to its end; how many calls there were."""
    Path(str(asker.options["until"])).touch()
    while not asker.report()["done"]:
        progress(asker)
    assert asker.report()["errors"] == []
    total = int(asker.report()["sent"])
    until(lambda: [one.report().get("last") for one in primaries(replicas)] == [total], "the last call")
    assert [one.report()["errors"] for one in primaries(replicas)] == [[]]
    return total


def check_log(place: str, replicas: list[Instance], first: Instance, replaced: Instance, total: int) -> None:
    """Every call is in the log once, in order; and one that was replaced handled nothing behind the next one's claim.

    Had two committed, records would not follow each other, and reading the log would have failed.
    """
    known_to = in_order(place, total, replicas.index(first))
    assert replaced.report()["last"] <= known_to[replicas.index(replaced)] < total


def in_order(place: str, total: int, primary: int = 0) -> dict[int, int]:
    """All numbered calls are in the log once, in order; up to which one each replica knew them as primary.

    `primary` is who was first: its claim lies before the first checkpoint, and is deleted.
    """
    numbers: list[int] = []
    known_to = {}
    for item in log_of(place, "echo"):
        if isinstance(item, LogRecord):
            numbers += [json.loads(call.arguments)["n"] for call in calls_in(item) if call.method == 2]
            known_to[primary] = len(numbers)
        elif isinstance(item.mark, Claimed):
            primary = item.mark.replica
    assert numbers == list(range(1, total + 1))
    return known_to


def progress(asker: Instance) -> None:
    """A call was answered that is not sent yet; or all were."""
    sent = asker.report().get("sent", 0)
    until(lambda: asker.report().get("echoed", 0) > sent or asker.report().get("done"), "progress")


def test_a_killed_and_a_frozen_primary_are_replaced_and_do_no_harm(tmp_path: Path) -> None:
    with broker(tmp_path) as place:
        asker, replicas = trio(place, tmp_path)
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
            total = check(asker, [one for one in replicas if one is not second])
        check_log(place, replicas, first, second, total)


def test_a_primary_that_is_cut_off_is_replaced_and_does_no_harm(tmp_path: Path) -> None:
    """From the broker, from its peer and from the other replicas at once, and in silence."""
    with (
        namespaces("abc") as spaces,
        broker_on_a_network(tmp_path, spaces["a"].gate_among_others) as place,
    ):
        machines = list(spaces.values())
        asker, replicas = trio(place, tmp_path, machines)
        with running(asker, *replicas):
            until(lambda: primaries(replicas), "a first primary")
            [first] = primaries(replicas)
            progress(asker)
            others = [one for one in replicas if one is not first]
            until(lambda: all("Following" in one.said() for one in others), "secondaries")
            machine = machines[replicas.index(first)]
            since = time.monotonic()
            machine.cut()
            takes_over(replicas, first, since, "a network cut")
            progress(asker)
            machine.heal()
            first.fail_together()
            assert "FATAL ERROR 5: another coordinator is primary now" in first.said()
            total = check(asker, others)
        check_log(place, replicas, first, first, total)


def checkpointer(place: str, replicas: list[Instance]) -> Instance | None:
    """The secondary that was named last to take checkpoints, while it is one."""
    marks = [item.mark for item in log_of(place, "echo") if isinstance(item, Marked)]
    named = [mark.checkpointer for mark in marks if isinstance(mark, Rolled)]
    if not named or not named[-1]:
        return None
    one = replicas[int(named[-1].removeprefix("replica-").partition(".")[0])]
    return None if one.has_ended or one.is_primary else one


def cast(place: str, replicas: list[Instance]) -> dict[str, list[Instance]]:
    """Who plays which part now."""
    until(
        lambda: len(primaries(replicas)) == 1 and checkpointer(place, replicas),
        "a primary and a checkpointer",
    )
    primary, second = primaries(replicas)[0], checkpointer(place, replicas)
    rest = [one for one in replicas if one not in (primary, second)]
    return {"primary": [primary], "checkpointer": [second or rest[0]], "secondary": rest[:1], "all": replicas}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_the_primary_the_checkpointer_a_secondary_and_all_are_killed_in_turn(
    tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    with broker(tmp_path) as place:
        asker, replicas = trio(place, tmp_path)
        with running(asker, *replicas):
            until(lambda: primaries(replicas), "a first primary")
            for part in draw.sample(PARTS * 2, 8):
                progress(asker)
                time.sleep(draw.random() * 0.5)
                victims = cast(place, replicas)[part]
                since = time.monotonic()
                for victim in victims:
                    victim.stop()
                if part == "primary":
                    takes_over(replicas, victims[0], since, "kill -9")
                for victim in victims:
                    victim.start()
            total = check(asker, replicas)
        in_order(place, total)
