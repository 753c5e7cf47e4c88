"""`step` and `dead replay` at connector sinks: by two-phase commit, without Spark, all sinks of a group or none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.connector.proxying import Proxy
from tests.connector.storing import MemoryStorage, Shelf

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.adaptors.connector.sink import ConnectorPublisher
from penstock.base.errors import AwayError, UsageError
from penstock.connector.settings import split
from penstock.connector.sink import SinkServer, transactions
from penstock.functions.base import Function
from penstock.functions.python import MutableMessage
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import CommitLog
from penstock.log.message import Message
from penstock.log.offsets import Commit, OffsetLog
from penstock.pipeline.atomic import GROUP
from penstock.pipeline.delivering import replay, step
from penstock.pipeline.editing import Editor
from penstock.pipeline.operations import Directory
from penstock.spark.tasks import lane_of

NOW = 1_700_000_000_000_000


class Rig:
    """The pipeline `p` with a log of twelve messages, and sinks in this process."""

    def __init__(self, path: Path, client: Client, stack: ExitStack) -> None:
        self.path = path
        self.editor = Editor(Directory(client), "me", lambda: NOW)
        self._stack = stack
        self.shelves: dict[str, Shelf] = {}
        log = CommitLog(client, "p", path / "index", None, NOW)
        messages = [
            Message(f"n{n % 2}", b'{"n":%d}' % n, ts=NOW, key=b'{"id":%d}' % (n % 5)) for n in range(12)
        ]
        log.append(messages, {}, [], NOW)
        log.close()

    def sink(self, name: str) -> str:
        """Serve a sink; its address."""
        shelf = self.shelves[name] = Shelf()
        server = SinkServer(("127.0.0.1", 0), shelf.workers(self.path / name, patience=30.0))
        self._stack.enter_context(server)
        return f"127.0.0.1:{server.address[1]}"

    def pair(self, *more: tuple[str, Function]) -> Pipeline:
        """Two sinks that commit together; the second behind functions."""
        pipeline = Pipeline("p")
        source = pipeline.source("in", a.generate(count=12))
        source.save("one", a.connector(sink=self.sink("one")))
        for name, function in more:
            source = source.transform(name, function)
        source.save("two", a.connector(sink=self.sink("two")))
        return pipeline

    def stored(self, sink: str, lane: int = 0) -> MemoryStorage:
        return self.shelves[sink](f"p.{sink}.{lane}")

    def numbers(self, sink: str, lane: int = 0) -> list[int]:
        """What is committed there."""
        stored = self.stored(sink, lane)
        return [json.loads(line)["n"] for line in stored.content[: stored.committed].splitlines()]

    def open_at(self, sink: str) -> list[str]:
        return [one.transaction for view in transactions(self.path / sink) for one in view.in_flight]

    def held(self, sink: str) -> Commit:
        return self.editor.directory.loaded("p", sink).commit

    def step(
        self, pipeline: Pipeline, sink: str, count: int = 1, *, bury: bool = False
    ) -> list[tuple[str, int, str]]:
        done = list(step(self.editor, pipeline, sink, count, bury=bury))
        return [(one.sink, one.offset, one.outcome) for one in done]

    def replay(self, pipeline: Pipeline) -> list[tuple[str, str]]:
        letters = [letter for letter in self.editor.directory.dead("p") if letter.state == "dead"]
        return [(one.sink, one.outcome) for one in replay(self.editor, pipeline, letters)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(tmp_path / "data"))
        yield Rig(tmp_path, stack.enter_context(Client(broker.address)), stack)


def test_a_sink_is_stepped_message_by_message_each_in_the_lane_of_its_key(rig: Rig) -> None:
    pipeline = Pipeline("p")
    pipeline.source("in", a.generate(count=12)).save("out", a.connector(sink=rig.sink("out"), connections=3))
    assert rig.step(pipeline, "out") == [("out", 0, "delivered")]
    assert rig.step(pipeline, "out", 20) == [("out", n, "delivered") for n in range(1, 12)]
    dealt: dict[int, list[int]] = {}
    for n in range(12):
        dealt.setdefault(
            lane_of(f"n{n % 2}", json.dumps({"id": n % 5}, separators=(",", ":")), 3), []
        ).append(n)
    assert {lane: rig.numbers("out", lane) for lane in dealt} == dealt
    assert (rig.held("out").watermark, rig.held("out").delivered, rig.open_at("out")) == (12, 12, [])
    with pytest.raises(UsageError, match="has everything"):
        rig.step(pipeline, "out")


def test_sinks_that_commit_together_are_stepped_together_whoever_is_named(rig: Rig) -> None:
    pipeline = rig.pair(("even", f.opfilter(whitelist=["update"])))
    assert rig.step(pipeline, "two") == [("one", 0, "delivered"), ("two", 0, "dropped")]
    assert rig.step(pipeline, "one") == [("one", 1, "delivered"), ("two", 1, "dropped")]
    assert (rig.numbers("one"), rig.numbers("two")) == ([0, 1], [])
    assert [rig.held(name).watermark for name in ("one", "two", GROUP)] == [2, 2, 2]


def test_one_that_was_acknowledged_or_moved_by_hand_gets_what_it_lacks(rig: Rig) -> None:
    pipeline = rig.pair()
    rig.step(pipeline, "one")
    rig.editor.ack("p", "one", [1, 3])
    assert rig.step(pipeline, "two", 3) == [
        ("two", 1, "delivered"), ("one", 2, "delivered"), ("two", 2, "delivered"), ("one", 3, "dropped"),
        ("two", 3, "delivered"),
    ]  # fmt: skip
    assert (rig.numbers("one"), rig.numbers("two")) == ([0, 2], [0, 1, 2, 3])
    assert [rig.held(name).watermark for name in ("one", "two")] == [4, 4]


def refusing(monkeypatch: pytest.MonkeyPatch, taste: Callable[[bytes], bool]) -> None:
    """Have storages refuse to prepare what is not to their taste."""
    kept = MemoryStorage.prepare

    def prepare(self: MemoryStorage, transaction: object) -> None:
        if taste(self.content[self.committed :]):
            self.content += b"bad"
        kept(self, transaction)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryStorage, "prepare", prepare)


def test_what_one_target_votes_down_is_refused_for_all_and_can_be_replayed_for_all(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = rig.pair(("new", f.rename(field_map={"n": "number"})))
    refusing(monkeypatch, lambda content: b'"number":1}' in content)
    assert rig.step(pipeline, "one", 5) == [
        ("one", 0, "delivered"), ("two", 0, "delivered"), ("one", 1, "refused"), ("two", 1, "refused"),
    ]  # fmt: skip
    (refused, _) = step(rig.editor, pipeline, "one", 1, bury=False)
    assert (refused.node, "voted 3 times to abort" in (refused.error or "")) == ("two", True)
    assert rig.open_at("one") == rig.open_at("two") == []
    assert rig.step(pipeline, "one", 2, bury=True) == [
        ("one", 1, "dead"), ("two", 1, "dead"), ("one", 2, "delivered"), ("two", 2, "delivered"),
    ]  # fmt: skip
    assert rig.numbers("one") == [0, 2]
    assert rig.replay(pipeline) == [("one", "refused"), ("two", "refused")]
    assert rig.numbers("one") == [0, 2], "one holds for all"
    monkeypatch.undo()
    assert rig.replay(pipeline) == [("one", "replayed"), ("two", "replayed")]
    assert rig.numbers("one") == [0, 2, 1]
    assert rig.stored("two").content.count(b'"number":1}') == 1
    assert [rig.held(name).watermark for name in ("one", "two", GROUP)] == [3, 3, 3]
    assert rig.step(pipeline, "one") == [("one", 3, "delivered"), ("two", 3, "delivered")]


def test_what_a_function_refuses_is_dead_for_its_sink_alone(rig: Rig) -> None:
    def picky(message: MutableMessage) -> bool:
        return message.data["n"] != 0 or 1 // 0 == 0

    pipeline = rig.pair(("picky", f.python(picky)))
    assert rig.step(pipeline, "one") == [("two", 0, "refused")]
    assert (rig.numbers("one"), rig.open_at("one"), rig.held("one").watermark) == ([], [], 0)
    assert rig.step(pipeline, "one", bury=True) == [("one", 0, "delivered"), ("two", 0, "dead")]
    assert (rig.numbers("one"), rig.numbers("two")) == ([0], [])


class Killed(BaseException):
    """The process ends here."""


def dies_behind_its_decision(rig: Rig, pipeline: Pipeline, at: str) -> None:
    """Step to message 1, whose decision is on record when the process ends."""
    rig.step(pipeline, "one")
    commit, tell = OffsetLog.commit, ConnectorPublisher.tell

    def committed(self: OffsetLog, one: Commit, namespaces: dict[str, int], now: int) -> None:
        if at == "the members' logs" and self.journal.endswith("/one") and one.watermark == 2:
            raise Killed
        commit(self, one, namespaces, now)

    def told(self: ConnectorPublisher, lanes: dict[str, object]) -> None:
        if at.endswith("first" if "p.one.0" in lanes else "second"):
            raise Killed
        tell(self, lanes)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(OffsetLog, "commit", committed)
        patched.setattr(ConnectorPublisher, "tell", told)
        with pytest.raises(Killed):
            rig.step(pipeline, "one")
    assert rig.open_at("two") != []


@pytest.mark.parametrize("at", ["the members' logs", "telling the first", "telling the second"])
def test_a_step_that_is_killed_behind_its_decision_is_told_later(rig: Rig, at: str) -> None:
    """Before anything is aborted, the sinks' own logs follow the decision of their group."""
    pipeline = rig.pair()
    dies_behind_its_decision(rig, pipeline, at)
    assert rig.step(pipeline, "one") == [("one", 2, "delivered"), ("two", 2, "delivered")]
    assert rig.numbers("one") == rig.numbers("two") == [0, 1, 2]


