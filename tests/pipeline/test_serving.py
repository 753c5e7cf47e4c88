"""What a run tells over HTTP."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.base.errors import UsageError
from penstock.pipeline.progress import NodeProgress, Progress
from penstock.pipeline.serving import not_ready, serving

SOURCE = NodeProgress("db", "source", "sqlite", "running", messages_in=7, delivered=7)
SINK = NodeProgress(
    "audit",
    "sink",
    "file",
    "running",
    messages_in=7,
    delivered=4,
    dropped=1,
    dead=1,
    pending=1,
    lag=1,
    lag_bytes=99,
)
RUNNING = Progress("shop", 1.0, "running", 7, [SOURCE, SINK], log_bytes=500, log_limit=1000)


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_are_what_prometheus_reads() -> None:
    with serving("127.0.0.1:0", lambda: RUNNING) as address:
        assert address is not None
        code, page = get(address, "/metrics")
    assert code == 200
    samples = {
        (sample.name, sample.labels.get("node")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["penstock_node_messages_in_total", "audit"] == 7
    assert samples["penstock_node_messages_out_total", "audit"] == 4
    assert samples["penstock_node_messages_dropped_total", "audit"] == 1
    assert samples["penstock_node_messages_dead_total", "audit"] == 1
    assert samples["penstock_node_lag_bytes", "audit"] == 99
    assert samples["penstock_log_bytes", None] == 500


def test_status_is_the_progress() -> None:
    with serving("127.0.0.1:0", lambda: RUNNING) as address:
        assert address is not None
        code, page = get(address, "/status")
    told = json.loads(page)
    assert (code, told["pipeline"], told["nodes"][1]["node"]) == (200, "shop", "audit")


@pytest.mark.parametrize(
    ("progress", "reason"),
    [
        (RUNNING, None),
        (replace(RUNNING, phase="opening"), "opening"),
        (replace(RUNNING, phase="stopping"), "stopping"),
        (replace(RUNNING, nodes=[SOURCE, replace(SINK, state="away")]), "sink 'audit' is away"),
        (replace(RUNNING, nodes=[SOURCE, replace(SINK, state="stopped")]), "sink 'audit' is stopped"),
        (replace(RUNNING, readers="the log is at its limit"), "the log is at its limit"),
        (replace(RUNNING, nodes=[SOURCE, replace(SINK, state="paused")]), None),
    ],
)
def test_ready_says_why_not(progress: Progress, reason: str | None) -> None:
    assert not_ready(progress) == reason
    with serving("127.0.0.1:0", lambda: progress) as address:
        assert address is not None
        code, text = get(address, "/ready")
    assert (code, text.strip()) == (200, "ready") if reason is None else (503, reason)


def test_other_paths_and_nonsense_are_refused_and_the_next_request_is_served() -> None:
    with serving("127.0.0.1:0", lambda: RUNNING) as address:
        assert address is not None
        assert get(address, "/etc/passwd")[0] == 404
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(b"\x00\xff nonsense\r\n\r\n")
            raw.recv(100)
        assert get(address, "/ready")[0] == 200


def test_an_address_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"), serving("nonsense", lambda: RUNNING):
        pass
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="cannot listen"), serving(f"127.0.0.1:{port}", lambda: RUNNING):
            pass


def test_who_sends_a_byte_now_and_then_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few such clients took all connections there are, for ever, and the run was taken for dead."""
    monkeypatch.setattr("penstock.pipeline.serving._TIMEOUT", 0.3)
    with serving("127.0.0.1:0", lambda: RUNNING) as address:
        assert address is not None
        host, port = address.split(":")
        slow = [socket.create_connection((host, int(port)), timeout=0.05) for _ in range(32)]
        deadline = time.monotonic() + 30
        while slow:
            assert time.monotonic() < deadline, f"{len(slow)} are still connected"
            slow = [one for one in slow if drips(one)]
        assert get(address, "/ready")[0] == 200


def drips(client: socket.socket) -> bool:
    """Send one more byte; whether the server still listens."""
    try:
        client.sendall(b"G")
        return client.recv(100) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize("port", ["8\u00b2", "65536", "-1", ""])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"), serving(f"127.0.0.1:{port}", lambda: RUNNING):
        pass


def test_an_address_of_IPv6_stands_in_brackets() -> None:
    with serving("[::1]:0", lambda: RUNNING) as address:
        assert address is not None
        assert address.startswith("[::1]:")
        assert get(address, "/ready")[0] == 200


def test_no_address_serves_nothing() -> None:
    with serving(None, lambda: RUNNING) as address:
        assert address is None
