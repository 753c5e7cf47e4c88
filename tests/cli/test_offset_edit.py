"""Editing offsets: `offset mark | ack | delete | export | import | history`, and `backfill`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import CommitLog
from penstock.log.compaction import compact
from penstock.log.control import Control, ControlEntry, Detail
from penstock.log.message import Message, MessageOffset
from penstock.log.offsets import Commit, OffsetLog
from penstock.pipeline.clock import now_us
from penstock.pipeline.progress import NodeProgress, Progress, RunFile, publish

from .operating import NOW, Shop, orders

EDITS = [
    ("offset", "mark", "audit", "1", "--yes"),
    ("offset", "ack", "ids", "0"),
    ("offset", "delete", "ids", "--yes"),
    ("offset", "import", "offsets.json", "--yes"),
    ("backfill", "orders", "--yes"),
    ("step", "shop.py", "ids"),
    ("dead", "drop", "0", "--yes"),
    ("dead", "replay", "shop.py", "0"),
]


@pytest.mark.parametrize("place", ["data directory", "broker"])
def test_edits_are_refused_while_the_pipeline_runs(shop: Shop, place: str) -> None:
    (shop.path / "offsets.json").write_text(shop.ok("offset", "export"))
    before = shop.lines("offset", "list")
    publish(shop.data, RunFile("r", os.getpid(), "here", NOW, NOW, Progress("shop", 1.0, "running", 5)))
    with EmbeddedBroker(shop.data) as broker, Client(broker.address) as client:
        told: Detail = {"run": "r", "pid": os.getpid(), "host": "here"}
        Control(client, "shop").append(ControlEntry(now_us(), "run", "run-begin", None, told))
        there = ("--broker", broker.address) if place == "broker" else ()
        for command in EDITS:
            said = shop.fails(4, *command, *there)
            assert f"pipeline 'shop' is running (process {os.getpid()}" in said
            assert "stop it" in said
        assert shop.lines("offset", "list", *there) == before


@pytest.mark.parametrize("state", ["stopped", "paused"])
def test_a_sink_that_stands_still_is_led_past_messages_while_the_pipeline_runs(
    shop: Shop, state: str
) -> None:
    nodes = [NodeProgress("ids", "sink", "file", state), NodeProgress("audit", "sink", "file", "running")]
    publish(
        shop.data, RunFile("r", os.getpid(), "here", NOW, NOW, Progress("shop", 1.0, "running", 5, nodes))
    )
    with EmbeddedBroker(shop.data):
        assert shop.ok("offset", "ack", "ids", "0", "1") == "ids: offset -1 -> 1\n"
        assert "message 2 of 'orders' delivered" in shop.ok("step", "shop.py", "ids")
        assert "is running" in shop.fails(4, "offset", "ack", "audit", "4")
        assert "`step` and `offset ack` on a sink" in shop.fails(4, "offset", "mark", "ids", "0", "--yes")
        went_on = shop.lines("resume", "ids")
        assert went_on[0]["changed"] is (state == "stopped")
    assert shop.offset("ids") == 2
    assert [entry.action for entry in shop.audit()] == ["ack", "step", *["resume"] * (state == "stopped")]


def test_a_sink_that_stands_still_is_led_past_messages_through_a_broker(shop: Shop) -> None:
    """Where the run's file is not to be seen, its beat tells."""
    run: Detail = {"run": "r", "pid": 7, "host": "elsewhere"}
    standing: Detail = {"standing": {"ids": {"state": "stopped", "error": "ids: it says no"}}}
    with EmbeddedBroker(shop.data) as broker, Client(broker.address) as client:
        there = ("--broker", broker.address)
        for action, detail in (("run-begin", run), ("run-beat", {**run, **standing})):
            Control(client, "shop").append(ControlEntry(now_us(), "run", action, None, detail))
        sinks = {one["sink"]: one for one in shop.lines("status", *there)[0]["sinks"]}
        assert (sinks["ids"]["state"], sinks["ids"]["error"]) == ("stopped", "ids: it says no")
        assert sinks["audit"]["state"] is None
        assert shop.ok("offset", "ack", "ids", "0", "1", *there) == "ids: offset -1 -> 1\n"
        assert "message 2 of 'orders' delivered" in shop.ok("step", "shop.py", "ids", *there)
        assert "is running" in shop.fails(4, "offset", "ack", "audit", "4", *there)
        assert shop.lines("resume", "ids", *there)[0]["changed"] is True
    assert shop.offset("ids") == 2


