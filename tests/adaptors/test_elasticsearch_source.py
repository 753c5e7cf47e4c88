"""Reading Elasticsearch and OpenSearch, from a real OpenSearch: the kit, and what only an index has."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
import urllib3
from tests.servers.opensearch import NAME, OpenSearchServer

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.adaptors.elasticsearch import source as elasticsearch_source
from penstock.base.errors import UsageError
from penstock.log.message import MessageOffset, Mode, Resume
from penstock.testing.adaptors import Can, Row, SourceConformance, SourceSubject, TypedRow
from penstock.testing.adaptors.model import Log, read_all

pytestmark = pytest.mark.xdist_group("opensearch")

PASSWORD = "not-to-be-shown"
NO_TAIL = "these servers do not tell what changes"


class SearchSubject(SourceSubject):
    name = "elasticsearch"
    server = NAME
    key = ("_id",)
    secret = PASSWORD
    patience = 30.0
    cannot: Mapping[Can, str] = {
        Can.TAIL: NO_TAIL, Can.ADDED: NO_TAIL, Can.UPDATES: NO_TAIL, Can.DELETES: NO_TAIL, Can.REKEYS: NO_TAIL,
        Can.TRUNCATE: NO_TAIL, Can.FIELDS: NO_TAIL, Can.CLEAN: NO_TAIL, Can.ACKNOWLEDGES: NO_TAIL,
        Can.TRANSACTIONS: NO_TAIL,
        Can.OVERSIZE: "the server takes such a document in no field that can be searched",
    }  # fmt: skip

    def __init__(self, server: OpenSearchServer) -> None:
        self._server = server
        self._http = urllib3.PoolManager(timeout=30.0)
        self._made: list[str] = []

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.elasticsearch(uri=self._server.uri, timeout=30.0)

    def ask(self, method: str, path: str, content: bytes | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        answer = self._http.request(method, f"{self._server.uri}{path}", body=content, headers=headers)
        assert answer.status < 300, answer.data
        return answer.json()

    def make(self, word: str) -> str:
        self._made.append(word)
        settings = {"number_of_shards": 2, "number_of_replicas": 0}
        mappings = {"properties": {"text": {"type": "text", "index": False}}}
        self.ask("PUT", f"/{word}", msgspec.json.encode({"settings": settings, "mappings": mappings}))
        return word

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        lines = b""
        for row in rows:
            lines += msgspec.json.encode({"index": {"_id": f"{row.id:08d}"}}) + b"\n"
            lines += msgspec.json.encode({"id": row.id, "text": row.text}) + b"\n"
        assert not self.ask("POST", f"/{ns}/_bulk?refresh=true", lines)["errors"]

    def contents(self, ns: str) -> Mapping[int, str]:
        found = self.ask("POST", f"/{ns}/_search", msgspec.json.encode({"size": 10000}))["hits"]["hits"]
        return {one["_source"]["id"]: one["_source"]["text"] for one in found}

    def typed(self, word: str) -> TypedRow:
        ns = self.make(f"{word}{uuid.uuid4().hex[:8]}")
        text = '{"int":9007199254740993,"decimal":1.50,"list":[1,2],"name":"<ü>","empty":{}}'
        expected = {
            "int": "9007199254740993", "decimal": "1.50", "list": "[1,2]", "name": '"<ü>"', "empty": "{}",
        }  # fmt: skip
        return TypedRow(ns, lambda: self.ask("POST", f"/{ns}/_doc?refresh=true", text.encode()), expected)

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
        for index in self._made:
            self.ask("DELETE", f"/{index}")
        self._http.clear()

    def several(self) -> Sequence[Row]:
        return [Row(i, f"row {i}") for i in range(1700)]


class TestSearchSource(SourceConformance):
    @pytest.fixture
    def subject(self, opensearch_server: OpenSearchServer) -> SearchSubject:
        return SearchSubject(opensearch_server)


@pytest.fixture
def subject(opensearch_server: OpenSearchServer) -> Iterator[SearchSubject]:
    subject = SearchSubject(opensearch_server)
    yield subject
    subject.close()


def test_a_copy_shows_the_index_as_it_was_when_it_began(
    subject: SearchSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elasticsearch_source, "PAGE", 3)
    ns = subject.make(f"n{uuid.uuid4().hex[:8]}")
    subject.insert(ns, [Row(i, "before") for i in range(10)])
    found = []
    for batch in subject.adaptor(tail=False).source().read(lambda name: name == ns, {}, threading.Event()):
        found += [subject.row(one) for one in batch.messages]
        subject.insert(ns, [Row(i, "after") for i in range(12)])
    assert found == [Row(i, "before") for i in range(10)]


def test_a_backfill_with_a_condition_copies_what_meets_it(subject: SearchSubject) -> None:
    ns = subject.make(f"n{uuid.uuid4().hex[:8]}")
    subject.insert(ns, [Row(i, "x") for i in range(10)])
    resume = {ns: Resume(Mode.COPY, {}, MessageOffset(-1), None, '{"range":{"id":{"gte":8}}}')}
    batches = subject.adaptor(tail=False).source().read(lambda name: name == ns, resume, threading.Event())
    assert [subject.row(one).id for batch in batches for one in batch.messages] == [8, 9]


def test_a_field_that_cannot_be_sorted_by_is_named(
    subject: SearchSubject, opensearch_server: OpenSearchServer
) -> None:
    ns = subject.make(f"n{uuid.uuid4().hex[:8]}")
    subject.insert(ns, [Row(1, "x")])
    adaptor = a.elasticsearch(uri=opensearch_server.uri, sort="text", timeout=10.0)
    with pytest.raises(UsageError, match="in the order of 'text'"):
        read_all(adaptor, Log(), [ns], 20.0)
