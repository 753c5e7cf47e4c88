"""Telling a consumer group how far the log is, for tools that show lag.

By a client and a thread of its own: a commit that brokers do not answer holds up whoever closes its client, and
reading must not wait for that. Not by the admin client either: librdkafka ends the whole process when a coordinator
goes away in the midst of a request from there (its issue 4605).

That a commit fails does no harm: the next one says the same and more, and nothing is ever read back from there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import closing

from penstock.adaptors.kafka.client import Cluster, Trouble, driver

log = logging.getLogger(__name__)


class Group:
    """Commits offsets of one group until it is closed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._name = cluster.settings.group
        self._noted: dict[tuple[str, int], int] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"kafka group {self._name}", daemon=True)
        self._thread.start()

    def note(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Have these committed soon: for each partition the offset to go on with."""
        with self._changed:
            self._noted |= offsets
            self._changed.notify()

    def close(self, patience: float) -> None:
        """Commit what was noted, and end; the thread ends by itself if that takes longer."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(patience)

    def _run(self) -> None:
        own = {"group.id": self._name, "enable.auto.commit": False, "allow.auto.create.topics": False}
        with closing(self._cluster.consumer(Trouble(), own)) as consumer:
            while noted := self._taken():
                library = driver()
                offsets = [library.TopicPartition(topic, p, offset) for (topic, p), offset in noted.items()]
                try:
                    consumer.commit(offsets=offsets, asynchronous=False)
                except library.KafkaException as error:
                    log.warning("group '%s' was not told how far the log is: %s", self._name, error)

    def _taken(self) -> dict[tuple[str, int], int]:
        """What was noted, when there is something; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._noted or self._ended)
            noted, self._noted = self._noted, {}
            return noted
