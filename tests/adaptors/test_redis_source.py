"""Reading streams, from a real server: the kit, and what Redis has that others do not."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec
import pytest
import redis
from redis.typing import EncodableT, FieldT
from tests.servers.redis import PASSWORD, RedisServer, server_version

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.adaptors.redis.client import ask
from penstock.adaptors.redis.entries import Reader
from penstock.adaptors.redis.source import LostError
from penstock.base.errors import UsageError
from penstock.log.message import MAX_MESSAGE_BYTES, Message, Mode
from penstock.testing.adaptors import Can, Row, SourceConformance, SourceSubject, TypedRow
from penstock.testing.adaptors.model import Log, Reading

pytestmark = [pytest.mark.xdist_group("redis"), pytest.mark.usefixtures("forgets_secrets")]

PATIENCE = 20.0


class RedisSubject(SourceSubject):
    name = "redis"
    key = ("id",)
    patience = PATIENCE
    secret = PASSWORD
    cannot: Mapping[Can, str] = {
        Can.UPDATES: "an entry of a stream stays as it is",
        Can.DELETES: "that an entry is deleted is not told",
        Can.REKEYS: "an entry of a stream stays as it is",
        Can.TRUNCATE: "that a stream is trimmed is not told",
        Can.TRANSACTIONS: "an entry does not say which others were added with it",
        Can.OVERSIZE: "an entry above the limit is kept among the dead letters",
    }

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.server = server_version()
        self._client = redis.Redis.from_url(server.uri)
        self._group = f"kit-{uuid.uuid4().hex[:8]}"
        self._made: list[str] = []

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.redis(
            uri=self._server.uri, tail=tail, group=self._group, poll_interval=0.3, timeout=5.0, key=["id"]
        )

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {
            "nobody listens": a.redis(uri=f"redis://:{PASSWORD}@127.0.0.1:1/0", timeout=1.0),
            "wrong password": a.redis(uri=f"redis://:wrong-{PASSWORD}@127.0.0.1:{self._server.port}/0"),
            "no password": a.redis(uri=f"redis://127.0.0.1:{self._server.port}/0"),
        }

    def stop_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    def make(self, word: str) -> str:
        self._client.xadd(word, {"x": "x"})
        self._client.xtrim(word, maxlen=0, approximate=False)
        self._made.append(word)
        return word

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        pipeline = self._client.pipeline(transaction=True)
        for row in rows:
            pipeline.xadd(ns, {"id": row.id, "text": row.text})
        pipeline.execute()

    def contents(self, ns: str) -> Mapping[int, str]:
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", self._client.xrange(ns))
        return {int(fields[b"id"]): fields[b"text"].decode() for _, fields in entries}

    def typed(self, word: str) -> TypedRow:
        ns = self.make(word)
        values = {"id": "1", "text": "grüße", "empty": "", "binary": b"\xff\x00"}

        def insert() -> None:
            self._client.xadd(ns, cast("dict[FieldT, EncodableT]", values))

        expected = {
            "id": '"1"', "text": '"grüße"', "empty": '""',
            "binary": '{"$binary":{"base64":"/wA=","subType":"00"}}',
        }  # fmt: skip
        return TypedRow(ns, insert, expected)

    def add_field(self, ns: str) -> None:
        """There is nothing to do: each entry has its own fields."""

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        self._client.xadd(ns, {"id": row.id, "text": row.text, "extra": extra})

    def held_back(self) -> int:
        groups = self._client.xinfo_groups(self._made[0])
        return int(groups[0]["lag"]) if groups else 1

    def leftovers(self) -> Sequence[str]:
        return [self._group for ns in self._made if self._client.xinfo_groups(ns)]

    def close(self) -> None:
        self._client.delete(*self._made) if self._made else None
        self._client.close()


class TestRedisSource(SourceConformance):
    @pytest.fixture
    def subject(self, redis_server: RedisServer) -> RedisSubject:
        return RedisSubject(redis_server)


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.uri) as client:
        client.flushdb()
        yield client


def read(server: RedisServer, log: Log, **settings: object) -> None:
    """One start, to its end."""
    with Reading(a.redis(uri=server.uri, **settings), log, lambda ns: True) as reading:
        reading.to_the_end(PATIENCE)


def documents(log: Log) -> list[object]:
    return [msgspec.json.decode(message.data) for message in log.messages]


def test_only_streams_are_namespaces(redis_server: RedisServer, client: redis.Redis) -> None:
    client.xadd("events", {"a": 1})
    client.set("text", "x")
    client.hset("hash", "a", "1")
    assert a.redis(uri=redis_server.uri).source().namespaces() == ["events"]


def test_entries_that_were_trimmed_before_they_were_read_are_an_error_that_says_how_many(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    log = Log()
    for i in range(5):
        client.xadd("events", {"n": i})
    read(redis_server, log)
    for i in range(5, 12):
        client.xadd("events", {"n": i})
    client.xtrim("events", maxlen=3, approximate=False)
    with pytest.raises(LostError, match=r"stream 'events': 4 entries behind .* were removed"):
        read(redis_server, log)
    assert len(log.messages) == 5
    read(redis_server, log, if_lost="accept")
    assert documents(log)[5:] == [{"n": "9"}, {"n": "10"}, {"n": "11"}]
    client.xadd("events", {"n": 12})
    read(redis_server, log)
    assert documents(log)[-1] == {"n": "12"}


@pytest.mark.parametrize("tail", [False, True])
def test_a_copy_ends_also_if_the_last_entries_are_gone(
    redis_server: RedisServer, client: redis.Redis, tail: bool
) -> None:
    log = Log()
    client.xadd("events", {"n": 0})
    last = client.xadd("events", {"n": 1})
    assert last is not None
    client.xdel("events", last)
    with Reading(a.redis(uri=redis_server.uri, tail=tail), log, lambda ns: True) as reading:
        assert reading.until(lambda: "events" in log.completed, PATIENCE)
    assert documents(log) == [{"n": "0"}]


def test_trimming_what_was_read_loses_nothing(redis_server: RedisServer, client: redis.Redis) -> None:
    log = Log()
    for i in range(5):
        client.xadd("events", {"n": i})
    read(redis_server, log)
    client.xadd("events", {"n": 5})
    client.xtrim("events", maxlen=1, approximate=False)
    read(redis_server, log)
    client.xtrim("events", maxlen=0, approximate=False)
    read(redis_server, log)
    assert documents(log) == [{"n": str(i)} for i in range(6)]


def test_entries_that_go_while_the_log_is_full_are_an_error_too(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    log = Log()
    for i in range(40):
        client.xadd("events", {"n": i, "text": "x" * 200_000})
    with Reading(a.redis(uri=redis_server.uri, tail=True), log, lambda ns: True) as reading:
        first = reading.take(PATIENCE)
        assert first is not None
        time.sleep(0.3)
        client.xtrim("events", maxlen=1, approximate=False)
        reading.log(first)
        with pytest.raises(LostError, match="were removed before they were read"):
            reading.until(lambda: False, PATIENCE)


def test_a_stream_that_was_made_anew_is_not_taken_for_the_old_one(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    log = Log()
    for i in range(5):
        client.xadd("events", {"n": i})
    read(redis_server, log)
    client.delete("events")
    client.xadd("events", {"n": "new"})
    with pytest.raises(LostError, match="was deleted and made anew"):
        read(redis_server, log)
    read(redis_server, log, if_lost="accept")
    assert documents(log)[5:] == [{"n": "new"}]


def test_a_stream_that_is_deleted_while_it_is_followed_is_an_error(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    log = Log()
    client.xadd("events", {"n": 0})
    adaptor = a.redis(uri=redis_server.uri, tail=True, poll_interval=0.2)
    with Reading(adaptor, log, lambda ns: True) as reading:
        assert reading.until(lambda: "events" in log.completed, PATIENCE)
        client.delete("events")
        with pytest.raises(LostError, match="stream 'events' was deleted while it was read"):
            reading.until(lambda: False, PATIENCE)


def test_an_id_that_is_no_time_of_a_calendar_is_none() -> None:
    """Microseconds, or a counter that began high."""
    reader, now = Reader(a.redis(uri="redis://nobody.example")), time.time_ns() // 1000
    times: list[object] = []
    for id in (b"1700000000000-1", b"253402300799999-0", b"253402300800000-0", b"1700000000000000-0", b"7-0"):
        found = reader.message("events", (id, [b"n", b"1"]), Mode.COPY)
        assert isinstance(found, Message)
        times.append(found.ts if found.ts < now or found.ts > 2 * now else "now")
    assert times == [1_700_000_000_000_000, 253_402_300_799_999_000, "now", "now", "now"]


def test_entries_can_hold_json_keys_and_ids(redis_server: RedisServer, client: redis.Redis) -> None:
    log = Log()
    client.xadd("events", {"data": '{"id": 7, "n": 1.50}', "op": "x"}, id="1700000000000-3")
    client.xadd("events", {"data": "{}"}, id="1700000000000-4")
    client.xadd("events", {"data": "[1]"}, id="1700000000000-5")
    client.xadd("events", {"other": "{}"}, id="1700000000000-6")
    read(redis_server, log, json_field="data", id_field="_id", key=["_id"])
    assert [(message.data, message.key, message.ts) for message in log.messages] == [
        (
            b'{"_id":"1700000000000-3","id": 7, "n": 1.50}',
            b'{"_id":"1700000000000-3"}',
            1_700_000_000_000_000,
        ),
        (b'{"_id":"1700000000000-4"}', b'{"_id":"1700000000000-4"}', 1_700_000_000_000_000),
    ]
    assert {place: bad.error for place, bad in log.bad.items()} == {
        "stream events, entry 1700000000000-5": "the field 'data' is not a JSON object "
        "(Expected object, got array)",
        "stream events, entry 1700000000000-6": "there is no field 'data'",
    }


def test_bad_entries_are_kept_with_their_place_and_stop_nothing(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    log = Log()
    ask(client, "XADD", "events", "5-1", "a", "1", "a", "2")
    ask(client, "XADD", "events", "5-2", b"\xff", "1")
    ask(client, "XADD", "events", "5-3", "b", "x" * (MAX_MESSAGE_BYTES + 1))
    ask(client, "XADD", "events", "5-4", "c", "1")
    read(redis_server, log)
    assert documents(log) == [{"c": "1"}]
    assert [bad.error.partition(":")[0] for bad in log.bad.values()] == [
        "the field 'a' is there twice",
        "the name of a field is not UTF-8",
        f"longer than a message may be ({MAX_MESSAGE_BYTES} bytes)",
    ]
    assert log.bad["stream events, entry 5-1"].content == b"a\n1\na\n2"


@pytest.mark.parametrize("uri", ["localhost:6379", "http://x", "redis://"])
def test_settings_are_checked_before_anything_connects(uri: str) -> None:
    with pytest.raises(UsageError, match="expected redis://"):
        a.redis(uri=uri)
