"""What the console knows between two looks: histories, pages of the log, pipelines watched again and again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import PenstockError, UsageError
from penstock.console.definitions import Definitions
from penstock.console.history import KEPT, STEP, History, Series
from penstock.console.lookout import Lookout, Subscriber
from penstock.console.pace import Pace
from penstock.console.reaching import BrokerPlace, DirectoryPlace
from penstock.journal.client import Client, NotOfferedError
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.labels import parse_selector
from penstock.journal.protocol import ApplyRequest, LabelSelector
from penstock.log.control import Control, ControlEntry
from penstock.log.journals import FORMAT_LABEL, log_journal
from penstock.log.message import Message
from penstock.log.offsets import Commit, OffsetLog
from penstock.pipeline.browsing import Search, offset_at, page
from penstock.pipeline.clock import now_us
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.operations import Directory
from penstock.pipeline.progress import NodeProgress, Progress, RunFile, publish
from penstock.pipeline.records import PipelineStatus
from penstock.pipeline.watching import Watched

from .places import POISON, Place, buried, order, stuck


@pytest.fixture
def shop(tmp_path: Path) -> Place:
    return stuck(tmp_path)


def test_a_series_keeps_the_largest_of_a_slot_and_no_more_than_an_hour() -> None:
    series = Series()
    for at, value in ((0, 1.0), (5, 7.0), (10, 3.0), (STEP, 2.0), (4 * STEP, 9.0)):
        series.add(at, value)
    assert series.values == [7.0, 2.0, None, None, 9.0]
    assert series.until(6 * STEP) == [7.0, 2.0, None, None, 9.0, None, None]
    for slot in range(5, 2 * KEPT):
        series.add(slot * STEP, 1.0)
    assert len(series.values) == KEPT
    series.add(10 * KEPT * STEP, 4.0)
    assert series.values == [4.0]


def test_histories_of_what_is_gone_go() -> None:
    history = History()
    history.add("a", 0.0, {"read": 1.0, "lag x": 2.0})
    history.add("b", 0.0, {"read": 1.0})
    history.forget_others({"a"})
    history.add("a", KEPT * STEP + STEP, {"read": 3.0})
    assert history.of("a", KEPT * STEP + STEP) == {"read": [3.0]}
    assert history.of("b", 0.0) == {}


def test_pages_of_the_log(shop: Place) -> None:
    with shop.client() as client:
        directory = Directory(client)
        found = page(directory, "shop", Search(), start=3, count=5)
        assert ([one.offset for one in found.entries], found.more) == ([3, 4, 5, 6, 7], 8)
        found = page(directory, "shop", Search(), start=99, count=4, backwards=True)
        assert ([one.offset for one in found.entries], found.more) == ([12, 13, 14, 15], 11)
        found = page(directory, "shop", Search(), start=12, count=50)
        assert ([one.offset for one in found.entries], found.more) == ([12, 13, 14, 15], None)
        assert page(directory, "shop", Search(), start=99, count=5).entries == []
        found = page(directory, "shop", Search(text="ON request"), start=0, count=5)
        assert [one.offset for one in found.entries] == [POISON]
        found = page(directory, "shop", Search(Namespace("^none$")), start=0, count=5)
        assert (list(found.entries), found.looked) == ([], 16)
        entry = next(directory.show("shop", 9, 9))
        assert offset_at(directory, "shop", entry.ts) == 9
        assert offset_at(directory, "shop", 0) == 0
        assert offset_at(directory, "shop", now_us() + 10**12) == 16


def test_a_page_that_takes_long_says_where_to_go_on(shop: Place) -> None:
    with shop.client() as client:
        shop.log(client, [Message("orders", b'{"n":1}', ts=1) for _ in range(3000)])
        directory = Directory(client)
        found = page(directory, "shop", Search(text="nowhere"), start=0, count=20, patience=0.0)
        assert found.more == 20
        assert found.looked == 20
        found = page(
            directory, "shop", Search(text="nowhere"), start=3000, count=20, backwards=True, patience=0.0
        )
        assert (found.more, found.looked) == (2980, 20)
        found = page(
            directory, "shop", Search(text="nowhere"), start=3000, count=20, backwards=True, patience=99.0
        )
        assert (found.more, found.looked) == (None, 3001)


def test_a_page_backwards_has_the_newest_of_what_is_wanted_and_goes_on_before_them(shop: Place) -> None:
    with shop.client() as client:
        shop.log(client, [Message("orders", b'{"n":%d}' % (n % 10), ts=1) for n in range(300)])
        directory = Directory(client)
        sevens: list[int] = []
        at: int | None = 400
        while at is not None:
            found = page(directory, "shop", Search(text='"n":7}'), start=at, count=8, backwards=True)
            assert len(found.entries) <= 8
            sevens = [*(one.offset for one in found.entries), *sevens]
            at = found.more
        assert sevens == [16 + n for n in range(7, 300, 10)]


def test_what_is_watched_is_what_one_look_tells(shop: Place) -> None:
    buried(shop, 3)
    with shop.client() as client:
        directory = Directory(client)
        watched, now = Watched("shop"), now_us()
        changes: list[Callable[[], object]] = [
            lambda: None,
            lambda: shop.log(client, [order(n) for n in range(16, 30)]),
            lambda: OffsetLog(client, "shop", "sales", now).replace(
                Commit(watermark=20), {"orders": 19}, now
            ),
            lambda: Control(client, "shop").append(ControlEntry(now, "me", "pause", "sales")),
            lambda: OffsetLog(client, "shop", "new", now),
        ]
        for change in changes:
            change()
            assert watched.look(directory, now) == directory.status("shop", now)
        assert [letter.offset for letter in watched.letters] == [3]


def test_what_several_are_asked_for_together_is_what_each_tells(shop: Place) -> None:
    with shop.client() as client:
        shop.log(client, [order(n) for n in range(3)], "another")
        directory = Directory(client)
        names = ["shop", "another"]
        assert directory.statuses(names) == [directory.status(name) for name in names]
        with pytest.raises(UsageError, match="no pipeline 'shap'"):
            directory.statuses(["another", "shap"])


def test_beside_a_run_its_file_is_read_though_its_journals_are_at_a_broker(
    shop: Place, tmp_path: Path
) -> None:
    nodes = [NodeProgress("sales", "sink", "file", "one at a time")]

    def told(run: str) -> str | None:
        progress = Progress("shop", 1.0, "running", 16, nodes)
        publish(tmp_path / "mine", RunFile(run, 7, "here", now_us(), now_us(), progress))
        place = BrokerPlace(lambda: Client(broker.address), broker.address, tmp_path / "mine")
        with closing(place), place.looking() as directory:
            return {one.sink: one.state for one in directory.status("shop").sinks}["sales"]

    (tmp_path / "mine").mkdir()
    with EmbeddedBroker(shop.data) as broker, Client(broker.address) as client:
        began = ControlEntry(now_us(), "run", "run-begin", None, {"run": "r2", "pid": 7})
        Control(client, "shop").append(began)
        assert told("r2") == "one at a time"
        assert told("another") is None, "what an earlier run has left"


def test_a_directory_of_nobody_is_let_go_for_whoever_wants_to_run(shop: Place) -> None:
    place = DirectoryPlace(shop.data)
    before = place.changed()
    with place.looking() as directory:
        assert directory.pipelines() == ["shop"]
        assert directory.owner is None
    with place.looking() as directory:
        assert directory.current("shop") == 15
    place.settle()
    assert place.changed() == before
    with EmbeddedBroker(shop.data, patience=0.0):
        assert place.changed() is None
        with place.looking() as directory:
            assert directory.owner is not None
            assert directory.pipelines() == ["shop"]
    assert place.changed() != before
    with place.editing("me") as editor:
        assert editor.who == "me"
    place.close()
    with pytest.raises(PenstockError, match="is ending"), place.looking():
        pass
    with EmbeddedBroker(shop.data, patience=0.0):
        """Nobody has it any more, though somebody asked late."""


def test_what_a_run_recorded_serves_only_where_it_counts(
    shop: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.client() as client:
        control = Control(client, "shop").state()
    with pytest.raises(UsageError, match=r"was started in .*, and this console was not"):
        Definitions({}, recorded=True).load("shop", control)
    with pytest.raises(UsageError, match="behind a broker is not run"):
        Definitions({}, recorded=False).load("shop", control)
    assert Definitions({"shop": str(shop.file)}, recorded=False).load("shop", control).name == "shop"
    monkeypatch.chdir(tmp_path)
    definitions = Definitions({}, recorded=True)
    (tmp_path / "beside.py").write_text("FIELD = 'card'\n")
    text = shop.file.read_text().replace('["card"]', "[beside.FIELD]")
    shop.file.write_text("import beside\n" + text)
    first = definitions.load("shop", control)
    (tmp_path / "beside.py").write_text("FIELD = 'customer'\n")
    again = definitions.load("shop", control)
    assert str(first.transform_nodes[0].function) != str(again.transform_nodes[0].function)


def test_rates_are_of_the_last_seconds() -> None:
    pace = Pace()
    assert pace.rates(0.0, {"a": 5}, 4.0) == {}
    assert pace.rates(2.0, {"a": 25, "new": 7}, 4.0) == {"a": 10.0, "new": 0.0}
    assert pace.rates(4.0, {"a": 25, "new": 7}, 4.0) == {"a": 5.0, "new": 0.0}
    assert pace.rates(8.0, {"a": 25, "new": 7}, 4.0) == {"a": 0.0, "new": 0.0}
    assert pace.rates(10.0, {"a": 3}, 4.0) == {"a": 0.0}, "it began anew"


def looked(place: BrokerPlace, *, open_pages: int) -> tuple[Lookout, Callable[[float], list[str]]]:
    """A lookout whose clock stands still unless it is looking: then a look takes a tenth of a second."""
    now = 0.0
    seen: list[str] = []

    class Slow(Watched):
        def look(self, *arguments: Any) -> PipelineStatus:
            nonlocal now
            now += 0.1
            seen.append(self.pipeline)
            return super().look(*arguments)

    lookout = Lookout(place, clock=lambda: now)
    for _ in range(open_pages):
        lookout.subscribe(Subscriber(lambda: None))

    def later(seconds: float) -> list[str]:
        nonlocal now
        now += seconds
        seen.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.console.lookout.Watched", Slow)
            patch.setattr("penstock.console.lookout.AT_ONCE", 1)
            lookout.look()
        return list(seen)

    return lookout, later


def test_what_rests_behind_a_broker_that_cannot_tell_what_has_grown_is_looked_at_as_often_as_costs_little(
    shop: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heads(client: Client, selector: LabelSelector | None = None) -> dict[str, int]:
        raise NotOfferedError("it is not one of Penstock's")

    monkeypatch.setattr(Client, "heads", heads)
    with EmbeddedBroker(shop.data) as broker, Client(broker.address) as client:
        shop.log(client, [order(0)], "other")
        for pages, pauses in ((1, [True, False, True]), (0, [True, False, False])):
            place = BrokerPlace(lambda: Client(broker.address), broker.address)
            with closing(place):
                _, later = looked(place, open_pages=pages)
                # Two looks of a tenth of a second, 15 % of a processor: every 1.33 s, and without a page every five.
                assert [bool(later(seconds)) for seconds in (0.0, 0.6, 0.6)] == pauses


def test_a_pipeline_that_cannot_be_read_does_not_hide_the_others(shop: Place) -> None:
    with EmbeddedBroker(shop.data) as broker, Client(broker.address) as client:
        shop.log(client, [order(0)], "a-bad-one")
        client.append(log_journal("a-bad-one"), [b"no record at all" * 10])
        place = BrokerPlace(lambda: Client(broker.address), broker.address)
        with closing(place):
            lookout, later = looked(place, open_pages=1)
            assert later(0.0) == ["a-bad-one", "shop"]
            assert "a-bad-one/log" in str((lookout.view("a-bad-one") or {})["unreadable"])
            assert (lookout.view("shop") or {})["tone"] == "bad"
            assert lookout.problem is None
            for name in ("a-bad-one", "shop"):
                Control(client, name).append(ControlEntry(now_us(), "me", "pause", "sales"))
            assert later(0.5) == ["shop"], "what failed is left alone for longer"


def test_a_log_of_a_newer_format_is_not_guessed_at(shop: Place) -> None:
    with EmbeddedBroker(shop.data) as broker, Client(broker.address) as client:
        shop.log(client, [order(0)], "from-the-future")
        (journal,) = client.list(parse_selector(f"name={log_journal('from-the-future')}"))
        for label in journal.spec.labels.labels:
            if label.name == FORMAT_LABEL:
                label.value = "99"
        assert client.apply([ApplyRequest.Change(expect_mod_revision=-1, upsert=journal.spec)])
        place = BrokerPlace(lambda: Client(broker.address), broker.address)
        with closing(place):
            lookout, later = looked(place, open_pages=1)
            assert later(0.0) == ["from-the-future", "shop"]
            assert "log format 99" in str((lookout.view("from-the-future") or {})["unreadable"])
