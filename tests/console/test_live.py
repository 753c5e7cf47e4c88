"""The page beside what really runs: a pipeline with Spark, mended while it goes on; a broker that is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.immortal import pairs as immortals
from tests.journal.cluster.processes import cluster
from tests.servers.cache import end_with_parent
from tests.servers.ports import free_port

from penstock.cli.broker_cluster import PREFIX
from penstock.console.cluster import Cluster, Etcd
from penstock.console.reaching import BrokerPlace
from penstock.journal.client import Client
from penstock.log.audit import deeds

from .conftest import Visit
from .pictures import kept
from .places import POISON, SHOP, Place, console, order
from .test_page import accessible, confirmed, expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.xdist_group("chromium")

FOLLOWING = SHOP.replace('"file://in.jsonl"', '"file://in.jsonl", tail=True, ns="orders"')


@contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A command of Penstock; ended with the block. What it says goes into files: nobody reads along."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=cwd,
        stdout=(cwd / "out").open("w"),
        stderr=(cwd / "err").open("w"),
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
        preexec_fn=end_with_parent,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def said(process: subprocess.Popen[str], file: Path, beginning: str) -> str:
    """The rest of the line that begins so, once it is there."""
    while process.poll() is None:
        for line in file.read_text().splitlines(keepends=True):
            if line.startswith(beginning) and line.endswith("\n"):
                return line.removeprefix(beginning).strip()
        time.sleep(0.05)
    raise AssertionError(f"it ended: {(file.parent / 'err').read_text()}")


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_sink_is_mended_while_its_pipeline_runs(tmp_path: Path, visit: Visit) -> None:
    place = Place(tmp_path)
    place.file.write_text(FOLLOWING)
    given = [order(number).data.decode() for number in range(20)]
    (tmp_path / "in.jsonl").write_text("\n".join(given[:16]) + "\n")
    arguments = (
        "--follow",
        "--cores",
        "1",
        "--data-dir",
        "data",
        "--console",
        "--console-listen",
        "127.0.0.1:0",
    )
    with started("run", "shop.py", *arguments, cwd=tmp_path) as run:
        at = said(run, tmp_path / "err", "console: ").rstrip("/")
        page = visit(f"{at}/")
        expect(page.locator(".node.bad", has_text="sales"), "stopped", seconds=600)  # Spark starts first
        expect(page.locator(".node", has_text="archive"), "0 behind")
        page.goto(f"{at}/#/p/shop/sink/sales")
        expect(page.locator("#main"), "does not feed sales now")
        expect(page.locator(".track"), f"next: {POISON}")
        page.get_by_role("button", name="Set offset…").click()
        page.get_by_role("dialog").get_by_role("textbox").fill("3")
        page.get_by_role("dialog").get_by_role("button", name="Next").click()
        expect(page.get_by_role("dialog", name="Rewind sales"), "is running (process")
        page.keyboard.press("Escape")
        confirmed(page, "Pass over it", "resume it: the run then goes on with it", do="Pass over it")
        expect(page.locator(".track"), "next: 15")
        confirmed(page, "Resume", "goes on where its offset is", do="Resume")
        expect(page.locator(".track"), "has everything")
        with (tmp_path / "in.jsonl").open("a") as file:
            file.write("\n".join(given[16:]) + "\n")
        page.goto(f"{at}/#/p/shop/log")
        page.goto(f"{at}/#/p/shop")
        # In this order: before the new lines are logged, nobody is behind either.
        expect(page.locator(".node.log"), "0 to 19")
        expect(page.locator(".node", has_text="sales").last, "0 behind")
        page.goto(f"{at}/#/spark")
        expect(page.locator("section", has_text="shop/sales").locator("tbody tr"), "to 19")
        accessible(page)
        kept(page, "spark")
        run.send_signal(signal.SIGTERM)
        assert run.wait() == 0
    summary = json.loads((tmp_path / "out").read_text().splitlines()[-1])
    assert (summary["exit_code"], summary["adds_up"]) == (0, True)
    sales = [json.loads(line)["id"] for line in (tmp_path / "sales.jsonl").read_text().splitlines()]
    assert sales == [*range(POISON), *range(POISON + 1, 20)]
    assert [entry.action for entry in place.audit()] == ["ack", "resume"]


def a_broker() -> tuple[tuple[str, ...], str]:
    """How a broker is started beside others, and where it is then."""
    port = str(free_port())
    serve = (
        "broker",
        "serve",
        "--data-dir",
        "data",
        "--listen",
        f"127.0.0.1:{port}",
        "--http",
        "off",
        "--json",
    )
    return serve, f"http://127.0.0.1:{port}"


def test_a_broker_that_is_killed_is_told_and_found_again(tmp_path: Path, visit: Visit) -> None:
    place, (serve, address) = Place(tmp_path), a_broker()

    with started(*serve, cwd=tmp_path) as broker:
        said(broker, tmp_path / "out", '{"grpc"')
        with Client(address) as client:
            place.log(client, [order(number) for number in range(5)])
        with console(tmp_path, reaching=BrokerPlace(lambda: Client(address), address)) as at:
            page = visit(f"{at}/")
            expect(page.locator("#main"), "5 messages logged")
            journals = visit(f"{at}/#/journals")
            expect(journals.get_by_role("region", name="Journals"), "pipelines/shop/log")
            expect(journals.locator("#main"), "healthy")
            accessible(journals)
            suspended_and_reset(journals, at)
            with Client(address) as client:
                done = deeds(client, "pipelines/shop/log")
            assert [(one.action, one.who.endswith("(console)")) for one in done] == [
                ("suspend", True),
                ("reset-head", True),
            ]
            broker.kill()
            broker.wait()
            expect(page.locator(".note.bad"), "The journals cannot be reached")
            expect(page.locator("#main"), "5 messages logged")
            with started(*serve, cwd=tmp_path) as again:
                said(again, tmp_path / "out", '{"grpc"')
                with Client(address) as client:
                    place.log(client, [order(number) for number in range(5, 8)])
                expect(page.locator("#main"), "8 messages logged")
                page.locator(".note.bad").wait_for(state="detached")


@pytest.mark.soak
def test_a_cluster_that_loses_a_broker(tmp_path: Path, visit: Visit) -> None:
    with cluster(tmp_path / "brokers", "ab") as running:
        running.create("some/journal", replication=2)
        address = f"http://{running['a'].address}"
        etcd = Cluster(Etcd([running.etcd.uri], PREFIX))
        with console(tmp_path, reaching=BrokerPlace(lambda: Client(address), address), cluster=etcd) as at:
            page = visit(f"{at}/#/journals")
            expect(page.locator("#main"), "all journals are well")
            expect(page.locator("#main"), "leader")
            expect(page.get_by_role("region", name="Journals"), "2 of 2")
            accessible(page)
            running["b"].kill()
            expect(page.locator("#main"), "1 journal not well")
            page.get_by_role("link", name="some/journal").first.click()
            expect(page.locator("dl"), re.compile("too few brokers|a replica is silent"))


@pytest.mark.soak
def test_a_connector_with_a_stream_is_moved_to_another_worker(tmp_path: Path, visit: Visit) -> None:
    """From the page beside a run, which has nothing to do here, and so starts no Spark."""
    for name in ("broker", "here", "there", "send", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "cookie").write_text("secret\n")
    cookie = ("--cookie-file", str(tmp_path / "cookie"))
    journals = ("--journals", "tenants/a")
    (tmp_path / "send" / "lines.txt").write_text("one\ntwo\nthree\n")
    serve = ("broker", "serve", "--data-dir", "data", "--listen", "127.0.0.1:0", "--http", "off", "--json")
    with ExitStack() as running:
        broker = running.enter_context(started(*serve, cwd=tmp_path / "broker"))
        grpc = json.loads('{"grpc"' + said(broker, tmp_path / "broker" / "out", '{"grpc"'))["grpc"]
        address, workers = f"http://{grpc}", []
        for name in ("here", "there"):
            work = ("connector", "worker", "--listen", "127.0.0.1:0", "--name", name, "--json", *cookie)
            worker = running.enter_context(
                started(*work, *journals, "--broker", address, cwd=tmp_path / name)
            )
            workers.append(json.loads("{" + said(worker, tmp_path / name / "out", "{"))["listen"])
        send = (
            "connector",
            "send",
            "lines.txt",
            "--to",
            workers[0],
            "--instance",
            "web",
            "--follow",
            *cookie,
        )
        running.enter_context(started(*send, cwd=tmp_path / "send"))
        (tmp_path / "run" / "shop.py").write_text(FOLLOWING)
        (tmp_path / "run" / "in.jsonl").touch()
        beside = ("run", "shop.py", "--follow", "--console", "--console-listen", "127.0.0.1:0", *cookie)
        run = running.enter_context(started(*beside, "--broker", address, cwd=tmp_path / "run"))
        at = said(run, tmp_path / "run" / "err", "console: ").rstrip("/")
        page = visit(f"{at}/#/connectors")
        expect(page.get_by_role("region", name="Sessions of here"), "web")
        expect(page.get_by_role("region", name="Streams of here"), "lines.txt")
        accessible(page)
        kept(page, "connectors")
        streams = page.get_by_role("region", name="Streams of here")
        streams.get_by_role("button", name="Move instance web").click()
        page.get_by_role("dialog").get_by_role("button", name="Next").click()
        dialog = page.get_by_role("dialog", name=f"Move instance web to {workers[1]}")
        expect(dialog, f"goes from the worker at {workers[0]} to the one at {workers[1]}, with its 1 stream")
        expect(dialog, "1 connected program is sent there")
        same = f"penstock connector migrate web --to {workers[1]} --cookie-file FILE --journals tenants/a --broker"
        expect(dialog, same)
        dialog.get_by_role("button", name="Move", exact=True).click()
        expect(page.get_by_role("region", name="Streams of there"), "lines.txt")
        expect(page.get_by_role("region", name="Sessions of there"), "web")
        expect(page.locator("section", has_text="Who did what"), f"moves from {workers[0]} to {workers[1]}")
        accessible(page)
        with Client(address) as client:
            (deed,) = deeds(client, "tenants/a/web")
        assert (deed.action, deed.who.endswith("(console)")) == ("migrate", True)


TICKING = """\
import asyncio

