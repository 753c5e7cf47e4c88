"""The page in a real browser: each part of it, each action with its effect in the journals, live, by keyboard."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe

from penstock.console.reaching import BrokerPlace
from penstock.immortal import about
from penstock.journal.client import AsyncClient, Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.control import Control, ControlEntry, Detail
from penstock.log.message import Message, Mode
from penstock.log.offsets import Commit, OffsetLog
from penstock.log.transaction import Transaction
from penstock.pipeline.clock import now_us
from penstock.pipeline.progress import (
    BatchProgress,
    NodeProgress,
    Progress,
    QueryProgress,
    RunFile,
    SparkProgress,
    publish,
)
from penstock.pipeline.signs import moment

from .conftest import PATIENCE, Visit
from .pictures import WANTED, hurried, kept
from .places import POISON, Place, buried, console, flowing, order, stuck

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.xdist_group("chromium")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    return stuck(tmp_path)


@pytest.fixture
def at(shop: Place) -> Iterator[str]:
    with console(shop.data) as address:
        yield address


def expect(where: Locator, text: str | re.Pattern[str] = "", seconds: int = PATIENCE) -> None:
    from playwright.sync_api import expect as expected

    expected(where.first).to_be_visible(timeout=seconds * 1000)
    if text:
        expected(where.first).to_contain_text(text, timeout=seconds * 1000)


def loaded(page: Page) -> None:
    from playwright.sync_api import expect as expected

    expected(page.locator("#main .loading")).to_have_count(0, timeout=1000 * PATIENCE)


def accessible(page: Page) -> None:
    """Nothing that keeps people out, by axe."""
    found = Axe().run(page).response["violations"]
    serious = [
        (one["id"], [node["html"][:200] for node in one["nodes"]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert not serious


def fits(page: Page) -> bool:
    """Whether nothing is wider than the window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def confirmed(page: Page, button: str, *says: str, do: str) -> None:
    """Press a button of the page, read what it would change, and agree."""
    page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog")
    for text in says:
        expect(dialog, text)
    dialog.get_by_role("button", name=do, exact=True).click()
    dialog.wait_for(state="detached")


def test_the_poison_message_of_the_seed_is_mended_from_the_page(shop: Place, at: str, visit: Visit) -> None:
    page = visit(f"{at}/")
    page.get_by_role("link", name=re.compile("sales stopped before message 14")).click()
    expect(page.get_by_role("heading", name="sales"))
    expect(page.locator(".note.bad"), "wants a number")
    expect(page.locator("#main"), "Messages 14 to 15 are delivered one at a time")
    expect(page.locator(".json"), "on request")
    assert page.locator(".json .t").all_inner_texts()[:5] == ["whole number", "text", "text", "text", "time"]
    page.get_by_label("Find in the message").fill("request")
    expect(page.locator(".json mark"), "request")

    page.get_by_role("button", name="Step", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog, "Message 14 goes through the functions to sales now")
    expect(dialog, re.compile(r"penstock step \S+shop.py:shop sales --data-dir"))
    dialog.get_by_role("button", name="Deliver", exact=True).click()
    expect(dialog, "refused by 'large'")
    dialog.get_by_role("button", name="Close").click()

    confirmed(page, "Keep for later", "is kept among the dead letters with its reason", do="Keep for later")
    expect(page.locator(".track"), "next: 15")
    confirmed(page, "Step", "Message 15 goes through", do="Deliver")
    expect(page.locator(".track"), "has everything")

    shop.file.write_text(
        shop.file.read_text()
        .replace("shop = ", "def priced(m):\n    if m.data.get('total') == 'on request':\n        "
                 "m.data['total'] = 1000\n    return m\n\nshop = ")
        .replace("large = clean.", "large = clean.transform('priced', f.python(priced)).")
    )  # fmt: skip
    page.goto(f"{at}/#/p/shop/dead")
    expect(page.locator(".reason"), "wants a number")
    confirmed(page, "Replay it", "will be sent through the functions to sales again", do="Replay")
    expect(page.locator("#main"), "There are no dead letters")
    page.goto(f"{at}/#/p/shop/trace/14")
    expect(page.locator("#main"), "replayed")

    lines = (shop.path / "sales.jsonl").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ['{"id":15', '{"id":14']
    assert '"total":1000' in lines[1]
    assert shop.held("sales").commit.watermark == 16
    done = [(entry.action, entry.detail.get("outcome")) for entry in shop.audit()]
    assert done == [("step", "refused"), ("step", "dead"), ("step", "delivered"), ("dead-replay", "replayed")]
    assert all(entry.who.endswith("(console)") and "@" in entry.who for entry in shop.audit())


