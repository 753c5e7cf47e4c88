"""Taking posts: the kit, with senders that send again; and each rule of the endpoint over real sockets."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.adaptors.hook_subject import TOKEN, HookSubject
from tests.adaptors.posting import Answer, send
from tests.servers.ports import free_port

from penstock import adaptors as a
from penstock.adaptors.base import Adaptor
from penstock.adaptors.http.bodies import pieces
from penstock.base import secrets
from penstock.base.errors import AwayError, UsageError
from penstock.testing.adaptors import SourceConformance
from penstock.testing.adaptors.delivery import Delivery, message
from penstock.testing.adaptors.model import Log, Reading

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def _unregistered() -> Iterator[None]:
    yield
    secrets.forget_all()


class TestHttpListenSource(SourceConformance):
    @pytest.fixture
    def subject(self) -> Iterator[HookSubject]:
        subject = HookSubject()
        yield subject
        subject.close()


class Hook:
    """An endpoint that runs, and the log behind it, which takes batches until it is told not to."""

    def __init__(self, log: Log, **settings: object) -> None:
        self.port = free_port()
        self.log = log
        self.full = threading.Event()
        self._stalled = threading.Event()
        adaptor = a.http(listen=f"127.0.0.1:{self.port}", **{"timeout": 5.0, **settings})
        self.reading = Reading(adaptor, log, lambda ns: not ns.startswith("not-"))
        self._over = threading.Event()
        self._logger = threading.Thread(target=self._take, daemon=True)

    def _take(self) -> None:
        while not self._over.is_set():
            if self.full.is_set():
                self._stalled.set()
                time.sleep(0.01)
            else:
                self.reading.step(0.05)

    def stall(self) -> None:
        """Have the log take nothing from now on."""
        self._stalled.clear()
        self.full.set()
        assert self._stalled.wait(PATIENCE)

    def send(self, path: str, body: bytes = b"", **more: object) -> Answer:
        return send(self.port, path, body, **more)  # type: ignore[arg-type]

    def __enter__(self) -> Hook:
        self.reading.__enter__()
        self._logger.start()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.01)
            else:
                break
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._logger.join()
        self.reading.crash()


@contextmanager
def hook(log: Log | None = None, **settings: object) -> Iterator[Hook]:
    with Hook(log or Log(), **settings) as one:
        yield one


def texts(log: Log) -> list[bytes]:
    return [one.data for one in log.messages]


def test_one_document_an_array_and_lines_are_taken_by_their_content_type() -> None:
    with hook() as one:
        assert one.send("/a", b' {"n": 1.50} \n').taken == 1
        assert (
            one.send("/b", b'[{"n": 2},\n {"n" :3}]', content_type="application/json; charset=utf-8").taken
            == 2
        )
        assert one.send("/a", b'{"n":4}\n\r\n{"n":5}\r\n', content_type="application/x-ndjson").taken == 2
        assert one.send("/a", b'{"n":6}', content_type="application/cloudevents+json").taken == 1
        assert one.send("/a", gzip.compress(b'{"n":7}'), content_encoding="gzip").taken == 1
        assert one.send("/a", b"[]").taken == 0
        assert one.send("/a", b"\n\n", content_type="application/x-ndjson").taken == 0
    assert texts(one.log) == [
        b'{"n": 1.50}', b'{"n": 2}', b'{"n" :3}', b'{"n":4}', b'{"n":5}', b'{"n":6}', b'{"n":7}'
    ]  # fmt: skip
    assert [message.ns for message in one.log.messages] == ["a", "b", "b", "a", "a", "a", "a"]


@pytest.mark.parametrize(
    "body, kind, where",
    [
        (b'{"n":1}\n{"n":\n', "application/x-ndjson", "line 2, byte 8: not JSON"),
        (b'{"n":1}\n\n7', "application/x-ndjson", "line 3, byte 9: not a JSON object"),
        (b'{"n":1}\n{"n":"\xff"}', "application/x-ndjson", "line 2, byte 8: not UTF-8"),
        (b'[{"n":1} , [1]]', "application/json", "document 2, byte 11: not a JSON object"),
        (b'[{"n":1}', "application/json", "byte 0: not JSON"),
        (b'  {"n"', "application/json", "byte 2: not JSON"),
        (b"", "application/json", "byte 0: not JSON"),
        (b"[" * 100_000, "application/json", "byte 0: not JSON"),
        (b'{"a":' * 100_000, "application/json", "byte 0: nested too deeply"),
    ],
)
def test_what_is_malformed_is_refused_with_its_place_and_nothing_is_logged(
    body: bytes, kind: str, where: str
) -> None:
    with hook() as one:
        answer = one.send("/a", body, content_type=kind)
        assert answer.status == 400
        assert answer.text.startswith(where)
    assert one.log.messages == []
    assert one.log.bad == {}


def test_what_is_malformed_is_kept_if_asked_and_the_rest_is_taken() -> None:
    with hook(bad_lines="dead-letter", key=["n"]) as one:
        body = b'{"n":1}\nno json\n{"m":2}\n{"n":3}'
        kind = "application/x-ndjson"
        answer = one.send("/a", body, content_type=kind, idempotency_key="seven")
        assert json.loads(answer.text) == {"taken": 2, "dead": 2}
        assert one.send("/a", b"nothing").status == 200
    assert texts(one.log) == [b'{"n":1}', b'{"n":3}']
    places = list(one.log.bad)
    assert places[:2] == ["post seven to a, line 2, byte 8", "post seven to a, line 3, byte 16"]
    assert [bad.content for bad in one.log.bad.values()] == [b"no json", b'{"m":2}', b"nothing"]


def test_what_is_posted_together_is_logged_together() -> None:
    with hook() as one:
        before = one.log.batches
        body = b"\n".join(b'{"n":%d,"text":"%s"}' % (n, b"x" * 100) for n in range(12_000))
        assert one.send("/a", body, content_type="application/x-ndjson").taken == 12_000
    assert len(one.log.messages) == 12_000
    assert one.log.batches - before == 2, "that the namespace is followed, and the post"


def test_the_byte_of_each_document_of_an_array_is_where_it_begins() -> None:
    body = b' [ {"a":"],["} ,{},\n\t["{"],  {"a":[1,2]},[ ] ,[]]'
    for piece in pieces(body, lines=False, key=()):
        at = int(piece.place.rpartition(" ")[2])
        assert body[at : at + len(piece.text)] == piece.text


@pytest.mark.parametrize(
    "path, method, headers, status",
    [
        ("/a", "POST", {"content_type": "application/x-www-form-urlencoded"}, 415),
        ("/a", "POST", {"content_type": "application/json; charset=latin-1"}, 415),
        ("/a", "POST", {"content_encoding": "br"}, 415),
        ("/a", "POST", {"content_encoding": "gzip"}, 400),
        ("/not-wanted", "POST", {}, 404),
        ("/a/b", "POST", {}, 404),
        ("/", "POST", {}, 404),
        ("/%ff", "POST", {}, 404),
        ("/a%00b", "POST", {}, 404),
        ("/" + "a" * 256, "POST", {}, 404),
        ("/a", "GET", {}, 405),
        ("/a", "PUT", {}, 405),
        ("/healthz", "GET", {}, 200),
    ],
)
def test_what_is_asked_wrongly_is_told_and_not_logged(
    path: str, method: str, headers: dict[str, str], status: int
) -> None:
    with hook() as one:
        answer = one.send(path, b'{"n":1}', method=method, **headers)
        assert (answer.status, answer.headers.get("Allow")) == (status, "POST" if status == 405 else None)
    assert one.log.messages == []


def test_the_namespace_is_that_of_the_path_or_of_the_settings() -> None:
    with hook(path="/hooks/{ns}/events") as one:
        assert one.send("/hooks/shop%2Forders%20ü/events?x=/y".replace("ü", "%C3%BC"), b"{}").status == 200
        assert one.send("/hooks//events", b"{}").status == 404
    assert one.log.messages[0].ns == "shop/orders ü"
    with hook(path="/github", ns="pushes") as one:
        assert one.send("/github", b"{}").status == 200
        assert one.send("/pushes", b"{}").status == 404
    assert one.log.completed == ["pushes"]
    with hook(namespaces=["a", "b"]) as one:
        assert one.send("/a", b"{}").status == 200
        assert one.send("/c", b"{}").status == 404
    assert one.log.completed == ["a", "b"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_above_the_limit_is_refused(chunked: bool) -> None:
    large = b'{"text":"' + b"x" * 2000 + b'"}'
    with hook(max_body=1000) as one:
        body = iter([large[:900], large[900:]]) if chunked else large
        assert one.send("/a", body).status == 413  # type: ignore[arg-type]
        assert one.send("/a", gzip.compress(large), content_encoding="gzip").status == 413
        assert one.send("/a", large[:900] + b'"}').status == 200
    assert len(one.log.messages) == 1


def test_only_who_has_the_token_may_post() -> None:
    with hook(token=TOKEN) as one:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"},
                        {"authorization": "Bearer \xff"}):  # fmt: skip
            for path in ("/a", "/not-wanted"):
                answer = one.send(path, b"{}", **headers)
                assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
                assert TOKEN not in answer.text
        assert one.send("/a", b"{}", authorization=f"Bearer {TOKEN}").status == 200
        assert one.send("/healthz", method="GET").status == 200
    assert len(one.log.messages) == 1


def test_only_signed_bodies_are_taken() -> None:
    body = b'{"action": "opened"}'
    good = "sha256=" + hmac.new(TOKEN.encode(), body, hashlib.sha256).hexdigest()
    with hook(secret=TOKEN) as one:
        for signature in ("", "sha256=", "sha256=" + "0" * 64, good[:-1], "sha1=" + good[7:]):
            assert one.send("/a", body, x_hub_signature_256=signature).status == 401
        assert one.send("/a", body + b" ", x_hub_signature_256=good).status == 401
        assert one.send("/a", body, x_hub_signature_256=good).status == 200
    with hook(secret=TOKEN, signature="X-Signature") as one:
        assert one.send("/a", body, x_signature=good[7:].upper()).status == 200
    assert texts(one.log) == [body]


def test_a_post_is_answered_only_when_the_log_has_it() -> None:
    with hook(timeout=0.8) as one:
        one.stall()
        began = time.monotonic()
        answer = one.send("/a", b'{"n":1}')
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert time.monotonic() - began > 0.7
    with hook(timeout=PATIENCE) as one, ThreadPoolExecutor(1) as senders:
        one.stall()
        waiting = senders.submit(one.send, "/a", b'{"n":2}')
        deadline = time.monotonic() + PATIENCE
        while not one.reading.source.gauges().get("waiting_posts") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert one.reading.source.gauges()["waiting_posts"] == 1
        assert not waiting.done()
        one.full.clear()
        assert waiting.result(PATIENCE).status == 200
    assert texts(one.log) == [b'{"n":2}']


def test_a_post_that_comes_again_with_its_id_is_left_out_also_after_a_crash() -> None:
    log = Log()
    with hook(log, remember=3) as one:
        assert one.send("/a", b'{"n":1}', idempotency_key="first").taken == 1
        again = one.send("/a", b'{"n":1}', idempotency_key="first")
        assert json.loads(again.text) == {"taken": 0, "dead": 0, "repeated": True}
        assert one.send("/b", b'{"n":1}', idempotency_key="first").taken == 1
        assert one.send("/a", b'{"n":9}', idempotency_key="first").status == 422
    with hook(log, remember=3) as one:
        assert one.send("/a", b'{"n":1}', idempotency_key="first").taken == 0
        for n in (2, 3, 4):
            assert one.send("/a", b'{"n":%d}' % n, idempotency_key=str(n)).taken == 1
        assert one.send("/a", b'{"n":1}', idempotency_key="first").taken == 1, "only so many are remembered"
        assert one.send("/a", b'{"n":4}', idempotency_key="4").taken == 0
    assert len(log.messages) == 6
    with hook(log, delivery_id="X-GitHub-Delivery") as one:
        assert one.send("/a", b'{"n":4}', x_github_delivery="4").taken == 0
        assert one.send("/a", b'{"n":4}', idempotency_key="4").taken == 1


def test_a_post_that_is_sent_again_while_the_first_waits_is_logged_once() -> None:
    with hook() as one, ThreadPoolExecutor(8) as senders:
        one.send("/a", b'{"n":0}')
        one.stall()
        sent = [senders.submit(one.send, "/a", b'{"n":1}', idempotency_key="same") for _ in range(8)]
        time.sleep(0.3)
        one.full.clear()
        assert sorted(str(answer.result().taken) for answer in sent) == ["0"] * 7 + ["1"]
    assert texts(one.log) == [b'{"n":0}', b'{"n":1}']


def test_bodies_that_wait_are_limited_in_memory() -> None:
    body = json.dumps({"text": "x" * 60_000}).encode()
    with hook(max_body=100_000, max_waiting=200_000, timeout=3.0) as one, ThreadPoolExecutor(12) as senders:
        one.stall()
        sent = [senders.submit(one.send, "/a", body) for _ in range(12)]
        deadline = time.monotonic() + PATIENCE
        while sum(answer.done() for answer in sent) < 9 and time.monotonic() < deadline:
            time.sleep(0.02)
        refused = [answer.result() for answer in sent if answer.done()]
        assert {(answer.status, answer.headers["Retry-After"]) for answer in refused} == {(503, "1")}
        assert 0 < one.reading.source.gauges()["waiting_bytes"] <= 200_000
        one.full.clear()
        statuses = sorted(answer.result().status for answer in sent)
    assert statuses.count(200) == len(one.log.messages)
    assert 2 <= statuses.count(200) <= 3


def test_senders_that_are_slow_are_dropped_and_hold_nobody_up() -> None:
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with hook(timeout=0.5, max_connections=4) as one:
        slow = [socket.create_connection(("127.0.0.1", one.port), timeout=5) for _ in range(4)]
        slow[0].sendall(head)
        slow[1].sendall(head + b"Content-Length: 10\r\n\r\n{")
        slow[2].sendall(b"P")
        assert one.send("/a", b'{"n":1}').status == 200, "it waits until there is room"
        assert b" 408 " in slow[1].recv(1000)
        for connection in slow:
            while connection.recv(1000):
                pass
            connection.close()
    assert len(one.log.messages) == 1


def test_a_sender_that_goes_away_in_the_middle_leaves_nothing_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    garbage = (b"\x16\x03\x01\x00\x00", b"GET\r\n\r\n", head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
               head + b"Content-Length: 100\r\n\r\n{\"n\"", head + b"Content-Length: x\r\n\r\n")  # fmt: skip
    with hook() as one:
        for start in garbage:
            with socket.create_connection(("127.0.0.1", one.port), timeout=5) as connection:
                connection.sendall(start)
        assert one.send("/a", b'{"n":1}').status == 200
        assert one.reading.source.gauges()["waiting_bytes"] == 0
    assert texts(one.log) == [b'{"n":1}']
    assert "Traceback" not in caplog.text


def test_a_sender_may_ask_first() -> None:
    with hook() as one, socket.create_connection(("127.0.0.1", one.port), timeout=5) as connection:
        connection.sendall(
            b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"{}")
        assert b" 200 OK" in connection.recv(1000)


def test_stopping_answers_all_and_is_quick() -> None:
    with hook() as one, ThreadPoolExecutor(5) as senders:
        one.send("/a", b'{"n":0}')
        one.stall()
        sent = [senders.submit(one.send, "/a", b'{"n":%d}' % n) for n in range(1, 6)]
        deadline = time.monotonic() + PATIENCE
        while one.reading.source.gauges()["waiting_posts"] < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        one.reading.stop()
        assert {answer.result().status for answer in sent} == {503}
        with pytest.raises(ConnectionRefusedError):
            one.send("/a", b"{}")


def test_what_is_given_when_the_source_stops_is_answered_once_it_is_logged() -> None:
    log, port = Log(), free_port()
    adaptor = a.http(listen=f"127.0.0.1:{port}", namespaces=["a"])
    with Reading(adaptor, log, lambda ns: True) as reading, ThreadPoolExecutor(2) as threads:
        reading.step(PATIENCE)
        sent = threads.submit(send, port, "/a", b'{"n":1}')
        batch = reading.take(PATIENCE)
        assert batch is not None
        stopping = threads.submit(reading.stop)
        time.sleep(0.15)
        reading.log(batch)
        assert sent.result().status == 200
        stopping.result()


def test_what_the_sink_posts_the_endpoint_takes(tmp_path: Path) -> None:
    from tests.adaptors.test_http import WebTarget

    class Ours(WebTarget):
        def __init__(self, uri: str) -> None:
            self._uri = uri

        def adaptor(self) -> Adaptor:
            return a.http(uri=self._uri, token=TOKEN)

    with hook(token=TOKEN) as one:
        delivery = Delivery(Ours(f"http://127.0.0.1:{one.port}/{{ns}}"), tmp_path)
        delivery.open()
        delivery.add(*(message("orders", i, "x") for i in range(5)))
        delivery.deliver()
        delivery.close()
    assert [msgspec.json.decode(text)["data"]["id"] for text in texts(one.log)] == list(range(5))


@pytest.mark.parametrize(
    "settings, wrong",
    [
        ({"uri": "http://x", "listen": "x:1"}, "expected one of them"),
        ({}, "expected one of them"),
        ({"listen": "8080"}, "expected HOST:PORT"),
        ({"listen": "localhost:0"}, "expected HOST:PORT"),
        ({"listen": "localhost:70000"}, "expected HOST:PORT"),
        ({"listen": "x:1", "path": "hooks"}, "expected a path"),
        ({"listen": "x:1", "path": "/a", "namespaces": ["a"]}, "expected {ns}"),
        ({"listen": "x:1", "certificate": "a"}, "expected both or none"),
        ({"listen": "x:1", "ca": "a"}, "expected 'certificate'"),
        ({"listen": "x:1", "max_body": "1GB"}, "expected no less than 'max_body'"),
        ({"listen": "x:1", "remember": 0}, "expected more than 0"),
    ],
)
def test_settings_are_checked_before_anything_listens(settings: dict[str, object], wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        a.http(**settings)


def test_an_endpoint_is_no_sink() -> None:
    with pytest.raises(UsageError, match="needs the setting 'uri'"):
        a.http(listen="127.0.0.1:8080").sink()


def test_plan_tells_of_open_doors_and_of_an_address_in_use() -> None:
    def found(**settings: object) -> list[str]:
        inspection = a.http(**settings).source().inspect(lambda ns: True)
        return [finding.what for finding in inspection.findings]

    port = free_port()
    assert found(listen=f"127.0.0.1:{port}") == []
    assert found(listen=f"0.0.0.0:{port}") == [f"whoever reaches 0.0.0.0:{port} can post"]
    assert "not encrypted" in found(listen=f"0.0.0.0:{port}", token=TOKEN)[0]
    with socket.create_server(("127.0.0.1", port)):
        assert "in use" in found(listen=f"127.0.0.1:{port}")[0]
        with pytest.raises(AwayError, match="in use"):
            a.http(listen=f"127.0.0.1:{port}").source().namespaces()
