"""Following messages: `tap` at one node, `trace` one message past all of them."""

from __future__ import annotations

import json
import select
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import CommitLog
from penstock.log.offsets import Commit
from penstock.pipeline.progress import NodeProgress, Progress, RunFile, publish

from .journaling import Process, started
from .operating import NOW, Shop, message, orders

ALL = ("--from", "0", "--no-wait")


def tapped(shop: Shop, *arguments: str) -> list[tuple[int, str]]:
    return [(line["offset"], line["data"]) for line in shop.lines("tap", *arguments, *ALL)]


def test_tap_shows_both_sides_of_a_function(shop: Shop) -> None:
    assert tapped(shop, "shop.py", "slim", "--in") == [(n, f'{{"id":{n},"total":{n}0}}') for n in (2, 3, 4)]
    assert tapped(shop, "shop.py", "slim") == [(n, f'{{"id":{n}}}') for n in (2, 3, 4)]
    assert [offset for offset, _ in tapped(shop, "shop.py", "big", "--in")] == [1, 2, 3, 4]


def test_tap_of_a_sink_shows_what_it_gets_and_of_a_source_what_is_logged(shop: Shop) -> None:
    assert tapped(shop, "shop.py", "ids") == [(n, f'{{"id":{n}}}') for n in (2, 3, 4)]
    assert [offset for offset, _ in tapped(shop, "shop.py", "audit")] == [0, 1, 2, 3, 4]
    assert [offset for offset, _ in tapped(shop, "shop.py", "db", "--ns", "items")] == [0]
    assert shop.ok("tap", "shop.py", "audit", "-n", "1", *ALL) == '0 items insert {"id":0}\n'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("shop.py", "slm"), "did you mean 'slim'?"),
        (("shop.py", "db", "--in"), "not Penstock's to see"),
        (("shop.py", "ids", "--out"), "in its target"),
        (("slim",), "the pipeline file is needed"),
        (("shop.py", "slim", "x"), "expected the name of a node"),
        (("shop.py", "slim", "--from", "9"), "ends with 4"),
    ],
)
def test_tap_says_what_it_cannot_show(shop: Shop, arguments: tuple[str, ...], words: str) -> None:
    assert words in shop.fails(2, "tap", *arguments, "--no-wait")


def test_tap_needs_no_file_for_a_source_that_a_run_has_named(shop: Shop) -> None:
    source = NodeProgress("db", "source", "file", "running")
    publish(shop.data, RunFile("r", 1, "here", NOW, NOW, Progress("shop", 1.0, "running", 5, [source])))
    assert len(shop.ok("tap", "db", *ALL).splitlines()) == 5


def test_tap_tells_what_a_function_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, monkeypatch)
    shop.log([message("orders", '{"id":"x"}'), *orders(3)])
    result = shop.run("tap", "shop.py", "big", *ALL)
    assert result.stdout == '3 orders insert {"id":2,"total":20}\n'
    assert "big refused message 0: " in result.stderr
    details = [sink["detail"] for sink in shop.lines("trace", "shop.py", "0")[0]["sinks"]]
    assert any("'big' refuses it today; the sink's offset is -1" in detail for detail in details)


def test_tap_stops_at_a_function_that_only_spark_can_run(shop: Shop) -> None:
    (shop.path / "shop.py").write_text(
        "from penstock import Pipeline, adaptors as a, functions as f\n"
        'shop = Pipeline("shop")\n'
        'source = shop.source("db", a.file(uri="file://in.jsonl"))\n'
        'slim = source.transform("slim", f.pick(fields=["id"]))\n'
        'slim.transform("frame", lambda df: df).transform("last", f.omit(fields=["x"])).save("out", a.discard())\n'
    )
    assert len(tapped(shop, "shop.py", "slim")) == 5
    assert "'frame' is a function of a DataFrame" in shop.fails(2, "tap", "shop.py", "last", *ALL)
    [sink] = [sink for sink in shop.lines("trace", "shop.py", "1")[0]["sinks"] if sink["sink"] == "out"]
    assert [(step["node"], step["outcome"]) for step in sink["steps"]] == [
        ("slim", "changed"), ("frame", "not known"), ("last", "not known"),
    ]  # fmt: skip