def test_mark_back_opens_a_generation_and_clamps_namespaces(shop: Shop) -> None:
    shop.sink("audit", Commit(watermark=5, delivered=4, dropped=1, careful=9), {"items": 0, "orders": 4})
    assert shop.ok("offset", "mark", "audit", "2", "--yes") == "audit: offset 4 -> 2, generation 1\n"
    held = shop.held("audit")
    assert held.commit == Commit(watermark=3, generation=1)
    assert held.namespaces == {"items": 0, "orders": 2}


def test_mark_minus_one_means_everything_again(shop: Shop) -> None:
    done = json.loads(shop.ok("offset", "mark", "--yes", "--json", "audit", "--", "-1"))
    assert (done["before"], done["after"], done["again"], done["gone"]) == (4, -1, 5, 0)
    held = shop.held("audit")
    assert (held.commit.watermark, held.namespaces) == (0, {})


def test_mark_forward_acknowledges_without_sending(shop: Shop) -> None:
    """Seed promise 20; the original could only rewind."""
    shop.sink("ids", Commit(acked=(1, 4)))
    said = shop.run("offset", "mark", "ids", "2", input="y\n")
    assert "2 messages will count as acknowledged without being sent to ids." in said.stderr
    held = shop.held("ids")
    assert held.commit == Commit(watermark=3, generation=0, dropped=3, acked=(4,), published=0)
    assert held.namespaces == {"items": 0, "orders": 2}
    shop.ok("offset", "mark", "ids", "3", "--yes")
    assert shop.held("ids").commit.watermark == 5  # 4 was acknowledged before its turn came


def test_mark_asks_and_takes_no_for_an_answer(shop: Shop) -> None:
    no = shop.run("offset", "mark", "audit", "2", input="n\n")
    assert no.exit_code == 1
    assert "2 messages will be sent to audit again. Do it? [y/N]" in no.stderr
    assert "Nothing was changed." in no.stderr
    assert "--yes does not ask" in shop.fails(2, "offset", "mark", "audit", "2")
    assert shop.offset("audit") == 4
    assert shop.audit() == []


@pytest.mark.parametrize(
    ("offset", "words"), [("5", "the last message of the log is 4"), ("-2", "out of range")]
)
def test_mark_refuses_what_the_log_does_not_have(shop: Shop, offset: str, words: str) -> None:
    assert words in shop.fails(2, "offset", "mark", "--yes", "audit", "--", offset)
    assert shop.audit() == []


def test_mark_where_it_is_changes_nothing(shop: Shop) -> None:
    assert shop.ok("offset", "mark", "audit", "4") == "audit is at 4 already.\n"
    assert shop.held("audit").commit.generation == 0
    assert shop.audit() == []


def test_mark_ends_detachment_and_says_what_is_missing(shop: Shop) -> None:
    shop.sink("ids", Commit(watermark=2, detached=True))
    assert "penstock backfill" in shop.ok("offset", "mark", "ids", "1", "--yes")
    assert shop.held("ids").commit.detached is False


def test_mark_back_tells_what_compaction_has_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, monkeypatch)
    with shop.client() as client:
        log = CommitLog(client, "shop", shop.data / "index", 1 << 16, NOW)
        log.append(orders(20), {}, (), NOW)
        client.roll(log.journal)
        log.append(orders(5), {}, (), NOW)
        OffsetLog(client, "shop", "audit", NOW).commit(Commit(watermark=25), {"orders": 24}, NOW)
        done = compact(log, MessageOffset(25), keep_bytes=None, keep_seconds=None, now=NOW)
        assert done.removed == 19
        log.close()
    assert shop.ok("xlog", "oldest") == "19\n"
    assert [line["offset"] for line in shop.lines("xlog", "show", "19", "21")] == [19, 20, 21]
    asked = shop.run("offset", "mark", "audit", "9", input="y\n")
    assert "6 messages will be sent to audit again." in asked.stderr
    assert "9 messages before them cannot be: compaction has removed them." in asked.stderr
    assert shop.offset("audit") == 9
    [found] = shop.lines("status")
    assert (found["oldest"], found["first"], found["sinks"][0]["lag"]) == (19, 20, 15)
    traced = shop.lines("trace", "12")[0]
    assert traced["entry"] is None


