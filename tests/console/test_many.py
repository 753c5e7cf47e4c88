"""Much at once: a thousand journals, fifty pipelines; and many updates. For the long runs; `-s` shows the numbers."""

# ruff: noqa: T201

from __future__ import annotations

import gc
import time
from pathlib import Path

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
from .places import Place, console, order

pytestmark = [pytest.mark.soak, pytest.mark.xdist_group("chromium")]

PIPELINES, STREAMS, OTHERS = 50, 500, 300
UPDATES = 600


def filled(place: Place, client: Client) -> None:
    for number in range(PIPELINES):
        name = f"pipe{number:02}"
        place.log(client, [order(n) for n in range(16)], name)
        for sink, watermark in (("archive", 16), ("sales", 14)):
            log = OffsetLog(client, name, sink, now_us())
            log.replace(Commit(watermark=watermark, delivered=12), {"orders": 13}, now_us())
        Control(client, name).append(ControlEntry(now_us(), "somebody", "pause", "archive"))
    names = [f"connector/streams/{n:03}" for n in range(STREAMS)] + [f"other/{n:03}" for n in range(OTHERS)]
    specs = [journal_spec(name, 1 << 20, {}) for name in names]
    for at in range(0, len(specs), 100):
        client.apply(
            [ApplyRequest.Change(expect_mod_revision=0, upsert=spec) for spec in specs[at : at + 100]]
        )


@pytest.mark.timeout(1200)
def test_a_thousand_journals_and_many_updates(tmp_path: Path, visit: Visit) -> None:
    place = Place(tmp_path)
    with place.client() as client:
        filled(place, client)
    process = psutil.Process()
    with EmbeddedBroker(place.data) as broker, Client(broker.address) as client, console(place.data) as at:
        began = time.monotonic()
        page = visit(f"{at}/")
        page.locator("#main .loading, .pipe, section.card").first.wait_for()
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        page.locator(".pipe").nth(PIPELINES - 1).wait_for()
        print(f"\nconsole started: first paint {paint:.0f} ms, everything {time.monotonic() - began:.2f} s")
        for _ in range(3):
            began = time.monotonic()
            page.reload()
            page.locator(".pipe").nth(PIPELINES - 1).wait_for()
            shown = time.monotonic() - began
            paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            print(f"page loaded again: first paint {paint:.0f} ms, all pipelines {1000 * shown:.0f} ms")
        assert paint < 1000
        page.goto(f"{at}/#/journals")
        began = time.monotonic()
        page.get_by_role("region", name="Journals").locator("tr").nth(50).wait_for()
        print(f"the first fifty of a thousand journals: {1000 * (time.monotonic() - began):.0f} ms")
        page.goto(f"{at}/#/")
        sizes = []
        for number in range(UPDATES):
            name = f"pipe{number % PIPELINES:02}"
            action = "resume" if (number // PIPELINES) % 2 == 0 else "pause"
            Control(client, name).append(ControlEntry(now_us(), "somebody", action, "archive"))
            page.wait_for_timeout(50)
            if number % (UPDATES // 6) == 0:
                gc.collect()
                page.evaluate("window.gc && gc()")
                heap = page.evaluate("performance.memory.usedJSHeapSize")
                sizes.append(
                    (
                        process.memory_info().rss >> 20,
                        heap >> 10,
                        page.evaluate("document.querySelectorAll('*').length"),
                    )
                )
        print("server MB (with the broker), page KB, elements:", sizes)
        assert sizes[-1][0] < sizes[1][0] + 40
        assert sizes[-1][2] < sizes[1][2] + 50
