"""Messages that are refused: `step`, `dead list | show | replay | drop`, and the seed's operator at work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.log.deadletters import DeadLetters, Death, Misfit
from penstock.log.offsets import Commit

from .operating import NOW, Shop, message, orders

PICKY = """\
from penstock import Pipeline, adaptors as a, functions as f

shop = Pipeline("shop")
source = shop.source("db", a.file(uri="file://in.jsonl"))
source.transform("check", f.skip(field="id", operator=">=", match=0)).save("c0", a.file(uri="file://c0.jsonl"))
source.save("all", a.file(uri="file://all.jsonl"), ns="^orders$")
source.transform("frame", lambda df: df).save("framed", a.discard())
"""


def picky(path: Path, monkeypatch: pytest.MonkeyPatch, count: int, poison: int) -> Shop:
    """A pipeline whose sink `c0` cannot take message `poison`."""
    shop = Shop(path, monkeypatch)
    (path / "shop.py").write_text(PICKY)
    shop.log([*orders(poison), message("orders", '{"id":"x"}'), *orders(count)[poison + 1 :]])
    return shop


def test_the_seeds_operator_steps_acknowledges_the_poison_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed, "Message Failures": at offset 8 a bulk of 9 to 15 was refused, and 14 is why."""
    shop = picky(tmp_path, monkeypatch, 16, poison=14)
    shop.sink("c0", Commit(watermark=9, careful=16, delivered=9), {"orders": 8})
    stepped = shop.run("step", "shop.py", "c0", "-n", "20")
    assert stepped.exit_code == 3
    assert [line for line in stepped.stdout.splitlines() if line.endswith("delivered")] == [
        f"c0: message {n} of 'orders' delivered" for n in range(9, 14)
    ]
    assert "message 14 of 'orders' refused by 'check'" in stepped.stdout
    assert "penstock offset ack c0 14" in stepped.stderr
    assert shop.offset("c0") == 13
    assert shop.run("step", "shop.py", "c0").exit_code == 3
    assert shop.ok("offset", "ack", "c0", "14") == "c0: offset 13 -> 14\n"
    assert shop.ok("step", "shop.py", "c0") == "c0: message 15 of 'orders' delivered\n"
    assert shop.offset("c0") == 15
    assert "c0 has everything" not in shop.ok("status")
    assert "sink 'c0' has everything" in shop.fails(2, "step", "shop.py", "c0")
    written = [json.loads(line)["id"] for line in (tmp_path / "c0.jsonl").read_text().splitlines()]
    assert written == [9, 10, 11, 12, 13, 15]
    commit = shop.held("c0").commit
    assert (commit.delivered, commit.dropped, commit.careful) == (15, 1, 0)
    traced = {sink["sink"]: sink for sink in shop.lines("trace", "shop.py", "14")[0]["sinks"]}
    assert traced["c0"]["outcome"] == "skipped by operator"
    assert "with `offset ack`" in traced["c0"]["detail"]


def test_step_tells_what_a_filter_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, monkeypatch)
    (tmp_path / "shop.py").write_text(PICKY)
    shop.log([message("items", '{"id":1}'), *orders(1)])
    first, second = shop.lines("step", "shop.py", "all", "-n", "2")
    assert (first["outcome"], second["outcome"]) == ("dropped", "delivered")
    assert [entry.action for entry in shop.audit()] == ["step", "step"]
    assert (tmp_path / "all.jsonl").read_text() == '{"id":0,"total":0}\n'


def test_step_refuses_what_it_cannot_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = picky(tmp_path, monkeypatch, 2, poison=1)
    assert "did you mean 'framed'" in shop.fails(2, "step", "shop.py", "frames")
    assert "only Spark can run it" in shop.fails(2, "step", "shop.py", "framed")
    assert "no data directory at none" in shop.fails(2, "step", "shop.py", "all", "--data-dir", "none")


