"""A large copy in a run: its ranges are read here, then by Spark's tasks, in order, and people see how far it is."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from penstock import Pipeline
from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, Batch, Copying, CopyTask, Source
from penstock.base.settings import setting
from penstock.log.message import Resume
from penstock.log.packing import Packed, pack
from penstock.pipeline.engine import Engine
from penstock.pipeline.progress import Progress
from penstock.pipeline.runner import _Run, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGES, ROWS = 8, 100
HERE = 4
"""So many ranges are under way before the first one is in the log."""


@dataclass(frozen=True)
class Range(CopyTask):
    number: int
    gate: str = ""
    """A file that those behind the first ones wait for."""

    def read(self) -> Iterator[Packed]:
        time.sleep(0.05)
        deadline = time.monotonic() + 60
        while self.gate and self.number >= HERE and not os.path.exists(self.gate):
            assert time.monotonic() < deadline, "the sinks did not begin"
            time.sleep(0.05)
        rows = range(self.number * ROWS, (self.number + 1) * ROWS)
        yield pack("t", pa.array([f'{{"id":{i},"pid":{os.getpid()}}}' for i in rows]), ts=1)


@dataclass(frozen=True)
class Table(Adaptor):
    name: ClassVar[str] = "table"
    description: ClassVar[str] = "for tests"
    reads: ClassVar[bool] = True
    ranges: int = setting("how many", default=RANGES)
    gate: str = setting("what the ranges behind the first ones wait for", default="")

    def source(self) -> Source:
        return TableSource(self.ranges, self.gate)


class TableSource(Source):
    """Remembers which range was last."""

    names: ClassVar[list[str]] = []

    def __init__(self, ranges: int, gate: str) -> None:
        self._ranges = ranges
        self._gate = gate
        self._done = 0

    def namespaces(self) -> Sequence[str]:
        return ["t"]

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        self.names.append(self.name)
        self._done = int(str(resume["t"].position["done"])) if "t" in resume else 0
        ranges = (Range(i, self._gate) for i in range(self._done, self._ranges))
        for rows in self.copier.run(ranges, stop):
            self._done += 1
            yield Batch(packed=rows, positions={"t": {"done": self._done}})
        if not stop.is_set():
            yield Batch(positions={"t": {"done": self._done}}, completed=["t"])

    def gauges(self) -> Mapping[str, float]:
        return {"done": float(self._done)}

    def copying(self) -> Sequence[Copying]:
        return [Copying("t", self._done * ROWS, self._ranges * ROWS)]


@pytest.mark.spark
def test_ranges_are_read_here_until_the_sinks_have_begun_then_by_sparks_tasks_and_the_rows_come_in_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, tended = tmp_path / "gate", _Run._look_after

    def tend(this: _Run) -> None:
        tended(this)
        if this._engine.settled.is_set():
            gate.touch()

    monkeypatch.setattr(_Run, "_look_after", tend)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    shop = Pipeline("shop")
    shop.source("db", Table(gate=str(gate))).save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"))
    seen: list[Progress] = []
    summary = run(shop, data_dir=tmp_path / "data", once=True, spark=spark, report=seen.append)
    assert (summary.exit_code, summary.adds_up) == (0, True)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == list(range(RANGES * ROWS))
    assert {row["pid"] for row in rows[: HERE * ROWS]} == {os.getpid()}
    assert {row["pid"] for row in rows} - {os.getpid()}, "none of them was read by a worker"
    assert TableSource.names[-1] == "shop.db"
    source = seen[-1].nodes[0]
    assert source.gauges == {"done": float(RANGES)}
    assert (source.copies[0].ns, source.copies[0].of) == ("t", RANGES * ROWS)
    told = [one.nodes[0].copies[0].rows for one in seen if one.nodes[0].copies]
    assert told == sorted(told)
    assert told[-1] == RANGES * ROWS
    again = run(shop, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (again.exit_code, again.read) == (0, 0)


def test_a_master_elsewhere_has_ranges_read_here(tmp_path: Path) -> None:
    """Its executors could not leave the rows where the owner of the log finds them."""
    shop = Pipeline("shop")
    shop.source("db", Table(3)).save("out", a.discard())
    engine = Engine(shop, tmp_path / "spark", master="spark://10.0.0.5:7077")
    found = list(engine.copier().run([Range(0), Range(1)], threading.Event()))
    assert [len(rows[0]) for rows in found] == [ROWS, ROWS]
    assert not engine.wanted.is_set()


def test_work_for_spark_is_announced_and_not_waited_for(tmp_path: Path) -> None:
    shop = Pipeline("shop")
    shop.source("db", Table(3)).save("out", a.discard())
    engine = Engine(shop, tmp_path / "spark", cores=1)
    assert len(list(engine.copier().run([Range(0)], threading.Event()))) == 1
    assert engine.wanted.is_set()
