"""Senders of posts for tests: one that posts once and tells the answer, and one that goes on until it is heard."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import uuid
import zlib
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

MOST_DOCUMENTS, MOST_BYTES = 400, 1024 * 1024
"""Of one post."""

AGAIN = 0.03
"""Seconds until a sender sends again."""


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def taken(self) -> object:
        return json.loads(self.text)["taken"]


def send(
    port: int, path: str, body: bytes = b"", *, method: str = "POST", timeout: float = 10.0,
    tls: ssl.SSLContext | None = None, **headers: str,
) -> Answer:  # fmt: skip
    """One request on a connection of its own; `x_name=` makes the header X-Name."""
    sent = {"Content-Type": "application/json"}
    sent |= {name.replace("_", "-").title(): value for name, value in headers.items()}
    connection: http.client.HTTPConnection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    if tls is not None:
        connection = http.client.HTTPSConnection("localhost", port, timeout=timeout, context=tls)
    try:
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.headers), answer.read().decode())
    finally:
        connection.close()


class Sender(threading.Thread):
    """Posts documents in their order, those that have gathered in one post, until it is taken or not wanted (404)."""

    def __init__(self, port: int, path: str, **headers: str) -> None:
        super().__init__(name=f"sender {path}", daemon=True)
        self._port, self._path, self._headers = port, path, headers
        self._documents: deque[bytes] = deque()
        self._over = threading.Event()
        self._some = threading.Event()

    @property
    def left(self) -> int:
        """Documents that were not taken yet."""
        return len(self._documents)

    def put(self, *documents: bytes) -> None:
        """Post these; kept compressed meanwhile, since the kit looks at the memory of this process."""
        self._documents.extend(zlib.compress(one, 1) for one in documents)
        self._some.set()

    def end(self) -> None:
        self._over.set()
        self._some.set()
        self.join()

    def run(self) -> None:
        while self._some.wait() and not self._over.is_set():
            self._some.clear()
            while self._documents and not self._over.is_set():
                self._post()

    def _post(self) -> None:
        some, size = list[bytes](), 0
        for document in list(self._documents):
            some.append(zlib.decompress(document))
            size += len(some[-1])
            if len(some) >= MOST_DOCUMENTS or size >= MOST_BYTES:
                break
        body, id = b"[" + b",".join(some) + b"]", uuid.uuid4().hex
        while not self._over.is_set() and not self._taken(body, id):
            self._over.wait(AGAIN)
        for _ in some:
            self._documents.popleft()

    def _taken(self, body: bytes, id: str) -> bool:
        try:
            headers = {**self._headers, "idempotency_key": id}
            answer = send(self._port, self._path, body, timeout=3.0, tls=None, **headers)
        except (OSError, http.client.HTTPException):
            return False
        return answer.status in (200, 404)
