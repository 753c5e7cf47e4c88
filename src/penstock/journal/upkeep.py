"""Upkeep of journals, through the ordinary client: what is not in use is put aside; a write head after a disaster."""

from __future__ import annotations

from typing import NamedTuple

from penstock.journal.client import Client, JournalError
from penstock.journal.labels import parse_selector
from penstock.journal.protocol import AppendRequest, JournalSpec, ListResponse, Status


def without_brokers(journal: ListResponse.Journal) -> bool:
    """Whether it is suspended to zero replicas: empty, and served by nobody."""
    return journal.spec.suspend.level == JournalSpec.Suspend.FULL


def level(journal: ListResponse.Journal) -> str:
    """How far it is suspended: NONE, PARTIAL (one replica) or FULL (none)."""
    return JournalSpec.Suspend.Level.Name(journal.spec.suspend.level)


def suspend(client: Client, journal: ListResponse.Journal, *, force: bool) -> None:
    """Let brokers put a journal aside if its content is all in a store; with `force` in any case."""
    if without_brokers(journal):
        return
    how = AppendRequest.SUSPEND_NOW if force else AppendRequest.SUSPEND_IF_FLUSHED
    try:
        client.append(journal.spec.name, b"", suspend=how)
    except JournalError as error:
        if error.status != Status.SUSPENDED:
            raise


class Reset(NamedTuple):
    """What came of resetting a write head: `reset`, or `raced` if somebody appended meanwhile."""

    outcome: str
    offset: int

    @property
    def words(self) -> str:
        if self.outcome == "reset":
            return f"the write head is {self.offset}"
        return f"somebody appended meanwhile; the write head is not {self.offset} any more"


def reset_head(client: Client, journal: str) -> Reset:
    """Set the write head of a journal to the end of what its stores hold."""
    client.begin(journal)  # waits until the broker knows its stores; a read does not
    offset = client.metadata(journal).offset
    try:
        client.append(journal, b"", offset=offset, suspend=AppendRequest.SUSPEND_KEEP)
    except JournalError as error:
        if error.status != Status.WRONG_APPEND_OFFSET:
            raise
        return Reset("raced", offset)
    return Reset("reset", offset)


def named(client: Client, journal: str) -> ListResponse.Journal | None:
    """The journal of this name, if there is one."""
    found = client.list(parse_selector(f"name={journal}"))
    return found[0] if found else None
