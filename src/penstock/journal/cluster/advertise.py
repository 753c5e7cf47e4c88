"""That the replicas of a journal agree, told to everyone (reference 12, "Consistency advertisement").

After a synchronisation the primary writes the route that was agreed on into the journal's assignments, unless they
have it. The allocator takes nobody out of a journal's route before that stands there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.journal import keys
from penstock.journal.protocol import Header, Route
from penstock.journal.replication import equivalent
from penstock.journal.resolver import KeySpace, Resolution

Advertise = Callable[[str, Route, Header], Awaitable[int]]
"""Write a journal's agreed route into its assignments if none of them changed; won or lost, the revision to read
through. The header says of which revision the route is."""


class Advertising:
    """`Appending.update_assignments` of a broker in a cluster."""

    def __init__(self, keyspace: KeySpace, advertise: Advertise) -> None:
        self._keyspace = keyspace
        self._advertise = advertise
        self._agreed: dict[str, Header] = {}
        """Headers whose routes the assignments bear out, so that this is looked at once a revision."""

    async def __call__(self, resolution: Resolution) -> int | None:
        journal, header = resolution.journal, resolution.header
        if self._agreed.get(journal) is header:
            return None
        assigned = self._keyspace.under(keys.assignments_of(journal))
        if all(equivalent(Route.FromString(entry.value), header.route) for _, entry in assigned):
            self._agreed[journal] = header
            return None
        return await self._advertise(journal, header.route, header)

    def forget(self, journal: str) -> None:
        """The journal is no longer ours."""
        self._agreed.pop(journal, None)


def stored_route(route: Route) -> bytes:
    """A route as assignments have it: without endpoints."""
    bare = Route(primary=route.primary, members=route.members)
    return bare.SerializeToString(deterministic=True)
