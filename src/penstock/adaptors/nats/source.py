"""The reading half of `nats`: streams from their first message to where they end now, and then what comes.

The position of a stream is `{"stream": CREATED, "after": n, "until": m}`: which stream of that name it is, the sequence
number of the last message that was read, and, while it is copied, where the stream ended when the copy began. Messages
are read through a consumer that belongs to one start alone and begins behind that number, so each is logged exactly
once, whatever crashes; nothing is acknowledged, since the numbers in the log are the truth.

A message that a limit of the stream, or a purge, removed before it was read is a `LostError`, unless the settings
accept it; so is a stream that was deleted, or made anew. Single messages that somebody deleted are not told.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

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
from penstock.adaptors.documents import key_of
from penstock.adaptors.formats.lines import fault
from penstock.adaptors.nats import Nats
from penstock.adaptors.nats.client import (
    NANO,
    NO_CONSUMER,
    NO_STREAM,
    AnswerError,
    Client,
    Got,
    Pulled,
)
from penstock.base.errors import PenstockError, UsageError
from penstock.log.message import MAX_MESSAGE_BYTES, Message, Mode, Op, Position, Resume

MOST_BYTES = 1024 * 1024
MOST_MESSAGES = 2_000
"""What makes a batch."""

WAIT = 0.2
"""Seconds to wait for a message."""

INACTIVE = 60
"""Seconds after which the server forgets a consumer that nobody uses; it is made anew then."""

_KEPT = 1024 * 1024
_GONE = 503
log = logging.getLogger(__name__)


class LostError(PenstockError):
    """Messages that were not read, and cannot be read any more."""


class _State(msgspec.Struct):
    messages: int
    first_seq: int
    last_seq: int


class _Config(msgspec.Struct):
    retention: str = "limits"


class _Told(msgspec.Struct):
    """What the server says of a stream."""

    created: str
    config: _Config
    state: _State


class _Given(msgspec.Struct):
    consumer_seq: int


class _Left(msgspec.Struct):
    """What the server says of a consumer: how many messages are left for it, and how many it has given."""

    num_pending: int
    delivered: _Given


class _Listed(msgspec.Struct):
    total: int = 0
    streams: list[str] | None = None


class _Known(msgspec.Struct):
    """A position as the log gives it back."""

    stream: str = ""
    after: int = 0
    until: int | None = None


@dataclass(slots=True)
class Place:
    """How far a stream has been read."""

    created: str
    after: int
    until: int | None
    """None if the copy is over."""
    goal: int | None
    """Of a source that does not tail: where the stream ends for it."""
    consumer: str = ""
    number: int = 0
    """How many messages the consumer has given."""
    read: int = 0

    @property
    def mode(self) -> Mode:
        return Mode.SYNC if self.until is None else Mode.COPY

    @property
    def position(self) -> Position:
        position: Position = {"stream": self.created, "after": self.after}
        if self.until is not None:
            position["until"] = self.until
        return position


class NatsSource(Source):
    """Reads the streams of one account."""

    def __init__(self, settings: Nats) -> None:
        self._settings = settings
        self._places: dict[str, Place] = {}

    def namespaces(self) -> Sequence[str]:
        with closing(Client(self._settings)) as client:
            return self._streams(client)

    def inspect(self, accept: Callable[[str], bool]) -> Inspection:
        with closing(Client(self._settings)) as client:
            told = {ns: one for ns in self._streams(client) if (one := _about(client, ns)) is not None}
        found = [Found(ns, one.state.messages, self._settings.key) for ns, one in told.items()]
        queues = [ns for ns, one in told.items() if accept(ns) and one.config.retention == "workqueue"]
        return Inspection(found, [Finding(_no_queue(ns), fatal=True) for ns in queues])

    def copying(self) -> Sequence[Copying]:
        return [
            Copying(ns, place.read, None)
            for ns, place in list(self._places.items())
            if place.until is not None
        ]

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        refuse_conditions("nats", accept, resume)
        self._places = {}
        with closing(Client(self._settings)) as client:
            try:
                self._look(client, accept, resume)
                looked = time.monotonic()
                while not stop.is_set():
                    yield from self._completed()
                    wanted = [ns for ns, place in self._places.items() if _is_wanted(place)]
                    if not self._settings.tail and not wanted:
                        break
                    if not wanted:
                        stop.wait(WAIT)
                    for ns in wanted:
                        if stop.is_set():
                            return
                        if (batch := self._next(client, ns, WAIT / len(wanted))) is not None:
                            yield batch
                    if self._settings.tail and time.monotonic() - looked >= self._settings.poll_interval:
                        self._look(client, accept, resume)
                        looked = time.monotonic()
            finally:
                self._forget(client)

    def _streams(self, client: Client) -> list[str]:
        found: list[str] = []
        while True:
            told = client.ask("STREAM.NAMES", {"offset": len(found)}, _listed, "cannot list the streams")
            found += told.streams or []
            if not told.streams or len(found) >= told.total:
                return sorted(found)

    def _look(self, client: Client, accept: Callable[[str], bool], resume: Mapping[str, Resume]) -> None:
        """Find streams that are new, and those that are gone or are others now."""
        there = [ns for ns in self._streams(client) if accept(ns)]
        for ns in self._places.keys() - set(there):
            self._lose(f"stream '{ns}' was deleted while it was read")
            del self._places[ns]
        for ns in there:
            about = _about(client, ns)
            if about is None:
                continue
            if about.config.retention == "workqueue":
                raise UsageError(
                    _no_queue(ns), hint="mirror it into a stream that keeps by limits, and read that"
                )
            place = self._places.get(ns)
            if place is None:
                self._places[ns] = place = _resumed(resume.get(ns), about, tail=self._settings.tail)
            self._compare(ns, place, about)

    def _compare(self, ns: str, place: Place, about: _Told) -> None:
        """Find out what is gone that was to be read; the place then moves behind it."""
        if about.created != place.created or about.state.last_seq < place.after:
            place.created, place.after, place.consumer = about.created, 0, ""
            self._lose(f"stream '{ns}' was deleted and made anew: what came behind the position is gone")
            return
        gone = about.state.first_seq - 1 - place.after
        if gone > 0:
            # What was never begun has lost nothing: it begins where the stream does.
            begun, behind = place.after > 0, place.after
            place.after, place.consumer = about.state.first_seq - 1, ""
            if begun and not self._settings.subject:
                self._lose(
                    f"stream '{ns}': {gone} messages behind {behind} were removed before they were read"
                )
            elif begun:
                self._lose(
                    f"stream '{ns}': {gone} messages behind {behind} were removed, maybe some of "
                    f"'{self._settings.subject}' that were not read"
                )

    def _completed(self) -> Iterator[Batch]:
        """Tell of copies that are at their end."""
        for ns, place in self._places.items():
            if place.until is not None and place.after >= place.until:
                place.until = None
                yield Batch(positions={ns: place.position}, completed=[ns])

    def _next(self, client: Client, ns: str, wait: float) -> Batch | None:
        place = self._places[ns]
        if not place.consumer:
            self._begin(client, ns, place)
        pulled = client.pull(ns, place.consumer, MOST_MESSAGES, MOST_BYTES, wait)
        if pulled.status == 409 and not pulled.messages:  # the next one alone is larger
            pulled = client.pull(ns, place.consumer, 1, None, wait)
        if pulled.status == _GONE:
            place.consumer = ""  # forgotten by the server, or the whole stream is gone
            about = _about(client, ns)
            if about is None:
                self._lose(f"stream '{ns}' was deleted while it was read")
                del self._places[ns]
            return None
        return self._batch(client, ns, place, pulled)

    def _batch(self, client: Client, ns: str, place: Place, pulled: Pulled) -> Batch | None:
        ends = place.until or place.goal
        messages: list[Message] = []
        bad: list[Bad] = []
        for got in pulled.messages:
            if ends is not None and got.sequence > ends:
                # The rest belongs behind the copy: the consumer gives it once more.
                place.consumer, place.after = "", max(place.after, ends)
                break
            place.number += 1
            if got.number != place.number:  # something was given to nobody
                place.consumer = ""
                break
            if got.sequence > place.after + 1 and (about := _about(client, ns)) is not None:
                self._compare(ns, place, about)
            found = self._message(ns, got, place.mode)
            if isinstance(found, Bad):
                bad.append(found)
            else:
                messages.append(found)
            place.after = max(place.after, got.sequence)
        if not pulled.messages and ends is not None and self._is_read(client, ns, place):
            place.after = max(place.after, ends)  # the last ones were deleted, or have another subject
        if not messages and not bad:
            return None
        place.read += len(messages) + len(bad)
        return Batch(messages, {ns: place.position}, bad=bad)

    def _is_read(self, client: Client, ns: str, place: Place) -> bool:
        """Whether nothing came because there is nothing.

        A server may also have been too slow to give it, or have given it when nobody waited any more.
        """
        what = f"cannot read the stream '{ns}'"
        try:
            told = client.ask(f"CONSUMER.INFO.{ns}.{place.consumer}", None, _left, what)
        except AnswerError as error:
            if error.number in (NO_CONSUMER, NO_STREAM):
                return False  # which the next pull hears of
            raise
        if told.delivered.consumer_seq != place.number:
            place.consumer = ""
            return False
        return told.num_pending == 0

    def _message(self, ns: str, got: Got, mode: Mode) -> Message | Bad:
        data = got.data.strip(b" \t\r\n")
        wrong = fault(data)
        if wrong is None:
            try:
                data = self._added(got, data)
                key = key_of(data, self._settings.key) if self._settings.key else None
                return Message(ns, data, Op.INSERT, got.moment // 1000, mode, key)
            except ValueError as error:
                wrong = str(error)
        return Bad(ns, f"stream {ns}, message {got.sequence}", wrong, got.data[:_KEPT])

    def _added(self, got: Got, data: bytes) -> bytes:
        """The document with the fields in front that the settings ask for."""
        more: dict[str, object] = {}
        if self._settings.subject_field:
            more[self._settings.subject_field] = got.subject
        if self._settings.headers_field:
            more[self._settings.headers_field] = {
                str(name): str(value) for name, value in got.headers.items()
            }
        if not more:
            return data
        front = msgspec.json.encode(more)[:-1]
        data = front + b"}" if re.fullmatch(rb"\{\s*\}", data) else front + b"," + data[1:]
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError(f"longer than a message may be ({MAX_MESSAGE_BYTES} bytes)")
        return data

    def _begin(self, client: Client, ns: str, place: Place) -> None:
        """Make the consumer that begins behind the place."""
        name = f"penstock-{uuid.uuid4().hex[:12]}"
        config: dict[str, object] = {
            "name": name, "deliver_policy": "by_start_sequence", "opt_start_seq": place.after + 1,
            "ack_policy": "none", "inactive_threshold": INACTIVE * NANO, "mem_storage": True, "num_replicas": 1,
        }  # fmt: skip
        if self._settings.subject:
            config["filter_subject"] = self._settings.subject
        client.ask(
            f"CONSUMER.CREATE.{ns}.{name}",
            {"stream_name": ns, "config": config},
            bytes,
            f"cannot read the stream '{ns}'",
        )
        place.consumer, place.number = name, 0

    def _forget(self, client: Client) -> None:
        """Take the consumers away; where that fails the server does it by itself, after a while."""
        for ns, place in self._places.items():
            if place.consumer:
                try:
                    client.ask(f"CONSUMER.DELETE.{ns}.{place.consumer}", None, bytes, "cannot end reading")
                except PenstockError as error:
                    if not isinstance(error, AnswerError) or error.number not in (NO_CONSUMER, NO_STREAM):
                        log.info("%s", error.message)
                        return

    def _lose(self, what: str) -> None:
        """Stop for what is gone, or say so and go on, as the settings have it."""
        if self._settings.if_lost == "stop":
            raise LostError(
                what,
                hint="copy the stream anew with `penstock backfill`, or go on behind what is gone with "
                "if_lost='accept'",
            )
        log.warning("%s", what)


def _resumed(known: Resume | None, about: _Told, *, tail: bool) -> Place:
    position = msgspec.convert(known.position, _Known) if known is not None else _Known()
    goal = None if tail else about.state.last_seq
    created = position.stream or about.created
    if known is not None and known.mode is not Mode.COPY:
        return Place(created, position.after, None, goal)
    last = about.state.last_seq
    return Place(created, position.after, last if position.until is None else min(position.until, last), goal)


def _is_wanted(place: Place) -> bool:
    return place.goal is None or place.after < place.goal


def _about(client: Client, ns: str) -> _Told | None:
    """What a stream says of itself; None if it is gone."""
    try:
        return client.ask(f"STREAM.INFO.{ns}", None, _told, f"cannot ask for the stream '{ns}'")
    except AnswerError as error:
        if error.number == NO_STREAM:
            return None
        raise


def _no_queue(ns: str) -> str:
    return f"stream '{ns}' is a work queue: reading it would take its messages away, and it cannot be read otherwise"


_listed: Callable[[bytes], _Listed] = msgspec.json.Decoder(_Listed).decode
_left: Callable[[bytes], _Left] = msgspec.json.Decoder(_Left).decode
_told: Callable[[bytes], _Told] = msgspec.json.Decoder(_Told).decode
