"""Reading Kafka, from a real broker: the kit, and what Kafka has that others do not."""

from __future__ import annotations

import threading
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace

import msgspec
import pytest
from confluent_kafka import KafkaError, Producer
from tests.adaptors.kafka_topics import Topics
from tests.servers.kafka import PASSWORD, USER, VERSION, KafkaServer
from tests.servers.ports import free_port

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.adaptors.kafka import client
from penstock.adaptors.kafka.client import Cluster, Trouble
from penstock.adaptors.kafka.reading import LostError
from penstock.base.errors import AwayError, UsageError
from penstock.log.message import MAX_MESSAGE_BYTES, Mode, Op
from penstock.pipeline.plan import shown_settings
from penstock.testing.adaptors import Can, Row, SourceConformance, SourceSubject, TypedRow
from penstock.testing.adaptors.model import Log, Reading

pytestmark = pytest.mark.xdist_group("kafka")

WRONG = "not-the-password"
PATIENCE = 30.0


class KafkaSubject(SourceSubject):
    name = "kafka"
    server = f"Apache Kafka {VERSION}"
    key = ()
    patience = PATIENCE
    secret = WRONG
    cannot: Mapping[Can, str] = {
        Can.REKEYS: "a record has one key; under another key it is another row",
        Can.TRUNCATE: "a topic is not emptied by a command",
        Can.TRANSACTIONS: "a record does not say which others were written with it",
        Can.OVERSIZE: "a record above the limit is kept among the dead letters",
    }

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self._topics = Topics(server)
        self._group = f"kit-{uuid.uuid4().hex[:8]}"
        self._rows: dict[str, dict[int, bytes]] = {}
        """What was put there; packed, since the kit looks at how much memory reading takes."""
        self._lock = threading.Lock()

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.kafka(
            uri=f"kafka://{self._server.address}",
            tail=tail,
            group=self._group,
            poll_interval=0.5,
            timeout=6.0,
        )

    def misconfigured(self) -> Mapping[str, Adaptor]:
        options = {
            "security.protocol": "sasl_plaintext", "sasl.mechanisms": "PLAIN",
            "sasl.username": USER, "sasl.password": WRONG,
        }  # fmt: skip
        return {
            "nobody listens": a.kafka(uri="kafka://127.0.0.1:1", timeout=1.0),
            "wrong password": a.kafka(
                uri=f"kafka://{self._server.sasl_address}", options=options, timeout=2.0
            ),
        }

    def stop_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    def make(self, word: str) -> str:
        topic = self._topics.make(word)
        self._rows[topic] = {}
        return topic

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        self._put(ns, rows, "insert")

    def update(self, ns: str, row: Row) -> None:
        if row.id in self._rows[ns]:
            self._put(ns, [row], "update")

    def delete(self, ns: str, id: int) -> None:
        with self._lock:
            if self._rows[ns].pop(id, None) is not None:
                self._topics.put(ns, (b'{"id":%d}' % id, None))

    def contents(self, ns: str) -> Mapping[int, str]:
        with self._lock:
            return {id: zlib.decompress(text).decode() for id, text in self._rows[ns].items()}

    def typed(self, word: str) -> TypedRow:
        ns = self.make(word)
        expected = {
            "number": "12345678901234567890.10", "nothing": "null", "yes": "true", "text": '"ü\\u0001"',
            "list": '[1, 2.50]', "when": '{"$date":"2026-11-16T02:14:14.123456Z"}',
        }  # fmt: skip
        text = "{" + ",".join(f'"{name}":{value}' for name, value in expected.items()) + "}"
        return TypedRow(ns, lambda: self._topics.put(ns, (None, text.encode())), expected)

    def add_field(self, ns: str) -> None:
        """There is nothing to do: a topic has no fields."""

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        with self._lock:
            self._rows[ns][row.id] = zlib.compress(row.text.encode())
            document = msgspec.json.encode({"id": row.id, "text": row.text, "extra": extra})
            self._topics.put(ns, (b'{"id":%d}' % row.id, document))

    def held_back(self) -> int:
        (topic,) = self._rows
        end = self._topics.records(topic)[-1].offset()
        assert end is not None
        return max(0, end + 1 - self._topics.committed(self._group, topic))

    def _put(self, ns: str, rows: Sequence[Row], op: str) -> None:
        with self._lock:
            self._rows[ns] |= {row.id: zlib.compress(row.text.encode(), 1) for row in rows}
            records = [(b'{"id":%d}' % row.id, msgspec.json.encode(row._asdict())) for row in rows]
            self._topics.put(ns, *records, headers=[("penstock.op", op.encode())])


