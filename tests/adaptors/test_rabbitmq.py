"""Consuming from and publishing to RabbitMQ, a real server: the kit, and what the original lost."""

from __future__ import annotations

import json
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
from tests.adaptors.message_subjects import MessageSource, MessageTarget
from tests.servers.proxy import proxied
from tests.servers.rabbitmq import PASSWORD, USER, RabbitServer

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, Publisher
from penstock.adaptors.rabbitmq import sink as rabbitmq_sink
from penstock.adaptors.rabbitmq.client import listed
from penstock.base.errors import AwayError, RefusedError, UsageError
from penstock.log.message import Message, Op
from penstock.testing.adaptors import (
    Can,
    Row,
    SinkConformance,
    SourceConformance,
)
from penstock.testing.adaptors.delivery import Delivery, message
from penstock.testing.adaptors.model import Log, Reading
from penstock.testing.adaptors.subject import row_of

pytestmark = [pytest.mark.xdist_group("rabbitmq"), pytest.mark.usefixtures("forgets_secrets")]

PATIENCE = 20.0


def _delete(name: str, channel: Any) -> None:
    channel.queue_delete(name)


class Queues:
    """The server, past the adaptors: each act is a connection of its own, so that it may restart between two."""

    def __init__(self, server: RabbitServer) -> None:
        self._uri = server.uri
        self.made: list[str] = []

    def act(self, do: Callable[[Any], Any]) -> Any:
        connection = pika.BlockingConnection(pika.URLParameters(self._uri))
        try:
            return do(connection.channel())
        finally:
            connection.close()

    def make(self, name: str, **arguments: object) -> str:
        self.act(lambda channel: channel.queue_declare(name, durable=True, arguments=arguments))
        self.made.append(name)
        return name

    def put(self, name: str, bodies: Sequence[bytes], ids: Sequence[str] = ()) -> None:
        def do(channel: Any) -> None:
            channel.tx_select()
            for i, body in enumerate(bodies):
                id = ids[i] if ids else None
                channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2, message_id=id))
            channel.tx_commit()

        self.act(do)

    def ready(self, name: str) -> int:
        return int(self.act(lambda channel: channel.queue_declare(name, passive=True)).method.message_count)

    def all(self, name: str) -> list[tuple[Any, bytes]]:
        """What a queue holds; it stays there."""

        def do(channel: Any) -> list[tuple[Any, bytes]]:
            found = []
            while (got := channel.basic_get(name))[0] is not None:
                found.append((got[1], got[2]))
            return found

        found: list[tuple[Any, bytes]] = self.act(do)
        return found

    def close(self) -> None:
        for name in self.made:
            self.act(partial(_delete, name))


def misconfigured(server: RabbitServer, **settings: object) -> Mapping[str, Adaptor]:
    here = f"127.0.0.1:{server.port}"
    return {
        "nobody listens": a.rabbitmq(uri=f"amqp://{USER}:{PASSWORD}@127.0.0.1:1/", timeout=2.0, **settings),
        "wrong password": a.rabbitmq(uri=f"amqp://{USER}:wrong-{PASSWORD}@{here}/", **settings),
        "no such host": a.rabbitmq(uri=f"amqp://{USER}:{PASSWORD}@{here}/nowhere", **settings),
    }


