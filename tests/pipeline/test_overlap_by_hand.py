"""What is told, kept and decided while a batch is published beside the next one; without Spark, step by step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar, cast

import pytest

from penstock.adaptors.base import Adaptor, Publisher, Refusal, Sink, SinkPosition, Stage, Staged
from penstock.adaptors.file.sink import FilePublisher, FileSink
from penstock.base.errors import AwayError, PenstockError, RefusedError
from penstock.log.compaction import compact
from penstock.log.message import MessageOffset
from penstock.log.offsets import OffsetLog
from penstock.log.ownership import FencedError
from penstock.pipeline import supervisor
from penstock.pipeline.definition import SinkNode
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.policy import OnError, Policy
from penstock.pipeline.supervisor import SupervisedSink
from penstock.pipeline.surroundings import Surroundings, runner_for
from penstock.spark.reach import Reach
from penstock.spark.single import batch_of
from penstock.spark.tasks import Task
from penstock.spark.work import Work

from .byhand import NOW, ByHand, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 20.0


@dataclass(frozen=True)
class Held(Adaptor):
    """A file that is published when somebody lets go of it; then it may fail."""

    name: ClassVar[str] = "held"
    description: ClassVar[str] = "for tests"
    writes: ClassVar[bool] = True
    target: Path = Path()
    let_go: threading.Event = field(default_factory=threading.Event)
    errors: list[PenstockError] = field(default_factory=list)
    """What happens the next times, the last one first."""

    def sink(self) -> Sink:
        return HeldSink(self)


class HeldSink(FileSink):
    def __init__(self, settings: Held) -> None:
        super().__init__(settings.target)
        self._settings = settings

    def publisher(self) -> Publisher:
        return HeldPublisher(self._settings)


class HeldPublisher(FilePublisher):
    def __init__(self, settings: Held) -> None:
        super().__init__(settings.target)
        self._settings = settings

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        assert self._settings.let_go.wait(PATIENCE)
        if self._settings.errors:
            raise self._settings.errors.pop()
        super().publish(parts, position)


class Batches:
    """The sink `s` of a log of thirty messages, given in batches of ten that are staged in this process."""

    def __init__(self, here: ByHand, on_error: Policy | None = None, *, alone: bool = False) -> None:
        here.append("A" * 30)
        self.here = here
        self.target = Held(target=here.target())
        self.refused: int | None = None
        """The message that a function refuses."""
        self.buried: list[int] = []
        node = SinkNode("s", self.target, Namespace(".*"), on_error=on_error or Policy())
        options = {"dataDir": str(here.path / "data"), "pipeline": "p"}
        reach = Reach(here.client.address)
        around = Surroundings(
            "p", here.log.reader, here.log.log_id, here.path / "scratch", options, reach, alone=lambda: alone
        )
        claim = lambda: OffsetLog(here.client, "p", "s", NOW)  # noqa: E731
        self.runner = runner_for(node, claim, self._bury, around)
        self.runner._staged = self._staged  # type: ignore[method-assign]
        self.runner._more = lambda: False  # type: ignore[method-assign]  # one batch at a time
        self.sink = SupervisedSink(node, self.runner, around)
        self.sink.open()
        self.runner.start(self.runner.at)

    @property
    def lacking(self) -> tuple[int, int]:
        """What is shown of the messages and bytes that the sink does not have."""
        told = self.sink.progress(self.here.log.point)
        assert told.messages_in == told.delivered + told.dropped + told.dead + told.pending
        return told.pending, told.lag_bytes

    def bytes_from(self, offset: int) -> int:
        return self.here.log.point.byte - self.here.log.reader.seek(offset).byte

    def give(self, end: int) -> None:
        """The next batch, as Spark gives it."""
        point = self.here.log.reader.seek(end)
        self.runner._upcoming.planner.upcoming = lambda begin: point  # type: ignore[method-assign]
        self.runner(SimpleNamespace(sparkSession=None), 0)  # type: ignore[arg-type]  # nobody needs Spark

    def end_query(self) -> None:
        """Spark's query has ended by what the runner raised, and the supervisor looks at it."""
        self.sink._query = SimpleNamespace(isActive=False, exception=lambda: None)  # type: ignore[assignment]
        self.sink._died()

    def _staged(self, work: Work) -> list[Task]:
        """The one before is let go when this one is staged."""
        begin, end = work.begin.offset, work.end.offset
        records = [record for record in self.here.log.reader.show(begin, end) if begin <= record.offset < end]
        rows = batch_of([record for record in records if record.offset != self.refused])
        rows = rows.append_column("origin", rows.column("ns"))
        stage = Stage(
            self.runner._staging / f"{begin}-{end}-x", "part", self.runner._target.watermark, begin=begin
        )
        staged = self.runner._sink.stager().stage(stage, iter([rows]))
        if self.refused is not None and begin <= self.refused < end:
            staged = replace(staged, refused=[Refusal(self.refused, "A", "no", "function")])
        if begin:
            self.target.let_go.set()
        return [Task(staged)]

    def _bury(self, generation: int, refusals: Sequence[Refusal]) -> None:
        self.buried += [refusal.offset for refusal in refusals]


