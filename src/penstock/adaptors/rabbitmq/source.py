"""The reading half of `rabbitmq`: consumes queues, and acknowledges a message once the log has it.

At least once: what was logged and not acknowledged when a crash came is given again by the server, and logged again.
With `deduplicate` the position of a queue keeps the ids of its last messages, `{"ids": [...]}`, more than go without
acknowledgement; a message that comes again with such an id is acknowledged and left out. A queue has no end, and
no message in it has a number, so the source always follows.

The connection lives in a thread of its own, which keeps it alive while the log is full. It gives no more than
`prefetch` messages of a queue before they are acknowledged: that is the back-pressure. A message whose body is no JSON
object is kept among the dead letters, and acknowledged after that.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import Bad, Batch, Found, Inspection, Source, refuse_conditions
from penstock.adaptors.documents import key_of
from penstock.adaptors.formats.lines import fault
from penstock.adaptors.rabbitmq import RabbitMq
from penstock.adaptors.rabbitmq.client import asking, closed, connected, driver, listed, told
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.log.message import LAST_TS, Message, Mode, Op, Position, Resume

if TYPE_CHECKING:
    from pika import BasicProperties, BlockingConnection
    from pika.adapters.blocking_connection import BlockingChannel

MOST_BYTES = 1024 * 1024
MOST_MESSAGES = 2_000
"""What makes a batch."""

WAIT = 0.2
TURN = 0.05
"""Seconds to wait for a message, and between two looks of the connection's thread for what to acknowledge."""

_KEPT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Given:
    """A message as the server gave it."""

    queue: str
    tag: int
    redelivered: bool
    id: str | None
    moment: int | None
    """Seconds, if the message says."""
    body: bytes


class Consumer(threading.Thread):
    """The thread with the connection. `given` holds what came; more comes only when some of it is acknowledged."""

    def __init__(self, settings: RabbitMq) -> None:
        super().__init__(name="rabbitmq", daemon=True)
        self._settings = settings
        self._asked: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._over = threading.Event()
        self._channels: dict[str, BlockingChannel] = {}
        self.given: queue.SimpleQueue[Given] = queue.SimpleQueue()
        self.failure: PenstockError | None = None
        with asking(settings, "cannot connect"):
            self._connection: BlockingConnection = connected(settings)

    def consume(self, name: str) -> None:
        """Begin with a queue."""
        self._asked.put((name, 0))

    def acknowledge(self, name: str, tag: int) -> None:
        """All messages of the queue up to this one."""
        self._asked.put((name, tag))

    def end(self) -> None:
        """What is not acknowledged goes back into its queue."""
        self._over.set()
        self.join()

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._do_asked()
                self._connection.process_data_events(time_limit=TURN)
                gone = [name for name, channel in self._channels.items() if channel.is_closed]
                if gone:
                    raise AwayError(f"the channel of queue '{gone[0]}' was closed")
            self._do_asked()
        except PenstockError as error:
            self.failure = error
        except (driver().exceptions.AMQPError, OSError) as error:
            self.failure = told(self._settings, "cannot consume", error)
        finally:
            closed(self._connection)

    def _do_asked(self) -> None:
        while True:
            try:
                name, tag = self._asked.get_nowait()
            except queue.Empty:
                return
            if tag:
                self._channels[name].basic_ack(tag, multiple=True)
            else:
                self._begin(name)

    def _begin(self, name: str) -> None:
        self._channels[name] = channel = self._connection.channel()
        channel.basic_qos(prefetch_count=self._settings.prefetch)
        channel.add_on_cancel_callback(lambda frame: channel.close())
        channel.basic_consume(name, self._take(name))

    def _take(self, name: str) -> Callable[[object, object, BasicProperties, bytes], None]:
        def take(_: object, method: object, properties: BasicProperties, body: bytes) -> None:
            tag, again = int(method.delivery_tag), bool(method.redelivered)  # type: ignore[attr-defined]
            id, moment = properties.message_id, properties.timestamp
            self.given.put(Given(name, tag, again, id, moment, body))

        return take


@dataclass(slots=True)
class Place:
    """What is known of a queue: the ids of its last messages."""

    ids: deque[str]

    @property
    def position(self) -> Position:
        return {"ids": list(self.ids)}


