"""Pipelines that rest behind a broker: a change that somebody makes is seen at once, and looking costs one call."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.console.lookout import Lookout, Subscriber
from penstock.console.reaching import BrokerPlace
from penstock.journal.client import Client, NotOfferedError
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.labels import parse_selector
from penstock.journal.protocol import ApplyRequest, LabelSelector
from penstock.log.control import Control, ControlEntry, Detail
from penstock.log.journals import PIPELINE_LABEL, control_journal
from penstock.log.offsets import Commit, OffsetLog
from penstock.pipeline.clock import now_us
from penstock.pipeline.editing import Editor
from penstock.pipeline.operations import Directory
from penstock.pipeline.records import PipelineStatus
from penstock.pipeline.watching import Watched

from .places import Place, order
from .test_live import a_broker, said, started

MANY = 20


def rests(place: Place, client: Client, name: str) -> None:
    """A pipeline that nobody runs, with a sink that lacks something."""
    place.log(client, [order(number) for number in range(4)], name)
    OffsetLog(client, name, "sales", now_us()).replace(Commit(watermark=2), {"orders": 1}, now_us())
    Control(client, name).append(ControlEntry(now_us(), "somebody", "pause", "sales"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    place = Place(tmp_path)
    with EmbeddedBroker(place.data) as broker:
        with Client(broker.address) as client:
            for name in ("one", "other", "third"):
                rests(place, client, name)
        yield broker


class Watching:
    """A lookout whose clocks stand still: it looks for no other reason than that something has grown, and reads
    nothing again only because ten seconds are over."""

    def __init__(self, place: BrokerPlace, monkeypatch: pytest.MonkeyPatch) -> None:
        now = now_us()
        monkeypatch.setattr("penstock.console.lookout.now_us", lambda: now)
        self.lookout = Lookout(place, clock=lambda: 0.0)
        self.lookout.subscribe(Subscriber(lambda: None))
        self.calls: Counter[str] = Counter()
        self._looked: list[str] = []
        for name in ("list", "read", "list_fragments", "heads"):
            self._count(place, monkeypatch, name)
        look_at = self.lookout._look_at

        def looked(directory: Directory, name: str) -> None:
            self._looked.append(name)
            look_at(directory, name)

        monkeypatch.setattr(self.lookout, "_look_at", looked)

    def _count(self, place: BrokerPlace, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        calls = place._client._homes.current.calls
        call = getattr(calls, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return call(*arguments, **options)

        monkeypatch.setattr(calls, name, counted)

    def look(self) -> list[str]:
        """Which pipelines a look looks at."""
        self._looked.clear()
        self.calls.clear()
        self.lookout.look()
        return sorted(self._looked)

    def sink(self, pipeline: str) -> dict[str, Any]:
        nodes: Any = (self.lookout.view(pipeline) or {})["nodes"]
        return next(node for node in nodes if node["name"] == "sales")


@pytest.fixture
def watching(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watching]:
    place = BrokerPlace(lambda: Client(broker.address), broker.address)
    with closing(place):
        watching = Watching(place, monkeypatch)
        assert watching.look() == ["one", "other", "third"]
        while watching.look():
            """Where a journal ends may not have been known at first."""
        yield watching


def test_while_nothing_changes_a_look_is_one_call(watching: Watching) -> None:
    for _ in range(5):
        assert watching.look() == []
        assert watching.calls == {"heads": 1}


def appended(client: Client, place: Place) -> None:
    place.log(client, [order(4)], "other")


def acknowledged(client: Client, place: Place) -> None:
    Editor(Directory(client), "an operator").ack("other", "sales", [2])


def resumed(client: Client, place: Place) -> None:
    Control(client, "other").append(ControlEntry(now_us(), "an operator", "resume", "sales"))


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (appended, {"watermark": 2, "lag": 3, "state": "paused"}),
        (acknowledged, {"watermark": 3, "lag": 1, "state": "paused"}),
        (resumed, {"watermark": 2, "lag": 2, "state": "behind"}),
    ],
)
def test_a_change_of_one_is_seen_with_the_next_look_and_no_other_is_looked_at(
    broker: EmbeddedBroker,
    watching: Watching,
    tmp_path: Path,
    change: Callable[[Client, Place], None],
    shown: dict[str, object],
) -> None:
    with Client(broker.address) as client:
        change(client, Place(tmp_path))
    assert watching.look() == ["other"]
    assert watching.calls["heads"] == 1
    sink = watching.sink("other")
    assert {name: sink[name] for name in shown} == shown
    assert watching.look() == []


def test_a_pipeline_that_comes_or_goes_is_seen_with_the_next_look(
    broker: EmbeddedBroker, watching: Watching, tmp_path: Path
) -> None:
    with Client(broker.address) as client:
        rests(Place(tmp_path), client, "new")
        assert watching.look() == ["new"]
        assert sorted(watching.lookout.names()) == ["new", "one", "other", "third"]
        client.apply(
            [
                ApplyRequest.Change(expect_mod_revision=-1, delete=journal.spec.name)
                for journal in client.list(parse_selector(f"{PIPELINE_LABEL}=one"))
            ]
        )
    watching.look()
    assert sorted(watching.lookout.names()) == ["new", "other", "third"]


def test_a_run_that_begins_elsewhere_is_looked_at_each_time_until_it_has_ended(
    broker: EmbeddedBroker, watching: Watching
) -> None:
    run: Detail = {"run": "r1", "pid": 7, "host": "elsewhere"}
    with Client(broker.address) as client:
        control = Control(client, "third")
        control.append(ControlEntry(now_us(), "penstock run", "run-begin", None, run))
        assert [watching.look() for _ in range(3)] == [["third"]] * 3
        assert watching.calls == {"heads": 1}, "a look where nothing has grown asks for nothing else"
        assert (watching.lookout.view("third") or {})["running"]
        control.append(ControlEntry(now_us(), "penstock run", "run-end", None, {**run, "exit_code": 0}))
    assert [watching.look() for _ in range(3)] == [["third"], [], []]


def test_what_is_not_known_of_one_pipeline_is_asked_for_and_the_others_are_left_alone(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a journal whose primary is a broker of another make."""
    told = Client.heads

    def some(client: Client, selector: LabelSelector | None = None) -> dict[str, int]:
        known = told(client, selector)
        return {name: head for name, head in known.items() if name != control_journal("one")}

    monkeypatch.setattr(Client, "heads", some)
    assert watching.look() == ["one"]
    assert (watching.calls["heads"], watching.calls["read"]) == (1, 1)


