"""What others try: other users of the machine, pages of other sites and ports, hostile content, old cookies."""

from __future__ import annotations

import http.server
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pytest
from tests.journal.authority import Authority

from penstock.base import secrets
from penstock.console import access as door
from penstock.console.access import OPERATOR, VIEWER, Access, credential
from penstock.console.reaching import BrokerPlace
from penstock.console.serving import Door
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.audit import deeds
from penstock.log.control import Control, ControlEntry, Detail
from penstock.log.message import Message, Mode
from penstock.pipeline.clock import now_us

from .asking import Asker
from .conftest import Visit
from .places import Place, buried, console, stuck
from .test_page import expect, loaded

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.xdist_group("chromium")

PAUSE = {"action": "pause", "sink": "sales"}
ANNA, VIC = "correct-horse-battery", "looking-only-please"
NOBODY = 65534


@pytest.fixture
def shop(tmp_path: Path) -> Place:
    return stuck(tmp_path)


@pytest.fixture
def users() -> Iterator[list[door.Credential]]:
    yield [credential("anna", OPERATOR, ANNA), credential("vic", VIEWER, VIC)]
    secrets.forget_all()


def as_nobody(code: str, *arguments: str) -> str:
    """What a program of another user of this machine says. It has what it needs before it is that one's."""
    if os.getuid() != 0:
        pytest.skip("only root can be somebody else")
    command = [sys.executable, "-c", BECOMING + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


BECOMING = f"""\
import encodings.idna, http.client, os, socket, sys
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
"""
ASKING = """\
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("GET", sys.argv[2])
print(connection.getresponse().status)
"""
LEAVING = """\
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as there:
    there.sendall(b"GET /api/session HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
"""


def test_another_user_of_the_machine_is_not_let_in(shop: Place) -> None:
    with console(shop.data) as at:
        assert Asker(at)("/api/session").status == 200
        for path in ("/api/session", "/api/events", "/api/pipelines/shop/log"):
            assert as_nobody(ASKING, str(urlsplit(at).port), path) == "401\n"


def test_a_connection_that_another_user_has_closed_is_not_taken_for_roots() -> None:
    """The kernel lists it under root."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        as_nobody(LEAVING, str(there.getsockname()[1]))
        connection, peer = there.accept()
        with connection:
            assert Access([], local=True).by_connection(peer, connection.getsockname()) is None


def test_who_needs_no_secret_gets_nothing_that_could_be_stolen(shop: Place) -> None:
    """Browsers send a cookie to all ports of a host, and another port may be another user's."""
    with console(shop.data) as at:
        for path in ("/", "/api/session", "/login"):
            assert "set-cookie" not in Asker(at)(path).headers


TRYING = """\
<!doctype html><title>evil</title>
<img src="{at}/favicon.svg"><img src="{at}/api/session"><script src="{at}/static/app.js"></script>
<iframe src="{at}/" id="framed"></iframe>
<form id="form" action="{at}/api/pipelines/shop/do" method="post" enctype="text/plain" target="answer">
<input name='{{"action":"pause","sink":"sales","to":"' value='"}}'></form>
<form id="login" action="{at}/login" method="post" target="other"><input name="secret" value="{anna}"></form>
<iframe name="answer"></iframe><iframe name="other"></iframe>
<a href="{at}/">to the console</a>
<script>
const heard = [];
const post = {{ method: "POST", body: '{{"action":"pause","sink":"sales"}}' }};
for (const options of [{{}}, {{ mode: "no-cors" }}, {{ credentials: "include" }}]) {{
  for (const [path, more] of [["/api/session", {{}}], ["/api/pipelines/shop/do", post]]) {{
    const asked = fetch("{at}" + path, {{ ...options, ...more }});
    asked.then(async (answer) => heard.push(await answer.text()), () => heard.push(""));
  }}
}}
const source = new EventSource("{at}/api/events");
source.onopen = () => heard.push("events");
source.onerror = () => heard.push("");
document.getElementById("form").submit();
document.getElementById("login").submit();
</script>
"""


@contextmanager
def elsewhere(page: str) -> Iterator[int]:
    """A server of somebody else on this machine; gives its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def answers(page: Page, at: str) -> Iterator[dict[tuple[str, str], set[int]]]:
    """What the network brings, also what the browser keeps from the page: statuses by method and path."""
    inside = page.context.new_cdp_session(page)
    asked: dict[str, tuple[str, str]] = {}
    given: dict[str, int] = {}
    found: dict[tuple[str, str], set[int]] = {}

    def sent(event: dict[str, Any]) -> None:
        request = event["request"]
        if request["url"].startswith(at):
            asked[event["requestId"]] = (request["method"], urlsplit(request["url"]).path)

    inside.on("Network.requestWillBeSent", sent)
    inside.on("Network.responseReceivedExtraInfo", lambda e: given.update({e["requestId"]: e["statusCode"]}))
    inside.send("Network.enable")
    yield found
    for key, request in asked.items():
        found.setdefault(request, set()).add(given.get(key, 0))


@pytest.mark.parametrize("name", ["127.0.0.1", "evil.localhost"], ids=["another port", "another site"])
def test_another_page_in_the_same_browser_gets_nothing_and_changes_nothing(
    shop: Place, users: Sequence[door.Credential], browser: Browser, name: str
) -> None:
    with (
        console(shop.data, Door("127.0.0.1:0", users)) as at,
        elsewhere(TRYING.format(at=at, anna=ANNA)) as port,
        closing(browser.new_page()) as page,
    ):
        with answers(page, at) as found:
            page.goto(f"http://{name}:{port}/")
            page.wait_for_function("heard.length >= 7")
            assert set(page.evaluate("heard")) == {""}, "no answer can be read"
            page.wait_for_load_state("networkidle")
        assert all(statuses == {403} for statuses in found.values()), found
        assert len(found) == 7, "page, picture, script, session, events, change, login"
        page.get_by_role("link", name="to the console").click()
        expect(page.locator(".node.bad"), "sales")
    assert shop.audit() == []


def test_under_the_name_of_another_site_it_does_not_answer(shop: Place, visit: Visit) -> None:
    """The name of a page of somebody else that leads to this machine, for the browser the same origin."""
    with console(shop.data) as at:
        page = visit(at.replace("127.0.0.1", "evil.localhost"))
        expect(page.locator("body"), "this console is not 'evil.localhost'")


def test_two_consoles_on_one_machine_do_not_take_each_others_sessions(
    shop: Place, users: Sequence[door.Credential], visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "connection_owner", lambda peer, here: None)
    with (
        console(shop.data, Door("127.0.0.1:0", users)) as one,
        console(shop.data, Door("127.0.0.1:0", users)) as two,
    ):
        page = visit(f"{one}/#/p/shop/sink/sales")
        for at in (one, two, one):
            page.goto(f"{at}/#/p/shop/sink/sales")
            if at != one or page.url.startswith(f"{at}/login"):
                page.get_by_label("Token or password").fill(ANNA)
                page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("heading", name="sales"))
            assert page.url == f"{at}/#/p/shop/sink/sales", "where one wanted to go"
        assert {cookie["name"] for cookie in page.context.cookies()} == {
            f"penstock-console-{urlsplit(at).port}" for at in (one, two)
        }


def test_who_logs_out_is_told_nothing_more_and_an_old_cookie_is_worth_nothing(
    shop: Place, users: Sequence[door.Credential], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "connection_owner", lambda peer, here: None)
    with console(shop.data, Door("127.0.0.1:0", users)) as at:
        anna = Asker(at)
        anna.log_in(ANNA)
        where = urlsplit(at)
        with socket.create_connection((where.hostname or "", where.port or 0)) as stream:
            lines = ("GET /api/events HTTP/1.1", f"Host: {where.netloc}", f"Cookie: {anna.headers['Cookie']}")
            stream.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
            told = stream.makefile("rb")
            while told.readline() != b"event: ready\n":
                pass
            assert anna("/api/pipelines/shop/do", PAUSE, X_Penstock_Csrf="").status == 403
            assert anna("/logout", {}).status == 200
            with shop.client() as client:
                Control(client, "shop").append(ControlEntry(now_us(), "somebody", "pause", "archive"))
            assert b"archive" not in told.read()
        assert anna("/api/session").status == 401
        assert anna("/api/pipelines/shop/do", PAUSE).status == 401


def test_a_viewer_can_do_none_of_all_that_can_be_done(shop: Place, users: Sequence[door.Credential]) -> None:
    sink = {"sink": "sales", "offset": 3, "offsets": [14], "to": "127.0.0.1:1"}
    with console(shop.data, Door("127.0.0.1:0", users)) as at:
        vic = Asker(at, {"Authorization": f"Bearer {VIC}"})
        for action in ("pause", "resume", "ack", "mark", "step", "dead-letter", "replay", "drop"):
            assert vic("/api/pipelines/shop/do", {"action": action, **sink}).status == 403
        for action in ("suspend", "reset-head"):
            wish = {"action": action, "sink": "pipelines/shop/log"}
            assert vic("/api/journals/do", wish).status == 403
        assert vic("/api/connectors/do", {"action": "migrate", **sink}).status == 403
    assert shop.audit() == []
    assert shop.held("sales").commit.watermark == 14
    with shop.client() as client:
        assert deeds(client) == []


def test_over_tls_nothing_is_said_in_the_open(
    shop: Place, users: Sequence[door.Credential], tmp_path: Path
) -> None:
    pair = Authority(tmp_path, "ca").pair("console")
    with console(shop.data, Door("0.0.0.0:0", users, False, pair.cert_file, pair.key_file)) as at:
        port = urlsplit(at).port or 0
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"HTTP" not in plain.recv(1000)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(("127.0.0.1", port)) as there, pytest.raises((ssl.SSLError, OSError)):
            old.wrap_socket(there)


@pytest.mark.parametrize(
    "header",
    ["Authorization: Bearer \xff\xfe", "X-Penstock-Csrf: \xff", "Cookie: \xff=\xff;;=", "Origin: http://["],
)
def test_headers_of_any_bytes_are_refused_and_not_a_fault(shop: Place, header: str) -> None:
    with console(shop.data) as at:
        where = urlsplit(at)
        with socket.create_connection((where.hostname or "", where.port or 0)) as there:
            request = f"POST /api/pipelines/shop/do HTTP/1.1\r\nHost: {where.netloc}\r\n{header}\r\n"
            there.sendall(f"{request}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode("latin-1"))
            assert re.match(rb"HTTP/1.1 40[013] ", there.makefile("rb").readline())


def test_connections_that_ask_nothing_are_limited_and_ended(
    shop: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of anybody on the machine took the descriptors of the run beside, which ended for want of them."""
    monkeypatch.setattr("penstock.console.serving._MOST_CONNECTIONS", 20)
    monkeypatch.setattr("penstock.console.serving._IDLE_SECONDS", 3.0)
    with console(shop.data) as at:
        where = urlsplit(at)
        idle = [socket.create_connection((where.hostname or "", where.port or 0)) for _ in range(40)]
        for one in idle[20:]:
            assert one.recv(1) == b"", "one too many is turned away at once"
        for one in idle[:20]:
            assert one.recv(1) == b"", "the others, after a while"
            one.close()
        assert Asker(at)("/api/session").status == 200


@pytest.mark.parametrize("path", ["trace/" + "9" * 5000, "dead/" + "9" * 5000, "trace/\u0663", "dead/-1"])
def test_a_number_that_is_none_is_not_found_and_not_a_fault(shop: Place, path: str) -> None:
    with console(shop.data) as at:
        assert Asker(at)(f"/api/pipelines/shop/{quote(path)}").status == 404


EVIL = "<img src=x onerror=\"window.owned='yes'\"><script>window.owned='yes'</script>"


def hostile(shop: Place, client: Client) -> None:
    """Content, names and reasons of somebody who would like to run something in the page of an operator."""
    text = json.dumps({EVIL: EVIL, "link": "javascript:window.owned='yes'"})
    shop.log(client, [Message(EVIL, text.encode(), ts=now_us(), mode=Mode.SYNC)])
    spark: dict[str, object] = {
        "version": EVIL,
        "master": EVIL,
        "app": EVIL,
        "ui": "javascript:window.owned='yes'",
        "queries": [],
    }
    run: Detail = {"run": "r9", "pid": 7, "host": EVIL, "file": EVIL}
    graph: dict[str, object] = {"nodes": [{"name": EVIL, "kind": "source", "what": EVIL}], "edges": []}
    beat: Detail = {**run, "spark": spark}
    soon = now_us() + 3_600_000_000
    control = Control(client, "shop")
    control.append(ControlEntry(soon, EVIL, "run-begin", None, {**run, "graph": graph}))
    control.append(ControlEntry(soon, EVIL, "run-beat", None, beat))
    control.append(ControlEntry(now_us(), EVIL, EVIL, "sales", {EVIL: EVIL}))


def test_what_others_have_written_is_text_and_nothing_else(shop: Place, visit: Visit) -> None:
    buried(shop, 3, error=EVIL)
    with EmbeddedBroker(shop.data) as broker, Client(broker.address) as client:
        hostile(shop, client)
        place = BrokerPlace(lambda: Client(broker.address), broker.address)
        with console(shop.data, reaching=place) as at:
            page = visit(f"{at}/")
            for path in ("", "p/shop", "p/shop/log", "p/shop/trace/16", "p/shop/dead", "p/shop/tap", "p/shop/record",
                         "p/shop/sink/sales", "spark", "journals"):  # fmt: skip
                page.goto(f"{at}/#/{path}")
                expect(page.get_by_role("heading", level=1))
                loaded(page)
                if path not in ("p/shop/sink/sales", "journals"):
                    expect(page.locator("#main"), "<img src=x")
                assert page.locator("#main img, #main script, #main a[href^='javascript:']").count() == 0
                assert page.evaluate("window.owned") is None


def test_the_password_of_a_store_is_not_shown(shop: Place) -> None:
    from penstock.journal.protocol import ApplyRequest
    from penstock.log.journals import journal_spec

    spec = journal_spec("kept/elsewhere", 1 << 20, {})
    spec.fragment.stores[:] = [
        "s3://bucket/?endpoint=http://anna:open-sesame@127.0.0.1:1/&secret=open-sesame"
    ]
    with shop.client() as client:
        client.apply([ApplyRequest.Change(expect_mod_revision=0, upsert=spec)])
    with console(shop.data) as at:
        ask = Asker(at)
        for path in ("/api/journals", "/api/journal?name=kept/elsewhere", "/api/health"):
            answer = ask(path)
            assert b"open-sesame" not in answer.body, path
            assert b"s3://bucket" in answer.body, path
