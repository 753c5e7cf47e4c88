"""A connector, or a worker, whose machine vanishes without a word: its stream goes on elsewhere, whole and once.

The machine is a network namespace that is cut off: no FIN and no RST comes, as when a cable is pulled. The quick tests
have short limits; one has those that users have.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.connector.rig import COOKIE, WAIT, Numbers, eventually, ids_of, rig
from tests.connector.sinking import ROOT
from tests.servers.namespaces import Namespace, namespaces

from penstock.connector import directory, link, wire
from penstock.connector.serving import Peer
from penstock.connector.settings import split
from penstock.connector.source import Connector, stream_id
from penstock.connector.worker import Worker

FAR = """
import socket, sys
from penstock.connector import frames as fr
from penstock.connector.framing import Splitter

host, port, cookie, stream = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode(), int(sys.argv[4])
connection, splitter = socket.create_connection((host, port), 60), Splitter()

def until(wanted):
    while data := connection.recv(65536):
        if any(wanted(fr.frame_of(payload)) for payload in splitter.feed(data)):
            return
    raise SystemExit("closed")

connection.sendall(fr.encode(fr.Hello("0.0.1", cookie, "far", "i")))
until(lambda frame: isinstance(frame, fr.Ok))
connection.sendall(fr.encode(fr.Notify(stream, "s", 0)))
until(lambda frame: isinstance(frame, fr.NotifyAck) and frame.success)
sent = 0
for line in sys.stdin:
    upto, how = line.split()
    for number in range(sent + 1, int(upto) + 1):
        connection.sendall(fr.encode(fr.Message(stream, number, body=b"%d" % number)))
    sent = int(upto)
    if how == "acknowledged":
        until(lambda frame: isinstance(frame, fr.Ack) and (stream, sent) in frame.points)
    print(how, sent, flush=True)
"""


class Far:
    """A connector on a machine of its own, which sends what it is told."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def send(self, upto: int, how: str = "acknowledged") -> None:
        """Messages up to this number, and wait for their ACK; or only until they are `given` to the kernel."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{upto} {how}\n".encode())
        async with asyncio.timeout(WAIT):
            assert await self._process.stdout.readline() == f"{how} {upto}\n".encode()


@asynccontextmanager
async def far(space: Namespace, worker: Worker, name: str) -> AsyncIterator[Far]:
    host, port = split(worker.me.address)
    arguments = (host, str(port), COOKIE.decode(), str(stream_id(name)))
    async with started(space, "-c", FAR, *arguments) as process:
        yield Far(process)


@asynccontextmanager
async def started(space: Namespace, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python there, which ends with the block in any case."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *space.enter, sys.executable, *arguments, stdin=pipe, stdout=pipe, cwd=ROOT
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def under_way(peer: Peer) -> int:
    assert peer.wire.transport is not None
    return wire.under_way(peer.wire.transport.get_extra_info("socket"))


def the_peer(worker: Worker, name: str) -> Peer:
    held = worker.instances["i"].registry.held[stream_id(name)]
    (peer,) = [each for each in worker.peers if each.number == held.session]
    return peer


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that vanished is noticed in three seconds."""
    for name, value in (("QUIET", 1), ("EVERY", 1), ("TIMES", 2), ("UNANSWERED", 3.0)):
        monkeypatch.setattr(wire, name, value)


STATES = ["quiet", "an ACK under way"]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("state", STATES)
def test_the_stream_of_a_connector_that_vanished_is_taken_over_whole_and_once(
    tmp_path: Path, state: str
) -> None:
    asyncio.run(taken_over(tmp_path, state, 3.0))


@pytest.mark.soak
@pytest.mark.parametrize("state", STATES)
def test_soak_a_connector_that_vanished_is_noticed_in_about_a_minute(tmp_path: Path, state: str) -> None:
    asyncio.run(taken_over(tmp_path, state, 60.0))


