"""The driver: clients with Penstock's settings, and what their errors mean.

librdkafka tries again by itself, for as long as it is let, and tells of trouble on the side; a `Trouble` listens there,
so that a broker that is gone, or a password that is wrong, is said as such and soon.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from penstock.adaptors.kafka import Kafka
from penstock.adaptors.needs import need
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.base.secrets import mask

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import ClusterMetadata

Client = TypeVar("Client")
Key = TypeVar("Key")
Answer = TypeVar("Answer")

_AWAY = (
    "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT", "_RESOLVE", "_WAIT_COORD",
    "_WAIT_CACHE", "_LEADER", "_RETRY", "_QUEUE_FULL", "REQUEST_TIMED_OUT", "LEADER_NOT_AVAILABLE",
    "BROKER_NOT_AVAILABLE",
    "NETWORK_EXCEPTION", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NOT_LEADER_FOR_PARTITION", "KAFKA_STORAGE_ERROR",
    "CONCURRENT_TRANSACTIONS", "NOT_CONTROLLER", "THROTTLING_QUOTA_EXCEEDED", "UNKNOWN_LEADER_EPOCH",
    "FENCED_LEADER_EPOCH", "REPLICA_NOT_AVAILABLE", "PREFERRED_LEADER_NOT_AVAILABLE", "OFFSET_NOT_AVAILABLE",
    "UNSTABLE_OFFSET_COMMIT", "DUPLICATE_RESOURCE", "_PURGE_QUEUE", "_PURGE_INFLIGHT", "_NOENT",
)  # fmt: skip
"""What mends itself, or is mended at the brokers."""

_RIGHTS = (
    "_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE",
    "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "SECURITY_DISABLED", "POLICY_VIOLATION",
)  # fmt: skip
"""What a person has to change, at the brokers or in the settings."""

_NO_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID")
_NO_LEADER = ("_NOENT", "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE")
"""What is said of a partition that nobody leads yet, as those of a topic that was just made."""
LEADER_SECONDS = 30.0
"""How long a leader is waited for: the brokers answer, and only have not agreed yet."""
_LEADER_LOOK = 0.2

_SLICES = (1.0, 10.0)
"""Seconds for which an answer is waited for before a look whether it is still wanted: first, and at most.

