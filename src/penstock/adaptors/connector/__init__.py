"""`connector`: programs in any language that stream into a pipeline over the connector protocol, or out of it.

What the source promises is told in `penstock.adaptors.connector.source`, what the sink promises in
`penstock.adaptors.connector.sink`; the protocol is in `docs/connector.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.base.errors import UsageError
from penstock.base.settings import setting
from penstock.base.units import Unit

MOST_CONNECTIONS = 256


@dataclass(frozen=True, repr=False)
class Connector(Adaptor):
    """Programs that speak the connector protocol."""

    name: ClassVar[str] = "connector"
    description: ClassVar[str] = (
        "the connector protocol. Source: listens for connectors, takes their streams, and acknowledges a message once "
        "it is in the log, where it is once. Sink: each batch is one transaction there, by two-phase commit; the "
        "connector sinks of a pipeline commit together, or none of them does: exactly once."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    aliases: ClassVar[Mapping[str, str]] = {"sink": "to"}

    listen: str = setting(
        "source: the HOST:PORT at which connectors are taken",
        default="",
        example="127.0.0.1:7110",
        needed=True,
    )
    instance: str = setting("source: the instance that connectors name", default="default")
    cookie: str = setting("the secret that both sides share; none if not given", default="", secret=True)
    body: Literal["json", "text"] = setting(
        "source: what a message holds: a JSON object, or text, which becomes the field 'text'", default="json"
    )
    key: Sequence[str] = setting(
        "source: the fields that make up a message's key; if not given, the message's own key, as {'key': ...}",
        default=(),
    )
    tail: bool = setting("source: go on when all streams have ended", default=False)
    credits: int = setting("source: messages that a connector may send ahead", default=131072)
    certificate: str = setting(
        "source: TLS: a file with the certificate to show; connectors then come over TLS or not at all",
        default="",
    )
    private_key: str = setting("source: TLS: a file with its key", default="")
    ca: str = setting(
        "source: TLS: a file with certificates; connectors then need one that one of them has signed",
        default="",
    )
    http: str = setting(
        "source: the HOST:PORT of its `/status` and `/metrics`, which `penstock connector status` asks; port 0: a free "
        "one; 'off': nowhere",
        default="127.0.0.1:0",
    )
    to: str = setting(
        "sink: its address, HOST:PORT; `sink=` says the same",
        default="",
        example="localhost:7200",
        needed=True,
    )
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
        "sink: whether to rely on the offset that it vouches for in its answer to NOTIFY", default=True
    )
    envelope: bool = setting("sink: write op, ts and ns around the data of each line", default=False)
    frame_bytes: int = setting(
        "sink: lines are sent in frames of about so many bytes; 0 for a frame each",
        default=64 << 10,
        unit=Unit.BYTES,
    )
    timeout: float = setting("sink: seconds to wait for an answer", default=60.0, unit=Unit.SECONDS)

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.private_key):
            raise ValueError("settings 'certificate' and 'private_key': expected both or none")
        if self.ca and not self.certificate:
            raise ValueError("setting 'ca': expected 'certificate' and 'private_key' with it")
        if self.to and self.certificate:
            raise ValueError(
                "setting 'certificate': expected 'listen' with it; connections to sinks have no TLS"
            )
        if self.to:
            self.address  # noqa: B018 - checked when the pipeline is read
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
        """Of the sink."""
        host, _, port = self.to.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"setting 'sink': expected HOST:PORT, got '{self.to}'")
        return host.strip("[]"), int(port)

    def sink(self) -> Sink:
        if not self.to:
            raise UsageError(
                "adaptor 'connector' as a sink needs 'sink'", hint='for example sink="localhost:7200"'
            )
        from penstock.adaptors.connector.sink import ConnectorSink

        return ConnectorSink(self)

    def source(self) -> Source:
        if not self.listen:
            raise UsageError(
                "adaptor 'connector' as a source needs 'listen'", hint='for example listen="127.0.0.1:7110"'
            )
        from penstock.adaptors.connector.source import ConnectorSource

        return ConnectorSource(self)