def test_no_sink_is_told_before_all_have_voted_and_the_decision_is_on_record(rig: Rig) -> None:
    """The first PHASE2 that is on its way is looked at, and cut off; the next step tells it."""
    to = {name: rig.sink(name) for name in ("one", "two")}
    seen: list[object] = []

    def look() -> None:
        members = rig.held(GROUP).members or {}
        open_now = {name: rig.open_at(name) for name in to}
        decided = {name: [lane.transaction for lane in (members[name].lanes or {}).values()] for name in to}
        seen.append(all(open_now.values()) and decided == open_now)

    def pipeline(addresses: Mapping[str, str]) -> Pipeline:
        made = Pipeline("p")
        source = made.source("in", a.generate(count=12))
        for name, address in addresses.items():
            source.save(name, a.connector(sink=address))
        return made

    with ExitStack() as stack:
        proxies = {name: stack.enter_context(Proxy(split(to[name]), "Phase2", look)) for name in to}
        watched = pipeline({name: "{}:{}".format(*proxy.address) for name, proxy in proxies.items()})
        with pytest.raises(AwayError):
            rig.step(watched, "one")
        assert [name for name, proxy in proxies.items() if "Reply" in proxy.seen] == ["one", "two"]
    assert seen == [True]
    assert (rig.numbers("one"), rig.numbers("two")) == ([], [])
    rig.step(pipeline(to), "one")
    assert rig.numbers("one") == rig.numbers("two") == [0, 1]


