"""Writing MongoDB, to a server that speaks its protocol: the kit, and what documents have that rows do not."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo import MongoClient
from tests.servers.mongodb import NAME, MongoServer

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.adaptors.mongodb.sink_inspect import lacking
from penstock.base.errors import RefusedError, UsageError
from penstock.log.message import Message, Op
from penstock.log.schema import Field, Kind, Schema, Told
from penstock.testing.adaptors import Can, Row, SinkConformance, SinkSubject, TypedDelivery
from penstock.testing.adaptors.delivery import Delivery, message

pytestmark = pytest.mark.xdist_group("mongodb")

PASSWORD = "not-to-be-shown"


class MongoTarget(SinkSubject):
    name = "mongodb"
    server = NAME
    secret = PASSWORD
    cannot: Mapping[Can, str] = {
        Can.EXACT: "the server for tests has no transactions; without, a batch may be written twice"
    }

    def __init__(self, server: MongoServer) -> None:
        self._server = server
        self._client: MongoClient[dict[str, Any]] = MongoClient(
            server.uri, serverSelectionTimeoutMS=5000, tz_aware=True
        )
        self.database = self._client[f"t{uuid.uuid4().hex[:8]}"]

    def adaptor(self) -> Adaptor:
        return a.mongodb(uri=f"{self._server.uri}/{self.database.name}", timeout=2.0)

    def make(self, word: str) -> str:
        return word

    def contents(self, ns: str) -> Sequence[Row]:
        return [Row(one["id"], one["text"]) for one in self.database[ns].find()]

    def bad(self, ns: str) -> bytes:
        return b'{"id":666,"text":"","much":1234567890123456789012345678901234567890}'

    def typed(self, word: str) -> TypedDelivery:
        data = (
            b'{"id":1,"int":7,"long":9007199254740993,"float":1.0,"money":1.50,"text":"x","nothing":null,"yes":true,'
            b'"day":{"$localDate":"2026-11-16"},"moment":{"$date":"2026-11-16T02:14:14.123Z"},'
            b'"bytes":{"$binary":{"base64":"AP8=","subType":"00"}},"oid":{"$oid":"000000000000000000000000"},'
            b'"list":[1,{"$numberDecimal":"2.50"}],"map":{"":1},"looks":{"$literal":{"$oid":"000000000000000000000000"}}}'
        )
        schema = Schema((Field("id", Kind.INT), Field("money", Kind.DECIMAL)), ("id",))
        expected = {
            "int": 7, "long": 9007199254740993, "float": 1.0, "money": bson.Decimal128("1.50"), "text": "x",
            "nothing": None, "yes": True, "day": dt.datetime(2026, 11, 16, tzinfo=dt.UTC),
            "moment": dt.datetime(2026, 11, 16, 2, 14, 14, 123000, dt.UTC), "bytes": b"\x00\xff",
            "oid": bson.ObjectId("0" * 24), "list": [1, bson.Decimal128("2.50")], "map": {"": 1},
            "looks": {"$oid": "0" * 24},
        }  # fmt: skip
        ns = self.make(word)
        return TypedDelivery(
            ns, schema, data, b'{"id":1}', lambda: self.database[ns].find_one({"_id": 1}) or {}, expected
        )

    def extra(self, ns: str, id: int) -> str | None:
        found = self.database[ns].find_one({"_id": id}) or {}
        return found.get("extra")

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {
            "nobody listens": a.mongodb(uri=f"mongodb://user:{PASSWORD}@127.0.0.1:9/shop", timeout=0.3),
            "no host": a.mongodb(uri=f"mongodb://user:{PASSWORD}@/shop", timeout=0.3),
        }

    def stop_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._client.close()


class TestMongoSink(SinkConformance):
    @pytest.fixture
    def subject(self, mongodb_server: MongoServer) -> MongoTarget:
        return MongoTarget(mongodb_server)


@pytest.fixture
def target(mongodb_server: MongoServer) -> Iterator[MongoTarget]:
    target = MongoTarget(mongodb_server)
    yield target
    target.close()


@pytest.fixture
def delivery(target: MongoTarget, tmp_path: Path) -> Iterator[Delivery]:
    delivery = Delivery(target, tmp_path)
    delivery.open()
    yield delivery
    delivery.close()


def _delivered(delivery: Delivery, *messages: Message) -> None:
    delivery.add(*messages)
    assert delivery.deliver() == []


def test_a_delete_that_comes_again_does_no_harm(delivery: Delivery, target: MongoTarget) -> None:
    """The original stopped for good: a delete of a document that is not there was an error."""
    _delivered(
        delivery, message("c", 1, "x"), message("c", 1, "x", Op.DELETE), message("c", 1, "x", Op.DELETE)
    )
    assert target.contents("c") == []


def test_an_insert_that_comes_again_replaces_the_document(delivery: Delivery, target: MongoTarget) -> None:
    """The original repeated the bulk unordered and kept the older document."""
    _delivered(delivery, message("c", 1, "first"))
    _delivered(delivery, message("c", 2, "other"), message("c", 1, "second"))
    assert sorted(target.contents("c")) == [Row(1, "second"), Row(2, "other")]


def test_a_sink_that_lags_takes_a_number_for_what_it_was_when_it_was_logged(
    delivery: Delivery, target: MongoTarget
) -> None:
    """Of a column that is one of floats since, decimals lost their digits."""
    late = [Schema((Field("id", Kind.INT), Field("x", kind)), ("id",)) for kind in (Kind.DECIMAL, Kind.FLOAT)]
    delivery.schemas["c"] = [Told(at, schema) for at, schema in enumerate(late)]
    _delivered(delivery, *(Message("c", b'{"id":%d,"x":1.50}' % i, key=b'{"id":%d}' % i) for i in range(2)))
    assert [one["x"] for one in target.database["c"].find(sort=[("_id", 1)])] == [
        bson.Decimal128("1.50"),
        1.5,
    ]


def test_a_field_that_is_gone_at_the_source_is_gone(delivery: Delivery, target: MongoTarget) -> None:
    _delivered(delivery, message("c", 1, "x", extra="more"))
    _delivered(delivery, message("c", 1, "x", Op.UPDATE))
    assert target.extra("c", 1) is None


def test_a_write_that_the_server_refuses_is_named_by_its_offset(
    delivery: Delivery, target: MongoTarget
) -> None:
    """The original left its lock held at a bulk that failed; the next write hung."""
    target.database["c"].create_index("text", unique=True)
    delivery.add(message("c", 1, "same"), message("c", 2, "same"), message("c", 3, "other"))
    with pytest.raises(RefusedError, match="message 1 of 'c'"):
        delivery.deliver()
    delivery.reopen()
    staged = delivery.stage(0, 1, parts=1)
    delivery.publish(staged, 1)
    assert Row(1, "same") in target.contents("c")
    assert Row(2, "same") not in target.contents("c")


def test_a_key_of_several_fields_is_a_map_in_their_order(delivery: Delivery, target: MongoTarget) -> None:
    _delivered(delivery, Message("c", b'{"a":1,"b":"x","v":2}', key=b'{"b":"x","a":1}'))
    assert target.database["c"].find_one() == {"_id": {"b": "x", "a": 1}, "a": 1, "b": "x", "v": 2}


def test_a_field_that_the_key_would_take_the_place_of_is_refused(
    delivery: Delivery, target: MongoTarget
) -> None:
    delivery.add(
        Message("c", b'{"_id":"x","id":1}', key=b'{"id":1}'),
        Message("c", b'{"_id":2,"id":2}', key=b'{"id":2}'),
        Message("c", b'{"_id":3,"v":1}', key=b'{"_id":3}'),
    )
    assert [(refusal.offset, "'_id'" in refusal.error) for refusal in delivery.deliver()] == [(0, True)]
    assert list(target.database["c"].find()) == [{"_id": 2, "id": 2}, {"_id": 3, "v": 1}]


def test_a_name_with_a_zero_is_refused_and_one_with_a_backslash_is_not(
    delivery: Delivery, target: MongoTarget
) -> None:
    delivery.add(
        Message("c", b'{"id":1,"a\\u0000b":1}', key=b'{"id":1}'),
        Message("c", b'{"id":2,"c:\\\\0":1}', key=b'{"id":2}'),
    )
    assert [refusal.offset for refusal in delivery.deliver()] == [0]
    assert list(target.database["c"].find()) == [{"_id": 2, "id": 2, "c:\\0": 1}]


def test_a_message_without_a_key_gets_an_id_that_follows_from_its_offset(
    delivery: Delivery, target: MongoTarget
) -> None:
    delivery.add(Message("c", b'{"v":1}'), Message("c", b'{"v":1}'))
    delivery.publish(delivery.stage())
    delivery.reopen()
    delivery.in_target = 0
    delivery.deliver()
    assert target.database["c"].count_documents({}) == 2


@pytest.mark.parametrize("op", [Op.UPDATE, Op.DELETE])
def test_a_change_without_a_key_is_refused(delivery: Delivery, op: Op) -> None:
    delivery.add(Message("c", b'{"v":1}', op))
    assert [refusal.offset for refusal in delivery.deliver()] == [0]


def test_a_sink_wants_a_database() -> None:
    with pytest.raises(UsageError, match="names a database"):
        a.mongodb(uri="mongodb://127.0.0.1").sink()


def test_transactions_are_refused_by_plan_where_there_are_none(mongodb_server: MongoServer) -> None:
    sink = a.mongodb(uri=f"{mongodb_server.uri}/shop", transactions=True, timeout=5.0).sink()
    assert [finding.fatal for finding in sink.inspect()] == [True, False]


def test_inspect_of_a_server_without_users_finds_nothing(mongodb_server: MongoServer) -> None:
    sink = a.mongodb(uri=f"{mongodb_server.uri}/shop", timeout=5.0).sink()
    assert sink.inspect(["orders"]) == []


def test_inspect_tells_what_no_privilege_gives() -> None:
    """As MongoDB's documentation has the answer to `connectionStatus`."""

    def told(resource: dict[str, object], *actions: str) -> dict[str, object]:
        return {"authenticatedUserPrivileges": [{"resource": resource, "actions": list(actions)}]}

    everything = ("find", "insert", "update", "remove")
    assert lacking(told({"db": "shop", "collection": ""}, *everything), "shop", "orders") == []
    assert lacking(told({"db": "", "collection": "orders"}, *everything), "shop", "orders") == []
    assert lacking(told({"anyResource": True}, "anyAction"), "shop", "orders") == []
    assert lacking(told({"db": "shop", "collection": "orders"}, "find"), "shop", "orders") == list(
        everything[1:]
    )
    assert lacking(told({"db": "other", "collection": ""}, *everything), "shop", "orders") == list(everything)
    assert lacking(told({"cluster": True}, *everything), "shop", "orders") == list(everything)


def test_a_password_is_not_in_the_text_of_the_adaptor() -> None:
    assert PASSWORD not in repr(a.mongodb(uri=f"mongodb://user:{PASSWORD}@db/shop"))
