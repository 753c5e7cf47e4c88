"""`connector` as a source: listens for connectors and puts what they stream into the pipeline's log, exactly once.

A stream is a namespace, by its name. The position of a namespace has the last id of each stream of that name
(`{"streams": {"7": 400}}`), in the log with the messages, and is the point of reference that a connector is told. It
gets an ACK when the log has the message. The end of a stream (EOS_MESSAGE) ends the copy of its namespace; without
`tail` the source has run out when all streams have ended. A body that is no JSON object goes to the dead letters.

While it is read it is in a directory of workers (`penstock.connector.directory`), where `penstock connector status`
finds it: whoever waits for a stream need not know whether a worker or a pipeline takes it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec

from penstock.adaptors.base import Bad, Batch, Source, refuse_conditions
from penstock.adaptors.connector import Connector
from penstock.adaptors.connector.inlet import Inlet, InletWorker, Item, Listing
from penstock.adaptors.documents import key_of
from penstock.adaptors.eventloop import EventLoop
from penstock.adaptors.formats.lines import fault
from penstock.base.errors import AwayError, UsageError
from penstock.connector import frames as fr
from penstock.connector.framing import Splitter
from penstock.connector.records import Point, Points
from penstock.connector.settings import WorkerSettings, WorkerTls, instance_fault, split
from penstock.journal.client import Client
from penstock.log.message import LAST_TS, Message, Mode, Op, Position, Resume

MOST_BYTES = 1024 * 1024
WAIT = 0.1
STOP = 15.0
_KEPT = 1024 * 1024


class ConnectorSource(Source):
    """Takes connectors at one address."""

    def __init__(self, settings: Connector) -> None:
        self._settings = settings
        self._inlet: Inlet | None = None
        self._worker: InletWorker | None = None
        self._listing: Listing | None = None
        self._given: deque[tuple[Batch, Sequence[Item]]] = deque()
        self._lock = threading.Lock()
        split(settings.listen)
        self._http = "" if settings.http == "off" else settings.http
        if self._http:
            split(self._http)
        fault = instance_fault(settings.instance)
        if fault is not None:
            raise UsageError(fault)
        self._tls = _tls(settings)

    def namespaces(self) -> Sequence[str]:
        """Nobody knows before the streams come."""
        return ()

    def announce(self, client: Client, pipeline: str) -> None:
        self._listing = Listing(client, pipeline, self.name, self._http)

    def gauges(self) -> Mapping[str, float]:
        """How many are connected and what they may still send; what was counted since the reading began."""
        worker = self._worker
        if worker is None:
            return {}
        peers, counters = list(worker.peers), worker.counters
        held = [len(instance.registry.held) for instance in list(worker.instances.values())]
        told = {
            "connections": len(peers),
            "streams": sum(held),
            "credits": sum(peer.session.credits.held for peer in peers),
            "repeated": counters.dropped,
            "refused": counters.refused,
            "faults": counters.faults,
        }
        return {name: float(value) for name, value in told.items()}

    def logged(self, batch: Batch) -> None:
        inlet = self._inlet
        with self._lock:
            if inlet is None or not any(one is batch for one, _ in self._given):
                return
            while True:
                one, items = self._given.popleft()
                inlet.logged(items)
                if one is batch:
                    return

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        refuse_conditions("connector", accept, resume)
        state = _State(self._settings, accept, resume)
        inlet = Inlet(state.points())
        with self._lock:
            self._inlet, self._given = inlet, deque()
        settings = WorkerSettings(cookie=self._settings.cookie.encode(), credits=self._settings.credits)
        self._worker = worker = InletWorker(
            settings, inlet, self._settings.instance, self._tls, self._listing
        )
        loop = EventLoop("connectors")
        try:
            try:
                loop.run(worker.begin(self._settings.listen), STOP)
            except UsageError as error:  # by a run that is about to end, as a rule
                raise AwayError(error.message) from None
            while not stop.is_set():
                items = inlet.take(MOST_BYTES, WAIT)
                if items:
                    batch = state.batch(items, inlet.names)
                    with self._lock:
                        self._given.append((batch, items))
                    yield batch
                elif not self._settings.tail and inlet.finished and not self._given:
                    return
        finally:
            try:
                loop.run(worker.stop(1.0), STOP)
            finally:
                inlet.shut()
                loop.close()


def _tls(settings: Connector) -> WorkerTls | None:
    """What connectors are shown, and what is asked of them; files that do not serve are told before anything runs."""
    if not settings.certificate:
        return None
    from penstock.journal.tls import ServerTls

    files = Path(settings.certificate), Path(settings.private_key)
    return WorkerTls(ServerTls(*files, Path(settings.ca) if settings.ca else None).ssl_context())


class _State:
    """How far each namespace is."""

    def __init__(
        self, settings: Connector, accept: Callable[[str], bool], resume: Mapping[str, Resume]
    ) -> None:
        self._settings = settings
        self._accept = accept
        self._lasts: dict[str, dict[str, int]] = {}
        self._ended: dict[str, set[str]] = {}
        self._modes: dict[str, Mode] = {}
        for ns, known in resume.items():
            position = known.position or {}
            self._lasts[ns] = dict(cast("Mapping[str, int]", position.get("streams", {})))
            self._ended[ns] = set(cast("Sequence[str]", position.get("ended", [])))
            self._modes[ns] = known.mode

    def points(self) -> Points:
        """Of each stream the last id; one that has changed its name is in two namespaces, and goes on in the later."""
        furthest: dict[str, tuple[int, str]] = {}
        for ns, lasts in self._lasts.items():
            for stream, last in lasts.items():
                furthest[stream] = max(furthest.get(stream, (last, ns)), (last, ns))
        return {
            int(stream): Point(fr.NOTHING_SEEN if last < 0 else last, stream in self._ended[ns], ns)
            for stream, (last, ns) in furthest.items()
        }

    def batch(self, items: Sequence[Item], names: Mapping[int, str]) -> Batch:
        messages: list[Message] = []
        bad: list[Bad] = []
        moved: dict[str, None] = {}
        completed: list[str] = []
        now = time.time_ns() // 1000
        for item in items:
            if item.run is not None:
                self._take(item, names, now, messages, bad, moved)
            elif item.ended is not None:
                ns, stream = names[item.ended], str(item.ended)
                self._lasts.setdefault(ns, {}).setdefault(stream, -1)
                self._ended.setdefault(ns, set()).add(stream)
                moved[ns] = None
                if self._accept(ns) and self._ended[ns] >= self._lasts[ns].keys():
                    completed.append(ns)
        for ns in completed:
            self._modes[ns] = Mode.SYNC
        positions = {ns: self._position(ns) for ns in moved if self._accept(ns)}
        return Batch(messages, positions, list(dict.fromkeys(completed)), bad=bad)

    def _take(
        self,
        item: Item,
        names: Mapping[int, str],
        now: int,
        messages: list[Message],
        bad: list[Bad],
        moved: dict[str, None],
    ) -> None:
        assert item.run is not None
        for piece in item.run.pieces:
            for payload in Splitter().feed(bytes(piece)):
                frame = fr.frame_of(payload)
                assert isinstance(frame, fr.Message)
                ns = names[frame.stream]
                moved[ns] = None
                self._lasts.setdefault(ns, {})[str(frame.stream)] = frame.id
                self._ended.setdefault(ns, set()).discard(str(frame.stream))
                if self._accept(ns):
                    made = self._message(ns, frame, now)
                    (messages if isinstance(made, Message) else bad).append(made)  # type: ignore[arg-type]

    def _message(self, ns: str, frame: fr.Message, now: int) -> Message | Bad:
        body, mode = bytes(frame.body), self._modes.get(ns, Mode.COPY)
        try:
            if self._settings.body == "text":
                body = msgspec.json.encode({"text": body.decode()})
            wrong = fault(body)
            if wrong is not None:
                raise ValueError(wrong)
            key = key_of(body, self._settings.key) if self._settings.key else None
            if key is None and len(frame.key):
                key = msgspec.json.encode({"key": bytes(frame.key).decode()})
        except ValueError as error:
            place = f"stream {ns} ({frame.stream}), message {frame.id}"
            return Bad(ns, place, str(error), body[:_KEPT])
        ts = frame.time if 0 < frame.time <= LAST_TS else now
        return Message(ns, body, Op.INSERT, ts, mode, key)

    def _position(self, ns: str) -> Position:
        return cast("Position", {"streams": dict(self._lasts[ns]), "ended": sorted(self._ended.get(ns, ()))})