@pytest.mark.parametrize("at", ["the members' logs", "telling the first"])
@pytest.mark.parametrize("how", ["each by itself", "the other removed"])
def test_a_group_that_is_dissolved_after_a_crash_and_formed_again_goes_on(
    rig: Rig, at: str, how: str
) -> None:
    """What the group has decided holds for each of its sinks, also while there is no group."""
    to = {name: rig.sink(name) for name in ("one", "two")}

    def pipeline(*names: str, atomic: bool = True, drops: bool = False) -> Pipeline:
        made = Pipeline("p")
        node = made.source("in", a.generate(count=12))
        node = node.transform("nothing", f.opfilter(whitelist=["update"])) if drops else node
        for name in names:
            node.save(name, a.connector(sink=to[name], atomic=atomic))
        return made

    both = pipeline("one", "two")
    dies_behind_its_decision(rig, both, at)
    alone = (
        pipeline("one", drops=True)
        if how == "the other removed"
        else pipeline("one", "two", atomic=False, drops=True)
    )
    assert rig.step(alone, "one") == [("one", 2, "dropped")], "message 1 is decided"
    assert rig.numbers("one") == [0, 1]
    assert rig.step(both, "one", 2) == [
        ("two", 2, "delivered"),
        ("one", 3, "delivered"),
        ("two", 3, "delivered"),
    ]
    assert (rig.numbers("one"), rig.numbers("two")) == ([0, 1, 3], [0, 1, 2, 3])
    assert rig.open_at("one") == rig.open_at("two") == []


def test_a_sink_that_is_away_is_named_and_nothing_moves(rig: Rig) -> None:
    pipeline = Pipeline("p")
    source = pipeline.source("in", a.generate(count=12))
    source.save("one", a.connector(sink=rig.sink("one")))
    source.save("two", a.connector(sink="127.0.0.1:1"))
    with pytest.raises(AwayError, match="does not answer"):
        rig.step(pipeline, "one")
    assert (rig.numbers("one"), rig.held("one").watermark, rig.open_at("one")) == ([], 0, [])
