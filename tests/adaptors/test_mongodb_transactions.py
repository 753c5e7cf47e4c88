"""Transactions of MongoDB stay whole in the log, whatever crashes inside them.

The server for tests has no transactions, so the events of a change stream are recorded here as MongoDB's documentation
has them, and played to the source from where it asks for them. Everything else is the source itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import bson
import msgspec
import pyarrow as pa
import pytest

from penstock import adaptors as a
from penstock.adaptors.base import CopyTask
from penstock.adaptors.mongodb import MongoDb, gather
from penstock.adaptors.mongodb import source as mongodb_source
from penstock.adaptors.mongodb.client import Name
from penstock.adaptors.mongodb.events import Change, change_of
from penstock.adaptors.mongodb.place import Mark
from penstock.log.message import Mode
from penstock.log.packing import Packed, pack
from penstock.testing.adaptors.model import Log, Reading

PATIENCE = 30.0
NOW = 1_750_000_000_000_000
BATCH = 4


def _event(number: int, transaction: int | None = None, collection: str = "orders") -> dict[str, Any]:
    event: dict[str, Any] = {
        "_id": {"_data": f"82{number:08X}"}, "operationType": "insert", "clusterTime": bson.Timestamp(100, number),
        "ns": {"db": "shop", "coll": collection}, "documentKey": {"_id": number}, "fullDocument": {"_id": number},
    }  # fmt: skip
    if transaction is not None:
        event |= {"lsid": {"id": bson.Binary(bytes(16), 4)}, "txnNumber": bson.Int64(transaction)}
    return event


class Server:
    """What a deployment has: collections with a document each, and the events of its stream."""

    def __init__(self) -> None:
        self.collections = ["orders"]
        self.events: list[dict[str, Any]] = []
        self.heard: Callable[[Change], None] | None = None

    def after(self, mark: Mark, own: Name | None) -> Iterator[Change | None]:
        """The changes behind a mark; None when there is none for now."""
        at = 0
        while True:
            if at == len(self.events):
                yield None
                continue
            change = change_of(self.events[at], own)
            at += 1
            if mark.is_before(change.token, change.time) and (own is None or change.name == own):
                yield change


class Task(CopyTask):
    def __init__(self, ns: str) -> None:
        self.ns = ns

    def read(self) -> Iterator[Packed]:
        yield pack(self.ns, pa.array(['{"_id":"copied"}']), ts=NOW, keys=pa.array(['{"_id":"copied"}']))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()

    @contextmanager
    def connected(settings: MongoDb) -> Iterator[None]:
        yield None

    class Feed:
        def __init__(self, client: None, settings: MongoDb, own: Name | None, mark: Mark) -> None:
            self._changes = server.after(mark, own)
            self.token = mark.token

        def next(self) -> Change | None:
            """The token is behind what was read, and behind what is of no concern, as the server's."""
            change = next(self._changes)
            self.token = change.token + "FF" if change is not None else self.token
            if change is not None and server.heard is not None:
                server.heard(change)
            return change

        def close(self) -> None:
            self._changes.close()  # type: ignore[attr-defined]

    class Plan:
        rows = 1

        def __init__(
            self, client: None, settings: MongoDb, ns: str, name: Name, after: object, condition: bytes
        ) -> None:
            self._ns = ns
            self.ends: list[tuple[()]] = []

        def __iter__(self) -> Iterator[Task]:
            self.ends.append(())
            yield Task(self._ns)

    monkeypatch.setattr(mongodb_source, "connected", connected)
    monkeypatch.setattr(mongodb_source, "collections", lambda *_: [(ns, "") for ns in server.collections])
    monkeypatch.setattr(mongodb_source, "now_of", lambda client: (50, 0))
    monkeypatch.setattr(mongodb_source, "Feed", Feed)
    monkeypatch.setattr(mongodb_source, "Plan", Plan)
    monkeypatch.setattr(gather, "MOST_CHANGES", BATCH)
    return server


def adaptor_of(watch: str) -> MongoDb:
    return a.mongodb(uri="mongodb://127.0.0.1:9/shop", tail=True, watch=watch, poll_interval=0.05)


@pytest.fixture(params=["collection", "database"])
def adaptor(request: pytest.FixtureRequest) -> MongoDb:
    return adaptor_of(request.param)


def accepted(ns: str) -> bool:
    return ns in ("orders", "items")


def ids(log: Log, ns: str) -> list[object]:
    return [msgspec.json.decode(message.data)["_id"] for message in log.of(ns)]


def copied(adaptor: MongoDb) -> Log:
    log = Log()
    with Reading(adaptor, log, accepted) as reading:
        assert reading.until(lambda: "orders" in log.completed, PATIENCE)
    return log


