"""A connector that moves between real workers under load: `kill -9` of each at each step, SIGTERM, rolling restarts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.connector.moving import SENT_AWAY, STEPS, VICTIMS, Moving

SEED = 7


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Moving]:
    made = Moving(tmp_path)
    try:
        made.start_all()
        yield made
    finally:
        made.stop()


@pytest.mark.timeout(300)
def test_workers_and_connectors_may_die_while_a_connector_moves_and_restart_one_by_one(
    moving: Moving,
) -> None:
    steps = random.Random(SEED).sample(STEPS, len(VICTIMS))
    for step, victim in zip(steps, VICTIMS, strict=True):
        moving.killed_at(step, victim)
    moving.killed_at(SENT_AWAY, "old")
    assert len(moving.met) == len(VICTIMS) + 1
    for _ in range(2):
        moving.terminated()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_soak_each_dies_at_each_step_of_a_migration(moving: Moving) -> None:
    for step in (*STEPS, SENT_AWAY):
        for victim in VICTIMS:
            moving.killed_at(step, victim)
    assert len(moving.met) == (len(STEPS) + 1) * len(VICTIMS)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_soak_rolling_restarts_under_load(moving: Moving) -> None:
    for _ in range(20):
        moving.terminated()
