"""What the page shows where there is nothing, before everything is known, and when what it looks at goes and comes."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.console.reaching import BrokerPlace
from penstock.console.serving import Door
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.control import Control, ControlEntry
from penstock.pipeline.clock import now_us
from penstock.pipeline.records import PipelineStatus
from penstock.pipeline.watching import Watched

from .conftest import Visit
from .pictures import kept
from .places import Place, console, order, stuck
from .test_page import accessible, confirmed, expect, loaded

pytestmark = pytest.mark.xdist_group("chromium")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    return stuck(tmp_path)


def test_with_nothing_there_it_shows_how_to_start(tmp_path: Path, visit: Visit) -> None:
    with console(tmp_path / "none") as at:
        page = visit(f"{at}/")
        expect(page.locator("#main"), "No pipeline has run here yet")
        expect(page.locator(".cmd").last, "penstock run shop.py --data-dir")
        accessible(page)
        kept(page, "empty")
        page.goto(f"{at}/#/p/unknown")
        expect(page.locator("#main"), "There is no pipeline “unknown” here")
        for path, says in (
            ("journals", "There are no journals yet"),
            ("connectors", "No connector worker runs here"),
            ("immortals", "No immortal lives here"),
            ("spark", "No Spark session runs"),
        ):
            page.goto(f"{at}/#/{path}")
            expect(page.locator("#main"), says)
            loaded(page)
            assert page.locator(".note.bad").count() == 0, "nothing is wrong where there is nothing"
            accessible(page)
        (tmp_path / "late").mkdir()
        stuck(tmp_path / "late")
        (tmp_path / "late" / "data").rename(tmp_path / "none")
        page.goto(f"{at}/#/")
        expect(page.locator(".node.bad"), "sales")


def test_what_is_seen_is_shown_before_everything_is(
    shop: Place, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console has just been started, and the second pipeline takes its time."""
    with shop.client() as client:
        shop.log(client, [order(0)], "slow")
    look, go_on = Watched.look, threading.Event()

    def slowly(self: Watched, *arguments: Any) -> PipelineStatus:
        assert self.pipeline != "slow" or go_on.wait(60)
        return look(self, *arguments)

    monkeypatch.setattr(Watched, "look", slowly)
    with console(shop.data) as at:
        try:
            page = visit(f"{at}/")
            expect(page.get_by_role("status"), "Still looking: 1 of 2 pipelines seen.")
            expect(page.locator(".node.bad"), "sales")
            page.goto(f"{at}/#/p/slow")
            expect(page.locator("#main"), "Looking at the pipeline…")
            accessible(page)
        finally:
            go_on.set()
        expect(page.get_by_role("heading", name="slow"))
        page.goto(f"{at}/#/")
        expect(page.locator("#main"), "1 message logged")
        assert page.get_by_text("Still looking").count() == 0


def test_a_run_that_starts_is_said_to_start(tmp_path: Path, visit: Visit) -> None:
    with console(tmp_path / "none", run="shop") as at:
        page = visit(f"{at}/")
        expect(page.locator("#main"), "shop is starting")
        accessible(page)


def test_a_console_that_ends_says_so_and_with_the_next_one_the_page_goes_on(
    shop: Place, visit: Visit
) -> None:
    """Nothing is to be loaded again: whoever left the page open can go on with it."""
    with console(shop.data) as at:
        page = visit(f"{at}/#/p/shop/sink/sales")
        expect(page.locator(".track"), "next: 14")
    expect(page.locator("#main"), "The console has ended")
    expect(page.locator("#bar"), "ended")
    accessible(page)
    with console(shop.data, Door(f"127.0.0.1:{urlsplit(at).port}")):
        page.get_by_text("The console has ended").wait_for(state="detached")
        confirmed(page, "Pause", "takes nothing more until it is resumed", do="Pause")
        expect(page.locator(".chip"), "paused")
    assert [entry.action for entry in shop.audit()] == ["pause"]


def test_behind_a_broker_what_rests_is_seen_to_change_without_waiting_for_its_turn(
    shop: Place, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wait in ("RESTING", "LISTING"):
        monkeypatch.setattr(f"penstock.console.lookout.{wait}", 3600.0)
    with EmbeddedBroker(shop.data) as broker, Client(broker.address) as client:
        place = BrokerPlace(lambda: Client(broker.address), broker.address)
        with console(shop.data, reaching=place) as at:
            page = visit(f"{at}/")
            expect(page.locator(".node.bad"), "stopped")
            Control(client, "shop").append(ControlEntry(now_us(), "somebody", "pause", "archive"))
            expect(page.locator(".node.warn", has_text="archive"), "paused")
            shop.log(client, [order(0)], "another")
            expect(page.locator("#main"), "1 message logged")


def test_without_a_broker_one_sentence_tells_it_and_each_page_comes_by_itself_afterwards(
    shop: Place, visit: Visit
) -> None:
    paths = (
        "p/shop/sink/sales",
        "p/shop/record",
        "p/shop/trace/3",
        "p/shop/dead",
        "journals/pipelines%2Fshop%2Flog",
    )
    with ExitStack() as away:
        broker = away.enter_context(EmbeddedBroker(shop.data))
        client = away.enter_context(Client(broker.address))
        place = BrokerPlace(lambda: Client(client.address), client.address)
        with console(shop.data, reaching=place) as at:
            expect(visit(f"{at}/").locator(".node.bad"), "stopped")
            away.close()
            pages = [visit(f"{at}/#/{path}") for path in paths]
            for page in pages:
                expect(page.locator(".note.bad"), "The journals cannot be reached")
            with EmbeddedBroker(shop.data):
                for page in pages:
                    page.locator(".note.bad").wait_for(state="detached")
                    loaded(page)
                expect(pages[0].locator(".json"), "on request")
                expect(pages[1].locator("tbody"), "run ended")
                expect(pages[2].locator(".json"), "Dora")
                expect(pages[4].locator("dl"), "Write head")