def cut(log: Log, first: object, last: object) -> list[int]:
    """Where what lies between two messages of `orders` ends for a sink, or a message of another namespace stands."""
    offsets = {
        msgspec.json.decode(message.data)["_id"]: offset
        for offset, message in enumerate(log.messages)
        if message.ns == "orders"
    }
    begin, end = offsets[first], offsets[last]
    others = [at for at in range(begin, end) if log.messages[at].ns != "orders"]
    return others + [at for at in log.ends if begin < at <= end]


@pytest.mark.parametrize("crashes", [1, 2, 3])
def test_the_rest_of_a_transaction_comes_before_the_copy_of_another_namespace(
    server: Server, adaptor: MongoDb, crashes: int
) -> None:
    log = copied(adaptor)
    server.events += [_event(number, transaction=7) for number in range(1, 15)] + [_event(20)]
    with Reading(adaptor, log, accepted) as reading:
        assert reading.until(lambda: log.within, PATIENCE)
    server.collections.append("items")
    for _ in range(crashes - 1):
        with Reading(adaptor, log, accepted) as reading:
            reading.step(PATIENCE)
    assert log.resume()["orders"].position["within"] is True
    with Reading(adaptor, log, accepted) as reading:
        assert reading.until(lambda: "items" in log.completed and not log.within, PATIENCE)
    assert ids(log, "orders") == ["copied", *range(1, 15), 20]
    assert cut(log, 1, 14) == []
    assert "within" not in log.resume()["orders"].position


def test_a_transaction_whose_rest_has_not_come_yet_is_waited_for(server: Server, adaptor: MongoDb) -> None:
    """A server that is chosen anew may be behind the one before."""
    log = copied(adaptor)
    whole = [_event(number, transaction=7) for number in range(1, 8)]
    server.events += whole
    with Reading(adaptor, log, accepted) as reading:
        assert reading.until(lambda: log.within, PATIENCE)
    server.events, server.collections = whole[:4], ["orders", "items"]
    with Reading(adaptor, log, accepted) as reading:
        assert reading.step(0.5) is None
        server.events += whole[4:]
        assert reading.until(lambda: "items" in log.completed, PATIENCE)
    assert cut(log, 1, 7) == []


def test_a_transaction_ends_in_the_log_though_its_last_changes_are_of_no_concern(
    server: Server,
) -> None:
    adaptor = adaptor_of("database")
    log = copied(adaptor)
    server.events += [_event(number, transaction=7) for number in range(1, 5)]
    server.events += [_event(number, transaction=7, collection="elsewhere") for number in range(5, 9)]
    with Reading(adaptor, log, accepted) as reading:
        assert reading.until(lambda: log.within, PATIENCE)
        assert reading.until(lambda: not log.within, PATIENCE)
    assert log.mode("orders") is Mode.SYNC
    assert "within" not in log.resume()["orders"].position


def test_a_source_that_is_told_to_stop_inside_a_transaction_does_not_end_it(
    server: Server, adaptor: MongoDb
) -> None:
    log = copied(adaptor)
    server.events += [_event(number, transaction=7) for number in range(1, 11)]
    with Reading(adaptor, log, accepted) as reading:
        batch = reading.take(PATIENCE)
        assert batch is not None
        assert batch.more
        reading.log(batch)
        reading.stop()
        while (batch := reading.take(0.1)) is not None:
            assert batch.more


def test_a_source_that_is_told_to_stop_passes_over_no_change_that_it_has_not_given(
    server: Server, adaptor: MongoDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = copied(adaptor)
    monkeypatch.setattr(mongodb_source, "KEEP", 0.0)  # as after a long backlog
    server.events += [_event(1), _event(2)]
    stop = threading.Event()
    server.heard = lambda change: stop.set()
    for batch in adaptor.source().read(accepted, log.resume(), stop):
        log.append(batch)
    server.heard = None
    with Reading(adaptor, log, accepted) as reading:
        assert reading.until(lambda: len(ids(log, "orders")) == 3, PATIENCE / 10)
    assert ids(log, "orders") == ["copied", 1, 2]


def test_a_collection_that_is_made_while_others_are_listed_is_not_passed_over(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = []

    def collections(*_: object) -> list[tuple[str, str]]:
        listed.append([(ns, "") for ns in server.collections])
        if len(listed) == 1:
            server.events.append(_event(1, collection="items"))
            server.collections.append("items")
        return listed[-1]

    monkeypatch.setattr(mongodb_source, "collections", collections)
    monkeypatch.setattr(mongodb_source, "now_of", lambda client: (100, len(server.events) + 1))
    adaptor = a.mongodb(uri="mongodb://127.0.0.1:9/shop", tail=True, watch="database", poll_interval=600.0)
    log = Log()
    with Reading(adaptor, log, accepted) as reading:
        assert reading.until(lambda: "orders" in log.completed, PATIENCE)
        server.events.append(_event(2, collection="items"))
        assert reading.until(lambda: 2 in ids(log, "items"), PATIENCE)
    assert ids(log, "items") == [1, 2]