from penstock.immortal import Immortal, impulse


class Ticking(Immortal):
    ticks: int = 0

    async def on_primary(self) -> None:
        while True:
            self.tick.send()
            await asyncio.sleep(0.05)

    @impulse
    def tick(self) -> None:
        self.ticks += 1
"""


@pytest.mark.soak
def test_an_immortal_is_seen_at_work(tmp_path: Path, visit: Visit) -> None:
    (tmp_path / "ticking.py").write_text(TICKING)
    with immortals.broker(tmp_path) as address:
        clock = immortals.Pair(address, tmp_path, "clock", "Ticking", apps=tmp_path / "ticking.py")
        reaching = BrokerPlace(lambda: Client(address), address)
        with immortals.running(clock), console(tmp_path, reaching=reaching) as at:
            page = visit(f"{at}/#/immortals")
            row = page.get_by_role("row", name="clock")
            expect(row, "replica 0 at 127.0.0.1:")
            expect(row.get_by_role("cell").last, re.compile(r"^[1-9]\d*(\.\d)?/s$"))
            kept(page, "immortals")
            page.get_by_role("link", name="clock").click()
            expect(page.get_by_role("region", name="Checkpoints").locator("tbody tr"))
            expect(page.locator("dl"), re.compile(r"Taken by this primary[1-9]"))
            accessible(page)


def suspended_and_reset(page: Page, at: str) -> None:
    """What can be done to a journal."""
    page.goto(f"{at}/#/journals/pipelines%2Fshop%2Flog")
    expect(page.locator("tbody"), "in the spool")
    page.get_by_role("button", name="Suspend").click()
    dialog = page.get_by_role("dialog")
    expect(dialog, "The next append brings it back by itself")
    dialog.get_by_role("button", name="Suspend").click()
    expect(dialog, "Not suspended: content is not in a store yet")
    dialog.get_by_role("button", name="Close").click()
    confirmed(page, "Reset head", "Registers come back empty", do="Reset the head")
    expect(page.locator("section", has_text="Who did what"), "the write head is")
    accessible(page)
