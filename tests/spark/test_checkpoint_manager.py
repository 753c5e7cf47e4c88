"""The faster checkpoint manager: at whatever moment a query is killed, one can go on with what it leaves.

Penstock itself never goes on with one (each start has a new directory), so this is more than it needs. Each
round kills the JVM of several queries at the sight of a half-written file, then starts anew on what is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock

pytestmark = pytest.mark.spark

QUERIES = 4
BATCHES = 4
PATIENCE = 100.0


def newest(directory: Path) -> int:
    """The newest batch in a log of the checkpoint; -1 if there is none."""
    names = os.listdir(directory) if directory.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def half_written(checkpoints: Path) -> list[str]:
    """Files that a write has begun and not yet named."""
    logs = [checkpoints / str(number) / log for number in range(QUERIES) for log in ("offsets", "commits")]
    return [name for log in logs if log.is_dir() for name in os.listdir(log) if name.endswith(".tmp")]


def wait_until(true: Callable[[], object], driver: subprocess.Popen[str], patience: float = PATIENCE) -> bool:
    deadline = time.monotonic() + patience
    while not true():
        if driver.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.0002)
    return True


def run_and_kill(tmp_path: Path, checkpoints: Path, goals: list[int]) -> None:
    """Start the queries on what is there, let each commit the batch of its goal, kill them in a write."""
    errors = tmp_path / "errors"
    script = Path(__file__).with_name("checkpoint_driver.py")
    with errors.open("w") as sink:
        driver = subprocess.Popen(
            [sys.executable, script, tmp_path / "scratch", checkpoints, str(QUERIES)],
            stdout=subprocess.PIPE,
            stderr=sink,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(Path(penstock.__file__).parents[1])},
        )
    assert driver.stdout is not None
    jvm = int(driver.stdout.readline() or 0)
    try:
        assert jvm, errors.read_text()
        logs = [checkpoints / str(number) / "commits" for number in range(QUERIES)]
        went_on = wait_until(
            lambda: all(newest(log) >= goal for log, goal in zip(logs, goals, strict=True)), driver
        )
        assert went_on, f"{goals} not reached: {errors.read_text()}"
        wait_until(lambda: half_written(checkpoints), driver, patience=3.0)
    finally:
        if jvm:
            os.kill(jvm, signal.SIGKILL)
        driver.kill()
        driver.communicate(timeout=20)


@pytest.mark.soak
def test_every_restart_after_a_kill_goes_on_where_the_query_was(tmp_path: Path) -> None:
    restarts = 10
    checkpoints = tmp_path / "checkpoints"
    reached = [-1] * QUERIES
    inside_a_write = 0
    for _ in range(restarts + 1):
        run_and_kill(tmp_path, checkpoints, [batch + BATCHES for batch in reached])
        inside_a_write += bool(half_written(checkpoints))
        for number in range(QUERIES):
            offsets, commits = (newest(checkpoints / str(number) / log) for log in ("offsets", "commits"))
            assert offsets - commits in (0, 1), "a batch is planned when the one before it has been committed"
            reached[number] = commits
    # Told, not asserted: whether a kill meets a write is luck, though nearly every one does.
    sys.stderr.write(f"kills inside a write: {inside_a_write} of {restarts + 1}\n")