class QueueSubject(MessageSource):
    name = "rabbitmq"
    patience = 12.0  # the kit waits so long for a batch that may have come with the one before it
    secret = PASSWORD
    cannot: Mapping[Can, str] = {
        Can.COMES_TO_REST: "a queue has no end: the source always follows",
        Can.EXACT: "what was not acknowledged before a crash is given again",
        Can.CLEAN: "what was not acknowledged before a crash is given again",
        Can.UPDATES: "a message of a queue stays as it is",
        Can.DELETES: "a message of a queue stays as it is",
        Can.REKEYS: "a message of a queue stays as it is",
        Can.TRUNCATE: "that a queue is purged is not told",
        Can.TRANSACTIONS: "a message does not say which others were sent with it",
        Can.OVERSIZE: "a message above the limit is kept among the dead letters",
    }

    def __init__(self, server: RabbitServer) -> None:
        self._server = self.crashing = server
        self.server = server.version
        self.queues = Queues(server)
        self._rows: dict[str, dict[int, bytes]] = {}
        """What was put into each queue; small, since the kit looks at the memory of this process."""

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.rabbitmq(
            uri=self._server.uri,
            management=self._server.management,
            prefetch=50,
            key=["id"],
            poll_interval=0.3,
            timeout=10.0,
        )

    def misconfigured(self) -> Mapping[str, Adaptor]:
        none = a.rabbitmq(uri=self._server.uri, queues=["no-such-queue"])
        return {**misconfigured(self._server, queues=["x"]), "no such queue": none}

    def make(self, word: str) -> str:
        self._rows[word] = {}
        return self.queues.make(word)

    def send(self, ns: str, bodies: Sequence[bytes]) -> None:
        self.queues.put(ns, bodies)
        rows = [row_of(Message(ns, body)) for body in bodies]
        self._rows[ns].update({row.id: zlib.compress(row.text.encode(), 1) for row in rows})

    def contents(self, ns: str) -> Mapping[int, str]:
        return {id: zlib.decompress(text).decode() for id, text in self._rows[ns].items()}

    def several(self) -> Sequence[Row]:
        return [Row(i, f"{i:06d} " + "x" * 1200) for i in range(160)]

    def held_back(self) -> int:
        adaptor = a.rabbitmq(uri=self._server.uri, management=self._server.management)
        found = {one.name: one.messages for one in listed(adaptor)}
        counts = [found.get(name) for name in self.queues.made]
        return sum(1 if count is None else count for count in counts)

    def close(self) -> None:
        self.queues.close()


class TestRabbitMqSource(SourceConformance):
    @pytest.fixture
    def subject(self, rabbitmq_server: RabbitServer) -> QueueSubject:
        return QueueSubject(rabbitmq_server)


class QueueTarget(MessageTarget):
    name = "rabbitmq"
    patience = PATIENCE
    secret = PASSWORD
    cannot: Mapping[Can, str] = {
        Can.EXACT: "a batch that was interrupted is published again",
        Can.CLAIMS: "an exchange may be published to from anywhere",
        Can.REFUSES: "what comes before a refused message in its bulk stays, and comes again",
    }

    def __init__(self, server: RabbitServer, **settings: object) -> None:
        self._server = self.crashing = server
        self.server = server.version
        self.queues = Queues(server)
        self.settings = {"exchange": "", "routing_key": "{ns}", "timeout": 10.0, **settings}

    def stop_server(self) -> None:
        """In order: for some seconds a server keeps in memory that a queue was declared, and killed it forgets it."""
        self._server.stop()

    def adaptor(self) -> Adaptor:
        return a.rabbitmq(**{"uri": self._server.uri, **self.settings})

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return misconfigured(self._server)

    def make(self, word: str) -> str:
        return self.queues.make(word)

    def contents(self, ns: str) -> Sequence[Row]:
        """Each message once: by its id, as a consumer would."""
        found = {one.message_id: (one.headers["op"], body) for one, body in self.queues.all(ns)}
        return [row_of(Message(ns, body)) for op, body in found.values() if op != "command"]

    def bodies(self, ns: str) -> Sequence[bytes]:
        return [body for _, body in self.queues.all(ns)]

    def died(self, publisher: Publisher) -> None:
        publisher.close()

    def close(self) -> None:
        self.queues.close()


class TestRabbitMqSink(SinkConformance):
    @pytest.fixture
    def subject(self, rabbitmq_server: RabbitServer) -> QueueTarget:
        return QueueTarget(rabbitmq_server)


@pytest.fixture
def queues(rabbitmq_server: RabbitServer) -> Iterator[Queues]:
    queues = Queues(rabbitmq_server)
    yield queues
    queues.close()


def reading(server: RabbitServer, log: Log, name: str, **settings: object) -> Reading:
    return Reading(a.rabbitmq(uri=server.uri, queues=[name], **settings), log, lambda ns: True)


def test_a_body_that_is_no_json_is_kept_and_then_acknowledged(
    rabbitmq_server: RabbitServer, queues: Queues
) -> None:
    """The original logged it and left it without acknowledgement."""
    name, log = queues.make(f"q{uuid.uuid4().hex[:8]}"), Log()
    queues.put(name, [b"no json", b'{"n":1}', b"[1]"], ["first", "second", "third"])
    with reading(rabbitmq_server, log, name) as one:
        assert one.until(lambda: len(log.messages) + len(log.bad) == 3, PATIENCE)
        time.sleep(0.5)
    assert {place: bad.content for place, bad in log.bad.items()} == {
        f"queue {name}, message first": b"no json",
        f"queue {name}, message third": b"[1]",
    }
    assert queues.ready(name) == 0


