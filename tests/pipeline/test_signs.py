"""What a run tells of itself in the control journal, for those who cannot see its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from penstock.base.errors import PenstockError
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.control import Control, ControlEntry, RunMark
from penstock.log.transaction import DECIDED, Transaction, after_votes, begun
from penstock.pipeline import signs
from penstock.pipeline.progress import BatchProgress, NodeProgress, Progress, QueryProgress, SparkProgress
from penstock.pipeline.signs import Signs

SECOND = 1_000_000


@dataclass
class Sink:
    """As much of a sink as is told of it."""

    names: frozenset[str]
    state: str = "running"
    error: PenstockError | None = None
    transactions: Mapping[str, Transaction] = field(default_factory=dict)


def test_what_lasts_is_told_at_once_when_it_changes_and_again_with_every_beat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100 * SECOND
    monkeypatch.setattr(signs, "now_us", lambda: now)
    batches = [BatchProgress(number, number, number + 1, 1, 0, 0, 1, 0.5) for number in range(5)]
    query = QueryProgress("plain", "p/plain", True, batches)
    functions = [NodeProgress("slim", "function", "pick", "running", 5, 4, 1, copies=[])]
    progress = Progress("p", 1.0, "running", 5, functions)
    group, plain = Sink(frozenset({"left", "right"})), Sink(frozenset({"plain"}))
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        control = Control(client, "p")
        control.append(ControlEntry(now, "run", "run-begin", None, {"run": "r", "pid": 7}))
        told = Signs(control, "r", lambda: progress)

        def heard() -> RunMark:
            told.tell([group, plain])
            run = control.state().run
            assert run is not None
            return run

        staged = begun("3f2a", 14, 16, now)
        group.transactions = {"left": staged}
        assert heard().in_flight == {}, "most are over before anybody could read of them"
        now += SECOND
        assert heard().in_flight == {"left": staged}
        voted = after_votes(staged, {"p.left.0": True, "p.left.1": True}, now).now(DECIDED, now)
        group.transactions = {"left": voted}
        plain.state, plain.error = "stopped", PenstockError("it says no")
        run = heard()
        assert run.in_flight == {"left": voted}
        assert {name: (one.state, one.error) for name, one in run.standing.items()} == {
            "plain": ("stopped", "it says no")
        }
        heard()
        assert len(control.entries()) == 3, "what has not changed is not told again"
        told.beat()
        run = heard()
        assert run.in_flight == {"left": voted}, "but a beat tells everything"
        assert (msgspec.convert(run.functions, list[NodeProgress]), run.spark) == (functions, None)
        progress = replace(progress, spark=SparkProgress("4", "local[2]", "a", None, [query]))
        told.beat()
        group.transactions = {}
        run = heard()
        assert run.in_flight == {}
        kept = msgspec.convert(run.spark, SparkProgress)
        assert kept.queries[0].batches == batches[-3:], "what a beat alone tells stands until the next"
        assert len(control.entries()) == 6
        group.transactions = {"left": voted}
        assert heard().in_flight == {"left": voted}
        told.end(0)
        ended = control.state().run
        assert ended is not None
        assert (ended.ended, ended.in_flight) == (True, {})
