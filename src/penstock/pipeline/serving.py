"""What a run tells over HTTP: `/metrics` for Prometheus, `/ready` for whoever starts it, `/status` for programs.

Reading only, so nothing here can disturb the run; it listens on the loopback interface unless told otherwise, and
carries no message and no setting. A client that is slow is cut off, no more than a few are served at once, and
connections beyond that are closed before they cost the run a thread and a descriptor.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.base.errors import UsageError
from penstock.pipeline.progress import Progress

log = logging.getLogger(__name__)

_TIMEOUT = 5.0
_AT_ONCE = 8
_CONNECTIONS = 32
_COUNTERS = {
    "in": ("messages_in", "Messages that a node was to take."),
    "out": ("delivered", "Messages that left a node: delivered by a sink, let through by a function."),
    "dropped": ("dropped", "Messages that a filter or function left out."),
    "dead": ("dead", "Messages that became dead letters, or that a function refused."),
}
_GAUGES = {
    "lag_messages": ("lag", "Messages of the log that a sink has not acknowledged."),
    "lag_bytes": ("lag_bytes", "Bytes of the log that a sink has not acknowledged."),
    "lag_seconds": ("lag_seconds", "Age of the oldest message that a sink has not acknowledged."),
    "rate": ("rate", "Messages a second, over the last few seconds."),
}


@contextmanager
def serving(address: str | None, progress: Callable[[], Progress]) -> Iterator[str | None]:
    """Serve at HOST:PORT (port 0: any that is free) for the time of the block; gives the address in use."""
    if address is None:
        yield None
        return
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(
            f"'{address}' is not HOST:PORT", hint="for example --http 127.0.0.1:8401, or --http off"
        )
    try:
        server = _Server((host.strip("[]") or "127.0.0.1", int(port)), progress)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {address}: {error.strerror}", hint="give another --http HOST:PORT"
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    try:
        yield f"{host or '127.0.0.1'}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


_Request = socket.socket | tuple[bytes, socket.socket]
_Address = object


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], progress: Callable[[], Progress]) -> None:
        self.progress = progress
        self.room = threading.BoundedSemaphore(_AT_ONCE)
        self._connections = threading.BoundedSemaphore(_CONNECTIONS)
        self._since: dict[_Request, float] = {}
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def process_request(self, request: _Request, client_address: _Address) -> None:
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: _Request, client_address: _Address) -> None:
        self._since[request] = time.monotonic()
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._since[request]
            self._connections.release()

    def service_actions(self) -> None:
        """Cut off who has been here for too long: to its timeout, a byte now and then is news."""
        for request, since in list(self._since.items()):
            if isinstance(request, socket.socket) and time.monotonic() - since > _TIMEOUT:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: _Request, client_address: _Address) -> None:
        """A client that goes away in the middle is nothing to print a traceback for."""
        log.debug("a request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT
    server: _Server

    def do_GET(self) -> None:
        if not self.server.room.acquire(blocking=False):
            self._answer(503, "text/plain", b"busy\n")
            return
        try:
            self._get(self.path.partition("?")[0])
        finally:
            self.server.room.release()

    def do_HEAD(self) -> None:
        self.do_GET()

    def _get(self, path: str) -> None:
        progress = self.server.progress()
        if path == "/metrics":
            self._answer(200, "text/plain; version=0.0.4; charset=utf-8", metrics(progress))
        elif path == "/status":
            self._answer(200, "application/json", msgspec.json.encode(progress))
        elif path == "/ready":
            reason = not_ready(progress)
            self._answer(200 if reason is None else 503, "text/plain", f"{reason or 'ready'}\n".encode())
        else:
            self._answer(404, "text/plain", b"there are /metrics, /ready and /status\n")

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: requests come every few seconds and tell nobody anything."""


def not_ready(progress: Progress) -> str | None:
    """Why the run does not do its work; None if it does."""
    if progress.phase in ("opening", "stopping"):
        return progress.phase
    for node in progress.nodes:
        if node.state in ("stopped", "away", "restarting", "retrying", "detached"):
            return f"{node.kind} '{node.node}' is {node.state}"
    return progress.readers


def metrics(progress: Progress) -> bytes:
    """The page of `/metrics`, in the text format."""
    registry = CollectorRegistry()
    registry.register(_Numbers(progress))
    return generate_latest(registry)


class _Numbers(Collector):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def collect(self) -> Iterator[Metric]:
        names = ["pipeline", "node", "kind"]
        pipeline, nodes = self._progress.pipeline, self._progress.nodes
        for name, (attribute, help_text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"penstock_node_messages_{name}", help_text, labels=names)
            for node in nodes:
                counter.add_metric([pipeline, node.node, node.kind], getattr(node, attribute))
            yield counter
        for name, (attribute, help_text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"penstock_node_{name}", help_text, labels=names)
            for node in nodes:
                gauge.add_metric([pipeline, node.node, node.kind], getattr(node, attribute))
            yield gauge
        yield from self._of_the_source()
        state = GaugeMetricFamily(
            "penstock_node_state", "1 for the state that a node is in.", labels=[*names, "state"]
        )
        for node in nodes:
            state.add_metric([pipeline, node.node, node.kind, node.state], 1)
        yield state
        for name, value, help_text in (
            ("log_bytes", self._progress.log_bytes, "Bytes that the commit log holds."),
            ("log_limit_bytes", self._progress.log_limit or 0, "Size at which the source pauses."),
            ("log_next_offset", self._progress.log_next, "Offset of the next message."),
            ("readers_paused", self._progress.readers is not None, "Whether the source waits for room."),
        ):
            one = GaugeMetricFamily(f"penstock_{name}", help_text, labels=["pipeline"])
            one.add_metric([pipeline], float(value))
            yield one

    def _of_the_source(self) -> Iterator[Metric]:
        """What a source measures by itself, each under a name of its own; and how far its copies are."""
        pipeline, nodes = self._progress.pipeline, self._progress.nodes
        for name in sorted({name for node in nodes for name in node.gauges}):
            safe = re.sub(r"[^a-zA-Z0-9_]", "_", name)
            gauge = GaugeMetricFamily(
                f"penstock_source_{safe}",
                "What the adaptor measures.",
                labels=["pipeline", "node", "adaptor"],
            )
            for node in nodes:
                if name in node.gauges:
                    gauge.add_metric([pipeline, node.node, node.adaptor], node.gauges[name])
            yield gauge
        labels = ["pipeline", "node", "ns"]
        rows = GaugeMetricFamily("penstock_copy_rows", "Rows of a copy that were read.", labels=labels)
        total = GaugeMetricFamily("penstock_copy_rows_expected", "About how many rows it has.", labels=labels)
        for node in nodes:
            for copy in node.copies:
                rows.add_metric([pipeline, node.node, copy.ns], copy.rows)
                if copy.of is not None:
                    total.add_metric([pipeline, node.node, copy.ns], copy.of)
        yield from (rows, total)
