"""One start of a source of `kafka`: which partitions are read now, and the batches that their records make.

A partition is assigned to the driver with an explicit offset, and taken from it again where it has been read as far
as it is wanted: at the end of its copy until the whole topic is copied, or at the end for a source that does not
tail. What the driver has read ahead by then is dropped, and asked for again with its offset.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.adaptors.base import Bad, Batch
from penstock.adaptors.kafka.client import Cluster, Trouble, driver
from penstock.adaptors.kafka.place import Place, Span, add_partition, resumed
from penstock.adaptors.kafka.records import Reader
from penstock.base.errors import PenstockError
from penstock.log.message import Message, Resume

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka import Message as Record
    from confluent_kafka.admin import AdminClient

MOST_BYTES = 1024 * 1024
MOST_RECORDS = 10_000
AT_ONCE = 1000
"""What makes a batch, and what the driver is asked for at once."""

WAIT = 0.2
MORE = 0.01
"""Seconds to wait for a record, and then for those right behind it."""

DECIDING = 2.0
_LOOK_AGAIN = 0.05
"""Seconds in which a transaction may be decided that was open when its partition was first seen."""

CONFIRM = 5.0
"""Seconds in which a cluster that seems to be gone may answer after all."""

_GONE = ("_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID")

log = logging.getLogger(__name__)

Partition = tuple[str, int]


class LostError(PenstockError):
    """Records that were not read, and cannot be read any more."""


class Reading:
    """The topics that are read. `places` says how far, and moves with each batch."""

    def __init__(
        self,
        cluster: Cluster,
        admin: AdminClient,
        consumer: Consumer,
        trouble: Trouble,
        accept: Callable[[str], bool],
        resume: Mapping[str, Resume],
    ) -> None:
        self._cluster, self._admin, self._consumer, self._trouble = cluster, admin, consumer, trouble
        self._accept, self._resume = accept, dict(resume)
        self._settings = cluster.settings
        self._reader = Reader(self._settings.value, self._settings.envelope)
        self._active: set[Partition] = set()
        self.places: dict[str, Place] = {}

    @property
    def is_done(self) -> bool:
        return not self._active

    def lag(self) -> int:
        """Records that are there and were not read, as far as the driver has heard."""
        lag = 0
        for topic, partition in self._active:
            found = self._consumer.get_watermark_offsets(
                driver().TopicPartition(topic, partition), cached=True
            )
            if found is not None and found[1] >= 0:
                lag += max(0, found[1] - self.places[topic].next[partition])
        return lag

    def look(self) -> None:
        """Find topics and partitions that are new, and see whether those that are read are still the same."""
        # Of the consumer, which then knows whom to ask for records.
        found = self._cluster.topics(self._consumer, self._trouble, self._accept)
        there = {topic: partitions for topic, partitions in found.items() if self._accept(topic)}
        ids = self._cluster.ids(self._admin, there, self._trouble)
        for topic, place in list(self.places.items()):
            if topic not in there:
                self._forget(topic, "was deleted")
            elif place.id != ids.get(topic, place.id):
                self._forget(topic, "was deleted and made anew")
        new = [
            (topic, partition)
            for topic, partitions in there.items()
            for partition in partitions
            if topic not in self.places or partition not in self.places[topic].next
        ]
        spans = self._decided(spans_of(self._cluster, self._admin, new, self._trouble))
        for topic, partitions in there.items():
            self._take(
                topic, ids.get(topic, ""), {p: spans[topic, p] for p in partitions if (topic, p) in spans}
            )
        self._activate(there)

    def _decided(self, spans: Mapping[Partition, Span]) -> Mapping[Partition, Span]:
        """The same, once what was open is decided, if that is soon.

        A producer is told of its commit before the partitions show it: a copy that ends with what they show would end
        without records that were committed before it began.
        """
        deadline = time.monotonic() + DECIDING
        spans = dict(spans)
        while (undecided := [one for one, span in spans.items() if span.committed < span.end]) and (
            time.monotonic() < deadline and not self._cluster.stop.wait(_LOOK_AGAIN)
        ):
            committed = self._cluster.offsets(self._admin, undecided, self._trouble, which="committed")
            spans |= {one: replace(spans[one], committed=committed[one]) for one in undecided}
        return spans

    def completed(self) -> Iterator[Batch]:
        """A batch for the topics of which the copy is over."""
        done = [place for place in self.places.values() if place.until is not None and place.is_copied]
        if done:
            for place in done:
                place.until = None
            names = [place.topic for place in done]
            self._activate(names)
            yield Batch((), {place.topic: place.position for place in done}, completed=names)

    def next(self) -> Batch | None:
        """Some records, if any came; waits for a moment."""
        messages: list[Message] = []
        bad: list[Bad] = []
        moved: set[str] = set()
        for record in self._records():
            error, topic = record.error(), record.topic()
            if error is not None:
                self._heard(record, error)
            elif topic is not None and self._is_wanted(record):
                found = self._reader.message(record, self.places[topic].mode)
                (bad if isinstance(found, Bad) else messages).append(found)  # type: ignore[arg-type]
                moved.add(topic)
        if messages or bad:
            return Batch(messages, {topic: self.places[topic].position for topic in moved}, bad=bad)
        self._check_there()
        return None

    def _records(self) -> Iterator[Record]:
        """As many records as make a batch, or as are there."""
        first = self._consumer.poll(WAIT)
        if first is None:
            return
        yield first
        size, count = len(first), 1
        while size < MOST_BYTES and count < MOST_RECORDS:
            # By what they had so far: a call gives so many and looks at no sizes.
            wanted = max(1, min(AT_ONCE, (MOST_BYTES - size) * count // max(size, 1)))
            more = self._consumer.consume(wanted, timeout=MORE)
            yield from more
            if len(more) < wanted:
                return
            size, count = size + sum(map(len, more)), count + len(more)

    def _is_wanted(self, record: Record) -> bool:
        """Whether a record is to be read now; if so, the place moves behind it."""
        topic, partition, offset = record.topic(), record.partition(), record.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        if (topic, partition) not in self._active:
            return False
        place = self.places[topic]
        ends = place.ends(partition)
        if ends is not None and offset >= ends:
            self._ended(topic, partition, ends)
            return False
        if offset < place.next[partition]:
            return False
        place.reached(partition, offset + 1)
        if ends is not None and offset + 1 >= ends:
            self._ended(topic, partition, ends)
        return True

    def _ended(self, topic: str, partition: int, offset: int) -> None:
        self.places[topic].reached(partition, offset)
        if not self.places[topic].wants(partition):
            self._deactivate({(topic, partition)})

    def _heard(self, record: Record, error: KafkaError) -> None:
        """The driver says something about a partition: mostly that it ends here."""
        topic, partition, offset = record.topic(), record.partition(), record.offset()
        if topic is None or partition is None or (topic, partition) not in self._active:
            return
        if error.name() == "_PARTITION_EOF" and offset is not None:
            # Behind the last record there may be others that say nothing: ends of transactions, or what
            # compaction took.
            self._ended(topic, partition, offset)
        elif error.name() == "_AUTO_OFFSET_RESET":
            self._out_of_range(topic, partition)
        elif error.name() in _GONE:
            self.look()
        else:
            raise self._cluster.error_of(f"cannot read topic '{topic}'", error, self._trouble)

    def _out_of_range(self, topic: str, partition: int) -> None:
        """What was to be read next is not there any more."""
        spans = spans_of(self._cluster, self._admin, [(topic, partition)], self._trouble)
        place, span = self.places[topic], spans[topic, partition]
        at = place.next[partition]
        gone = f"{at} to {span.low - 1}" if at < span.low else f"behind {at}"
        self._lose(
            [f"topic '{topic}', partition {partition}: the records {gone} are gone, and were not read"]
        )
        self._deactivate({(topic, partition)})
        place.next[partition] = max(span.low, min(at, span.end))
        self._activate([topic])

    def _forget(self, topic: str, why: str) -> None:
        self._lose([f"topic '{topic}' {why} while it was read"])
        self._deactivate({one for one in self._active if one[0] == topic})
        del self.places[topic]
        self._resume.pop(topic, None)

    def _take(self, topic: str, id: str, spans: Mapping[int, Span]) -> None:
        """Go on with a topic: one that was not read so far, or that may have more partitions now."""
        tail, place = self._settings.tail, self.places.get(topic)
        if place is None:
            self.places[topic], lost = resumed(topic, id, self._resume.get(topic), spans, tail=tail)
            self._lose(lost)
            return
        for partition, span in spans.items():
            add_partition(place, partition, span, tail=tail)

    def _lose(self, lost: Sequence[str]) -> None:
        """Stop for what is gone, or say so and go on, as the settings have it."""
        if lost and self._settings.if_lost == "stop":
            raise LostError(
                "; ".join(lost),
                hint="copy the topic anew with `penstock backfill`, or go on behind what is gone with if_lost='accept'",
            )
        for text in lost:
            log.warning("%s", text)

    def _activate(self, topics: Iterable[str]) -> None:
        wanted = {
            (topic, partition)
            for topic in topics
            for partition in self.places[topic].next
            if self.places[topic].wants(partition)
        }
        new = wanted - self._active
        if new:
            self._active |= new
            library = driver()
            self._consumer.incremental_assign(
                [library.TopicPartition(topic, p, self.places[topic].next[p]) for topic, p in sorted(new)]
            )

    def _deactivate(self, partitions: set[Partition]) -> None:
        if partitions:
            self._active -= partitions
            library = driver()
            self._consumer.incremental_unassign([library.TopicPartition(*one) for one in sorted(partitions)])

    def _check_there(self) -> None:
        """Nothing came: because nothing happens, or because nobody is there?"""
        if self._trouble.down or self._trouble.denied is not None:
            self._trouble.down = False
            with self._cluster.asking("cannot read topics", self._trouble):
                self._consumer.list_topics(timeout=min(CONFIRM, self._settings.timeout))


def spans_of(
    cluster: Cluster, admin: AdminClient, partitions: Sequence[Partition], trouble: Trouble
) -> dict[Partition, Span]:
    """What the brokers have of each partition."""
    low = cluster.offsets(admin, partitions, trouble, which="earliest")
    committed = cluster.offsets(admin, partitions, trouble, which="committed")
    end = cluster.offsets(admin, partitions, trouble, which="end")
    return {one: Span(low[one], committed[one], end[one]) for one in partitions}
