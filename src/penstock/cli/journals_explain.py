"""`penstock journals reset-head --explain`: what is known of a journal before its write head is reset.

Each broker of the route is asked for itself what it has, in its spools and in the stores as it lists them; then a
barrier tells what appends meet. From that follows whether a reset is needed, where the journal would go on, and what
could be lost by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.base.errors import PenstockError

if TYPE_CHECKING:
    from penstock.journal.client import Client
    from penstock.journal.protocol import ListResponse


@dataclass(frozen=True, slots=True)
class Seen:
    """What one broker has of a journal. `trouble` if it does not say."""

    broker: str
    endpoint: str
    primary: bool
    spool_end: int
    """One past the last byte that is on its disk and in no store; 0: there is none."""
    store_end: int
    """One past the last byte in the stores, as it lists them."""
    stores: tuple[str, ...]
    trouble: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What an operator is to know."""

    journal: str
    status: str
    """What an append meets."""
    wanted: int
    brokers: tuple[Seen, ...]
    unhealthy: tuple[str, ...]
    """Stores that do not work, and why."""

    @property
    def end(self) -> int:
        """Where the journal would go on."""
        return max((max(seen.spool_end, seen.store_end) for seen in self.brokers), default=0)

    @property
    def needed(self) -> bool:
        return self.status == "INDEX_HAS_GREATER_OFFSET"

    def lines(self) -> Iterator[str]:
        """For a person."""
        yield f"{self.journal}: an append meets {self.status}"
        yield f"  brokers of its route: {len(self.brokers)} of {self.wanted}"
        for seen in self.brokers:
            role = "primary" if seen.primary else "replica"
            if seen.trouble:
                yield f"    {seen.broker} ({role}, {seen.endpoint}): does not answer: {seen.trouble}"
                continue
            spool = f"spools up to {seen.spool_end}" if seen.spool_end else "no spool"
            yield f"    {seen.broker} ({role}, {seen.endpoint}): {spool}; stores up to {seen.store_end}"
        stores = sorted({url for seen in self.brokers for url in seen.stores})
        yield f"  stores seen: {', '.join(stores) or 'none with fragments of this journal'}"
        for trouble in self.unhealthy:
            yield f"    not well: {trouble}"
        yield from self._verdict()

    def _verdict(self) -> Iterator[str]:
        if self.status == "OK":
            yield "  No reset is needed: the journal takes appends."
            return
        if not self.needed:
            yield "  A reset does not help with that. See to the brokers and stores named above first."
            return
        yield f"  The stores go further than any replica: all replicas that wrote before {self.end} are lost or away."
        yield f"  After a reset the journal goes on at {self.end}; its registers are empty, so owners stop and tell."
        yield "  What could be lost: bytes that were acknowledged, and that only the spools of absent brokers have."
        yield "  If a broker that had this journal can come back with its disk, start it now, and do not reset:"
        yield "  its spool is found, compared and used by itself. Fragments that it holds are then in no danger."


def explained(client: Client, journal: ListResponse.Journal) -> Explanation:
    """Ask everybody."""
    name = journal.spec.name
    seen = tuple(_seen(client, journal, at) for at in range(len(journal.route.members)))
    unhealthy = []
    for url in journal.spec.fragment.stores:
        try:
            trouble = client.store_health(url)
        except PenstockError as error:
            trouble = error.message
        if trouble:
            unhealthy.append(f"{url}: {trouble}")
    return Explanation(name, _status(client, name), journal.spec.replication, seen, tuple(unhealthy))


def _status(client: Client, name: str) -> str:
    from penstock.journal.client import JournalError
    from penstock.journal.protocol import AppendRequest

    try:
        client.append(name, b"", suspend=AppendRequest.SUSPEND_KEEP, timeout=30)
    except JournalError as error:
        return error.status_name
    except PenstockError as error:
        return error.message
    return "OK"


def _seen(client: Client, journal: ListResponse.Journal, at: int) -> Seen:
    route = journal.route
    member, endpoint = route.members[at], route.endpoints[at] if at < len(route.endpoints) else ""
    broker, primary = f"{member.zone}/{member.suffix}", at == route.primary
    spool_end = store_end = 0
    stores: set[str] = set()
    try:
        if not endpoint:
            raise PenstockError("it has left the cluster")
        with client.at(endpoint) as other:
            for found in other.fragments(journal.spec.name, own=True):
                if found.spec.backing_store:
                    store_end = max(store_end, found.spec.end)
                    stores.add(found.spec.backing_store)
                else:
                    spool_end = max(spool_end, found.spec.end)
    except PenstockError as error:
        return Seen(broker, endpoint, primary, 0, 0, (), error.message)
    return Seen(broker, endpoint, primary, spool_end, store_end, tuple(sorted(stores)), "")