class TestKafkaSource(SourceConformance):
    @pytest.fixture
    def subject(self, kafka_server: KafkaServer) -> KafkaSubject:
        return KafkaSubject(kafka_server)


@pytest.fixture
def topics(kafka_server: KafkaServer) -> Topics:
    return Topics(kafka_server)


def source(topics: Topics, **settings: object) -> Adaptor:
    return a.kafka(uri=f"kafka://{topics.server.address}", poll_interval=0.3, **settings)


def read(adaptor: Adaptor, log: Log, *names: str) -> None:
    """One start, to its end."""
    with Reading(adaptor, log, set(names).__contains__) as reading:
        reading.to_the_end(PATIENCE)


def documents(log: Log) -> list[object]:
    return [msgspec.json.decode(message.data) for message in log.messages]


def test_all_partitions_are_copied_each_in_its_order(topics: Topics) -> None:
    topic, log = topics.make("partitioned", 3), Log()
    for i in range(30):
        topics.put(topic, (None, b'{"n":%d}' % i), partition=i % 3)
    read(source(topics), log, topic)
    numbers = [msgspec.json.decode(message.data)["n"] for message in log.messages]
    assert sorted(numbers) == list(range(30))
    for partition in range(3):
        assert [n for n in numbers if n % 3 == partition] == list(range(partition, 30, 3))
    assert log.completed == [topic]


def test_partitions_that_are_added_are_read_from_their_beginning(topics: Topics) -> None:
    topic, log = topics.make("growing"), Log()
    topics.put(topic, (None, b'{"n":0}'))
    with Reading(source(topics, tail=True), log, {topic}.__contains__) as reading:
        assert reading.until(lambda: topic in log.completed, PATIENCE)
        topics.add_partitions(topic, 2)
        topics.put(topic, (None, b'{"n":1}'), partition=1)
        assert reading.until(lambda: len(log.messages) == 2, PATIENCE)
    topics.add_partitions(topic, 3)
    topics.put(topic, (None, b'{"n":2}'), partition=2)
    read(source(topics), log, topic)
    assert documents(log) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_what_is_not_committed_is_not_read_and_does_not_hold_up_the_copy(topics: Topics) -> None:
    topic, log = topics.make("open"), Log()
    topics.put(topic, (None, b'{"n":0}'))
    aborted = topics.start_transaction(topic, b'{"n":"never"}')
    read(source(topics), log, topic)
    assert log.completed == [topic]
    aborted.abort_transaction(PATIENCE)
    topics.put(topic, (None, b'{"n":1}'))
    read(source(topics), log, topic)
    assert documents(log) == [{"n": 0}, {"n": 1}]


def test_what_is_decided_while_the_copy_begins_is_copied(topics: Topics) -> None:
    """A commit is answered before its records are shown: for readers it looks like this one."""
    topic, log = topics.make("deciding"), Log()
    producer = topics.start_transaction(topic, b'{"n":0}')
    deciding = threading.Timer(0.3, producer.commit_transaction, (PATIENCE,))
    deciding.start()
    read(source(topics), log, topic)
    deciding.join()
    assert documents(log) == [{"n": 0}]


def test_records_that_retention_took_are_an_error_that_says_which(topics: Topics) -> None:
    topic, log = topics.make("cut"), Log()
    topics.put(topic, *[(None, b'{"n":%d}' % i) for i in range(3)])
    read(source(topics), log, topic)
    topics.put(topic, *[(None, b'{"n":%d}' % i) for i in range(3, 9)])
    topics.cut(topic, 7)
    with pytest.raises(LostError, match=f"topic '{topic}', partition 0: the records 4 to 6 were removed"):
        read(source(topics), log, topic)
    assert len(log.messages) == 3
    read(source(topics, if_lost="accept"), log, topic)
    assert documents(log)[3:] == [{"n": 6}, {"n": 7}, {"n": 8}]


