"""The writing half of `kafka`: rows and the sink's position in one transaction of Kafka, hence exactly once.

The position stands in a compacted topic of the sink's own, `penstock.positions.PIPELINE.SINK`, whose name is also the
id of its transactions: whoever opens the sink ends what another process of the same name has begun, and fences it off.
Consumers have to read `read_committed`, or they see what was never meant to be: parts of batches that failed.

Records go out in the order of the log; those with the same key stay in it. What rows become is told in
`penstock.adaptors.kafka.target`.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import (
    Finding,
    Guarantee,
    Order,
    Publisher,
    Sink,
    SinkPosition,
    Staged,
    Stager,
)
from penstock.adaptors.continuing import continued
from penstock.adaptors.kafka import Kafka
from penstock.adaptors.kafka.client import Cluster, Trouble, driver
from penstock.adaptors.kafka.target import Check, Limits, Out, Writer, limits_of, make_topic
from penstock.adaptors.parts import PartStager, read_parts, rows_of
from penstock.base.errors import AwayError, CorruptError, PenstockError, RefusedError, UsageError
from penstock.base.secrets import mask

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer
    from confluent_kafka.admin import AdminClient

FORMAT = 1
LARGEST_BATCH = 1_000_000
"""Bytes that librdkafka puts together, unless a topic takes less."""

LARGEST_RECORD = 100_000_000
"""What the driver lets pass; the limits of the topics are lower."""

ABORTING = 5.0
"""Seconds for ending a transaction that failed; if that does not work, the next `open` ends it."""

_REFUSED = (
    "MSG_SIZE_TOO_LARGE",
    "INVALID_RECORD",
    "INVALID_TIMESTAMP",
    "RECORD_LIST_TOO_LARGE",
    "INVALID_MSG_SIZE",
)
_FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
_NO_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")


class KafkaSink(Sink):
    """Topics of one cluster."""

    order = Order.PER_KEY
    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, settings: Kafka) -> None:
        self._settings = settings
        self._limits: dict[str, Limits] = {}

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        cluster, trouble = Cluster(self._settings), Trouble()
        there = cluster.topics(cluster.admin(trouble), trouble)
        writer, found = Writer(self._settings), []
        topics = set(self._settings.topics.values()) if namespaces is None else set()
        for ns in namespaces or ():
            try:
                topics.add(writer.topic(ns))
            except UsageError as error:
                found.append(Finding(error.message, error.hint, fatal=True))
        make = f"kafka-topics.sh --bootstrap-server {self._settings.servers} --create --topic"
        missing = sorted(topics - there.keys()) if not self._settings.create else []
        return found + [
            Finding(f"topic '{topic}' is not there", f"{make} {topic}", fatal=True) for topic in missing
        ]

    def stager(self) -> Stager:
        return PartStager(Check(self._settings, self._limits))

    def publisher(self) -> Publisher:
        return KafkaPublisher(self._settings, self.name, self._limits)

    def staging(self, scratch: Path) -> Path:
        return scratch


class Kept(msgspec.Struct, frozen=True):
    """The content of the sink's position topic."""

    log: str
    generation: int
    watermark: int
    format: int = FORMAT


