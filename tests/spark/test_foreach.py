"""`foreachBatch` into a connector sink: crashes on either side of the decision, votes to abort, batches cut anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.adaptors.base import AbortedError
from penstock.adaptors.connector.sink import ConnectorPublisher
from penstock.base.disk import Disk
from penstock.base.errors import CorruptError, InUseError, RefusedError
from penstock.connector.sink import SinkServer, Terms, Transaction, Workers
from penstock.connector.sink.files import FileStorage, committed_bytes, file_of
from penstock.log.offsets import Lane
from penstock.spark import foreach
from penstock.spark.foreach import ConnectorBatches
from penstock.testing.powerloss import Mark, RecordingDisk, every_sync_matters, marked

pytestmark = pytest.mark.spark
Record = Callable[[RecordingDisk, Path], None]


class Moody(FileStorage):
    """Votes to abort so often."""

    aborts = 0

    def prepare(self, transaction: Transaction) -> None:
        if Moody.aborts:
            Moody.aborts -= 1
            raise RefusedError("not now")
        super().prepare(transaction)


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[SinkServer]:
    workers = Workers(tmp_path / "txns", lambda worker: Moody(file_of(tmp_path / "out", worker)))
    with SinkServer(("127.0.0.1", 0), workers, Terms(cookie=b"not-to-be-shown")) as server:
        yield server


def batches(sink: SinkServer, directory: Path, **settings: object) -> ConnectorBatches:
    return ConnectorBatches(
        f"127.0.0.1:{sink.address[1]}", name="plain", decisions=directory / "decisions", cookie="not-to-be-shown",
        **settings,  # type: ignore[arg-type]
    )  # fmt: skip


def rows(spark: SparkSession, begin: int, end: int) -> DataFrame:
    return spark.range(begin, end, 1, 3).selectExpr("id AS offset", "id % 5 AS k")


def got(directory: Path, lanes: int = 1) -> list[int]:
    found: list[int] = []
    for lane in range(lanes):
        path = file_of(directory / "out", f"plain.{lane}")
        if path.exists():
            found += [json.loads(line)["offset"] for line in committed_bytes(path).splitlines()]
    return found


def test_a_crash_on_either_side_of_the_decision(
    spark: SparkSession, sink: SinkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(batches(sink, tmp_path)) as first:
        first(rows(spark, 0, 10), 0)
        assert got(tmp_path) == list(range(10))
        with pytest.raises(InUseError):
            batches(sink, tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(Disk, "replace_file", _dies)
            with pytest.raises(OSError, match="the power is gone"):
                first(rows(spark, 10, 20), 1)
    record = tmp_path / "decisions" / "plain.decision"
    decided = record.read_bytes()
    record.write_bytes(decided[:-5])
    for _ in range(2):  # it holds the directory no longer than it is there
        with pytest.raises(CorruptError, match="not a record of decisions"):
            batches(sink, tmp_path)
    record.write_bytes(decided)
    with closing(batches(sink, tmp_path)) as second:  # not decided: sent again
        second(rows(spark, 10, 20), 1)
        assert got(tmp_path) == list(range(20))
        with monkeypatch.context() as patch:
            patch.setattr(ConnectorPublisher, "tell", _dies)
            with pytest.raises(OSError, match="the power is gone"):
                second(rows(spark, 20, 30), 2)
        assert got(tmp_path) == list(range(20))
    with closing(batches(sink, tmp_path)) as third:  # decided: told again, not sent again
        third(rows(spark, 20, 30), 2)
        assert got(tmp_path) == list(range(30))


def _dies(*_: object, **__: object) -> None:
    raise OSError("the power is gone")


def test_batches_that_are_cut_anew_are_recognised_by_their_offsets_and_connections_may_come_and_go(
    spark: SparkSession, sink: SinkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the loss of a checkpoint: numbers begin at 0 again, and the ends lie elsewhere."""
    with closing(batches(sink, tmp_path, offset="offset", connections=2, key="k")) as first:
        first(rows(spark, 0, 10), 0)
        first(rows(spark, 10, 25), 1)
    with closing(batches(sink, tmp_path, offset="offset", connections=2, key="k")) as anew:
        anew(rows(spark, 0, 17), 0)
        anew(rows(spark, 17, 40), 1)
        assert anew.decision.watermark == 40
    assert sorted(got(tmp_path, 2)) == list(range(40))
    zero = got(tmp_path)
    with closing(batches(sink, tmp_path)) as fewer, monkeypatch.context() as patch:
        patch.setattr(ConnectorPublisher, "leave", _dies)
        with pytest.raises(OSError, match="the power is gone"):
            fewer(rows(spark, 0, 0), 1)
        assert (set(fewer.decision.lanes), fewer.decision.leaving) == ({"plain.0"}, ("plain.1",))
    with closing(batches(sink, tmp_path)) as fewer:
        fewer(rows(spark, 0, 0), 1)  # decided: nothing is sent
        assert fewer.decision.leaving == ()
    assert got(tmp_path, 2) == zero, "the other has left"
    with closing(batches(sink, tmp_path, offset="offset", connections=2, key="k")) as again:
        again(rows(spark, 40, 50), 2)
    assert sorted(got(tmp_path, 2)) == sorted([*zero, *range(40, 50)])


