"""The record of what operators did to journals and connectors: who, when, what, and what came of it.

What is done to a pipeline is on record in its control journal (`control.py`); this is for the rest. One JSON object a
line, one append each, in one journal for all. Nobody owns it. It is made with the first entry, in the store and with
as many replicas as the journal that the entry is about, and only its newest part is kept.

A deed is done when it is put on record, so a record that fails undoes nothing: `note` says so in a sentence, for
whoever did it.
"""

from __future__ import annotations

import time

import msgspec

from penstock.base.errors import CorruptError, PenstockError
from penstock.journal.client import Appended, Client, JournalError
from penstock.journal.protocol import JournalSpec, Status
from penstock.log.journals import (
    KIND_LABEL,
    ensure,
    extent,
    journal_labels,
    journal_spec,
    read_whole,
    steadily,
)

JOURNAL = "audit"
_SEGMENT_BYTES = 256 << 10
_ROOM = 1 << 20
_PATIENCE = 15.0
_PAUSE = 0.2
_SOON = (Status.NO_JOURNAL_PRIMARY_BROKER, Status.INSUFFICIENT_JOURNAL_BROKERS)


class Deed(msgspec.Struct, frozen=True):
    """At `time` (us) `who` did `action` to a journal, and `outcome` came of it."""

    time: int
    who: str
    action: str
    """suspend | reset-head | migrate"""
    journal: str
    outcome: str


class Told(msgspec.Struct, frozen=True):
    """Deeds, the newest first; or why they cannot be told."""

    deeds: tuple[Deed, ...]
    problem: str | None = None


def note(client: Client, deed: Deed, like: JournalSpec | None = None) -> str | None:
    """Put a deed on record; durable on return. If it cannot be, why not."""
    try:
        ensure(client, _spec(like))
        landed = _appended(client, msgspec.json.encode(deed) + b"\n")
        if landed.end - extent(client, JOURNAL).begin > _ROOM + _SEGMENT_BYTES:
            client.trim(JOURNAL, landed.end - _ROOM)
    except PenstockError as error:
        return f"what was done to {deed.journal} could not be put on record: {error.message}"
    return None


def _appended(client: Client, line: bytes) -> Appended:
    """In a cluster a journal that was just made has no brokers for a moment."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return client.append(JOURNAL, line, timeout=_PATIENCE)
        except JournalError as error:
            if error.status not in _SOON or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE)


def deeds(client: Client, journal: str | None = None) -> list[Deed]:
    """What is on record, of one journal or of all; oldest first."""
    if journal_labels(client, JOURNAL) is None:
        return []
    found = steadily(lambda: _read(client))
    return [deed for deed in found if journal is None or deed.journal == journal]


def told(client: Client, most: int, journal: str | None = None, action: str | None = None) -> Told:
    """The newest of what is on record, for a page that shows other things as well: if it cannot be read, why not."""
    try:
        found = [one for one in deeds(client, journal) if action is None or one.action == action]
    except PenstockError as error:
        return Told((), error.message)
    return Told(tuple(found[-most:][::-1]))


def _read(client: Client) -> list[Deed]:
    begin, head = extent(client, JOURNAL)
    found, at = [], begin
    for line in read_whole(client, JOURNAL, begin, head).splitlines(keepends=True):
        try:
            found.append(msgspec.json.decode(line, type=Deed))
        except msgspec.DecodeError as error:
            raise CorruptError(f"not an entry of the record ({error})", where=JOURNAL, position=at) from None
        at += len(line)
    return found


def _spec(like: JournalSpec | None) -> JournalSpec:
    spec = journal_spec(JOURNAL, _SEGMENT_BYTES, {KIND_LABEL: "audit"})
    if like is not None:
        spec.replication = like.replication
        del spec.fragment.stores[:]
        spec.fragment.stores.extend(like.fragment.stores)
    return spec
