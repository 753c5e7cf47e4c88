"""What a broker is told of its cluster: where etcd is, under which prefix, and how it talks to other brokers."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.journal.auth import Keys
from penstock.journal.cluster.mirror import DEFAULT_PREFIX, WATCH_DELAY
from penstock.journal.cluster.session import TTL
from penstock.journal.tls import ClientTls

LIMIT = 1024
DRAIN = 60.0


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The defaults are the reference's."""

    etcd: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    etcd_user: str = ""
    etcd_password: str = field(default="", repr=False)
    etcd_tls: ClientTls | None = None
    lease: int = TTL
    """Seconds after which a broker that is not heard of counts as gone."""
    limit: int = LIMIT
    """The most replicas that this broker takes."""
    watch_delay: float = WATCH_DELAY
    peer_tls: ClientTls | None = None
    """Whom we trust among brokers that speak TLS, and what we show them."""
    keys: Keys | None = field(default=None, repr=False)
    """What calls to other brokers are signed with."""
    drain: float = DRAIN
    """Seconds that a broker which is to end waits for others to take over."""