def test_ack_of_the_next_message_moves_the_offset_and_later_ones_wait(shop: Shop) -> None:
    assert shop.ok("offset", "ack", "ids", "2", "0") == "ids: offset -1 -> 0; waiting for their turn: 2\n"
    held = shop.held("ids")
    assert held.commit == Commit(watermark=1, dropped=1, acked=(2,), published=0)
    assert held.namespaces == {"items": 0}
    assert "acknowledged ahead of their turn: 2" in shop.ok("offset", "show", "ids")
    [done] = shop.lines("offset", "ack", "ids", "1")
    assert done == {"sink": "ids", "before": 0, "after": 2, "ahead": []}
    assert shop.held("ids").commit.dropped == 3


def test_ack_keeps_a_sink_detached(shop: Shop) -> None:
    shop.sink("ids", Commit(detached=True))
    shop.ok("offset", "ack", "ids", "0")
    assert shop.held("ids").commit.detached is True


@pytest.mark.parametrize(
    ("sink", "offset", "words"),
    [
        ("audit", "4", "acknowledged already: the sink's offset is 4"),
        ("ids", "5", "not in the log, which ends with 4"),
        ("idz", "0", "did you mean 'ids'?"),
    ],
)
def test_ack_refuses_what_makes_no_sense(shop: Shop, sink: str, offset: str, words: str) -> None:
    assert words in shop.fails(2, "offset", "ack", sink, "0" if sink == "ids" else offset, offset)
    assert shop.offset("ids") == -1
    assert shop.audit() == []


def test_delete_forgets_a_sink_after_asking(shop: Shop) -> None:
    """Seed: a sink that never acknowledged holds everything back; a removed one can be forgotten."""
    assert shop.run("offset", "delete", "ids", input="n\n").exit_code == 1
    assert len(shop.lines("offset", "list")) == 2
    assert "ids is forgotten" in shop.ok("offset", "delete", "ids", "--yes")
    assert [line["sink"] for line in shop.lines("offset", "list")] == ["audit"]
    assert "there is no sink 'ids'" in shop.fails(2, "offset", "delete", "ids", "--yes")
    assert shop.lines("status")[0]["holder"] is None


def test_export_and_import_restore_every_sink(shop: Shop) -> None:
    shop.sink("ids", Commit(watermark=2, careful=4, acked=(3,)), {"orders": 1})
    shop.ok("offset", "export", "offsets.json")
    shop.ok("offset", "mark", "--yes", "audit", "--", "-1")
    shop.ok("offset", "delete", "ids", "--yes")
    audit, ids = shop.lines("offset", "import", "offsets.json", "--yes")
    assert (audit["before"], audit["after"], audit["generation"]) == (-1, 4, 2)
    assert (ids["before"], ids["after"]) == (-1, 1)
    held = shop.held("ids")
    assert (held.commit.watermark, held.commit.careful, held.commit.acked) == (2, 4, (3,))
    assert (held.namespaces, shop.held("audit").namespaces) == ({"orders": 1}, {"items": 0, "orders": 4})
    generation = held.commit.generation
    shop.ok("offset", "import", "offsets.json", "--yes")
    assert shop.held("ids").commit.generation == generation  # nothing to restore, nothing changed


BAD_IMPORTS: list[tuple[dict[str, object], str]] = [
    ({"sinks": [{"sink": "ids", "offset": 5}]}, "offset 5 is beyond the log, which ends with 4"),
    ({"sinks": [{"sink": "ids", "offset": 1, "namespaces": {"orders": 3}}]}, "namespace 'orders' at 3"),
    (
        {"sinks": [{"sink": "ids", "offset": 1, "generation": 1 << 63}]},
        "9223372036854775808 is no generation",
    ),
    ({"sinks": [{"sink": "ids", "offset": 1, "acked": [1]}]}, "cannot be acknowledged ahead"),
    ({"sinks": [{"sink": "a", "offset": 1}, {"sink": "a", "offset": 1}]}, "names sink 'a' twice"),
    ({"log": "f" * 32}, "offsets of another log"),
    ({"pipeline": "mall"}, "there is no pipeline 'mall'"),
    ({"format": 2}, "has format 2"),
    ({"sinkz": []}, "is not an export of offsets"),
]


def test_import_checks_everything_before_it_changes_anything(shop: Shop) -> None:
    export = json.loads(shop.ok("offset", "export"))
    before = shop.lines("offset", "list")
    for change, words in BAD_IMPORTS:
        (shop.path / "offsets.json").write_text(json.dumps({**export, **change}))
        assert words in shop.fails(2, "offset", "import", "offsets.json", "--yes")
    assert shop.lines("offset", "list") == before


