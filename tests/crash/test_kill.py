"""`kill -9` of a running `penstock run`, at every step and at random moments.

A few seeded rounds run with every `make test`; `make soak` runs many, and asks that they met every step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .crashing import (
    ONE_SINK,
    STEPS,
    TROUBLED,
    TROUBLED_STEPS,
    Loop,
    no_process_left,
    rounds_of,
    verify,
    verify_dead,
)

pytestmark = pytest.mark.spark


def killed_again_and_again(directory: Path, seed: int, rounds: int, messages: int) -> Loop:
    """The loop, verified after every kill."""
    loop = Loop(directory, messages, rate=4_000)
    for aim, turn in rounds_of(seed, rounds):
        done = loop.kill_after(turn) if aim == "random" else loop.kill_at(aim, int(turn))
        print(f"{aim}: exit {done.exit_code} after {done.seconds:.1f} s, under way: {dict(done.interrupted)}")  # noqa: T201
        assert done.killed or done.exit_code == 0, loop.log_of()
        verify(directory, loop.count, complete=False)
    last = loop.finish()
    assert last.exit_code == 0, loop.log_of()
    verify(directory, loop.count, complete=True)
    assert no_process_left(directory)
    return loop


@pytest.mark.timeout(600)
def test_each_message_arrives_once_though_its_run_is_killed(tmp_path: Path) -> None:
    loop = killed_again_and_again(tmp_path, seed=2416, rounds=2, messages=3_000)
    assert loop.hit(), "no kill met a step with work in flight"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_soak_each_message_arrives_once(tmp_path: Path, seed: int) -> None:
    loop = killed_again_and_again(tmp_path, seed=100 + seed, rounds=20, messages=8_000)
    assert set(loop.hit()) >= set(STEPS), f"not every step was hit with work in flight: {loop.hit()}"


@pytest.mark.soak
def test_soak_with_dead_letters_and_compaction_under_way(tmp_path: Path) -> None:
    loop = Loop(tmp_path, 4_000, rate=4_000, pipeline=TROUBLED)
    for aim, turn in rounds_of(7, 16, TROUBLED_STEPS):
        done = loop.kill_after(turn) if aim == "random" else loop.kill_at(aim, int(turn))
        assert done.killed or done.exit_code == 0, loop.log_of()
        verify(tmp_path, loop.count, complete=False)
    assert loop.finish().exit_code == 0, loop.log_of()
    verify(tmp_path, loop.count, complete=True)
    verify_dead(tmp_path, loop.count)
    assert set(loop.hit()) >= set(TROUBLED_STEPS), f"not every step was hit with work in flight: {loop.hit()}"


SLOW = """
# A target that is slow to take a batch, so that the next one is staged meanwhile.
import time
from penstock.adaptors.file.sink import FilePublisher
real_publish = FilePublisher.publish
def publish(self, parts, position):
    time.sleep(0.7)
    real_publish(self, parts, position)
FilePublisher.publish = publish
from penstock.cli import main
main()
"""


@pytest.mark.soak
def test_soak_a_batch_is_published_and_the_next_one_staged_when_the_kill_comes(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    loop = Loop(tmp_path, 6_000, 6_000, (sys.executable, str(tmp_path / "slow.py")), pipeline=ONE_SINK)
    for turn in range(3, 9):
        done = loop.kill_at("stage", turn)
        assert done.killed or done.exit_code == 0, loop.log_of()
        verify(tmp_path, loop.count, complete=False, even=False)
    both = [done for done in loop.rounds if done.killed and {"publish", "stage"} <= set(done.interrupted)]
    assert both, f"no kill met both: {[dict(done.interrupted) for done in loop.rounds]}"
    assert loop.finish().exit_code == 0, loop.log_of()
    verify(tmp_path, loop.count, complete=True, even=False)


PLANTED = """
# The bug: the offset log moves before the sink has the rows.
from penstock.adaptors.file.sink import FilePublisher
from penstock.log.offsets import OffsetLog
from penstock.base import faults
real_publish, real_commit = FilePublisher.publish, OffsetLog.commit
late = []
FilePublisher.publish = lambda self, parts, position: late.append((self, parts, position))
def commit(self, *args, **named):
    real_commit(self, *args, **named)
    with faults.step("planted"):
        while late:
            real_publish(*late.pop())
OffsetLog.commit = commit
from penstock.cli import main
main()
"""


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_acknowledging_before_it_is_durable_is_caught(tmp_path: Path) -> None:
    """The same loop on a product with a planted bug must fail, or it proves nothing."""
    (tmp_path / "planted.py").write_text(PLANTED)
    command = (sys.executable, str(tmp_path / "planted.py"))
    loop = Loop(tmp_path, 3_000, 4_000, command, pipeline=ONE_SINK)
    assert loop.kill_at("planted", 2).killed, loop.log_of()
    last = loop.finish()
    caught = last.exit_code != 0
    if not caught:
        with pytest.raises(AssertionError, match="lost, doubled or reordered"):
            verify(tmp_path, loop.count, complete=True)
