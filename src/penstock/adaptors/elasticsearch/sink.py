"""The writing half of `elasticsearch`: documents indexed and deleted in bulks, each with a version from the log.

A document always takes the place of the one before: fields that are gone at the source are gone here. The server
compares versions, so what comes again, late, or from a task that should be dead changes nothing that is newer. After
a delete it remembers the version for `index.gc_deletes` (60 s): an older state that is delivered again after that
shows until its delete comes again as well, in the same run.

Every item of a bulk has its own answer. One that the cluster has no room for is sent again, a few times, later each
time; one that it refuses stops the sink with the offset of its message.

The position stands in an index of its own, `penstock` if not told otherwise, under the name of the sink. It moves
after the documents, so the guarantee is at least once; and by the versions, writing twice comes to the same.

With the position stands which namespace has which index: names of indices have no capitals, so two namespaces that
differ in case alone would share one, and write over each other's documents. The second is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from penstock.adaptors.base import (
    Finding,
    Guarantee,
    Order,
    Publisher,
    Refusal,
    Sink,
    SinkPosition,
    Staged,
    Stager,
)
from penstock.adaptors.continuing import continued
from penstock.adaptors.elasticsearch import Elasticsearch
from penstock.adaptors.elasticsearch.client import BUSY, Answer, Client, reason, reason_of
from penstock.adaptors.elasticsearch.rows import (
    COLUMNS,
    WRITES,
    Action,
    Row,
    actions_of,
    default_index,
    index_of,
    is_truncate,
    problem_of,
    rows_of,
    version_of,
)
from penstock.adaptors.parts import PartStager, read_parts
from penstock.base.errors import AwayError, PenstockError, RefusedError, UsageError
from penstock.log.values import ValuesError

if TYPE_CHECKING:
    import pyarrow as pa

PAUSES = (0.1, 0.4, 1.6, 3.2)
"""Seconds before items that found no room are sent again; after the last one the cluster counts as away."""

_AUTO = "action.auto_create_index"
_BLOCKS = ("index.blocks.write", "index.blocks.read_only", "index.blocks.read_only_allow_delete")
_KEEP = "2m"
_OTHER_INDEX = "name an index for one of them in the setting `indices`"
_CONFLICT = 409
"""The server has a newer version: the message is older than what is there."""


class SearchSink(Sink):
    """Indices of one cluster."""

    order = Order.PER_KEY
    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, settings: Elasticsearch) -> None:
        self._settings = settings

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        client = Client(self._settings)
        try:
            client.kind()
            given = namespaces or ()
            return [*self._shared(given), *(found for ns in given for found in self._index(client, ns))]
        finally:
            client.close()

    def _shared(self, namespaces: Sequence[str]) -> Iterator[Finding]:
        """Namespaces that would have the same index."""
        first: dict[str, str] = {}
        for ns in namespaces:
            index = default_index(self._settings, ns)
            if index is not None and (other := first.setdefault(index, ns)) != ns:
                yield Finding(_taken(ns, index, other), _OTHER_INDEX, fatal=True)

    def _index(self, client: Client, ns: str) -> Iterator[Finding]:
        """Whether the index of a namespace is there or will be, and takes documents."""
        try:
            index = index_of(self._settings, ns)
        except ValuesError as error:
            yield Finding(error.message, fatal=True)
            return
        answer = client.ask("GET", f"/{quote(index)}/_settings?flat_settings=true")
        if answer.status == 404:
            if ns not in self._settings.mappings and not _makes(client, index):
                what = f"there is no index '{index}', and the cluster makes none of that name by itself"
                yield Finding(what, f"PUT /{index}", fatal=True)
            return
        for told in answer.read(dict[str, _Settings]).values() if answer.status == 200 else ():
            for block in [name for name in _BLOCKS if told.settings.get(name) == "true"]:
                fix = f'PUT /{index}/_settings {{"{block}": null}}'
                yield Finding(f"index '{index}' takes no documents: {block} is set", fix, fatal=True)

    def stager(self) -> Stager:
        return PartStager(Check(self._settings))

    def publisher(self) -> Publisher:
        return SearchPublisher(self._settings, self.name)

    def staging(self, scratch: Path) -> Path:
        return scratch


def _makes(client: Client, index: str) -> bool:
    """Whether an index of this name is made with its first document, by the cluster's settings."""
    told = client.must("GET", "/_cluster/settings?include_defaults=true&flat_settings=true").read(_Cluster)
    rule = next(
        (found[_AUTO] for found in (told.transient, told.persistent, told.defaults) if _AUTO in found), "true"
    )
    for pattern in rule if isinstance(rule, list) else str(rule).split(","):
        allowed, name = not pattern.startswith("-"), pattern.lstrip("+-").strip()
        if name in ("true", "false"):
            return name == "true"
        if fnmatchcase(index, name):
            return allowed
    return False


