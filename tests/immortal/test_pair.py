"""A binding and the coordinator that it starts itself."""

from __future__ import annotations

import sys
from typing import NoReturn

import pytest

from penstock.immortal import Immortal
from penstock.immortal.binding import pair
from penstock.immortal.binding.pair import Plan, free_ports, run_pair
from penstock.immortal.binding.shell import CoordinatorGoneError


def test_the_ports_of_a_coordinator_are_two_and_not_that_of_its_binding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = free_ports()[0]
    monkeypatch.setattr(pair, "_RANGE", range(first, first + 8))
    for _ in range(50):
        ports = free_ports([first])
        assert ports[0] != ports[1]
        assert first not in ports


def test_a_coordinator_that_lives_on_is_not_waited_for_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*of: object) -> NoReturn:
        raise CoordinatorGoneError("the connection to the coordinator broke")

    monkeypatch.setattr(pair, "_ENDING", 0.2)
    monkeypatch.setattr(pair, "run", broken)
    monkeypatch.setattr(
        pair, "coordinator_command", lambda *of: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    with pytest.raises(CoordinatorGoneError, match="the connection to the coordinator broke"):
        run_pair(Plan(Immortal, "a"), "nowhere", (), print)
