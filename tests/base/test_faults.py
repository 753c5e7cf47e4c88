"""Fault points: free unless armed, traced when armed, and deadly at the turn that was asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.base import faults

STEPS = """
from penstock.base.faults import step
for turn in range(4):
    with step("read"):
        pass
    with step("publish"):
        print(turn, flush=True)
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def steps_in(trace: Path) -> list[str]:
    return [line.split()[0] for line in trace.read_text().splitlines()]


def test_a_step_is_free_when_nothing_is_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(faults.TRACE, raising=False)
    monkeypatch.setenv(faults.KILL, "publish:1")
    assert faults.step("publish") is faults.step("read")
    with faults.step("publish"):
        pass


def test_steps_are_traced_as_they_are_entered_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    monkeypatch.setenv(faults.TRACE, str(trace))
    with faults.step("outer"), faults.step("inner"):
        assert steps_in(trace) == ["+outer", "+inner"]
    assert steps_in(trace) == ["+outer", "+inner", "-inner", "-outer"]
    assert {line.split()[1] for line in trace.read_text().splitlines()} == {str(os.getpid())}


def test_a_step_that_raises_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(faults.TRACE, str(tmp_path / "trace"))
    with pytest.raises(KeyError), faults.step("publish"):
        raise KeyError
    assert steps_in(tmp_path / "trace") == ["+publish", "-publish"]


def test_a_run_without_a_kill_only_leaves_its_trace(tmp_path: Path) -> None:
    done = run(STEPS, PENSTOCK_TRACE_STEPS=str(tmp_path / "trace"))
    assert (done.returncode, done.stdout.split()) == (0, ["0", "1", "2", "3"])
    assert steps_in(tmp_path / "trace") == ["+read", "-read", "+publish", "-publish"] * 4


@pytest.mark.parametrize(("turn", "printed"), [("publish", 0), ("publish:1", 0), ("publish:3", 2)])
def test_the_process_is_killed_at_the_turn_asked_for(tmp_path: Path, turn: str, printed: int) -> None:
    trace = tmp_path / "trace"
    done = run(STEPS, PENSTOCK_TRACE_STEPS=str(trace), PENSTOCK_KILL_AT=turn)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == [str(number) for number in range(printed)]
    assert steps_in(trace)[-2:] == ["+publish", "!publish"]
    assert steps_in(trace).count("-publish") == printed


@pytest.mark.parametrize("turn", ["publish:9", "other:1"])
def test_a_turn_that_never_comes_kills_nobody(tmp_path: Path, turn: str) -> None:
    done = run(STEPS, PENSTOCK_TRACE_STEPS=str(tmp_path / "trace"), PENSTOCK_KILL_AT=turn)
    assert done.returncode == 0


def test_turns_are_counted_over_all_processes(tmp_path: Path) -> None:
    environment = {"PENSTOCK_TRACE_STEPS": str(tmp_path / "trace"), "PENSTOCK_KILL_AT": "publish:6"}
    assert run(STEPS, **environment).returncode == 0
    second = run(STEPS, **environment)
    assert second.returncode == -signal.SIGKILL
    assert second.stdout.split() == ["0"]


def test_the_runner_dies_with_the_process_that_works_for_it(tmp_path: Path) -> None:
    runner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        done = run(
            STEPS,
            PENSTOCK_TRACE_STEPS=str(tmp_path / "trace"),
            PENSTOCK_KILL_AT="publish:1",
            PENSTOCK_RUNNER_PID=str(runner.pid),
        )
        assert done.returncode == -signal.SIGKILL
        assert runner.wait(10) == -signal.SIGKILL
    finally:
        if runner.poll() is None:
            runner.kill()
            runner.wait()


def test_an_order_in_a_file_holds_while_it_is_there_and_may_name_another_process(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    order = tmp_path / "order"
    environment = {"PENSTOCK_TRACE_STEPS": str(tmp_path / "trace"), "PENSTOCK_KILL_AT": f"@{order}"}
    try:
        assert run(STEPS, **environment).returncode == 0
        order.write_text(f"publish:6 {other.pid}")
        assert run(STEPS, **environment).returncode == 0
        assert other.wait(10) == -signal.SIGKILL
        assert not order.exists()
        assert steps_in(tmp_path / "trace").count("!publish") == 1
    finally:
        if other.poll() is None:
            other.kill()
