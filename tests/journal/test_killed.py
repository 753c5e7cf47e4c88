"""`kill -9` of a running broker, at every step and at random moments, with clients at work.

A few seeded rounds run with every `make test`; `make soak` runs many.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .killing import STEPS, Loop, rounds_of


def killed_again_and_again(loop: Loop, seed: int, rounds: int) -> Loop:
    for aim, turn in rounds_of(seed, rounds):
        done = loop.kill_after(turn) if aim == "random" else loop.kill_at(aim, int(turn))
        print(  # noqa: T201
            f"{aim} {turn:.1f}: exit {done.exit_code} after {done.seconds:.1f} s, {done.acknowledged} appends, "
            f"under way: {dict(done.interrupted)}"
        )
        assert done.exit_code == -9
    loop.verify()
    return loop


@pytest.mark.timeout(120)
def test_what_was_acknowledged_is_there_once_whatever_step_is_interrupted(tmp_path: Path) -> None:
    loop = killed_again_and_again(Loop(tmp_path, seed=11), seed=11, rounds=len(STEPS) + 2)
    assert set(loop.hit()) >= set(STEPS), f"not every step was hit: {loop.hit()}"
    assert sum(done.acknowledged for done in loop.rounds) > 100


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_soak_what_was_acknowledged_is_there_once(tmp_path: Path) -> None:
    loop = killed_again_and_again(Loop(tmp_path, seed=12), seed=12, rounds=50)
    assert set(loop.hit()) >= set(STEPS), f"not every step was hit: {loop.hit()}"


PLANTED = """
# The bug: an append is acknowledged when its commit is adopted, before it is on the disk.
from penstock.base import faults
from penstock.journal import localspool, replication
real_commit = localspool._commit
def commit(file, *args):
    import time
    with faults.step("planted"):
        time.sleep(0.02)
    real_commit(file, *args)
localspool._commit = commit
async def gather(self, ticket):
    pass
replication.Pipeline.gather = gather
from penstock.cli import main
main()
"""


def test_acknowledging_before_it_is_durable_is_caught(tmp_path: Path) -> None:
    """The same loop on a broker with a planted bug must fail, or it proves nothing."""
    (tmp_path / "planted.py").write_text(PLANTED)
    loop = Loop(tmp_path, seed=1, command=(sys.executable, str(tmp_path / "planted.py")))
    loop.kill_at("planted", 40)
    with pytest.raises(AssertionError, match=r"is not there|other bytes"):
        loop.verify()
