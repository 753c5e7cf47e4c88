"""The reading half of `redis`: streams from their first entry to where they end now, and then what comes.

The position of a stream is `{"after": "ID", "added": n, "until": "ID"}`: the last entry that was read, how many entries
the stream had been given up to it, and, while it is copied, where it ended when the copy began. So each entry is
logged exactly once, whatever crashes. Entries are read together with what the stream says of itself, at one moment.

A stream can be trimmed, and entries can be deleted, before they were read; from Redis 7 on the stream's own counter
tells, and it is a `LostError` that says how many are gone, unless the settings accept it. Older servers do not
count: there a stream that is trimmed too early goes unnoticed.

A consumer group, where one is named, is told how far the log is, after it is: with `XGROUP SETID`, so that it never
has pending entries. Nothing is read through it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import msgspec

from penstock.adaptors.base import (
    Bad,
    Batch,
    Copying,
    Finding,
    Found,
    Inspection,
    Source,
    refuse_conditions,
)
from penstock.adaptors.redis import Redis
from penstock.adaptors.redis.client import ask, asking, connected, driver
from penstock.adaptors.redis.entries import Entry, Id, Reader, id_of, id_text
from penstock.base.errors import PenstockError
from penstock.log.message import Message, Mode, Position, Resume

if TYPE_CHECKING:
    import redis

MOST_BYTES = 1024 * 1024
MOST_ENTRIES = 2_000
"""What makes a batch."""

WAIT = 0.2
"""Seconds to wait for an entry."""

NOTHING: Id = (0, 0)
COUNTS = "entries-added"
"""What a stream tells from Redis 7 on."""

log = logging.getLogger(__name__)


class LostError(PenstockError):
    """Entries that were not read, and cannot be read any more."""


@dataclass(frozen=True, slots=True)
class About:
    """What a stream says of itself."""

    length: int
    first: Id | None
    last: Id
    """The last id that was given out, also if that entry is gone."""
    added: int | None
    """How many entries it was given, ever; None where the server does not count."""
    entry: int
    """Bytes of its first or last entry: about how large they are."""


class _Known(msgspec.Struct):
    """A position as the log gives it back."""

    after: str = "0-0"
    added: int | None = None
    until: str | None = None


@dataclass(slots=True)
class Place:
    """How far a stream has been read."""

    after: Id
    added: int | None
    until: Id | None
    """None if the copy is over."""
    goal: Id | None
    """Of a source that does not tail: where the stream ends for it."""
    entry: int
    """About how many bytes an entry has, by which so many are asked for as make a batch."""
    read: int = 0

    @property
    def mode(self) -> Mode:
        return Mode.SYNC if self.until is None else Mode.COPY

    @property
    def position(self) -> Position:
        position: Position = {"after": id_text(self.after), "added": self.added}
        if self.until is not None:
            position["until"] = id_text(self.until)
        return position

    def lost(self, stream: str, about: About) -> str | None:
        """What is gone that was to be read; the place then moves behind it."""
        if about.last < self.after or (self.added or 0) > (about.added or self.added or 0):
            self.after, self.added = NOTHING, _before(about)
            return f"stream '{stream}' was deleted and made anew: what came behind the position is gone"
        if self.added is None or about.added is None or (about.first or about.last) <= self.after:
            return None
        gone = about.added - self.added - about.length
        if gone <= 0:
            return None
        self.added += gone
        return f"stream '{stream}': {gone} entries behind {id_text(self.after)} were removed before they were read"


class RedisSource(Source):
    """Reads the streams of one server."""

    def __init__(self, settings: Redis) -> None:
        self._settings = settings
        self._reader = Reader(settings)
        self._places: dict[str, Place] = {}
        self._noted: dict[str, Position] = {}
        self._lock = threading.Lock()
        self._lag = 0

    def namespaces(self) -> Sequence[str]:
        with closing(connected(self._settings)) as client, self._asking("cannot list the streams"):
            return _streams(client)

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        with closing(connected(self._settings)) as client, self._asking("cannot list the streams"):
            found = [
                Found(stream, int(client.xlen(stream)), self._settings.key) for stream in _streams(client)
            ]
            counts = [about.added for stream in found[:1] if (about := _about(client, stream.ns)) is not None]
        if counts == [None]:
            what = (
                "the server is older than Redis 7: entries that are trimmed before they are read go unnoticed"
            )
            return Inspection(found, [Finding(what)])
        return Inspection(found)

    def gauges(self) -> Mapping[str, float]:
        return {"lag_entries": float(self._lag)}

    def copying(self) -> Sequence[Copying]:
        return [Copying(ns, place.read, None) for ns, place in list(self._places.items()) if place.until]

    def logged(self, batch: Batch) -> None:
        if self._settings.group:
            with self._lock:
                self._noted |= batch.positions

    def release(self) -> Sequence[str]:
        """Take the consumer group from all streams that have it."""
        group, taken = self._settings.group, []
        if group:
            with closing(connected(self._settings)) as client, self._asking("cannot remove the group"):
                taken = [stream for stream in _streams(client) if client.xgroup_destroy(stream, group)]
        return [f"consumer group '{group}' of stream '{stream}'" for stream in taken]

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        refuse_conditions("redis", accept, resume)
        self._places = {}
        with closing(connected(self._settings)) as client, self._asking("cannot read streams"):
            self._look(client, accept, resume)
            looked = time.monotonic()
            while not stop.is_set():
                yield from self._completed()
                wanted = [ns for ns, place in self._places.items() if _is_wanted(place)]
                if not self._settings.tail and not wanted:
                    break
                for ns in self._awaited(client, wanted, stop):
                    if stop.is_set():
                        return
                    if (batch := self._next(client, ns)) is not None:
                        yield batch
                self._acknowledge(client)
                if self._settings.tail and time.monotonic() - looked >= self._settings.poll_interval:
                    self._look(client, accept, resume)
                    looked = time.monotonic()
            self._acknowledge(client)

    def _look(self, client: redis.Redis, accept: Callable[[str], bool], resume: Mapping[str, Resume]) -> None:
        """Find streams that are new, and those that are gone."""
        there = [stream for stream in _streams(client) if accept(stream)]
        for ns in self._places.keys() - set(there):
            self._lose(f"stream '{ns}' was deleted while it was read")
            del self._places[ns]
        for ns in there:
            about = None if ns in self._places else _about(client, ns)
            if about is not None:
                place = _resumed(resume.get(ns), about, tail=self._settings.tail)
                self._lose(place.lost(ns, about))
                self._places[ns] = place

    def _completed(self) -> Iterator[Batch]:
        done = [ns for ns, place in self._places.items() if place.until and place.after >= place.until]
        for ns in done:
            self._places[ns].until = None
        if done:
            yield Batch((), {ns: self._places[ns].position for ns in done}, completed=done)

    def _awaited(self, client: redis.Redis, wanted: Sequence[str], stop: threading.Event) -> Sequence[str]:
        """The streams that have something, after a moment at most; those that are copied come to an end anyway."""
        if not self._settings.tail:
            return wanted
        if not wanted:
            stop.wait(WAIT)
            return ()
        after = [id_text(self._places[ns].after) for ns in wanted]
        copied = [ns for ns in wanted if self._places[ns].until is not None]
        wait = () if copied else ("BLOCK", int(WAIT * 1000))
        answer = ask(client, "XREAD", "COUNT", 1, *wait, "STREAMS", *wanted, *after)
        found = cast("list[tuple[bytes, object]] | None", answer) or []
        return [*dict.fromkeys([*copied, *(name.decode() for name, _ in found)])]

    def _next(self, client: redis.Redis, ns: str) -> Batch | None:
        """Some entries of a stream, if it has any behind its place."""
        place = self._places[ns]
        count = max(1, min(MOST_ENTRIES, MOST_BYTES // place.entry))
        pipeline = client.pipeline(transaction=True)
        ask(pipeline, "XINFO STREAM", ns)
        ask(pipeline, "XRANGE", ns, f"({id_text(place.after)}", "+", "COUNT", count)
        told, entries = pipeline.execute(raise_on_error=False)
        if isinstance(told, driver().exceptions.ResponseError) and "no such key" in str(told):
            self._lose(f"stream '{ns}' was deleted while it was read")
            del self._places[ns]
            return None
        for answer in (told, entries):
            if isinstance(answer, Exception):
                raise answer
        about = _told(told)
        before = place.after
        self._lose(place.lost(ns, about))
        if place.after < before:
            return None  # it begins anew: what was read with this answer was behind another place
        self._lag = max(0, (about.added or 0) - (place.added or 0))
        return self._batch(ns, place, cast("list[Entry]", entries))

    def _batch(self, ns: str, place: Place, entries: Sequence[Entry]) -> Batch | None:
        ends = place.until or place.goal
        messages: list[Message] = []
        bad: list[Bad] = []
        largest = 1
        for id, fields in entries:
            if ends is not None and id_of(id) > ends:
                break
            found = self._reader.message(ns, (id, fields), place.mode)
            if isinstance(found, Bad):
                bad.append(found)
            else:
                messages.append(found)
            largest = max(largest, _size(fields))
            place.after = id_of(id)
        count = len(messages) + len(bad)
        if (ends is not None and count < len(entries)) or not entries:
            # Up to where it ends there is nothing more: the last entries of a stream may have been deleted.
            place.after = max(place.after, ends or place.after)
        if not count:
            return None
        place.read += count
        place.added = None if place.added is None else place.added + count
        place.entry = largest
        return Batch(messages, {ns: place.position}, bad=bad)

    def _lose(self, what: str | None) -> None:
        """Stop for what is gone, or say so and go on, as the settings have it."""
        if what is not None and self._settings.if_lost == "stop":
            raise LostError(
                what,
                hint="copy the stream anew with `penstock backfill`, or go on behind what is gone with "
                "if_lost='accept'",
            )
        if what is not None:
            log.warning("%s", what)

    def _acknowledge(self, client: redis.Redis) -> None:
        """Tell the group how far the log is."""
        with self._lock:
            noted, self._noted = self._noted, {}
        group = self._settings.group
        for ns, position in noted.items():
            after, added = str(position["after"]), position["added"]
            read = [] if added is None else ["ENTRIESREAD", str(added)]
            try:
                ask(client, "XGROUP", "SETID", ns, group, after, *read)
            except driver().exceptions.ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
                ask(client, "XGROUP", "CREATE", ns, group, after, *read)

    def _asking(self, what: str) -> AbstractContextManager[None]:
        return asking(self._settings, what)


def _resumed(known: Resume | None, about: About, *, tail: bool) -> Place:
    position = msgspec.convert(known.position, _Known) if known is not None else _Known()
    goal = None if tail else about.last
    after = id_of(position.after)
    if known is not None and known.mode is not Mode.COPY:
        return Place(after, position.added, None, goal, about.entry)
    until = about.last if position.until is None else min(id_of(position.until), about.last)
    added = _before(about) if after == NOTHING else position.added
    return Place(after, added, until, goal, about.entry)


def _before(about: About) -> int | None:
    """How many entries a stream was given that it does not have any more."""
    return None if about.added is None else about.added - about.length


def _is_wanted(place: Place) -> bool:
    return place.goal is None or place.after < place.goal


def _streams(client: redis.Redis) -> list[str]:
    found = {_name(key) for key in client.scan_iter(count=1000, _type="stream")}
    return sorted(name for name in found if name is not None)


def _name(key: bytes) -> str | None:
    """The name of a stream; None for one that has none in UTF-8, which no namespace can be called by."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _about(client: redis.Redis, stream: str) -> About | None:
    """What a stream says of itself; None if it is gone."""
    try:
        return _told(ask(client, "XINFO STREAM", stream))
    except driver().exceptions.ResponseError as error:
        if "no such key" in str(error):
            return None
        raise


def _told(answer: object) -> About:
    flat = cast("list[object]", answer)
    told = dict(zip(flat[::2], flat[1::2], strict=True))
    first = cast("Entry | None", told.get(b"first-entry"))
    last = cast("Entry | None", told.get(b"last-entry"))
    added = told.get(COUNTS.encode())
    return About(
        length=int(str(told[b"length"])),
        first=id_of(first[0]) if first else None,
        last=id_of(cast(bytes, told[b"last-generated-id"])),
        added=None if added is None else int(str(added)),
        entry=max([1000, *(_size(one[1]) for one in (first, last) if one)]),
    )


def _size(fields: Sequence[bytes]) -> int:
    return sum(map(len, fields)) + 64