def test_records_that_are_taken_while_tailing_are_an_error_too(topics: Topics) -> None:
    """The reader is held up by the log, and what it was to read next goes."""
    topic, log = topics.make("cut"), Log()
    text = b'{"text":"' + b"x" * 500_000 + b'"}'
    for _ in range(20):
        topics.put(topic, *[(None, text)] * 4)
    with Reading(source(topics, tail=True), log, {topic}.__contains__) as reading:
        first = reading.take(PATIENCE)
        assert first is not None
        time.sleep(1.0)
        topics.cut(topic, 90)
        reading.log(first)
        with pytest.raises(LostError, match="are gone, and were not read"):
            reading.until(lambda: False, PATIENCE)


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(topics: Topics) -> None:
    topic, log = topics.make("anew"), Log()
    topics.put(topic, *[(None, b'{"n":%d}' % i) for i in range(3)])
    read(source(topics), log, topic)
    topics.delete(topic)
    _made_again(topics, topic)
    topics.put(topic, *[(None, b'{"again":%d}' % i) for i in range(9)])
    with pytest.raises(LostError, match="was deleted and made anew"):
        read(source(topics), log, topic)
    read(source(topics, if_lost="accept"), log, topic)
    assert documents(log)[3:] == [{"again": i} for i in range(9)]


def test_a_topic_that_is_deleted_while_it_is_followed_is_an_error(topics: Topics) -> None:
    topic, log = topics.make("deleted"), Log()
    topics.put(topic, (None, b'{"n":0}'))
    with Reading(source(topics, tail=True), log, {topic}.__contains__) as reading:
        assert reading.until(lambda: topic in log.completed, PATIENCE)
        topics.delete(topic)
        with pytest.raises(LostError, match=f"topic '{topic}' was deleted"):
            reading.until(lambda: False, PATIENCE)


def test_a_compacted_topic_has_gaps_and_is_read_past_them(topics: Topics) -> None:
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "200"}
    topic, log = topics.make("compacted", settings=settings), Log()
    for i in range(5):
        topics.put(topic, (b"same", b'{"n":%d}' % i), (b"gone", b'{"n":"gone"}'))
    topics.put(topic, (b"gone", None))
    deadline = time.monotonic() + PATIENCE
    while [record.key() for record in topics.records(topic)].count(b"same") > 1:
        assert time.monotonic() < deadline, "the broker does not compact"
        time.sleep(0.3)
        topics.put(topic, (b"roll", b'{"n":"roll"}'))
    read(source(topics), log, topic)
    state = {message.key: message for message in log.messages}
    assert msgspec.json.decode(state[b'{"key":"same"}'].data) == {"n": 4}
    assert log.completed == [topic]


def test_keys_are_objects_and_tombstones_are_deletes(topics: Topics) -> None:
    topic, log = topics.make("keys"), Log()
    topics.put(
        topic,
        (b'{"id": 7}', b'{"id": 7, "a": 1.50}'),
        (b"plain", b'{"id":8}'),
        (b"\xff\x00", b'{"id":9}'),
        (None, b' {"id":10}\n'),
        (b'{"id": 7}', None),
        (b"plain", None),
    )
    read(source(topics), log, topic)
    binary = b'{"key":{"$binary":{"base64":"/wA=","subType":"00"}}}'
    assert [(message.op, message.key, message.data) for message in log.messages] == [
        (Op.INSERT, b'{"id": 7}', b'{"id": 7, "a": 1.50}'),
        (Op.INSERT, b'{"key":"plain"}', b'{"id":8}'),
        (Op.INSERT, binary, b'{"id":9}'),
        (Op.INSERT, None, b'{"id":10}'),
        (Op.DELETE, b'{"id": 7}', b'{"id": 7}'),
        (Op.DELETE, b'{"key":"plain"}', b'{"key":"plain"}'),
    ]
    assert all(abs(message.ts / 1e6 - time.time()) < 600 for message in log.messages)
    assert {message.mode for message in log.messages} == {Mode.COPY}


