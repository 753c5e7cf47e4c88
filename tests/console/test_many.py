"""Much at once: a thousand journals, fifty pipelines, 500 streams; and updates for as long as is asked for.

For the long runs; `-s` shows the numbers. `PENSTOCK_SOAK_SECONDS=3600` has the updates go on for an hour.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.journal.protocol import ApplyRequest
from penstock.log.control import Control, ControlEntry
from penstock.log.journals import journal_spec
from penstock.log.offsets import Commit, OffsetLog
from penstock.pipeline.clock import now_us

from .conftest import Visit
from .places import Place, order
from .test_live import said, started

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

pytestmark = [pytest.mark.soak, pytest.mark.xdist_group("chromium")]

PIPELINES, STREAMS, OTHERS = 50, 500, 800
SECONDS = float(os.environ.get("PENSTOCK_SOAK_SECONDS", "60"))
SAMPLES = 12
PAUSE = 0.05
"""Between two changes, in seconds."""


@dataclass(frozen=True)
class Sample:
    """What is held after so many changes: megabytes of the console and of the page's process, and of its heap."""

    seconds: int
    changes: int
    server: float
    page: float
    heap: float
    nodes: int


def filled(place: Place, client: Client) -> None:
    for number in range(PIPELINES):
        name = f"pipe{number:02}"
        place.log(client, [order(n) for n in range(16)], name)
        for sink, watermark in (("archive", 16), ("sales", 14)):
            log = OffsetLog(client, name, sink, now_us())
            log.replace(Commit(watermark=watermark, delivered=12), {"orders": 13}, now_us())
        Control(client, name).append(ControlEntry(now_us(), "somebody", "pause", "archive"))
    specs = [journal_spec(f"other/{number:03}", 1 << 20, {}) for number in range(OTHERS)]
    for at in range(0, len(specs), 100):
        client.apply(
            [ApplyRequest.Change(expect_mod_revision=0, upsert=spec) for spec in specs[at : at + 100]]
        )


@contextmanager
def streams(path: Path, broker: str) -> Iterator[None]:
    """A worker that has taken many streams."""
    (path / "worker").mkdir()
    (path / "send").mkdir()
    names = [f"{number:03}.log" for number in range(STREAMS)]
    for name in names:
        (path / "send" / name).write_text("a line\n")
    work = ("connector", "worker", "--listen", "127.0.0.1:0", "--json", "--broker", broker)
    with started(*work, cwd=path / "worker") as worker:
        listen = json.loads("{" + said(worker, path / "worker" / "out", "{"))["listen"]
        send = ("connector", "send", *names, "--to", listen, "--instance", "many")
        with started(*send, cwd=path / "send") as sender:
            assert sender.wait(300) == 0
        yield


def paint(page: Page) -> float:
    """When something was seen first, in milliseconds after the page was asked for."""
    return float(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))


def sampled(page: Page, inside: CDPSession, server: psutil.Process, since: float, changes: int) -> Sample:
    inside.send("HeapProfiler.collectGarbage")
    heap = inside.send("Runtime.getHeapUsage")["usedSize"]
    nodes = inside.send("Memory.getDOMCounters")["nodes"]
    children = psutil.Process().children(recursive=True)
    renderers = [one.memory_info().rss for one in children if "--type=renderer" in one.cmdline()]
    return Sample(
        round(time.monotonic() - since),
        changes,
        round(server.memory_info().rss / 1e6, 1),
        round(max(renderers) / 1e6, 1),
        round(heap / 1e6, 2),
        nodes,
    )


def opened(page: Page, at: str) -> float:
    """How long the pages take, once the console knows everything; the best first paint of three, in milliseconds."""
    paints = []
    for _ in range(3):
        began = time.monotonic()
        page.reload()
        page.locator(".pipe").nth(PIPELINES - 1).wait_for()
        shown = time.monotonic() - began
        paints.append(paint(page))
        print(f"page loaded again: first paint {paints[-1]:.0f} ms, all pipelines {1000 * shown:.0f} ms")
    for path, region, number in (("journals", "Journals", 50), ("connectors", "Streams of worker", STREAMS)):
        page.goto(f"{at}/#/{path}")
        began = time.monotonic()
        page.get_by_role("region", name=region).locator("tr").nth(number).wait_for()
        print(f"{path}, {number} rows: {1000 * (time.monotonic() - began):.0f} ms")
    page.goto(f"{at}/#/")
    page.locator(".pipe").nth(PIPELINES - 1).wait_for()
    return min(paints)


def updated(page: Page, client: Client, server: psutil.Process) -> list[Sample]:
    """Change something again and again, and look now and then what that has left behind."""
    inside = page.context.new_cdp_session(page)
    samples: list[Sample] = []
    began, changes = time.monotonic(), 0
    controls = [Control(client, f"pipe{number:02}") for number in range(PIPELINES)]
    while (gone := time.monotonic() - began) < SECONDS:
        if gone >= len(samples) * SECONDS / SAMPLES:
            samples.append(sampled(page, inside, server, began, changes))
            print(samples[-1], flush=True)
        action = "resume" if (changes // PIPELINES) % 2 == 0 else "pause"
        controls[changes % PIPELINES].append(ControlEntry(now_us(), "somebody", action, "archive"))
        changes += 1
        page.wait_for_timeout(1000 * PAUSE)
    return [*samples, sampled(page, inside, server, began, changes)]


@pytest.mark.timeout(1200 + 2 * SECONDS)
def test_a_thousand_journals_and_many_updates(tmp_path: Path, visit: Visit) -> None:
    place = Place(tmp_path)
    with place.client() as client:
        filled(place, client)
    with (
        EmbeddedBroker(place.data) as broker,
        Client(broker.address) as client,
        streams(tmp_path, broker.address),
        started("console", "--data-dir", "data", "--listen", "127.0.0.1:0", "--json", cwd=tmp_path) as server,
    ):
        at = json.loads("{" + said(server, tmp_path / "out", "{"))["console"].rstrip("/")
        began = time.monotonic()
        page = visit(f"{at}/")
        page.locator("#main .loading, .pipe, section.card").first.wait_for()
        first = paint(page)
        page.locator(".pipe").nth(PIPELINES - 1).wait_for()
        shown, used = time.monotonic() - began, sum(psutil.Process(server.pid).cpu_times()[:2])
        print(
            f"\nconsole started: first paint {first:.0f} ms, everything {shown:.2f} s, processor {used:.2f} s"
        )
        soon = opened(page, at)
        samples = updated(page, client, psutil.Process(server.pid))
        print(samples[-1])
        early, late = samples[1 : SAMPLES // 2], samples[-1]
        assert late.server < max(one.server for one in early) + 40
        assert late.heap < max(one.heap for one in early) + 8
        assert late.nodes < 2 * max(one.nodes for one in early), "what is drawn anew may wait to be collected"
        assert max(soon, opened(page, at)) < 1000
