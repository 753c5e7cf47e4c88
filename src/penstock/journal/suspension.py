"""Suspension: what an append's wish and a journal's level come to (reference 18). Pure.

A journal that is not in use gives its replicas up: all but one (PARTIAL), or all of them once nothing of it is left
(FULL). The level and the offset to go on from stand in its spec.
"""

from __future__ import annotations

from enum import Enum, auto

from penstock.journal.protocol import AppendRequest, JournalSpec

NONE, PARTIAL, FULL = JournalSpec.Suspend.NONE, JournalSpec.Suspend.PARTIAL, JournalSpec.Suspend.FULL
RESUME = AppendRequest.SUSPEND_RESUME
NO_RESUME = AppendRequest.SUSPEND_NO_RESUME
IF_FLUSHED = AppendRequest.SUSPEND_IF_FLUSHED
NOW = AppendRequest.SUSPEND_NOW
KEEP = AppendRequest.SUSPEND_KEEP


class Verdict(Enum):
    """What is to be done with the append, or with the journal before it."""

    PROCEED = auto()
    PROCEED_AS_SUSPENDED = auto()
    """Answer SUSPENDED; the append is a barrier."""
    REFUSE = auto()
    RESUME = auto()
    SUSPEND_IN_PART = auto()
    """And close the fragment under construction."""
    SUSPEND = auto()


def verdict(wanted: int, level: int, *, empty: bool, idle: bool) -> Verdict:
    """`empty`: the journal holds nothing at all. `idle`: all is in the store, and has been for long."""
    if wanted in (RESUME, NO_RESUME) and level != NONE:
        return Verdict.RESUME if wanted == RESUME else Verdict.REFUSE
    if wanted not in (IF_FLUSHED, NOW):
        return Verdict.PROCEED
    if level != FULL and empty:
        return Verdict.SUSPEND
    if level != NONE:
        return Verdict.PROCEED_AS_SUSPENDED
    return Verdict.SUSPEND_IN_PART if wanted == NOW or idle else Verdict.PROCEED