def test_a_time_that_no_calendar_has_is_not_taken(rabbitmq_server: RabbitServer, queues: Queues) -> None:
    """It is in seconds, and some give others; as microseconds such a time has no place in the log."""
    name, log = queues.make(f"q{uuid.uuid4().hex[:8]}"), Log()
    times = (1_700_000_000, 1_700_000_000_000, 1_700_000_000_000_000, 2**63)

    def put(channel: Any) -> None:
        for moment in times:
            channel.basic_publish("", name, b"{}", pika.BasicProperties(timestamp=moment))

    queues.act(put)
    with reading(rabbitmq_server, log, name) as one:
        assert one.until(lambda: len(log.messages) == len(times), PATIENCE)
    now = time.time_ns() // 1000
    assert [message.ts <= now for message in log.messages] == [True] * len(times)
    assert log.messages[0].ts == 1_700_000_000_000_000


def test_nothing_leaves_the_queue_before_the_log_has_it(
    rabbitmq_server: RabbitServer, queues: Queues
) -> None:
    """The original acknowledged as soon as a message was handed on."""
    name, log = queues.make(f"q{uuid.uuid4().hex[:8]}"), Log()
    queues.put(name, [b'{"n":%d}' % n for n in range(5)])
    with reading(rabbitmq_server, log, name) as one:
        one.step(PATIENCE)  # that the queue is followed
        batch = one.take(PATIENCE)
        assert batch is not None
        assert batch.messages
        time.sleep(0.5)
    assert queues.ready(name) == 5


def test_a_queue_that_is_deleted_ends_the_reading_and_does_not_spin(
    rabbitmq_server: RabbitServer, queues: Queues
) -> None:
    name, log = queues.make(f"q{uuid.uuid4().hex[:8]}"), Log()
    queues.put(name, [b'{"n":1}'])
    with reading(rabbitmq_server, log, name) as one:
        assert one.until(lambda: len(log.messages) == 1, PATIENCE)
        queues.act(lambda channel: channel.queue_delete(name))
        with pytest.raises(AwayError, match="closed"):
            one.until(lambda: False, PATIENCE)
    with reading(rabbitmq_server, log, name) as one, pytest.raises(UsageError, match="no queue"):
        one.until(lambda: False, PATIENCE)


def test_what_comes_again_is_left_out_by_its_id_if_asked(
    rabbitmq_server: RabbitServer, queues: Queues
) -> None:
    name, log = queues.make(f"q{uuid.uuid4().hex[:8]}"), Log()
    queues.put(name, [b'{"n":1}', b'{"n":2}'], ["one", "two"])
    with reading(rabbitmq_server, log, name, deduplicate=True) as one:
        one.step(PATIENCE)
        batch = one.take(PATIENCE)
        assert batch is not None
        log.append(batch)  # and the crash comes before the source hears of it
    assert queues.ready(name) == 2
    queues.put(name, [b'{"n":3}'], ["three"])
    with reading(rabbitmq_server, log, name, deduplicate=True) as one:
        assert one.until(lambda: len(log.messages) == 3, PATIENCE)
        time.sleep(0.5)
    assert [one.data for one in log.messages] == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    assert queues.ready(name) == 0


def test_a_message_that_reaches_no_queue_is_refused(
    rabbitmq_server: RabbitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq_sink, "SETTLING", 0.3)
    one = Delivery(QueueTarget(rabbitmq_server), tmp_path)
    one.add(message("nobody-listens", 1, "x"))
    one.open()
    with pytest.raises(RefusedError, match="offset 0 reaches no queue"):
        one.deliver()


def test_a_queue_that_comes_soon_after_the_connection_is_waited_for(
    rabbitmq_server: RabbitServer, queues: Queues, tmp_path: Path
) -> None:
    """As after a restart of the server, which listens before it has all of its queues."""
    name = f"q{uuid.uuid4().hex[:8]}"
    one = Delivery(QueueTarget(rabbitmq_server), tmp_path)
    one.add(message(name, 1, "x"))
    one.open()
    later = threading.Timer(1.0, lambda: queues.make(name))
    later.start()
    one.deliver()
    later.join()
    assert queues.ready(name) == 1


