"""`kill -9` of connector, worker, broker and each pair, under load with ten streams, at steps and at random moments.

A few seeded rounds run with every `make test`, each step among them; `make soak` runs twenty of each.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from tests.connector.killing import STEPS, Processes

VICTIMS = [
    *itertools.combinations(("connector", "worker", "broker"), 1),
    *itertools.combinations(("connector", "worker", "broker"), 2),
]


def killed(
    directory: Path, seed: int, rounds: list[tuple[str, ...] | str], count: int, *, embedded: bool = False
) -> Processes:
    """Each round kills these processes, or the worker at a step, once more is in the journal than before.

    The connector is still sending at each kill: one that met nothing would prove nothing.
    """
    rng = random.Random(seed)
    processes = Processes(directory, count, seconds=1.0 * len(rounds), embedded=embedded)
    try:
        processes.start_all()
        for number, victims in enumerate(rounds, 1):
            enough = min(count * 10 * number // (len(rounds) + 4), count * 9)

            def grown(enough: int = enough) -> bool:
                processes.settle()
                return processes.done or (not processes.under_fault and processes.durable() >= enough)

            processes.wait_for("no progress", grown)
            assert not processes.done, f"the load was over before kill {number} of {len(rounds)}"
            if isinstance(victims, str):
                processes.kill("worker")
                processes.armed = f"{victims}:{1 if victims == 'connector-claim' else rng.randrange(1, 6)}"
            else:
                processes.kill(*victims)
            processes.settle()
        processes.finish()
    finally:
        processes.stop()
    return processes


@pytest.mark.timeout(300)
def test_whatever_is_killed_each_message_is_in_the_journal_once(tmp_path: Path) -> None:
    rounds: list[tuple[str, ...] | str] = [("worker",), ("broker",), ("connector", "worker"), *STEPS]
    processes = killed(tmp_path, 1, rounds, count=1500)
    assert set(processes.hit) >= set(STEPS), processes.hit


@pytest.mark.timeout(300)
def test_a_worker_that_holds_its_broker_is_killed_with_it(tmp_path: Path) -> None:
    rounds: list[tuple[str, ...] | str] = [("worker",), "connector-append", ("connector", "worker")]
    processes = killed(tmp_path, 4, rounds, count=1200, embedded=True)
    assert processes.hit, "no kill met a step"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_soak_a_worker_that_holds_its_broker_is_killed_with_it(tmp_path: Path) -> None:
    processes = killed(tmp_path, 5, [*[("worker",)] * 20, *STEPS * 3], count=8000, embedded=True)
    assert set(processes.hit) >= set(STEPS), processes.hit


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("victims", VICTIMS, ids="+".join)
def test_soak_kills_of_each_pair(tmp_path: Path, victims: tuple[str, ...]) -> None:
    killed(tmp_path, 2, [victims] * 20, count=8000)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_soak_every_step_is_met(tmp_path: Path) -> None:
    processes = killed(tmp_path, 3, [step for step in STEPS for _ in range(5)], count=8000)
    assert set(processes.hit) >= set(STEPS), processes.hit
