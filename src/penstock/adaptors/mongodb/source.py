"""The reading half of `mongodb`: collections copied in the order of `_id`, then followed through change streams.

**No gap.** The cluster time is taken before the copy begins and logged with it; the stream begins there. **Overlap
does no harm.** MongoDB has no copy at one moment that may last: a document that changes during the copy is copied as
it was before or as it is after, and its changes follow, in order, as whole documents; inserts among them come as
updates. When the stream has passed the end of the copy, every document is what it is at the source. Behind that,
each change comes once, in its order.

An update carries the document as it is when the stream looks it up, so of several quick updates the last may come
several times. With `images` it carries the document as it was. A namespace with a filter is looked up again by
`_id`: what no longer meets the filter comes as a delete.

A change stream that the oplog no longer reaches is a `StreamLostError`, which names the namespaces to copy anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import Batch, Copying, Finding, Found, Inspection, Source
from penstock.adaptors.mongodb import MongoDb
from penstock.adaptors.mongodb.client import (
    Bson,
    Names,
    StreamLostError,
    collection_of,
    collections,
    connected,
    now_of,
)
from penstock.adaptors.mongodb.copy import Plan
from penstock.adaptors.mongodb.gather import Gathering
from penstock.adaptors.mongodb.place import Mark, Place, resumed
from penstock.adaptors.mongodb.stream import Feed, oldest
from penstock.adaptors.mongodb.values import Reader, Writer
from penstock.base.errors import UsageError
from penstock.log.message import Mode, Resume
from penstock.log.values import ValuesError

if TYPE_CHECKING:
    from pymongo import MongoClient

IDLE = 0.05
"""Seconds between two looks at streams that have nothing, for servers that do not wait by themselves."""

KEEP = 30.0
"""Seconds after which namespaces without changes are told to have none, so that their tokens do not grow too old."""

FAIR = 4
"""Batches of changes between two ranges of a copy."""

UNTRIED = (
    "change streams of a whole database or deployment, pre- and post-images, and changes made in transactions are "
    "built by MongoDB's documentation and were never run against a MongoDB server"
)


class MongoSource(Source):
    """Reads one database, or all of a deployment."""

    def __init__(self, settings: MongoDb) -> None:
        self._settings = settings
        self._copying: Sequence[Copying] = ()
        self._lag = 0.0

    def namespaces(self) -> Sequence[str]:
        with connected(self._settings) as client:
            return [ns for ns, _ in collections(client, self._settings)]

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        settings = self._settings
        names, findings = Names(settings), []
        with connected(settings) as client:
            found = []
            for ns, kind in collections(client, settings):
                if kind == "timeseries" and accept(ns) and settings.tail:
                    findings.append(Finding(f"'{ns}' is a time series: it is copied and cannot be followed"))
                rows = (
                    collection_of(client, names.name_of(ns)).estimated_document_count()
                    if accept(ns)
                    else None
                )
                found.append(Found(ns, rows, ("_id",)))
            if settings.tail and now_of(client) is None:
                findings.append(_no_oplog())
        if settings.tail and (settings.watch == "database" or settings.images):
            findings.append(Finding(UNTRIED))
        return Inspection(found, findings)

    def gauges(self) -> Mapping[str, float]:
        return {"lag_seconds": self._lag} if self._settings.tail else {}

    def copying(self) -> Sequence[Copying]:
        return self._copying

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        settings = self._settings
        places = {ns: resumed(ns, known) for ns, known in resume.items() if accept(ns)}
        conditions = {ns: _condition(settings, place) for ns, place in places.items()}
        with connected(settings) as client:
            reading = _Reading(client, settings, accept, places, conditions, stop)
            try:
                reading.discover()
                yield from self._run(reading)
            finally:
                reading.close()

    def _run(self, reading: _Reading) -> Iterator[Batch]:
        """Ranges of copies and changes by turns, so that neither waits for the other.

        Of a transaction the log may have a part, from a run before: then its rest comes first.
        """
        copy: Iterator[Batch] = iter(())
        while not reading.stop.is_set():
            batch = next(copy, None) if not reading.inside else None
            if batch is not None:
                yield batch
            elif not reading.inside and (place := reading.next_copy()) is not None:
                copy = self._copy(reading, place)
                continue
            elif not self._settings.tail:
                return
            if self._settings.tail:
                came = False
                for changes in reading.follow(FAIR if batch is not None else None):
                    came = True
                    self._lag = reading.lag
                    yield changes
                if batch is None and not came:
                    reading.stop.wait(IDLE)

    def _copy(self, reading: _Reading, place: Place) -> Iterator[Batch]:
        """The rest of one copy; with its last range the namespace is followed."""
        plan = reading.plan(place)
        for index, packed in enumerate(self.copier.run(iter(plan), reading.stop)):
            end = plan.ends[index]
            place.copied += sum(map(len, packed))
            self._copying = [Copying(place.ns, place.copied, plan.rows)]
            if end:
                place.after = end
            else:
                place.complete(now_of(reading.client))
                self._copying = ()
            yield Batch(
                packed=[one for one in packed if len(one)],
                positions={place.ns: place.position(reading.writer)},
                completed=() if end else (place.ns,),
            )


class _Reading:
    """What one start of the source knows: its places, and the streams that it has open."""

    def __init__(
        self,
        client: MongoClient[Bson],
        settings: MongoDb,
        accept: Callable[[str], bool],
        places: dict[str, Place],
        conditions: dict[str, bytes],
        stop: threading.Event,
    ) -> None:
        self.client, self.stop = client, stop
        self.writer = Writer(settings.numbers == "typed")
        self.lag = 0.0
        self._settings, self._accept = settings, accept
        self._names = Names(settings)
        self._places, self._conditions = places, conditions
        self._feeds: dict[str, Feed] = {}
        self._served: frozenset[str] = frozenset()
        self._looked = self._told = time.monotonic()
        within = [place.mark for place in places.values() if place.within and place.mark]
        self._awaited = max((mark.token or "" for mark in within), default="")
        """The last change that the log has of a transaction whose rest has not come yet."""

    @property
    def inside(self) -> bool:
        """Whether the log has a part of a transaction and not its end: nothing else may come between."""
        return self._settings.tail and any(place.within for place in self._places.values())

    def discover(self) -> None:
        """Find collections that nobody knows yet; they are copied.

        The time is taken before they are listed: one that is made in the meantime comes through the stream, all of it.
        """
        self._looked = time.monotonic()
        now = now_of(self.client)
        for ns, _ in collections(self.client, self._settings):
            if ns not in self._places and self._accept(ns):
                self._places[ns] = Place(ns)
        new = [place for place in self._places.values() if place.is_new]
        for place in new:
            place.mark = Mark(now) if now is not None else None
            self._conditions[place.ns] = _condition(self._settings, place)

    def next_copy(self) -> Place | None:
        return next((place for place in self._places.values() if place.mode is Mode.COPY), None)

    def plan(self, place: Place) -> Plan:
        name = self._names.name_of(place.ns)
        condition = self._conditions.get(place.ns, b"")
        return Plan(self.client, self._settings, place.ns, name, place.after, condition)

    def follow(self, limit: int | None) -> Iterator[Batch]:
        """The changes that are there now, of so many batches at most."""
        if time.monotonic() - self._looked >= self._settings.poll_interval:
            self.discover()
        try:
            self._serve()
            for ns, feed in list(self._feeds.items()):
                if self.inside and ns and not self._places[ns].within:
                    continue
                yield from self._drain(feed, limit)
                if self._feeds.get(ns) is not feed:
                    return
            if time.monotonic() - self._told >= KEEP and not self.inside:
                yield from self._keep()
        except StreamLostError as error:
            followed = sorted(ns for ns, place in self._places.items() if place.mode is Mode.SYNC)
            raise StreamLostError(
                f"{error.message} ({', '.join(followed[:10])})",
                hint=f"copy anew: `penstock backfill {followed[0] if followed else 'NAMESPACE'}`; "
                "and keep a longer oplog at the server",
            ) from None

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()

    def _serve(self) -> None:
        """Have the streams open that serve all places behind their copy."""
        followed = {ns: _mark(place) for ns, place in self._places.items() if place.mode is Mode.SYNC}
        if self._settings.watch == "collection":
            for ns in self._feeds.keys() - followed.keys():  # copied anew: its stream begins with that copy
                self._feeds.pop(ns).close()
            for ns, mark in followed.items():
                if ns not in self._feeds:
                    self._feeds[ns] = Feed(self.client, self._settings, self._names.name_of(ns), mark)
            return
        joined = [ns for ns in followed if ns not in self._served and not self._places[ns].streamed]
        if joined:
            self.close()
            self._feeds[""] = Feed(self.client, self._settings, None, oldest(followed.values()))
        self._served = frozenset(followed)

    def _drain(self, feed: Feed, limit: int | None) -> Iterator[Batch]:
        """What a stream has now. If told to stop, what is not in a batch yet may be a part of a transaction: it comes
        again."""
        gathering = self._gathering()
        given = 0
        while not self.stop.is_set():
            change = feed.next()
            if change is None:
                break
            if gathering.is_full:
                yield gathering.batch(more=gathering.is_of(change.transaction) or bool(self._awaited))
                gathering = self._gathering()
                given += 1
            gathering.add(change)
            self._awaited = "" if change.token > self._awaited else self._awaited
            self.lag = max(0.0, time.time() - change.ts / 1e6)
            if limit is not None and given >= limit and not gathering.is_of(change.transaction):
                break
        if self.stop.is_set():
            return
        if gathering.moved or (self.inside and not self._awaited):
            yield gathering.batch(more=bool(self._awaited))
        else:
            self.lag = 0.0

    def _gathering(self) -> Gathering:
        return Gathering(
            self.client, self._settings, self._accept, self._places, self._conditions, self.writer
        )

    def _keep(self) -> Iterator[Batch]:
        """Move the places of namespaces in which nothing happens."""
        if self.stop.is_set():
            return
        now = now_of(self.client)
        moved: set[str] = set()
        for key, feed in self._feeds.items():
            yield from self._drain(feed, None)
            if self.stop.is_set():  # what it has read, and not given, comes again
                return
            token = feed.token
            for ns in self._served if not key else (key,):
                place = self._places[ns]
                if (
                    place.mode is Mode.SYNC
                    and token
                    and now
                    and place.mark
                    and token > (place.mark.token or "")
                ):
                    place.mark = Mark(max(now, place.mark.time), token)
                    moved.add(ns)
        self._told = time.monotonic()
        if moved:
            yield Batch(positions={ns: self._places[ns].position(self.writer) for ns in sorted(moved)})


def _mark(place: Place) -> Mark:
    if place.mark is None:
        raise UsageError(
            f"namespace '{place.ns}' was copied when the server kept no oplog: what changed since then is not known",
            hint=f"copy it anew: `penstock backfill {place.ns}`",
        )
    return place.mark


def _condition(settings: MongoDb, place: Place) -> bytes:
    """The query for the copy of a namespace, in extended JSON: its filter, and what the operator asked for."""
    terms: list[object] = []
    if place.ns in settings.collection_filters:
        terms.append(settings.collection_filters[place.ns])
    if place.where is not None:
        try:
            terms.append(msgspec.json.decode(place.where, type=dict[str, object]))
        except msgspec.DecodeError as error:
            raise UsageError(
                f"the condition of the backfill of '{place.ns}' is not one: {place.where!r}: {error}",
                hint='give a query of MongoDB in extended JSON, such as {"total": {"$gt": 100}}',
            ) from None
    text = msgspec.json.encode({"$and": terms}) if terms else b""
    try:
        if text:
            Reader("date").document(text)
    except ValuesError as error:
        raise UsageError(f"the filter of '{place.ns}' is not one: {error.message}") from None
    return text


def _no_oplog() -> Finding:
    return Finding(
        "the server is no member of a replica set: it has no change streams to follow",
        "start mongod with --replSet rs0, then: rs.initiate()",
        fatal=True,
    )
