"""What a refused message does under each policy, in whole runs: stop, retry, dead letters, one at a time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import Pipeline, retry
from penstock import adaptors as a
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker, connect
from penstock.log import deadletters, offsets
from penstock.log.offsets import Commit, OffsetLog
from penstock.pipeline import troubles
from penstock.pipeline.policy import Policy
from penstock.pipeline.progress import Progress, Summary
from penstock.pipeline.runner import run
from penstock.spark.single import advanced

from .picky import Picky, attempts

pytestmark = pytest.mark.spark


class Here:
    """A log of numbered documents of namespace `in`, and a target that may refuse some of them."""

    def __init__(self, path: Path, spark: SparkSession, count: int = 16) -> None:
        self.path, self.spark = path, spark
        self.target = path / "target"
        self.target.mkdir()
        lines = [json.dumps({"n": i}) for i in range(count)]
        (path / "in.jsonl").write_text("".join(line + "\n" for line in lines))

    def run(
        self,
        on_error: Policy | str = "stop",
        strict: bool = False,
        report: object = None,
        second: bool = False,
        **settings: object,
    ) -> Summary:
        pipeline = Pipeline("p", **settings)  # type: ignore[arg-type]
        pipeline.modules = (Picky.__module__,)
        source = pipeline.source("in", a.file(uri=f"file://{self.path}/in.jsonl"))
        source.save("c0", Picky(directory=self.target), on_error=on_error)
        if second:
            source.save("c1", a.file(uri=f"file://{self.path}/other.jsonl"))
        return run(
            pipeline,
            data_dir=self.path / "data",
            once=True,
            strict=strict,
            spark=self.spark,
            report=report or (lambda progress: None),  # type: ignore[arg-type]
        )

    def poison(self, number: int | None) -> None:
        (self.target / "poison").unlink(missing_ok=True)
        if number is not None:
            (self.target / "poison").write_text(f'{{"n": {number}}}\n')

    @property
    def delivered(self) -> list[int]:
        path = self.target / "out.jsonl"
        return [json.loads(line)["n"] for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def commit(self) -> Commit:
        with connect(self.path / "data") as client:
            return offsets.load(client, "p", "c0").commit

    def acknowledge(self, offset: int) -> None:
        """As `penstock offset ack` does."""
        with EmbeddedBroker(self.path / "data") as broker, Client(broker.address) as client:
            log = OffsetLog(client, "p", "c0", 1)
            assert log.state.commit.watermark == offset
            log.commit(advanced(log.state.commit, offset + 1, dropped=1), {}, 1)


@pytest.fixture
def here(tmp_path: Path, spark: SparkSession) -> Here:
    return Here(tmp_path, spark)


@pytest.mark.soak  # the promises' own story has it too
def test_the_seeds_example_of_a_failed_bulk(here: Here) -> None:
    """Offset 8; bulk 9-15 refused; restart, one at a time; 14 is poison: offset 13; acknowledged; 15 follows."""
    lines = (here.path / "in.jsonl").read_text().splitlines(keepends=True)
    (here.path / "in.jsonl").write_text("".join(lines[:9]))
    assert here.run().exit_code == 0
    assert here.commit.watermark - 1 == 8

    (here.path / "in.jsonl").write_text("".join(lines))
    here.poison(14)
    summary = here.run()
    assert summary.exit_code == 3
    assert "its target refused the batch 9 to 15" in (summary.message or "")
    assert (here.commit.watermark - 1, here.commit.careful, here.delivered) == (8, 16, list(range(9)))

    again = here.run()
    assert (again.exit_code, again.adds_up) == (3, True)
    assert "stopped before message 14 of namespace 'in'" in (again.message or "")
    assert "penstock offset ack c0 14" in (again.message or "")
    assert (here.commit.watermark - 1, here.delivered) == (13, list(range(14)))

    here.acknowledge(14)
    assert here.run().exit_code == 0
    assert (here.commit.watermark - 1, here.delivered) == (15, [*range(14), 15])
    assert here.commit.careful == 0
    assert attempts(here.target) == [9, 7, *[1] * 6, 1], "after the failure each went by itself"


def test_after_careful_delivery_it_goes_on_at_full_speed(here: Here) -> None:
    here.poison(3)
    assert here.run().exit_code == 3
    here.poison(None)
    with (here.path / "in.jsonl").open("a") as file:
        file.writelines(json.dumps({"n": i}) + "\n" for i in range(16, 100))
    assert here.run().exit_code == 0
    assert here.delivered == list(range(100))
    assert attempts(here.target) == [16, *[1] * 16, 84]


def test_dead_letters_keep_message_sink_node_error_and_time(here: Here) -> None:
    here.poison(14)
    before = time.time_ns() // 1000
    summary = here.run("dead-letter")
    assert (summary.exit_code, summary.adds_up, summary.sinks[0].dead) == (0, True, 1)
    assert here.delivered == [*range(14), 15]
    with connect(here.path / "data") as client:
        (letter,) = deadletters.load(client, "p")
    assert (letter.sink, letter.offset, letter.ns, letter.node, letter.state) == (
        "c0",
        14,
        "in",
        "c0",
        "dead",
    )
    assert (letter.data, letter.error) == ('{"n": 14}', "the target refused the batch")
    assert letter.time >= before


def test_retry_tries_again_and_then_stops(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.poison(14)
    states: set[str] = set()
    summary = here.run(
        retry(2, backoff=0.3), report=lambda progress: states.update(node.state for node in progress.nodes)
    )
    assert (summary.exit_code, here.delivered) == (3, list(range(14)))
    assert "retrying" in states
    assert attempts(here.target).count(16) == 1
    assert attempts(here.target)[-3:] == [1, 1, 1], "14 was tried once more for each retry"


def test_a_target_that_is_away_is_a_state_and_not_an_exit(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubles, "DELAYS", (0.05,))
    (here.target / "away").write_text("")
    seen: list[tuple[str, str | None]] = []

    def back_when_seen(progress: Progress) -> None:
        sink = progress.nodes[-1]
        seen.append((sink.state, sink.error))
        if sink.state == "away" and len(seen) > 4:
            (here.target / "away").unlink(missing_ok=True)

    summary = here.run(report=back_when_seen)
    assert (summary.exit_code, here.delivered) == (0, list(range(16)))
    assert ("away", "the target does not answer") in seen


def test_strict_reads_nothing_before_all_sinks_have_what_was_left_and_stops_with_a_failing_one(
    here: Here,
) -> None:
    here.poison(14)
    assert here.run().exit_code == 3
    with (here.path / "in.jsonl").open("a") as file:
        file.write(json.dumps({"n": 16}) + "\n")
    stopped = here.run(strict=True, second=True)
    assert (stopped.exit_code, stopped.read) == (3, 0), "14 is still in the way"
    loose = here.run(second=True)
    assert (loose.exit_code, loose.read) == (3, 1), "by default reading goes on, and so do other sinks"
    assert loose.sinks[1].delivered + stopped.sinks[1].delivered == 17