def test_a_batch_that_is_being_published_is_lacking_until_it_is(here: ByHand) -> None:
    batches = Batches(here)
    batches.give(10)
    assert batches.runner.busy
    assert batches.lacking == (30, batches.bytes_from(0))
    batches.give(20)
    batches.runner._overlap.wait()
    assert batches.lacking == (10, batches.bytes_from(20))


def test_a_batch_that_failed_beside_the_next_one_is_lacking_also_while_its_target_is_away(
    here: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = Batches(here)
    batches.target.errors.append(AwayError("no answer"))
    batches.give(10)
    with pytest.raises(AwayError):
        batches.give(20)
    assert batches.lacking == (30, batches.bytes_from(0))
    batches.sink.watch(here.log.point)
    monkeypatch.setattr(HeldPublisher, "open", _away)
    with pytest.raises(AwayError):
        batches.runner.open(30)
    assert batches.lacking == (30, batches.bytes_from(0))


def _away(*_: object) -> SinkPosition:
    raise AwayError("no answer")


def test_a_message_has_its_retries_though_it_was_staged_before_the_sink_moved(here: ByHand) -> None:
    """Those of another message had come to their end; it was delivered after all."""
    batches = Batches(here, Policy(OnError.DEAD_LETTER, retries=3))
    batches.sink._troubles.buries = batches.runner.buries = True
    batches.refused = 15
    batches.give(10)
    with pytest.raises(RefusedError, match="stopped before message 15"):
        batches.give(20)
    assert (batches.buried, here.lines()) == ([], numbered(range(15)))


def test_a_sink_that_stopped_within_a_batch_lacks_what_is_behind_its_message(here: ByHand) -> None:
    batches = Batches(here)
    batches.refused = 15
    batches.target.let_go.set()
    with pytest.raises(RefusedError, match="stopped before message 15"):
        batches.give(30)
    batches.end_query()
    assert (batches.sink.state, batches.lacking) == ("stopped", (15, batches.bytes_from(15)))


def before_the_log(here: ByHand, monkeypatch: pytest.MonkeyPatch) -> tuple[Batches, SparkSession]:
    """A sink that has nothing; three messages are set apart, which it gets one by one, ten are in the log."""
    monkeypatch.setattr(supervisor, "_CATCH_UP", 1)
    batches = Batches(here)
    here.append("BC")
    here.close_segment()
    here.append("A" * 10)
    compact(here.log, MessageOffset(32), now=NOW)
    spark = SimpleNamespace(createDataFrame=lambda rows: SimpleNamespace(count=lambda: rows.num_rows))
    return batches, cast("SparkSession", spark)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_pause_is_heeded_between_two_pieces_of_what_compaction_set_apart(
    here: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, spark = before_the_log(here, monkeypatch)
    batches.sink.start(spark)  # nobody has let go of the target
    _until(lambda: batches.runner.busy)
    batches.sink.tend(spark, here.log.point)
    batches.sink.pause()
    assert batches.sink.state == "running"
    batches.target.let_go.set()

    def paused() -> bool:
        batches.sink.watch(here.log.point)
        return batches.sink.state == "paused"

    _until(paused)
    assert (here.lines(), here.held().commit.watermark) == (numbered([29]), 30)


def test_a_stop_does_not_wait_for_a_target_that_hangs_at_what_compaction_set_apart(
    here: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, spark = before_the_log(here, monkeypatch)
    batches.sink.start(spark)
    _until(lambda: batches.runner.busy)
    batches.sink.ask_to_stop()
    batches.sink.stop(0.1)
    assert here.lines() == []
    batches.target.let_go.set()
    assert batches.sink._catching_up is not None
    batches.sink._catching_up.join(PATIENCE)
    assert here.lines() == numbered([29]), "the one that was under way"


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_sink_that_fails_before_it_has_what_compaction_set_apart_lacks_all_of_the_log(
    here: ByHand, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """It was measured from the first byte that the log ever had, which is gone: that ended the run."""
    batches, spark = before_the_log(here, monkeypatch)
    batches.target.let_go.set()
    batches.target.errors.append(AwayError("no answer"))
    if pieces > 1:
        monkeypatch.setattr(HeldPublisher, "publish", FilePublisher.publish)
        monkeypatch.setattr(batches.runner, "_committed", _away_after(batches.runner._committed, 1))
    batches.sink.start(spark)
    assert batches.sink._catching_up is not None
    batches.sink._catching_up.join(PATIENCE)
    batches.sink.tend(spark, here.log.point)
    batches.sink.watch(here.log.point)
    pending = {1: 42, 2: 12}[pieces]
    assert (batches.sink.state, batches.lacking) == ("away", (pending, batches.bytes_from(32)))


def _away_after(commit: Callable[..., None], times: int) -> Callable[..., None]:
    left = iter(range(times))

    def commit_or_fail(*args: object) -> None:
        if next(left, None) is None:
            raise AwayError("no answer")
        commit(*args)

    return commit_or_fail


@pytest.mark.parametrize("alone", [True, False])
def test_a_sink_that_an_operator_took_by_mistake_goes_on_unless_it_may_have_been_another_run(
    here: ByHand, alone: bool
) -> None:
    batches = Batches(here, alone=alone)
    batches.target.let_go.set()
    OffsetLog(here.client, "p", "s", NOW)
    with pytest.raises(FencedError):
        batches.give(30)
    batches.end_query()
    assert batches.sink.state == "restarting"
    batches.runner.open(30)
    with nullcontext() if alone else pytest.raises(FencedError):
        batches.give(30)
    assert here.lines() == numbered(range(30))
    assert here.held().commit.watermark == (30 if alone else 0)


def test_a_query_that_spark_does_not_stop_holds_up_no_run(
    here: ByHand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that was told to end waited for it, for ever."""
    monkeypatch.setattr(supervisor, "_SPARKS_PATIENCE", 0.05)
    batches, ended = Batches(here), threading.Event()
    batches.sink._query = SimpleNamespace(stop=ended.wait)  # type: ignore[assignment]
    stopping = threading.Thread(target=batches.sink.stop, args=[1.0], daemon=True)
    stopping.start()
    stopping.join(PATIENCE)
    assert (stopping.is_alive(), batches.sink.state) == (False, "done")
    assert "has not stopped a query" in caplog.text
    ended.set()


def test_what_was_staged_behind_a_batch_that_failed_is_not_published(here: ByHand) -> None:
    batches = Batches(here)
    batches.target.errors.append(RefusedError("no"))
    batches.give(10)
    with pytest.raises(RefusedError, match="refused the batch 0 to 9"):
        batches.give(20)
    assert (here.lines(), here.held().commit.watermark, here.held().commit.careful) == ([], 0, 10)
    assert not batches.runner.busy


def test_to_stop_is_to_wait_for_the_batch_that_is_being_published(here: ByHand) -> None:
    batches = Batches(here)
    batches.give(10)
    assert not batches.runner.stop(0.05)
    batches.target.let_go.set()
    assert batches.runner.stop(PATIENCE)
    batches.give(20)
    assert here.lines() == numbered(range(10)), "no further one begins"


def test_the_rate_is_told_while_a_batch_is_done(here: ByHand) -> None:
    """That happens in another thread, at any moment."""
    batches = Batches(here)
    recent = batches.sink._recent

    class Done(int):
        def __radd__(self, other: int) -> int:
            recent.append((recent[0][0], 1))
            return other + 1

    recent.append((float("inf"), Done(1)))
    assert batches.sink.progress(here.log.point).rate > 0
