"""Reading MongoDB, from a server that speaks its protocol: the kit, and what collections have that tables do not."""

from __future__ import annotations

import datetime as dt
import math
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import bson
import msgspec
import pytest
from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient
from tests.servers.mongodb import NAME, MongoServer

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.adaptors.mongodb import MongoDb
from penstock.base.errors import UsageError
from penstock.log.message import Message, MessageOffset, Mode, Op, Resume
from penstock.testing.adaptors import Can, Row, SourceConformance, SourceSubject, TypedRow
from penstock.testing.adaptors.model import Log, Reading, read_all

pytestmark = pytest.mark.xdist_group("mongodb")

PATIENCE = 20.0
PASSWORD = "not-to-be-shown"
DATABASE = "kit"

TYPED: Mapping[str, tuple[object, str]] = {
    "int32": (7, "7"),
    "int64": (bson.Int64(9007199254740993), "9007199254740993"),
    "double": (1.0, "1.0"),
    "nan": (math.nan, '{"$numberDouble":"NaN"}'),
    "infinity": (-math.inf, '{"$numberDouble":"-Infinity"}'),
    "decimal": (bson.Decimal128("1.50"), '{"$numberDecimal":"1.50"}'),
    "text": ("<&>ü", '"<&>ü"'),
    "null": (None, "null"),
    "bool": (True, "true"),
    "binary": (b"\x00\xff", '{"$binary":{"base64":"AP8=","subType":"00"}}'),
    "uuid": (
        bson.Binary(bytes(16), 4),
        '{"$uuid":"00000000-0000-0000-0000-000000000000"}',
    ),
    "date": (
        dt.datetime(2026, 11, 16, 2, 14, 14, 123000, dt.UTC),
        '{"$date":"2026-11-16T02:14:14.123000Z"}',
    ),
    "far": (DatetimeMS(1 << 55), '{"$date":{"$numberLong":"36028797018963968"}}'),
    "oid": (bson.ObjectId("0" * 24), '{"$oid":"000000000000000000000000"}'),
    "timestamp": (bson.Timestamp(5, 6), '{"$timestamp":{"t":5,"i":6}}'),
    "regex": (bson.Regex("^a", 2), '{"$regex":"^a","$options":"i"}'),
    "min": (bson.MinKey(), '{"$minKey":1}'),
    "max": (bson.MaxKey(), '{"$maxKey":1}'),
    "code": (bson.Code("f()"), '{"$code":"f()"}'),
    "ref": (bson.DBRef("c", 1), '{"$ref":"c","$id":1}'),
    "looks": ({"$oid": "0" * 24}, '{"$literal":{"$oid":"000000000000000000000000"}}'),
    "nested": (
        {"": 1, "z": [bson.Int64(1 << 40), {"b": 2.5}], "a": {}},
        '{"":1,"z":[1099511627776,{"b":2.5}],"a":{}}',
    ),
}


