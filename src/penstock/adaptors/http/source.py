"""The reading half of `http`: a JSON API, page after page by its cursor, and then again every while.

The position is `{"cursor": TEXT, "taken": n, "page": m}`: the cursor that the next request carries; how many documents
of the page behind it are in the log already, which is more than none where an answer has documents and no further
cursor; and how long pages are. A page and the cursor behind it are logged in one append. That is exactly once as far
as the API is: the same cursor has to give the same documents in the same order, and new ones behind them.

A document that is no JSON object is kept among the dead letters. An answer that is no JSON, or has no array where the
settings say that the documents are, is an error. The copy is over with a page that is shorter than one before it, or
when there is no more; what comes behind it is followed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from penstock.adaptors.base import Bad, Batch, Found, Inspection, Source, refuse_conditions
from penstock.adaptors.documents import key_of
from penstock.adaptors.formats.lines import fault
from penstock.adaptors.http import Http
from penstock.adaptors.http.client import pool, silent
from penstock.adaptors.needs import need
from penstock.base.errors import AwayError, PenstockError, UsageError
from penstock.base.secrets import mask
from penstock.log.message import Message, Mode, Op, Position, Resume

if TYPE_CHECKING:
    import urllib3

AGAIN = frozenset({408, 425, 429})
_KEPT = 1024 * 1024
_SHOWN = 300


class _Known(msgspec.Struct):
    """A position as the log gives it back."""

    cursor: str = ""
    taken: int = 0
    page: int = 0
    """The most documents that a page has had, while it is copied: a shorter one is the last of the copy."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: its documents, and the cursor of the next one if it names any."""

    items: Sequence[msgspec.Raw]
    cursor: str


class PollSource(Source):
    """Reads one address."""

    def __init__(self, settings: Http) -> None:
        self._settings = settings

    def namespaces(self) -> Sequence[str]:
        with pool(self._settings) as connections:
            self._page(connections, "")
        return [self._settings.ns]

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        return Inspection([Found(ns, None, self._settings.key) for ns in self.namespaces()])

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        refuse_conditions("http", accept, resume)
        ns = self._settings.ns
        if not accept(ns):
            return
        known = resume.get(ns)
        at = msgspec.convert(known.position, _Known) if known is not None else _Known()
        copying = known is None or known.mode is Mode.COPY
        with pool(self._settings) as connections:
            ahead: Page | None = None
            while not stop.is_set():
                page, ahead = ahead or self._page(connections, at.cursor), None
                after = _after(page, at)
                if copying and after.cursor != at.cursor:
                    ahead = self._page(
                        connections, after.cursor
                    )  # so that the last page tells that it is the last
                if len(page.items) > at.taken:
                    last = ahead is None or not ahead.items or len(page.items) < at.page
                    yield self._batch(
                        page, at, after, Mode.COPY if copying else Mode.SYNC, ends=copying and last
                    )
                    copying = copying and not last
                moved, at = after.cursor != at.cursor, after
                if moved and (page.items or not self._settings.tail):
                    continue  # a cursor may also move with time alone: where nothing comes, it is asked every while
                if copying:
                    copying = False
                    yield Batch(positions={ns: _position(at)}, completed=[ns])
                if not self._settings.tail:
                    return
                stop.wait(self._settings.interval)

    def _batch(self, page: Page, at: _Known, after: _Known, mode: Mode, *, ends: bool) -> Batch:
        """What a page has that is not logged."""
        messages: list[Message] = []
        bad: list[Bad] = []
        now = time.time_ns() // 1000
        for number, raw in enumerate(page.items[at.taken :], at.taken):
            data = bytes(raw)
            wrong = fault(data)
            if wrong is None:
                try:
                    key = key_of(data, self._settings.key) if self._settings.key else None
                    messages.append(Message(self._settings.ns, data, Op.INSERT, now, mode, key))
                    continue
                except ValueError as error:
                    wrong = str(error)
            place = f"{self._settings.place}, cursor {at.cursor or 'none'}, document {number + 1}"
            bad.append(Bad(self._settings.ns, place, wrong, data[:_KEPT]))
        ns = self._settings.ns
        return Batch(messages, {ns: _position(after)}, [ns] if ends else (), bad=bad)

    def _page(self, connections: urllib3.PoolManager, cursor: str) -> Page:
        settings, library = self._settings, need("urllib3", "http")
        url = settings.uri
        if cursor:
            url += ("&" if "?" in url else "?") + urlencode({settings.parameter: cursor})
        headers = {"User-Agent": "penstock", "Accept": "application/json", **settings.headers}
        headers |= {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
        try:
            answer = connections.request("GET", url, headers=headers, redirect=False, preload_content=False)
            body = answer.read(settings.max_answer + 1)
            answer.release_conn()
        except (library.exceptions.HTTPError, OSError) as error:
            raise silent(settings, error) from None
        if len(body) > settings.max_answer:
            raise PenstockError(
                f"{settings.place} answers with more than {settings.max_answer} bytes",
                hint="ask it for smaller pages, or see the setting 'max_answer'",
            )
        if answer.status != 200:
            raise self._error(answer.status, answer.headers.get("Retry-After", ""), body)
        return self._parsed(body)

    def _error(self, status: int, after: str, body: bytes) -> PenstockError:
        text = mask(body[:_SHOWN].decode(errors="replace").strip())
        what = f"{self._settings.place} answers {status} {text}".rstrip()
        if status in AGAIN or status >= 500:
            return AwayError(f"{what}; it asks to wait for {_wait(after)}" if after else what)
        return UsageError(what, hint="see 'uri', 'token' and 'headers'")

    def _parsed(self, body: bytes) -> Page:
        try:
            items = msgspec.json.decode(_at(body, self._settings.items), type=list[msgspec.Raw])
            cursor = b""
            if self._settings.cursor:
                cursor = bytes(_at(body, self._settings.cursor, missing=b"null"))
            if cursor in (b"", b"null", b'""', b"false"):
                return Page(items, "")
            text = msgspec.json.decode(cursor, type=str) if cursor.startswith(b'"') else cursor.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError) as error:
            raise PenstockError(
                f"{self._settings.place} answers with something else than expected: {error}",
                hint="see the settings 'items' and 'cursor'",
            ) from None
        return Page(items, text)


def _after(page: Page, at: _Known) -> _Known:
    """Where to go on behind a page: at its cursor; or, if it has none that is new, behind its documents."""
    if page.cursor and page.cursor != at.cursor:
        return _Known(page.cursor, 0, max(at.page, len(page.items)))
    return _Known(at.cursor, max(at.taken, len(page.items)), at.page)


def _at(body: bytes, path: str, missing: bytes | None = None) -> bytes:
    """The text of the value at a path of fields."""
    for name in path.split(".") if path else ():
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        if name not in fields and missing is not None:
            return missing
        if name not in fields:
            raise LookupError(f"there is no field '{name}'")
        body = bytes(fields[name])
    return body


def _wait(after: str) -> str:
    if after.isdigit():
        return f"{after} s"
    try:
        return f"until {parsedate_to_datetime(after).isoformat()}"
    except ValueError:
        return "a while"


def _position(at: _Known) -> Position:
    return {"cursor": at.cursor, "taken": at.taken, "page": at.page}