def test_an_exchange_that_is_not_there_is_named(rabbitmq_server: RabbitServer, tmp_path: Path) -> None:
    one = Delivery(QueueTarget(rabbitmq_server, exchange="{ns}"), tmp_path)
    one.add(message("no-such-exchange", 1, "x"))
    one.open()
    with pytest.raises(UsageError, match="no-such-exchange"):
        one.deliver()


def test_the_routing_key_can_come_from_a_field(
    rabbitmq_server: RabbitServer, queues: Queues, tmp_path: Path
) -> None:
    name = queues.make(f"q{uuid.uuid4().hex[:8]}")
    one = Delivery(QueueTarget(rabbitmq_server, key_field="to"), tmp_path)
    one.add(
        message("ns", 1, "x", to=name),
        message("ns", 2, "x"),
        Message("ns", b'{"id":3,"to":7}'),
        message("ns", 4, "x", Op.UPDATE, was=1, to=name),
    )
    one.open()
    assert [refusal.offset for refusal in one.deliver()] == [1, 2]
    (first, _), (second, _) = queues.all(name)
    assert (first.delivery_mode, first.message_id) == (2, f"{one.log}/0/0/0")
    assert (second.headers["op"], second.headers["offset"], second.headers["old_key"]) == (
        "update",
        3,
        '{"id":1}',
    )
    one.close()


def test_a_queue_without_room_is_away(rabbitmq_server: RabbitServer, queues: Queues, tmp_path: Path) -> None:
    name = queues.make(f"q{uuid.uuid4().hex[:8]}", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    one = Delivery(QueueTarget(rabbitmq_server), tmp_path)
    one.add(*(message(name, i, "x") for i in range(5)))
    one.open()
    with pytest.raises(AwayError, match="did not take a message"):
        one.deliver()


@pytest.mark.parametrize(
    "settings, wrong",
    [
        ({"uri": "localhost:5672"}, "expected amqp://"),
        ({"uri": "amqp://x", "prefetch": 0}, "expected 1 to 65535"),
        ({"uri": "amqp://x", "management": "localhost"}, "expected http://"),
    ],
)
def test_settings_are_checked_before_anything_connects(settings: dict[str, object], wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        a.rabbitmq(**settings)


def test_a_source_without_queues_says_what_it_needs() -> None:
    with pytest.raises(UsageError, match="needs the setting 'queues' or 'management'"):
        a.rabbitmq(uri="amqp://x").source()


def test_a_server_that_stalls_is_away_and_what_it_took_comes_again(
    rabbitmq_server: RabbitServer, queues: Queues, tmp_path: Path
) -> None:
    name = queues.make(f"stalls{uuid.uuid4().hex[:8]}")
    with proxied(rabbitmq_server.port) as link:
        uri = rabbitmq_server.uri.replace(str(rabbitmq_server.port), str(link.port))
        delivery = Delivery(QueueTarget(rabbitmq_server, uri=uri, timeout=1.0), tmp_path)
        delivery.open()
        for number in range(3):
            delivery.add(message(name, number, "row"))
        link.stall()
        with pytest.raises(AwayError):
            list(delivery.deliver())
        link.reset()
        link.heal()
        delivery.open()
        assert list(delivery.deliver()) == []
        delivery.close()
    ids = [json.loads(body)["id"] for _, body in queues.all(name)]
    assert ids[-3:] == [0, 1, 2]


@pytest.mark.soak
def test_a_sink_that_has_nothing_to_do_keeps_its_connection(
    rabbitmq_server: RabbitServer, queues: Queues, tmp_path: Path
) -> None:
    name = queues.make(f"idle{uuid.uuid4().hex[:8]}")
    delivery = Delivery(QueueTarget(rabbitmq_server, timeout=1.0), tmp_path)
    delivery.open()
    time.sleep(10)  # five times the heartbeat: a server gives up after two
    delivery.add(message(name, 1, "row"))
    assert list(delivery.deliver()) == []
    delivery.close()
    assert queues.ready(name) == 1
