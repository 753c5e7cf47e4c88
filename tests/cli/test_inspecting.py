"""`plan` asks the outside systems, `release` takes away what was set up there, `about` says what to install."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.adaptors.base import Copying
from penstock.cli import render
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import CommitLog
from penstock.log.control import RUN_BEGIN, Control, ControlEntry
from penstock.log.message import Message
from penstock.log.ownership import FencedError
from penstock.pipeline.copies import WINDOW, Copies
from penstock.pipeline.progress import CopyProgress, NodeProgress, Progress
from penstock.pipeline.serving import metrics

from .conftest import Invoke

NOW = 1_750_000_000_000_000

OUTSIDE = """
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from penstock import Pipeline, adaptors as a, functions as f
from penstock.adaptors.base import Adaptor, Finding, Found, Inspection, Source
from penstock.base.errors import AwayError
from penstock.base.settings import setting


@dataclass(frozen=True)
class Outside(Adaptor):
    name: ClassVar[str] = "outside"
    description: ClassVar[str] = "for tests"
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    experimental: ClassVar[str] = "it was never run against a real server"
    slot: str = setting("a file that stands for what is set up", default="slot")
    fatal: bool = setting("whether something is missing", default=False)
    away: bool = setting("whether it answers", default=False)

    def source(self):
        return OutsideSource(self)

    def sink(self):
        sink = a.discard().sink()
        sink.inspect = self.asked
        return sink

    def asked(self, namespaces):
        if self.away:
            raise AwayError("no answer from postgres://me:hunter2@db/x", hint="wake it")
        told = "what comes" if namespaces is None else ", ".join(namespaces)
        return [Finding(f"no right to write {told}", "GRANT INSERT ON t TO me", fatal=self.fatal)]


class OutsideSource(Source):
    def __init__(self, settings):
        self.settings = settings

    def namespaces(self):
        return ["orders", "items", "left"]

    def inspect(self, accept):
        found = [Found("orders", 1200, ("id",)), Found("items", None, ("a", "b")), Found("left", 1)]
        what = Finding("wal_level is replica", "ALTER SYSTEM SET wal_level = logical", fatal=self.settings.fatal)
        return Inspection(found, [what] if accept("orders") else [])

    def read(self, accept, resume, stop):
        yield from ()

    def release(self):
        path = Path(self.settings.slot)
        if not path.exists():
            return []
        path.unlink()
        return [f"slot {self.name}"]


