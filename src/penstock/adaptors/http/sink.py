"""The writing half of `http`: posts batches, and waits for the answer to each before the next.

    answer                     means
    2xx                        taken
    408, 425, 429, 5xx, none   tried again a few times, as `Retry-After` says; then `AwayError`
    401, 403, 405, 407         `UsageError`: it is about the settings
    3xx, other 4xx             `RefusedError`: the bulk is delivered again message by message, which finds the one

At least once: a batch that was interrupted is posted again from its beginning, maybe cut otherwise. Each request has
an `Idempotency-Key` (log, generation, first and last offset), the same each time it is tried again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import msgspec

from penstock.adaptors.base import Finding, Guarantee, Order, Publisher, Sink, SinkPosition, Staged, Stager
from penstock.adaptors.http import Http
from penstock.adaptors.http.client import pool, silent
from penstock.adaptors.needs import need
from penstock.adaptors.parts import PartStager, Row, read_parts, rows_of
from penstock.base.errors import AwayError, PenstockError, RefusedError, UsageError
from penstock.base.secrets import mask

if TYPE_CHECKING:
    import urllib3

AGAIN = frozenset({408, 425, 429})
SETTINGS = frozenset({401, 403, 405, 407})
LONGEST_WAIT = 5.0
"""Seconds between two tries; a service that asks for more is away."""

_SHOWN = 300


class Post(NamedTuple):
    """One request."""

    url: str
    rows: Sequence[bytes]
    key: str


class HttpSink(Sink):
    """One web service."""

    order = Order.TOTAL
    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, settings: Http) -> None:
        self._settings = settings

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        publisher = HttpPublisher(self._settings)
        try:
            publisher.open(SinkPosition("", 0, 0))
        finally:
            publisher.close()
        return ()

    def stager(self) -> Stager:
        return PartStager()

    def publisher(self) -> Publisher:
        return HttpPublisher(self._settings)

    def staging(self, scratch: Path) -> Path:
        return scratch


class HttpPublisher(Publisher):
    """Posts what was staged, one request after the other."""

    def __init__(self, settings: Http) -> None:
        self._settings = settings
        self._pool: urllib3.PoolManager | None = None

    def open(self, start: SinkPosition) -> None:
        """Ask what the service allows, which changes nothing: it is there, and lets us in."""
        self.close()
        settings = self._settings
        self._pool = pool(settings)
        status, _, text = self._request("OPTIONS", self._url("x"), b"", {})
        if status in (401, 403, 407):
            raise UsageError(f"{settings.place} answers {status}: {text}", hint="see 'token' and 'headers'")
        if status >= 500 and status != 501:
            raise AwayError(f"{settings.place} answers {status}: {text}")

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        if self._pool is None:
            raise PenstockError(f"the sink of {self._settings.place} is not open")
        for post in self._posts(parts, position):
            self._send(post)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.clear()
            self._pool = None

    def _posts(self, parts: Sequence[Staged], position: SinkPosition) -> Iterator[Post]:
        """Requests for runs of messages of one url, cut between messages where the limits say."""
        settings = self._settings
        url, rows, size, first, last = "", list[bytes](), 0, -1, -1
        for row in (row for batch in read_parts(parts) for row in rows_of(batch)):
            full = size >= settings.max_bytes or len(rows) >= settings.max_count
            if rows and (self._url(row.ns) != url or (full and row.offset != last)):
                yield Post(url, rows, f"{position.log}/{position.generation}/{first}-{last}")
                rows, size = [], 0
            if not rows:
                url, first = self._url(row.ns), row.offset
            last = row.offset
            rows.append(self._text(row))
            size += len(rows[-1])
        if rows:
            yield Post(url, rows, f"{position.log}/{position.generation}/{first}-{last}")

    def _url(self, ns: str) -> str:
        return self._settings.uri.replace("{ns}", quote(ns, safe=""))

    def _text(self, row: Row) -> bytes:
        """One message, on one line: in the strings of a JSON text there are no line ends."""
        data = (row.data or b"{}").replace(b"\r", b" ").replace(b"\n", b" ")
        if not self._settings.envelope:
            return data
        fields: dict[str, object] = {"op": row.op, "ns": row.ns, "offset": row.offset, "ts": row.ts}
        fields |= {} if row.key is None else {"key": msgspec.Raw(row.key)}
        fields |= {} if row.old_key is None else {"old_key": msgspec.Raw(row.old_key)}
        return msgspec.json.encode({**fields, "data": msgspec.Raw(data)}).replace(b"\n", b" ")

    def _send(self, post: Post) -> None:
        lines = self._settings.format == "lines"
        body = b"\n".join(post.rows) + b"\n" if lines else b"[" + b",".join(post.rows) + b"]"
        kind = "application/x-ndjson" if lines else "application/json"
        headers = {"Content-Type": kind, "Idempotency-Key": post.key}
        for attempt in range(1, self._settings.attempts + 1):
            last = attempt == self._settings.attempts
            try:
                status, after, text = self._request("POST", post.url, body, headers)
            except AwayError:
                if last:
                    raise
                status, after, text = 0, None, ""
            if 200 <= status < 300:
                return
            if status and status not in AGAIN and status < 500:
                raise self._refused(status, text)
            wait = min(2.0**attempt / 10, LONGEST_WAIT) if after is None else after
            if last or wait > LONGEST_WAIT:
                raise AwayError(f"{self._settings.place} answers {status}: {text}")
            time.sleep(wait)

    def _refused(self, status: int, text: str) -> PenstockError:
        what = f"{self._settings.place} answers {status}: {text}"
        if status in SETTINGS:
            return UsageError(what, hint="see 'uri', 'token' and 'headers'")
        return RefusedError(what)

    def _request(
        self, method: str, url: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, float | None, str]:
        """Status, seconds of `Retry-After`, and the beginning of the text of an answer."""
        settings, library = self._settings, need("urllib3", "http")
        sent = {"User-Agent": "penstock", **settings.headers, **headers}
        sent |= {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
        assert self._pool is not None
        try:
            answer = self._pool.request(method, url, body=body, headers=sent, redirect=False)
        except (library.exceptions.HTTPError, OSError) as error:
            raise silent(settings, error) from None
        text = mask(answer.data[:_SHOWN].decode(errors="replace").strip()) or str(answer.reason)
        asked = answer.headers.get("Retry-After", "")
        return answer.status, float(asked) if asked.isdecimal() else None, text