async def taken_over(path: Path, state: str, limit: float) -> None:
    """One machine vanishes, and another one that says as little stays. `limit`: seconds until that is noticed."""
    with namespaces("ab") as spaces:
        gate = spaces["a"].gate_among_others
        async with AsyncExitStack() as using:
            await using.enter_async_context(asyncio.timeout(limit * 2 + 60))
            made = await using.enter_async_context(rig(path / "d"))
            worker = await made.worker(listen=f"{gate}:0")
            vanishing = await using.enter_async_context(far(spaces["a"], worker, "s"))
            quiet = await using.enter_async_context(far(spaces["b"], worker, "quiet"))
            await quiet.send(1)
            silent_since = time.monotonic()
            healthy = the_peer(worker, "quiet")
            await vanishing.send(3)
            session = the_peer(worker, "s")
            await eventually(lambda: not under_way(session))
            late: list[Callable[[], None]] = []
            if state != "quiet":
                late = await unheard(worker, session, vanishing)
            spaces["a"].cut()
            cut = time.monotonic()
            await vanishing.send(8, "given")  # into its own kernel, and no further
            for durable in late:
                durable()
            if late:
                await eventually(lambda: under_way(session) > 0)
            successor = Connector([worker.me.address], "i", [Numbers("s", 10)], cookie=COOKIE)
            going_on = asyncio.create_task(successor.serve())
            await eventually(lambda: worker.counters.refused > 0)
            assert session in worker.peers, "it may only be slow"
            while session in worker.peers:  # noqa: ASYNC110 - the kernel ends it, and no event tells
                await asyncio.sleep(0.05)
            noticed = time.monotonic() - cut
            await going_on
            assert successor.acked == {"s": 10}
            await asyncio.sleep(max(silent_since + 2 * limit - time.monotonic(), 0))  # beyond its limit, too
            assert healthy in worker.peers, "who is merely quiet stays"
            await quiet.send(2)
            assert limit / 2 <= noticed <= limit * 1.5 + 5
            assert ids_of(await made.frames()) == {
                stream_id("s"): list(range(1, 11)),
                stream_id("quiet"): [1, 2],
            }


async def unheard(worker: Worker, session: Peer, vanishing: Far) -> list[Callable[[], None]]:
    """More messages, in the log and without an ACK yet; what is returned has the worker send it."""
    instance = worker.instances["i"]
    take, late = instance.messages, list[Callable[[], None]]()
    runs = 0

    def held_back(run: object, on_durable: Callable[[], None]) -> None:
        nonlocal runs
        runs += 1
        take(run, lambda: late.append(on_durable))  # type: ignore[arg-type]

    instance.messages = held_back  # type: ignore[method-assign]
    await vanishing.send(6, "given")
    await eventually(lambda: session.messages == 6 and len(late) == runs)
    instance.messages = take  # type: ignore[method-assign]
    return late


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("state", ["quiet", "messages under way"])
def test_a_connector_goes_on_elsewhere_when_its_worker_vanished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """One that waits notices that as soon as a worker would, however long it bears one that does not read."""
    asking = partial(directory.answer_of, patience=1.0)  # before the other worker takes the instance over
    monkeypatch.setattr(directory, "answer_of", asking)
    if state != "quiet":
        monkeypatch.setattr(link, "_UNREAD", 4.0)
    (tmp_path / "cookie").write_bytes(COOKIE)

    async def test(space: Namespace) -> None:
        place = ("--data-dir", str(tmp_path / "d"), "--cookie-file", str(tmp_path / "cookie"))
        work = ("-m", "penstock", "connector", "worker", "--listen", f"{space.among_others}:0", *place)
        async with (
            asyncio.timeout(120),
            rig(tmp_path / "d") as made,
            started(space, *work) as process,
        ):
            assert process.stdout is not None
            said = (await process.stdout.readline()).decode()
            there = said.removeprefix("taking connectors on ").partition(",")[0]
            here = await made.worker()
            stream = Numbers("s", 6)
            stream.gate = 3
            connector = Connector([there, here.me.address], "i", [stream], cookie=COOKIE)
            serving = asyncio.create_task(connector.serve())
            await eventually(lambda: connector.acked == {"s": 3})
            assert not here.peers
            first = connector.link
            assert first is not None
            await eventually(lambda: not wire.under_way(first._writer.get_extra_info("socket")))
            space.cut()
            if state != "quiet":
                stream.gate = 6
            await eventually(lambda: "i" in here.instances)
            stream.gate = 6
            await serving
            assert connector.acked == {"s": 6}
            space.heal()  # who looks for others at the end need not wait for it
            assert ids_of(await made.frames()) == {stream_id("s"): [1, 2, 3, 4, 5, 6]}

    with namespaces("ab") as spaces:  # the second one keeps our own end of the network up
        asyncio.run(test(spaces["a"]))
