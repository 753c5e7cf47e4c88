"""What the kit found, and the tables in the documentation that are made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import adaptors
from penstock.base.errors import UsageError
from penstock.testing.adaptors.aspects import Aspect, Told
from penstock.testing.adaptors.results import (
    BEGIN,
    END,
    Outcome,
    Ran,
    Recorder,
    load,
    put_into,
    save,
    tables,
)

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "docs" / "conformance.json", ROOT / "docs" / "adaptors.md"


def test_the_tables_in_the_documentation_are_those_of_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == put_into(page, load(RESULTS)), (
        "make them anew: python -m penstock.testing.adaptors.results docs/conformance.json docs/adaptors.md"
    )


def test_the_results_know_no_failure_and_no_stranger() -> None:
    for one in load(RESULTS):
        assert one.adaptor.partition(" ")[0] in adaptors.ALL, "http (listen) is http, used in another way"
        assert not any(outcome.failed for outcome in one.aspects.values()), one.adaptor


def told(aspect: Aspect, adaptor: str = "shop", once: str = "exactly once") -> Told:
    return Told(adaptor, "source", "Shop 1.2", once, aspect.value)


def test_outcomes_are_counted_for_each_aspect_and_kept_beside_those_of_others(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    save(
        path,
        [Ran("other", "sink", "", "exactly once"), Ran("shop", "source", "Shop 1.1", "at least once")],
    )
    recorder = Recorder(path)
    recorder.add(told(Aspect.COPY), "passed", "")
    recorder.add(told(Aspect.COPY), "skipped", "no server")
    recorder.add(told(Aspect.TAIL), "failed", "")
    recorder.pytest_sessionfinish()
    other, shop = load(path)
    assert (other.adaptor, shop.server) == ("other", "Shop 1.2")
    assert shop.aspects["copy"] == Outcome(1, 0, ["no server"])
    assert shop.aspects["tail"] == Outcome(0, 1)


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (Outcome(passed=3), "yes"),
        (Outcome(passed=3, declared=["why"]), "partly"),
        (Outcome(declared=["why"]), "no"),
        (Outcome(passed=3, failed=1), "**fails**"),
    ],
)
def test_a_word_for_each_outcome(outcome: Outcome, word: str) -> None:
    assert outcome.word == word


def test_the_tables_tell_server_words_and_reasons() -> None:
    aspects = {"copy": Outcome(2), "exactly once": Outcome(1), "deletes": Outcome(declared=["only inserts"])}
    shown = tables([Ran("shop", "source", "Shop 1.2", "at least once", aspects)]).splitlines()
    assert shown[0].startswith("| source | ran against | copy | tail |")
    assert shown[2].startswith("| shop | Shop 1.2 | yes | no | no | no | at least once | no | no |")
    assert shown[-1] == "- shop as a source: deletes: only inserts."


def test_a_page_without_a_place_for_them_is_refused() -> None:
    assert put_into(f"a\n{BEGIN}\nold\n{END}\nb\n", []) == f"a\n{BEGIN}\n\n{END}\nb\n"
    with pytest.raises(UsageError, match="has no place"):
        put_into("a page", [])