def test_a_vote_to_abort_sends_the_batch_again_and_many_fail_it(
    spark: SparkSession, sink: SinkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreach, "_FIRST_PAUSE", 0.01)
    with closing(batches(sink, tmp_path)) as made:
        monkeypatch.setattr(Moody, "aborts", 2)
        made(rows(spark, 0, 10), 0)
        assert got(tmp_path) == list(range(10))
        monkeypatch.setattr(Moody, "aborts", foreach.TRIES)
        with pytest.raises(AbortedError):
            made(rows(spark, 10, 20), 1)
        assert got(tmp_path) == list(range(10))
        made(rows(spark, 10, 20), 1)
        assert got(tmp_path) == list(range(20))


def test_the_decision_is_durable_before_the_sink_is_told() -> None:
    """Also one that a killed query has left: the next one finds it and tells it, whether the disk has it or not."""

    def deciding(disk: RecordingDisk, root: Path) -> None:
        with closing(_deaf(disk, root)) as made:
            for number in range(3):
                made._publisher.told = lambda lanes: disk.mark(lanes["w"].end)  # type: ignore[attr-defined]
                made._decide(None, number)  # type: ignore[arg-type]

    def found_by_the_next(disk: RecordingDisk, root: Path, steps: int) -> None:
        with disk.killed_after(steps):
            deciding(disk, root)
        with closing(_deaf(disk, root)) as made:
            for lane in made.decision.lanes.values():
                disk.mark(lane.end)

    def verify(root: Path, marks: Sequence[Mark]) -> None:
        told = marked(marks, int)
        if told:
            assert foreach._loaded(root / "a" / "decisions" / "w.decision").lanes["w"].end >= told[-1]

    untracked = ("a/decisions/.lock", "a/decisions/.sealed-*")
    recordings: list[Record] = [
        deciding,
        *(partial(found_by_the_next, steps=steps) for steps in range(6, 22)),
    ]
    failures = every_sync_matters(recordings, verify, seed=1, untracked=untracked)
    assert "foreach.py:ConnectorBatches.__init__" in {site.label for site in failures}


def _deaf(disk: RecordingDisk, root: Path) -> ConnectorBatches:
    """Decides on batches that nobody sends."""
    made = ConnectorBatches("127.0.0.1:1", name="w", decisions=root / "a" / "decisions", disk=disk)

    class Publisher:
        def tell(self, lanes: dict[str, Lane]) -> None:
            self.told(lanes)  # type: ignore[attr-defined]

    made._publisher = Publisher()  # type: ignore[assignment]
    made._voted = lambda frame, number: ((), {"w": Lane(number + 1, f"t{number}")})  # type: ignore[method-assign,assignment]
    return made
