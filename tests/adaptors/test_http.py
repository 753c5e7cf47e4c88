"""Posting to a web service, a real one in its own process: the kit, and what HTTP has that others do not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.servers.http import TOKEN, HttpServer

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.base import secrets
from penstock.base.errors import AwayError, RefusedError, UsageError
from penstock.log.message import Message, Op
from penstock.log.schema import Field, Kind, Schema
from penstock.testing.adaptors import Can, Holds, Row, SinkConformance, SinkSubject, TypedDelivery
from penstock.testing.adaptors.delivery import Delivery, message

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
    one = delivery(http_server, tmp_path)
    one.add(message("again", 1, "x"))
    http_server.answer("503", "429 0")
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
