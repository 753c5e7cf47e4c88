"""Plain HTTP to a console."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)


@dataclass
class Asker:
    """One who asks."""

    address: str
    headers: dict[str, str] = field(default_factory=dict)

    def __call__(self, path: str, body: object = None, *, raw: bytes | None = None, **headers: str) -> Answer:
        parts = urlsplit(self.address)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        sent = raw if raw is not None else json.dumps(body).encode() if body is not None else None
        given = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        try:
            connection.request("POST" if sent is not None else "GET", path, sent, given)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def come_in(self) -> None:
        """As the page does: take the second secret, without which nothing is changed."""
        self.headers["X-Penstock-Csrf"] = self("/api/session").value["csrf"]

    def log_in(self, secret: str) -> None:
        """By the form: take the cookie, which no script may read and no other site's page may send."""
        form = {"Content_Type": "application/x-www-form-urlencoded"}
        cookie = self("/login", raw=f"secret={secret}".encode(), **form).headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        self.headers["Cookie"] = cookie.partition(";")[0]
        self.come_in()
