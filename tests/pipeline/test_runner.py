"""Whole pipelines in a real Spark session: what arrives, what the account says, what failures do."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.adaptors.base import SinkPosition, Staged
from penstock.adaptors.file.sink import FilePublisher
from penstock.base.errors import PenstockError, UsageError
from penstock.functions.base import Editable, Function, FunctionError
from penstock.log.message import MessageOffset
from penstock.log.offsets import OffsetLog
from penstock.log.positions import LogPoint
from penstock.pipeline import troubles
from penstock.pipeline.operations import open_directory
from penstock.pipeline.progress import Progress, SinkSummary, Summary
from penstock.pipeline.runner import run

pytestmark = pytest.mark.spark


@dataclass
class Here:
    """A directory to run pipelines in."""

    path: Path
    spark: SparkSession

    def run(self, pipeline: Pipeline, report: Callable[[Progress], None] = lambda progress: None) -> Summary:
        return run(pipeline, data_dir=self.path / "data", once=True, spark=self.spark, report=report)

    def uri(self, name: str) -> str:
        return f"file://{self.path / name}"

    def lines(self, name: str) -> list[str]:
        return (self.path / name).read_text().splitlines()

    def documents(self, name: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.lines(name)]

    def write(self, name: str, documents: Sequence[object]) -> str:
        (self.path / name).write_text("".join(json.dumps(document) + "\n" for document in documents))
        return self.uri(name)


@pytest.fixture
def here(tmp_path: Path, spark: SparkSession) -> Here:
    return Here(tmp_path, spark)


def sink_of(summary: Summary, name: str) -> SinkSummary:
    return next(sink for sink in summary.sinks if sink.sink == name)


def test_two_sinks_with_their_own_namespaces_and_functions(here: Here) -> None:
    with sqlite3.connect(here.path / "shop.db") as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL, note TEXT)")
        db.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, sku TEXT)")
        db.executemany("INSERT INTO orders VALUES (?, ?, ?)", [(i, i * 1.5, "x") for i in range(1, 501)])
        db.executemany("INSERT INTO items VALUES (?, ?)", [(i, f"s{i}") for i in range(1, 301)])

    def pipeline() -> Pipeline:
        shop = Pipeline("shop")
        source = shop.source("db", a.sqlite(uri=f"sqlite://{here.path}/shop.db"))
        source.save("audit", a.file(uri=here.uri("audit.jsonl"), envelope=True))
        slim = source.transform("slim", f.omit(fields=["note"])).transform(
            "many", f.skip(field="total", operator=">", match=300)
        )
        slim.transform("name", f.rename(field_map={"total": "sum"}), ns="^orders$").save(
            "big", a.file(uri=here.uri("big.jsonl")), ns="^orders$"
        )
        return shop

    summary = here.run(pipeline())
    assert summary.exit_code == 0
    assert summary.adds_up
    assert (summary.read, summary.log_next) == (800, 800)
    assert sink_of(summary, "audit").delivered == 800
    assert (sink_of(summary, "big").delivered, sink_of(summary, "big").dropped) == (300, 500)
    audit = here.documents("audit.jsonl")
    assert Counter(line["ns"] for line in audit) == {"orders": 500, "items": 300}
    assert [doc["data"] for doc in audit if doc["ns"] == "orders"][:1] == [
        {"id": 1, "total": 1.5, "note": "x"}
    ]
    assert here.documents("big.jsonl") == [{"id": i, "sum": i * 1.5} for i in range(201, 501)]

    again = here.run(pipeline())
    assert (again.read, again.exit_code) == (0, 0)
    with sqlite3.connect(here.path / "shop.db") as db:
        db.execute("INSERT INTO orders VALUES (501, 1000.0, 'new')")
    third = here.run(pipeline())
    assert (third.read, sink_of(third, "audit").delivered, sink_of(third, "big").delivered) == (1, 1, 1)
    assert len(here.lines("audit.jsonl")) == 801
    assert here.documents("big.jsonl")[-1] == {"id": 501, "sum": 1000.0}


def test_the_unit_of_ts_is_microseconds_from_source_to_sink(here: Here) -> None:
    """One number in the log, in Spark, in a function and in the file."""
    pipeline = Pipeline("ts")
    source = pipeline.source("in", a.generate(count=50))
    source.transform(
        "see", lambda df: df.withColumn("data", sf.expr("to_json(struct(unix_micros(ts) AS ts))"))
    ).save("out", a.file(uri=here.uri("out.jsonl"), envelope=True))
    assert here.run(pipeline).exit_code == 0
    with open_directory(here.path / "data") as directory:
        logged = [entry.ts for entry in directory.show("ts", 0, 49)]
    written = here.documents("out.jsonl")
    assert [line["ts"] for line in written] == logged
    assert [line["data"] for line in written] == [{"ts": ts} for ts in logged]
    assert logged[0] > 1_700_000_000_000_000


def test_text_that_no_function_touches_arrives_byte_for_byte(here: Here) -> None:
    texts = ['{"b": 1.0, "a":1.10,"n":123456789012345678901234567890}', '{ "é":"\\u00e9", "e":1e2, "z":-0.0}']
    (here.path / "in.jsonl").write_text("\n".join(texts) + "\n")
    pipeline = Pipeline("bytes")
    source = pipeline.source("in", a.file(uri=here.uri("in.jsonl")))
    source.save("plain", a.file(uri=here.uri("plain.jsonl")))
    source.transform("look", lambda df: df.where("data IS NOT NULL")).save(
        "viewed", a.file(uri=here.uri("viewed.jsonl"))
    )
    assert here.run(pipeline).exit_code == 0
    assert here.lines("plain.jsonl") == texts
    assert here.lines("viewed.jsonl") == texts


FRAMES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "third": (lambda df: df.where("data:seq::int % 3 = 0"), ".*"),
    "shuffled": (lambda df: df.repartition(3, sf.rand(7)), ".*"),
    "doubled": (lambda df: df.withColumn("copy", sf.explode(sf.array(sf.lit(1), sf.lit(2)))), ".*"),
    "assigned": (lambda df: df.withColumn("data", sf.expr("struct(data:seq::int AS n)")), ".*"),
    "without-a": (lambda df: df.where("false"), "^a$"),
    "a-and-by": (lambda df: df.where("true"), "^a$"),
    "nothing": (lambda df: df.where("false"), ".*"),
    "none-found": (lambda df: df.where("data:seq::int < 0"), ".*"),
}
"""What each of the sinks of one pipeline has done to its messages, and to which namespaces."""


@dataclass
class Framed:
    """How the sinks of `FRAMES` fared."""

    here: Here
    summary: Summary

    def sink(self, name: str) -> SinkSummary:
        return sink_of(self.summary, name)

    def numbers(self, name: str) -> list[object]:
        return [document["seq"] for document in self.here.documents(f"{name}.jsonl")]


@pytest.fixture(scope="module")
def framed(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Framed:
    here = Here(tmp_path_factory.mktemp("framed"), spark)
    pipeline = Pipeline("frames", partitions=2)
    source = pipeline.source("in", a.generate(count=3000, namespaces=["a", "b"]))
    for name, (function, ns) in FRAMES.items():
        changed = source.transform(f"{name}-frame", function, ns=ns)
        changed.save(name, a.file(uri=here.uri(f"{name}.jsonl")))
    return Framed(here, here.run(pipeline))


class TestDataFrameFunctions:
    def test_the_account_comes_out(self, framed: Framed) -> None:
        assert (framed.summary.exit_code, framed.summary.adds_up) == (0, True)

    def test_dropped_rows_are_acknowledged(self, framed: Framed) -> None:
        assert (framed.sink("third").delivered, framed.sink("third").dropped) == (1000, 2000)

    def test_a_shuffled_frame_still_arrives_in_order(self, framed: Framed) -> None:
        assert framed.numbers("shuffled") == list(range(3000))

    def test_several_rows_of_one_message_are_one_message(self, framed: Framed) -> None:
        assert (framed.sink("doubled").delivered, framed.sink("doubled").rows) == (3000, 6000)
        assert framed.numbers("doubled") == [i // 2 for i in range(6000)]

    def test_assigned_data_replaces_the_text(self, framed: Framed) -> None:
        assert framed.here.lines("assigned.jsonl")[:2] == ['{"n":0}', '{"n":1}']

    def test_its_namespace_leaves_others_alone(self, framed: Framed) -> None:
        assert framed.sink("without-a").delivered == 1500
        assert framed.numbers("without-a") == list(range(1, 3000, 2))

    def test_what_it_passes_and_what_passes_by_come_together_in_order(self, framed: Framed) -> None:
        assert framed.numbers("a-and-by") == list(range(3000))

    def test_one_that_keeps_nothing_has_everything_acknowledged(self, framed: Framed) -> None:
        """Spark sees that such a plan has no rows, and reads none; the account must come out all the same."""
        assert framed.sink("nothing").dropped == 3000

    def test_offsets_of_namespaces_count_dropped_messages_too(self, framed: Framed) -> None:
        with open_directory(framed.here.path / "data") as directory:
            status = next(one for one in directory.offsets("frames") if one.sink == "none-found")
        assert (status.watermark, dict(status.namespaces)) == (3000, {"a": 2998, "b": 2999})


class TestDataFrameFunctionsThatFail:
    def outcome(self, here: Here, function: Callable[[DataFrame], DataFrame]) -> Summary:
        pipeline = Pipeline("frames", partitions=2)
        source = pipeline.source("in", a.generate(count=3000, namespaces=["a", "b"]))
        source.transform("frame", function).save("out", a.file(uri=here.uri("out.jsonl")))
        return here.run(pipeline)

    @pytest.mark.parametrize(
        ("function", "complaint"),
        [
            (lambda df: df.drop("offset"), "lost columns of the message: offset"),
            (lambda df: df.groupBy("ns").count(), "lost columns of the message: offset, ts"),
            (lambda df: None, "returned NoneType, expected a DataFrame"),
        ],
    )
    def test_one_that_breaks_the_contract_stops_the_sink_by_name(
        self, here: Here, function: Callable[[DataFrame], DataFrame], complaint: str
    ) -> None:
        summary = self.outcome(here, function)
        assert summary.exit_code == 2
        assert complaint in (summary.message or "")
        assert "'frame'" in (summary.message or "")
        assert here.lines("out.jsonl") == []

    def test_a_text_that_spark_cannot_read_is_refused_not_dropped(self, here: Here) -> None:
        """A name that stands twice is JSON to most parsers, and none to Spark's."""
        (here.path / "in.jsonl").write_text('{"a":1}\n{"a":1,"a":2}\n{"a":3}\n')
        pipeline = Pipeline("twice")
        source = pipeline.source("in", a.file(uri=here.uri("in.jsonl")))
        source.transform("frame", lambda df: df.where("data:a::int < 9")).save(
            "out", a.file(uri=here.uri("out.jsonl"))
        )
        summary = here.run(pipeline)
        assert summary.exit_code == 3
        assert "stopped before message 1 of namespace 'in', which 'frame' refused" in (summary.message or "")
        assert here.lines("out.jsonl") == ['{"a":1}']

    def test_an_error_inside_spark_ends_the_sink_with_its_reason(
        self, here: Here, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(troubles, "DELAYS", (0.01,))
        monkeypatch.setattr(troubles, "RESTARTS", 1)
        summary = self.outcome(here, lambda df: df.where("data:text::double > 1"))
        assert summary.exit_code == 1
        assert "INVALID_VARIANT_CAST" in (summary.message or "")

    def test_null_data_is_refused_with_its_offset(self, here: Here) -> None:
        nullify = sf.expr("CASE WHEN data:seq::int = 1234 THEN null ELSE data END")
        summary = self.outcome(here, lambda df: df.withColumn("data", nullify))
        assert summary.exit_code == 3
        assert "stopped before message 1234" in (summary.message or "")
        assert [doc["seq"] for doc in here.documents("out.jsonl")] == list(range(1234))


@dataclass(frozen=True)
class Poison(Function):
    """Refuses the messages with these numbers, and remembers in which process it ran."""

    name: ClassVar[str] = "poison"
    description: ClassVar[str] = "for tests"
    numbers: tuple[int, ...] = ()

    def apply(self, message: Editable) -> bool:
        if json.loads(bytes(message.fields["seq"])) in self.numbers:
            raise FunctionError("this one is poison")
        return True


def poisoned(here: Here, *numbers: int, frame_behind: bool = False) -> Pipeline:
    pipeline = Pipeline("poison", batch_messages=1000)
    pipeline.modules = (__name__,)  # as for a pipeline file: workers cannot import it
    source = pipeline.source("in", a.generate(count=4000))
    step = source.transform("check", Poison(numbers=numbers))
    if frame_behind:
        step = step.transform("frame", lambda df: df.where("true"))
    step.save("strict", a.file(uri=here.uri("strict.jsonl")))
    source.save("other", a.file(uri=here.uri("other.jsonl")))
    return pipeline


@pytest.mark.parametrize("frame_behind", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_refused_message_stops_its_sink_before_it_and_no_other(here: Here, frame_behind: bool) -> None:
    summary = here.run(poisoned(here, 2345, 2400, frame_behind=frame_behind))
    assert summary.exit_code == 3
    assert "stopped before message 2345" in (summary.message or "")
    assert "'check' refused: this one is poison" in (summary.message or "")
    strict = sink_of(summary, "strict")
    assert (strict.delivered, strict.pending, summary.adds_up) == (2345, 1655, True)
    assert [doc["seq"] for doc in here.documents("strict.jsonl")] == list(range(2345))
    assert [doc["seq"] for doc in here.documents("other.jsonl")] == list(range(4000))
    with open_directory(here.path / "data") as directory:
        assert [(s.sink, s.watermark, s.lag) for s in directory.offsets("poison")] == [
            ("other", 4000, 0),
            ("strict", 2345, 1655),
        ]


def simple(here: Here, count: int = 3000) -> Pipeline:
    pipeline = Pipeline("simple", batch_messages=1000)
    pipeline.source("in", a.generate(count=count)).save("out", a.file(uri=here.uri("out.jsonl")))
    return pipeline


def fail_once(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception, after: bool
) -> list[int]:
    """Have a method fail at its second call, before or after its effect."""
    calls: list[int] = []
    real = getattr(owner, name)

    def failing(*args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) == 2 and not after:
            raise error
        result = real(*args, **kwargs)
        if len(calls) == 2 and after:
            raise error
        return result

    monkeypatch.setattr(owner, name, failing)
    return calls


@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.soak), True])
@pytest.mark.parametrize(
    ("owner", "name"), [(FilePublisher, "publish"), (OffsetLog, "commit")], ids=["publish", "commit"]
)
def test_a_batch_that_fails_at_any_step_is_repeated_and_nothing_is_doubled(
    here: Here, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, after: bool
) -> None:
    monkeypatch.setattr(troubles, "DELAYS", (0.01,))
    calls = fail_once(monkeypatch, owner, name, OSError(5, "Input/output error"), after)
    summary = here.run(simple(here))
    assert (summary.exit_code, summary.adds_up) == (0, True)
    assert len(calls) >= 3
    assert [doc["seq"] for doc in here.documents("out.jsonl")] == list(range(3000))


