"""Upkeep of journals (`penstock.journal.upkeep`) by somebody who is named: done, and on record (`audit.py`)."""

from __future__ import annotations

from typing import NamedTuple

from penstock.journal import upkeep
from penstock.journal.client import Client
from penstock.journal.protocol import ListResponse
from penstock.journal.upkeep import Reset
from penstock.log.audit import Deed, note


class Suspended(NamedTuple):
    """How far a journal is suspended then: NONE, PARTIAL or FULL; and why that is not on record, if it is not."""

    level: str
    unrecorded: str | None


def suspend(client: Client, journal: ListResponse.Journal, who: str, now: int, *, force: bool) -> Suspended:
    """Let brokers put a journal aside."""
    upkeep.suspend(client, journal, force=force)
    name = journal.spec.name
    after = upkeep.named(client, name)
    level = upkeep.level(after) if after is not None else "NONE"
    outcome = (
        "not suspended: content not in a store yet, or in use" if level == "NONE" else f"suspended ({level})"
    )
    return Suspended(level, note(client, Deed(now, who, "suspend", name, outcome), journal.spec))


def reset_head(client: Client, journal: ListResponse.Journal, who: str, now: int) -> tuple[Reset, str | None]:
    """Trust the stores of a journal; what came of it, and why that is not on record, if it is not."""
    name = journal.spec.name
    done = upkeep.reset_head(client, name)
    return done, note(client, Deed(now, who, "reset-head", name, done.words), journal.spec)