class RabbitMqSource(Source):
    """Consumes queues of one virtual host."""

    def __init__(self, settings: RabbitMq) -> None:
        self._settings = settings
        self._places: dict[str, Place] = {}
        self._consumer: Consumer | None = None
        self._lock = threading.Lock()
        self._given: deque[tuple[Batch, Mapping[str, int]]] = deque()
        """Batches that are not logged yet, each with the last delivery tag of each queue."""
        if not settings.queues and not settings.management:
            raise UsageError(
                "adaptor 'rabbitmq' as a source needs the setting 'queues' or 'management'",
                hint="name the queues, or the management API, which knows them",
            )

    def namespaces(self) -> Sequence[str]:
        return [one.ns for one in self._found()]

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        return Inspection(self._found())

    def _found(self) -> list[Found]:
        """The queues, with the messages that are ready. A queue that is named must be there."""
        names = self._names()
        with asking(self._settings, "cannot connect"):
            connection = connected(self._settings)
        found = []
        try:
            for name in names:
                with asking(self._settings, f"cannot ask for queue '{name}'"):
                    answer = connection.channel().queue_declare(name, passive=True)
                found.append(Found(name, answer.method.message_count, self._settings.key))
        finally:
            closed(connection)
        return found

    def _names(self) -> list[str]:
        names = set(self._settings.queues)
        if self._settings.management:
            names |= {one.name for one in listed(self._settings)}
        return sorted(names)

    def logged(self, batch: Batch) -> None:
        consumer = self._consumer
        with self._lock:
            if consumer is None or not any(one is batch for one, _ in self._given):
                return
            while True:
                one, tags = self._given.popleft()
                for name, tag in tags.items():
                    consumer.acknowledge(name, tag)
                if one is batch:
                    return

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        refuse_conditions("rabbitmq", accept, resume)
        self._places, self._given = {}, deque()
        self._consumer = consumer = Consumer(self._settings)
        consumer.start()
        try:
            looked = float("-inf")
            while not stop.is_set():
                if time.monotonic() - looked >= self._settings.poll_interval:
                    yield from self._look(consumer, accept, resume)
                    looked = time.monotonic()
                batch = self._next(consumer)
                if batch is not None:
                    yield batch
                elif consumer.failure is not None:
                    raise consumer.failure
        finally:
            consumer.end()
            self._consumer = None

    def _look(
        self, consumer: Consumer, accept: Callable[[str], bool], resume: Mapping[str, Resume]
    ) -> Iterator[Batch]:
        """Begin with queues that are new. None of them has a copy: all is what comes."""
        for name in self._names():
            if name in self._places or not accept(name):
                continue
            known = resume.get(name)
            ids = known.position.get("ids", []) if known is not None and known.position is not None else []
            kept = deque(msgspec.convert(ids, list[str]), maxlen=2 * self._settings.prefetch)
            self._places[name] = place = Place(kept)
            if known is None or known.mode is Mode.COPY:
                yield Batch(positions={name: place.position}, completed=[name])
            consumer.consume(name)

    def _next(self, consumer: Consumer) -> Batch | None:
        """What came, up to the size of a batch; None if nothing comes for a while."""
        messages: list[Message] = []
        bad: list[Bad] = []
        tags: dict[str, int] = {}
        size = 0
        while size < MOST_BYTES and len(messages) + len(bad) < MOST_MESSAGES:
            try:
                one = consumer.given.get(timeout=WAIT) if not tags else consumer.given.get_nowait()
            except queue.Empty:
                break
            tags[one.queue] = one.tag
            size += len(one.body)
            place = self._places[one.queue]
            if one.redelivered and one.id is not None and one.id in place.ids:
                continue
            if self._settings.deduplicate and one.id is not None:
                place.ids.append(one.id)
            found = self._message(one)
            if isinstance(found, Bad):
                bad.append(found)
            else:
                messages.append(found)
        if not tags:
            return None
        batch = Batch(messages, {name: self._places[name].position for name in tags}, bad=bad)
        with self._lock:
            self._given.append((batch, tags))
        return batch

    def _message(self, one: Given) -> Message | Bad:
        data = one.body.strip(b" \t\r\n")
        wrong = fault(data)
        if wrong is None:
            try:
                key = key_of(data, self._settings.key) if self._settings.key else None
                told = one.moment is not None and one.moment <= LAST_TS // 1_000_000
                ts = (one.moment or 0) * 1_000_000 if told else time.time_ns() // 1000
                return Message(one.queue, data, Op.INSERT, ts, Mode.SYNC, key)
            except ValueError as error:
                wrong = str(error)
        # Nothing else about it is the same if it comes again.
        known = one.id or hashlib.sha256(one.body).hexdigest()[:24]
        return Bad(one.queue, f"queue {one.queue}, message {known}", wrong, one.body[:_KEPT])
