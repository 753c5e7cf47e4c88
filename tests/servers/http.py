"""A real web service for tests, a process of its own: keeps what is posted to it in files, one for each path.

It wants a token; refuses a batch with a document that has the number 666 (422); and answers as the file `answers` in
its directory says, one answer for each line, as long as there are any: `503`, or `429 1` to be asked again in a second.
What lies in a file `feed-NAME.jsonl` is served by pages, `GET /NAME?after=N`: `{"page": {"items": [...], "next": N}}`.

    with running(tmp_path) as server:
        post(server.uri + "/orders")
        server.kill(); server.start()       # as a crash: same data, same port
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from tests.servers.cache import UnavailableError, end_with_parent, missing
from tests.servers.ports import free_port

TOKEN = "not-to-be-shown"
PATIENCE = 30.0
PAGE = 50


class HttpServer:
    """One service, its data in `place`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        root = Path(__file__).parent.parent.parent
        program = "import sys; from tests.servers.http import serve; serve(int(sys.argv[1]), sys.argv[2])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(self.port), str(self.place)],
            cwd=root, preexec_fn=end_with_parent,
        )  # fmt: skip
        until = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise UnavailableError("the web service did not start") from None
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)
            self._process = None

    def answer(self, *answers: str) -> None:
        """Have the next requests answered so."""
        (self.place / "answers").write_text("".join(f"{one}\n" for one in answers))

    def taken(self, path: str) -> list[dict[str, object]]:
        """The requests that were taken at a path: their `key` and `rows`."""
        file = self.place / f"{quote(path, safe='')}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class _Handler(BaseHTTPRequestHandler):
    place: Path

    def do_OPTIONS(self) -> None:
        self._say(204 if self._may() else 401)

    def do_GET(self) -> None:
        if not self._may():
            return self._say(401)
        planned = self._planned()
        if planned:
            status, _, after = planned.partition(" ")
            return self._say(int(status), after)
        parts = urlsplit(self.path)
        file = self.place / f"feed-{parts.path[1:]}.jsonl"
        if not file.exists():
            return self._say(404)
        begin = int(parse_qs(parts.query).get("after", ["0"])[0])
        lines = [line for line in file.read_text().split("\n")[begin:] if line][:PAGE]
        body = f'{{"page": {{"items": [{", ".join(lines)}], "next": {begin + len(lines)}}}}}'
        return self._say(200, body=body.encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._may():
            return self._say(401)
        planned = self._planned()
        if planned:
            status, _, after = planned.partition(" ")
            return self._say(int(status), after)
        lines = self.headers["Content-Type"] == "application/x-ndjson"
        rows = [json.loads(line) for line in body.splitlines()] if lines else json.loads(body)
        if any(row.get("data", row).get("id") == 666 for row in rows):
            return self._say(422)
        file = self.place / f"{quote(self.path, safe='')}.jsonl"
        with file.open("a") as kept:
            kept.write(json.dumps({"key": self.headers["Idempotency-Key"], "rows": rows}) + "\n")
        return self._say(200)

    def _may(self) -> bool:
        return self.headers["Authorization"] == f"Bearer {TOKEN}"

    def _planned(self) -> str:
        file = self.place / "answers"
        first, _, rest = file.read_text().partition("\n") if file.exists() else ("", "", "")
        if first:
            file.write_text(rest)
        return first

    def _say(self, status: int, after: str = "", body: bytes = b"") -> None:
        self.send_response(status)
        if after:
            self.send_header("Retry-After", after)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is told."""


def serve(port: int, place: str) -> None:
    handler = type("Handler", (_Handler,), {"place": Path(place)})
    ThreadingHTTPServer(("127.0.0.1", port), handler).serve_forever()


@contextmanager
def running(place: Path) -> Iterator[HttpServer]:
    """A service in the empty directory `place`."""
    server = HttpServer(place)
    try:
        server.start()
    except UnavailableError as error:
        missing("web service", error)
    try:
        yield server
    finally:
        server.kill()
