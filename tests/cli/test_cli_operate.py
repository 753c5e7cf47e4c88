"""`status`, `xlog` and looking at `offset`, over a data directory that the real code made."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.base.disk import Disk
from penstock.journal.client import Client
from penstock.journal.datadir import DataDir, Lock
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.control import Control, ControlEntry
from penstock.log.deadletters import Death
from penstock.log.offsets import Commit
from penstock.pipeline.progress import NodeProgress, Progress, RunFile, publish

from .operating import NOW, Shop, message, orders

READING = [
    ("status",),
    ("xlog", "oldest"),
    ("xlog", "current"),
    ("xlog", "show", "0"),
    ("offset", "list"),
    ("offset", "show", "audit"),
    ("offset", "export"),
    ("offset", "history"),
    ("dead", "list"),
    ("trace", "0"),
]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(tmp_path, monkeypatch)


@pytest.mark.parametrize("command", READING)
def test_reading_does_not_make_a_data_directory(empty: Shop, command: tuple[str, ...]) -> None:
    (empty.path / "shop.py").unlink()
    assert "no data directory at .penstock: run a pipeline first" in empty.fails(2, *command)
    assert list(empty.path.iterdir()) == []


def test_an_empty_data_directory_says_so(empty: Shop) -> None:
    with empty.client():
        pass
    for command in READING:
        assert "holds no pipeline yet" in empty.fails(2, *command)


LOADED = """
import sys
from penstock.cli import cli
cli.main(sys.argv[1:], standalone_mode=False)
heavy = {"pyspark", "pyarrow", "penstock.adaptors", "penstock.functions"}
sys.exit(" ".join(heavy & set(sys.modules)))
"""


@pytest.mark.parametrize("command", [command for command in READING if command[0] != "trace"])
def test_a_look_loads_neither_spark_nor_what_only_a_pipeline_file_needs(
    shop: Shop, command: tuple[str, ...]
) -> None:
    """A person waits for that: adaptors and functions alone would take as long as all the rest."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *command], cwd=shop.path, capture_output=True, text=True, check=False
    )
    assert (done.stderr.strip(), bool(done.stdout)) == ("", True)