shop = Pipeline("shop")
"""


def pipeline(tmp_path: Path, source: str = "Outside()", sink: str = "a.discard()") -> Path:
    path = tmp_path / "shop.py"
    path.write_text(f'{OUTSIDE}shop.source("db", {source}, ns="orders|items").save("out", {sink})\n')
    return path


class TestPlan:
    def test_it_tells_rows_and_keys_and_the_statement_that_mends_what_is_missing(
        self, invoke: Invoke, tmp_path: Path
    ) -> None:
        result = invoke("plan", str(pipeline(tmp_path)))
        assert result.exit_code == 0, result.stderr
        for text in (
            "reads items, orders",
            "leaves out left",
            "orders: about 1,200 rows, key id",
            "items: key a, b",
            "warning db: wal_level is replica",
            "ALTER SYSTEM SET wal_level = logical",
            "adaptor 'outside' is experimental",
        ):
            assert text in result.stdout, text

    @pytest.mark.parametrize(
        ("source", "sink"),
        [("Outside(fatal=True)", "a.discard()"), ("a.generate()", "Outside(fatal=True)")],
    )
    def test_what_keeps_a_run_from_working_ends_it_with_2(
        self, invoke: Invoke, tmp_path: Path, source: str, sink: str
    ) -> None:
        result = invoke("plan", str(pipeline(tmp_path, source, sink)))
        assert result.exit_code == 2
        assert "it cannot run" in result.stderr
        assert "missing " in result.stdout

    def test_a_sink_that_does_not_answer_is_told_without_its_password(
        self, invoke: Invoke, tmp_path: Path
    ) -> None:
        result = invoke("plan", str(pipeline(tmp_path, sink="Outside(away=True)")))
        assert result.exit_code == 2
        assert "no answer from" in result.stderr
        assert "hunter2" not in result.stdout + result.stderr

    @pytest.mark.parametrize(
        ("through", "told"),
        [
            ("", "items, orders"),
            ('.transform("r", f.remap(ns_map={"orders": "bought"}))', "bought, items"),
            ('.transform("p", lambda df: df)', "what comes"),
        ],
    )
    def test_a_sink_is_told_by_which_names_the_namespaces_come(
        self, invoke: Invoke, tmp_path: Path, through: str, told: str
    ) -> None:
        path = tmp_path / "shop.py"
        source = 'shop.source("db", Outside(), ns="orders|items")'
        path.write_text(f'{OUTSIDE}{source}{through}.save("out", Outside())\n')
        result = invoke("plan", str(path))
        assert f"no right to write {told}\n" in result.stdout, result.stdout + result.stderr

    def test_a_sink_is_told_nothing_where_the_source_cannot_be_asked(
        self, invoke: Invoke, tmp_path: Path
    ) -> None:
        source = 'a.sqlite(uri="sqlite://nowhere.db")'
        result = invoke("plan", str(pipeline(tmp_path, source, "Outside()")))
        assert "no right to write what comes" in result.stdout

    def test_json_has_all_of_it(self, invoke: Invoke, tmp_path: Path) -> None:
        told = json.loads(invoke("plan", str(pipeline(tmp_path)), "--json").stdout)
        assert told["source"]["found"] == [
            {"ns": "items", "rows": None, "key": ["a", "b"]},
            {"ns": "orders", "rows": 1200, "key": ["id"]},
        ]
        (finding,) = told["findings"]
        assert finding == {
            "node": "db",
            "what": "wal_level is replica",
            "fix": "ALTER SYSTEM SET wal_level = logical",
            "fatal": False,
        }

    def test_offline_asks_nobody(self, invoke: Invoke, tmp_path: Path) -> None:
        result = invoke("plan", str(pipeline(tmp_path, sink="Outside(away=True)")), "--offline")
        assert result.exit_code == 0, result.stderr

    def test_where_a_large_copy_is_read_by_the_runner_it_says_so(
        self, invoke: Invoke, tmp_path: Path
    ) -> None:
        result = invoke("plan", str(pipeline(tmp_path)), "--master", "spark://10.0.0.5:7077")
        assert "large copies are read by the runner itself" in " ".join(result.stdout.split())

    def test_sqlite_tells_rows_and_keys(self, invoke: Invoke, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
            database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, v)")
            database.executemany("INSERT INTO orders VALUES (?, 1)", [(i,) for i in range(1500)])
        result = invoke("plan", str(pipeline(tmp_path, 'a.sqlite(uri="sqlite://shop.db")')))
        assert "orders: about 1,500 rows, key id" in result.stdout


class TestRelease:
    def test_it_says_what_was_removed_and_may_be_repeated(self, invoke: Invoke, tmp_path: Path) -> None:
        (tmp_path / "slot").touch()
        path = str(pipeline(tmp_path))
        with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
            CommitLog(client, "shop", tmp_path / "index", 1 << 20, NOW)
        result = invoke("release", path, "--yes", "--data-dir", "data")
        assert result.exit_code == 0, result.stderr
        assert result.stdout == "Removed slot shop.db.\n"
        assert (
            invoke("release", path, "--yes", "--data-dir", "data").stdout == "There was nothing to remove.\n"
        )
        with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
            actions = [entry.action for entry in Control(client, "shop").entries()]
        assert actions == ["release", "release"]

    def test_a_run_that_only_looks_dead_logs_nothing_behind_the_gap(
        self, invoke: Invoke, tmp_path: Path
    ) -> None:
        """One on another machine that does not beat any more. It would set up a new slot and go on without a word."""
        (tmp_path / "slot").touch()
        path = str(pipeline(tmp_path))
        with EmbeddedBroker(tmp_path / "data") as broker, Client(broker.address) as client:
            running = CommitLog(client, "shop", tmp_path / "index", 1 << 20, NOW)
            Control(client, "shop").append(ControlEntry(NOW, "penstock run", RUN_BEGIN, None, {"run": "r"}))
            result = invoke("release", path, "--yes", "--broker", broker.address)
            assert (result.exit_code, result.stdout) == (0, "Removed slot shop.db.\n"), result.stderr
            with pytest.raises(FencedError):
                running.append([Message("t", b"{}")], {"t": {"n": 1}}, [], NOW)

    def test_it_is_refused_while_the_pipeline_runs(self, invoke: Invoke, tmp_path: Path) -> None:
        (tmp_path / "slot").touch()
        path = str(pipeline(tmp_path))
        with EmbeddedBroker(tmp_path / "data"):
            assert invoke("release", path, "--yes", "--data-dir", "data").exit_code == 4
        assert (tmp_path / "slot").exists()


def test_about_says_what_has_to_be_installed(invoke: Invoke) -> None:
    told = json.loads(invoke("about", "postgres", "--json").stdout)
    assert told["extra"] == "postgres"
    assert "pip install 'penstock[postgres]'" in invoke("about", "postgres").stdout


class TestCopies:
    def test_rate_and_time_left_come_from_what_the_source_said_before(self) -> None:
        copies = Copies()
        assert copies.told([Copying("t", 0, 1000)], 0.0) == [CopyProgress("t", 0, 1000, 0.0, None)]
        (copy,) = copies.told([Copying("t", 200, 1000)], 10.0)
        assert (copy.rate, copy.left) == (20.0, 40.0)
        (copy,) = copies.told([Copying("t", 200, 1000)], 10.0 + WINDOW + 1)
        assert (copy.rate, copy.left) == (0.0, None)

    def test_they_are_in_the_picture_and_on_the_page_of_metrics(self) -> None:
        copy = CopyProgress("public.orders", 250, 1000, 25.0, 30.0)
        node = NodeProgress(
            "db", "source", "postgres", "running", gauges={"held_back_bytes": 4096.0}, copies=[copy]
        )
        progress = Progress("shop", 1.0, "running", 250, [node])
        assert (
            str(render.copy_line(copy))
            == "copying public.orders  250 of about 1,000 rows (25%), 25/s, 30.0 s left"
        )
        assert "held back bytes 4.0 KiB" in str(render.gauge_line(node))
        page = metrics(progress).decode()
        assert 'penstock_source_held_back_bytes{adaptor="postgres",node="db",pipeline="shop"} 4096.0' in page
        assert 'penstock_copy_rows{node="db",ns="public.orders",pipeline="shop"} 250.0' in page
        assert 'penstock_copy_rows_expected{node="db",ns="public.orders",pipeline="shop"} 1000.0' in page
