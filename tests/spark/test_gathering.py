"""A batch waits for more while a journal is being filled, and for nothing otherwise."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.journal.client import Halt
from penstock.pipeline.place import GATHER
from penstock.spark.byteplanning import BytePlanner
from penstock.spark.options import SourceOptions
from penstock.spark.planner import ENOUGH, MUCH, REST

FULL = 6 * MUCH


class Journal:
    """Stands for the client: each wait takes its time, and ends with the next of these heads, then with the last."""

    def __init__(self, heads: Sequence[int], seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heads, self.seconds, self.waited = list(heads), seconds, 0
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def wait(self, journal: str, beyond: int, timeout: float, halt: Halt) -> int:
        self.waited += 1
        self.now += min(self.seconds, timeout)
        return self.heads.pop(0) if len(self.heads) > 1 else self.heads[0]


def gathered(journal: Journal, begin: int, head: int, gather: str = GATHER, max_bytes: int = FULL) -> int:
    return a_planner(journal, gather, max_bytes).gather(begin, head)


def a_planner(journal: Journal, gather: str = GATHER, max_bytes: int = FULL) -> BytePlanner:
    options = SourceOptions.parse(
        {"dataDir": str(Path("x").absolute()), "journal": "j", "maxBytes": str(max_bytes), "gather": gather}
    )
    planner = BytePlanner(options, stream=True)
    planner.__dict__["client"] = journal
    return planner


@pytest.mark.parametrize("there", [0, 1, MUCH - 1, FULL, FULL + 1])
def test_what_trickles_in_and_what_is_enough_waits_for_nothing(
    there: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal([10 * FULL], 0.0, monkeypatch)
    assert gathered(journal, 5, 5 + there) == 5 + there
    assert journal.waited == 0


def test_a_batch_waits_until_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal([MUCH * i for i in range(2, 40)], 0.01, monkeypatch)
    assert gathered(journal, 0, MUCH) == FULL
    assert journal.waited == 5


def test_what_is_enough_waits_for_nothing_though_more_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal([ENOUGH * i for i in range(1, 9)], 0.01, monkeypatch)
    assert gathered(journal, 0, MUCH, max_bytes=4 * ENOUGH) == ENOUGH
    assert gathered(journal, 0, 3 * ENOUGH, max_bytes=4 * ENOUGH) == 3 * ENOUGH
    assert journal.waited == 1


def test_where_nothing_more_comes_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal([FULL], REST, monkeypatch)
    planner = a_planner(journal)
    planner.hurry.ask()
    assert (planner.gather(0, MUCH), journal.waited) == (MUCH, 0)


def test_a_journal_that_rests_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal([3 * MUCH, 3 * MUCH + 9, 9 * MUCH], REST, monkeypatch)
    assert gathered(journal, 0, 2 * MUCH) == 3 * MUCH + 9
    assert journal.waited == 2


def test_it_waits_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal([MUCH + MUCH // 8 * i for i in range(1, 90)], REST, monkeypatch)
    before = journal.now
    assert gathered(journal, 0, MUCH) < FULL
    assert journal.now - before == pytest.approx(1.0)


def test_a_head_that_another_broker_tells_less_of_does_not_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gathered(Journal([MUCH], REST, monkeypatch), 0, 2 * MUCH) == 2 * MUCH


@pytest.mark.parametrize(("later", "waits"), [(REST / 2, 1), (2 * REST, 0), (9.0, 0)])
def test_a_journal_that_rested_meanwhile_is_not_waited_for_again(
    later: float, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = FULL + 2 * MUCH
    journal = Journal([head], REST, monkeypatch)
    planner = a_planner(journal)
    assert (planner.gather(0, head), journal.waited) == (head, 0), "the first batch is full"
    journal.now += later
    assert (planner.gather(FULL, head), journal.waited) == (head, waits)
    journal.now += later
    assert (planner.gather(FULL, head + MUCH), journal.waited) == (head + MUCH, waits + 1), "it goes on"


def test_nobody_waits_who_did_not_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal([FULL], 0.0, monkeypatch)
    assert gathered(journal, 0, 2 * MUCH, gather="0") == 2 * MUCH
    assert journal.waited == 0
