"""`rabbitmq`: the queues of RabbitMQ consumed, and its exchanges published to.

Each queue is a namespace. What the source promises is told in `penstock.adaptors.rabbitmq.source`, what the sink
promises in `penstock.adaptors.rabbitmq.sink`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.base import secrets
from penstock.base.settings import setting


@dataclass(frozen=True, repr=False)
class RabbitMq(Adaptor):
    """A virtual host of RabbitMQ."""

    name: ClassVar[str] = "rabbitmq"
    description: ClassVar[str] = (
        "RabbitMQ. Source: consumes queues and acknowledges what is in the log. Sink: publishes persistent messages "
        "with confirms. Both at least once."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    extra: ClassVar[str] = "rabbitmq"

    uri: str = setting(
        "the server and virtual host; amqps:// for TLS",
        example="amqp://penstock:${RABBIT_PASSWORD}@localhost:5672/",
    )
    ca: str = setting("TLS: a file with the certificates to trust; if not given, the machine's", default="")
    certificate: str = setting("TLS: a file with the client's certificate", default="")
    private_key: str = setting("TLS: a file with its key", default="")
    timeout: float = setting("seconds to wait for an answer", default=20.0)
    queues: Sequence[str] = setting(
        "source: the queues there are", default=(), example=["orders"], needed=True
    )
    management: str = setting(
        "source: the management API, which is asked for the queues; user and password are those of 'uri'",
        default="",
        example="http://localhost:15672",
    )
    prefetch: int = setting("source: the most messages of a queue that are not acknowledged", default=200)
    deduplicate: bool = setting(
        "source: leave out a message that comes again and whose message id is in the log", default=False
    )
    key: Sequence[str] = setting("source: the fields that make up a message's key", default=())
    poll_interval: float = setting("source: seconds between two looks for new queues", default=5.0)
    exchange: str = setting("sink: the exchange to publish to; {ns} stands for the namespace", default="{ns}")
    routing_key: str = setting("sink: the routing key; {ns} stands for the namespace", default="")
    key_field: str = setting(
        "sink: the field that holds the routing key, in place of 'routing_key'", default=""
    )
    mandatory: bool = setting("sink: refuse a message that reaches no queue", default=True)
    envelope: bool = setting("sink: headers with op, namespace, offset, time and key", default=True)

    def __post_init__(self) -> None:
        parts = urlsplit(self.uri)
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise ValueError("setting 'uri': expected amqp://USER:PASSWORD@HOST:PORT/VHOST")
        if parts.password:
            secrets.register(parts.password)
        if self.management and urlsplit(self.management).scheme not in ("http", "https"):
            raise ValueError("setting 'management': expected http://HOST:15672")
        for name in ("timeout", "poll_interval"):
            if not getattr(self, name) > 0:
                raise ValueError(f"setting '{name}': expected more than 0")
        if not 1 <= self.prefetch <= 65535:
            raise ValueError(f"setting 'prefetch': expected 1 to 65535, got {self.prefetch}")
        if bool(self.certificate) != bool(self.private_key):
            raise ValueError("settings 'certificate' and 'private_key': expected both or none")

    @property
    def place(self) -> str:
        """The server without user and password, for texts."""
        parts = urlsplit(self.uri)
        return f"{parts.hostname}:{parts.port or (5671 if parts.scheme == 'amqps' else 5672)}"

    def source(self) -> Source:
        from penstock.adaptors.rabbitmq.source import RabbitMqSource

        return RabbitMqSource(self)

    def sink(self) -> Sink:
        from penstock.adaptors.rabbitmq.sink import RabbitMqSink

        return RabbitMqSink(self)