class MongoSubject(SourceSubject):
    name = "mongodb"
    server = NAME
    key = ("_id",)
    read_ahead = 8 * 1024 * 1024
    patience = PATIENCE
    secret = PASSWORD
    cannot: Mapping[Can, str] = {
        Can.REKEYS: "the _id of a document never changes",
        Can.TRUNCATE: "the server for tests does not say in its events which collection was dropped",
        Can.TRANSACTIONS: "the server for tests has none (what the source makes of them: test_mongodb_transactions.py)",
        Can.CLEAN: "MongoDB has no copy at one moment: changes made during the copy may be in it and follow it",
        Can.ACKNOWLEDGES: "an oplog has its own size, whoever reads it",
        Can.OVERSIZE: "a document is at most 16 MiB, as a message is",
    }

    def __init__(self, server: MongoServer, **settings: object) -> None:
        self._server = server
        self._settings = settings
        self._client: MongoClient[dict[str, Any]] = MongoClient(server.uri, serverSelectionTimeoutMS=5000)
        self._database = self._client[DATABASE]

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.mongodb(
            uri=f"{self._server.uri}/{DATABASE}", tail=tail, watch="collection", poll_interval=0.2, timeout=2.0,
            copy_bytes=96 * 1024, **self._settings,
        )  # fmt: skip

    def several(self) -> Sequence[Row]:
        """The server takes a few hundred documents a second."""
        return [Row(i, f"{i:06d} " + "x" * 1200) for i in range(300)]

    def make(self, word: str) -> str:
        self._database.create_collection(word)
        return word

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        self._database[ns].insert_many([{"_id": row.id, "text": row.text} for row in rows])

    def contents(self, ns: str) -> Mapping[int, str]:
        return {one["_id"]: one["text"] for one in self._database[ns].find()}

    def row(self, message: Message) -> Row:
        document = msgspec.json.decode(message.data, type=dict[str, object])
        return Row(int(str(document["_id"])), str(document.get("text", "")))

    def update(self, ns: str, row: Row) -> None:
        self._database[ns].update_one({"_id": row.id}, {"$set": {"text": row.text}})

    def delete(self, ns: str, id: int) -> None:
        self._database[ns].delete_one({"_id": id})

    def typed(self, word: str) -> TypedRow:
        ns = self.make(f"{word}{uuid.uuid4().hex[:8]}")
        values = {name: value for name, (value, _) in TYPED.items()}
        return TypedRow(ns, lambda: self._put(ns, values), {name: text for name, (_, text) in TYPED.items()})

    def _put(self, ns: str, values: Mapping[str, object]) -> None:
        self._database[ns].insert_one({"_id": bson.ObjectId(), **values})

    def add_field(self, ns: str) -> None:
        """There is nothing to add: each document has fields of its own."""

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        self._database[ns].insert_one({"_id": row.id, "text": row.text, "extra": extra})

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {
            "nobody listens": a.mongodb(uri=f"mongodb://user:{PASSWORD}@127.0.0.1:9/shop", timeout=0.3),
            "no such option": a.mongodb(uri=f"mongodb://user:{PASSWORD}@/shop", timeout=0.3),
        }

    def stop_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._client.close()


class TestMongoSource(SourceConformance):
    @pytest.fixture
    def subject(self, mongodb_server: MongoServer) -> MongoSubject:
        return MongoSubject(mongodb_server)


@pytest.fixture
def database(mongodb_server: MongoServer) -> Iterator[Any]:
    client: MongoClient[dict[str, Any]] = MongoClient(mongodb_server.uri)
    yield client[f"d{uuid.uuid4().hex[:8]}"]
    client.close()


def _adaptor(server: MongoServer, database: Any, **settings: object) -> MongoDb:
    return a.mongodb(
        uri=f"{server.uri}/{database.name}", watch="collection", poll_interval=0.2, timeout=5.0, **settings
    )


MIXED = [
    bson.MinKey(), None, -5, 2.5, bson.Int64(1 << 40), bson.Decimal128("7.5e20"), "", "ä", {"a": 1}, {"a": 2},
    b"x", b"yy", bson.ObjectId("1" * 24), False, True, dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    bson.Timestamp(1, 1), bson.MaxKey(),
]  # fmt: skip


def test_a_copy_over_ids_of_all_types_goes_on_from_each_of_them(
    mongodb_server: MongoServer, database: Any
) -> None:
    database.mixed.insert_many([{"_id": id, "n": n} for n, id in enumerate(MIXED)])
    adaptor = _adaptor(mongodb_server, database, copy_bytes=1)
    log = Log()
    for _ in range(2 * len(MIXED) + 4):
        with Reading(adaptor, log, lambda ns: ns == "mixed") as reading:
            reading.step(PATIENCE)
        if log.mode("mixed") is not Mode.COPY:
            break
    found = [msgspec.json.decode(message.data)["n"] for message in log.of("mixed")]
    assert found == list(range(len(MIXED)))