class Check:
    """Names, in the task, the messages that can never be documents."""

    def __init__(self, settings: Elasticsearch) -> None:
        self._settings = settings

    def __call__(self, batch: pa.RecordBatch) -> Sequence[Refusal]:
        found = ((row, problem_of(row, self._settings)) for row in rows_of(batch))
        return [Refusal(row.offset, row.ns, problem, "") for row, problem in found if problem is not None]


class SearchPublisher(Publisher):
    """Sends what was staged."""

    def __init__(
        self, settings: Elasticsearch, name: str, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._settings, self._name, self._pause = settings, name, pause
        self._client: Client | None = None
        self._made: set[str] = set()
        """The namespaces whose indices are there, or will be with their first document, and are theirs."""
        self._owners: dict[str, str] = {}
        """The namespaces of indices that no setting names."""

    def open(self, start: SinkPosition) -> SinkPosition:
        self.close()
        self._client = client = Client(self._settings)
        self._made.clear()
        self._owners.clear()
        try:
            client.kind()
            answer = client.ask("GET", self._place())
            if answer.status >= 400 and answer.status != 404:
                raise PenstockError(f"{self._settings.shown}: cannot read the position: {reason_of(answer)}")
            known = answer.read(_Kept) if answer.status == 200 else None
            if known is None:
                self._keep(start)
                return start
            self._owners.update(known._source.owners)
            return self._continued(known._source, start)
        except PenstockError:
            self.close()
            raise

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        if self._client is None:
            raise PenstockError(f"the sink '{self._name}' is not open")
        try:
            bulk: list[Action] = []
            size = 0
            for batch in read_parts(parts, COLUMNS):
                for row in rows_of(batch):
                    if row.op == "command" and is_truncate(row):
                        self._send(bulk)
                        bulk, size = [], 0
                        self._empty(row, position)
                    elif row.op in WRITES:
                        for action in actions_of(row, self._settings, position.log, position.generation):
                            bulk.append(action)
                            size += len(action.body or b"") + 200
                        if size >= self._settings.bulk_bytes or len(bulk) >= self._settings.bulk_rows:
                            self._send(bulk)
                            bulk, size = [], 0
            self._send(bulk)
            self._keep(position)
        except PenstockError:
            self.close()
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _send(self, actions: list[Action]) -> None:
        """One bulk; items that found no room go again. Of a key, only the last action in a bulk is sent."""
        for action in actions:
            self._make(action.ns, action.index)
        left = list({(action.index, action.id): action for action in actions}.values())
        for pause in (*PAUSES, None):
            if not left:
                return
            left, why = self._sent(left)
            if left and pause is None:
                raise AwayError(f"{self._settings.shown} has no room for {len(left)} documents: {why}")
            if left and pause is not None:
                self._pause(pause)

    def _sent(self, actions: list[Action]) -> tuple[list[Action], str]:
        """Send a bulk; tells which of its items found no room, and why. One that is refused ends it."""
        assert self._client is not None
        answer = self._client.ask("POST", "/_bulk", lines=b"".join(action.lines() for action in actions))
        if answer.status >= 400:
            raise RefusedError(f"{self._settings.shown} refused a bulk: {reason_of(answer)}")
        items = answer.read(_Bulk).items
        if len(items) != len(actions):
            raise PenstockError(f"a bulk of {len(actions)} was answered with {len(items)} items")
        busy, why, refused = [], "", []
        for action, item in zip(actions, items, strict=True):
            (told,) = item.values()
            if told.status in BUSY:
                busy.append(action)
                why = reason(told.error)
            elif told.status >= 300 and told.status not in (404, _CONFLICT):
                refused.append((action, told))
        if refused:
            action, told = refused[0]
            raise RefusedError(
                f"message {action.offset} of '{action.ns}' is not taken by index '{action.index}': "
                f"{told.status} {reason(told.error)}"
                + (f"; and {len(refused) - 1} more of this bulk" if len(refused) > 1 else "")
            )
        return busy, why

    def _make(self, ns: str, index: str) -> None:
        """An index of this namespace alone; with its mapping, if the settings give one and it is not there."""
        if ns in self._made or self._client is None:
            return
        if default_index(self._settings, ns) is not None:
            owner = self._owners.setdefault(index, ns)
            if owner != ns:
                raise UsageError(_taken(ns, index, owner), hint=_OTHER_INDEX)
        if ns in self._settings.mappings and self._client.ask("HEAD", f"/{quote(index)}").status == 404:
            answer = self._client.ask("PUT", f"/{quote(index)}", self._settings.mappings[ns])
            if answer.status >= 400 and b"resource_already_exists_exception" not in answer.body:
                raise UsageError(
                    f"the index '{index}' cannot be made: {reason_of(answer)}", hint="see `mappings`"
                )
        self._made.add(ns)

    def _empty(self, row: Row, position: SinkPosition) -> None:
        """Delete what is in an index, each document by its id and with the version of the truncate.

        Not by a query: that would also delete what came later, when a batch comes again.
        """
        assert self._client is not None
        index = index_of(self._settings, row.ns)
        self._make(row.ns, index)
        if self._client.ask("POST", f"/{quote(index)}/_refresh").status == 404:
            return
        version = version_of(position.generation, row.offset)
        for ids in self._ids(index):
            self._send([Action(row.offset, row.ns, index, id, version, None) for id in ids])

    def _ids(self, index: str) -> Iterator[list[str]]:
        assert self._client is not None
        query = {"size": 1000, "_source": False, "sort": ["_doc"], "query": {"match_all": {}}}
        found = self._client.must("POST", f"/{quote(index)}/_search?scroll={_KEEP}", query).read(_Scroll)
        try:
            while found.hits.hits:
                yield [hit._id for hit in found.hits.hits]
                body = {"scroll": _KEEP, "scroll_id": found.scroll}
                found = self._client.must("POST", "/_search/scroll", body).read(_Scroll)
        finally:
            self._client.ask("DELETE", "/_search/scroll", {"scroll_id": [found.scroll]})

    def _place(self) -> str:
        return f"/{quote(self._settings.own_index)}/_doc/{quote(self._name, safe='')}"

    def _keep(self, position: SinkPosition) -> None:
        assert self._client is not None
        owners = sorted(self._owners.items())
        kept = _Position(position.log, position.generation, position.watermark, owners)
        answer: Answer = self._client.ask("PUT", self._place(), kept)
        if answer.status >= 400:
            raise PenstockError(f"{self._settings.shown}: cannot keep the position: {reason_of(answer)}")

    def _continued(self, known: _Position, start: SinkPosition) -> SinkPosition:
        place = f"'{self._name}' in the index '{self._settings.own_index}'"
        held = SinkPosition(known.log, known.generation, known.watermark)
        return continued(held, start, f"the target of {place}", "delete that document")


def _taken(ns: str, index: str, owner: str) -> str:
    return (
        f"the index '{index}' of namespace '{ns}' has the documents of '{owner}', which differs in case alone"
    )


class _Settings(msgspec.Struct):
    settings: dict[str, Any]


class _Cluster(msgspec.Struct):
    persistent: dict[str, Any] = {}
    transient: dict[str, Any] = {}
    defaults: dict[str, Any] = {}


class _Position(msgspec.Struct):
    log: str
    generation: int
    watermark: int
    owners: list[tuple[str, str]] = []
    """Indices and their namespaces; pairs, since a field of an object would be a field of the index."""


class _Kept(msgspec.Struct):
    _source: _Position


class _Item(msgspec.Struct):
    status: int
    error: Any = None


class _Bulk(msgspec.Struct):
    items: list[dict[str, _Item]]


class _Hit(msgspec.Struct):
    _id: str


class _Hits(msgspec.Struct):
    hits: list[_Hit]


class _Scroll(msgspec.Struct):
    hits: _Hits
    scroll: str = msgspec.field(name="_scroll_id", default="")