def test_bad_records_are_kept_with_their_place_and_stop_nothing(topics: Topics) -> None:
    topic, log = topics.make("bad"), Log()
    bad = [b"no json", b"[1]", b'{"a":"\xff"}', b"", None]
    topics.put(topic, *[(None, value) for value in bad], (None, b'{"n":1}'))
    topics.put(topic, (None, b'{"n":"' + b"x" * MAX_MESSAGE_BYTES + b'"}'), (None, b'{"n":2}'))
    read(source(topics), log, topic)
    assert documents(log) == [{"n": 1}, {"n": 2}]
    places = [f"topic {topic}, partition 0, offset {n}" for n in (0, 1, 2, 3, 4, 7)]
    assert list(log.bad) == places
    assert [log.bad[place].content[:8] for place in places[:3]] == [b"no json", b"[1]", b'{"a":"\xff"}'[:8]]
    assert "longer than a message may be" in log.bad[places[5]].error


@pytest.mark.parametrize(
    ("value", "raw", "expected"),
    [
        ("text", "grüße".encode(), '{"value":"grüße"}'),
        ("text", b'{"a":1}', '{"value":"{\\"a\\":1}"}'),
        ("binary", b"\x00\xff", '{"value":{"$binary":{"base64":"AP8=","subType":"00"}}}'),
    ],
)
def test_values_that_are_no_json(topics: Topics, value: str, raw: bytes, expected: str) -> None:
    topic, log = topics.make("values"), Log()
    topics.put(topic, (None, raw))
    read(source(topics, value=value), log, topic)
    assert log.messages[0].data.decode() == expected


def test_an_envelope_keeps_all_that_a_record_has(topics: Topics) -> None:
    topic, log = topics.make("envelope", 2), Log()
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", b"\xff"), ("b", None)]
    topics.put(topic, (b"k", b'{"n": 1.0}'), partition=1, headers=headers)
    topics.put(topic, (b"k", None), partition=1)
    read(source(topics, envelope=True), log, topic)
    first, second = log.messages
    assert b'"value":{"n": 1.0}' in first.data
    found = msgspec.json.decode(first.data)
    assert found["headers"] == [
        {"key": "a", "value": "1"},
        {"key": "a", "value": {"$binary": {"base64": "/w==", "subType": "00"}}},
        {"key": "b", "value": None},
    ]
    assert (found["key"], found["partition"], found["offset"]) == ("k", 1, 0)
    assert found["timestamp"]["$date"].startswith("20")
    assert (second.op, msgspec.json.decode(second.data)["value"]) == (Op.DELETE, None)


def test_a_time_that_no_calendar_has_stops_nothing(topics: Topics) -> None:
    """A producer may give microseconds where milliseconds are meant."""
    topic, log = topics.make("late", settings={"message.timestamp.after.max.ms": str(2**63 - 1)}), Log()
    producer = Producer(topics.settings)
    for moment in (1_700_000_000_000_000, 2**63 - 1, 1_700_000_000_000):
        producer.produce(topic, b'{"n":0}', timestamp=moment)
    assert producer.flush(PATIENCE) == 0
    read(source(topics, envelope=True), log, topic)
    assert [found["timestamp"] for found in documents(log)] == [  # type: ignore[index]
        {"$date": {"$numberLong": "1700000000000000"}},
        {"$date": {"$numberLong": "9223372036854775807"}},
        {"$date": "2023-11-14T22:13:20Z"},
    ]
    now = time.time_ns() // 1000
    assert [message.ts <= now for message in log.messages] == [True, True, True]
    assert log.messages[2].ts == 1_700_000_000_000_000


