"""Calls a second of an instance: what is worth saying, and how long it holds."""

from __future__ import annotations

from penstock.immortal.about import PACE_HOLDS, About, Pace, Serving
from penstock.immortal.pace import Meter


def test_calls_are_said_while_they_come_and_that_they_stopped_is_said_once() -> None:
    meter = Meter(0.0)
    assert meter.measured(0, 2.0) is None
    assert meter.measured(10, 4.0) == 5.0
    meter.said(5.0)
    assert meter.measured(20, 6.0) == 5.0
    meter.said(5.0)
    assert meter.measured(20, 8.0) == 0.0
    meter.said(0.0)
    assert meter.measured(20, 10.0) is None


def test_what_could_not_be_said_is_said_the_next_time() -> None:
    meter = Meter(0.0)
    assert meter.measured(10, 1.0) == 10.0
    meter.said(None)
    assert meter.measured(10, 2.0) == 0.0
    meter.said(None)
    assert meter.measured(10, 3.0) == 0.0


def test_a_pace_holds_for_a_while_and_for_its_primary_only() -> None:
    known = About()
    known.hear(Pace(1, 4, 2.0, 100.0))
    assert known.calls_per_second(100.0) is None
    known.hear(Serving(0, "me", 1, "h", 1, "p"))
    assert (known.calls(), known.calls_per_second(101.0)) == (4, 2.0)
    assert known.calls_per_second(100.0 + PACE_HOLDS) is None
    known.hear(Pace(1, 9, 0.0, 110.0))
    known.hear(Pace(1, 4, 2.0, 100.0))  # said again by one who tidied up
    assert (known.calls(), known.calls_per_second(9e9)) == (9, 0.0)
    known.hear(Serving(1, "other", 2, "h", 1, "p"))
    assert (known.calls(), known.calls_per_second(111.0)) == (0, 0.0)