def test_a_collection_filter_holds_for_the_copy_and_for_changes(
    mongodb_server: MongoServer, database: Any
) -> None:
    """The original did not apply it to inserts, and dropped in silence what no longer met it."""
    database.orders.insert_many([{"_id": i, "total": i} for i in range(10)])
    adaptor = _adaptor(
        mongodb_server, database, tail=True, collection_filters={"orders": {"total": {"$gte": 5}}}
    )
    log = Log()
    with Reading(adaptor, log, lambda ns: ns == "orders") as reading:
        assert reading.until(lambda: "orders" in log.completed, PATIENCE)
        assert [msgspec.json.decode(one.data)["_id"] for one in log.messages] == [5, 6, 7, 8, 9]
        database.orders.insert_one({"_id": 20, "total": 1})
        database.orders.insert_one({"_id": 21, "total": 50})
        database.orders.update_one({"_id": 7}, {"$set": {"total": 0}})
        database.orders.update_one({"_id": 2}, {"$set": {"total": 99}})
        assert reading.until(lambda: len(log.messages) >= 9, PATIENCE)
    told = {msgspec.json.decode(one.data)["_id"]: one.op for one in log.messages[5:]}
    assert told == {20: Op.DELETE, 21: Op.INSERT, 7: Op.DELETE, 2: Op.UPDATE}


def test_a_backfill_with_a_condition_copies_what_meets_it_and_goes_on_where_it_was(
    mongodb_server: MongoServer, database: Any
) -> None:
    database.orders.insert_many([{"_id": i, "total": i} for i in range(10)])
    adaptor = _adaptor(mongodb_server, database, tail=True)
    log = Log()
    with Reading(adaptor, log, lambda ns: ns == "orders") as reading:
        assert reading.until(lambda: "orders" in log.completed, PATIENCE)
    before = log.resume()["orders"].position
    database.orders.insert_one({"_id": 50, "total": 1})
    resume = {"orders": Resume(Mode.COPY, {}, MessageOffset(-1), None, '{"total": {"$gt": 7}}', before)}
    stop = threading.Event()
    messages: list[Message] = []
    log = Log()
    for batch in adaptor.source().read(lambda ns: ns == "orders", resume, stop):
        log.append(batch)
        messages = log.messages
        if any(one.mode is Mode.SYNC for one in messages):
            stop.set()
    assert [msgspec.json.decode(one.data)["_id"] for one in messages] == [8, 9, 50]


def test_a_condition_that_is_no_query_is_refused_before_anything_is_read(
    mongodb_server: MongoServer, database: Any
) -> None:
    resume = {"orders": Resume(Mode.COPY, {}, MessageOffset(-1), None, "total > 7")}
    with pytest.raises(UsageError, match="is not one"):
        next(
            iter(_adaptor(mongodb_server, database).source().read(lambda ns: True, resume, threading.Event()))
        )


def test_typed_numbers_keep_small_64_bit_integers_apart(mongodb_server: MongoServer, database: Any) -> None:
    database.numbers.insert_one({"_id": 1, "long": bson.Int64(5), "int": 5, "large": bson.Int64(1 << 40)})
    log = Log()
    read_all(_adaptor(mongodb_server, database, numbers="typed"), log, ["numbers"], PATIENCE)
    assert log.messages[0].data == b'{"_id":1,"long":{"$numberLong":"5"},"int":5,"large":1099511627776}'


def test_the_servers_own_collections_are_not_read(mongodb_server: MongoServer, database: Any) -> None:
    database.orders.insert_one({"_id": 1})
    everywhere = a.mongodb(uri=mongodb_server.uri, timeout=5.0).source().namespaces()
    assert f"{database.name}.orders" in everywhere
    assert not [ns for ns in everywhere if ns.startswith(("local.", "admin.", "config."))]


def test_what_was_never_run_against_a_server_is_told(mongodb_server: MongoServer, database: Any) -> None:
    database.orders.insert_one({"_id": 1})
    uri = f"{mongodb_server.uri}/{database.name}"
    told = a.mongodb(uri=uri, tail=True, timeout=5.0).source().inspect(lambda ns: True)
    assert any("never run" in finding.what for finding in told.findings)
    quiet = _adaptor(mongodb_server, database, tail=True).source().inspect(lambda ns: True)
    assert list(quiet.findings) == []