They double: an answer that comes too late is lost, and a broker that is slow must be heard in the end.
"""

QUIET: Mapping[str, object] = {
    "log_level": 2, "log.connection.close": False, "reconnect.backoff.max.ms": 2000, "socket.keepalive.enable": True,
}  # fmt: skip
"""Connections come and go; what matters of it is told to `Trouble`."""


def driver() -> ModuleType:
    return need("confluent_kafka", "kafka")


def administration() -> ModuleType:
    return need("confluent_kafka.admin", "kafka")


class Trouble:
    """What a client said about its connections since it was last asked."""

    def __init__(self) -> None:
        self.denied: str | None = None
        self.down = False

    def __call__(self, error: KafkaError) -> None:
        if error.name() == "_SSL" and "certificate" not in error.str():
            return  # a broker that goes in the middle of a handshake is away, no more
        if error.name() in _RIGHTS:
            self.denied = error.str()
        elif error.name() == "_ALL_BROKERS_DOWN":
            self.down = True


@dataclass(frozen=True)
class Cluster:
    """The cluster of an adaptor's settings. Who sets `stop` is not waited for by a question that nobody answers."""

    settings: Kafka
    stop: threading.Event = field(default_factory=threading.Event)

    def admin(self, trouble: Trouble) -> AdminClient:
        kind: Callable[[dict[str, object]], AdminClient] = administration().AdminClient
        return self._client(kind, trouble, {})

    def consumer(self, trouble: Trouble, own: Mapping[str, object]) -> Consumer:
        kind: Callable[[dict[str, object]], Consumer] = driver().Consumer
        return self._client(kind, trouble, own)

    def producer(self, trouble: Trouble, own: Mapping[str, object]) -> Producer:
        kind: Callable[[dict[str, object]], Producer] = driver().Producer
        return self._client(kind, trouble, own)

    def _client(
        self, kind: Callable[[dict[str, object]], Client], trouble: Trouble, own: Mapping[str, object]
    ) -> Client:
        settings = self.settings
        timeout = str(int(settings.timeout * 1000))
        ours = {**QUIET, "socket.timeout.ms": max(int(timeout), 1000), **settings.options, **own}
        ours |= {"bootstrap.servers": settings.servers, "error_cb": trouble}
        try:
            return kind(ours)
        except (driver().KafkaException, ValueError, TypeError) as error:
            raise UsageError(
                f"librdkafka does not take these settings: {mask(_text_of(error))}",
                hint="see the setting 'options' of the adaptor 'kafka'",
            ) from None

    @contextmanager
    def asking(self, what: str, trouble: Trouble) -> Iterator[None]:
        """For requests: errors of the driver come out as `error_of` has them."""
        try:
            yield
        except driver().KafkaException as error:
            raise self.error_of(what, error.args[0], trouble) from None

    def error_of(self, what: str, error: KafkaError, trouble: Trouble | None = None) -> PenstockError:
        """The error to raise; `what` could not be done, such as "cannot read 'orders'"."""
        at = self.settings.servers
        text = f"{what} at {at}: {mask(error.str())} ({error.name()})"
        if trouble is not None and trouble.denied is not None:
            return UsageError(f"{what} at {at}: {mask(trouble.denied)}", hint="see the setting 'options'")
        if error.name() in _RIGHTS:
            return UsageError(
                text, hint="give the user of this pipeline the right, or see the setting 'options'"
            )
        if error.name() in _AWAY or error.retriable():
            return AwayError(text)
        return PenstockError(text)

    def listed(self, client: AdminClient | Consumer, what: str, trouble: Trouble) -> ClusterMetadata:
        """The cluster as it tells of itself. `what` needs it, and is told where it cannot be had."""
        deadline, slice = time.monotonic() + self.settings.timeout, _SLICES[0]
        with self.asking(what, trouble):
            while True:
                left = deadline - time.monotonic()
                try:
                    return client.list_topics(timeout=max(0.01, min(left, slice)))
                except driver().KafkaException as error:
                    # What it says on the side is heard only now. A record that comes instead is read again: this ends.
                    client.poll(0)
                    patient = error.args[0].name() in _AWAY and trouble.denied is None
                    if not patient or left <= slice or self.stop.is_set():
                        raise
                    slice = min(2 * slice, _SLICES[1])

    def topics(
        self,
        client: AdminClient | Consumer,
        trouble: Trouble,
        wanted: Callable[[str], bool] = lambda topic: False,
    ) -> dict[str, list[int]]:
        """The partitions of all topics but Kafka's own and those in which sinks keep their positions.

        One that is `wanted` and of which the cluster cannot tell them now, as of one without a leader, is an error: it
        is neither gone nor without records.
        """
        own = f"{self.settings.positions}."
        listed = self.listed(client, "cannot list the topics", trouble).topics
        found = {name: one for name, one in sorted(listed.items()) if not name.startswith(("__", own))}
        for name, topic in found.items():
            if topic.error is not None and topic.error.name() not in _NO_TOPIC and wanted(name):
                raise self.error_of(f"cannot list the partitions of topic '{name}'", topic.error, trouble)
        return {name: sorted(topic.partitions) for name, topic in found.items() if topic.error is None}

    def offsets(
        self, admin: AdminClient, partitions: Iterable[tuple[str, int]], trouble: Trouble, *, which: str
    ) -> dict[tuple[str, int], int]:
        """For each partition its `earliest` offset, its `end`, or the end of what is `committed`.

        A client that has heard that a partition has no leader may go on saying so: each further try is that of another.
        """
        library = administration()
        asked = [driver().TopicPartition(*one) for one in partitions]
        if not asked:
            return {}
        spec = library.OffsetSpec.earliest() if which == "earliest" else library.OffsetSpec.latest()
        level = driver().IsolationLevel
        isolation = level.READ_COMMITTED if which == "committed" else level.READ_UNCOMMITTED
        deadline = time.monotonic() + LEADER_SECONDS
        with self.asking("cannot ask for offsets", trouble):
            while True:
                answers = admin.list_offsets(
                    dict.fromkeys(asked, spec),
                    isolation_level=isolation,
                    request_timeout=self.settings.timeout,
                )
                try:
                    return {
                        (partition.topic, partition.partition): int(answer.result().offset)
                        for partition, answer in settled(answers)
                    }
                except driver().KafkaException as error:
                    waits = error.args[0].name() in _NO_LEADER and time.monotonic() < deadline
                    if not waits or self.stop.wait(_LEADER_LOOK):
                        raise
                    admin = self.admin(trouble)

    def ids(self, admin: AdminClient, topics: Iterable[str], trouble: Trouble) -> dict[str, str]:
        """What tells a topic from another one of the same name; nothing for brokers that do not know."""
        named = list(topics)
        if not named:
            return {}
        with self.asking("cannot describe the topics", trouble):
            answers = admin.describe_topics(
                driver().TopicCollection(named), request_timeout=self.settings.timeout
            )
            found = {name: answer.result() for name, answer in settled(answers)}
        return {name: str(topic.topic_id) for name, topic in found.items() if topic.topic_id is not None}


def settled(answers: Mapping[Key, Future[Answer]]) -> Iterable[tuple[Key, Future[Answer]]]:
    """The answers when all of them are there: a client must not go while it waits for one."""
    wait(answers.values())
    return answers.items()


def _text_of(error: BaseException) -> str:
    first = error.args[0] if error.args else error
    return first.str() if hasattr(first, "str") else str(error)
