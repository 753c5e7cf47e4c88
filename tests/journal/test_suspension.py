"""Suspension as a table: what each wish comes to at each level (reference, 18)."""

from __future__ import annotations

import pytest

from penstock.journal.suspension import (
    FULL,
    IF_FLUSHED,
    KEEP,
    NO_RESUME,
    NONE,
    NOW,
    PARTIAL,
    RESUME,
    Verdict,
    verdict,
)

TABLE = [
    # wish, level, empty, idle
    (RESUME, NONE, False, True, Verdict.PROCEED),
    (RESUME, PARTIAL, False, False, Verdict.RESUME),
    (RESUME, FULL, True, False, Verdict.RESUME),
    (NO_RESUME, NONE, True, True, Verdict.PROCEED),
    (NO_RESUME, PARTIAL, False, False, Verdict.REFUSE),
    (NO_RESUME, FULL, True, False, Verdict.REFUSE),
    (KEEP, NONE, True, True, Verdict.PROCEED),
    (KEEP, PARTIAL, False, True, Verdict.PROCEED),
    (IF_FLUSHED, NONE, False, False, Verdict.PROCEED),
    (IF_FLUSHED, NONE, False, True, Verdict.SUSPEND_IN_PART),
    (IF_FLUSHED, NONE, True, False, Verdict.SUSPEND),
    (IF_FLUSHED, PARTIAL, True, False, Verdict.SUSPEND),
    (IF_FLUSHED, PARTIAL, False, True, Verdict.PROCEED_AS_SUSPENDED),
    (NOW, NONE, False, False, Verdict.SUSPEND_IN_PART),
    (NOW, NONE, True, False, Verdict.SUSPEND),
    (NOW, PARTIAL, True, False, Verdict.SUSPEND),
    (NOW, PARTIAL, False, False, Verdict.PROCEED_AS_SUSPENDED),
]


@pytest.mark.parametrize(("wanted", "level", "empty", "idle", "expected"), TABLE)
def test_what_a_wish_comes_to(wanted: int, level: int, empty: bool, idle: bool, expected: Verdict) -> None:
    assert verdict(wanted, level, empty=empty, idle=idle) is expected