@pytest.mark.soak
def test_a_target_that_never_works_ends_the_sink_with_its_reason(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubles, "DELAYS", (0.01,))
    monkeypatch.setattr(troubles, "RESTARTS", 2)

    def broken(self: FilePublisher, parts: Sequence[Staged], position: SinkPosition) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(FilePublisher, "publish", broken)
    summary = here.run(simple(here))
    assert summary.exit_code == 1
    assert "Operation not permitted" in (summary.message or "")
    assert sink_of(summary, "out").pending == 3000
    monkeypatch.undo()
    assert here.run(simple(here)).exit_code == 0
    assert [doc["seq"] for doc in here.documents("out.jsonl")] == list(range(3000))


def test_what_spark_read_is_counted_against_the_log(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """If rows got lost between the log and Spark the batch fails; nothing of it is published."""
    from penstock.spark.planning import RecordPlanner
    from penstock.spark.staging import AccountError

    monkeypatch.setattr(troubles, "DELAYS", (0.01,))
    monkeypatch.setattr(troubles, "RESTARTS", 1)
    real = RecordPlanner.upcoming

    def beyond(planner: RecordPlanner, begin: LogPoint) -> LogPoint:
        end = real(planner, begin)
        return end if end == begin else LogPoint(MessageOffset(end.offset + 1), end.byte)

    monkeypatch.setattr(RecordPlanner, "upcoming", beyond)
    summary = here.run(simple(here, 500))
    assert summary.exit_code == AccountError.exit_code == 1
    assert "the log holds 501 messages in [0, 501), Spark read 500" in (summary.message or "")
    assert here.lines("out.jsonl") == []


def test_a_source_that_fails_is_reported_and_what_it_gave_is_delivered(here: Here) -> None:
    good = "".join(f'{{"n":{i}}}\n' for i in range(100))
    (here.path / "in.jsonl").write_text(good + "not json\n")
    pipeline = Pipeline("bad")
    pipeline.source("in", a.file(uri=here.uri("in.jsonl"))).save("out", a.file(uri=here.uri("out.jsonl")))
    summary = here.run(pipeline)
    assert summary.exit_code != 0
    assert "line 101" in (summary.message or "")
    assert (here.path / "out.jsonl").read_text() == good


def test_a_target_of_someone_else_is_refused_before_anything_is_read(here: Here) -> None:
    (here.path / "out.jsonl").write_text("precious\n")
    with pytest.raises(PenstockError, match="did not write"):
        here.run(simple(here))
    assert (here.path / "out.jsonl").read_text() == "precious\n"


def test_an_older_copy_of_the_target_is_noticed(here: Here) -> None:
    here.run(simple(here, 1000))
    copies = {name: (here.path / name).read_bytes() for name in ("out.jsonl", ".out.jsonl.penstock")}
    here.run(simple(here, 2000))
    for name, content in copies.items():
        (here.path / name).write_bytes(content)
    with pytest.raises(PenstockError, match="has the messages below 1000, but those below 2000"):
        here.run(simple(here, 3000))


def test_an_older_copy_of_the_data_directory_is_noticed(here: Here) -> None:
    import shutil

    here.run(simple(here, 1000))
    shutil.copytree(here.path / "data", here.path / "copy")
    here.run(simple(here, 2000))
    shutil.rmtree(here.path / "data")
    (here.path / "copy").rename(here.path / "data")
    with pytest.raises(PenstockError, match="has the messages below 2000, but the log ends at 1000"):
        here.run(simple(here, 3000))


@pytest.mark.parametrize("name", ["in", pytest.param("other", marks=pytest.mark.soak)])
def test_a_log_that_another_source_wrote_is_refused_before_anything_is_read(here: Here, name: str) -> None:
    """Its positions are not this one's: rows would come twice, or not at all."""
    here.run(simple(here, 1000))
    here.write("in.jsonl", [{"n": n} for n in range(10)])
    pipeline = Pipeline(simple(here, 1).name)
    pipeline.source(name, a.file(uri=here.uri("in.jsonl"))).save("out", a.file(uri=here.uri("out.jsonl")))
    with pytest.raises(UsageError, match="was written by source 'in' \\(generate\\)"):
        here.run(pipeline)
    summary = here.run(simple(here, 2000))
    assert (summary.exit_code, summary.read) == (0, 1000)


def test_once_ends_a_source_that_tails(here: Here) -> None:
    here.write("in.jsonl", [{"n": n} for n in range(10)])
    pipeline = Pipeline("tail")
    pipeline.source("in", a.file(uri=here.uri("in.jsonl"), tail=True)).save(
        "out", a.file(uri=here.uri("out.jsonl"))
    )
    summary = here.run(pipeline)
    assert (summary.exit_code, sink_of(summary, "out").delivered) == (0, 10)


def test_a_followed_source_has_its_last_batch_delivered_without_waiting_for_the_next(here: Here) -> None:
    here.write("in.jsonl", [{"n": 0}])
    pipeline = Pipeline("follow")
    pipeline.source("in", a.file(uri=here.uri("in.jsonl"), tail=True)).save(
        "out", a.file(uri=here.uri("out.jsonl"))
    )
    written = 1

    def go_on(progress: Progress) -> None:
        nonlocal written
        delivered = progress.nodes[1].delivered
        if progress.phase == "running" and delivered == written and written < 4:
            with (here.path / "in.jsonl").open("a") as file:
                file.write(json.dumps({"n": written}) + "\n")
            written += 1
        elif delivered == 4 and progress.phase == "running":
            os.kill(os.getpid(), signal.SIGINT)

    summary = run(pipeline, data_dir=here.path / "data", once=False, spark=here.spark, report=go_on)
    assert summary.exit_code == 0
    assert [doc["n"] for doc in here.documents("out.jsonl")] == [0, 1, 2, 3]


def test_functions_run_in_other_processes_than_the_runner(here: Here) -> None:
    pids = here.path / "pids"
    pids.mkdir()

    def note(batches: Iterator[object]) -> Iterator[object]:
        (pids / str(os.getpid())).touch()
        return batches

    pipeline = Pipeline("pids")
    source = pipeline.source("in", a.generate(count=100))
    source.transform("note", lambda df: df.mapInArrow(note, df.schema)).save("out", a.discard())
    assert here.run(pipeline).exit_code == 0
    seen = {int(path.name) for path in pids.iterdir()}
    assert seen
    assert os.getpid() not in seen
