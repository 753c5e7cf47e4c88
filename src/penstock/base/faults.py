"""Steps that a crash may interrupt, named where they happen.

`with step("publish"):` costs one global look-up when nothing is armed. Armed by the environment (tests do that), a step

- writes `+publish PID` and `-publish PID` lines to the trace file, so that whoever killed the process can
  tell which steps were under way: entered, not left;
- kills the whole run with SIGKILL when its turn has come: the runner first, whose pid is in the
  environment, then the process itself, since a step may run in one of Spark's Python processes.

    PENSTOCK_TRACE_STEPS=FILE      append the trace there
    PENSTOCK_KILL_AT=publish:3     SIGKILL at the third time `publish` is entered (over all processes)
    PENSTOCK_KILL_AT=@FILE         the same order, in FILE while it is to hold, and gone when it was carried out;
                                   `publish:3 4711` kills process 4711 instead
    PENSTOCK_RUNNER_PID=N          set by the runner for the processes below it
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

TRACE = "PENSTOCK_TRACE_STEPS"
KILL = "PENSTOCK_KILL_AT"
RUNNER = "PENSTOCK_RUNNER_PID"

_IDLE: AbstractContextManager[None] = nullcontext()


def step(name: str) -> AbstractContextManager[None]:
    """Mark the extent of a step. Free unless a trace file is named in the environment."""
    trace = os.environ.get(TRACE)
    return _IDLE if trace is None else _traced(name, Path(trace))


@contextmanager
def _traced(name: str, trace: Path) -> Iterator[None]:
    _write(trace, f"+{name} {os.getpid()}\n")
    _perhaps_kill(name, trace)
    try:
        yield
    finally:
        _write(trace, f"-{name} {os.getpid()}\n")


def _write(trace: Path, line: str) -> None:
    fd = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def _perhaps_kill(name: str, trace: Path) -> None:
    order = _order()
    step_name, _, rest = order.partition(":")
    if step_name != name:
        return
    turn, _, victim = rest.partition(" ")
    entered = sum(line.startswith(f"+{name} ") for line in trace.read_text().splitlines())
    if entered >= int(turn or 1):  # two threads that enter at once may both count one too many
        _write(trace, f"!{name} {os.getpid()}\n")
        if (file := _order_file()) is not None:
            file.unlink(missing_ok=True)
        if victim:
            os.kill(int(victim), signal.SIGKILL)
            return
        runner = os.environ.get(RUNNER)
        if runner is not None:
            os.kill(int(runner), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def _order_file() -> Path | None:
    wanted = os.environ.get(KILL, "")
    return Path(wanted[1:]) if wanted.startswith("@") else None


def _order() -> str:
    file = _order_file()
    if file is None:
        return os.environ.get(KILL, "")
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""
