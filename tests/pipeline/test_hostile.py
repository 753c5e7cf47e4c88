"""What runs and operators' commands do when things go wrong in ways that nobody asked for. Without Spark."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pytest

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.adaptors.base import (
    Adaptor,
    Bad,
    Batch,
    Publisher,
    Refusal,
    SinkPosition,
    Source,
    Stage,
    Staged,
)
from penstock.adaptors.file.sink import FilePublisher, FileSink, FileStager
from penstock.adaptors.formats import partfile
from penstock.adaptors.formats.linewriter import Writing
from penstock.base.errors import AwayError, CorruptError, PenstockError, RefusedError, UsageError
from penstock.functions.base import Function
from penstock.functions.chain import Chain, Step
from penstock.functions.python import MutableMessage
from penstock.journal.client import BrokerGoneError, Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log import deadletters
from penstock.log.commitlog import CommitLog
from penstock.log.control import Control, ControlEntry
from penstock.log.message import ByteOffset, Message, MessageOffset, Mode, Op, Resume
from penstock.log.offsets import Commit, OffsetLog, SinkOffsets
from penstock.log.positions import LogPoint
from penstock.log.record import Record
from penstock.pipeline import housekeeping, lag
from penstock.pipeline.atomic import GROUP, decisions_of
from penstock.pipeline.beating import beating
from penstock.pipeline.definition import SinkNode
from penstock.pipeline.delivering import step
from penstock.pipeline.editing import Editor
from penstock.pipeline.engine import Engine
from penstock.pipeline.errortext import told
from penstock.pipeline.housekeeping import Housekeeping
from penstock.pipeline.ingest import Ingest
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.offsetfile import Exported, ExportedSink
from penstock.pipeline.operations import Directory
from penstock.pipeline.policy import MaxLag, WhenBehind
from penstock.pipeline.progress import Progress, Summary, published
from penstock.pipeline.runner import _Run, run
from penstock.pipeline.serving import serving
from penstock.pipeline.supervisedgroup import SupervisedGroup
from penstock.pipeline.supervisor import SupervisedSink
from penstock.pipeline.surroundings import Surroundings, runner_for
from penstock.spark.batch import BatchRunner
from penstock.spark.reach import Reach
from penstock.spark.single import SingleDelivery, batch_of

from .byhand import NOW, ByHand
from .picky import Picky


def ended(work: Callable[[], Summary], seconds: float) -> Summary:
    """What a run comes to that must end by itself within so many seconds."""
    found: list[Summary] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"it did not end within {seconds} s"
    return found[0]


class TestRuns:
    def pipeline(self, path: Path, **settings: str) -> Pipeline:
        pipeline = Pipeline("p", **settings)  # type: ignore[arg-type]
        source = pipeline.source("in", a.file(uri=f"file://{path}/in.jsonl"))
        source.save("out", a.file(uri=f"file://{path}/out.jsonl"))
        return pipeline

    def test_that_its_file_cannot_be_written_is_told_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "in.jsonl").touch()
        for _ in range(2):  # the first one makes the directory
            summary = run(self.pipeline(tmp_path), data_dir=tmp_path / "data", once=True)
            shutil.rmtree(tmp_path / "data" / "runs", ignore_errors=True)
            (tmp_path / "data" / "runs").touch()
        told = [line for line in caplog.messages if "`penstock status`" in line]
        assert (summary.exit_code, len(told)) == (0, 1)

    @pytest.mark.parametrize("strict", [False, True])
    def test_once_ends_with_an_error_if_who_holds_the_log_will_not_move(
        self, tmp_path: Path, strict: bool
    ) -> None:
        lines = (json.dumps({"n": n, "text": "x" * 1000}) + "\n" for n in range(4000))
        (tmp_path / "in.jsonl").write_text("".join(lines))
        with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
            Control(client, "p").append(ControlEntry(1, "ann", "pause", "out"))
        pipeline = self.pipeline(tmp_path, log_limit="1MB", segment_bytes="256KB")
        for _ in range(2):  # the second one finds the log full, or with what an earlier run has left
            summary = ended(
                lambda: run(pipeline, data_dir=tmp_path / "data", once=True, strict=strict), seconds=20
            )
            assert summary.exit_code == 1
            assert "not read to its end" in str(summary.message)
            assert "sink 'out'" in str(summary.message)

    def test_a_run_that_cannot_begin_says_that_it_has_ended(self, tmp_path: Path) -> None:
        (tmp_path / "in.jsonl").write_text('{"n":1}\n')
        (tmp_path / "out.jsonl").write_text("theirs\n")
        accounts: list[Summary] = []
        with pytest.raises(UsageError):
            run(self.pipeline(tmp_path), data_dir=tmp_path / "data", once=True, failed=accounts.append)
        (summary,) = accounts
        assert (summary.exit_code, summary.adds_up, summary.sinks[0].delivered) == (2, True, 0)
        assert "out.jsonl" in str(summary.message)
        with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
            mark = Control(client, "p").state().run
        assert mark is not None
        assert (mark.ended, mark.exit_code) == (True, 2)
        file = published(tmp_path / "data", "p")
        assert file is not None
        assert file.exit_code == 2

    def test_who_looks_on_and_goes_away_leaves_nothing_running(self, tmp_path: Path) -> None:
        """As in `penstock run ... | head -1`: telling fails, also that it is stopping, and the end must come."""
        (tmp_path / "in.jsonl").write_text("")

        def gone(progress: Progress) -> None:
            raise BrokenPipeError

        accounts: list[Summary] = []
        with pytest.raises(BrokenPipeError):
            run(
                self.pipeline(tmp_path),
                data_dir=tmp_path / "data",
                once=True,
                report=gone,
                failed=accounts.append,
            )
        assert [summary.exit_code for summary in accounts] == [1]
        assert not [thread for thread in threading.enumerate() if thread.name in ("ingest", "housekeeping")]
        assert not (tmp_path / "data" / "scratch" / "sealed").exists()
        with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
            mark = Control(client, "p").state().run
        assert mark is None or mark.ended

    def test_a_target_that_cannot_be_let_go_keeps_no_run_from_its_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "in.jsonl").write_text("")

        close = FilePublisher.close

        def broken(self: FilePublisher) -> None:
            was_open = self._file is not None
            close(self)
            if was_open:
                raise OSError("the connection is broken")

        monkeypatch.setattr(FilePublisher, "close", broken)
        summary = ended(
            lambda: run(self.pipeline(tmp_path), data_dir=tmp_path / "data", once=True), seconds=20
        )
        assert (summary.exit_code, summary.adds_up) == (0, True)

    def test_the_drivers_memory_may_be_said(self, tmp_path: Path) -> None:
        """It fails, but not for that: Spark cannot work in a directory with a comma in its name."""
        engine = Engine(
            self.pipeline(tmp_path), tmp_path / "a,b", settings={"spark.driver.memory": "2g"}, cores=1
        )
        with pytest.raises(UsageError, match=r"comma|already running"):
            engine.start()


def _renamed(message: MutableMessage) -> MutableMessage:
    message.ns = "\ud800"
    return message


def _complaining(message: MutableMessage) -> MutableMessage:
    raise ValueError("\ud800")


@dataclasses.dataclass(frozen=True)
class Scripted(Adaptor):
    """A source that gives one batch, and ends after a while."""

    batch: Batch
    seconds: float = 0.0
    name: ClassVar[str] = "scripted"
    description: ClassVar[str] = "for tests"
    reads: ClassVar[bool] = True

    def source(self) -> Source:
        return ScriptedSource(self)


class ScriptedSource(Source):
    def __init__(self, script: Scripted) -> None:
        self._script = script

    def namespaces(self) -> Sequence[str]:
        return ["t"]

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        yield self._script.batch
        stop.wait(self._script.seconds)


@dataclasses.dataclass
class Clock:
    """Stands for the module `time`."""

    now: float
    of_day: float | None = None

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time() if self.of_day is None else self.of_day


class TestDetaching:
    def test_a_target_that_is_away_at_the_start_is_no_reason_to_detach_a_sink(
        self, here: ByHand, tmp_path: Path
    ) -> None:
        here.append("A" * 500)
        OffsetLog(here.client, "p", "s", NOW).commit(Commit(watermark=499, delivered=499), {}, NOW)
        (tmp_path / "away").touch()
        limit = MaxLag(bytes=1000, then=WhenBehind.DETACH)
        node = SinkNode("s", Picky(directory=tmp_path), Namespace(".*"), max_lag=limit)
        sink = SupervisedSink(node, batches_for(here, node), surroundings(here))
        sink.open()
        assert sink.state == "away"
        sink._due = time.monotonic() + 60
        sink.tend(None, here.log.point)  # type: ignore[arg-type]  # Spark is not asked before it is time
        assert (sink.state, sink.commit.detached) == ("away", False)
        assert 0 < sink.progress(here.log.point).lag_bytes < 100

    def test_a_transaction_without_its_end_is_no_reason_to_detach_a_sink(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody can be given it before: a sink that has everything else is not behind."""
        monkeypatch.setattr(lag, "AGE_EVERY", 0.1)
        messages = [Message("t", b'{"n":"%s"}' % (b"x" * 100), ts=NOW, mode=Mode.SYNC)] * 100
        half = Batch(messages, {"t": {"n": 100}}, more=True)
        pipeline = Pipeline("p")
        limit = MaxLag(bytes=1000, then=WhenBehind.DETACH)
        pipeline.source("in", Scripted(half, seconds=1.0)).save("out", a.discard(), max_lag=limit)
        summary = ended(lambda: run(pipeline, data_dir=tmp_path / "data", once=True), seconds=20)
        assert "within a transaction" in str(summary.message), "it ended otherwise"
        with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
            assert not OffsetLog(client, "p", "out", NOW).state.commit.detached

    def test_a_source_that_catches_up_is_no_reason_to_detach_a_sink(
        self, here: ByHand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it logs is old, and the sink has had everything until now; only later is the sink too late."""
        monkeypatch.setattr(lag, "AGE_EVERY", 0.0)
        clock = Clock(100.0)
        monkeypatch.setattr(lag, "time", clock)
        here.append("A" * 5)
        OffsetLog(here.client, "p", "s", NOW).commit(Commit(watermark=5, delivered=5), {}, NOW)
        limit = MaxLag(seconds=3600, then=WhenBehind.DETACH)
        node = SinkNode("s", Picky(directory=tmp_path), Namespace(".*"), max_lag=limit)
        sink = SupervisedSink(node, batches_for(here, node), surroundings(here))
        sink.open()
        sink.watch(here.log.point)
        here.append("A")  # of 2023, by its time
        for seconds, state in ((2.0, "starting"), (3500.0, "starting"), (3600.0, "detached")):
            clock.now = 100.0 + seconds
            sink.watch(here.log.point)
            assert (sink.state, sink.progress(here.log.point).lag_seconds) == (state, seconds)

    def test_a_sink_that_lacks_old_messages_from_the_start_is_as_far_behind_as_they_are_old(
        self, here: ByHand
    ) -> None:
        here.append("A" * 5)
        behind = lag.Lag("s", MaxLag(seconds=3600), here.log.reader)
        behind.look(LogPoint(MessageOffset(0), ByteOffset(0)), here.log.point)
        assert behind.share > 1

    @pytest.mark.parametrize("moves", [False, True])
    def test_a_clock_that_is_set_forward_makes_no_sink_late(
        self, here: ByHand, monkeypatch: pytest.MonkeyPatch, moves: bool
    ) -> None:
        """It lacks messages from the start on, of half an hour ago, and catches up with them or does not."""
        monkeypatch.setattr(lag, "AGE_EVERY", 0.0)
        clock = Clock(50.0, NOW / 1e6 + 1800)
        monkeypatch.setattr(lag, "time", clock)
        here.append("A" * 5)
        behind = lag.Lag("s", MaxLag(seconds=3600), here.log.reader)
        behind.look(LogPoint(MessageOffset(0), ByteOffset(0)), here.log.point)
        assert behind.seconds == 1800
        clock.now, clock.of_day = 60.0, NOW / 1e6 + 1810 + 86_400
        behind.look(here.log.reader.seek(3 if moves else 0), here.log.point)
        assert behind.seconds == 1810

    def test_a_message_without_a_time_is_as_old_as_it_is_known(
        self, here: ByHand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was taken for one of 1970."""
        monkeypatch.setattr(lag, "AGE_EVERY", 0.0)
        clock = Clock(50.0)
        monkeypatch.setattr(lag, "time", clock)
        here.log.append([Message("A", b"{}")], {}, [], NOW)
        behind = lag.Lag("s", MaxLag(seconds=3600), here.log.reader)
        for seconds in (0.0, 1.0, 7200.0):
            clock.now = 50.0 + seconds
            behind.look(LogPoint(MessageOffset(0), ByteOffset(0)), here.log.point)
            assert (behind.seconds, behind.share >= 1) == (seconds, seconds == 7200.0)

    @pytest.mark.parametrize(("rest", "detached"), [(7200, False), (60, True)])
    def test_the_time_in_which_nothing_ran_is_no_reason_to_detach_a_sink(
        self, tmp_path: Path, rest: int, detached: bool
    ) -> None:
        """The last run was stopped two hours ago, or a minute: what it had left in the log is two hours old."""
        began = time.time_ns() // 1000
        with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
            left = [Message("t", b"{}", ts=began - 7_200_000_000)]
            CommitLog(client, "p", tmp_path / "data" / "index", None, NOW).append(left, {"t": {}}, ["t"], NOW)
            control = Control(client, "p")
            control.append(ControlEntry(began - rest * 1_000_000, "run", "run-begin", None, {"run": "r"}))
            control.append(ControlEntry(began, "ann", "pause", "out"))
        pipeline = Pipeline("p")
        limit = MaxLag(seconds=3600, then=WhenBehind.DETACH)
        pipeline.source("in", Scripted(Batch(), seconds=1.0)).save("out", a.discard(), max_lag=limit)
        summary = ended(lambda: run(pipeline, data_dir=tmp_path / "data", once=True), seconds=20)
        assert summary.sinks[0].pending == 1
        with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
            assert OffsetLog(client, "p", "out", NOW).state.commit.detached is detached

    def test_what_is_remembered_of_a_sink_that_stands_still_stays_small_and_true(
        self, here: ByHand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lag, "AGE_EVERY", 0.0)
        monkeypatch.setattr(lag, "_ENDS", 8)
        clock = Clock(0.0)
        monkeypatch.setattr(lag, "time", clock)
        begin = here.log.point
        behind = lag.Lag("s", None, here.log.reader)
        for second in range(50):
            clock.now = float(second)
            behind.look(begin, here.log.point)
            assert behind.seconds == second
            here.append("A")
        assert len(behind._ends) <= 8
        behind.look(here.log.reader.seek(40), here.log.point)
        assert 9 <= behind.seconds < 49

    def test_sinks_that_commit_together_are_detached_and_set_again_together(self, here: ByHand) -> None:
        """The log was kept for them all the same, and what an operator did for them changed nothing."""
        here.append("A" * 500)
        end = here.log.point
        group = detaching_group(here)
        group.open()
        group.watch(end)
        assert group.state == "detached"
        assert [here.held(name).commit.detached for name in ("one", "two")] == [True, True]
        settings = Pipeline("p").settings
        upkeep = Housekeeping(here.log, "p", settings, lambda: {group.node.name: group.durable})
        assert upkeep._earliest() == end.offset
        editor = Editor(Directory(here.client), "ann")
        editor.mark("p", "one", 499)
        assert detaching_group(here).state == "detached", "one of them still is"
        editor.mark("p", "two", 499)
        again = detaching_group(here)
        assert (again.state, again.commit.detached) == ("starting", False)

    @pytest.mark.parametrize("landed", [True, False])
    def test_a_sink_is_detached_whatever_became_of_a_commit_in_doubt(
        self, here: ByHand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landed: bool
    ) -> None:
        here.append("A" * 500)
        limit = MaxLag(bytes=1000, then=WhenBehind.DETACH)
        node = SinkNode("s", Picky(directory=tmp_path), Namespace(".*"), max_lag=limit)
        sink = SupervisedSink(node, batches_for(here, node), surroundings(here))
        sink.open()
        real = Client.append

        def doubtful(self: Client, *args: Any, **settings: Any) -> object:
            if landed:
                real(self, *args, **settings)
            raise BrokerGoneError("nobody answers")

        monkeypatch.setattr(Client, "append", doubtful)
        with pytest.raises(BrokerGoneError):
            sink._batches._committed(Commit(watermark=3, delivered=3), {})
        monkeypatch.setattr(Client, "append", real)
        sink.watch(here.log.point)
        assert sink.state == "detached"
        held = here.held().commit
        assert (held.watermark, held.detached) == (3 if landed else 0, True)


def surroundings(here: ByHand) -> Surroundings:
    options = {"dataDir": str(here.path), "pipeline": "p"}
    return Surroundings(
        "p", here.log.reader, here.log.log_id, here.path / "scratch", options, Reach(here.client.address)
    )


def claims(here: ByHand, name: str) -> Callable[[], OffsetLog]:
    return lambda: OffsetLog(here.client, "p", name, NOW)


def batches_for(here: ByHand, node: SinkNode) -> BatchRunner:
    return runner_for(node, claims(here, node.name), lambda generation, refusals: None, surroundings(here))


def detaching_group(here: ByHand) -> SupervisedGroup:
    """Two sinks that commit together, whose targets are not there, and that may not be far behind."""
    limit = MaxLag(bytes=1000, then=WhenBehind.DETACH)
    away = a.connector(sink="127.0.0.1:1")
    nodes = [SinkNode(name, away, Namespace(".*"), max_lag=limit) for name in ("one", "two")]
    return SupervisedGroup(
        nodes,
        lambda: decisions_of(here.client, "p", NOW),
        partial(claims, here),
        lambda name: lambda generation, refusals: None,
        surroundings(here),
    )


def test_no_place_of_bad_input_tells_a_password(tmp_path: Path) -> None:
    bad = Bad(
        "t", "https://me:hunter2-hunter2@host/x.jsonl, line 1", "https://me:hunter2-hunter2@host: no", b"?"
    )
    pipeline = Pipeline("p")
    pipeline.source("in", Scripted(Batch(bad=[bad], positions={"t": {"n": 1}}))).save("out", a.discard())
    for _ in range(2):
        assert run(pipeline, data_dir=tmp_path / "data", once=True).exit_code == 0
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        (letter,) = deadletters.load(client, "p")
    assert letter.place == "https://me:***@host/x.jsonl, line 1"
    assert letter.error == "https://me:***@host: no"


class TestBrokerAway:
    def test_what_an_operator_asked_for_meanwhile_is_done_when_it_is_back(self, here: ByHand) -> None:
        resumed: list[str] = []

        def resume(name: str) -> None:
            if not resumed and not answers:
                raise BrokerGoneError("nobody answers")
            resumed.append(name)

        answers: list[bool] = []
        control = Control(here.client, "p")
        for name in ("one", "two"):
            control.append(ControlEntry(NOW, "ann", "resume", name))
        sinks = [SimpleNamespace(names={name}, resume=partial(resume, name)) for name in ("one", "two")]
        work = SimpleNamespace(_control=control, _heard=0, _sinks=sinks)
        with pytest.raises(BrokerGoneError):
            _Run._obey(work)  # type: ignore[arg-type]
        answers.append(True)
        for _ in range(2):
            _Run._obey(work)  # type: ignore[arg-type]
        assert resumed == ["one", "two"]

    def test_reading_goes_on_where_it_was_when_the_broker_is_back(self, tmp_path: Path) -> None:
        go, quiet = threading.Event(), threading.Event()

        class Slow(Source):
            """Three messages; the first one at once, the others when it is told to."""

            def namespaces(self) -> Sequence[str]:
                return ["A"]

            def read(
                self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
            ) -> Iterator[Batch]:
                begin = resume["A"].position["n"] if "A" in resume else 0
                assert isinstance(begin, int)
                for n in range(begin, 3):
                    if n:
                        go.wait(10)
                    yield Batch([Message("A", b'{"n":%d}' % n, ts=NOW)], {"A": {"n": n + 1}})
                    if n == 1 and not quiet.is_set():
                        quiet.set()
                        # Nothing more for a while; what could not be logged must be noticed before.
                        stop.wait(60)

        with EmbeddedBroker(tmp_path / "data") as broker:
            client = Client(broker.address)
            log = CommitLog(client, "p", tmp_path / "index", None, NOW)
            ingest = Ingest(Slow(), Namespace(".*"), log, lambda: None, patient=True)
            ingest.start()
            until(lambda: ingest.end.offset == 1)
        go.set()
        until(lambda: ingest.state == "away")
        assert ingest.end.offset == 1
        with EmbeddedBroker(tmp_path / "data"):
            assert ingest.done.wait(20)
            assert ingest.error is None
            shown = [(record.offset, record.data) for record in log.reader.show(0, 9)]
        assert shown == [(n, b'{"n":%d}' % n) for n in range(3)]
        client.close()

    def test_what_workers_say_of_a_system_that_is_away_is_understood(self) -> None:
        text = (
            "An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
            '  File "x.py", line 1, in f\nOSError: [Errno 28] No space left on device\n\n'
            "The above exception was the direct cause of the following exception:\n\n"
            "Traceback (most recent call last):\n"
            "penstock.base.errors.AwayError: cannot write out.jsonl: No space left on device\n\n"
            "\tat org.apache.spark.Something\n"
        )
        error = told(RuntimeError(text))
        assert isinstance(error, AwayError)
        assert error.message == "cannot write out.jsonl: No space left on device"
        assert isinstance(told(BrokerGoneError("nobody answers")), AwayError)
        assert not isinstance(told(RuntimeError("my.own.AwayError: x")), AwayError)

    def test_a_full_disk_is_away_whoever_meets_it(self) -> None:
        met_by = [
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            RuntimeError("org.apache.spark.SparkException: java.io.IOException: No space left on device"),
        ]
        for error in map(told, met_by):
            assert isinstance(error, AwayError)
            assert error.message.startswith("a disk is full: ")


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class TestSingleDelivery:
    def delivery(
        self, here: ByHand, sink: FileSink | None = None, behind: str | None = None
    ) -> SingleDelivery:
        return SingleDelivery(
            sink_name="s",
            sink=sink or FileSink(here.target()),
            accept=Namespace(".*"),
            steps=[],
            behind=behind,
            offsets=OffsetLog(here.client, "p", "s", NOW),
            log_id=here.log.log_id,
            scratch=here.path / "scratch",
        )

    def test_an_older_copy_of_the_target_is_refused_before_anything_is_sent_to_it(self, here: ByHand) -> None:
        """Otherwise its position would move beyond messages that it does not have, and no run would notice."""
        here.append("AAA")
        here.deliver()
        copy = here.path / "copy"
        copy.mkdir()
        files = [here.target(), here.target().with_name(".s.jsonl.penstock")]
        for file in files:
            shutil.copy(file, copy)
        here.append("AA")
        here.deliver()
        for file in files:
            shutil.copy(copy / file.name, file)
        with pytest.raises(CorruptError, match="below 3, but those below 5 were acknowledged"):
            self.delivery(here).open()
        assert len(here.lines()) == 3

    def test_a_replay_that_is_refused_leaves_the_target_usable_for_the_next(self, here: ByHand) -> None:
        class Once(FileSink):
            def publisher(self) -> Publisher:
                return Breaking(here.target())

        class Breaking(FilePublisher):
            broken = False

            def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
                if self.broken:
                    raise PenstockError("used after a failure")
                if any("bad" in Path(part.part).read_text() for part in parts):
                    self.broken = True
                    raise RefusedError("no")
                super().publish(parts, position)

        here.append("AA")
        here.deliver()
        messages = [record._replace(data=b'{"bad":1}') for record in here.log.reader.show(0, 0)]
        with self.delivery(here, Once(here.target())) as delivery:
            assert delivery.redeliver(messages[0]) == Refusal(0, "A", "no", "s")
            assert delivery.redeliver(next(iter(here.log.reader.show(1, 1)))) is None
        assert here.lines() == ['{"n":0}', '{"n":1}', '{"n":1}']

    def test_a_message_without_data_is_refused_by_name(self, here: ByHand) -> None:
        batch = batch_of([Record(0, NOW, Mode.COPY, Op.INSERT, "A", b"{}")])
        index = batch.schema.get_field_index("data")
        batch = batch.set_column(index, "data", pa.array([None], batch.column("data").type))
        with self.delivery(here, behind="odd") as delivery:
            done = delivery.deliver([batch], 1)
        assert done.refused is not None
        assert (done.watermark, done.refused.offset, done.refused.ns, done.refused.node) == (0, 0, "A", "odd")
        assert "data is null" in done.refused.error


class TestFunctions:
    """Half a surrogate pair is text to Python and JavaScript, and to nothing else: no column and no JSON holds it."""

    @pytest.mark.parametrize(
        "function",
        [
            f.js(source="function transform(m) { m.ns = m.data.s; return m }"),
            f.js(source="function transform(m) { throw new Error(m.data.s) }"),
            f.python(_renamed),
            f.python(_complaining),
        ],
        ids=["js, a name", "js, an error", "python, a name", "python, an error"],
    )
    def test_half_a_surrogate_pair_refuses_its_message_and_fails_no_task(self, function: Function) -> None:
        texts = [rb'{"s":"\ud800"}', b'{"s":"fine"}']
        records = [Record(n, NOW, Mode.COPY, Op.INSERT, "A", text) for n, text in enumerate(texts)]
        applied = Chain([Step("f", function, Namespace(".*"))]).apply(batch_of(records), Namespace(".*"))
        refused = {one.offset: one.error for one in applied.refused}
        assert 0 in refused
        assert msgspec.json.encode(refused)


class TestHousekeeping:
    def test_a_compaction_that_failed_is_tried_again_though_nobody_has_moved(
        self, here: ByHand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise the source would wait for ever for room that there is."""
        settings = dataclasses.replace(Pipeline("p").settings, segment_bytes=1024, log_limit=1024)
        for _ in range(4):
            here.append("A" * 20)
            here.close_segment()
        held = Commit(watermark=70)
        upkeep = Housekeeping(here.log, "p", settings, lambda: {"s": held})

        def failing(*_: object, **__: object) -> None:
            raise BrokerGoneError("nobody answers")

        with monkeypatch.context() as broken:
            broken.setattr(housekeeping, "compact", failing)
            with pytest.raises(BrokerGoneError):
                upkeep._look()
        before = upkeep.size
        upkeep._look()
        assert upkeep.size < before

    def test_it_goes_on_after_any_error_and_so_does_the_beat(
        self, here: ByHand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A thread that ended left a log that nobody made room in, or a run that was taken for dead."""
        monkeypatch.setattr(housekeeping, "_LOOK_EVERY", 0.01)
        monkeypatch.setattr(housekeeping, "_AFTER_ERROR", 0.01)
        upkeep, looks, beats = Housekeeping(here.log, "p", Pipeline("p").settings, dict), [0], [0]

        def failing(times: list[int]) -> None:
            times[0] += 1
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(upkeep, "_look", lambda: failing(looks))
        upkeep.start()
        with beating(lambda: failing(beats), 0.01):
            until(lambda: looks[0] > 1 and beats[0] > 1)
        upkeep.stop(5.0)
        for words in ("upkeep of the log", "no sign of life"):
            assert any(words in line and "can't start" in line for line in caplog.messages)


class TestStaging:
    def test_a_disk_that_is_full_is_away_also_for_a_task(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(partfile, "written", full)
        with pytest.raises(AwayError, match="No space left"):
            FileStager(Writing(), None).stage(Stage(tmp_path, "part", 0), iter([_batch()]))


def _batch() -> pa.RecordBatch:
    batch = batch_of([Record(0, NOW, Mode.COPY, Op.INSERT, "A", b"{}")])
    return batch.append_column("origin", batch.column("ns"))


class TestImport:
    @pytest.mark.parametrize("careful", [-1, 4, 10**30])
    def test_no_import_makes_a_sink_go_carefully_for_ever(self, careful: int) -> None:
        export = Exported("p", "log", 3, NOW, (ExportedSink("s", 1, careful=careful),))
        with pytest.raises(UsageError, match="carefully"):
            export.check("p", "log", 3)

    @pytest.mark.parametrize("name", ["", "a/b", "../log", "a b", "x" * 2000])
    def test_names_that_no_sink_can_have_are_refused_before_any_other_sink_is_changed(
        self, name: str
    ) -> None:
        export = Exported("p", "log", 3, NOW, (ExportedSink("s", 1), ExportedSink(name, 1)))
        with pytest.raises(UsageError, match="no sink can have the name"):
            export.check("p", "log", 3)

    @pytest.mark.parametrize("grouped", [True, False])
    def test_the_decisions_of_sinks_that_commit_together_are_not_imported(
        self, here: ByHand, grouped: bool
    ) -> None:
        """They were overwritten; where there was no such group yet, a sink of that name held the log from then on."""
        here.append("A" * 3)
        OffsetLog(here.client, "p", "s", NOW)
        if grouped:
            decided = Commit(watermark=2, members={"s": Commit(watermark=2)})
            decisions_of(here.client, "p", NOW).commit(decided, {}, NOW)
        editor = Editor(Directory(here.client), "ann")
        export = Exported("p", here.log.log_id, 3, NOW, (ExportedSink("s", 1), ExportedSink(GROUP, 0)))
        before = here.held(GROUP)
        with pytest.raises(UsageError, match="is no sink"):
            editor.restore("p", export)
        assert (here.held(), here.held(GROUP)) == (SinkOffsets(), before)
        assert editor.directory.sinks("p") == ["s"]


class TestOpenTransaction:
    """Messages 3 to 5 are of one whose end the log does not have."""

    def editor(self, here: ByHand) -> Editor:
        here.append("AAA")
        half = [Message("A", b'{"n":%d}' % n, ts=NOW, mode=Mode.SYNC) for n in (3, 4, 5)]
        here.log.append(half, {}, [], NOW, more=True)
        OffsetLog(here.client, "p", "s", NOW).commit(Commit(watermark=2, delivered=2), {"A": 1}, NOW)
        return Editor(Directory(here.client), "ann")

    def test_no_edit_leads_a_sink_into_it(self, here: ByHand) -> None:
        """It was given the rest as it came, by halves."""
        editor, before = self.editor(here), here.held()
        export = Exported("p", here.log.log_id, 6, NOW, (ExportedSink("s", 4),))
        edits: list[Callable[[], object]] = [
            lambda: editor.mark("p", "s", 4),
            lambda: editor.ack("p", "s", [2, 3]),
            lambda: editor.restore("p", export),
        ]
        for edit in edits:
            with pytest.raises(UsageError, match=r"no end in the log yet|beyond the log"):
                edit()
        assert here.held().commit == before.commit
        here.log.append([], {}, [], NOW)
        assert editor.mark("p", "s", 4).after == 4

    def test_a_sink_is_stepped_up_to_it(self, here: ByHand) -> None:
        editor = self.editor(here)
        pipeline = Pipeline("p")
        pipeline.source("in", a.generate(count=1)).save("s", a.file(uri=f"file://{here.target()}"))
        assert [done.offset for done in step(editor, pipeline, "s", 9, bury=False)] == [2]
        with pytest.raises(UsageError, match="message 3 is of a transaction"):
            list(step(editor, pipeline, "s", 1, bury=False))
        here.log.append([], {}, [], NOW)
        assert [done.offset for done in step(editor, pipeline, "s", 9, bury=False)] == [3, 4, 5]


class TestHttp:
    progress = Progress("p", 1.0, "running", 0)

    def test_idle_connections_do_not_take_the_runs_descriptors(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        before = threading.active_count()
        with serving("127.0.0.1:0", lambda: self.progress) as address:
            assert address is not None
            host, _, port = address.rpartition(":")
            idle = [socket.create_connection((host, int(port))) for _ in range(60)]
            time.sleep(0.5)
            assert threading.active_count() - before < 40
            for one in idle:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                one.close()
            until(lambda: threading.active_count() - before < 5)
            with urllib.request.urlopen(f"http://{address}/ready", timeout=5) as answer:
                assert answer.status == 200
        assert "Traceback" not in capfd.readouterr().err


class TestTwoRuns:
    def test_the_end_of_one_that_gave_way_does_not_hide_the_one_that_goes_on(self, here: ByHand) -> None:
        control = Control(here.client, "p")
        told = (
            ("first", "run-begin", 1),
            ("second", "run-begin", 2),
            ("second", "run-end", 3),
            ("first", "run-beat", 4),
        )
        for name, action, second in told:
            detail: dict[str, object] = {"run": name, "pid": 7, "host": name}
            control.append(ControlEntry(NOW + second * 1_000_000, "run", action, None, detail))  # type: ignore[arg-type]
        mark = control.state().run
        assert mark is not None
        assert mark.alive(NOW + 5_000_000)
        assert mark.host == "first"
        control.append(ControlEntry(NOW, "run", "run-end", None, {"run": "first", "exit_code": 0}))
        late = ControlEntry(NOW + 9_000_000, "run", "run-beat", None, {"run": "first", "pid": 7})
        control.append(late)
        mark = control.state().run
        assert mark is not None
        assert mark.ended, "a beat that came late revives nobody"
