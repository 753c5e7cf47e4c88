"""The reading half of `kafka`: topics from their beginning to where they end now, and then what comes.

Offsets are Penstock's own: they stand in the log beside the messages, so that each record is logged exactly once
whatever crashes. Only committed records are read. A consumer group, where one is named, is told how far the log
is, after it is; nothing is ever read back from there.

The copy of a topic goes up to where each partition ended when it began. With `tail`, topics and partitions that are
added later are found and read from their beginning. Records of a partition come in their order; those of different
partitions in any.

Records that retention took before they were read, a topic that was made anew, a broker that lost its end: each is a
`LostError` that says what is gone, unless the settings accept it; it is then a warning in the log of the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.adaptors.base import Batch, Copying, Found, Inspection, Source, refuse_conditions
from penstock.adaptors.kafka import Kafka
from penstock.adaptors.kafka.client import Cluster, Trouble
from penstock.adaptors.kafka.group import Group
from penstock.adaptors.kafka.place import Place
from penstock.adaptors.kafka.reading import Reading, spans_of
from penstock.log.message import Resume

if TYPE_CHECKING:
    from confluent_kafka import Consumer

LAST = 1.0
"""Seconds for a last word to the consumer group."""

AHEAD = 4 * 1024
"""Kilobytes that the driver may read ahead."""


class KafkaSource(Source):
    """Reads the topics of one cluster."""

    def __init__(self, settings: Kafka) -> None:
        self._settings = settings
        self._cluster = Cluster(settings)
        self._places: Mapping[str, Place] = {}
        self._lag = 0
        self._group: Group | None = None

    def namespaces(self) -> Sequence[str]:
        trouble = Trouble()
        return list(self._cluster.topics(self._cluster.admin(trouble), trouble))

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        """Rows are what lies between the first and the last offset: of compacted topics, more than there are."""
        trouble = Trouble()
        admin = self._cluster.admin(trouble)
        topics = self._cluster.topics(admin, trouble)
        accepted = [(topic, p) for topic, partitions in topics.items() if accept(topic) for p in partitions]
        spans = spans_of(self._cluster, admin, accepted, trouble)
        rows: dict[str, int] = {}
        for (topic, _), span in spans.items():
            rows[topic] = rows.get(topic, 0) + span.committed - span.low
        return Inspection([Found(topic, rows.get(topic)) for topic in topics])

    def gauges(self) -> Mapping[str, float]:
        return {"lag_records": float(self._lag)}

    def copying(self) -> Sequence[Copying]:
        found = []
        for place in list(self._places.values()):
            if (until := place.until) is not None:
                rows = sum(place.next.values()) - place.began
                found.append(Copying(place.topic, rows, sum(until.values()) - place.began))
        return found

    def logged(self, batch: Batch) -> None:
        if self._group is not None:
            for ns, position in batch.positions.items():
                offsets = position.get("next")
                assert isinstance(offsets, dict)
                self._group.note({(ns, int(p)): int(str(n)) for p, n in offsets.items()})

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        refuse_conditions("kafka", accept, resume)
        trouble = Trouble()
        self._cluster = Cluster(self._settings, stop)
        admin = self._cluster.admin(trouble)
        with closing(self._consumer(trouble)) as consumer:
            reading = Reading(self._cluster, admin, consumer, trouble, accept, resume)
            self._places = reading.places
            self._group = Group(self._cluster) if self._settings.group else None
            try:
                yield from self._batches(reading, stop)
            finally:
                if self._group is not None:
                    self._group.close(LAST)

    def _batches(self, reading: Reading, stop: threading.Event) -> Iterator[Batch]:
        reading.look()
        looked = time.monotonic()
        while not stop.is_set():
            yield from reading.completed()
            if not self._settings.tail and reading.is_done:
                break
            if (batch := reading.next()) is not None:
                yield batch
            if self._settings.tail and time.monotonic() - looked >= self._settings.poll_interval:
                self._lag = reading.lag()
                reading.look()
                looked = time.monotonic()

    def _consumer(self, trouble: Trouble) -> Consumer:
        return self._cluster.consumer(
            trouble,
            {
                "group.id": self._settings.group or f"penstock.{self.name or 'source'}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "allow.auto.create.topics": False,
                "queued.max.messages.kbytes": AHEAD,
                "fetch.max.bytes": AHEAD * 1024,
                "fetch.wait.max.ms": 100,  # so long it takes to hear that a partition ends
                "max.poll.interval.ms": 86_400_000,  # the log may be full for long; then nobody asks
            },
        )
