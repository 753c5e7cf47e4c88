"""Who may come in, from where, and what that one may do."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from penstock.base import secrets
from penstock.base.errors import UsageError
from penstock.console import access as door
from penstock.console.access import OPERATOR, VIEWER, Access, connection_owner, credential, read_users
from penstock.console.serving import Door
from penstock.log.audit import deeds

from .asking import Asker
from .places import Place, console, stuck

PAUSE = {"action": "pause", "sink": "sales"}
FORM = "application/x-www-form-urlencoded"
TOKEN = "correct horse battery"


@pytest.fixture
def shop(tmp_path: Path) -> Place:
    return stuck(tmp_path)


def test_every_answer_says_what_a_browser_may_do_with_it(shop: Place) -> None:
    with console(shop.data) as at:
        ask = Asker(at)
        for path in (
            "/",
            "/static/app.js",
            "/api/session",
            "/api/nothing",
            "/login",
            "/static/../serving.py",
        ):
            answer = ask(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert ask("/static/../serving.py").status == 404
        assert ask("/static/..%2fserving.py").status == 404


def test_a_change_needs_the_secret_of_the_session_and_the_own_origin(shop: Place) -> None:
    with console(shop.data) as at:
        ask = Asker(at)
        ask.come_in()
        assert ask("/api/pipelines/shop/do", PAUSE, X_Penstock_Csrf="wrong").status == 403
        assert ask("/api/pipelines/shop/do", PAUSE, Origin="http://evil.example").status == 403
        assert ask("/api/pipelines/shop/do", PAUSE, Host="evil.example").status == 421
        assert Asker(at)("/api/pipelines/shop/do", PAUSE).status == 403
        assert ask("/api/pipelines/shop/do", raw=b"x" * 100_000).status == 413
        assert ask("/api/pipelines/shop/do", {"action": "explode"}).status == 400
        assert ask("/api/pipelines/shop/do", {**PAUSE, "surprise": 1}).status == 400
        assert ask("/api/pipelines/none/do", PAUSE).status == 400
        assert shop.audit() == []
        assert ask("/api/pipelines/shop/do", PAUSE, Origin=at).status == 200
    assert [entry.action for entry in shop.audit()] == ["pause"]


def test_others_log_in_and_a_viewer_changes_nothing(
    shop: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "connection_owner", lambda peer, here: 12345)
    users = tmp_path / "users"
    users.write_text(f"# who may\nanna operator {TOKEN.replace(' ', '-')}\nvic viewer looking-only-please\n")
    users.chmod(0o600)
    with console(shop.data, Door("127.0.0.1:0", read_users(users))) as at:
        stranger = Asker(at)
        assert stranger("/").headers["location"] == "/login"
        assert stranger("/api/session").status == 401
        assert stranger("/api/events").status == 401
        assert stranger("/login").status == 200
        assert (
            stranger("/login", raw=b"secret=wrong", Content_Type=FORM).headers["location"] == "/login?wrong"
        )
        vic = Asker(at)
        vic.log_in("looking-only-please")
        session = vic("/api/session").value
        assert (session["user"], session["role"]) == ("vic", VIEWER)
        assert vic("/api/pipelines/shop/plan", PAUSE).status == 200
        refused = vic("/api/pipelines/shop/do", PAUSE)
        assert (refused.status, refused.value["error"]) == (403, "vic may look, and change nothing")
        anna = Asker(at, {"Authorization": f"Bearer {TOKEN.replace(' ', '-')}"})
        assert anna("/api/pipelines/shop/do", PAUSE).status == 200
        assert vic("/logout", {}).status == 200
        assert vic("/api/session").status == 401
    assert [entry.who for entry in shop.audit()] == ["anna (console)"]
    secrets.forget_all()


def test_read_only_is_for_everybody(shop: Place) -> None:
    with console(shop.data, Door("127.0.0.1:0", read_only=True)) as at:
        ask = Asker(at)
        ask.come_in()
        assert ask("/api/session").value["role"] == VIEWER
        assert ask("/api/pipelines/shop/do", PAUSE).status == 403
        reset = {"action": "reset-head", "sink": "pipelines/shop/log"}
        assert ask("/api/journals/do", reset).status == 403
        assert ask("/api/connectors/do", {"action": "migrate", "sink": "web", "to": "h:1"}).status == 403
    with shop.client() as client:
        assert deeds(client) == []


def test_secrets_in_errors_and_messages_of_nodes_are_masked(shop: Place) -> None:
    secrets.register("hunter2hunter2")
    shop.file.write_text("raise RuntimeError('hunter2hunter2 is wrong')")
    with console(shop.data, files={"shop": str(shop.file)}) as at:
        ask = Asker(at)
        ask.come_in()
        for path in ("/api/pipelines/shop/trace/14", "/api/pipelines/shop/tap?node=slim"):
            answer = ask(path)
            assert b"hunter2" not in answer.body
            assert b"***" in answer.body
    secrets.forget_all()


@pytest.mark.parametrize(
    ("listening", "complaint"),
    [
        (Door("0.0.0.0:0"), "everybody could read and change"),
        (Door("0.0.0.0:0", [credential("operator", OPERATOR, TOKEN)]), "in the open"),
        (Door("[::]:0"), "everybody could read and change"),
        (Door("127.0.0.1"), "is not HOST:PORT"),
        (Door("127.0.0.1:0", cert_file=Path("x")), "a certificate and its key"),
    ],
)
def test_other_addresses_need_a_secret_and_tls(listening: Door, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        listening.options()


def test_too_many_wrong_secrets_are_not_answered_for_a_while_and_nobody_else_suffers() -> None:
    now, anna = 0.0, door.User("anna", OPERATOR)
    access = Access([credential("anna", OPERATOR, TOKEN)], local=False, clock=lambda: now)
    for host in ("10.0.0.1", "fd00::1"):
        for _ in range(10):
            assert access.by_secret("guess", host) is None
        assert access.locked(host)
        assert access.by_secret(TOKEN, host) is None
    assert access.locked("fd00::2"), "who has one address of a network has all"
    assert access.by_secret(TOKEN, "10.0.0.2") == access.by_secret(TOKEN, "fd00:0:0:1::1") == anna
    now = 61.0
    assert access.by_secret(TOKEN, "10.0.0.1") == anna
    secrets.forget_all()


def test_sessions_end_and_their_number_is_bounded() -> None:
    now = 0.0
    access = Access([], local=True, clock=lambda: now)
    first = access.begin(door.User("a", OPERATOR))
    assert access.session(first.id) == first
    for _ in range(1000):
        access.begin(door.User("a", OPERATOR))
    assert access.session(first.id) is None
    last = access.begin(door.User("a", OPERATOR))
    now = door.SESSION_SECONDS + 1
    assert access.session(last.id) is None
    assert access.session(None) is None


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
def test_the_kernel_tells_whose_connection_it_is(family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.socket(family) as listening:
        try:
            listening.bind((host, 0))
        except OSError:
            pytest.skip("no such address here")
        listening.listen()
        with socket.create_connection(listening.getsockname()[:2]) as client:
            mine, other = client.getsockname()[:2], client.getpeername()[:2]
            assert connection_owner(mine, other) == os.getuid()
            assert connection_owner((host, 1), other) is None
            client.shutdown(socket.SHUT_WR)
            assert connection_owner(mine, other) == os.getuid(), "it still reads"
        assert connection_owner(mine, other) is None, "one that was closed is nobody's, and not root's"


def test_only_the_own_user_and_root_need_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = (("127.0.0.1", 5000), ("127.0.0.1", 8400))
    owner: int | None = os.getuid()
    monkeypatch.setattr(door, "connection_owner", lambda peer, here: owner)
    assert Access([], local=True).by_connection(*ends) is not None
    assert Access([], local=False).by_connection(*ends) is None
    assert Access([], local=True).by_connection(("10.0.0.1", 1), ends[1]) is None
    owner = 0
    assert Access([], local=True).by_connection(*ends) is not None
    owner = 4242
    assert Access([], local=True).by_connection(*ends) is None
    owner = None
    assert Access([], local=True).by_connection(*ends) is None


@pytest.mark.parametrize(
    ("text", "mode", "complaint"),
    [
        ("anna operator", 0o600, "line 1: expected NAME"),
        ("anna king long-enough-secret", 0o600, "line 1: expected NAME"),
        ("anna operator short", 0o600, "at least 12 are needed"),
        ("", 0o600, "names no user"),
        ("anna operator long-enough-secret", 0o644, "can be read by others"),
    ],
)
def test_a_file_of_users_that_does_not_serve(tmp_path: Path, text: str, mode: int, complaint: str) -> None:
    file = tmp_path / "users"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(UsageError, match=complaint):
        read_users(file)
