"""Reading and writing JetStream, at a real server: the kit, and what NATS has that others do not."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.adaptors.nats_subjects import PATIENCE, NatsSubject, NatsTarget, Streams
from tests.servers.nats import NatsServer

from penstock import adaptors as a
from penstock.adaptors.base import SinkPosition
from penstock.adaptors.nats import sink as nats_sink
from penstock.adaptors.nats.client import Client, Pulled
from penstock.adaptors.nats.sink import NatsPublisher
from penstock.adaptors.nats.source import LostError
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.log.message import Op
from penstock.testing.adaptors import (
    Row,
    SinkConformance,
    SourceConformance,
)
from penstock.testing.adaptors.delivery import Delivery, message, truncate
from penstock.testing.adaptors.model import Log, Reading

pytestmark = [pytest.mark.xdist_group("nats"), pytest.mark.usefixtures("forgets_secrets")]


class TestNatsSource(SourceConformance):
    @pytest.fixture
    def subject(self, nats_server: NatsServer) -> NatsSubject:
        return NatsSubject(nats_server)


class TestNatsSink(SinkConformance):
    @pytest.fixture
    def subject(self, nats_server: NatsServer) -> Iterator[NatsTarget]:
        target = NatsTarget(nats_server)
        yield target
        target.streams.ask(f"STREAM.PURGE.{nats_sink.POSITIONS}")


@pytest.fixture
def stream(nats_server: NatsServer) -> Iterator[tuple[Streams, str]]:
    streams, name = Streams(nats_server.uri), f"s{uuid.uuid4().hex[:8]}"
    streams.make(name)
    yield streams, name
    streams.ask(f"STREAM.DELETE.{name}")


def read(server: NatsServer, log: Log, name: str, **settings: object) -> None:
    """One start, to its end."""
    with Reading(a.nats(uri=server.uri, **settings), log, lambda ns: ns == name) as reading:
        reading.to_the_end(PATIENCE)


def numbers(log: Log) -> list[object]:
    return [msgspec.json.decode(message.data, type=dict[str, object])["n"] for message in log.messages]


def put(streams: Streams, name: str, *numbers: int) -> None:
    streams.put(f"{name}.x", [b'{"n":%d}' % n for n in numbers])


def test_messages_that_were_purged_before_they_were_read_are_an_error_that_says_how_many(
    nats_server: NatsServer, stream: tuple[Streams, str]
) -> None:
    streams, name = stream
    log = Log()
    put(streams, name, 1, 2)
    read(nats_server, log, name)
    put(streams, name, 3, 4, 5)
    streams.ask(f"STREAM.PURGE.{name}", {"seq": 5})
    with pytest.raises(LostError, match="2 messages behind 2 were removed before they were read"):
        read(nats_server, log, name)
    read(nats_server, log, name, if_lost="accept")
    assert numbers(log) == [1, 2, 5]


@pytest.mark.parametrize("given", ["not", "to nobody"])
def test_a_server_that_is_too_slow_to_give_anything_is_asked_again(
    nats_server: NatsServer, stream: tuple[Streams, str], monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    streams, name = stream
    put(streams, name, *range(50))
    pull, patience = Client.pull, iter([1e-6, 1e-6])

    def hurried(
        client: Client, stream: str, consumer: str, count: int, size: int | None, wait: float
    ) -> Pulled:
        """A microsecond is over before any server has looked for messages; some give them after that."""
        hurry = next(patience, None)
        found = pull(client, stream, consumer, count, size, wait if given == "to nobody" else hurry or wait)
        return Pulled([], 408) if hurry and given == "to nobody" else found

    monkeypatch.setattr(Client, "pull", hurried)
    log = Log()
    read(nats_server, log, name)
    assert numbers(log) == list(range(50))
    assert next(patience, None) is None


def test_a_purge_while_it_is_followed_is_an_error_too(
    nats_server: NatsServer, stream: tuple[Streams, str]
) -> None:
    streams, name = stream
    log = Log()
    streams.put(f"{name}.x", [b'{"n":%d,"text":"%b"}' % (n, b"x" * 200_000) for n in range(40)])
    adaptor = a.nats(uri=nats_server.uri, tail=True)
    with Reading(adaptor, log, lambda ns: ns == name) as reading:
        first = reading.take(PATIENCE)
        assert first is not None
        streams.ask(f"STREAM.PURGE.{name}", {"keep": 1})
        reading.log(first)
        with pytest.raises(LostError, match="were removed before they were read"):
            reading.until(lambda: False, PATIENCE)


def test_what_was_read_may_be_purged_and_single_messages_may_be_deleted(
    nats_server: NatsServer, stream: tuple[Streams, str]
) -> None:
    streams, name = stream
    log = Log()
    put(streams, name, 1, 2)
    read(nats_server, log, name)
    streams.ask(f"STREAM.PURGE.{name}", {})
    put(streams, name, 3, 4, 5)
    streams.ask(f"STREAM.MSG.DELETE.{name}", {"seq": 4})
    streams.ask(f"STREAM.MSG.DELETE.{name}", {"seq": 5})
    read(nats_server, log, name)
    assert numbers(log) == [1, 2, 3]
    assert log.completed == [name]


def test_a_stream_that_was_made_anew_is_not_taken_for_the_old_one(
    nats_server: NatsServer, stream: tuple[Streams, str]
) -> None:
    streams, name = stream
    log = Log()
    put(streams, name, 1)
    read(nats_server, log, name)
    streams.ask(f"STREAM.DELETE.{name}")
    streams.make(name)
    put(streams, name, 7, 8)
    with pytest.raises(LostError, match="was deleted and made anew"):
        read(nats_server, log, name)
    read(nats_server, log, name, if_lost="accept")
    assert numbers(log) == [1, 7, 8]


def test_a_work_queue_is_refused_and_loses_nothing(
    nats_server: NatsServer, stream: tuple[Streams, str]
) -> None:
    streams, name = stream
    streams.ask(f"STREAM.DELETE.{name}")
    streams.make(name, retention="workqueue")
    put(streams, name, 1)
    source = a.nats(uri=nats_server.uri).source()
    (finding,) = source.inspect(lambda ns: ns == name).findings
    assert finding.fatal
    with pytest.raises(UsageError, match="is a work queue"):
        read(nats_server, Log(), name)
    assert streams.count(name) == 1


def test_bad_messages_are_kept_with_their_place_and_stop_nothing(
    nats_server: NatsServer, stream: tuple[Streams, str]
) -> None:
    streams, name = stream
    log = Log()
    for body in (b"no json", b"[1]", b"\xff", b' {"n": 1} ', b'{"other": 2}'):
        streams.put(f"{name}.x", [body])
    read(nats_server, log, name, key=["n"])
    assert [(one.data, one.key) for one in log.messages] == [(b'{"n": 1}', b'{"n":1}')]
    assert {place: bad.content for place, bad in log.bad.items()} == {
        f"stream {name}, message 1": b"no json",
        f"stream {name}, message 2": b"[1]",
        f"stream {name}, message 3": b"\xff",
        f"stream {name}, message 5": b'{"other": 2}',
    }


def test_subjects_can_be_chosen_and_subject_and_headers_can_be_fields(
    nats_server: NatsServer, stream: tuple[Streams, str]
) -> None:
    streams, name = stream
    log = Log()
    streams.put(f"{name}.a", [b'{"n":1}'], {"Trace": "t1"})
    streams.put(f"{name}.b", [b'{"n":2}'])
    streams.put(f"{name}.a", [b"{}"], {"Trace": "t2"})
    read(nats_server, log, name, subject=f"{name}.a", subject_field="_s", headers_field="_h")
    assert [one.data.decode() for one in log.messages] == [
        f'{{"_s":"{name}.a","_h":{{"Trace":"t1"}},"n":1}}',
        f'{{"_s":"{name}.a","_h":{{"Trace":"t2"}}}}',
    ]


def test_a_consumer_that_the_server_forgot_is_made_anew(
    nats_server: NatsServer, stream: tuple[Streams, str]
) -> None:
    streams, name = stream
    log = Log()
    put(streams, name, 1)
    with Reading(a.nats(uri=nats_server.uri, tail=True), log, lambda ns: ns == name) as reading:
        assert reading.until(lambda: name in log.completed, PATIENCE)
        for consumer in streams.consumers(name):
            streams.ask(f"CONSUMER.DELETE.{name}.{consumer}")
        put(streams, name, 2, 3)
        assert reading.until(lambda: len(log.messages) == 3, PATIENCE)
    assert numbers(log) == [1, 2, 3]


@pytest.fixture
def target(nats_server: NatsServer) -> Iterator[NatsTarget]:
    target = NatsTarget(nats_server)
    yield target
    target.close()
    target.streams.ask(f"STREAM.PURGE.{nats_sink.POSITIONS}")


def test_of_two_publishers_one_is_fenced_off_and_nothing_comes_twice(
    target: NatsTarget, tmp_path: Path
) -> None:
    """The zombie has everything staged, and writes after its successor has: nothing of it is seen."""
    zombie = Delivery(target, tmp_path)
    zombie.add(message("a", 1, "once"))
    zombie.open()
    staged = zombie.stage()
    successor = Delivery(target, tmp_path / "other", zombie.log)
    successor.add(message("a", 1, "once"))
    successor.open()
    assert successor.deliver() == []
    with pytest.raises(PenstockError, match="has fenced this one off"):
        zombie.publish(staged)
    assert target.contents("a") == [Row(1, "once")]
    successor.close()


def test_a_batch_that_came_through_in_part_goes_on_where_it_ended(
    target: NatsTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Delivery(target, tmp_path)
    one.add(*(message("a", i, "x") for i in range(10)))
    one.open()
    staged = one.stage()
    send, sizes = NatsPublisher._send, []

    def third_fails(
        self: NatsPublisher, client: Client, chunk: Sequence[nats_sink.Sent], position: SinkPosition
    ) -> None:
        sizes.append(len(chunk))
        if len(sizes) == 3:
            raise AwayError("as if")
        send(self, client, chunk, position)

    with monkeypatch.context() as patched:
        patched.setattr(nats_sink, "MOST_MESSAGES", 3)
        patched.setattr(NatsPublisher, "_send", third_fails)
        with pytest.raises(AwayError):
            one.publish(staged)
    held = one.reopen()
    assert held is not None
    assert held.watermark == 6
    one.deliver()
    assert [row.id for row in target.contents("a")] == list(range(10))
    one.close()


def test_if_the_last_message_is_gone_what_comes_again_is_dropped_by_its_id(
    target: NatsTarget, tmp_path: Path
) -> None:
    one = Delivery(target, tmp_path)
    one.add(*(message("a", i, "x") for i in range(6)))
    one.open()
    publisher = one._publisher
    assert isinstance(publisher, NatsPublisher)
    record = publisher._note
    publisher._note = lambda client, position: None  # type: ignore[method-assign]
    one.publish(one.stage(end=4), end=4)
    publisher._note = record  # type: ignore[method-assign]
    target.streams.ask(f"STREAM.MSG.DELETE.{target.stream}", {"seq": 4})
    held = one.reopen()
    assert held is not None
    assert held.watermark == 0
    one.deliver()
    assert [row.id for row in target.contents("a")] == [0, 1, 2, 4, 5], (
        "3 was deleted, and none is there twice"
    )
    one.close()


def test_messages_tell_what_they_are(target: NatsTarget, tmp_path: Path) -> None:
    one = Delivery(target, tmp_path)
    one.add(message("a.b", 1, "x"), message("a.b", 2, "y", Op.UPDATE, was=1), truncate("a.b"))
    one.open()
    one.deliver()
    first, second, third = (headers for headers, _ in target.entries("a.b"))
    assert (first["Penstock-Op"], first["Penstock-Ns"], first["Penstock-Offset"]) == ("insert", "a.b", "0")
    assert (first["Penstock-Key"], first["Nats-Msg-Id"]) == ('{"id":1}', f"{one.log}/0/0/0")
    assert (second["Penstock-Op"], second["Penstock-Old-Key"]) == ("update", '{"id":1}')
    assert third["Penstock-Op"] == "command"
    one.close()


def test_a_namespace_that_is_no_subject_is_refused_by_its_message(target: NatsTarget, tmp_path: Path) -> None:
    one = Delivery(target, tmp_path)
    one.add(message("good", 1, "x"), message("no good", 2, "x"), message("a..b", 3, "x"))
    one.open()
    assert [refusal.offset for refusal in one.deliver()] == [1, 2]
    assert target.contents("good") == [Row(1, "x")]
    one.close()


def test_a_subject_that_the_stream_does_not_take_is_named_and_nothing_is_written(
    nats_server: NatsServer, target: NatsTarget, tmp_path: Path
) -> None:
    target._settings["prefix"] = ""
    one = Delivery(target, tmp_path)
    one.add(message(f"{target.stream}.a", 1, "x"), message("elsewhere", 1, "x"))
    one.open()
    with pytest.raises(UsageError, match="does not take the subject 'elsewhere'"):
        one.deliver()
    assert target.streams.count(target.stream) == 0
    one.close()


def test_a_stream_that_others_wrote_is_refused_unless_it_is_shared(
    nats_server: NatsServer, target: NatsTarget, tmp_path: Path
) -> None:
    target.streams.put(f"{target.stream}.other", [b"{}"])
    one = Delivery(target, tmp_path)
    with pytest.raises(UsageError, match="did not write"):
        one.open()
    target._settings["shared"] = True
    shared = Delivery(target, tmp_path)
    shared.add(message("a", 1, "x"))
    assert shared.open() is None
    shared.publish(shared.stage())
    assert shared.reopen() is None
    shared.deliver()
    assert target.contents("a") == [Row(1, "x")], "it is known by its id"
    shared.close()


def test_a_full_stream_is_away_and_goes_on_when_there_is_room(target: NatsTarget, tmp_path: Path) -> None:
    config = {"name": target.stream, "subjects": [f"{target.stream}.>"], "max_msgs": 2, "discard": "new"}
    target.streams.ask(f"STREAM.UPDATE.{target.stream}", config)
    one = Delivery(target, tmp_path)
    one.add(*(message("a", i, "x") for i in range(4)))
    one.open()
    with pytest.raises(AwayError):
        one.deliver()
    target.streams.ask(f"STREAM.UPDATE.{target.stream}", {**config, "max_msgs": 100})
    one.reopen()
    one.deliver()
    assert [row.id for row in target.contents("a")] == [0, 1, 2, 3]
    one.close()


def test_the_stream_can_be_made(nats_server: NatsServer, target: NatsTarget, tmp_path: Path) -> None:
    target.streams.ask(f"STREAM.DELETE.{target.stream}")
    assert [finding.fatal for finding in target.adaptor().sink().inspect()] == [True]
    target._settings["create"] = True
    one = Delivery(target, tmp_path)
    one.add(message("a", 1, "x"))
    one.open()
    one.deliver()
    assert target.contents("a") == [Row(1, "x")]
    one.close()


@pytest.mark.parametrize(
    "settings, wrong",
    [
        ({"uri": "localhost:4222"}, "expected nats://"),
        ({"uri": "nats://x", "timeout": 0.0}, "expected more than 0"),
        ({"uri": "nats://x", "create": True}, "expected a setting 'prefix'"),
        ({"uri": "nats://x", "certificate": "c.pem"}, "expected both or none"),
    ],
)
def test_settings_are_checked_before_anything_connects(settings: dict[str, object], wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        a.nats(**settings)