def test_of_a_broker_that_cannot_tell_nothing_is_known_and_everything_is_looked_at(
    broker: EmbeddedBroker, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heads(client: Client, selector: LabelSelector | None = None) -> dict[str, int]:
        raise NotOfferedError("it is not one of Penstock's")

    monkeypatch.setattr(Client, "heads", heads)
    with Client(broker.address) as client:
        Control(client, "other").append(ControlEntry(now_us(), "an operator", "resume", "sales"))
    assert watching.look() == ["one", "other", "third"]
    assert watching.sink("other")["state"] == "behind"


def test_at_first_several_are_looked_at_at_once(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = threading.Barrier(3)

    class Meeting(Watched):
        def look(self, *arguments: Any) -> PipelineStatus:
            meeting.wait(30)
            return super().look(*arguments)

    monkeypatch.setattr("penstock.console.lookout.Watched", Meeting)
    place = BrokerPlace(lambda: Client(broker.address), broker.address)
    with closing(place):
        lookout = Lookout(place)
        lookout.look()
        assert sorted(lookout.names()) == ["one", "other", "third"]
        assert all("nodes" in (lookout.view(name) or {}) for name in lookout.names())


class Events:
    """What a console tells a page, as it comes."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._connection.request("GET", "/api/events")
        self._lines = self._connection.getresponse()

    def until(self, pipeline: str, told: Callable[[dict[str, Any]], bool]) -> None:
        """Read on until something is told of a pipeline."""
        while True:
            line = self._lines.readline()
            assert line, "the console has ended"
            if line.startswith(b'data: {"'):
                found = json.loads(line.removeprefix(b"data: "))
                if found.get("name") == pipeline and told(found):
                    return

    def close(self) -> None:
        self._connection.close()


def test_the_page_is_told_of_changes_among_many_that_rest_behind_a_broker(tmp_path: Path) -> None:
    place, (serve, address) = Place(tmp_path), a_broker()
    names = [f"pipe{number:02}" for number in range(MANY)]
    (tmp_path / "console").mkdir()
    with started(*serve, cwd=tmp_path) as broker:
        said(broker, tmp_path / "out", '{"grpc"')
        look = ("console", "--broker", address, "--listen", "127.0.0.1:0", "--json")
        with Client(address) as client, started(*look, cwd=tmp_path / "console") as server:
            for name in names:
                rests(place, client, name)
            at = json.loads("{" + said(server, tmp_path / "console" / "out", "{"))["console"]
            with closing(Events(at)) as events:
                for name in names:
                    events.until(name, lambda told: bool(told["nodes"]))
                for name in names[::5]:
                    Editor(Directory(client), "an operator").ack(name, "sales", [2])
                    events.until(name, lambda told: _watermark(told) == 3)


def _watermark(told: dict[str, Any]) -> int:
    return int(next(node["watermark"] for node in told["nodes"] if node["name"] == "sales"))
