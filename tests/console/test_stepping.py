"""What the page says before a step: to whom a message goes, and which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.console.actions import Actions, Wish
from penstock.console.definitions import Definitions
from penstock.console.reaching import DirectoryPlace
from penstock.log.offsets import Commit, OffsetLog
from penstock.pipeline.clock import now_us

from .places import Place, order

TOGETHER = """\
from penstock import Pipeline, adaptors as a

shop = Pipeline("shop")
orders = shop.source("orders", a.file(uri="file://in.jsonl"))
orders.save("audit", a.connector(sink="127.0.0.1:1"))
orders.save("books", a.connector(sink="127.0.0.1:2"))
orders.save("archive", a.file(uri="file://archive.jsonl"))
"""


@pytest.fixture
def actions(place: Place) -> Iterator[Actions]:
    reaching = DirectoryPlace(place.data)
    yield Actions(reaching, Definitions({"shop": str(place.file)}, recorded=False))
    reaching.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Three orders, of which `audit` has one more than the others."""
    made = Place(tmp_path)
    made.file.write_text(TOGETHER)
    with made.client() as client:
        made.log(client, [order(number) for number in range(3)])
        for sink, watermark in (("audit", 2), ("books", 1), ("archive", 1)):
            OffsetLog(client, "shop", sink, now_us()).replace(Commit(watermark=watermark), {}, now_us())
    return made


def test_sinks_that_commit_together_are_all_named_and_the_one_that_is_behind_counts(
    actions: Actions, place: Place
) -> None:
    step = actions.plan("shop", Wish("step", "audit"))
    assert step.title == "Deliver message 1 to audit and books"
    assert "through the functions to audit and books now" in step.changes[0]
    assert step.changes[-1].startswith("They commit together")
    assert (step.command, step.reason) == (f"penstock step {place.file} audit", None)
    several = actions.plan("shop", Wish("step", "books", count=5))
    assert several.title == "Deliver up to 5 messages, from 1 on to audit and books"
    kept = actions.plan("shop", Wish("dead-letter", "books"))
    assert "audit and books go on with message 2" in kept.changes[1]
    assert "kept for all of them" in kept.changes[-1]
    alone = actions.plan("shop", Wish("step", "archive"))
    assert (alone.title, len(alone.changes)) == ("Deliver message 1 to archive", 2)
    for sink in ("audit", "books"):
        actions.carry_out("shop", Wish("mark", sink, offset=2), "me")
    done = actions.plan("shop", Wish("step", "audit"))
    assert done.reason == "audit and books have everything: their offsets and the log's are 2."


def test_a_file_that_cannot_be_read_is_told_before_the_step(actions: Actions, place: Place) -> None:
    place.file.write_text("shop = Pipeline(")
    step = actions.plan("shop", Wish("step", "audit"))
    assert (step.title, "shop.py" in (step.reason or "")) == ("Deliver message 2 to audit", True)
