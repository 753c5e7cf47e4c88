"""The reading half of `elasticsearch`: indices copied as they are at one moment, in the order of a field.

A point in time holds the index still for as long as a run reads it; a server too old for that is read as it changes.
Documents come sorted by `sort`, `_id` if not told otherwise, and the last value stands in the log: a copy that was
interrupted goes on behind it, with the index as it is then. There is nothing to follow: these servers do not tell
what changes.

The text of a message is the document as it was sent to the server, with its `_id` in front; the key is `{"_id": …}`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import msgspec

from penstock.adaptors.base import Batch, Copying, Found, Inspection, Source
from penstock.adaptors.elasticsearch import Elasticsearch
from penstock.adaptors.elasticsearch.client import Client, Kind, reason_of
from penstock.base.errors import UsageError
from penstock.log.message import Message, Mode, Op, Position, Resume

PAGE = 500
"""Documents of one answer; fewer if they are large."""

FIRST = 16
"""Documents of the first answer, which tells how large they are; the next ones have eight times as many at most."""

MOST_BYTES = 4 << 20
_KEEP = "5m"
_CONDITION = 'give a query in JSON, such as {"range": {"total": {"gt": 100}}}'


class _Hit(msgspec.Struct):
    _id: str
    sort: list[Any]
    _source: msgspec.Raw = msgspec.Raw(b"{}")


class _Hits(msgspec.Struct):
    hits: list[_Hit]


class _Page(msgspec.Struct):
    hits: _Hits
    pit_id: str | None = None


class _Index(msgspec.Struct):
    index: str
    count: str | None = msgspec.field(name="docs.count", default=None)


class SearchSource(Source):
    """Reads the indices of one cluster."""

    def __init__(self, settings: Elasticsearch) -> None:
        self._settings = settings
        self._copying: Sequence[Copying] = ()

    def namespaces(self) -> Sequence[str]:
        return [found.ns for found in self.inspect(lambda ns: True).namespaces]

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        with self._connected() as (client, _):
            return Inspection([Found(ns, rows, ("_id",)) for ns, rows in _indices(client)])

    def copying(self) -> Sequence[Copying]:
        return self._copying

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        conditions = {ns: _condition(ns, known) for ns, known in resume.items() if accept(ns)}
        with self._connected() as (client, kind):
            for ns, rows in _indices(client):
                known = resume.get(ns)
                if stop.is_set() or not accept(ns) or (known is not None and known.mode is not Mode.COPY):
                    continue
                after = known.position.get("after") if known is not None else None
                yield from self._copy(client, kind, ns, rows, after, conditions.get(ns), stop)

    def _copy(
        self,
        client: Client,
        kind: Kind,
        ns: str,
        rows: int | None,
        after: Any,
        query: Any,
        stop: threading.Event,
    ) -> Iterator[Batch]:
        copied, size = 0, min(FIRST, PAGE)
        with _held(client, kind, ns) as point:
            while not stop.is_set():
                page = self._page(client, ns, point, after, query, size)
                messages, read = [], 0
                now = time.time_ns() // 1000
                for hit in page:
                    messages.append(_message(ns, hit, now))
                    after, read = hit.sort, read + len(messages[-1].data)
                copied += len(messages)
                self._copying = [Copying(ns, copied, rows)]
                done = len(page) < size
                yield Batch(messages, {ns: _position(after)}, (ns,) if done else ())
                if done:
                    self._copying = ()
                    return
                size = max(1, min(PAGE, 8 * size, MOST_BYTES * len(messages) // max(1, read)))

    def _page(
        self, client: Client, ns: str, point: str | None, after: Any, query: Any, size: int
    ) -> list[_Hit]:
        body: dict[str, Any] = {
            "size": size,
            "sort": [{self._settings.sort: "asc"}],
            "query": query or {"match_all": {}},
            "track_total_hits": False,
        }
        if after is not None:
            body["search_after"] = after[:1]
        path = f"/{quote(ns)}/_search"
        if point is not None:
            body["pit"] = {"id": point, "keep_alive": _KEEP}
            path = "/_search"
        answer = client.ask("POST", path, body)
        if answer.status >= 400:
            raise UsageError(
                f"'{ns}' cannot be read in the order of '{self._settings.sort}': {reason_of(answer)}",
                hint="name a field in `sort` whose values are unique, of a type that can be sorted by",
            )
        return answer.read(_Page).hits.hits

    @contextmanager
    def _connected(self) -> Iterator[tuple[Client, Kind]]:
        client = Client(self._settings)
        try:
            yield client, client.kind()
        finally:
            client.close()


@contextmanager
def _held(client: Client, kind: Kind, ns: str) -> Iterator[str | None]:
    """The index as it is now, for as long as it is read; None if the server cannot hold it."""
    if not kind.has_points_in_time:
        yield None
        return
    opensearch = kind.distribution == "opensearch"
    path = f"/{quote(ns)}/_search/point_in_time" if opensearch else f"/{quote(ns)}/_pit"
    told = client.must("POST", f"{path}?keep_alive={_KEEP}").read(dict[str, Any])
    point = str(told["pit_id"] if opensearch else told["id"])
    try:
        yield point
    finally:
        if opensearch:
            client.ask("DELETE", "/_search/point_in_time", {"pit_id": [point]})
        else:
            client.ask("DELETE", "/_pit", {"id": point})


def _indices(client: Client) -> list[tuple[str, int | None]]:
    """All indices that are open and not the servers' own."""
    found = client.must("GET", "/_cat/indices?format=json&h=index,docs.count&expand_wildcards=open").read(
        list[_Index]
    )
    return sorted(
        (one.index, int(one.count) if one.count else None) for one in found if not one.index.startswith(".")
    )


def _message(ns: str, hit: _Hit, now: int) -> Message:
    id, text = msgspec.json.encode(hit._id), bytes(hit._source).strip()
    rest = text[1:].lstrip()
    data = b'{"_id":' + id + (b"," if rest != b"}" else b"") + rest
    return Message(ns, data, Op.INSERT, now, Mode.COPY, b'{"_id":' + id + b"}")


def _position(after: Any) -> Position:
    return {"after": after} if after is not None else {"after": None}


def _condition(ns: str, known: Resume) -> Any:
    if known.where is None:
        return None
    try:
        return msgspec.json.decode(known.where, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(
            f"the condition of the backfill of '{ns}' is not one: {known.where!r}: {error}", hint=_CONDITION
        ) from None