class KafkaPublisher(Publisher):
    """Sends what was staged.

    To open:

    1. make the topic of the position, if it is not there;
    2. begin as a producer with the sink's id: what an earlier one left unfinished is aborted, and that one fenced off;
    3. read the position, which nobody else can move any more.

    To publish: begin a transaction, send the records in their order and the position behind them, commit. A commit
    that was not answered is found out at the next `open`: its position is there, or it is not.
    """

    def __init__(self, settings: Kafka, name: str, limits: dict[str, Limits]) -> None:
        self._settings = settings
        self._cluster = Cluster(settings)
        self._topic = position_topic(settings.positions, name)
        self._limits = limits
        self._writer = Writer(settings)
        self._trouble = Trouble()
        self._admin: AdminClient | None = None
        self._producer: Producer | None = None
        self._batch = LARGEST_BATCH
        self._failed: KafkaError | None = None

    def open(self, start: SinkPosition) -> SinkPosition:
        self.close()
        self._trouble = Trouble()
        self._limits.clear()
        self._admin = admin = self._cluster.admin(self._trouble)
        self._cluster.listed(admin, "cannot reach the brokers", self._trouble)
        kept_settings = {"cleanup.policy": "compact", "segment.ms": "3600000"}
        make_topic(self._cluster, admin, self._topic, self._trouble, kept_settings, partitions=1)  # 1
        try:
            self._begin()  # 2
            kept = self._kept(admin)  # 3
            if kept is None:
                self._claim(start)
                return start
        except PenstockError:
            self.close()
            raise
        return self._continued(kept, start)

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        self._prepare(parts)
        producer = self._producer
        if producer is None or self._admin is None:
            raise PenstockError(f"the sink of '{self._topic}' is not open")
        self._failed = None
        library = driver()
        try:
            producer.begin_transaction()
            for record in self._records(parts):
                self._send(producer, record)
            self._send(producer, self._position(position))
            self._commit(producer)
        except library.KafkaException as error:
            raise self._ended(producer, error.args[0]) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Whatever is not committed is aborted by the next `open`, or by the brokers in time."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None
        self._admin = None

    def _begin(self) -> None:
        timeout = int(self._settings.timeout * 1000)
        self._producer = None
        self._producer = self._cluster.producer(
            self._trouble,
            {
                "transactional.id": self._topic,
                "transaction.timeout.ms": max(120_000, timeout),
                "message.timeout.ms": timeout,
                "message.max.bytes": LARGEST_RECORD,
                "batch.size": self._batch,
                "linger.ms": 5,
                "partitioner": self._settings.options.get("partitioner", "murmur2_random"),
                "delivery.report.only.error": True,
            },
        )
        with self._cluster.asking("cannot begin as a producer", self._trouble):
            self._producer.init_transactions(self._settings.timeout)

    def _prepare(self, parts: Sequence[Staged]) -> None:
        """Know all topics, make those that are to be made, and have batches that the smallest of them takes."""
        if self._admin is None:
            return
        names = {ns for batch in read_parts(parts, ["ns"]) for ns in batch.column("ns").unique().to_pylist()}
        new = sorted({self._writer.topic(ns) for ns in names} - self._limits.keys())
        if not new:
            return
        found = limits_of(self._cluster, self._admin, new, self._trouble)
        missing = [topic for topic in new if found.get(topic) is None]
        if missing and not self._settings.create:
            raise UsageError(
                f"there is no topic '{missing[0]}' at {self._settings.servers}",
                hint="make it, or set create=True",
            )
        for topic in missing:
            make_topic(self._cluster, self._admin, topic, self._trouble, {}, self._settings.partitions or -1)
        if missing:
            found |= limits_of(self._cluster, self._admin, missing, self._trouble)
        self._limits |= {topic: limit for topic, limit in found.items() if limit is not None}
        smallest = min([LARGEST_BATCH, *(limit.bytes for limit in self._limits.values())])
        if smallest < self._batch:
            self._batch = smallest
            self._begin()

    def _records(self, parts: Sequence[Staged]) -> Iterator[Out]:
        for batch in read_parts(parts):
            for row in rows_of(batch):
                yield from self._writer.records(row)

    def _position(self, position: SinkPosition) -> Out:
        kept = Kept(position.log, position.generation, position.watermark)
        return Out(self._topic, b"position", msgspec.json.encode(kept), [], position.watermark)

    def _send(self, producer: Producer, record: Out) -> None:
        deadline = time.monotonic() + self._settings.timeout
        while self._failed is None:
            try:
                producer.produce(
                    record.topic, record.value, record.key, headers=record.headers, on_delivery=self._reported
                )
            except BufferError:  # the driver's queue is full, which is as it should be
                if time.monotonic() > deadline:
                    raise AwayError(
                        f"the brokers at {self._settings.servers} take no records for {self._settings.timeout:.0f} s"
                    ) from None
                producer.poll(0.1)
            else:
                producer.poll(0)
                return
        raise driver().KafkaException(self._failed)

    def _reported(self, error: KafkaError | None, record: Message) -> None:
        if error is not None and self._failed is None:
            self._failed = error

    def _commit(self, producer: Producer) -> None:
        """Ask for the commit until it is answered, for as long as the settings say."""
        deadline = time.monotonic() + self._settings.timeout
        while True:
            try:
                producer.commit_transaction(max(deadline - time.monotonic(), 0.1))
            except driver().KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= deadline:
                    raise
            else:
                return

    def _ended(self, producer: Producer, error: KafkaError) -> PenstockError:
        """A transaction failed: end it, as far as that is still possible, and say why."""
        reason = self._failed or error
        raised = self._error(reason)
        if not isinstance(raised, AwayError) and not error.fatal():
            with contextlib.suppress(driver().KafkaException):
                producer.abort_transaction(ABORTING)
        self.close()
        return raised

    def _error(self, error: KafkaError) -> PenstockError:
        name = error.name()
        text = f"{mask(error.str())} ({name})"
        if name in _REFUSED:
            self._limits.clear()
            return RefusedError(f"Kafka refused a batch: {text}")
        if name in _FENCED:
            return PenstockError(
                f"another process writes as '{self._topic}' and has fenced this one off: {text}",
                hint="two pipelines of the same name write to this cluster: give one of them another name",
            )
        if name in _NO_TOPIC:
            self._limits.clear()
            return UsageError(f"a topic is not there any more: {text}", hint="make it, or set create=True")
        return self._cluster.error_of("cannot write", error, self._trouble)

    def _claim(self, start: SinkPosition) -> None:
        """The first time: from now on this log has the topic of the position."""
        producer = self._producer
        assert producer is not None
        try:
            producer.begin_transaction()
            self._send(producer, self._position(start))
            self._commit(producer)
        except driver().KafkaException as error:
            raise self._ended(producer, error.args[0]) from None

    def _continued(self, kept: Kept, start: SinkPosition) -> SinkPosition:
        held = SinkPosition(kept.log, kept.generation, kept.watermark)
        try:
            return continued(
                held, start, f"the target of topic '{self._topic}'", f"delete the topic '{self._topic}'"
            )
        except UsageError:
            self.close()
            raise

    def _kept(self, admin: AdminClient) -> Kept | None:
        """The last committed position. It stands near the end, behind it at most what failed."""
        here = (self._topic, 0)
        low = self._cluster.offsets(admin, [here], self._trouble, which="earliest")[here]
        end = self._cluster.offsets(admin, [here], self._trouble, which="end")[here]
        window = 64
        while True:
            begin = max(low, end - window)
            found = self._last(begin, end) if begin < end else None
            if found is not None:
                return _decoded(found, self._topic)
            if begin == low:
                return None
            window *= 8

    def _last(self, begin: int, end: int) -> bytes | None:
        """The last committed value in [begin, end)."""
        library, found = driver(), None
        own = {
            "group.id": self._topic, "enable.auto.commit": False, "auto.offset.reset": "error",
            "isolation.level": "read_committed", "enable.partition.eof": True, "fetch.wait.max.ms": 50,
        }  # fmt: skip
        consumer = self._cluster.consumer(self._trouble, own)
        deadline = time.monotonic() + self._settings.timeout
        with contextlib.closing(consumer):
            with self._cluster.asking("cannot read the sink's position", self._trouble):
                consumer.list_topics(
                    self._topic, timeout=self._settings.timeout
                )  # else it takes a second to begin
            consumer.assign([library.TopicPartition(self._topic, 0, begin)])
            while time.monotonic() < deadline:
                record = consumer.poll(0.5)
                if record is None:
                    continue
                error, offset = record.error(), record.offset() or 0
                if error is None:
                    found = record.value()
                elif error.name() != "_PARTITION_EOF":
                    raise self._cluster.error_of("cannot read the sink's position", error, self._trouble)
                elif offset >= end:
                    return found
        raise AwayError(
            f"the position in topic '{self._topic}' cannot be read to its end, which is {end}",
            hint="brokers that have just started take a moment; if it stays so, a crash has left a transaction in it "
            "without an end: `kafka-transactions.sh find-hanging` shows it, and `abort` ends it",
        )


def position_topic(positions: str, name: str) -> str:
    """The topic of a sink's position; what cannot be in the name of a topic is spelled as its code."""
    spelled = re.sub(r"[^a-zA-Z0-9._-]", lambda found: f"_x{ord(found[0]):x}_", name or "sink")
    return f"{positions}.{spelled}"[:249]


def _decoded(text: bytes, topic: str) -> Kept:
    try:
        kept = msgspec.json.decode(text, type=Kept)
    except msgspec.DecodeError as error:
        raise CorruptError(
            f"not the position of a sink: {error}", where=f"topic {topic}", position=0,
            hint="something else writes to this topic; give the setting 'positions' another name",
        ) from None  # fmt: skip
    if kept.format > FORMAT:
        raise CorruptError(
            f"format {kept.format}, this version knows {FORMAT}", where=f"topic {topic}", position=0,
            hint="use the version of Penstock that wrote it, or a newer one",
        )  # fmt: skip
    return kept