def test_passing_over_rewinding_pausing_and_giving_up(shop: Place, at: str, visit: Visit) -> None:
    buried(shop, 3, 5)
    page = visit(f"{at}/#/p/shop/sink/sales")
    confirmed(
        page, "Pass over it", "The offset of sales moves from 13 to 14; message 15 is next", do="Pass over it"
    )
    expect(page.locator(".track"), "next: 15")
    page.get_by_role("button", name="Set offset…").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("9")
    page.get_by_role("dialog").get_by_role("button", name="Next").click()
    dialog = page.get_by_role("dialog", name="Rewind sales to offset 9")
    expect(dialog, "5 messages will be sent to sales again")
    expect(dialog, "A new generation begins (1)")
    dialog.get_by_role("button", name="Rewind").click()
    expect(page.locator(".track"), "next: 10")
    confirmed(page, "Pause", "takes nothing more until it is resumed", do="Pause")
    expect(page.locator(".chip"), "paused")
    confirmed(page, "Resume", "goes on where its offset is", do="Resume")
    page.goto(f"{at}/#/p/shop/dead")
    page.get_by_role("button", name="letter 0", exact=True).click()
    expect(page.locator(".letter"), "Dora")
    confirmed(page, "Give letter 0 up", "1 message will never be sent", do="Give up")
    confirmed(page, "Give it up", "1 message will never be sent", do="Give up")
    expect(page.locator("#main"), "There are no dead letters")
    page.goto(f"{at}/#/p/shop/record")
    expect(page.locator("tbody"), "passed over")

    held = shop.held("sales").commit
    assert (held.watermark, held.generation) == (10, 1)
    assert [entry.action for entry in shop.audit()] == [
        *("ack", "mark", "pause", "resume"), *["dead-drop"] * 2,
    ]  # fmt: skip


