"""What is in the log of an instance, and what the instance makes of it when it is run again."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tests.immortal.lb import App, Lb
from tests.servers.ports import free_port

from penstock.immortal import checkpoints
from penstock.immortal.coordinator import Options
from penstock.immortal.journals import journal_name
from penstock.immortal.logformat import LogDecoder, LogRecord, Marked
from penstock.immortal.place import is_address, opened
from penstock.immortal.starting import Debug, serve
from penstock.immortal.wire import Call, MessageType, decode_incoming, rpcs_of, split_messages
from penstock.journal import labels
from penstock.journal.client import Client
from penstock.journal.embedded import connect

PATIENCE = 60.0


@contextmanager
def client_of(place: str) -> Iterator[Client]:
    """For looking: without an event loop, of which gRPC does not like several."""
    if is_address(place):
        with Client(place) as client:
            yield client
    else:
        with connect(Path(place)) as client:
            yield client


def log_of(place: str, name: str) -> list[LogRecord | Marked]:
    """All of a log of which nothing was deleted; an error if its records do not follow each other."""
    journal = journal_name(name, "log")
    with client_of(place) as client:
        begin = client.begin(journal)
        decoder = LogDecoder(journal, begin, sequence=0)
        found = decoder.feed(client.read_bytes(journal, begin, client.head(journal)))
    assert not decoder.held, "the log breaks off"
    return found


def checkpoints_of(place: str, name: str) -> list[checkpoints.Entry]:
    """Those that an instance could recover from; none before it is made."""
    journal = journal_name(name, "checkpoints")
    with client_of(place) as client:
        if journal not in {found.spec.name for found in client.list()}:
            return []
        for found in labels.values_of(client.append(journal, b"").registers, checkpoints.CATALOGUE):
            begin, _, end = found.partition("-")
            frame = client.read_bytes(journal, int(begin), int(end))
            return msgspec.json.decode(frame[frame.index(b"{") :], type=checkpoints.Catalogue).entries
    return []


def calls_in(record: LogRecord) -> list[Call]:
    """The calls of a record."""
    found = []
    for message in split_messages(record.body):
        if message.type != MessageType.INITIAL_MESSAGE:
            for data in rpcs_of(message.type, message.data):
                rpc = decode_incoming(data)
                assert isinstance(rpc, Call)
                found.append(rpc)
    return found


@dataclass(frozen=True)
class Rerun:
    """An instance that was run again from its first checkpoint to the end of its log."""

    state: dict[str, Any]
    sent: dict[int, bytes]
    """The numbered calls that it made to its peer, by their numbers."""
    got: dict[int, bytes]
    """Those that its peer had made to it."""


class Again(Lb):
    """A binding that remembers what its app sends to others."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.sent: list[Call] = []

    def send(self, destination: str, call: Call) -> None:
        if destination:
            self.sent.append(call)
        super().send(destination, call)


def rerun(place: str, name: str, app: App, *, from_peer: int) -> Rerun:
    """Run it again in repro mode, where nothing is written and nobody gets what it sends.

    `from_peer` is the method that its peer calls. In a log, all numbered calls of it must be there once, in order.
    """
    lb = asyncio.run(_replayed(place, name, app))
    calls = [call for item in log_of(place, name) if isinstance(item, LogRecord) for call in calls_in(item)]
    return Rerun(
        app.state, _numbered(lb.sent), _numbered([call for call in calls if call.method == from_peer])
    )


def _numbered(calls: list[Call]) -> dict[int, bytes]:
    numbers = [json.loads(call.arguments)["n"] for call in calls]
    assert numbers == list(range(1, len(calls) + 1))
    return dict(zip(numbers, (call.arguments for call in calls), strict=True))


async def _replayed(place: str, name: str, app: App) -> Again:
    lb = Again(app)
    caught_up: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def tell(text: str) -> None:
        found = re.match(r"Caught up with the log: record (\d+) is next", text)
        if found is not None:
            caught_up.set_result(int(found[1]))

    async def end_of_log() -> None:
        last = f"record {await caught_up - 1}"
        while lb.seen[-1:] != [last]:
            lb.changed.clear()
            await lb.changed.wait()

    async with opened(place) as there, asyncio.timeout(PATIENCE):
        options = Options(name, free_port(), free_port())
        running = [
            asyncio.ensure_future(serve(options, there, tell, Debug(1))),
            asyncio.ensure_future(lb.run(options.receive_port, options.send_port)),
            asyncio.ensure_future(end_of_log()),
        ]
        try:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
    return lb
