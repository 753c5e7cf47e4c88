"""A cluster for the page: what etcd says of brokers and journals, looked at no more often than it is worth.

The same look as `penstock cluster status`. Replicas are asked for their write heads as long as there are not too many.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.base.errors import PenstockError
from penstock.base.secrets import mask
from penstock.console.views import Json
from penstock.journal.client.connection import NoTokens, Tls, Tokens
from penstock.journal.cluster.etcd import EtcdClient
from penstock.journal.cluster.status import ClusterStatus, JournalStatus, cluster_status
from penstock.journal.protocol import LabelSelector
from penstock.journal.tls import ClientTls

_FRESH_SECONDS = 2.0
_ASKED = 500
_SHOWN = 50
_MAX_REPLICATION = 9


@dataclass(frozen=True, slots=True)
class Etcd:
    """How etcd is reached, and the brokers behind it."""

    addresses: Sequence[str]
    prefix: str
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ClientTls | None = None
    broker_tls: Tls | None = None
    tokens: Tokens = field(default_factory=NoTokens)


class Cluster:
    """May be used by several threads."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self._lock = threading.Lock()
        self._seen: tuple[float, ClusterStatus | None, str | None] = (float("-inf"), None, None)

    def look(self) -> tuple[ClusterStatus | None, str | None]:
        """How the cluster stands, or why that cannot be told."""
        with self._lock:
            if time.monotonic() - self._seen[0] > _FRESH_SECONDS:
                found, problem = None, None
                try:
                    found = asyncio.run(self._ask())
                except (PenstockError, OSError) as error:
                    problem = mask(str(error))
                self._seen = (time.monotonic(), found, problem)
            return self._seen[1], self._seen[2]

    async def _ask(self) -> ClusterStatus:
        etcd = self._etcd
        async with EtcdClient(etcd.addresses, user=etcd.user, password=etcd.password, tls=etcd.tls) as client:

            async def look(*, heads: bool) -> ClusterStatus:
                return await cluster_status(
                    client,
                    etcd.prefix,
                    selector=LabelSelector(),
                    max_replication=_MAX_REPLICATION,
                    tls=etcd.broker_tls,
                    tokens=etcd.tokens,
                    heads=heads,
                )

            first = await look(heads=False)
            replicas = sum(len(journal.replicas) for journal in first.journals)
            return await look(heads=True) if replicas <= _ASKED else first

    def told(self) -> Json:
        """For the page: etcd, the brokers, and the journals that are not well."""
        found, problem = self.look()
        shown: Json = {"etcd": [mask(address) for address in self._etcd.addresses], "problem": problem}
        if found is None:
            return shown
        unwell = [journal for journal in found.journals if not journal.is_well]
        return {
            **shown,
            "prefix": found.prefix,
            "revision": found.revision,
            "members": [
                {
                    "name": f"{one.zone}/{one.id}",
                    "endpoint": one.endpoint,
                    "replica": one.replicas - one.primaries,
                    "primary": one.primaries,
                    "limit": one.limit,
                    "exiting": one.exiting,
                    "leader": one.leader,
                }
                for one in found.members
            ],
            "unwell": [{"name": one.name, "state": one.state} for one in unwell[:_SHOWN]],
            "unwell_count": len(unwell),
        }

    def journal(self, name: str) -> JournalStatus | None:
        found, _ = self.look()
        return next((one for one in found.journals if one.name == name), None) if found else None
