"""`connector`: programs in any language that speak the connector protocol, at the other end of a connection.

As a sink, `connector(sink="HOST:PORT")`, each batch is one transaction there (`penstock.adaptors.connector.sink`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.adaptors.base import Adaptor, Sink
from penstock.base import secrets
from penstock.base.settings import setting
from penstock.base.units import Unit

MOST_CONNECTIONS = 256


@dataclass(frozen=True, repr=False)
class Connector(Adaptor):
    """A sink of the connector protocol."""

    name: ClassVar[str] = "connector"
    description: ClassVar[str] = (
        "Programs in any language that speak the connector protocol. Sink: each batch is one transaction there, by "
        "two-phase commit; the connector sinks of a pipeline commit together, or none of them does: exactly once."
    )
    writes: ClassVar[bool] = True

    aliases: ClassVar[Mapping[str, str]] = {"sink": "to"}

    to: str = setting("the sink's address, HOST:PORT; `sink=` says the same", example="localhost:7200")
    cookie: str = setting("the secret that both sides know", default="", secret=True)
    connections: int = setting(
        "sink: connections at once; all messages of a key go over the same one, in order", default=1
    )
    atomic: bool = setting(
        "sink: commit together with the pipeline's other connector sinks; False gives it a query of its own",
        default=True,
    )
    transactional: bool = setting(
        "sink: whether the sink can abort; False for one that always commits: at least once", default=True
    )
    check_offsets: bool = setting(
        "sink: whether the offset in its answer to NOTIFY can be relied on", default=True
    )
    envelope: bool = setting("sink: write op, ts and ns around the data of each line", default=False)
    frame_bytes: int = setting(
        "sink: lines are sent in frames of about so many bytes; 0 for a frame each",
        default=64 << 10,
        unit=Unit.BYTES,
    )
    timeout: float = setting("seconds to wait for an answer", default=60.0, unit=Unit.SECONDS)

    def __post_init__(self) -> None:
        self.address  # noqa: B018 - checked when the pipeline is read
        if self.cookie:
            secrets.register(self.cookie)
        if not 1 <= self.connections <= MOST_CONNECTIONS:
            raise ValueError(
                f"setting 'connections': expected 1 to {MOST_CONNECTIONS}, got {self.connections}"
            )
        if not 0 <= self.frame_bytes <= 8 << 20:
            raise ValueError("setting 'frame_bytes': expected 0 to 8MB")
        if not self.timeout > 0:
            raise ValueError("setting 'timeout': expected more than 0")

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.to.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"setting 'sink': expected HOST:PORT, got '{self.to}'")
        return host.strip("[]"), int(port)

    def sink(self) -> Sink:
        from penstock.adaptors.connector.sink import ConnectorSink

        return ConnectorSink(self)
