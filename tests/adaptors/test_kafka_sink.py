"""Writing Kafka, to a real broker: the kit, and what Kafka has that others do not."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from tests.adaptors.kafka_topics import Topics
from tests.adaptors.test_kafka_source import KafkaSubject, read, source
from tests.servers.kafka import VERSION, KafkaServer

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, SinkPosition
from penstock.adaptors.kafka.sink import KafkaPublisher
from penstock.base.errors import AwayError, PenstockError, RefusedError, UsageError
from penstock.log.message import Message, Op
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors import Can, Holds, Row, SinkConformance, SinkSubject, TypedDelivery
from penstock.testing.adaptors.delivery import Delivery, message
from penstock.testing.adaptors.model import Log

pytestmark = pytest.mark.xdist_group("kafka")

LIMIT = 3 * 1024 * 1024


class KafkaTarget(SinkSubject):
    """The exact sequence of records counts, tombstones among them: as a row without a text."""

    name = "kafka"
    server = f"Apache Kafka {VERSION}"
    holds = Holds.MESSAGES
    patience = 30.0
    secret = KafkaSubject.secret
    can = frozenset(
        {
            Can.NAMESPACES, Can.UPDATES, Can.DELETES, Can.REKEYS, Can.TYPES, Can.FIELDS, Can.EXACT, Can.RESTART,
            Can.CONNECTS, Can.HUGE, Can.REFUSES, Can.CLAIMS,
        }
    )  # fmt: skip
    cannot: Mapping[Can, str] = {Can.TRUNCATE: "a topic is not emptied; the command is a record in it"}

    def __init__(self, server: KafkaServer, **settings: object) -> None:
        self._server = server
        self.topics = Topics(server)
        self._settings = {"positions": f"positions-{uuid.uuid4().hex[:8]}", "timeout": 6.0, **settings}

    def adaptor(self) -> Adaptor:
        return a.kafka(uri=f"kafka://{self._server.address}", **self._settings)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return KafkaSubject(self._server).misconfigured()

    def stop_server(self) -> None:
        self._server.settle()
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    def make(self, word: str) -> str:
        return self.topics.make(word, settings={"max.message.bytes": str(LIMIT)})

    def contents(self, ns: str) -> Sequence[Row]:
        found = []
        for record in self.topics.records(ns):
            value = record.value()
            document = msgspec.json.decode(value or record.key() or b"", type=dict[str, object])
            found.append(Row(int(str(document["id"])), str(document.get("text", ""))))
        return found

    def expected(self, messages: Sequence[Message]) -> Sequence[Row]:
        found = []
        for one in messages:
            document = msgspec.json.decode(one.data, type=dict[str, object])
            if one.old_key is not None:
                found.append(Row(msgspec.json.decode(one.old_key)["id"], ""))
            text = "" if one.op is Op.DELETE else str(document["text"])
            found.append(Row(int(str(document["id"])), text))
        return found

    def bad(self, ns: str) -> bytes:
        return b'{"id":666,"text":"' + b"x" * LIMIT + b'"}'

    def typed(self, word: str) -> TypedDelivery:
        ns, data = (
            self.make(word),
            b'{"id": 1, "n": 1.50, "when": {"$date":"2026-11-16T02:14:14.123456Z"}, "x":null}',
        )
        schema = Schema((Field("id", Kind.INT), Field("n", Kind.DECIMAL)), ("id",))

        def found() -> Mapping[str, object]:
            (record,) = self.topics.records(ns)
            return {"key": record.key(), "value": record.value()}

        return TypedDelivery(ns, schema, data, b'{"id":1}', found, {"key": b'{"id":1}', "value": data})

    def extra(self, ns: str, id: int) -> str | None:
        for record in self.topics.records(ns):
            document = msgspec.json.decode(record.value() or b"{}", type=dict[str, object])
            if document.get("id") == id:
                return str(document.get("extra"))
        return None


class TestKafkaSink(SinkConformance):
    @pytest.fixture
    def subject(self, kafka_server: KafkaServer) -> KafkaTarget:
        return KafkaTarget(kafka_server)


def delivery(server: KafkaServer, scratch: Path, **settings: object) -> tuple[Delivery, KafkaTarget]:
    target = KafkaTarget(server, **settings)
    return Delivery(target, scratch), target


def test_the_second_publisher_fences_off_the_first(kafka_server: KafkaServer, tmp_path: Path) -> None:
    """The zombie has everything staged, and commits after its successor has begun: nothing of it is seen."""
    zombie, target = delivery(kafka_server, tmp_path)
    ns = target.make("fenced")
    zombie.add(message(ns, 1, "once"))
    zombie.open()
    staged = zombie.stage()
    successor = Delivery(target, tmp_path / "other", zombie.log)
    successor.add(message(ns, 1, "once"))
    successor.open()
    with pytest.raises(PenstockError, match="fenced this one off"):
        zombie.publish(staged)
    assert target.contents(ns) == []
    assert successor.deliver() == []
    assert target.contents(ns) == [Row(1, "once")]
    successor.close()


def test_a_transaction_that_a_crash_left_open_is_ended_by_the_next_start(
    kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, target = delivery(kafka_server, tmp_path)
    ns = target.make("crashed")
    one.add(message(ns, 1, "once"))
    one.open()

    def crash(self: KafkaPublisher, producer: Producer) -> None:
        producer.flush(10)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(KafkaPublisher, "_commit", crash)
        with pytest.raises(KeyboardInterrupt):
            one.publish(one.stage())
    held = one.reopen()
    assert held is not None
    assert held.watermark == 0
    one.deliver()
    assert target.contents(ns) == [Row(1, "once")]


def test_a_commit_whose_answer_was_lost_is_found_out_at_the_next_start(
    kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, target = delivery(kafka_server, tmp_path)
    ns = target.make("unanswered")
    one.add(message(ns, 1, "once"))
    one.open()
    commit = KafkaPublisher._commit

    def unanswered(self: KafkaPublisher, producer: Producer) -> None:
        commit(self, producer)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    with monkeypatch.context() as patched:
        patched.setattr(KafkaPublisher, "_commit", unanswered)
        with pytest.raises(AwayError):
            one.publish(one.stage())
    held = one.reopen()
    assert held is not None
    assert held.watermark == 1
    one.deliver()
    assert target.contents(ns) == [Row(1, "once")]


def test_a_limit_that_was_lowered_refuses_the_bulk_and_then_the_message(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    one, target = delivery(kafka_server, tmp_path)
    ns = target.make("lowered")
    one.add(message(ns, 1, "small"))
    one.open()
    one.deliver()
    resource = ConfigResource(ConfigResource.Type.TOPIC, ns)
    resource.add_incremental_config(
        ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
    )
    target.topics.admin.incremental_alter_configs([resource])[resource].result(10)
    one.add(message(ns, 2, "x" * 10_000))
    with pytest.raises(RefusedError, match="MSG_SIZE_TOO_LARGE"):
        one.publish(one.stage())
    one.reopen()
    (refused,) = [refusal for part in one.stage() for refusal in part.refused]
    assert (refused.offset, refused.ns) == (1, ns)
    assert "takes 5000" in refused.error
    assert target.contents(ns) == [Row(1, "small")]


def test_small_limits_do_not_refuse_batches_of_small_records(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    one, target = delivery(kafka_server, tmp_path)
    ns = target.topics.make("small", settings={"max.message.bytes": "5000"})
    one.add(*(message(ns, i, "x" * 500) for i in range(200)))
    one.open()
    assert one.deliver() == []
    assert len(target.contents(ns)) == 200


def test_messages_without_a_key_are_refused_where_there_has_to_be_one(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    one, target = delivery(kafka_server, tmp_path)
    compacted = target.topics.make("compacted", settings={"cleanup.policy": "compact"})
    plain = target.make("plain")
    one.add(
        Message(compacted, b'{"id":1}'),
        Message(plain, b'{"id":2}'),
        Message(plain, b'{"id":3}', Op.DELETE),
        Message(compacted, b'{"id":4,"text":""}', key=b'{"id":4}'),
    )
    one.open()
    refused = {refusal.offset: refusal.error for refusal in one.deliver()}
    assert refused.keys() == {0, 2}
    assert "is compacted" in refused[0]
    assert "cannot be a tombstone" in refused[2]
    assert target.contents(plain) == [Row(2, "")]
    assert target.contents(compacted) == [Row(4, "")]


def test_records_of_a_key_stay_in_one_partition_in_their_order(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    one, target = delivery(kafka_server, tmp_path)
    ns = target.topics.make("partitioned", 4)
    one.add(*(message(ns, i % 10, f"{i}", Op.UPDATE) for i in range(200)))
    one.open()
    one.deliver()
    places: dict[int, list[tuple[int | None, int]]] = {}
    for record, row in zip(target.topics.records(ns), target.contents(ns), strict=True):
        places.setdefault(row.id, []).append((record.partition(), int(row.text)))
    assert len({partition for found in places.values() for partition, _ in found}) > 1
    for id, found in places.items():
        assert len({partition for partition, _ in found}) == 1
        assert [n for _, n in found] == list(range(id, 200, 10))


def test_records_have_headers_that_a_source_understands(kafka_server: KafkaServer, tmp_path: Path) -> None:
    one, target = delivery(kafka_server, tmp_path, deletes="record")
    ns = target.make("headers")
    one.add(message(ns, 1, "a"), message(ns, 1, "b", Op.UPDATE), message(ns, 1, "b", Op.DELETE))
    one.open()
    one.deliver()
    assert target.topics.records(ns)[1].headers() == [
        ("penstock.op", b"update"), ("penstock.ns", ns.encode()), ("penstock.offset", b"1"),
        ("penstock.ts", b"1750000000000001"),
    ]  # fmt: skip
    log = Log()
    read(source(target.topics), log, ns)
    assert [(found.op, found.data, found.key) for found in log.messages] == [
        (sent.op, sent.data, sent.key) for sent in one.messages
    ]


def test_a_message_that_changes_nothing_is_no_record(kafka_server: KafkaServer, tmp_path: Path) -> None:
    """Under its key it stood for the row: a source read it as an insert, and a compacted topic kept it alone."""
    one, target = delivery(kafka_server, tmp_path)
    ns = target.make("nothing")
    nothing = Message(ns, b"{}", Op.NOOP, key=b'{"id":1}')
    one.add(message(ns, 1, "a"), nothing, Message(ns, b"{}", Op.SKIP), message(ns, 2, "b"))
    one.open()
    assert one.deliver() == []
    assert [record.key() for record in target.topics.records(ns)] == [b'{"id":1}', b'{"id":2}']


def test_keys_can_be_plain_values(kafka_server: KafkaServer, tmp_path: Path) -> None:
    one, target = delivery(kafka_server, tmp_path, keys="value", headers=False)
    ns = target.make("keys")
    keys = [
        b'{"id":7}',
        b'{"key":"text"}',
        b'{"key":{"$binary":{"base64":"/wA=","subType":"00"}}}',
        b'{"a":1,"b":2}',
    ]
    one.add(*(Message(ns, b'{"id":1}', key=key) for key in keys))
    one.open()
    one.deliver()
    records = target.topics.records(ns)
    assert [record.key() for record in records] == [b"7", b"text", b"\xff\x00", b'{"a":1,"b":2}']
    assert [record.headers() for record in records] == [None] * 4


def test_topics_are_named_by_the_settings_and_made_if_asked(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex[:8]
    settings = {"topics": {"a/b": f"{mark}.ab"}, "prefix": f"{mark}.", "create": True, "partitions": 2}
    one, target = delivery(kafka_server, tmp_path, **settings)
    one.add(message("a/b", 1, "one"), message("c", 2, "two"))
    one.open()
    one.deliver()
    assert target.contents(f"{mark}.ab") == [Row(1, "one")]
    assert target.contents(f"{mark}.c") == [Row(2, "two")]
    assert len(target.topics.admin.list_topics(f"{mark}.c", timeout=10).topics[f"{mark}.c"].partitions) == 2


def test_a_topic_that_is_not_there_is_named(kafka_server: KafkaServer, tmp_path: Path) -> None:
    one, _ = delivery(kafka_server, tmp_path, topics={"a": "no-such-topic"})
    one.add(message("a", 1, "one"))
    one.open()
    with pytest.raises(UsageError, match="there is no topic 'no-such-topic'"):
        one.deliver()
    for found in (one.sink.inspect(), one.sink.inspect(["a"])):
        (finding,) = found
        assert finding.fatal
        assert "no-such-topic" in finding.what
        assert (finding.fix or "").endswith("--create --topic no-such-topic")
    assert one.sink.inspect([]) == []
    named, unnamable = one.sink.inspect(["a/b", "another"])
    assert "cannot be a topic" in named.what
    assert "'another' is not there" in unnamable.what
    making, target = delivery(kafka_server, tmp_path, create=True)
    assert making.sink.inspect(["another"]) == []
    assert one.sink.inspect([target.make("there")]) == []


def test_a_name_that_no_topic_can_have_is_the_settings_fault(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    one, _ = delivery(kafka_server, tmp_path)
    one.add(message("a/b", 1, "one"))
    one.open()
    with pytest.raises(UsageError, match="namespace 'a/b' cannot be a topic"):
        one.deliver()


def test_a_position_is_found_behind_many_that_failed(kafka_server: KafkaServer, tmp_path: Path) -> None:
    one, target = delivery(kafka_server, tmp_path)
    ns = target.make("failing")
    one.add(message(ns, 1, "kept"))
    one.open()
    one.deliver()
    one.close()
    (topic,) = [name for name in target.topics.admin.list_topics(timeout=10).topics if name.endswith(".kit.sink")
                and name.startswith(str(target._settings["positions"]))]  # fmt: skip
    producer = Producer({**target.topics.settings, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(10)
    for _ in range(60):
        producer.begin_transaction()
        producer.produce(topic, b"never", b"position")
        producer.flush(10)
        producer.abort_transaction(10)
    assert one.open() == SinkPosition(one.log, 0, 1)