def test_the_log_by_offset_namespace_text_and_time(shop: Place, at: str, visit: Visit) -> None:
    with shop.client() as client:
        later = Message("customers", b'{"name":"Zoe"}', ts=now_us() + 3600_000_000, mode=Mode.SYNC)
        shop.log(client, [later])
    page = visit(f"{at}/#/p/shop/log")
    expect(page.locator("tbody tr"), "Zoe")
    for field, value, first in (
        ("From offset", "3", "Dora"),
        ("Namespace (pattern)", "^cust", "Zoe"),
        ("Text", "on REQUEST", "Gus"),
    ):
        page.goto(f"{at}/#/p/shop/log?from=0")
        page.get_by_label(field).fill(value)
        page.get_by_role("button", name="Search").click()
        expect(page.locator("tbody tr").first, first)
    soon = datetime.fromtimestamp(now_us() // 1_000_000 + 60, UTC)
    page.goto(f"{at}/#/p/shop/log?from=0")
    page.get_by_label("From time (UTC)").fill(soon.strftime("%Y-%m-%dT%H:%M:%S"))
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr").first, "Zoe")
    page.get_by_role("button", name="Message 16").click()
    expect(page.locator(".json"), "Zoe")
    page.get_by_role("link", name="Trace it through every node").click()
    expect(page.get_by_role("heading", name="Message 16"))


def test_what_others_do_is_seen_without_reloading(shop: Place, at: str, visit: Visit) -> None:
    page = visit(f"{at}/")
    expect(page.locator(".node.bad"), "stopped")
    taps = {node: visit(f"{at}/#/p/shop/tap?node={node}") for node in ("orders", "slim", "archive")}
    with shop.client() as client:
        OffsetLog(client, "shop", "sales", now_us()).replace(Commit(watermark=16), {}, now_us())
        shop.log(client, [order(n) for n in (16, 17, 18)])
        control = Control(client, "shop")
        control.append(ControlEntry(now_us(), "somebody", "pause", "archive"))
    expect(page.locator(".node.warn", has_text="archive"), "paused")
    expect(page.locator(".node", has_text="sales"), "3 behind")
    for node, tapped in taps.items():
        row = tapped.locator(".tapped .m", has_text="18")
        expect(row, '"customer":"Cleo"')
        assert ("4111-0018" in row.first.inner_text()) is (node == "orders"), (
            "the first function takes it out"
        )
    with shop.client() as client:
        OffsetLog(client, "shop", "sales", now_us()).replace(Commit(watermark=16, careful=19), {}, now_us())
    expect(page.locator(".node.bad"), "stopped")
    from playwright.sync_api import expect as expected

    told = "shop: sales stopped before message 16"
    expected(page.locator("#said")).to_have_text(told, timeout=1000 * PATIENCE)
    expected(page).to_have_title("(1 in trouble) Overview – Penstock", timeout=1000 * PATIENCE)


def test_what_flows_is_seen_as_it_does(shop: Place, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    if WANTED:
        hurried(monkeypatch)
    with EmbeddedBroker(shop.data) as broker, flowing(shop, broker.address), console(shop.data) as at:
        page = visit(f"{at}/")
        expect(page.locator(".node.ok", has_text="archive"), re.compile(r"[1-9][\d.]*/s"))
        expect(page.locator(".node.bad", has_text="sales"), "stopped")
        expect(page.locator("svg.edges text", has_text="/s"))
        assert page.locator("path.drops").count() > 0
        page.reload()
        expect(page.get_by_role("img", name=re.compile(r"^read, the last \d+ min: now [1-9]")))
        page.goto(f"{at}/#/spark")
        expect(page.get_by_role("link", name="Spark’s own page"))
        expect(page.locator("tbody tr"), "0 to 15")
        expect(page.get_by_role("img", name="stage 900 ms, publish 80 ms, offsets 20 ms, other 250 ms"))
        page.goto(f"{at}/#/")
        if WANTED:
            page.wait_for_timeout(150_000)
            kept(page, "overview")
            for name, size in (("overview-dark", (1280, 860)), ("phone", (390, 844))):
                other = visit(f"{at}/", width=size[0], height=size[1], dark=name.endswith("dark"))
                expect(other.locator(".node.bad"), "stopped")
                other.wait_for_timeout(12_000)  # charts are asked for every ten seconds
                kept(other, name)


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["light", "dark"])
def test_every_page_is_for_everybody(shop: Place, at: str, visit: Visit, dark: bool) -> None:
    buried(shop, 3, 5, error='duplicate key value violates unique constraint "sales_pkey"')
    page = visit(f"{at}/", dark=dark)
    for path, name in (
        ("", "resting"),
        ("p/shop", "pipeline"),
        ("p/shop/sink/sales", "sink"),
        ("p/shop/log", "log"),
        (f"p/shop/trace/{POISON}", "trace"),
        ("p/shop/dead", "dead"),
        ("p/shop/tap", "tap"),
        ("p/shop/record", "record"),
        ("journals", "journals"),
        ("journals/pipelines%2Fshop%2Flog", "journal"),
        ("connectors", "no-connectors"),
        ("immortals", "no-immortals"),
        ("spark", "no-spark"),
    ):
        page.goto(f"{at}/#/{path}")
        expect(page.get_by_role("heading", level=1))
        loaded(page)
        if name == "journals":
            expect(page.locator("#main"), "healthy")
        accessible(page)
        page.set_viewport_size({"width": 390, "height": 844})
        assert fits(page), path
        page.set_viewport_size({"width": 1280, "height": 860})
        kept(page, f"{name}{'-dark' if dark else ''}")


def test_by_keyboard_alone_and_on_a_phone(at: str, visit: Visit) -> None:
    page = visit(f"{at}/", width=390, height=844)
    expect(page.locator(".node.bad"), "sales")
    assert fits(page)
    order = ["orders", "commit log", "no-cards", "archive", "large", "slim", "sales"]
    assert page.locator(".node .name").all_inner_texts() == order, "each before what it feeds"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.locator(".node.bad").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="sales"))
    assert page.evaluate("document.activeElement.tagName") == "H1"
    assert fits(page)
    page.get_by_role("button", name="Pause", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog"), "Pause sales")
    kept(page, "phone-dialog")
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")


SLIM = NodeProgress("slim", "function", "pick", "running", 4321, 4300, 21)
SPARK = SparkProgress(
    "4.3.0",
    "local[2]",
    "local-1",
    None,
    [
        QueryProgress(
            "sales", "shop/sales", True, [BatchProgress(now_us(), 0, 14, 14, 0, 0, 14, 0.5, {"stage": 481.0})]
        )
    ],
)


def beside_the_run(shop: Place, voted: Transaction, broker: EmbeddedBroker) -> AbstractContextManager[str]:
    """In its data directory, where its file is; its process is this one."""
    sales = NodeProgress("sales", "sink", "connector", "running", transaction=voted)
    progress = Progress("shop", 1.0, "running", 16, [SLIM, sales], spark=SPARK)
    publish(shop.data, RunFile("r2", os.getpid(), "here", now_us(), now_us(), progress, None))
    return console(shop.data)


def behind_a_broker(shop: Place, voted: Transaction, broker: EmbeddedBroker) -> AbstractContextManager[str]:
    """Elsewhere: the run's beat must do."""
    run: Detail = {"run": "r2", "pid": 7, "host": "elsewhere"}
    told: Detail = {**run, "in_flight": {"sales": msgspec.to_builtins(voted)}}
    told |= moment(Progress("shop", 1.0, "running", 16, [SLIM], spark=SPARK))
    soon = now_us() + 3_600_000_000  # nobody beats: it must not go silent while the page is looked at
    with Client(broker.address) as client:
        for action, detail in (("run-begin", run), ("run-beat", told)):
            Control(client, "shop").append(ControlEntry(soon, "run", action, None, detail))
    return console(shop.data, reaching=BrokerPlace(lambda: Client(broker.address), broker.address))


@pytest.mark.parametrize("watched", [beside_the_run, behind_a_broker])
def test_transactions_in_flight_and_what_spark_does_are_shown(
    shop: Place,
    visit: Visit,
    watched: Callable[[Place, Transaction, EmbeddedBroker], AbstractContextManager[str]],
) -> None:
    voted = Transaction(
        "3f2a", 14, 16, "aborted", now_us(), now_us(), {"shop.sales.0": True, "shop.sales.1": False}
    )
    with EmbeddedBroker(shop.data) as broker, watched(shop, voted, broker) as at:
        page = visit(f"{at}/#/connectors")
        shown = page.get_by_role("region", name="Transactions in flight")
        expect(shown, "14 to 15")
        expect(shown, "aborted")
        expect(shown.get_by_role("listitem").nth(1), "shop.sales.1 abort")
        accessible(page)
        page.goto(f"{at}/#/spark")
        expect(page.locator("#main"), "Spark 4.3.0, local[2], local-1")
        expect(page.get_by_role("table"), "0 to 13")
        page.goto(f"{at}/#/p/shop")
        expect(page.locator("#main"), "4.3k through")


def test_immortals_are_shown_without_their_secrets(
    shop: Place, at: str, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(about, "PACE_HOLDS", float("inf"))
    page = visit(f"{at}/#/immortals")
    expect(page.locator("#main"), "No immortal lives here")
    with shop.client() as client:
        asyncio_in_a_thread(_registered(client.address))
    page.goto(f"{at}/#/")
    page.goto(f"{at}/#/immortals")
    expect(page.locator("tbody"), "replica 0 at 10.0.0.7:4000")
    expect(page.locator("tbody"), "40/s")
    accessible(page)
    page.get_by_role("link", name="counter").click()
    expect(page.get_by_role("heading", name="counter"))
    expect(page.locator("#main"), "replica 1")
    expect(page.locator("dl"), "1,234")
    accessible(page)
    assert "sesame-sesame" not in page.content()
    assert b"sesame-sesame" not in page.request.get(f"{at}/api/immortals").body()


async def _registered(address: str) -> None:
    async with AsyncClient(address) as client:
        await about.register(client, "counter", about.Registration(0, 2000, 2001))
        await about.register(client, "counter", about.Registration(1, 2010, 2011, active=True))
        serving = about.Serving(0, "me", 1, "10.0.0.7", 4000, "sesame-sesame", at=now_us() / 1e6)
        await about.say(client, "counter", serving)
        await about.say(client, "counter", about.Pace(1, 1234, 40.0, now_us() / 1e6))


def asyncio_in_a_thread(work: Coroutine[object, object, None]) -> None:
    """The browser's driver has the event loop of this thread."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
