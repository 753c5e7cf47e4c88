"""Writing Redis, to a real server: the kit, and what Redis has that others do not."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
import redis
from tests.adaptors.message_subjects import MessageTarget
from tests.adaptors.test_redis_source import RedisSubject, read
from tests.servers.redis import PASSWORD, RedisServer, server_version

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor, SinkPosition
from penstock.adaptors.redis import Redis
from penstock.adaptors.redis import sink as redis_sink
from penstock.adaptors.redis.client import ask
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.log.message import Message, Op
from penstock.testing.adaptors import Can, Row, SinkConformance, SinkSubject
from penstock.testing.adaptors.delivery import Delivery, batch_of, message, truncate
from penstock.testing.adaptors.model import Log
from penstock.testing.adaptors.subject import row_of

pytestmark = [pytest.mark.xdist_group("redis"), pytest.mark.usefixtures("forgets_secrets")]


class Target(SinkSubject):
    """What streams and keys share."""

    name = "redis"
    secret = PASSWORD

    def __init__(self, server: RedisServer, **settings: object) -> None:
        self._server = server
        self.server = server_version()
        self.client = redis.Redis.from_url(server.uri)
        self.key = f"positions-{uuid.uuid4().hex[:8]}"
        self._settings = {"positions": self.key, "timeout": 5.0, **settings}

    def adaptor(self) -> Adaptor:
        return a.redis(uri=self._server.uri, **self._settings)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return RedisSubject(self._server).misconfigured()

    def stop_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    def make(self, word: str) -> str:
        return word

    def close(self) -> None:
        self.client.close()


class StreamTarget(Target, MessageTarget):
    """Each message is an entry."""

    cannot: Mapping[Can, str] = {Can.REFUSES: "a stream takes every message"}

    def entries(self, ns: str) -> list[dict[bytes, bytes]]:
        found = cast("list[tuple[bytes, dict[bytes, bytes]]]", self.client.xrange(ns))
        return [fields for _, fields in found]

    def contents(self, ns: str) -> Sequence[Row]:
        entries = [entry for entry in self.entries(ns) if entry.get(b"op") != b"command"]
        return [row_of(Message(ns, entry[b"data"])) for entry in entries]

    def bodies(self, ns: str) -> Sequence[bytes]:
        return [entry[b"data"] for entry in self.entries(ns)]


class TestRedisStreams(SinkConformance):
    @pytest.fixture
    def subject(self, redis_server: RedisServer) -> StreamTarget:
        return StreamTarget(redis_server)


def delivery(server: RedisServer, scratch: Path, **settings: object) -> tuple[Delivery, StreamTarget]:
    target = StreamTarget(server, **settings)
    return Delivery(target, scratch), target


def fresh() -> str:
    return f"k{uuid.uuid4().hex[:8]}"


def test_the_second_publisher_fences_off_the_first(redis_server: RedisServer, tmp_path: Path) -> None:
    """The zombie has everything staged, and writes after its successor has: nothing of it is seen."""
    zombie, target = delivery(redis_server, tmp_path)
    ns = fresh()
    zombie.add(message(ns, 1, "once"))
    zombie.open()
    staged = zombie.stage()
    successor = Delivery(target, tmp_path / "other", zombie.log)
    successor.add(message(ns, 1, "once"))
    successor.open()
    assert successor.deliver() == []
    with pytest.raises(PenstockError, match="fenced this one off"):
        zombie.publish(staged)
    assert target.contents(ns) == [Row(1, "once")]


def test_entries_tell_what_they_are_and_a_source_reads_them(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    one, target = delivery(redis_server, tmp_path)
    target.client.flushdb()
    ns = fresh()
    one.add(message(ns, 1, "a"), message(ns, 2, "b", Op.UPDATE, was=1), truncate(ns))
    one.open()
    one.deliver()
    first, second, third = target.entries(ns)
    assert first == {
        b"op": b"insert", b"ns": ns.encode(), b"offset": b"0", b"ts": b"1750000000000001", b"key": b'{"id":1}',
        b"data": one.messages[0].data,
    }  # fmt: skip
    assert (second[b"op"], second[b"old_key"]) == (b"update", b'{"id":1}')
    assert (third[b"op"], third[b"data"]) == (b"command", b'{"command":"truncate"}')
    log = Log()
    read(redis_server, log, json_field="data")
    assert [found.data for found in log.messages] == [sent.data for sent in one.messages]


def test_ids_can_be_the_offsets_of_the_log(redis_server: RedisServer, tmp_path: Path) -> None:
    one, target = delivery(redis_server, tmp_path, ids="offset", envelope=False)
    ns = fresh()
    one.add(*(message(ns, i, "x") for i in range(3)))
    one.open()
    one.deliver()
    ids = [entry[0] for entry in cast("list[tuple[bytes, object]]", target.client.xrange(ns))]
    assert ids == [b"0-1", b"1-1", b"2-1"]
    one.rewind(1)
    one.open()
    one.deliver()
    ids = [entry[0] for entry in cast("list[tuple[bytes, object]]", target.client.xrange(ns))]
    assert ids[3:] == [b"%d-1" % ((1 << 40) + 1), b"%d-1" % ((1 << 40) + 2)]
    target.client.xadd(ns, {"somebody": "else"})
    one.add(message(ns, 3, "x"))
    with pytest.raises(UsageError, match="somebody else writes to it"):
        one.deliver()
    assert len(target.entries(ns)) == 6


def test_a_stream_is_kept_to_a_length(redis_server: RedisServer, tmp_path: Path) -> None:
    one, target = delivery(redis_server, tmp_path, maxlen=100)
    ns = fresh()
    one.add(*(message(ns, i, "x") for i in range(2000)))
    one.open()
    one.deliver()
    assert 100 <= len(target.entries(ns)) < 400


def test_a_key_of_another_type_is_named_and_nothing_is_written(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    one, target = delivery(redis_server, tmp_path)
    good, taken = fresh(), fresh()
    target.client.set(taken, "in use")
    one.add(message(good, 1, "x"), message(taken, 1, "x"))
    one.open()
    with pytest.raises(UsageError, match=f"{taken} is a string"):
        one.deliver()
    assert target.entries(good) == []
    held = one.open()
    assert held is not None
    assert held.watermark == 0


def test_a_large_batch_is_several_scripts_each_with_its_position(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, target = delivery(redis_server, tmp_path)
    ns = fresh()
    monkeypatch.setattr(redis_sink, "CHUNK", 1000)
    one.add(*(message(ns, i, "x" * 300) for i in range(10)))
    one.open()
    staged = one.stage()
    move, calls = redis_sink.RedisPublisher._move, []

    def third_fails(
        self: redis_sink.RedisPublisher, chunk: redis_sink._Chunk, position: SinkPosition
    ) -> None:
        calls.append(chunk.watermark)
        if len(calls) == 3:
            raise AwayError("as if")
        move(self, chunk, position)

    with monkeypatch.context() as patched:
        patched.setattr(redis_sink.RedisPublisher, "_move", third_fails)
        with pytest.raises(AwayError):
            one.publish(staged)
    held = one.reopen()
    assert held is not None
    assert held.watermark == calls[1] == len(target.contents(ns))
    one.deliver()
    assert [row.id for row in target.contents(ns)] == list(range(10))


def test_a_server_without_room_is_away(redis_server: RedisServer, tmp_path: Path) -> None:
    one, target = delivery(redis_server, tmp_path)
    ns = fresh()
    one.add(message(ns, 1, "x"))
    one.open()
    staged = one.stage()
    target.client.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(AwayError):
            one.publish(staged)
    finally:
        target.client.config_set("maxmemory", "0")
    assert target.entries(ns) == []
    one.reopen()
    one.deliver()
    assert len(target.entries(ns)) == 1


def test_a_replica_is_away_until_it_is_the_primary(redis_server: RedisServer, tmp_path: Path) -> None:
    one, target = delivery(redis_server, tmp_path)
    one.add(message(fresh(), 1, "x"))
    one.open()
    staged = one.stage()
    ask(target.client, "REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(AwayError):
            one.publish(staged)
    finally:
        ask(target.client, "REPLICAOF", "NO", "ONE")


def test_plan_hears_of_a_server_that_keeps_nothing(redis_server: RedisServer, tmp_path: Path) -> None:
    one, target = delivery(redis_server, tmp_path)
    assert one.sink.inspect() == ()
    target.client.config_set("appendonly", "no")
    try:
        (finding,) = one.sink.inspect()
    finally:
        target.client.config_set("appendonly", "yes")
    assert "append-only" in finding.what
    assert finding.fix == "CONFIG SET appendonly yes"


class KeyTarget(Target):
    """Rows by their key, as JSON."""

    can = frozenset(
        {Can.NAMESPACES, Can.UPDATES, Can.DELETES, Can.REKEYS, Can.EXACT, Can.HUGE, Can.REFUSES, Can.CLAIMS}
    )
    mode = "json"

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server, mode=self.mode)

    def contents(self, ns: str) -> Sequence[Row]:
        found = [cast(bytes, self.client.get(key)) for key in self.client.scan_iter(f"{ns}:*")]
        return [row_of(Message(ns, text)) for text in found]


class HashTarget(KeyTarget):
    mode = "hash"

    def contents(self, ns: str) -> Sequence[Row]:
        found = [
            cast("dict[bytes, bytes]", self.client.hgetall(key)) for key in self.client.scan_iter(f"{ns}:*")
        ]
        return [Row(int(fields[b"id"]), fields[b"text"].decode()) for fields in found]


@pytest.mark.parametrize("kind", [KeyTarget, HashTarget])
def test_rows_are_kept_by_their_key(redis_server: RedisServer, tmp_path: Path, kind: type[KeyTarget]) -> None:
    target = kind(redis_server)
    one, ns = Delivery(target, tmp_path), fresh()
    one.open()
    one.add(*(message(ns, i, f"row {i}") for i in range(5)))
    one.deliver()
    one.add(
        message(ns, 1, "changed", Op.UPDATE),
        message(ns, 2, "", Op.DELETE),
        message(ns, 13, "row 3", Op.UPDATE, was=3),
        message(ns, 4, "", Op.DELETE),
        message(ns, 4, "again"),
        message(ns, 0, "not to be written", Op.NOOP),
        Message(ns, b'{"id":666}'),
    )
    assert [refusal.offset for refusal in one.deliver()] == [11]
    assert sorted(target.contents(ns)) == [
        Row(0, "row 0"),
        Row(1, "changed"),
        Row(4, "again"),
        Row(13, "row 3"),
    ]
    one.reopen()
    assert sorted(target.contents(ns)) == [
        Row(0, "row 0"),
        Row(1, "changed"),
        Row(4, "again"),
        Row(13, "row 3"),
    ]


def test_a_hash_has_the_fields_of_the_newest_document_and_no_others(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    target, ns = HashTarget(redis_server), fresh()
    one = Delivery(target, tmp_path)
    one.open()
    key = b'{"a":"x","b":2}'
    one.add(
        Message(ns, b'{"a":"x","old":1}', key=key),
        Message(ns, b'{"a":"x","n":1.50,"null":null,"list":[1, 2],"text":"\\u00fc"}', Op.UPDATE, key=key),
    )
    one.deliver()
    assert target.client.hgetall(f"{ns}:".encode() + key) == {
        b"a": b"x", b"n": b"1.50", b"list": b"[1, 2]", b"text": "ü".encode(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "data"),
    [
        (b'{"id":1}', b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}"),
        (b'{"id":"\\ud800"}', b'{"a":1}'),
    ],
    ids=["deep", "key"],
)
def test_a_row_that_cannot_be_read_is_refused(key: bytes, data: bytes) -> None:
    check = redis_sink.Check(Redis(uri="redis://127.0.0.1", mode="hash"))
    rows = batch_of([Message("t", data, key=key), Message("t", b'{"a":1}', key=b'{"id":2}')], 7)
    assert [refusal.offset for refusal in check(rows)] == [7]
