"""Writing Elasticsearch and OpenSearch, to a real OpenSearch: the kit, and what versions and bulks promise."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import urllib3
from tests.servers.opensearch import NAME, OpenSearchServer

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.adaptors.elasticsearch.client import Answer, Client
from penstock.adaptors.elasticsearch.rows import body_of, id_of
from penstock.adaptors.elasticsearch.sink import SearchPublisher
from penstock.base.errors import AwayError, RefusedError, UsageError
from penstock.log.message import Message, Op
from penstock.log.schema import Schema
from penstock.log.values import ValuesError
from penstock.testing.adaptors import Can, Row, SinkConformance, SinkSubject, TypedDelivery
from penstock.testing.adaptors.delivery import Delivery, message, truncate

pytestmark = pytest.mark.xdist_group("opensearch")

PASSWORD = "not-to-be-shown"


class SearchTarget(SinkSubject):
    name = "elasticsearch"
    server = NAME
    secret = PASSWORD
    patience = 30.0
    cannot: Mapping[Can, str] = {
        Can.EXACT: "there are no transactions; a batch may be written twice, which by its versions comes to the same"
    }

    def __init__(self, server: OpenSearchServer) -> None:
        self._server = server
        self._http = urllib3.PoolManager(timeout=30.0)
        self._made: list[str] = []
        self._own = f"own-{uuid.uuid4().hex[:8]}"
        self.settings: dict[str, object] = {}

    def adaptor(self) -> Adaptor:
        return a.elasticsearch(uri=self._server.uri, own_index=self._own, timeout=30.0, **self.settings)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Content-Type": "application/json"}
        content = None if body is None else msgspec.json.encode(body)
        return self._http.request(method, f"{self._server.uri}{path}", body=content, headers=headers).json()

    def make(self, word: str) -> str:
        self._made.append(word)
        self.ask("PUT", f"/{word}", {"settings": {"number_of_shards": 1, "number_of_replicas": 0}})
        return word

    def documents(self, ns: str) -> list[dict[str, Any]]:
        self.settle()
        found = self.ask("POST", f"/{ns}/_search", {"size": 1000, "version": True})
        return [{**one["_source"], "_id": one["_id"]} for one in found["hits"]["hits"]]

    def contents(self, ns: str) -> Sequence[Row]:
        return [Row(one["id"], one["text"]) for one in self.documents(ns)]

    def settle(self) -> None:
        self.ask("POST", "/_refresh")

    def bad(self, ns: str) -> bytes:
        return b'{"id":666,"text":"","":1}'

    def typed(self, word: str) -> TypedDelivery:
        data = (
            b'{"id":1,"int":9007199254740993,"float":1.0,"text":"<&>","nothing":null,"yes":true,'
            b'"day":{"$localDate":"2026-11-16"},"moment":{"$date":"2026-11-16T02:14:14.123Z"},'
            b'"bytes":{"$binary":{"base64":"AP8=","subType":"00"}},"oid":{"$oid":"000000000000000000000000"},'
            b'"money":{"$numberDecimal":"1.50"},"list":[1,2],"map":{"a":{"b":1}}}'
        )
        expected = {
            "int": 9007199254740993, "float": 1.0, "text": "<&>", "nothing": None, "yes": True, "day": "2026-11-16",
            "moment": "2026-11-16T02:14:14.123Z", "bytes": "AP8=", "oid": "0" * 24, "money": "1.50", "list": [1, 2],
            "map": {"a": {"b": 1}},
        }  # fmt: skip
        ns = self.make(f"{word}{uuid.uuid4().hex[:8]}")
        return TypedDelivery(
            ns, Schema((), ("id",)), data, b'{"id":1}', lambda: self.documents(ns)[0], expected
        )

    def extra(self, ns: str, id: int) -> str | None:
        found = self.ask("GET", f"/{ns}/_doc/{id}")["_source"]
        return str(found["extra"]) if "extra" in found else None

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {
            "nobody listens": a.elasticsearch(uri=f"http://user:{PASSWORD}@127.0.0.1:9", timeout=0.5),
            "no TLS there": a.elasticsearch(
                uri=f"https://user:{PASSWORD}@127.0.0.1:{self._server.port}", timeout=2.0
            ),
        }

    def stop_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    def close(self) -> None:
        """Take the indices away: a node that has many is slow to start."""
        for index in (*self._made, self._own):
            self.ask("DELETE", f"/{index}?ignore_unavailable=true")
        self._http.clear()


class TestSearchSink(SinkConformance):
    @pytest.fixture
    def subject(self, opensearch_server: OpenSearchServer) -> SearchTarget:
        return SearchTarget(opensearch_server)


@pytest.fixture
def target(opensearch_server: OpenSearchServer) -> Iterator[SearchTarget]:
    target = SearchTarget(opensearch_server)
    yield target
    target.close()


@pytest.fixture
def delivery(target: SearchTarget, tmp_path: Path) -> Iterator[Delivery]:
    delivery = Delivery(target, tmp_path)
    delivery.open()
    yield delivery
    delivery.close()


@pytest.fixture
def ns(target: SearchTarget) -> str:
    return target.make(f"n{uuid.uuid4().hex[:8]}")


def _delivered(delivery: Delivery, *messages: Message) -> None:
    delivery.add(*messages)
    assert delivery.deliver() == []


def test_a_field_that_is_gone_at_the_source_is_gone(
    delivery: Delivery, target: SearchTarget, ns: str
) -> None:
    """The original sent updates as partial ones: fields removed at the source survived."""
    _delivered(delivery, message(ns, 1, "x", extra="more"))
    _delivered(delivery, message(ns, 1, "y", Op.UPDATE))
    assert target.documents(ns) == [{"_id": "1", "id": 1, "text": "y"}]


def test_an_item_that_is_refused_stops_the_sink_and_is_named(
    delivery: Delivery, target: SearchTarget, ns: str
) -> None:
    """The original only logged failed items of a bulk that succeeded, and acknowledged them."""
    target.ask("PUT", f"/{ns}/_mapping", {"properties": {"extra": {"type": "integer"}}})
    delivery.add(message(ns, 1, "x"), message(ns, 2, "x", extra="no number"), message(ns, 3, "x"))
    with pytest.raises(RefusedError, match=f"message 1 of '{ns}'"):
        delivery.deliver()
    held = delivery.reopen()
    assert held is not None
    assert held.watermark == 0, "nothing of the bulk is acknowledged"


def test_an_older_message_does_not_overwrite_a_newer_one(
    delivery: Delivery, target: SearchTarget, ns: str
) -> None:
    """The original had two workers: two operations on a document could change places."""
    delivery.add(message(ns, 1, "old"), message(ns, 1, "new", Op.UPDATE))
    early, late = delivery.stage(0, 1, parts=1), delivery.stage(1, 2, parts=1)
    delivery.publish(late)
    delivery.publish(early)
    assert target.contents(ns) == [Row(1, "new")]


def test_an_older_message_does_not_bring_back_what_is_deleted(
    delivery: Delivery, target: SearchTarget, ns: str
) -> None:
    delivery.add(message(ns, 1, "old"), message(ns, 1, "old", Op.DELETE))
    early, late = delivery.stage(0, 1, parts=1), delivery.stage(1, 2, parts=1)
    delivery.publish(late)
    delivery.publish(early)
    assert target.contents(ns) == []


def test_a_truncate_that_comes_again_leaves_what_came_after_it(
    delivery: Delivery, target: SearchTarget, ns: str
) -> None:
    delivery.add(message(ns, 1, "gone"), truncate(ns), message(ns, 2, "stays"))
    staged = delivery.stage(parts=1)
    delivery.publish(staged)
    delivery.publish(staged)
    assert target.contents(ns) == [Row(2, "stays")]


def test_a_bulk_is_cut_by_rows_and_by_bytes(target: SearchTarget, tmp_path: Path, ns: str) -> None:
    target.settings = {"bulk_rows": 3, "bulk_bytes": 1000}
    delivery = Delivery(target, tmp_path)
    delivery.open()
    _delivered(delivery, *(message(ns, i, "x" * 100 * i) for i in range(20)))
    assert len(target.contents(ns)) == 20
    delivery.close()


def test_an_index_is_made_with_its_mapping(target: SearchTarget, tmp_path: Path) -> None:
    ns = f"Shop-{uuid.uuid4().hex[:8]}"
    body = {"settings": {"number_of_replicas": 0}, "mappings": {"properties": {"text": {"type": "keyword"}}}}
    target.settings = {"mappings": {ns: body}, "index_prefix": "pre-"}
    delivery = Delivery(target, tmp_path)
    delivery.open()
    _delivered(delivery, message(ns, 1, "x"))
    index = f"pre-{ns.lower()}"
    assert target.ask("GET", f"/{index}/_mapping")[index]["mappings"]["properties"]["text"] == {
        "type": "keyword"
    }
    delivery.close()


def test_a_namespace_that_cannot_be_an_index_is_refused_with_the_setting_that_helps(
    delivery: Delivery,
) -> None:
    delivery.add(message("a*b", 1, "x"))
    (refusal,) = delivery.deliver()
    assert "`indices`" in refusal.error


def test_namespaces_that_differ_in_case_alone_do_not_share_an_index(
    delivery: Delivery, target: SearchTarget, ns: str
) -> None:
    """The documents of one took the place of those of the other; also if they come in different runs."""
    _delivered(delivery, message(ns, 1, "mine"))
    delivery.reopen()
    delivery.add(message(ns.upper(), 1, "yours"))
    with pytest.raises(
        UsageError, match=f"the index '{ns}' of namespace '{ns.upper()}' has the documents of '{ns}'"
    ):
        delivery.deliver()
    assert target.contents(ns) == [Row(1, "mine")]
    (found,) = target.adaptor().sink().inspect([ns, ns.upper()])
    assert (found.fatal, found.fix) == (True, "name an index for one of them in the setting `indices`")
    target.settings = {"indices": {ns.upper(): target.make(f"{ns}-2")}}
    assert target.adaptor().sink().inspect([ns, ns.upper()]) == []


def test_namespaces_that_differ_in_case_alone_are_told_apart_in_one_bulk(
    delivery: Delivery, target: SearchTarget, ns: str
) -> None:
    delivery.add(message(ns, 1, "mine"), message(ns.upper(), 1, "yours"))
    with pytest.raises(UsageError, match="differs in case alone"):
        delivery.deliver()
    assert target.contents(ns) == []


def test_a_truncate_empties_no_index_of_another_namespace(
    delivery: Delivery, target: SearchTarget, ns: str
) -> None:
    _delivered(delivery, message(ns, 1, "mine"))
    delivery.add(truncate(ns.upper()))
    with pytest.raises(UsageError, match="differs in case alone"):
        delivery.deliver()
    assert target.contents(ns) == [Row(1, "mine")]


def test_a_message_without_a_key_is_written_once(delivery: Delivery, target: SearchTarget, ns: str) -> None:
    """The original let the server choose the id: what came again was there twice."""
    delivery.add(Message(ns, b'{"v":1}'), Message(ns, b'{"v":1}'))
    staged = delivery.stage(parts=1)
    delivery.publish(staged)
    delivery.publish(staged)
    assert len(target.documents(ns)) == 2


def test_the_id_of_a_document_from_mongodb_is_no_field(
    delivery: Delivery, target: SearchTarget, ns: str
) -> None:
    oid = b'{"$oid":"00000000000000000000000a"}'
    _delivered(delivery, Message(ns, b'{"_id":' + oid + b',"v":1}', key=b'{"_id":' + oid + b"}"))
    assert target.documents(ns) == [{"_id": "00000000000000000000000a", "v": 1}]


def test_no_two_keys_have_the_same_id() -> None:
    keys = [
        '{"id":1}', '{"id":"1"}', '{"id":"\\"1\\""}', '{"id":true}', '{"id":"true"}', '{"id":"x"}', '{"id":""}',
        '{"a":"x","b":"y"}', '{"a":"x,y","b":""}', '{"id":"[\\"x\\",\\"y\\"]"}', '{"id":null}',
        '{"id":{"$oid":"000000000000000000000000"}}', '{"id":"000000000000000000000000"}', '{"id":1.0}',
        '{"id":0.12345678901234567890}', '{"id":0.12345678901234567891}', '{"id":1e400}', '{"id":1e401}',
        '{"a":0.12345678901234567890,"b":1}', '{"a":0.12345678901234567891,"b":1}',
    ]  # fmt: skip
    assert len({id_of(key) for key in keys}) == len(keys)


def test_a_text_is_sent_as_it_is_if_it_can_be() -> None:
    assert body_of('{"a":1.50,"b":9007199254740993}') == b'{"a":1.50,"b":9007199254740993}'
    assert body_of('{\n"a":1.50}') == b'{"a":1.50}'
    assert body_of('{"a":{"$numberDouble":"2.5"},"b":1.50}') == b'{"a":2.5,"b":1.50}'
    digits = '{"a":0.12345678901234567891,"b":12345678901234567890.5,"c":1.5}'
    assert (
        body_of(f'{{"in":{digits[:-1]},"d":{{"$numberDouble":"2.5"}}}}}}')
        == f'{{"in":{digits[:-1]},"d":2.5}}}}'.encode()
    )
    with pytest.raises(ValuesError, match="without a name"):
        body_of('{"a":[{"$literal":{"":1}}]}')
    with pytest.raises(ValuesError, match="NaN"):
        body_of('{"a":{"$numberDouble":"NaN"}}')


class _Busy(Client):
    """A cluster that has no room for the second item, so many times."""

    times = 0
    asked: list[bytes]

    def ask(self, method: str, path: str, body: object = None, *, lines: bytes | None = None) -> Answer:
        answer = super().ask(method, path, body, lines=lines)
        if lines is None:
            return answer
        self.asked.append(lines)
        if self.times <= 0:
            return answer
        self.times -= 1
        told = msgspec.json.decode(answer.body, type=dict[str, Any])
        told["items"][-1]["index"] = {"status": 429, "error": {"type": "es_rejected", "reason": "full"}}
        return Answer(200, msgspec.json.encode(told))


@pytest.mark.parametrize("times", [2, 99])
def test_items_that_find_no_room_go_again_and_then_the_cluster_is_away(
    delivery: Delivery, target: SearchTarget, ns: str, times: int
) -> None:
    adaptor = target.adaptor()
    publisher = SearchPublisher(adaptor, "kit.sink", pause=lambda seconds: None)  # type: ignore[arg-type]
    publisher.open(delivery.position)
    busy = _Busy(adaptor)  # type: ignore[arg-type]
    busy.times, busy.asked = times, []
    publisher._client = busy
    delivery.add(message(ns, 1, "x"), message(ns, 2, "y"))
    staged = delivery.stage(parts=1)
    if times == 99:
        with pytest.raises(AwayError, match="no room for 1"):
            publisher.publish(staged, delivery.position)
    else:
        publisher.publish(staged, delivery.position)
        assert [lines.count(b"\n") for lines in busy.asked] == [4, 2, 2], "only what was not taken goes again"
    publisher.close()


def test_a_server_that_is_something_else_is_refused(opensearch_server: OpenSearchServer) -> None:
    adaptor = a.elasticsearch(uri=f"{opensearch_server.uri}/{quote('_cluster')}/health", timeout=5.0)
    with pytest.raises(UsageError, match="neither"):
        adaptor.sink().inspect()


def test_inspect_names_indices_that_will_not_take_documents(
    target: SearchTarget, opensearch_server: OpenSearchServer, ns: str
) -> None:
    http = urllib3.PoolManager()

    def put(path: str, body: object) -> None:
        answer = http.request("PUT", f"{opensearch_server.uri}/{path}", json=body)
        assert answer.status == 200, answer.data

    sink = target.adaptor().sink()
    assert sink.inspect([ns, "not-made-yet"]) == []
    (bad,) = sink.inspect(["a b"])
    assert (bad.fatal, "cannot be the name of an index" in bad.what) == (True, True)
    put(f"{ns}/_settings", {"index.blocks.write": True})
    put("_cluster/settings", {"transient": {"action.auto_create_index": "-not-made*,+*"}})
    try:
        blocked, missing = sink.inspect([ns, "not-made-yet"])
    finally:
        put("_cluster/settings", {"transient": {"action.auto_create_index": None}})
    assert blocked.fix == f'PUT /{ns}/_settings {{"index.blocks.write": null}}'
    assert (missing.fatal, missing.fix) == (True, "PUT /not-made-yet")
    put(f"{ns}/_settings", {"index.blocks.write": None})
    assert sink.inspect([ns]) == []


def test_secrets_are_not_shown() -> None:
    adaptor = a.elasticsearch(uri=f"https://user:{PASSWORD}@search", api_key="an-api-key-to-hide")
    assert PASSWORD not in repr(adaptor)
    assert "an-api-key-to-hide" not in repr(adaptor)