@pytest.mark.timeout(60)
def test_following_goes_on_with_a_run_that_begins_later_and_does_not_stand_in_its_way(shop: Shop) -> None:
    """Between looks at a directory that nobody owns, the directory is free."""
    with (
        started("tap", "shop.py", "ids", "--json", cwd=shop.path) as tap,
        started("xlog", "show", "4", "-f", "--json", cwd=shop.path) as xlog,
    ):
        assert json.loads(xlog.line())["offset"] == 4
        with EmbeddedBroker(shop.data) as broker, Client(broker.address) as client:
            log = CommitLog(client, "shop", shop.data / "index", 1 << 20, NOW)
            last = 5
            while not has_said_something(tap):
                log.append([message("orders", f'{{"id":{last},"x":1}}')], {}, (), NOW)
                assert json.loads(xlog.line())["offset"] == last
                last += 1
            log.close()
        shop.log([message("orders", '{"id":99}')])
        while json.loads(tap.line())["data"] != '{"id":99}':
            pass
        while json.loads(xlog.line())["data"] != '{"id":99}':
            pass


def has_said_something(process: Process) -> bool:
    """Whether a line waits. A tap begins at the end of the log, wherever that is by the time it gets there."""
    assert process.process.stdout is not None
    return bool(select.select([process.process.stdout], [], [], 0.2)[0])


def test_trace_tells_what_became_of_a_message_at_every_node(shop: Shop) -> None:
    shown = shop.ok("trace", "shop.py", "3").splitlines()
    assert shown == [
        "message 3 of pipeline 'shop'",
        "  logged by 'db', 2023-11-14T22:13:20.000003Z, sync",
        '  3 orders insert {"id":3,"total":30}',
        "",
        "  audit  ACKNOWLEDGED  the sink's offset is 4, generation 0",
        "",
        "  big  skip: let it through as it was",
        "  slim  pick: made of it",
        '    3 orders insert {"id":3}',
        "  ids  PENDING  the sink's offset is -1, generation 0",
    ]


def outcomes(shop: Shop, offset: int) -> dict[str, str]:
    return {sink["sink"]: sink["outcome"] for sink in shop.lines("trace", "shop.py", str(offset))[0]["sinks"]}


def test_trace_tells_left_out_dropped_and_skipped_apart(shop: Shop) -> None:
    assert outcomes(shop, 0)["ids"] == "left out"
    assert outcomes(shop, 1)["ids"] == "dropped"
    [ids] = [sink for sink in shop.lines("trace", "shop.py", "1")[0]["sinks"] if sink["sink"] == "ids"]
    assert [(step["node"], step["outcome"]) for step in ids["steps"]] == [
        ("big", "dropped"), ("slim", "not reached"),
    ]  # fmt: skip
    shop.ok("offset", "mark", "ids", "3", "--yes")
    assert outcomes(shop, 3)["ids"] == "skipped by operator"
    shop.ok("offset", "mark", "ids", "2", "--yes")
    assert outcomes(shop, 3)["ids"] == "pending"


def test_trace_tells_what_waits_and_why(shop: Shop) -> None:
    shop.sink("ids", Commit(watermark=1, careful=3, acked=(4,)))
    found = {n: shop.lines("trace", "shop.py", str(n))[0]["sinks"][1] for n in (2, 3, 4)}
    assert "a batch that held it was refused" in found[2]["detail"]
    assert "a batch that held it was refused" not in found[3]["detail"]
    assert found[4]["outcome"] == "skipped by operator"


def test_trace_tells_why_the_last_run_stopped_at_a_message(shop: Shop) -> None:
    shop.sink("ids", Commit(watermark=2))
    node = NodeProgress("ids", "sink", "file", "stopped", lag=3, error="no 2 is welcome here")
    publish(
        shop.data,
        RunFile("r", 1, "here", NOW, NOW, Progress("shop", 1.0, "stopping", 5, [node]), exit_code=1),
    )
    found = {n: shop.lines("trace", "shop.py", str(n))[0]["sinks"][1]["detail"] for n in (2, 3)}
    assert found[2].startswith("the last run stopped here: no 2 is welcome here; the sink's offset is 1")
    assert "no 2 is welcome" not in found[3]
    trying = replace(node, state="retrying")
    publish(shop.data, RunFile("r", 1, "here", NOW, NOW, Progress("shop", 1.0, "running", 5, [trying])))
    assert "stopped here" not in shop.ok("trace", "shop.py", "2"), "it goes on trying"
    shop.sink("ids", Commit(watermark=3))
    assert "no 2 is welcome" not in shop.ok("trace", "shop.py", "3"), "it stands elsewhere now"


def test_trace_without_the_file_tells_what_the_journals_know(shop: Shop) -> None:
    [found] = shop.lines("trace", "0")
    assert found["entry"]["ns"] == "items"
    assert [(sink["sink"], sink["outcome"]) for sink in found["sinks"]] == [
        ("audit", "acknowledged"), ("ids", "pending"),
    ]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), [(("9",), "0 to 4, asked for 9"), (("x",), "'x' is no offset")])
def test_trace_of_what_is_not_there(shop: Shop, words: tuple[str, ...], said: str) -> None:
    assert said in shop.fails(2, "trace", *words)
