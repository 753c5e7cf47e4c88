"""Compaction interrupted: by `kill -9` and by power loss, at each of its steps. Nothing is lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.base import faults
from penstock.journal.embedded import EmbeddedBroker
from penstock.log import compaction
from penstock.log.compaction import STEPS
from penstock.testing.powerloss import Image, Log, Mark, RecordingDisk, check, images, marked

from .compacting import Acknowledged, verify, work

OFFSET_STEPS = ("compact offsets roll", "compact offsets append", "compact offsets trim")
KILLS = [*((step, 2) for step in (*STEPS, *OFFSET_STEPS)), ("compact part", 9), ("trim", 3)]
"""Where the process is killed: the step, and the how manieth time it is entered. The last one is the broker's."""

ROUNDS = 50
"""More than any process lives to see."""


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: what is promised here does not hang on a real disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="compact-", dir=memory if memory.is_dir() else tmp_path) as name:
        yield Path(name)


def killed(root: Path, trace: Path, step: str, turn: int) -> Acknowledged | None:
    """Work in a process of its own until it is killed at a step; what was acknowledged by then."""
    told = root / "told"
    told.write_text("")
    process = _processes().Process(target=_work, args=(root, trace, f"{step}:{turn}", told))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    lines = told.read_text().splitlines()
    return Acknowledged(*json.loads(lines[-1])) if lines else None


def _processes() -> ForkServerContext:
    """Processes that have everything imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__, "penstock.journal.broker", "grpc.aio"])
    return context


def _work(root: Path, trace: Path, kill_at: str, told: Path) -> None:
    os.environ.update({faults.TRACE: str(trace), faults.KILL: kill_at})
    with EmbeddedBroker(root / "data") as broker, told.open("a", buffering=1) as file:
        work(root, ROUNDS, lambda acknowledged: print(json.dumps(acknowledged), file=file), broker)


@pytest.mark.timeout(180)
def test_kill_9_at_every_step_loses_nothing(scratch: Path) -> None:
    hit: set[str] = set()
    for number, (step, turn) in enumerate(KILLS):
        trace = scratch / f"trace {number}"
        told = killed(scratch, trace, step, turn)
        hit |= {line[1:].rsplit(" ", 1)[0] for line in trace.read_text().splitlines() if line[0] == "!"}
        verify(scratch, told, thorough=number == len(KILLS) - 1)
    assert hit == {step for step, _ in KILLS}


def test_a_compaction_that_forgets_a_namespace_is_caught(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same look at a log that was compacted by a planted bug must fail, or it proves nothing."""
    real = compaction._Kept.records

    def forgetful(self: compaction._Kept, now: int) -> Iterator[tuple[bytes, bool]]:
        return (kept for kept in real(self, now) if b"ns7" not in kept[0])

    monkeypatch.setattr(compaction._Kept, "records", forgetful)
    with EmbeddedBroker(scratch / "data") as broker:
        work(scratch, 2, lambda told: None, broker)
    with pytest.raises(AssertionError, match="a namespace has no message any more"):
        verify(scratch, None, thorough=False)


class Entered(NamedTuple):
    """A step begins."""

    step: str


class Left(NamedTuple):
    """And ends."""

    step: str


@contextmanager
def marking(disk: RecordingDisk) -> Iterator[None]:
    """Has every step of compaction marked in the recording."""
    real = faults.step

    @contextmanager
    def step(name: str) -> Iterator[None]:
        if name.startswith("compact"):
            disk.mark(Entered(name))
        yield
        if name.startswith("compact"):
            disk.mark(Left(name))

    faults.step = step
    try:
        yield
    finally:
        faults.step = real


def before(root: Path) -> None:
    """What there is when the recording begins: two rounds of work."""
    root.mkdir()
    with EmbeddedBroker(root / "data") as broker:
        work(root / "beside", 2, lambda told: None, broker)
    for name in ("LOCK", "broker.sock"):
        (root / "data" / name).unlink(missing_ok=True)


def record(disk: RecordingDisk, root: Path) -> None:
    with EmbeddedBroker(root / "data", disk=disk) as broker, marking(disk):
        work(root.parent / "beside", 1, disk.mark, broker)


UNTRACKED = ("data/LOCK", "data/broker.sock", "data/index*")


def under_way(marks: Sequence[Mark]) -> list[str]:
    """The steps that were entered and not left."""
    stack: list[str] = []
    for mark in marks:
        if isinstance(mark.value, Entered):
            stack.append(mark.value.step)
        elif isinstance(mark.value, Left):
            stack.pop()
    return stack


def recorded() -> Log:
    return check(record, lambda root, marks: None, seed=4, cuts=(), prepare=before, untracked=UNTRACKED).log


def verified(found: Iterable[Image], scratch: Path) -> set[str]:
    """Verifies what is on these disks; the steps that were under way when the power went."""
    hit: set[str] = set()
    for number, image in enumerate(found):
        root = scratch / str(number)
        image.build(root)
        told = marked(image.marks, Acknowledged)
        verify(root, told[-1] if told else None, thorough=number % 8 == 0)
        hit.update(under_way(image.marks))
        shutil.rmtree(root)
    return hit


def cuts_in_steps(log: Log) -> set[int]:
    """Of each step a moment in the middle of it."""
    inside: dict[str, list[int]] = {}
    stack: list[str] = []
    for index, event in enumerate(log.events):
        if isinstance(event, Mark) and isinstance(event.value, Entered):
            stack.append(event.value.step)
        elif isinstance(event, Mark) and isinstance(event.value, Left):
            stack.pop()
        for step in stack:
            inside.setdefault(step, []).append(index + 1)
    return {cuts[len(cuts) // 2] for cuts in inside.values()}


@pytest.mark.timeout(300)
def test_power_loss_at_every_step_loses_nothing(scratch: Path) -> None:
    log = recorded()
    found = {image.cut: image for image in images(log, seed=4, cuts=cuts_in_steps(log), per_cut=1)}
    assert verified(found.values(), scratch) >= {*STEPS, *OFFSET_STEPS}


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_soak_power_loss_anywhere_loses_nothing(scratch: Path) -> None:
    assert verified(images(recorded(), seed=5, per_cut=6), scratch) >= {*STEPS, *OFFSET_STEPS}