def test_the_password_goes_to_the_broker_and_nowhere_else(topics: Topics) -> None:
    topic, log = topics.make("secret"), Log()
    topics.put(topic, (None, b'{"n":0}'))
    options = {
        "security.protocol": "sasl_plaintext", "sasl.mechanisms": "PLAIN",
        "sasl.username": USER, "sasl.password": PASSWORD,
    }  # fmt: skip
    adaptor = a.kafka(uri=f"kafka://{topics.server.sasl_address}", options=options)
    read(adaptor, log, topic)
    assert len(log.messages) == 1
    assert PASSWORD not in repr(adaptor)
    assert PASSWORD not in str(shown_settings(adaptor))
    assert USER in str(shown_settings(adaptor))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"uri": "localhost:9092"}, "expected kafka://HOST:PORT"),
        ({"uri": "kafka://"}, "expected kafka://HOST:PORT"),
        ({"uri": "kafka://h", "options": {"group.id": "x"}}, "'group.id' is Penstock's own"),
        ({"uri": "kafka://h", "topics": {"a": "b c"}}, "cannot be the name of a topic"),
        ({"uri": "kafka://h", "timeout": 0.0}, "'timeout': expected more than 0"),
        ({"uri": "kafka://h", "value": "avro"}, "setting 'value'"),
    ],
)
def test_settings_are_checked_before_anything_connects(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        a.kafka(**settings)


def test_options_that_the_driver_does_not_know_are_named(topics: Topics) -> None:
    with pytest.raises(UsageError, match=r"no\.such\.setting"):
        source(topics, options={"no.such.setting": "1"}).source().namespaces()


@pytest.fixture(autouse=True)
def _unregistered() -> Iterator[None]:
    """Passwords that tests register are forgotten."""
    yield
    from penstock.base import secrets

    secrets.forget_all()


def _made_again(topics: Topics, topic: str) -> None:
    """Make a topic of a given name as soon as the broker has forgotten the old one."""
    from confluent_kafka import KafkaException
    from confluent_kafka.cimpl import NewTopic

    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            topics.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE)
        except KafkaException:
            time.sleep(0.2)
        else:
            return


def test_offsets_of_a_topic_that_nobody_leads_yet_are_waited_for(kafka_server: KafkaServer) -> None:
    """One that was just made has no leader for a moment, in which a first run would have ended."""
    topics, topic = Topics(kafka_server), f"late-{uuid.uuid4().hex[:8]}"
    cluster = Cluster(a.kafka(uri=f"kafka://{kafka_server.address}", timeout=30.0))
    admin = cluster.admin(Trouble())
    making = threading.Timer(1.0, topics.made, [topic])
    making.start()
    found = cluster.offsets(admin, [(topic, 0)], Trouble(), which="end")
    making.join()
    assert found == {(topic, 0): 0}


def test_a_partition_that_nobody_leads_is_away(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LEADER_SECONDS", 1.0)
    cluster = Cluster(a.kafka(uri=f"kafka://{kafka_server.address}", timeout=30.0))
    with pytest.raises(AwayError, match="cannot ask for offsets"):
        cluster.offsets(cluster.admin(Trouble()), [("nowhere", 0)], Trouble(), which="end")


@pytest.mark.parametrize("code, there", [("LEADER_NOT_AVAILABLE", True), ("UNKNOWN_TOPIC_OR_PART", False)])
def test_a_topic_that_the_cluster_cannot_tell_of_now_is_not_gone(
    monkeypatch: pytest.MonkeyPatch, code: str, there: bool
) -> None:
    """It was taken for deleted, and by a copy for one that is not there."""
    cluster = Cluster(a.kafka(uri="kafka://127.0.0.1:9"))
    error = KafkaError(getattr(KafkaError, code))
    found = {
        "late": SimpleNamespace(error=error, partitions={}),
        "t": SimpleNamespace(error=None, partitions={0: 0}),
    }
    monkeypatch.setattr(Cluster, "listed", lambda *_: SimpleNamespace(topics=found))
    admin = cluster.admin(Trouble())
    assert cluster.topics(admin, Trouble(), {"t"}.__contains__) == {"t": [0]}
    expected = pytest.raises(AwayError, match="partitions of topic 'late'") if there else nullcontext()
    with expected:
        assert cluster.topics(admin, Trouble(), {"late"}.__contains__) == {"t": [0]}


def test_a_source_that_never_reached_its_brokers_stops_quickly() -> None:
    source = a.kafka(uri=f"kafka://127.0.0.1:{free_port()}", timeout=60.0, tail=True).source()
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    began = time.monotonic()
    with pytest.raises(AwayError, match="cannot list the topics"):
        next(iter(source.read(lambda ns: True, {}, stop)))
    assert time.monotonic() - began < 20, "it waited for the brokers though nobody wanted them any more"
