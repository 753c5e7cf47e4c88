"""The topics that a sink writes: their names, what they take, and the records that rows become.

    message                          records, in this order
    insert, update, command          data, under the message's key
    update that changes the key      a delete of the old key; then data, under the new one
    delete                           a tombstone under the key, or with deletes='record' the data
    noop, skip                       none: under the key it would stand for the row

A record is refused, by its message's offset, where its topic can never take it: larger than the topic's
`max.message.bytes`, without a key in a topic that is compacted, or a tombstone without a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.adaptors.base import Refusal
from penstock.adaptors.kafka import Kafka
from penstock.adaptors.kafka.client import Cluster, Trouble, administration, driver, settled
from penstock.adaptors.parts import Row, rows_of
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.log.values import decode_document, encode

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka.admin import AdminClient

OVERHEAD = 128
"""Bytes of a record and the batch around it, beside its key, value and headers; a little more than there are."""

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a topic takes."""

    bytes: int
    compacted: bool


Headers = list[tuple[str, str | bytes | None]]
"""As the driver takes them; the contents are bytes."""


class Out(NamedTuple):
    """A record to write."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    offset: int


class Writer:
    """Makes records of rows, by the settings of a sink."""

    def __init__(self, settings: Kafka) -> None:
        self._topics, self._prefix = settings.topics, settings.prefix
        self._headers, self._tombstones = settings.headers, settings.deletes == "tombstone"
        self._by_value = settings.keys == "value"

    def topic(self, ns: str) -> str:
        topic = self._topics.get(ns) or f"{self._prefix}{ns}"
        if not _NAME.fullmatch(topic) or topic in (".", ".."):
            raise UsageError(
                f"namespace '{ns}' cannot be a topic: letters, digits, '.', '_' and '-' can be in its name",
                hint=f"name one for it: topics={{{ns!r}: 'a-name'}}",
            )
        return topic

    def records(self, row: Row) -> Iterator[Out]:
        if row.op in ("noop", "skip"):
            return
        topic = self.topic(row.ns)
        headers = self._headers_of(row, row.op)
        key = self._key(row.key)
        if row.old_key is not None:
            old = None if self._tombstones else row.old_key
            yield Out(topic, self._key(row.old_key), old, self._headers_of(row, "delete"), row.offset)
        gone = row.op == "delete" and self._tombstones
        yield Out(topic, key, None if gone else row.data, headers, row.offset)

    def _headers_of(self, row: Row, op: str) -> Headers:
        if not self._headers:
            return []
        return [
            ("penstock.op", op.encode()),
            ("penstock.ns", row.ns.encode()),
            ("penstock.offset", b"%d" % row.offset),
            ("penstock.ts", b"%d" % row.ts),
        ]

    def _key(self, key: bytes | None) -> bytes | None:
        """The key as it is, or the value of its one field: text and bytes as they are, others as JSON."""
        if key is None or not self._by_value:
            return key
        values = list(decode_document(key).values())
        if len(values) != 1:
            return key
        if isinstance(values[0], bytes):
            return values[0]
        return values[0].encode() if isinstance(values[0], str) else encode(values[0])


class Check:
    """Tells which messages their topics can never take; runs in tasks, which ask only for topics that are new."""

    def __init__(self, settings: Kafka, limits: Mapping[str, Limits]) -> None:
        self._settings = settings
        self._limits = dict(limits)

    def __call__(self, batch: pa.RecordBatch) -> Sequence[Refusal]:
        import pyarrow.compute as pc

        writer = Writer(self._settings)
        limits = self._learned(_topics_of(writer, pc.unique(batch.column("ns")).to_pylist()))
        refused: dict[int, Refusal] = {}
        suspects = batch.filter(self._suspects(batch, limits))
        for row, origin in zip(rows_of(suspects), suspects.column("origin").to_pylist(), strict=True):
            reason = self._fault(writer, row, limits)
            if reason is not None:
                refused.setdefault(row.offset, Refusal(row.offset, origin, reason, ""))
        return list(refused.values())

    def _suspects(self, batch: pa.RecordBatch, limits: Mapping[str, Limits]) -> pa.Array:
        """Rows that are worth a closer look: most are small and have a key."""
        import pyarrow.compute as pc

        sizes = pc.add(
            pc.fill_null(pc.binary_length(batch.column("data")), 0),
            pc.multiply(pc.add(pc.fill_null(pc.binary_length(batch.column("key")), 0), 512), 2),
        )
        smallest = min((one.bytes for one in limits.values()), default=1 << 40)
        keyless = pc.is_null(batch.column("key"))
        if not any(one.compacted for one in limits.values()):
            keyless = pc.and_(keyless, pc.equal(batch.column("op"), "delete"))
        return pc.or_(pc.greater(sizes, smallest), keyless)

    def _fault(self, writer: Writer, row: Row, limits: Mapping[str, Limits]) -> str | None:
        try:
            records = list(writer.records(row))
        except UsageError:
            return None  # the publisher says it: nothing is wrong with the message
        for record in records:
            limit = limits.get(record.topic)
            if record.key is None and record.value is None:
                return "a delete without a key cannot be a tombstone; set deletes='record'"
            if limit is None:
                continue
            if limit.compacted and record.key is None:
                return f"topic '{record.topic}' is compacted, and the message has no key"
            size = size_of(record)
            if size > limit.bytes and not self._settings.options.get("compression.type"):
                return f"a record of {size} bytes, topic '{record.topic}' takes {limit.bytes} (max.message.bytes)"
        return None

    def _learned(self, topics: Iterable[str]) -> Mapping[str, Limits]:
        """Limits of all topics that are there; those that cannot be asked for now the publisher will hear of."""
        wanted = list(topics)
        new = [topic for topic in wanted if topic not in self._limits]
        if new:
            cluster, trouble = Cluster(self._settings), Trouble()
            try:
                found = limits_of(cluster, cluster.admin(trouble), new, trouble)
            except (AwayError, UsageError):
                found = {}
            self._limits |= {topic: limit for topic, limit in found.items() if limit is not None}
        return {topic: self._limits[topic] for topic in wanted if topic in self._limits}


def size_of(record: Out) -> int:
    """The bytes that a broker counts for a record that comes alone; an upper bound."""
    headers = sum(len(name) + len(content or b"") + 10 for name, content in record.headers)
    return OVERHEAD + len(record.key or b"") + len(record.value or b"") + headers


def limits_of(
    cluster: Cluster, admin: AdminClient, topics: Sequence[str], trouble: Trouble
) -> dict[str, Limits | None]:
    """What these topics take; None for one that is not there."""
    library, found = administration(), dict[str, Limits | None]()
    resources = [library.ConfigResource(library.ConfigResource.Type.TOPIC, topic) for topic in topics]
    with cluster.asking("cannot ask for the settings of topics", trouble):
        answers = admin.describe_configs(resources, request_timeout=cluster.settings.timeout)
        for resource, answer in settled(answers):
            try:
                settings = answer.result()
            except driver().KafkaException as error:
                if error.args[0].name() not in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
                    raise
                found[resource.name] = None
                continue
            policy = settings["cleanup.policy"].value
            found[resource.name] = Limits(int(settings["max.message.bytes"].value), "compact" in policy)
    return found


def make_topic(
    cluster: Cluster,
    admin: AdminClient,
    topic: str,
    trouble: Trouble,
    settings: Mapping[str, str],
    partitions: int,
) -> None:
    """Make a topic; that it is there already is fine. On return brokers know it."""
    library = administration()
    new = library.NewTopic(topic, partitions, cluster.settings.replication or -1, config=dict(settings))
    with cluster.asking(f"cannot make the topic '{topic}'", trouble):
        for answer in admin.create_topics([new], operation_timeout=cluster.settings.timeout).values():
            try:
                answer.result()
            except driver().KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    raise


def _topics_of(writer: Writer, names: Iterable[str]) -> list[str]:
    found = []
    for ns in names:
        try:
            found.append(writer.topic(ns))
        except PenstockError:
            continue
    return found
