"""Posting to a web service, a real one in its own process: the kit, and what HTTP has that others do not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.servers.http import TOKEN, HttpServer

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.adaptors.http import Http
from penstock.adaptors.http.source import PollSource
from penstock.base import secrets
from penstock.base.errors import AwayError, PenstockError, RefusedError, UsageError
from penstock.log.message import Message, Op
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors import (
    Can,
    Holds,
    Row,
    SinkConformance,
    SinkSubject,
    SourceConformance,
    SourceSubject,
    TypedDelivery,
    TypedRow,
)
from penstock.testing.adaptors.delivery import Delivery, message
from penstock.testing.adaptors.model import Log, Reading

pytestmark = pytest.mark.xdist_group("http")


@pytest.fixture(autouse=True)
def _unregistered() -> Iterator[None]:
    yield
    secrets.forget_all()


class WebTarget(SinkSubject):
    name = "http"
    holds = Holds.MESSAGES
    secret = TOKEN
    server = "Python's http.server"
    cannot: Mapping[Can, str] = {
        Can.EXACT: "a batch that was interrupted is posted again",
        Can.CLAIMS: "a web service may be posted to from anywhere",
    }

    def __init__(self, server: HttpServer, **settings: object) -> None:
        self._server = server
        self._settings = {"token": TOKEN, "timeout": 5.0, **settings}

    def adaptor(self) -> Adaptor:
        return a.http(uri=f"{self._server.uri}/{{ns}}", **self._settings)

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {
            "nobody listens": a.http(uri="http://127.0.0.1:1/x", token=TOKEN, timeout=1.0),
            "wrong token": a.http(uri=f"{self._server.uri}/x", token=f"wrong-{TOKEN}"),
        }

    def stop_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    def make(self, word: str) -> str:
        return word

    def rows(self, ns: str) -> list[dict[str, object]]:
        """Each message once: by generation and offset, as a service would."""
        found: dict[tuple[str, object], dict[str, object]] = {}
        for taken in self._server.taken(f"/{ns}"):
            generation = str(taken["key"]).split("/")[1]
            for row in json.loads(json.dumps(taken["rows"])):
                found.setdefault((generation, row["offset"]), row)
        return list(found.values())

    def contents(self, ns: str) -> Sequence[Row]:
        documents = [row["data"] for row in self.rows(ns) if row["op"] != "command"]
        return [Row(one["id"], one.get("text", "")) for one in documents if isinstance(one, dict)]

    def bad(self, ns: str) -> bytes:
        return b'{"id":666}'

    def typed(self, word: str) -> TypedDelivery:
        schema = Schema((Field("id", Kind.INT), Field("n", Kind.DECIMAL)), ("id",))
        data = b'{"id": 1, "n": 1.50,\n "when": {"$date":"2026-11-16T02:14:14.123456Z"}, "x":null}'
        expected = {"id": 1, "n": 1.5, "when": {"$date": "2026-11-16T02:14:14.123456Z"}, "x": None}
        return TypedDelivery(
            word, schema, data, b'{"id":1}', lambda: {"data": self.rows(word)[-1]["data"]}, {"data": expected}
        )

    def extra(self, ns: str, id: int) -> str | None:
        for row in self.rows(ns):
            if isinstance(row["data"], dict) and row["data"]["id"] == id:
                return str(row["data"].get("extra"))
        return None


class TestHttpSink(SinkConformance):
    @pytest.fixture
    def subject(self, http_server: HttpServer) -> WebTarget:
        return WebTarget(http_server)


def delivery(server: HttpServer, scratch: Path, **settings: object) -> Delivery:
    one = Delivery(WebTarget(server, **settings), scratch)
    one.open()
    return one


def test_requests_are_cut_by_count_and_carry_a_key(http_server: HttpServer, tmp_path: Path) -> None:
    one = delivery(http_server, tmp_path, max_count=2, format="lines", envelope=False)
    one.add(*(message("cut", i, "x") for i in range(5)), message("cut2", 5, "y", Op.UPDATE))
    one.deliver()
    taken = http_server.taken("/cut")
    assert [request["key"] for request in taken] == [f"{one.log}/0/{span}" for span in ("0-1", "2-3", "4-4")]
    assert taken[0]["rows"] == [{"id": 0, "text": "x"}, {"id": 1, "text": "x"}]
    assert len(http_server.taken("/cut2")) == 1


def test_requests_are_cut_by_bytes(http_server: HttpServer, tmp_path: Path) -> None:
    one = delivery(http_server, tmp_path, max_bytes=1000)
    one.add(*(message("large", i, "x" * 600) for i in range(4)))
    one.deliver()
    assert [len(list(str(request["key"]).split("-"))) for request in http_server.taken("/large")] == [2, 2]


def test_what_the_service_cannot_take_now_is_tried_again(http_server: HttpServer, tmp_path: Path) -> None:
    one = delivery(http_server, tmp_path, attempts=4)
    one.add(message("again", 1, "x"))
    http_server.answer("503", "429 0", "429 ²")
    one.deliver()
    assert len(http_server.taken("/again")) == 1


@pytest.mark.parametrize("answers", [["503"] * 3, ["429 60"], ["500"] * 3, ["408"] * 3])
def test_a_service_that_goes_on_refusing_for_now_is_away(
    http_server: HttpServer, tmp_path: Path, answers: list[str]
) -> None:
    one = delivery(http_server, tmp_path)
    one.add(message("away", 1, "x"))
    http_server.answer(*answers)
    with pytest.raises(AwayError):
        one.deliver()
    assert http_server.taken("/away") == []


@pytest.mark.parametrize(
    "status, kind", [(400, RefusedError), (413, RefusedError), (302, RefusedError), (403, UsageError)]
)
def test_other_answers_are_not_tried_again(
    http_server: HttpServer, tmp_path: Path, status: int, kind: type[Exception]
) -> None:
    one = delivery(http_server, tmp_path)
    one.add(message("refused", 1, "x"))
    http_server.answer(str(status))
    with pytest.raises(kind, match=str(status)):
        one.deliver()
    assert http_server.taken("/refused") == []


def test_a_namespace_is_spelled_so_that_it_stays_in_its_place(
    http_server: HttpServer, tmp_path: Path
) -> None:
    one = delivery(http_server, tmp_path)
    one.add(Message("../a b?c", b'{"id":1}'))
    one.deliver()
    assert len(http_server.taken("/..%2Fa%20b%3Fc")) == 1


def test_settings_are_checked_before_anything_connects() -> None:
    with pytest.raises(UsageError, match="expected https://"):
        a.http(uri="localhost")
    with pytest.raises(UsageError, match="expected more than 0"):
        a.http(uri="http://x", max_count=0)


class FeedSubject(SourceSubject):
    """A JSON API with pages of fifty."""

    name = "http"
    secret = TOKEN
    server = "Python's http.server"
    cannot: Mapping[Can, str] = {
        Can.NAMESPACES: "an address is one namespace",
        Can.ADDED: "an address is one namespace",
        Can.UPDATES: "what a page has stays as it is",
        Can.DELETES: "what a page has stays as it is",
        Can.REKEYS: "what a page has stays as it is",
        Can.TRUNCATE: "what a page has stays as it is",
        Can.TRANSACTIONS: "a page does not say what was written together",
        Can.OVERSIZE: "a document above the limit is kept among the dead letters",
        Can.ACKNOWLEDGES: "there is nothing to tell an API",
    }

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._ns = "none"

    def adaptor(self, *, tail: bool) -> Adaptor:
        return a.http(
            uri=f"{self._server.uri}/{self._ns}", ns=self._ns, token=TOKEN, tail=tail, interval=0.2, timeout=5.0,
            items="page.items", cursor="page.next", parameter="after", key=["id"],
        )  # fmt: skip

    def misconfigured(self) -> Mapping[str, Adaptor]:
        return {
            "nobody listens": a.http(uri="http://127.0.0.1:1/x", token=TOKEN, timeout=1.0),
            "wrong token": a.http(uri=f"{self._server.uri}/x", token=f"wrong-{TOKEN}"),
            "no such page": a.http(uri=f"{self._server.uri}/no-such-page", token=TOKEN),
        }

    def stop_server(self) -> None:
        self._server.kill()

    def start_server(self) -> None:
        self._server.start()

    @property
    def _feed(self) -> Path:
        return self._server.place / f"feed-{self._ns}.jsonl"

    def make(self, word: str) -> str:
        self._ns = word
        self._feed.touch()
        return word

    def several(self) -> Sequence[Row]:
        return [Row(i, f"{i:06d} " + "x" * 1200) for i in range(180)]

    def put(self, *texts: str) -> None:
        with self._feed.open("a") as feed:
            feed.write("".join(f"{text}\n" for text in texts))

    def insert(self, ns: str, rows: Sequence[Row]) -> None:
        self.put(*(json.dumps({"id": row.id, "text": row.text}, ensure_ascii=False) for row in rows))

    def contents(self, ns: str) -> Mapping[int, str]:
        documents = [json.loads(line) for line in self._feed.read_text().split("\n") if line]
        return {one["id"]: one["text"] for one in documents}

    def typed(self, word: str) -> TypedRow:
        ns = self.make(word)
        expected = {"id": "1", "n": "1.50", "text": '"grüße"', "null": "null", "list": "[1, 2]"}
        body = '{"id": 1, "n": 1.50, "text": "grüße", "null": null, "list": [1, 2]}'
        return TypedRow(ns, lambda: self.put(body), expected)

    def add_field(self, ns: str) -> None:
        """There is nothing to do: each document has its own fields."""

    def insert_extra(self, ns: str, row: Row, extra: str) -> None:
        self.put(json.dumps({"id": row.id, "text": row.text, "extra": extra}))


class TestHttpSource(SourceConformance):
    @pytest.fixture
    def subject(self, http_server: HttpServer) -> FeedSubject:
        return FeedSubject(http_server)


def read(feed: FeedSubject, log: Log, **settings: object) -> None:
    """One start, to its end."""
    adaptor = feed.adaptor(tail=False)
    assert isinstance(adaptor, Http)
    with Reading(replace(adaptor, **settings), log, lambda ns: True) as reading:  # type: ignore[arg-type]
        reading.to_the_end(20.0)


def test_a_page_without_a_cursor_behind_it_is_taken_once_and_goes_on_where_it_ended(
    http_server: HttpServer,
) -> None:
    feed, log = FeedSubject(http_server), Log()
    feed.make("nocursor")
    feed.put('{"id":1}', '{"id":2}')
    read(feed, log, cursor="page.nothing")
    feed.put('{"id":3}')
    read(feed, log, cursor="page.nothing")
    assert [one.data for one in log.messages] == [b'{"id":1}', b'{"id":2}', b'{"id":3}']


def test_a_cursor_that_moves_with_time_is_asked_every_while_and_not_without_end() -> None:
    asked: list[str] = []

    class Clock(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            items = [{"id": len(asked)}] if len(asked) in (1, 9) else []
            body = json.dumps({"items": items, "next": f"{len(asked)}"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Clock) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            uri, log = f"http://127.0.0.1:{server.server_port}/", Log()
            adaptor = a.http(uri=uri, ns="clock", tail=True, interval=0.1, items="items", cursor="next")
            with Reading(adaptor, log, lambda ns: True) as reading:
                began = time.monotonic()
                assert reading.until(lambda: len(log.messages) == 2, 20.0)
                assert len(asked) <= 5 + (time.monotonic() - began) / 0.1
        finally:
            server.shutdown()
    assert [one.data for one in log.messages] == [b'{"id": 1}', b'{"id": 9}']
    assert log.completed == ["clock"]


def test_documents_that_are_no_objects_are_kept_and_stop_nothing(http_server: HttpServer) -> None:
    feed, log = FeedSubject(http_server), Log()
    feed.make("bad")
    feed.put("7", '{"id":2}', '{"other":3}')
    read(feed, log)
    assert [one.data for one in log.messages] == [b'{"id":2}']
    assert [bad.content for bad in log.bad.values()] == [b"7", b'{"other":3}']


@pytest.mark.parametrize("settings", [{"items": "page.nothing"}, {"items": "page"}])
def test_an_answer_of_another_shape_is_an_error(http_server: HttpServer, settings: dict[str, str]) -> None:
    feed = FeedSubject(http_server)
    feed.make("shape")
    with pytest.raises(PenstockError, match="something else than expected"):
        read(feed, Log(), **settings)


def test_an_answer_that_is_nested_too_deeply_is_an_error(http_server: HttpServer) -> None:
    feed = FeedSubject(http_server)
    feed.make("deep")
    feed.put('{"id":' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(PenstockError, match="something else than expected"):
        read(feed, Log())


def test_a_cursor_that_is_no_text_is_an_error() -> None:
    source = a.http(uri="http://127.0.0.1/", items="items", cursor="next").source()
    assert isinstance(source, PollSource)
    with pytest.raises(PenstockError, match="something else than expected"):
        source._parsed(b'{"items":[],"next":"\xff"}')


@pytest.mark.parametrize("answer", ["503", "429 7", "500"])
def test_an_api_that_has_no_time_is_away(http_server: HttpServer, answer: str) -> None:
    feed = FeedSubject(http_server)
    feed.make("busy")
    http_server.answer(answer)
    with pytest.raises(AwayError, match=answer[:3]):
        read(feed, Log())


def test_an_answer_above_the_limit_is_an_error(http_server: HttpServer) -> None:
    feed = FeedSubject(http_server)
    feed.make("long")
    feed.put('{"id":1,"text":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}')
    with pytest.raises(PenstockError, match="more than 50 bytes"):
        read(feed, Log(), max_answer=50)
