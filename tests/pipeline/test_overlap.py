"""Batches of a sink that overlap: the next one is staged while one is published, and none is lost, twice or early."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import Pipeline
from penstock import adaptors as a
from penstock.pipeline.progress import Summary
from penstock.pipeline.runner import run
from penstock.spark.batch import BatchRunner

from .overlapping import Overlapping, seen

pytestmark = pytest.mark.spark

EACH, BATCHES = 500, 3


def carried_out(path: Path, spark: SparkSession, patience: float = 2.0, first: bool = True) -> Summary:
    count = EACH * BATCHES
    if first:
        (path / "in.jsonl").write_text("".join(f'{{"n":{n}}}\n' for n in range(count)))
    pipeline = Pipeline("p", batch_messages=EACH)
    pipeline.modules = (Overlapping.__module__,)
    source = pipeline.source("in", a.file(uri=f"file://{path}/in.jsonl"))
    source.save("out", Overlapping(directory=path, messages=count, patience=patience))
    return run(pipeline, data_dir=path / "data", once=True, spark=spark)


def everything() -> list[str]:
    return [f'{{"n":{n}}}' for n in range(EACH * BATCHES)]


def lines(path: Path) -> list[str]:
    return (path / "out.jsonl").read_text().splitlines()


def test_the_next_batch_is_staged_while_one_is_published(tmp_path: Path, spark: SparkSession) -> None:
    summary = carried_out(tmp_path, spark, patience=20.0)
    assert (summary.exit_code, summary.adds_up, lines(tmp_path)) == (0, True, everything())
    begins = [begin for begin, _ in seen(tmp_path)]
    assert begins == sorted(set(begins)), "each once, and in the order of the log"
    assert len(begins) > 1
    assert [later > 0 for _, later in seen(tmp_path)] == [True] * (len(begins) - 1) + [False]


@pytest.mark.parametrize("kind", ["away", "other"])
def test_a_batch_that_fails_beside_the_next_one_comes_again_before_it(
    tmp_path: Path, spark: SparkSession, kind: str
) -> None:
    (tmp_path / "fail").write_text(f"{kind} {EACH}")
    summary = carried_out(tmp_path, spark)
    assert not (tmp_path / "fail").exists()
    assert (summary.exit_code, summary.adds_up, lines(tmp_path)) == (0, True, everything())


def test_a_batch_refused_beside_the_next_one_stops_the_sink_before_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "fail").write_text(f"refused {EACH}")
    summary = carried_out(tmp_path, spark)
    assert (summary.exit_code, summary.sinks[0].pending) == (3, EACH * (BATCHES - 1))
    assert f"stopped before message {EACH}" in str(summary.message)
    assert lines(tmp_path) == everything()[:EACH], "nothing of what was staged behind it is there"
    again = carried_out(tmp_path, spark, patience=0.0, first=False)
    assert (again.exit_code, lines(tmp_path)) == (0, everything())


def test_a_failure_is_noticed_where_no_further_batch_comes_to_tell(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where what is behind a batch is not for sinks, or not yet."""
    monkeypatch.setattr(BatchRunner, "_may_overlap", lambda *_: True)
    (tmp_path / "fail").write_text(f"away {EACH * (BATCHES - 1)}")
    summary = carried_out(tmp_path, spark, patience=0.2)
    assert not (tmp_path / "fail").exists()
    assert (summary.exit_code, summary.adds_up, lines(tmp_path)) == (0, True, everything())
