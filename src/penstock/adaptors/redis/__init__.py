"""`redis`: the streams of Redis or Valkey, read from their beginning and followed; and streams, hashes or JSON written.

Each stream is a namespace, by the name of its key. What the source promises is told in
`penstock.adaptors.redis.source`, what the sink promises in `penstock.adaptors.redis.sink`. One server, or a primary
with replicas; a Redis Cluster is not supported, since a transaction there ends at a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.base import secrets
from penstock.base.settings import setting

SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, repr=False)
class Redis(Adaptor):
    """A Redis or Valkey server."""

    name: ClassVar[str] = "redis"
    description: ClassVar[str] = (
        "Redis and Valkey. Source: reads streams from their beginning and, if asked to, follows them. Sink: writes "
        "streams, or hashes or JSON by key, in one script with the sink's position: exactly once, as far as the server "
        "keeps its data."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    extra: ClassVar[str] = "redis"

    uri: str = setting("the server; rediss:// for TLS", example="redis://:${REDIS_PASSWORD}@localhost:6379/0")
    ca: str = setting("TLS: a file with the certificates to trust; if not given, the machine's", default="")
    certificate: str = setting("TLS: a file with the client's certificate", default="")
    private_key: str = setting("TLS: a file with its key", default="")
    timeout: float = setting("seconds to wait for an answer", default=10.0)
    tail: bool = setting("source: go on with entries that come later", default=False)
    json_field: str = setting(
        "source: the field whose JSON is the document; if not given, all fields", default=""
    )
    id_field: str = setting("source: a field to put the entry's id into", default="")
    key: Sequence[str] = setting("source: the fields that make up a message's key", default=())
    group: str = setting("source: a consumer group that is told how far the log is", default="")
    if_lost: Literal["stop", "accept"] = setting(
        "source: entries that are gone before they were read: 'stop', or 'accept' and go on behind them",
        default="stop",
    )
    poll_interval: float = setting("source: seconds between two looks for new streams", default=5.0)
    mode: Literal["stream", "hash", "json"] = setting(
        "sink: append to a 'stream' for each namespace; or keep a 'hash' or a 'json' text for each row, by its key",
        default="stream",
    )
    prefix: str = setting("sink: what goes before the names of all keys", default="")
    envelope: bool = setting("sink, streams: beside `data`, write op, ns, key, offset and ts", default=True)
    ids: Literal["time", "offset"] = setting(
        "sink, streams: ids by the server's 'time', or by the message's 'offset' in the log", default="time"
    )
    maxlen: int | None = setting("sink, streams: keep about so many entries; all if not given", default=None)
    positions: str = setting(
        "sink: the key of its position is named so, with the sink's name behind it",
        default="penstock:positions",
    )

    def __post_init__(self) -> None:
        parts = urlsplit(self.uri)
        if parts.scheme not in SCHEMES or not (parts.hostname or parts.path.strip("/")):
            raise ValueError("setting 'uri': expected redis://:PASSWORD@HOST:PORT/DATABASE")
        if parts.password:
            secrets.register(parts.password)
        if bool(self.certificate) != bool(self.private_key):
            raise ValueError("settings 'certificate' and 'private_key': expected both or none")
        if self.ca and parts.scheme != "rediss":
            raise ValueError("setting 'ca': expected rediss:// in the setting 'uri'")
        for name in ("timeout", "poll_interval"):
            if not getattr(self, name) > 0:
                raise ValueError(f"setting '{name}': expected more than 0")
        if self.maxlen is not None and self.maxlen < 1:
            raise ValueError(f"setting 'maxlen': expected 1 or more, got {self.maxlen}")

    def source(self) -> Source:
        from penstock.adaptors.redis.source import RedisSource

        return RedisSource(self)

    def sink(self) -> Sink:
        from penstock.adaptors.redis.sink import RedisSink

        return RedisSink(self)
