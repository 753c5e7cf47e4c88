"""What operators ask and change, below the command line: the rules that need no terminal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import adaptors as a
from penstock import functions as f
from penstock.base.errors import InUseError
from penstock.journal.client import Client
from penstock.journal.datadir import DataDir, Owner
from penstock.journal.embedded import EmbeddedBroker, connect
from penstock.log.commitlog import CommitLog
from penstock.log.control import Control, ControlEntry, ControlState, Detail, RunMark
from penstock.log.message import Message, Mode, Op
from penstock.log.offsets import Commit, SinkOffsets
from penstock.log.reader import LogReader
from penstock.log.record import Record
from penstock.pipeline import editing, moves, runner
from penstock.pipeline.cases import Outcome, compared, meets, same
from penstock.pipeline.clock import now_us
from penstock.pipeline.definition import Pipeline
from penstock.pipeline.editing import Editor, open_editor
from penstock.pipeline.live import is_gone, running
from penstock.pipeline.operations import Directory, open_directory, utc
from penstock.pipeline.progress import Progress, RunFile
from penstock.pipeline.recompute import passed, sink_node, step_traces, tapped
from penstock.pipeline.runner import run
from penstock.pipeline.tracing import skipped_by
from penstock.spark.reach import Reach

NOW = 1_700_000_000_000_000
MESSAGES = 12


def run_file(pid: int, exit_code: int | None = None) -> RunFile:
    return RunFile("r", pid, "here", NOW, NOW, Progress("shop", 1.0, "running", 5), exit_code=exit_code)


BEATING = RunMark("r", 7, "there", beat=NOW)
RUN, BROKER, COMMAND = (
    Owner(7, "penstock run x.py"),
    Owner(9, "penstock broker serve"),
    Owner(8, "penstock status"),
)


@pytest.mark.parametrize(
    ("owner", "file", "mark", "local", "pid"),
    [
        (None, run_file(7), BEATING, True, None),
        (RUN, run_file(7), None, True, 7),
        (RUN, run_file(7, exit_code=0), None, True, None),
        (RUN, None, BEATING, True, 7),
        (COMMAND, run_file(7), BEATING, True, None),
        (BROKER, None, BEATING, True, 7),
        (None, None, BEATING, False, 7),
        (None, None, RunMark("r", 7, beat=NOW - 21_000_000), False, None),
        (None, None, RunMark("r", 7, beat=NOW, ended=True), False, None),
        (None, None, None, False, None),
    ],
)
def test_a_run_is_alive_if_its_lock_or_behind_a_broker_its_beat_says_so(
    owner: Owner | None, file: RunFile | None, mark: RunMark | None, local: bool, pid: int | None
) -> None:
    found = running(owner, file, ControlState(run=mark), NOW, local=local)
    assert (found.pid if found else None) == pid


DAY = 86_400 * 1_000_000


class TestAClockThatWasSetBack:
    """The run before crashed on another machine, by the clock of now tomorrow."""

    @pytest.fixture
    def control(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
        for module in (runner, editing):
            monkeypatch.setattr(module, "is_gone", partial(is_gone, patience=2.0))
        with EmbeddedBroker(tmp_path / "broker") as broker, Client(broker.address) as client:
            CommitLog(client, "p", tmp_path / "index", 1 << 20, NOW).close()
            control = Control(client, "p")
            control.append(self.sign("run-begin"))
            yield control

    def sign(self, action: str) -> ControlEntry:
        detail: Detail = {"run": "r", "pid": 7, "host": "there"}
        return ControlEntry(now_us() + DAY, "penstock run", action, None, detail)

    def test_its_place_is_free(self, control: Control, tmp_path: Path) -> None:
        client = control._client
        Editor(Directory(client), "me").require_still("p")
        (tmp_path / "in.jsonl").touch()
        pipeline = Pipeline("p")
        source = pipeline.source("in", a.file(uri=f"file://{tmp_path}/in.jsonl"))
        source.save("out", a.file(uri=f"file://{tmp_path}/out.jsonl"))
        reach = Reach(client.address)
        assert run(pipeline, data_dir=tmp_path / "mine", once=True, broker=reach).exit_code == 0

    def test_unless_it_still_beats(self, control: Control) -> None:
        beating = threading.Timer(0.7, lambda: control.append(self.sign("run-beat")))
        beating.start()
        with pytest.raises(InUseError, match="is running"):
            Editor(Directory(control._client), "me").require_still("p")
        beating.join()


def test_whoever_has_a_directory_for_a_moment_says_so(tmp_path: Path) -> None:
    directory = DataDir(tmp_path / "data")
    with EmbeddedBroker(directory.path):
        assert (owner := directory.owner()) is not None
        assert not owner.passing
    for look in (connect, open_directory, lambda path: open_editor(path, "me")):
        with look(directory.path):
            assert (owner := directory.owner()) is not None
            assert owner.passing


def test_a_directory_that_something_else_holds_is_not_edited(tmp_path: Path) -> None:
    with (
        EmbeddedBroker(tmp_path / "data"),
        pytest.raises(InUseError, match="is in use by process") as caught,
        open_editor(tmp_path / "data", "me", patience=0.0),
    ):
        pass
    assert caught.value.hint is not None
    assert "stop it first" in caught.value.hint


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogReader]:
    """A log of twelve messages, of which the even ones are of namespace a."""
    path = tmp_path_factory.mktemp("moves") / "data"
    with EmbeddedBroker(path) as broker, Client(broker.address) as client:
        log = CommitLog(client, "shop", path / "index", 1 << 20, NOW)
        log.append([Message("ab"[n % 2], b"{}") for n in range(MESSAGES)], {}, (), NOW)
        log.close()
        with open_directory(path) as directory:
            assert directory.current("shop") == MESSAGES - 1
        yield LogReader(client, log.journal, None)


class Model:
    """What a sink has, message by message: the plainest way to say it."""

    def __init__(self) -> None:
        self.done: set[int] = set()

    @property
    def watermark(self) -> int:
        return next(n for n in range(MESSAGES + 1) if n not in self.done)

    def mark(self, offset: int) -> None:
        back = offset + 1 < self.watermark
        ahead = set() if back else {n for n in self.done if n > offset}
        self.done = set(range(offset + 1)) | ahead


EDIT = st.one_of(
    st.tuples(st.just("mark"), st.integers(-1, MESSAGES - 1)),
    st.tuples(st.just("ack"), st.integers(0, MESSAGES - 1)),
)


@settings(max_examples=20)
@given(edits=st.lists(EDIT, max_size=6))
def test_edits_move_a_sink_as_the_model_says(reader: LogReader, edits: list[tuple[str, int]]) -> None:
    held, model = SinkOffsets(), Model()
    for edit, offset in edits:
        before = held.commit
        if edit == "ack" and offset in model.done and offset < model.watermark:
            continue
        move = moves.planned("s", held, offset, reader) if edit == "mark" else None
        change = moves.moved if edit == "mark" else lambda h, o, r: moves.acknowledged(h, [o], r)
        commit, namespaces = change(held, offset, reader)
        if edit == "mark":
            model.mark(offset)
        else:
            model.done.add(offset)
        held = SinkOffsets(commit, namespaces)
        assert commit.watermark == model.watermark
        assert set(commit.acked) == {n for n in model.done if n > model.watermark}
        back = commit.watermark < before.watermark
        assert commit.generation == before.generation + back
        if not back:
            assert commit.dropped - before.dropped == commit.watermark - before.watermark
        if move is not None:
            assert move.again == max(before.watermark - offset - 1, 0)
            assert move.after == offset
        assert all(0 <= last < commit.watermark for last in namespaces.values())


def test_setting_forward_tells_each_namespace_its_last_message(reader: LogReader) -> None:
    held = SinkOffsets(Commit(watermark=2), {"a": 0, "b": 1})
    assert moves.moved(held, 6, reader)[1] == {"a": 6, "b": 5}
    assert moves.moved(held, MESSAGES - 1, reader)[1] == {"a": 10, "b": 11}


def edit(action: str, **detail: object) -> ControlEntry:
    return ControlEntry(NOW, "me", action, "s", detail)  # type: ignore[arg-type]


def test_who_skipped_a_message_is_the_last_edit_that_counts() -> None:
    forward = edit("mark", **{"from": 2, "to": 6, "generation": 0})
    back = edit("mark", **{"from": 6, "to": 1, "generation": 1})
    assert skipped_by(5, 0, [forward]) == f"by me with `offset mark to 6`, {utc(NOW)}"
    assert skipped_by(7, 0, [forward]) is None
    assert skipped_by(5, 1, [forward, back]) is None
    assert "offset ack" in (skipped_by(5, 1, [forward, back, edit("ack", offsets=[5])]) or "")


def shop() -> Pipeline:
    shop = Pipeline("shop")
    source = shop.source("db", a.file(uri="file://in.jsonl"))
    moved = source.transform("moved", f.remap(ns_map={"a": "c"}))
    moved.transform("only", f.skip(field="id", operator=">", match=1), ns="c").save(
        "one", a.discard(), ns="a|b"
    )
    moved.save("two", a.discard(), ns="b")
    return shop


def record(offset: int, ns: str, text: str, op: Op = Op.INSERT) -> Record:
    return Record(offset, NOW, Mode.SYNC, op, ns, text.encode())


def test_a_course_shows_each_function_what_it_is_asked_about() -> None:
    """The sink's filter is tested on the namespace as logged, a function's on the current one."""
    records = [
        record(0, "a", '{"id":1}'),
        record(1, "b", '{"id":1}'),
        record(2, "z", "{}"),
        record(3, "a", '{"id":2}'),
    ]
    sink = sink_node(shop(), "one")
    course = passed(records, sink)
    assert course.left_out == {2}
    assert [(row.offset, row.ns) for row in course.out] == [(1, "b"), (3, "c")]
    assert [row.offset for row in course.passes[1].into] == [0, 3]
    outcomes = {n: [trace.outcome for trace in step_traces(course, sink.steps, n)] for n in (0, 1, 3)}
    assert outcomes == {0: ["changed", "dropped"], 1: ["passed", "not asked"], 3: ["changed", "passed"]}


def test_commands_are_given_to_no_function() -> None:
    course = passed([record(0, "a", "{}", Op.COMMAND)], sink_node(shop(), "one"))
    assert [row.ns for row in course.out] == ["a"]
    assert [trace.outcome for trace in step_traces(course, sink_node(shop(), "one").steps, 0)] == [
        "not asked"
    ] * 2


def test_a_function_before_several_sinks_is_passed_by_what_any_of_them_means() -> None:
    rows, _ = tapped(shop(), "moved", None).seen([record(0, "a", "{}"), record(1, "z", "{}")])
    assert [(row.offset, row.ns) for row in rows] == [(0, "c")]


@pytest.mark.parametrize(
    ("wanted", "came", "subset", "answer"),
    [
        (1, 1.0, False, False),
        (True, 1, False, False),
        ({"a": 1}, {"a": 1, "b": 2}, False, False),
        ({"a": 1}, {"a": 1, "b": 2}, True, True),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, True, True),
        ([{"a": 1}], [{"a": 1, "b": 1}], True, True),
        ([1], [1, 2], True, False),
        (None, None, False, True),
    ],
)
def test_values_are_the_same_only_if_their_kinds_are(
    wanted: object, came: object, subset: bool, answer: bool
) -> None:
    assert same(wanted, came, subset=subset) is answer


def test_an_error_is_met_by_its_words() -> None:
    came = Outcome("error", "slim: field 'x' is missing")
    assert meets(Outcome("error", "is missing"), came)
    assert not meets(Outcome("error", "too long"), came)
    assert not meets(Outcome("drop"), came)


@settings(max_examples=50)
@given(wanted=st.lists(st.integers(0, 3), max_size=6), came=st.lists(st.integers(0, 3), max_size=6))
def test_a_comparison_tells_both_lists_and_nothing_else(wanted: list[int], came: list[int]) -> None:
    lines = compared([Outcome("data", n) for n in wanted], [Outcome("text", str(n)) for n in came])
    assert [line.text for line in lines if line.sign != "+"] == [str(n) for n in wanted]
    assert [line.text for line in lines if line.sign != "-"] == [str(n) for n in came]
