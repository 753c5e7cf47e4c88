"""Upkeep of journals: pulses, closing of fragments, retention.

A pulse is an empty append that a broker sends itself from time to time, so that fragments close though nobody
writes (reference 18). Retention is enforced for journals that ask for it by the label `RETENTION`; otherwise old
fragments stay until somebody prunes them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from penstock.base.errors import PenstockError
from penstock.journal import labels
from penstock.journal.append import Appending, AppendMachine
from penstock.journal.claims import Claims
from penstock.journal.index import Index
from penstock.journal.protocol import AppendRequest, JournalSpec, Status
from penstock.journal.replica import Place
from penstock.journal.suspension import IF_FLUSHED, KEEP, NO_RESUME

log = logging.getLogger(__name__)

RETENTION = "app.penstock.dev/retention"
ENFORCED = "enforce"
PULSE_TIMEOUT = 60.0


_WAITS_FOR_OTHERS = (
    Status.INSUFFICIENT_JOURNAL_BROKERS,
    Status.NO_JOURNAL_PRIMARY_BROKER,
    Status.FRAGMENT_STORE_UNHEALTHY,
)


async def pulse(journal: str, surroundings: Appending, claims: Claims, *, suspend: bool) -> bool:
    """One empty append; what it meets is the next append's to report. False if it is to be tried again soon."""
    request = AppendRequest(journal=journal, do_not_proxy=True, suspend=IF_FLUSHED if suspend else NO_RESUME)
    try:
        async with asyncio.timeout(PULSE_TIMEOUT):
            machine = AppendMachine(request, (b"",), surroundings, claims)
            await machine.run()
    except (PenstockError, OSError, TimeoutError) as error:
        log.warning("%s: pulse: %s", journal, error)
        return False
    if machine.status == Status.INDEX_HAS_GREATER_OFFSET:
        log.error("%s: its store has later fragments than its replicas: see `journals reset-head`", journal)
    return machine.status not in _WAITS_FOR_OTHERS


async def roll(journal: str, surroundings: Appending, claims: Claims) -> tuple[Status, int]:
    """Close the fragment under construction; the status, and where the next one begins."""
    request = AppendRequest(journal=journal, do_not_proxy=True, suspend=KEEP)
    machine = AppendMachine(request, (b"",), surroundings, claims, rolling=True)
    await machine.run()
    return cast("Status", machine.status), machine.commits[0].end if machine.commits else 0


def retained_from(spec: JournalSpec, index: Index[Place], now: int) -> int:
    """The offset from which a journal that enforces its retention is to be kept; 0: all of it.

    From the front only, so that no hole is made; and never the last fragment, so that whoever has nothing but the
    store still knows where the journal ends.
    """
    retention = spec.fragment.retention.ToSeconds()
    if retention <= 0 or labels.values_of(spec.labels, RETENTION) != [ENFORCED] or spec.flags == 1:
        return 0
    fragments = [entry.fragment for entry in index]
    begin = 0
    for fragment in fragments[:-1]:
        if fragment.is_local or now - fragment.mod_time < retention:
            break
        begin = fragment.end
    return begin
