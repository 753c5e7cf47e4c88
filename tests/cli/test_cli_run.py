"""`run`: what the runner is asked for, and what a person or a program is told."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sqlite3
from pathlib import Path

import pytest
from rich.console import Console

from penstock.base.errors import InUseError, PenstockError
from penstock.cli import render
from penstock.cli.run import remarks, throttled, what_next, without_room
from penstock.pipeline.progress import NodeProgress, Progress, SinkSummary, Summary
from penstock.spark.reach import Reach

from .conftest import FakeRunner, Invoke


def printed(renderable: object, *, width: int = 100) -> str:
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_the_runner_gets_what_was_asked_for(invoke: Invoke, runner: FakeRunner, shop_file: Path) -> None:
    result = invoke(
        "run", "shop.py", "--follow", "--master", "local[2]", "--cores", "2", "--data-dir", "d", "--strict",
        "--conf", "spark.driver.memory=2g", "--scratch", "s", "--http", "off",
    )  # fmt: skip
    assert result.exit_code == 0
    assert runner.calls == [
        {
            "pipeline": "shop",
            "data_dir": Path("d"),
            "once": False,
            "strict": True,
            "broker": None,
            "master": "local[2]",
            "cores": 2,
            "settings": {"spark.driver.memory": "2g"},
            "scratch": Path("s"),
            "http": None,
        }
    ]


def test_a_broker_elsewhere_goes_with_a_directory_of_its_own(
    invoke: Invoke, runner: FakeRunner, shop_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_AUTH_KEYS", "as it was")
    invoke(
        "run", "shop.py", "--broker", "http://h:1", "--data-dir", "d", "--auth-keys", "c2VjcmV0LXNlY3JldC1z"
    )
    (call,) = runner.calls
    assert (call["broker"], call["data_dir"]) == (Reach("http://h:1"), Path("d"))
    assert os.environ["PENSTOCK_AUTH_KEYS"] == "c2VjcmV0LXNlY3JldC1z", "where Spark's processes look for it"


@pytest.mark.parametrize("given", ["driver.memory=2g", "spark.driver.memory"])
def test_a_setting_that_is_not_sparks_is_refused(invoke: Invoke, shop_file: Path, given: str) -> None:
    result = invoke("run", "shop.py", "--conf", given)
    assert (result.exit_code, "expected spark.SOMETHING=VALUE" in result.stderr) == (2, True)


def test_a_master_elsewhere_without_a_broker_is_refused(invoke: Invoke, shop_file: Path) -> None:
    result = invoke("run", "shop.py", "--master", "spark://10.0.0.5:7077")
    assert (result.exit_code, "--broker" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("tail", "flags", "once"),
    [
        (False, [], True),
        (True, [], False),
        (True, ["--once"], True),
        (False, ["--follow"], False),
    ],
)
def test_without_flags_the_source_decides_whether_to_follow(
    invoke: Invoke, runner: FakeRunner, shop_file: Path, tail: bool, flags: list[str], once: bool
) -> None:
    shop_file.write_text(
        "from dataclasses import dataclass\n"
        "from penstock import Pipeline, adaptors as a\n"
        "from penstock.adaptors.base import Adaptor\n"
        "@dataclass(frozen=True)\n"
        "class Ticks(Adaptor):\n"
        "    name, description, reads = 'ticks', 'for tests', True\n"
        "    tail: bool = False\n"
        "shop = Pipeline('shop')\n"
        f"shop.source('ticks', Ticks(tail={tail})).save('out', a.discard())\n"
    )
    assert invoke("run", "shop.py", *flags).exit_code == 0
    assert runner.calls[0]["once"] is once


def test_once_and_follow_exclude_each_other(invoke: Invoke, runner: FakeRunner, shop_file: Path) -> None:
    result = invoke("run", "shop.py", "--once", "--follow")
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr
    assert runner.calls == []


def test_a_cookie_is_for_the_console(invoke: Invoke, runner: FakeRunner, shop_file: Path) -> None:
    shop_file.with_name("cookie").write_text("secret")
    result = invoke("run", "shop.py", "--cookie-file", "cookie")
    assert (result.exit_code, "give --console as well" in result.stderr) == (2, True)
    assert runner.calls == []


def test_the_console_of_a_run_is_for_those_on_the_machine(
    invoke: Invoke, runner: FakeRunner, shop_file: Path
) -> None:
    result = invoke("run", "shop.py", "--console", "--console-listen", "0.0.0.0:0")
    assert (result.exit_code, "start `penstock console` beside the run" in result.stderr) == (2, True)
    assert runner.calls == []


def test_away_from_a_terminal_progress_is_lines_of_json(
    invoke: Invoke, runner: FakeRunner, shop_file: Path
) -> None:
    first, *more, last = (json.loads(line) for line in invoke("run", "shop.py", "--once").stdout.splitlines())
    assert (first["event"], first["phase"]) == ("progress", "opening")
    assert [line["phase"] for line in more] == ["starting spark", "running"]
    assert first["nodes"][0]["delivered"] == 7
    assert (last["event"], last["read"], last["adds_up"]) == ("summary", 10, True)
    assert last["sinks"][0]["sink"] == "audit"


def test_the_exit_code_is_the_runs(invoke: Invoke, runner: FakeRunner, shop_file: Path) -> None:
    runner.summary = dataclasses.replace(
        runner.summary, exit_code=3, message="sink 'audit' stopped at offset 4"
    )
    assert invoke("run", "shop.py").exit_code == 3
    runner.error = InUseError("the data directory belongs to process 7", hint="stop it")
    result = invoke("run", "shop.py")
    assert result.exit_code == 4
    assert "Error: the data directory belongs to process 7\nHint: stop it\n" in result.stderr


def test_a_run_that_ends_by_an_error_still_gives_its_account(
    invoke: Invoke, runner: FakeRunner, shop_file: Path
) -> None:
    runner.account = dataclasses.replace(runner.summary, exit_code=1, message="Spark's process has gone")
    runner.error = PenstockError("Spark's process has gone", hint="run it again")
    result = invoke("run", "shop.py", "--once")
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["event"], last["exit_code"], last["sinks"][0]["delivered"]) == ("summary", 1, 7)
    assert (result.exit_code, result.stderr) == (1, "Error: Spark's process has gone\nHint: run it again\n")


def test_a_pipeline_of_several_is_named_after_a_colon(
    invoke: Invoke, runner: FakeRunner, shop_file: Path
) -> None:
    assert invoke("run", "shop.py:shop").exit_code == 0
    result = invoke("run", "shop.py:shp")
    assert result.exit_code == 2
    assert "did you mean 'shop'?" in result.stderr


def test_an_error_in_the_file_starts_nothing(invoke: Invoke, runner: FakeRunner, shop_file: Path) -> None:
    shop_file.write_text("import os\nos.gone\n")
    result = invoke("run", "shop.py")
    assert result.exit_code == 2
    assert "shop.py, line 2: AttributeError" in result.stderr
    assert "Traceback" not in result.stderr
    assert runner.calls == []


def test_reports_are_passed_on_once_a_second() -> None:
    passed: list[Progress] = []
    times = iter([0.0, 0.2, 0.99, 1.0, 1.5, 2.6])
    report = throttled(passed.append, clock=lambda: next(times))
    for number in range(6):
        report(Progress("shop", number, "running", number))
    assert [progress.log_next for progress in passed] == [0, 3, 5]


def test_a_report_that_finds_no_room_is_told_once_and_ends_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """A service prints into a file, and the disk is full for a while."""
    room = iter([False, False, True, False, True])
    passed: list[Progress] = []

    def written(progress: Progress) -> None:
        if not next(room):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        passed.append(progress)

    report = without_room(written)
    for number in range(5):
        report(Progress("shop", number, "running", number))
    assert [progress.log_next for progress in passed] == [2, 4]
    assert (
        caplog.messages == ["how it goes cannot be printed, and the run goes on: No space left on device"] * 2
    )


def test_who_reads_reports_and_goes_away_ends_the_run() -> None:
    def gone(_: Progress) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    with pytest.raises(BrokenPipeError):
        without_room(gone)(Progress("shop", 0.0, "running", 0))


def test_a_run_that_prints_into_a_full_disk_goes_on(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def emit(value: dict[str, object]) -> None:
        if value["event"] == "progress":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("penstock.cli.run.emit", emit)
    (tmp_path / "none.yaml").write_text(
        "pipeline: none\nsource: {name: s, adaptor: generate, settings: {count: 0}, "
        "then: [{save: t, adaptor: discard}]}\n"
    )
    assert invoke("run", str(tmp_path / "none.yaml"), "--data-dir", str(tmp_path / "data")).exit_code == 0


def test_a_new_phase_is_passed_on_at_once() -> None:
    """Who asks a run to stop sees that it was heard, though the batches under way take their time."""
    passed: list[Progress] = []
    report = throttled(passed.append, clock=lambda: 0.0)
    for phase in ("opening", "running", "running", "stopping", "stopping"):
        report(Progress("shop", 0.0, phase, 0))
    assert [progress.phase for progress in passed] == ["opening", "running", "stopping"]


def test_the_live_table_has_a_row_a_node_and_tells_errors() -> None:
    nodes = [
        NodeProgress("db", "source", "sqlite", "done", messages_in=1234, rate=99.6),
        NodeProgress(
            "audit", "sink", "file", "running", messages_in=1000, delivered=900, dropped=100, lag=234
        ),
        NodeProgress("[bold]x", "sink", "file", "restarting", error="disk\x1b[31m full"),
    ]
    text = printed(render.progress(Progress("shop", 75.0, "running", 1234, nodes)))
    assert "shop  running  1 min 15 s  log 1,234" in text
    [db] = [line.split() for line in text.splitlines() if line.startswith("db")]
    assert db == ["db", "sqlite", "1,234", "-", "-", "-", "100", "-", "done"]
    [audit] = [line.split() for line in text.splitlines() if line.startswith("audit")]
    assert audit == ["audit", "file", "1,000", "900", "100", "0", "0", "234", "running"]
    assert "[bold]x: disk\\x1b[31m full" in text


def test_the_live_table_fits_a_small_terminal() -> None:
    node = NodeProgress(
        "audit", "sink", "file", "running", messages_in=10**9, delivered=10**9, rate=1e6, lag=10**6
    )
    text = printed(render.progress(Progress("shop", 1.0, "running", 10**9, [node])), width=80)
    assert "1,000,000,000" in text
    assert max(map(len, text.splitlines())) <= 80


def test_where_there_is_no_room_a_table_tells_in_lines_what_it_can_spare() -> None:
    sink = SinkSummary("big-orders", 10, 7, 2, 1, 0, 7, "file://a/long/path.jsonl")
    ended = Summary("shop", 1.0, 10, 10, [sink], adds_up=True, exit_code=0)
    narrow = printed(render.summary(ended), width=60).splitlines()
    assert narrow[1].endswith("+ pending")
    assert narrow[2].split() == ["big-orders", "10", "7", "2", "1", "0"]
    assert narrow[3] == "big-orders: rows 7, target file://a/long/path.jsonl"
    wide = printed(render.summary(ended)).splitlines()
    assert wide[2].split() == ["big-orders", "10", "7", "2", "1", "0", "7", "file://a/long/path.jsonl"]
    assert len(wide) == 3


def test_the_summary_shows_counts_that_add_up_and_what_to_try_next(runner: FakeRunner) -> None:
    text = printed(render.summary(runner.summary, what_next(runner.summary, Path(".penstock"))))
    [audit] = [line.split() for line in text.splitlines() if line.startswith("audit")]
    assert audit == ["audit", "10", "7", "2", "1", "0", "7", "file://audit.jsonl"]
    assert "done" in text
    assert "penstock xlog show 7 9" in text
    assert runner.summary.sinks[0].adds_up


def test_a_summary_that_does_not_add_up_says_so(runner: FakeRunner) -> None:
    lost = SinkSummary("audit", 10, 7, 2, 0, 0, 7, "file://audit.jsonl", error="stopped at offset 9")
    wrong = dataclasses.replace(
        runner.summary, sinks=[lost], adds_up=False, exit_code=1, message="sink failed"
    )
    text = printed(render.summary(wrong))
    assert not lost.adds_up
    assert "do not add up" in text
    assert "audit: stopped at offset 9" in text
    assert "sink failed" in text
    assert "stopped" in text.splitlines()[0]


def test_what_to_try_next_names_the_data_directory() -> None:
    summary = FakeRunner().summary
    commands = [step.command for step in what_next(summary, Path("a b"))]
    assert commands[:2] == ["penstock status --data-dir 'a b'", "penstock xlog show 7 9 --data-dir 'a b'"]
    empty = dataclasses.replace(summary, log_next=0)
    assert not any("xlog" in step.command for step in what_next(empty, Path(".penstock")))
    assert what_next(dataclasses.replace(summary, exit_code=3), Path(".penstock")) == []
    assert what_next(dataclasses.replace(summary, log_next=summary.read + 1), Path(".penstock")) == []


def test_a_run_that_did_nothing_says_where_to_look() -> None:
    summary = FakeRunner().summary
    assert remarks(summary) == []
    (nothing,) = remarks(dataclasses.replace(summary, log_next=0, read=0))
    assert "The source gave nothing" in nothing
    dropped = SinkSummary("audit", 10, 0, 10, 0, 0, 0, "file://audit.jsonl")
    (remark,) = remarks(dataclasses.replace(summary, sinks=[dropped]))
    assert "audit: everything was dropped" in remark
    assert "`penstock trace` what functions make of a message" in remark
    assert remarks(dataclasses.replace(summary, sinks=[dropped], exit_code=1)) == []


def test_plan_asks_a_real_database(invoke: Invoke, shop_file: Path, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        for table in ("orders", "items", "order_items", "staff"):
            database.execute(f"create table {table} (id integer primary key)")
    database.close()
    result = invoke("plan", "shop.py")
    assert result.exit_code == 0, result.stderr
    assert "reads items, order_items, orders" in result.stdout
    assert "leaves out staff" in result.stdout
    assert "matches more than it seems: order_items" in result.stdout
    plan = json.loads(invoke("plan", "shop.py", "--json").stdout)
    assert plan["sinks"][1]["namespaces"] == ["orders"]