def test_a_refused_message_goes_to_the_dead_letters_is_mended_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = picky(tmp_path, monkeypatch, 3, poison=1)
    outcomes = [line["outcome"] for line in shop.lines("step", "shop.py", "c0", "-n", "3", "--dead-letter")]
    assert outcomes == ["delivered", "dead", "delivered"]
    assert shop.held("c0").commit.dead == 1
    [letter] = shop.lines("dead", "list")
    assert (letter["number"], letter["offset"], letter["node"], letter["data"]) == (
        0,
        1,
        "check",
        '{"id":"x"}',
    )
    traced = {sink["sink"]: sink["outcome"] for sink in shop.lines("trace", "shop.py", "1")[0]["sinks"]}
    assert traced == {"c0": "dead", "all": "pending", "framed": "pending"}
    (tmp_path / "shop.py").write_text(PICKY.replace('"check"', '"newcheck"'))
    again = shop.run("dead", "replay", "shop.py", "--all")
    assert again.exit_code == 3
    assert "0: message 1 to c0 refused by 'newcheck'" in again.stdout
    assert "0 messages replayed, 1 refused again." in again.stdout
    [kept] = shop.lines("dead", "list")
    assert (kept["number"], kept["node"], kept["data"]) == (0, "newcheck", '{"id":"x"}')
    (tmp_path / "shop.py").write_text(
        PICKY.replace('f.skip(field="id", operator=">=", match=0)', 'f.omit(fields=["no"])')
    )
    assert "1 message replayed, 0 refused again." in shop.ok("dead", "replay", "shop.py", "--sink", "c0")
    assert (tmp_path / "c0.jsonl").read_text().splitlines()[-1] == '{"id":"x"}'
    assert shop.ok("dead", "list") == "There are no dead letters.\n"
    assert [line["state"] for line in shop.lines("dead", "list", "--settled")] == ["replayed"]
    assert "was replayed already" in shop.fails(2, "dead", "replay", "shop.py", "0")
    assert shop.offset("c0") == 2
    traced = {sink["sink"]: sink["outcome"] for sink in shop.lines("trace", "shop.py", "1")[0]["sinks"]}
    assert traced["c0"] == "replayed"


def test_dead_letters_are_listed_by_reason_and_shown_in_full(shop: Shop) -> None:
    deaths = [Death(n, "orders", "audit", "too long") for n in (1, 2, 3)]
    shop.bury("audit", *deaths, Death(0, "items", "slim", "no id"))
    rows = [line.split() for line in shop.ok("dead", "list").splitlines()[1:]]
    assert rows[0][:7] == ["3", "audit", "orders", "audit", "1,", "2,", "3"]
    assert rows[1][:5] == ["1", "audit", "items", "slim", "0"]
    assert rows[0][-2:] == ["too", "long"]
    shown = shop.ok("dead", "show", "2")
    assert "error     : too long\n" in shown
    assert 'value     : {"id":2,"total":20}\n' in shown
    assert shop.lines("dead", "show", "2")[0]["offset"] == 2
    assert shop.lines("dead", "list", "--sink", "ids") == []
    assert "did you mean 'ids'" in shop.fails(2, "dead", "list", "--sink", "idz")
    assert "there is no dead letter 9" in shop.fails(2, "dead", "show", "9")


def test_drop_gives_letters_up_after_asking(shop: Shop) -> None:
    shop.bury("audit", *(Death(n, "orders", "audit", "too long") for n in (1, 2, 3)))
    assert shop.run("dead", "drop", "0", input="n\n").exit_code == 1
    assert "1 dead letter given up." in shop.ok("dead", "drop", "0", "--yes")
    assert [line["number"] for line in shop.lines("dead", "list")] == [1, 2]
    assert "was dropped already" in shop.fails(2, "dead", "drop", "0", "1", "--yes")
    assert "there are no dead letters of sink 'ids'" in shop.fails(
        2, "dead", "drop", "--sink", "ids", "--yes"
    )
    for vague in ((), ("1", "--all"), ("--sink", "audit", "--all")):
        assert "say which dead letters" in shop.fails(2, "dead", "drop", *vague, "--yes")
    shop.ok("dead", "drop", "--all", "--yes")
    assert shop.lines("dead", "list") == []
    told = [(entry.action, entry.sink, entry.detail) for entry in shop.audit()]
    assert told == [("dead-drop", "audit", {"numbers": [0]}), ("dead-drop", "audit", {"numbers": [1, 2]})]


def test_what_the_source_could_make_no_message_of_is_shown_with_its_place_and_not_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = picky(tmp_path, monkeypatch, 3, poison=2)
    with shop.client() as client:
        misfit = Misfit("in", "in.jsonl, line 7, byte 512", "not JSON", b"{oh")
        DeadLetters(client, "shop", NOW).add_misfits("db", [misfit], NOW)
    shop.bury("all", Death(0, "orders", "all", "too long"))
    shown = shop.ok("dead", "show", "0")
    assert "source    : db\nplace     : in.jsonl, line 7, byte 512\nerror     : not JSON\n" in shown
    assert "value     : {oh\n" in shown
    assert "offset" not in shown
    assert [line["place"] for line in shop.lines("dead", "list", "--sink", "db")] == [misfit.place]
    assert "the source could make no message of 1 thing" in shop.ok("status")
    for meant in (["0"], ["1", "0"], ["--sink", "db"]):
        refused = shop.fails(2, "dead", "replay", "shop.py", *meant)
        assert "dead letter 0 cannot be replayed: source 'db' could make no message of it" in refused
        assert "in.jsonl, line 7, byte 512: not JSON" in refused
    assert "1 message replayed, 0 refused again." in shop.ok("dead", "replay", "shop.py", "--all")
    assert "cannot be replayed" in shop.fails(2, "dead", "replay", "shop.py", "--all")
    assert "1 dead letter given up." in shop.ok("dead", "drop", "--sink", "db", "--yes")
    assert "no message of" not in shop.ok("status")
