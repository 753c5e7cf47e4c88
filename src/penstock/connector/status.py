"""What workers tell about themselves: typed records, `/status` and `/metrics`, and how to ask all workers.

A pipeline that takes connectors itself is such a worker here, and says whose source it is.

await survey(client)              every worker of any prefix, with its sessions and streams
await survey(client, prefix)      those that have their journals under one
snapshot(worker)                  the same of a worker in this process
"""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.base.errors import PenstockError
from penstock.connector import directory
from penstock.connector.frames import NOTHING_SEEN
from penstock.connector.settings import split
from penstock.connector.threaded import Journals

if TYPE_CHECKING:
    from penstock.connector.worker import Worker

_PATIENCE = 5.0
_LONGEST: Final = 1 << 30
"""An answer may have all streams that the journals of a worker ever had, some hundred bytes for each."""


class StreamStatus(msgspec.Struct, frozen=True):
    """A stream that a session holds, or that the log knows. None: nothing was seen, or acknowledged."""

    instance: str
    id: int
    name: str
    state: str
    session: int | None = None
    last_seen: int | None = None
    last_durable: int | None = None
    last_acked: int | None = None
    ended: bool = False
    partition: int = 0


class SessionStatus(msgspec.Struct, frozen=True):
    """A connection of a connector."""

    number: int
    peer: str
    program: str
    instance: str
    state: str
    credits: int
    messages: int
    dropped: int
    bytes: int


class WorkerStatus(msgspec.Struct, frozen=True):
    """A worker. `answers` is False for one that is in the directory and does not."""

    name: str
    address: str
    http: str
    answers: bool = True
    started: float = 0.0
    sessions: list[SessionStatus] = []
    streams: list[StreamStatus] = []
    counters: dict[str, int] = {}
    recent: list[str] = []
    journals: str = ""
    """The prefix of its journals, where a directory has told: between workers of one prefix instances can move."""
    pipeline: str = ""
    """The pipeline whose source it is: what it takes goes into that one's log, and no instance of it moves."""


def snapshot(worker: Worker) -> WorkerStatus:
    """A worker of this process, as it is now."""
    counters = worker.counters
    counted = ("messages", "bytes", "dropped", "refused", "faults", "given_up", "rollbacks", "migrations")
    sessions = [
        SessionStatus(
            peer.number,
            peer.address,
            peer.hello.program if peer.hello else "",
            peer.hello.instance if peer.hello else "",
            peer.session.connection.value,
            peer.session.credits.held,
            peer.messages,
            peer.dropped,
            peer.bytes,
        )
        for peer in sorted(worker.peers, key=lambda peer: peer.number)
    ]
    return WorkerStatus(
        worker.me.name,
        worker.me.address,
        worker.http,
        True,
        worker.started,
        sessions,
        _streams(worker),
        {name: getattr(counters, name) for name in counted},
        list(counters.recent),
        pipeline=worker.pipeline,
    )


def _streams(worker: Worker) -> list[StreamStatus]:
    peers = {peer.number: peer for peer in worker.peers}
    streams = []
    for name, instance in sorted(worker.instances.items()):
        registry = instance.registry
        for stream in sorted(registry.points.keys() | registry.held.keys()):
            point, holding = registry.points.get(stream), registry.held.get(stream)
            last = None if point is None or point.last == NOTHING_SEEN else point.last
            peer = peers.get(holding.session) if holding is not None else None
            streams.append(
                StreamStatus(
                    name,
                    stream,
                    point.name if point is not None else "",
                    holding.state.value if holding is not None else "inactive",
                    holding.session if holding is not None else None,
                    last if peer is None else peer.last_seen(stream),
                    last,
                    last if peer is None else peer.acked.get(stream),
                    point is not None and point.ended,
                    instance.partition_of(stream),
                )
            )
    return streams


def metrics(status: WorkerStatus) -> str:
    """The page of `/metrics`."""
    lines: list[str] = []

    def family(name: str, kind: str, text: str) -> str:
        full = f"penstock_connector_{name}"
        lines.extend((f"# HELP {full} {text}", f"# TYPE {full} {kind}"))
        return full

    for counter, value in status.counters.items():
        full = family(f"{counter}_total", "counter", f"{counter.replace('_', ' ')} since the worker started.")
        lines.append(f"{full} {value}")
    lines.append(f"{family('sessions', 'gauge', 'Connections of connectors.')} {len(status.sessions)}")
    full = family("session", "gauge", "1 for each connection of a connector.")
    for one in status.sessions:
        who = {"peer": one.peer, "program": one.program, "state": one.state}
        lines.append(f"{full}{{{_labels(session=one.number, instance=one.instance, **who)}}} 1")
    full = family("session_credits", "gauge", "Credits that a connector holds.")
    for one in status.sessions:
        lines.append(f"{full}{{{_labels(session=one.number, instance=one.instance)}}} {one.credits}")
    full = family("stream", "gauge", "1 for each stream; session: who holds it, if anybody does.")
    for stream in status.streams:
        held = "" if stream.session is None else stream.session
        labels = _labels(
            instance=stream.instance, stream=stream.id, name=stream.name, state=stream.state, session=held
        )
        lines.append(f"{full}{{{labels}}} 1")
    told = {
        "last_seen": "Last id that came.",
        "last_durable": "Last id in the log.",
        "last_acked": "Last id acknowledged.",
    }
    for name, text in told.items():
        full = family(f"stream_{name}", "gauge", text)
        for stream in status.streams:
            value_or_none = getattr(stream, name)
            if value_or_none is not None:
                labels = _labels(
                    instance=stream.instance, stream=stream.id, name=stream.name, state=stream.state
                )
                lines.append(f"{full}{{{labels}}} {value_or_none}")
    return "\n".join(lines) + "\n"


def _labels(**values: object) -> str:
    def escaped(value: object) -> str:
        return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return ",".join(f'{name}="{escaped(value)}"' for name, value in values.items())


async def survey(client: Journals, prefix: str | None = None) -> Sequence[WorkerStatus]:
    """Every worker of a directory, or of all that there are; those that do not answer as well."""
    if prefix is not None:
        return await _listed(client, prefix)
    found = await asyncio.gather(*(_listed(client, each) for each in await directory.prefixes(client)))
    return [worker for workers in found for worker in workers]


async def _listed(client: Journals, prefix: str) -> list[WorkerStatus]:
    known = await directory.workers(client, prefix)
    asked = await asyncio.gather(*(_asked(entry) for entry in known))
    return [msgspec.structs.replace(one, journals=prefix) for one in asked]


async def _asked(entry: directory.Entry) -> WorkerStatus:
    owner = entry.owner
    if entry.http:
        try:
            status, body = await asyncio.to_thread(request, entry.http, "GET", "/status")
            told = msgspec.json.decode(body, type=WorkerStatus) if status == 200 else None
            # The port of one that was killed may be another's by now, and on another machine it is always another's.
            if told is not None and (told.name, told.address) == (owner.name, owner.address):
                return told
        except (OSError, PenstockError, http.client.HTTPException, msgspec.DecodeError):
            pass
    return WorkerStatus(owner.name, owner.address, entry.http, answers=False, pipeline=entry.pipeline)


def request(address: str, method: str, path: str, body: bytes = b"", token: bytes = b"") -> tuple[int, bytes]:
    """One HTTP request to a worker."""
    host, port = split(address)
    connection = http.client.HTTPConnection(host, port, timeout=_PATIENCE)
    try:
        headers = {"Authorization": f"Bearer {token.hex()}"} if token else {}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(_LONGEST)
    finally:
        connection.close()
