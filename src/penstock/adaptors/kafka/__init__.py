"""`kafka`: the topics of Apache Kafka, read from their beginning and followed; and written, exactly once.

Each topic is a namespace. What the source promises is told in `penstock.adaptors.kafka.source`, what becomes of keys
and values in `penstock.adaptors.kafka.records`, what the sink promises in `penstock.adaptors.kafka.sink`. Brokers from
Apache Kafka 2.5 on; the driver is librdkafka, whose settings can be given in `options`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.base import secrets
from penstock.base.settings import setting

SCHEME = "kafka://"

_OWN = frozenset(
    {
        "bootstrap.servers", "metadata.broker.list", "group.id", "transactional.id", "enable.auto.commit",
        "enable.auto.offset.store", "auto.offset.reset", "isolation.level", "enable.partition.eof",
        "enable.idempotence", "acks", "request.required.acks", "allow.auto.create.topics", "error_cb", "logger",
    }
)  # fmt: skip
"""What the promises of source and sink rest on; nobody else sets it."""

_SECRET = re.compile(r"password|secret|token|key\.pem|jaas|credential", re.IGNORECASE)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,200}")


@dataclass(frozen=True, repr=False)
class Kafka(Adaptor):
    """A Kafka cluster."""

    name: ClassVar[str] = "kafka"
    description: ClassVar[str] = (
        "Apache Kafka. Source: reads topics from their beginning and, if asked to, follows them, with offsets of its "
        "own. Sink: writes topics in transactions that hold the sink's position: exactly once."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    extra: ClassVar[str] = "kafka"

    uri: str = setting("the brokers to ask first", example="kafka://broker1:9092,broker2:9092")
    options: Mapping[str, str] = setting(
        "settings for librdkafka, such as 'security.protocol' or 'sasl.password'", default={}
    )
    timeout: float = setting("seconds to wait for the brokers", default=30.0)
    tail: bool = setting("source: go on with records that come later", default=False)
    value: Literal["json", "text", "binary"] = setting(
        "source: what the values of records are: 'json', 'text' or 'binary'", default="json"
    )
    envelope: bool = setting(
        "source: make documents of key, value, headers, partition, offset and timestamp", default=False
    )
    group: str = setting(
        "source: a consumer group that is told how far the log is, for tools that show lag", default=""
    )
    if_lost: Literal["stop", "accept"] = setting(
        "source: records that are gone before they were read: 'stop', or 'accept' and go on behind them",
        default="stop",
    )
    poll_interval: float = setting(
        "source: seconds between two looks for new topics and partitions", default=5.0
    )
    topics: Mapping[str, str] = setting(
        "sink: the topic of a namespace, where it is not its name", default={}
    )
    prefix: str = setting("sink: what goes before the names of all other namespaces", default="")
    keys: Literal["object", "value"] = setting(
        "sink: what a record's key is: the JSON 'object', or the 'value' of its one field", default="object"
    )
    deletes: Literal["tombstone", "record"] = setting(
        "sink: what a delete becomes: a 'tombstone', or a 'record' like any other", default="tombstone"
    )
    headers: bool = setting(
        "sink: give each record op, namespace, offset and time of its message", default=True
    )
    create: bool = setting("sink: make topics that are not there", default=False)
    partitions: int | None = setting("sink: of topics that it makes; the broker's default", default=None)
    replication: int | None = setting("sink: of topics that it makes; the broker's default", default=None)
    positions: str = setting(
        "sink: the topic of its position is named so, with the sink's name behind it",
        default="penstock.positions",
    )

    def __post_init__(self) -> None:
        if not self.uri.startswith(SCHEME) or not self.servers or "/" in self.servers or "@" in self.servers:
            raise ValueError("setting 'uri': expected kafka://HOST:PORT,HOST:PORT")
        for name, value in self.options.items():
            if name in _OWN:
                raise ValueError(f"setting 'options': '{name}' is Penstock's own to set")
            if _SECRET.search(name):
                secrets.register(value)
        for setting_name in ("timeout", "poll_interval"):
            if not getattr(self, setting_name) > 0:
                raise ValueError(f"setting '{setting_name}': expected more than 0")
        for setting_name in ("partitions", "replication"):
            count = getattr(self, setting_name)
            if count is not None and count < 1:
                raise ValueError(f"setting '{setting_name}': expected 1 or more, got {count}")
        for topic in (*self.topics.values(), self.positions, self.prefix or "x"):
            if not _TOPIC.fullmatch(topic):
                raise ValueError(
                    f"'{topic}' cannot be the name of a topic: letters, digits, '.', '_' and '-' can"
                )

    @property
    def servers(self) -> str:
        """The brokers as librdkafka takes them."""
        return self.uri.removeprefix(SCHEME)

    def source(self) -> Source:
        from penstock.adaptors.kafka.source import KafkaSource

        return KafkaSource(self)

    def sink(self) -> Sink:
        from penstock.adaptors.kafka.sink import KafkaSink

        return KafkaSink(self)
