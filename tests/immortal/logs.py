"""What is in the log of an instance, and what the instance makes of it when it is run again."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.immortal.lb import App, Lb
from tests.servers.ports import free_port

from penstock.immortal import checkpoints
from penstock.immortal.coordinator import Options
from penstock.immortal.journals import journal_name
from penstock.immortal.logformat import LogDecoder, LogRecord, Marked
from penstock.immortal.place import Place, opened
from penstock.immortal.starting import Debug, serve
from penstock.immortal.wire import Call, MessageType, decode_incoming, rpcs_of, split_messages

PATIENCE = 60.0


class Log(NamedTuple):
    """A log from its first checkpoint on, and who took that one."""

    items: list[LogRecord | Marked]
    first_owner: str

    @property
    def records(self) -> list[LogRecord]:
        return [item for item in self.items if isinstance(item, LogRecord)]


def log_of(place: str, name: str) -> Log:
    """All of the log of which nothing was deleted; an error if its records do not follow each other."""

    async def read() -> tuple[checkpoints.Entry, bytes]:
        async with opened(place) as there:
            first = await _first_checkpoint(there, name)
            return first, await there.client.read_bytes(journal_name(name, "log"), first.log_offset)

    first, content = asyncio.run(read())
    decoder = LogDecoder(name, first.log_offset, sequence=0)
    found = decoder.feed(content)
    assert not decoder.held, "the log breaks off"
    return Log(found, first.by)


async def _first_checkpoint(place: Place, name: str) -> checkpoints.Entry:
    first = (await checkpoints.catalogue(place.client, name)).entries[0]
    assert first.number == 1, "checkpoints were deleted"
    return first


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
    calls = [call for record in log_of(place, name).records for call in calls_in(record)]
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
        first = await _first_checkpoint(there, name)
        options = Options(name, free_port(), free_port())
        running = [
            asyncio.ensure_future(serve(options, there, tell, Debug(first.number))),
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