def test_the_data_directory_comes_from_option_or_environment(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.data.rename(shop.path / "elsewhere")
    shop.fails(2, "xlog", "current")
    assert shop.ok("xlog", "current", "--data-dir", "elsewhere") == "4\n"
    monkeypatch.setenv("PENSTOCK_DATA_DIR", "elsewhere")
    assert shop.ok("xlog", "current") == "4\n"


def test_of_several_pipelines_one_must_be_named(shop: Shop) -> None:
    shop.log(orders(2), pipeline="mall")
    for command in READING[1:]:
        said = shop.fails(2, *command)
        assert "2 pipelines: mall, shop" in said
        assert "--pipeline mall" in said
    assert "did you mean 'shop'?" in shop.fails(2, "status", "--pipeline", "shopp")
    shop.ok("xlog", "current", "--pipeline", "shop")


def test_everything_works_through_a_broker_too(shop: Shop) -> None:
    with EmbeddedBroker(shop.data) as broker:
        for command in READING:
            assert shop.run(*command, "--broker", broker.address).exit_code == 0, command
        assert "exclude each other" in shop.fails(
            2, "status", "--broker", broker.address, "--data-dir", str(shop.data)
        )


def test_oldest_and_current(shop: Shop) -> None:
    assert shop.ok("xlog", "oldest") == "0\n"
    assert shop.ok("xlog", "current") == "4\n"
    assert shop.lines("xlog", "current") == [{"pipeline": "shop", "offset": 4}]


def test_an_empty_log_has_no_current_offset(empty: Shop) -> None:
    empty.log([])
    assert empty.ok("xlog", "current") == "-1\n"
    assert empty.ok("xlog", "oldest") == "-1\n"
    assert "holds no messages" in empty.fails(2, "xlog", "show", "0")
    assert "log empty" in empty.ok("status")


def test_show_prints_the_lines_of_the_original(shop: Shop) -> None:
    assert shop.ok("xlog", "show", "3") == (
        "offset    : 3\n"
        "timestamp : 2023-11-14T22:13:20.000003Z\n"
        "mode      : SYNC\n"
        "op        : INSERT\n"
        "ns        : orders\n"
        'value     : {"id":3,"total":30}\n'
    )


def test_a_range_includes_both_ends(shop: Shop) -> None:
    """Seed promise 19: view messages from X to Y."""
    blocks = shop.ok("xlog", "show", "1", "3").split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == [f"offset    : {n}" for n in (1, 2, 3)]
    lines = shop.lines("xlog", "show", "1", "3")
    assert [line["offset"] for line in lines] == [1, 2, 3]
    assert lines[0]["data"] == '{"id":1,"total":10}'


def test_show_can_be_narrowed_to_a_namespace(shop: Shop) -> None:
    assert [line["offset"] for line in shop.lines("xlog", "show", "0", "4", "--ns", "^items$")] == [0]


def test_messages_are_found_by_text_namespace_and_time(shop: Shop) -> None:
    def found(*words: str) -> list[int]:
        return [line["offset"] for line in shop.lines("xlog", "find", *words)]

    assert found('"ID":3') == [3]
    assert found() == [0, 1, 2, 3, 4]
    assert found("-n", "2") == [0, 1]
    assert found("--newest", "-n", "2") == [3, 4]
    assert found("id", "--from", "3") == [3, 4]
    assert found("--ns", "^items$", "--newest") == [0]
    assert found("--since", "2023-11-14T22:13:20Z") == [0, 1, 2, 3, 4]
    assert found("--since", "2030-01-01") == []
    assert found("nowhere") == []


@pytest.mark.parametrize("wanted", [("9",), ("0", "9"), ("2", "5"), ("--", "-1")])
def test_an_offset_that_is_not_there_names_the_range_there_is(shop: Shop, wanted: tuple[str, ...]) -> None:
    assert "holds 0 to 4" in shop.fails(2, "xlog", "show", *wanted)


@pytest.mark.parametrize(
    "wrong", [("x",), (), ("1", "2", "3"), ("3", "1"), ("1.5",), ("1", "2", "-f"), ("9", "-f")]
)
def test_what_is_no_range_is_refused(shop: Shop, wrong: tuple[str, ...]) -> None:
    shop.fails(2, "xlog", "show", *wrong)


def test_unknown_subcommands_are_refused(shop: Shop) -> None:
    """In the original an unknown subcommand printed nothing and ended with 0."""
    shop.fails(2, "xlog", "shw")
    shop.fails(2, "offset", "lst")


def test_data_cannot_steer_the_terminal(empty: Shop) -> None:
    empty.log([message("a\x1b[2Jb", '"\x9b\x07"')])
    empty.sink("audit", Commit())
    empty.bury("audit", Death(0, "a\x1b[2Jb", "audit", "bad \x1b]0;title\x07"))
    shown = empty.ok("xlog", "show", "0")
    assert "ns        : a\\x1b[2Jb\n" in shown
    for command in (
        ("status",),
        ("trace", "0"),
        ("dead", "list"),
        ("dead", "show", "0"),
        ("xlog", "show", "0"),
    ):
        said = empty.ok(*command)
        assert "\x1b" not in said
        assert "\x9b" not in said
        assert "\x07" not in said


def test_offset_list(shop: Shop) -> None:
    rows = [line.split() for line in shop.ok("offset", "list").splitlines()]
    assert rows == [["SINK", "OFFSET", "LAG"], ["audit", "4", "0"], ["ids", "-1", "5"]]
    assert shop.lines("offset", "list") == [
        {"sink": "audit", "offset": 4, "lag": 0, "generation": 0},
        {"sink": "ids", "offset": -1, "lag": 5, "generation": 0},
    ]


def test_offset_show_is_sorted(shop: Shop) -> None:
    rows = [line.split() for line in shop.ok("offset", "show", "audit").splitlines()]
    assert rows == [["NAMESPACE", "OFFSET"], ["items", "0"], ["orders", "4"]]
    assert shop.lines("offset", "show", "audit")[0] == {"sink": "audit", "namespace": "items", "offset": 0}


def test_offset_show_of_an_unknown_sink(shop: Shop) -> None:
    """In the original, asking for an unknown sink made its directory."""
    assert "there is no sink 'adit'; did you mean 'audit'?" in shop.fails(2, "offset", "show", "adit")
    assert len(shop.lines("offset", "list")) == 2


def test_status_tells_log_and_sinks(shop: Shop) -> None:
    shown = shop.ok("status")
    assert re.search(r"^shop  not running  log 0 to 4, \d+ B$", shown, re.MULTILINE)
    assert "orders sync @4" in shown
    [ids] = [line.split() for line in shown.splitlines() if line.startswith("ids")]
    assert ids[:2] == ["ids", "-1"]
    assert ids[5] == "5"
    assert ids[-1] == "behind"


def test_status_for_programs(shop: Shop) -> None:
    shop.log([], pipeline="mall")
    mall, found = shop.lines("status")
    assert mall["pipeline"] == "mall"
    assert found["next"] == 5
    audit, ids = found["sinks"]
    assert audit["namespaces"] == {"items": 0, "orders": 4}
    assert ids["pending_ts"] == NOW
    assert ids["lag_bytes"] > 0
    assert shop.lines("status", "--pipeline", "shop") == [found]


def test_status_tells_what_an_operator_should_know_about_a_sink(shop: Shop) -> None:
    shop.sink("audit", Commit(watermark=1, careful=4, acked=(3,), dead=1))
    shop.sink("ids", Commit(watermark=0, detached=True))
    shop.bury("audit", Death(0, "items", "audit", "too long"))
    shop.ok("pause", "audit")
    shown = shop.ok("status")
    assert "audit: messages 1 to 3 go one at a time: a batch of them was refused" in shown
    assert "audit: will pass over 3: acknowledged by an operator" in shown
    assert "audit: 1 dead letter" in shown
    assert "ids: detached: it fell too far behind" in shown
    states = {line.split()[0]: line.split()[-1] for line in shown.splitlines() if line[:3] in ("aud", "ids")}
    assert shown.count("paused") == 1
    assert states["audit"]


def run_file(**progress: object) -> RunFile:
    told = Progress("shop", 60.0, "running", 5, **progress)  # type: ignore[arg-type]
    return RunFile("r1", os.getpid(), "here", NOW, NOW, told, http="127.0.0.1:8000")


def test_a_run_is_told_by_the_lock_not_by_what_it_left_behind(shop: Shop) -> None:
    publish(shop.data, run_file())
    with shop.client() as client:
        Control(client, "shop").append(
            ControlEntry(NOW, "run", "run-begin", None, {"run": "r1", "pid": 7, "host": "here", "http": None})
        )
    [stale] = shop.lines("status")
    assert stale["running"] is False
    assert "did not end by itself" in stale["ended"]
    with EmbeddedBroker(shop.data):
        [alive] = shop.lines("status")
        assert alive["running"] is True
        assert alive["pid"] == os.getpid()
        assert "running (pid" in shop.ok("status")
    with EmbeddedBroker(shop.data):  # somebody else's lock: not the run's
        publish(shop.data, RunFile("r1", 1, "here", NOW, NOW, Progress("shop", 1.0, "running", 5)))
        assert shop.lines("status")[0]["running"] is False


@pytest.mark.parametrize("left", [b"", b'{"run":"\xff"}', b"\x00" * 100])
def test_status_does_without_what_a_run_left_if_that_does_not_read(shop: Shop, left: bytes) -> None:
    """It is never synced, so after a power loss it may hold anything."""
    publish(shop.data, run_file())
    (shop.data / "runs" / "shop.json").write_bytes(left)
    assert shop.ok("status").startswith("shop  not running")


def test_status_says_that_what_it_shows_of_a_run_is_old(shop: Shop) -> None:
    """As when there is no room for its file."""
    from penstock.pipeline.clock import now_us

    old = "and not since then: is its disk full?"
    with EmbeddedBroker(shop.data):
        publish(shop.data, run_file())
        assert old in shop.ok("status")
        assert shop.lines("status")[0]["run"]["told_ts"] == NOW
        publish(shop.data, dataclasses.replace(run_file(), written=now_us()))
        assert old not in shop.ok("status")


def test_behind_a_broker_a_run_is_told_by_its_beat(shop: Shop) -> None:
    from penstock.pipeline.clock import now_us

    with EmbeddedBroker(shop.data) as broker, Client(broker.address) as client:
        told: dict[str, object] = {"run": "r1", "pid": 7, "host": "there"}
        control = Control(client, "shop")
        control.append(ControlEntry(now_us(), "run", "run-begin", None, told))  # type: ignore[arg-type]
        [alive] = shop.lines("status", "--broker", broker.address)
        assert (alive["running"], alive["run"]["host"]) == (True, "there")
        assert shop.lines("top", "--once", "--broker", broker.address)[0]["running"] is True
        assert "process 7 on there" in shop.fails(4, "offset", "ack", "ids", "0", "--broker", broker.address)
        control.append(ControlEntry(now_us(), "run", "run-end", None, {"run": "r1", "exit_code": 3}))
        [ended] = shop.lines("status", "--broker", broker.address)
        assert (ended["running"], ended["ended"]) == (False, "the last run ended with exit code 3")
        shop.ok("offset", "ack", "ids", "0", "--broker", broker.address)


def test_status_names_the_culprit_when_room_runs_out(shop: Shop) -> None:
    node = NodeProgress(
        "ids", "sink", "file", "away", error="no answer", lag_bytes=9, max_lag_bytes=10,
        lag_seconds=50.0, max_lag_seconds=100.0,
    )  # fmt: skip
    publish(shop.data, run_file(nodes=[node], log_limit=400, readers="the log has reached its limit"))
    with EmbeddedBroker(shop.data):
        shown = shop.ok("status")
    assert "not reading: the log has reached its limit" in shown
    assert "ids: no answer" in shown
    assert "ids: 90% of max_lag bytes used (9 B of 10 B)" in shown
    assert "ids: 50% of max_lag age used (50.0 s of 1 min 40 s)" in shown
    assert re.search(r"\d+% of log_limit used \(.*\); 'ids' holds most of it", shown)


def test_top_shows_a_run_and_ends_with_it(shop: Shop) -> None:
    assert "no pipeline is running" in shop.fails(2, "top")
    assert "'shop' is not running" in shop.fails(2, "top", "--pipeline", "shop")
    node = NodeProgress("slim", "function", "pick", "running", messages_in=7, delivered=5, dropped=2)
    publish(shop.data, run_file(nodes=[node]))
    with EmbeddedBroker(shop.data):
        row = next(line for line in shop.ok("top", "--once").splitlines() if line.startswith("slim"))
        assert row.split() == ["slim", "pick", "7", "5", "2", "0", "0", "-", "running"]
        [told] = shop.lines("top", "--once")
        assert told["progress"]["nodes"][0]["delivered"] == 5
        publish(shop.data, dataclasses.replace(run_file(nodes=[node]), exit_code=0))
        assert "no pipeline is running" in shop.fails(2, "top")


def test_a_directory_whose_run_keeps_its_journals_elsewhere_says_where_to_ask(shop: Shop) -> None:
    publish(shop.data, run_file())
    lock = Lock(DataDir(shop.data), Disk())
    try:
        assert "its journals are at a broker" in shop.fails(2, "status")
        assert shop.lines("top", "--once")[0]["pid"] == os.getpid()
    finally:
        lock.release()


@pytest.mark.parametrize("place", ["data directory", "broker"])
def test_pause_and_resume_work_while_a_pipeline_runs(shop: Shop, place: str) -> None:
    publish(shop.data, run_file())
    with EmbeddedBroker(shop.data) as broker:
        there = ("--broker", broker.address) if place == "broker" else ()
        assert "audit is paused" in shop.ok("pause", "audit", *there)
        assert shop.lines("pause", "audit", *there)[0]["changed"] is False
        assert shop.lines("status", *there)[0]["sinks"][0]["paused"] is True
        assert "audit is not paused" in shop.ok("resume", "audit", *there)
        assert shop.lines("status", *there)[0]["sinks"][0]["paused"] is False
    assert "did you mean 'audit'" in shop.fails(2, "pause", "adit")
    actions = [(entry.action, entry.sink) for entry in shop.audit()]
    assert actions == [("pause", "audit"), ("resume", "audit")]
    assert shop.audit()[0].who.endswith(f"@{socket.gethostname()}")


def test_json_of_status_is_one_object_a_line(shop: Shop) -> None:
    [line] = shop.ok("--json", "status").splitlines()
    assert json.loads(line)["sinks"][1]["sink"] == "ids"
