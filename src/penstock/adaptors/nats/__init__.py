"""`nats`: the streams of NATS JetStream, read from their beginning and followed; and one stream written.

Each stream is a namespace. What the source promises is told in `penstock.adaptors.nats.source`, what the sink promises
in `penstock.adaptors.nats.sink`. Core NATS, which keeps nothing, is not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.base import secrets
from penstock.base.settings import setting

SCHEMES = ("nats", "tls")


@dataclass(frozen=True, repr=False)
class Nats(Adaptor):
    """The JetStream of NATS servers."""

    name: ClassVar[str] = "nats"
    description: ClassVar[str] = (
        "NATS JetStream. Source: reads streams from their beginning and, if asked to, follows them, by their own "
        "sequence numbers. Sink: writes a stream that no other writes, exactly once; or, with `shared`, at least once."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    extra: ClassVar[str] = "nats"

    uri: str = setting(
        "the servers, parted by commas; tls:// for TLS",
        example="nats://penstock:${NATS_PASSWORD}@localhost:4222",
    )
    token: str = setting("a token, in place of user and password", default="", secret=True)
    credentials: str = setting("a file of credentials (.creds)", default="")
    ca: str = setting("TLS: a file with the certificates to trust; if not given, the machine's", default="")
    certificate: str = setting("TLS: a file with the client's certificate", default="")
    private_key: str = setting("TLS: a file with its key", default="")
    timeout: float = setting("seconds to wait for an answer", default=10.0)
    tail: bool = setting("source: go on with messages that come later", default=False)
    subject: str = setting("source: read only what has this subject; * and > as in NATS", default="")
    subject_field: str = setting("source: a field to put a message's subject into", default="")
    headers_field: str = setting("source: a field to put a message's headers into", default="")
    key: Sequence[str] = setting("source: the fields that make up a message's key", default=())
    if_lost: Literal["stop", "accept"] = setting(
        "source: messages that are gone before they were read: 'stop', or 'accept' and go on behind them",
        default="stop",
    )
    poll_interval: float = setting("source: seconds between two looks for new streams", default=5.0)
    stream: str = setting("sink: the stream to write", default="", example="SHOP", needed=True)
    prefix: str = setting(
        "sink: what goes before a namespace to make the subject of its messages", default=""
    )
    envelope: bool = setting("sink: headers with op, namespace, time and key of a message", default=True)
    shared: bool = setting("sink: others write the stream too; then at least once", default=False)
    create: bool = setting(
        "sink: make the stream, for the subjects that begin with the prefix", default=False
    )

    def __post_init__(self) -> None:
        for server in self.servers:
            parts = urlsplit(server)
            if parts.scheme not in SCHEMES or not parts.hostname:
                raise ValueError("setting 'uri': expected nats://USER:PASSWORD@HOST:PORT")
            if parts.password:
                secrets.register(parts.password)
        for name in ("timeout", "poll_interval"):
            if not getattr(self, name) > 0:
                raise ValueError(f"setting '{name}': expected more than 0")
        if self.create and not self.prefix.rstrip("."):
            raise ValueError("setting 'create': expected a setting 'prefix' too, such as 'shop.'")
        if bool(self.certificate) != bool(self.private_key):
            raise ValueError("settings 'certificate' and 'private_key': expected both or none")

    @property
    def servers(self) -> Sequence[str]:
        """Each as a uri of its own; a scheme that is left out is that of the first."""
        scheme = self.uri.partition("://")[0]
        return [one if "://" in one else f"{scheme}://{one}" for one in self.uri.split(",")]

    @property
    def place(self) -> str:
        """The servers without user and password, for texts."""
        return ",".join(f"{urlsplit(one).hostname}:{urlsplit(one).port or 4222}" for one in self.servers)

    def source(self) -> Source:
        from penstock.adaptors.nats.source import NatsSource

        return NatsSource(self)

    def sink(self) -> Sink:
        from penstock.adaptors.nats.sink import NatsSink

        return NatsSink(self)
