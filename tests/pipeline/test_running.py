"""Runs that last: limits of the log and of sinks, pauses, rewinds into compacted messages, a broker elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.base.errors import InUseError
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker, connect
from penstock.log import offsets
from penstock.log.commitlog import CommitLog, LogReader, log_journal
from penstock.log.compaction import compact
from penstock.log.control import Control, ControlEntry
from penstock.log.message import MessageOffset
from penstock.log.offsets import Commit, OffsetLog
from penstock.pipeline import lag
from penstock.pipeline.editing import Editor, pause
from penstock.pipeline.operations import Directory
from penstock.pipeline.progress import Progress, Summary, published
from penstock.pipeline.runner import run
from penstock.spark.reach import Reach

pytestmark = pytest.mark.spark

Report = Callable[[Progress], None]


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["seq"] for line in path.read_text().splitlines()]


def state_of(progress: Progress, node: str) -> str:
    return next(found.state for found in progress.nodes if found.node == node)


class TestSql:
    def outcome(self, path: Path, spark: SparkSession, text: str) -> Summary:
        (path / "in.jsonl").write_text("".join(f'{{"n":{i}, "x":1.10}}\n' for i in range(20)))
        pipeline = Pipeline("sql")
        source = pipeline.source("in", a.file(uri=f"file://{path}/in.jsonl"))
        source.transform("query", f.sql(text)).save("out", a.file(uri=f"file://{path}/out.jsonl"))
        return run(pipeline, data_dir=path / "data", once=True, spark=spark)

    def test_decides_on_fields_and_leaves_the_text_alone(self, tmp_path: Path, spark: SparkSession) -> None:
        summary = self.outcome(tmp_path, spark, "SELECT * FROM messages WHERE data:n::int >= 18")
        assert (summary.exit_code, summary.sinks[0].delivered, summary.sinks[0].dropped) == (0, 2, 18)
        assert (tmp_path / "out.jsonl").read_text() == '{"n":18, "x":1.10}\n{"n":19, "x":1.10}\n'

    def test_a_query_that_cannot_be_is_told_at_once(self, tmp_path: Path, spark: SparkSession) -> None:
        summary = self.outcome(tmp_path, spark, "SELECT * FROM messages WHERE nosuch > 1")
        assert summary.exit_code == 2
        assert "transformation 'query': [UNRESOLVED_COLUMN" in (summary.message or "")

    def test_may_not_keep_state(self, tmp_path: Path, spark: SparkSession) -> None:
        text = (
            "SELECT max(offset) AS offset, max(ts) AS ts, max(mode) AS mode, max(op) AS op, ns, "
            "max(key) AS key, to_json(struct(count(*) AS n)) AS data FROM messages GROUP BY ns"
        )
        summary = self.outcome(tmp_path, spark, text)
        assert summary.exit_code == 2
        assert "'query' uses an aggregation, which sees only the messages of one batch" in (
            summary.message or ""
        )

    def test_a_query_with_names_decides_and_leaves_the_text_alone(
        self, tmp_path: Path, spark: SparkSession
    ) -> None:
        text = (
            "WITH late AS (SELECT * FROM messages WHERE data:n::int >= 18), "
            "counted AS (SELECT id, count(*) AS c FROM range(19) GROUP BY id) "
            "SELECT late.* FROM late JOIN counted ON id = offset WHERE EXISTS (SELECT 1 FROM counted)"
        )
        summary = self.outcome(tmp_path, spark, text)
        assert (summary.exit_code, summary.message, summary.sinks[0].delivered) == (0, None, 1)
        assert (tmp_path / "out.jsonl").read_text() == '{"n":18, "x":1.10}\n'


def test_functions_that_keep_state_are_refused_and_joins_with_tables_are_not(
    tmp_path: Path, spark: SparkSession
) -> None:
    names = spark.createDataFrame([(0, "even"), (1, "odd")], "parity INT, word STRING")

    def joined(df: object) -> object:
        parity = df.withColumn("parity", sf.expr("data:seq::int % 2"))  # type: ignore[attr-defined]
        return parity.join(names, "parity").where("word = 'odd'")

    def summary_of(name: str, function: Callable[..., object]) -> Summary:
        pipeline = Pipeline(name)
        source = pipeline.source("in", a.generate(count=10))
        source.transform("step", function).save("out", a.file(uri=f"file://{tmp_path}/{name}.jsonl"))  # type: ignore[arg-type]
        return run(pipeline, data_dir=tmp_path / name, once=True, spark=spark)

    assert summary_of("join", joined).exit_code == 0
    assert numbers(tmp_path / "join.jsonl") == [1, 3, 5, 7, 9]
    twice = summary_of("twice", lambda df: df.dropDuplicates(["ns"]))
    assert (twice.exit_code, "a de-duplication" in (twice.message or "")) == (2, True)


def test_the_source_pauses_at_the_logs_limit_and_goes_on_when_there_is_room(
    tmp_path: Path, spark: SparkSession
) -> None:
    """A paused sink holds the log; told to go on, it makes room, and closed segments are compacted away."""
    pipeline = Pipeline("limit", segment_bytes=200_000, log_limit=400_000, compaction_interval="1h")
    pipeline.source("in", a.generate(count=60_000)).save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"))
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        Control(client, "limit").append(ControlEntry(1, "test", "pause", "out"))
    reasons: list[str] = []

    def report(progress: Progress) -> None:
        if progress.readers is not None and not reasons:
            reasons.append(progress.readers)
            assert progress.log_bytes >= 400_000
            assert progress.log_next < 60_000
            with connect(tmp_path / "data") as client:
                Control(client, "limit").append(ControlEntry(2, "test", "resume", "out"))

    summary = run(
        pipeline, data_dir=tmp_path / "data", once=False, spark=spark, report=_until(60_000, report)
    )
    assert "the log is at its limit" in reasons[0]
    assert "sink 'out' holds it with" in reasons[0]
    assert (summary.exit_code, summary.adds_up) == (0, True)
    assert numbers(tmp_path / "out.jsonl") == list(range(60_000))
    with connect(tmp_path / "data") as client:
        reader = LogReader(client, log_journal("limit"), None)
        assert reader.first().offset > 0, "closed segments went"


def _until(delivered: int, report: Report) -> Report:
    """Report, and end the run once so much is delivered."""

    def reported(progress: Progress) -> None:
        report(progress)
        if progress.phase == "running" and progress.nodes[-1].delivered >= delivered:
            os.kill(os.getpid(), 2)

    return reported


def test_a_sink_can_be_paused_and_resumed_while_the_others_go_on(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = Pipeline("pausing", batch_messages=500)
    source = pipeline.source("in", a.generate(count=6000, rate=3000))
    source.save("held", a.file(uri=f"file://{tmp_path}/held.jsonl"))
    source.save("free", a.file(uri=f"file://{tmp_path}/free.jsonl"))
    seen: dict[str, int] = {}

    def report(progress: Progress) -> None:
        held, free = progress.nodes[1], progress.nodes[2]
        with connect(tmp_path / "data") as client:
            control = Control(client, "pausing")
            if not seen and free.delivered > 0:
                control.append(ControlEntry(1, "test", "pause", "held"))
                seen["asked"] = free.delivered
            if held.state == "paused" and free.delivered > seen["asked"] and "resumed" not in seen:
                seen["resumed"] = held.delivered
                control.append(ControlEntry(2, "test", "resume", "held"))

    summary = run(pipeline, data_dir=tmp_path / "data", once=False, spark=spark, report=_until(6000, report))
    assert "resumed" in seen
    again = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (summary.exit_code, again.exit_code) == (0, 0)
    assert numbers(tmp_path / "held.jsonl") == numbers(tmp_path / "free.jsonl") == list(range(6000))


def test_a_sink_that_falls_behind_its_limit_is_detached_and_holds_the_log_no_more(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "AGE_EVERY", 0.1)
    pipeline = Pipeline("behind", segment_bytes=100_000)
    source = pipeline.source("in", a.generate(count=5000))
    target = tmp_path / "target"
    target.mkdir()
    (target / "away").write_text("")
    from .picky import Picky

    pipeline.modules = (Picky.__module__,)
    source.save("good", a.file(uri=f"file://{tmp_path}/good.jsonl"))
    source.save("slow", Picky(directory=target), max_lag={"bytes": "50kB", "then": "detach"})
    states: set[str] = set()
    summary = run(
        pipeline,
        data_dir=tmp_path / "data",
        once=True,
        spark=spark,
        report=lambda progress: states.add(state_of(progress, "slow")),
    )
    assert {"away", "detached"} <= states
    assert (summary.exit_code, summary.sinks[0].delivered) == (0, 5000)
    with connect(tmp_path / "data") as client:
        assert offsets.load(client, "behind", "slow").commit.detached


def test_a_rewind_into_compacted_messages_gives_what_was_kept(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = Pipeline("rewind", segment_bytes=30_000)
    names = ["a", "b", "c"]
    pipeline.source("in", a.generate(count=3000, rate=20_000, namespaces=names)).save(
        "out", a.file(uri=f"file://{tmp_path}/out.jsonl")
    )
    assert run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark).exit_code == 0
    with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
        log = CommitLog(client, "rewind", tmp_path / "data" / "index", None, 1)
        first = compact(log, MessageOffset(3000), now=1).first.offset
        kept = [record.offset for record in log.reader.compacted(0, first - 1)]
        offsets.edit(client, "rewind", "out", 1, lambda held: (Commit(), {}))
    assert first > 0
    assert len(kept) == 3
    again = run(pipeline, data_dir=tmp_path / "data", once=True, spark=spark)
    assert (again.exit_code, again.adds_up) == (0, True)
    assert numbers(tmp_path / "out.jsonl") == [*range(3000), *kept, *range(first, 3000)]


def test_the_run_tells_over_http_and_in_its_file_how_it_stands(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = Pipeline("told")
    source = pipeline.source("in", a.generate(count=4000, rate=2000))
    source.transform("some", f.skip(field="seq", operator="<", match=1000)).save(
        "out", a.file(uri=f"file://{tmp_path}/out.jsonl")
    )
    pages: dict[str, bytes] = {}

    def report(progress: Progress) -> None:
        told = published(tmp_path / "data", "told")
        if told is None or told.http is None or progress.nodes[1].messages_in < 1000:
            return
        for name in ("/metrics", "/status"):
            pages[name] = urlopen(f"http://{told.http}{name}", timeout=5).read()

    summary = run(
        pipeline, data_dir=tmp_path / "data", once=True, spark=spark, report=report, http="127.0.0.1:0"
    )
    assert summary.exit_code == 0
    status = msgspec.json.decode(pages["/status"], type=Progress)
    assert [node.kind for node in status.nodes] == ["source", "function", "sink"]
    assert b'penstock_node_messages_in_total{kind="function",node="some"' in pages["/metrics"]
    left = published(tmp_path / "data", "told")
    assert left is not None
    assert (left.exit_code, left.pid) == (0, os.getpid())
    function = left.progress.nodes[1]
    assert (function.messages_in, function.out, function.dropped) == (4000, 1000, 3000)


@contextmanager
def broker(path: Path) -> Iterator[str]:
    """A broker in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "penstock",
        "broker",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "off",
    ]
    process = subprocess.Popen(
        [*command, "--data-dir", str(path), "--json"],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield "http://" + json.loads(process.stdout.readline())["grpc"]
    finally:
        process.terminate()
        process.wait(20)


def _led_past_a_message(reach: Reach, path: Path, spark: SparkSession) -> None:
    """A sink that stands in a run is edited through the broker, where nobody sees the run's own file."""
    pipeline = Pipeline("remote")
    pipeline.source("in", a.generate(count=3010)).save("out", a.file(uri=f"file://{path}/out.jsonl"))
    directory = Directory(reach.client())
    editor = Editor(directory, "operator")
    pause(directory, "remote", "out", "operator", paused=True)
    done: list[object] = []

    def report(progress: Progress) -> None:
        if done or progress.log_next < 3010 or directory.told_state("remote", "out") != "paused":
            return
        with pytest.raises(InUseError, match="is running"):
            editor.mark("remote", "out", 5)
        done.append(editor.ack("remote", "out", [3000]))
        pause(directory, "remote", "out", "operator", paused=False)

    run(
        pipeline,
        data_dir=path / "mine",
        once=False,
        spark=spark,
        broker=reach,
        report=_until(9, report),
    )
    assert numbers(path / "out.jsonl") == [*range(3000), *range(3001, 3010)]


def _taken_by_mistake(reach: Reach, path: Path, spark: SparkSession) -> None:
    """An operator claims a sink that went on just then; nobody has taken the place of the run, so it claims it back."""
    pipeline = Pipeline("taken", batch_messages=500)
    pipeline.source("in", a.generate(count=6000, rate=3000)).save(
        "out", a.file(uri=f"file://{path}/taken.jsonl")
    )
    taken: list[OffsetLog] = []

    def report(progress: Progress) -> None:
        if not taken and progress.nodes[1].delivered:
            taken.append(OffsetLog(reach.client(), "taken", "out", time.time_ns() // 1000))

    until = _until(6000, report)
    summary = run(pipeline, data_dir=path / "mine", once=False, spark=spark, broker=reach, report=until)
    assert (bool(taken), summary.exit_code) == (True, 0)
    assert numbers(path / "taken.jsonl") == list(range(6000))


def test_the_log_may_be_with_a_broker_elsewhere(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = Pipeline("remote")
    pipeline.source("in", a.generate(count=3000)).save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"))
    with broker(tmp_path / "broker") as address:
        reach = Reach(address)

        def summary() -> Summary:
            return run(pipeline, data_dir=tmp_path / "mine", once=True, spark=spark, broker=reach)

        first = summary()
        assert (first.exit_code, first.read) == (0, 3000)
        assert numbers(tmp_path / "out.jsonl") == list(range(3000))
        assert summary().read == 0
        _led_past_a_message(reach, tmp_path, spark)
        _taken_by_mistake(reach, tmp_path, spark)
        now = time.time_ns() // 1000
        Control(reach.client(), "remote").append(
            ControlEntry(now, "other", "run-begin", None, {"run": "x", "pid": 7, "host": "elsewhere"})
        )
        with pytest.raises(InUseError, match=r"is running on elsewhere \(pid 7\)"):
            summary()