def test_import_of_what_is_no_export(shop: Shop) -> None:
    assert "cannot read none.json" in shop.fails(2, "offset", "import", "none.json", "--yes")
    (shop.path / "x.json").write_text("{")
    assert "is not an export of offsets" in shop.fails(2, "offset", "import", "x.json", "--yes")
    (shop.path / "x.json").write_bytes(b'{"pipeline":"\xff"}')
    assert "is not an export of offsets" in shop.fails(2, "offset", "import", "x.json", "--yes")


def test_every_edit_is_on_record(shop: Shop) -> None:
    shop.ok("offset", "ack", "ids", "0")
    shop.ok("offset", "mark", "ids", "2", "--yes")
    shop.ok("backfill", "orders", "--where", "id > 3", "--yes")
    shop.ok("offset", "delete", "audit", "--yes")
    told = [(entry.action, entry.sink, entry.detail) for entry in shop.audit()]
    assert told == [
        ("ack", "ids", {"offsets": [0]}),
        ("mark", "ids", {"from": 0, "to": 2, "generation": 0}),
        ("backfill", None, {"ns": "orders", "where": "id > 3"}),
        ("delete", "audit", {"offset": 4}),
    ]
    shown = shop.ok("offset", "history").splitlines()
    assert len(shown) == 5
    assert [line["action"] for line in shop.lines("offset", "history", "ids")] == ["ack", "mark"]


def test_backfill_is_for_the_source_at_its_next_start(shop: Shop) -> None:
    assert "copies the rows of 'orders' where id > 3 again" in shop.ok(
        "backfill", "orders", "--where", "id > 3", "--yes"
    )
    with shop.client() as client:
        resume = CommitLog(client, "shop", shop.data / "index", 1 << 20, NOW).resume()
    assert resume["orders"].where == "id > 3"
    assert resume["orders"].position == {} or not resume["orders"].position
    assert "did you mean 'orders'" in shop.fails(2, "backfill", "order", "--yes")
    assert "--yes does not ask" in shop.fails(2, "backfill", "orders")


def test_a_backfill_of_some_rows_takes_the_place_of_another_and_says_so(shop: Shop) -> None:
    shop.ok("backfill", "orders", "--where", "id > 3", "--yes")
    told = shop.ok("backfill", "orders", "--where", "id < 2", "--yes")
    assert "where id < 2 again, and no more those where id > 3" in told
    assert shop.lines("backfill", "orders", "--where", "id < 2", "--yes")[0]["instead_of"] is None
    with shop.client() as client:
        assert (
            CommitLog(client, "shop", shop.data / "index", 1 << 20, NOW).resume()["orders"].where == "id < 2"
        )


def test_some_rows_do_not_take_the_place_of_all_that_are_still_to_be_copied(shop: Shop) -> None:
    """A source would have gone on behind them, and the others never been copied."""
    shop.ok("backfill", "orders", "--where", "id > 3", "--yes")
    shop.ok("backfill", "orders", "--yes")
    assert "not copied to its end yet" in shop.fails(2, "backfill", "orders", "--where", "id > 3", "--yes")
    with shop.client() as client:
        log = CommitLog(client, "shop", shop.data / "index", 1 << 20, NOW)
        assert "orders" not in log.resume(), "all of it is copied"
        log.append([Message("orders", b"{}")], {"orders": {"after": [1]}}, [], NOW)
    assert "not copied to its end yet" in shop.fails(2, "backfill", "orders", "--where", "id > 3", "--yes")


def test_operator_commands_need_neither_spark_nor_arrow(shop: Shop) -> None:
    """In one process, since what counts is what is imported; `pyarrow` is for functions alone."""
    commands = [
        ["status"], ["xlog", "show", "0"], ["offset", "list"], ["offset", "mark", "audit", "3", "--yes"],
        ["offset", "ack", "audit", "4"], ["pause", "audit"], ["dead", "list"], ["trace", "0"],
        ["offset", "export"], ["backfill", "orders", "--yes"], ["top", "--once"],
    ]  # fmt: skip
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom penstock.cli import cli\n"
        f"codes = [CliRunner().invoke(cli, command).exit_code for command in {commands!r}]\n"
        "print(codes, [name for name in ('pyspark', 'py4j', 'pyarrow', 'pandas') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=shop.path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{[0] * 10 + [2]} []\n", done.stderr
