"""Topics for tests: made, written, read and taken away past the adaptor."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from tests.servers.kafka import KafkaServer

QUIET = {"log_level": 1}
TIMEOUT = 60.0

Headers = list[tuple[str, str | bytes | None]]


class Topics:
    """What a test does at the broker itself."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        self.settings: dict[str, str | int | float | bool] = {"bootstrap.servers": server.address, **QUIET}
        self.admin = AdminClient(self.settings)
        self._producer: Producer | None = None

    def make(self, word: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        return self.made(f"{word}-{uuid.uuid4().hex[:8]}", partitions, settings)

    def made(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        config = {"max.message.bytes": str(40 * 1024 * 1024), **(settings or {})}
        for done in self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
            done.result(TIMEOUT)
        return topic

    def add_partitions(self, topic: str, total: int) -> None:
        for done in self.admin.create_partitions([NewPartitions(topic, total)]).values():
            done.result(TIMEOUT)
        self._producer = None  # which would not hear of it for a while

    def delete(self, topic: str) -> None:
        for done in self.admin.delete_topics([topic], operation_timeout=TIMEOUT).values():
            done.result(TIMEOUT)
        self._producer = None

    def cut(self, topic: str, before: int, partition: int = 0) -> None:
        """As retention does: what stands before this offset is gone."""
        for done in self.admin.delete_records([TopicPartition(topic, partition, before)]).values():
            done.result(TIMEOUT)

    def put(
        self,
        topic: str,
        *records: tuple[bytes | None, bytes | None],
        partition: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """Write records, each a key and a value, in one transaction."""
        if self._producer is None:
            self._producer = Producer(
                {
                    **self.settings,
                    "transactional.id": uuid.uuid4().hex,
                    "message.max.bytes": 50_000_000,
                    "linger.ms": 0,
                }
            )
            self._producer.init_transactions(TIMEOUT)
        self._producer.begin_transaction()
        for key, value in records:
            self._producer.produce(topic, value, key, partition, headers=headers)
            self._producer.poll(0)
        self._producer.commit_transaction(TIMEOUT)

    def start_transaction(self, topic: str, value: bytes) -> Producer:
        """One that is not committed."""
        producer = Producer({**self.settings, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(TIMEOUT)
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(TIMEOUT)
        return producer

    def records(self, topic: str) -> list[Message]:
        """All that was committed, each partition in its order.

        A commit is answered before all partitions show it: the reader waits until each has been read to its end.
        """
        ends = self._ends(topic)
        consumer = Consumer(
            {**self._reading("read_committed"), "enable.partition.eof": True, "fetch.wait.max.ms": 50}
        )
        found: list[Message] = []
        deadline = time.monotonic() + TIMEOUT
        try:
            consumer.list_topics(topic, timeout=TIMEOUT)  # else it takes a second to begin
            consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
            while ends and time.monotonic() < deadline:
                for record in consumer.consume(500, timeout=0.05):
                    error, partition, offset = record.error(), record.partition() or 0, record.offset() or 0
                    if error is None:
                        found.append(record)
                    elif error.name() == "_PARTITION_EOF" and offset >= ends.get(partition, 0):
                        ends.pop(partition, None)
            assert not ends, f"'{topic}' cannot be read to its end"
        finally:
            consumer.close()
        return sorted(found, key=lambda record: (record.partition(), record.offset()))

    def _ends(self, topic: str) -> dict[int, int]:
        """Where each partition ends, committed or not."""
        consumer = Consumer(self._reading("read_uncommitted"))
        try:
            partitions = consumer.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions
            spans = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), TIMEOUT) for p in partitions}
            return {partition: span[1] for partition, span in spans.items() if span is not None}
        finally:
            consumer.close()

    def _reading(self, isolation: str) -> dict[str, str | int | float | bool]:
        return {
            **self.settings,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.auto.commit": False,
        }

    def committed(self, group: str, topic: str, partitions: Sequence[int] = (0,)) -> int:
        """The sum of the offsets that a group has committed."""
        consumer = Consumer({**self.settings, "group.id": group})
        try:
            found = consumer.committed([TopicPartition(topic, one) for one in partitions], timeout=TIMEOUT)
        finally:
            consumer.close()
        return sum(max(0, one.offset) for one in found)
