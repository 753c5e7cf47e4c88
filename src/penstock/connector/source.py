"""The source kit: write `read`, `seek` and perhaps `ack`; the protocol is in here.

    class Numbers(Stream):
        name = "numbers"

        def seek(self, point):                # where to go on: behind this id; None is the very beginning
            self.next = 1 if point is None else point + 1

        def read(self):                       # the next records; [] if there is nothing now, None at the end
            batch = [Record(n, b"%d" % n) for n in range(self.next, self.next + 100)]
            self.next += 100
            return batch

    Connector(["127.0.0.1:7110"], "numbers", [Numbers()], cookie=b"...").run()

**Who calls what.** `seek` when the worker has accepted the stream, before the first `read`, and again after every lost
connection. Then `read`, again and again; one that has many records at once gives them as `Columns`, which cost less
than half. Both may be plain or `async`; a plain one that waits says `blocking = True` and runs in a thread, one call at
a time: after a lost connection `seek` waits for a `read` that is still at it. `ack` waits for nothing, and may be
called meanwhile. Ids of a stream only grow; the same record always has the same id. `seek` may land earlier than asked:
what the log has already is dropped by its id. If it cannot reach the point it raises `CannotSeekError`, the worker is
told why, and the connector ends. `ack(point)` says that everything up to that id is durable; what was read and not
acknowledged may be asked for again.

**What is promised.** Each record that `read` gave is in the journal once, in order, if `seek` and `read` keep to that.
Lost connections are made again, at the other addresses as well, later each time; a worker may move the connector to
another one. `run` returns when all streams have ended and everything is durable.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import ssl
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar, cast

from penstock.base import faults, memory
from penstock.base.errors import PenstockError, UsageError
from penstock.connector import frames as fr
from penstock.connector.columns import Columns
from penstock.connector.frames import NOTHING_SEEN, SOURCE_VERSION
from penstock.connector.link import Link, LinkLostError, MovedError, WorkerRefusedError, connect, is_final
from penstock.connector.session import Connection
from penstock.connector.session import Stream as State
from penstock.connector.settings import split
from penstock.connector.stream import (
    CannotSeekError,
    Flow,
    IteratorStream,
    Record,
    Records,
    Stream,
    stream_id,
)

__all__ = [
    "CannotSeekError",
    "Columns",
    "Connector",
    "IteratorStream",
    "Record",
    "Records",
    "SourceFailedError",
    "Stream",
    "stream_id",
]

log = logging.getLogger(__name__)

_IDLE = 0.05
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
_MIGRATION_TRIES = 8
_ACK_PATIENCE = 5.0
"""Seconds that a stream which has been read to its end waits for the ACK of its last record."""
_T = TypeVar("_T")


def wait_after(failures: int) -> float:
    """Seconds before the next attempt; some more, some less, so that not all connectors come back at once."""
    longest = min(_FIRST_WAIT * 2.0 ** min(failures, 10), _LONGEST_WAIT)
    return longest * random.uniform(0.5, 1.0)


class SourceFailedError(PenstockError):
    """The connector ended, since one of its streams or the worker said that it cannot go on."""


class Connector:
    """Streams of one instance to whichever worker takes them."""

    def __init__(
        self,
        addresses: Sequence[str],
        instance: str,
        streams: Sequence[Stream],
        *,
        cookie: bytes = b"",
        program: str = "penstock",
        version: str = SOURCE_VERSION,
        max_frame: int = fr.MAX_FRAME,
        patience: float | None = None,
        migration_tries: int = _MIGRATION_TRIES,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`patience`: seconds without any worker after which `run` gives up; None: never.

        `tls`: whom to trust, for workers that speak TLS; all that this connector is sent to do then.

        `migration_tries`: how often the address that a worker names is tried before the old one is, too.
        """
        if not addresses or not streams:
            raise UsageError("a connector needs the address of a worker, and a stream")
        for address in addresses:
            split(address)
        self._seeds = list(dict.fromkeys(addresses))
        self._turn = 0
        self._hello = fr.Hello(version, cookie, program, instance, frozenset({fr.MIGRATE}))
        self._flows = {flow.id: flow for flow in map(Flow, streams)}
        self._max_frame = max_frame
        self._patience = patience
        self._migration_tries = migration_tries
        self._tls = tls
        self._check(streams)
        self._stop = asyncio.Event()
        self._heard = 0.0
        """When there was a session last."""
        self.link: Link | None = None
        self.progressed = False
        self.acked: dict[str, int] = {}
        """The last id of each stream, by its name, that is durable."""

    def _check(self, streams: Sequence[Stream]) -> None:
        seen: dict[int, str] = {}
        for stream in streams:
            other = seen.setdefault(stream_id(stream.name), stream.name)
            if len(seen) < len(streams) and (
                other != stream.name or [s.name for s in streams].count(other) > 1
            ):
                raise UsageError(
                    f"streams '{other}' and '{stream.name}' have the same id",
                    hint="call one of them something else",
                )

    def run(self) -> None:
        """Until all streams have ended."""
        asyncio.run(self.serve())

    def stop(self) -> None:
        """End soon; what was sent and not acknowledged will be asked for again next time."""
        self._stop.set()

    async def serve(self) -> None:
        """As `run`, in an event loop."""
        memory.keep_used()
        failures, self._heard = 0, asyncio.get_running_loop().time()
        link: Link | None = None
        while not self._stop.is_set() and not self._done:
            try:
                link = link or await self._unless_stopped(self._connected(self._address))
                if link is None:
                    return
                link = await self._session(link)
                failures = 0
                continue
            except MovedError as moved:
                self._prefer(moved.address)
            except (LinkLostError, WorkerRefusedError) as error:
                if is_final(error, first=self.link is None):
                    raise
                self._turn += 1
                # Told once where nothing gets anywhere: who waits at a wrong address would not know why.
                known = failures or self.progressed
                log.log(logging.INFO if known else logging.WARNING, "%s; trying again", error.message)
            link = None
            self._require_patience()
            # After a session that got somewhere the next one is tried at once; then each waits longer.
            failures, self.progressed = 0 if self.progressed else failures + 1, False
            if failures:
                await self._pause(failures)

    async def _unless_stopped(self, work: Coroutine[object, object, _T]) -> _T | None:
        """What that gives; None, and it is broken off, if the connector is told to stop first."""
        stopping = asyncio.ensure_future(self._stop.wait())
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
            return await working if working.done() else None
        finally:
            stopping.cancel()
            working.cancel()
            with suppress(asyncio.CancelledError, PenstockError):
                await working

    def _require_patience(self) -> None:
        silence = asyncio.get_running_loop().time() - self._heard
        if self._patience is not None and silence > self._patience:
            raise SourceFailedError(
                f"no worker answered for {self._patience:g} s", hint="start one, or name another address"
            )

    async def _connected(self, address: str) -> Link:
        return await connect(address, self._hello, self._tls)

    async def _pause(self, failures: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_after(failures)):
                await self._stop.wait()

    @property
    def _done(self) -> bool:
        return all(flow.ended for flow in self._flows.values())

    @property
    def _address(self) -> str:
        return self._seeds[self._turn % len(self._seeds)]

    def _prefer(self, *addresses: str) -> None:
        """Use these from now on, the first of them first; the others are tried if nobody answers there."""
        self._seeds = list(dict.fromkeys([*addresses, *self._seeds]))
        self._turn = 0

    def _fall_back(self, old: str, new: str) -> None:
        """What to try, the one before the other, if a migration comes to nothing and the connection is lost."""
        self._prefer(old, new)
        self._turn = -1

    # One session.

    async def _session(self, link: Link) -> Link | None:
        """Stream over a link until it ends; the link to go on with, if the worker sent us to another."""
        self.link = link
        try:
            return await self._unless_stopped(_Session(self, link).work())
        finally:
            self.link = None
            self._heard = asyncio.get_running_loop().time()
            await link.close()


class _Session:
    """What happens over one link."""

    def __init__(self, connector: Connector, link: Link) -> None:
        self._connector = connector
        self._link = link
        self._flows = connector._flows
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcome: asyncio.Future[Link | None]
        self._target = ""
        self._leaving = False
        self._closed = asyncio.Event()
        self._durable: dict[int, int] = {}
        """The last id of each stream that this worker has told to be durable."""
        self._refused: list[Flow] = []

    async def work(self) -> Link | None:
        """Until the worker ends it, or something fails; a link, if that is where to go on."""
        self._outcome = asyncio.get_running_loop().create_future()
        self._start(self._listen())
        self._start(self._notify(list(self._flows.values())))
        try:
            return await self._outcome
        except LinkLostError:
            raise
        except (MovedError, WorkerRefusedError):
            raise
        except Exception as error:
            reason = error.message if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
            with suppress(PenstockError):
                await self._link.send(fr.Error(reason))
            raise SourceFailedError(reason, hint=getattr(error, "hint", None)) from error
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._outcome.done():
            self._outcome.set_exception(error)

    def _finish(self, link: Link | None) -> None:
        if not self._outcome.done():
            self._outcome.set_result(link)

    async def _notify(self, flows: Sequence[Flow]) -> None:
        for flow in flows:
            if not flow.ended and not self._target:
                await self._link.credits(1)
                with faults.step("source-notify"):
                    await self._link.send(fr.Notify(flow.id, flow.stream.name, self._hint(flow)))

    def _hint(self, flow: Flow) -> int:
        return self._connector.acked.get(flow.stream.name, 0)

    async def _listen(self) -> None:
        async for frame in self._link.frames():
            match frame:
                case fr.NotifyAck(success=True, stream=stream, point=point):
                    self._accepted(self._flows[stream], point)
                case fr.NotifyAck(stream=stream):
                    self._refused.append(self._flows[stream])
                case fr.Ack(points=points):
                    await self._acked(points)
                case fr.Restart(address=address):
                    if address:
                        raise MovedError(address)
                    raise LinkLostError("the worker asked to start again")
                case fr.Error(reason=reason):
                    raise WorkerRefusedError(f"the worker ended the session: {reason}")
                case fr.Migrate(host=host, port=port):
                    self._migrate(f"{host}:{port}")
                case _:
                    pass
            self._closed.set()
            if self._connector._done:
                self._finish(None)
                return
        if not self._connector._done:
            raise LinkLostError(f"the worker at {self._link.address} closed the connection")

    def _accepted(self, flow: Flow, point: int) -> None:
        self._durable[flow.id] = point
        self._start(self._pump(flow, None if point == NOTHING_SEEN else point))

    async def _acked(self, points: Iterable[tuple[int, int]]) -> None:
        for stream, point in points:
            flow = self._flows.get(stream)
            if flow is None:
                continue
            self._connector.progressed = True
            if point != NOTHING_SEEN:
                self._require_order(flow, point)
                self._connector.acked[flow.stream.name] = self._durable[stream] = point
                await _called(flow.stream.ack(point))
            if flow.at_end and self._link.session.stream(stream) is State.CLOSED:
                flow.ended = True
        if self._refused and not self._target:
            again, self._refused = self._refused, []
            self._start(self._notify(again))

    def _require_order(self, flow: Flow, point: int) -> None:
        """More is durable of a stream that has ended than its last record: it will never be told that this is, too."""
        session = self._link.session
        if session.stream(flow.id) is State.CLOSING and point > session.last[flow.id]:
            raise UsageError(
                f"stream '{flow.stream.name}' ended with message {session.last[flow.id]}, behind message {point}: the "
                "worker drops whatever has no greater id than the one before it",
                hint="ids of a stream only grow",
            )

    # One stream.

    async def _pump(self, flow: Flow, point: int | None) -> None:
        stream, link = flow.stream, self._link
        flow.at_end = False
        await self._call(flow, lambda: stream.seek(point))
        while not self._target:
            records = await self._call(flow, stream.read)
            if records is None:
                flow.at_end = not self._target
                break
            if not records:
                await asyncio.sleep(_IDLE)
                continue
            at = 0
            while at < len(records) and not self._target:
                some = records[at : at + await link.credits(len(records) - at)]
                await link.send_messages(flow.id, some, self._connector._max_frame)
                at += len(some)
        await self._all_durable(flow)
        if link.is_open:
            with faults.step("source-close"):
                await link.send(fr.EosMessage(flow.id))

    async def _all_durable(self, flow: Flow) -> None:
        """Wait for the ACK of what was sent, so that another one of the same id can only be that of the end.

        Otherwise the first might pass the EOS_MESSAGE on its way: then a worker that crashes would never hear of an end
        that is taken for acknowledged here. Not for ever: a worker may acknowledge nothing before the end.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_ACK_PATIENCE):
                while not self._target and not self._is_durable(flow.id):
                    self._closed.clear()
                    await self._closed.wait()

    def _is_durable(self, stream: int) -> bool:
        durable, sent = self._durable[stream], self._link.session.last[stream]
        return durable == sent or (durable != NOTHING_SEEN and durable > sent)

    async def _call(self, flow: Flow, method: Callable[[], object]) -> Records:
        if flow.stream.blocking:
            return cast("Records", await flow.in_thread(method))
        return await _called(method())

    # Migration.

    def _migrate(self, address: str) -> None:
        """Stop reading, close the streams, wait for their last ACKs; then go. The later of two addresses counts.

        Whether the worker took an EOS_MESSAGE that is not acknowledged yet for the end of a stream, or for that of a
        stream that goes on elsewhere, cannot be known: it is said again there.
        """
        self._target = address
        for flow in self._flows.values():
            flow.at_end = False
        self._connector._fall_back(self._link.address, address)
        if not self._leaving:
            self._leaving = True
            self._start(self._leave())

    async def _leave(self) -> None:
        open_states = {State.OPEN, State.CLOSING, State.NOTIFY_SENT}
        while any(state in open_states for state in self._link.session.streams.values()):
            self._closed.clear()
            await self._closed.wait()
        for failures in range(1, self._connector._migration_tries + 1):
            try:
                with faults.step("source-move"):
                    link = await self._connector._connected(self._target)
            except MovedError as moved:
                self._target = moved.address
                self._connector._fall_back(self._link.address, moved.address)
                continue
            except (LinkLostError, WorkerRefusedError) as error:
                log.info("%s", error.message)
                await asyncio.sleep(wait_after(failures))
                continue
            if self._link.session.connection is Connection.MIGRATING:
                with suppress(PenstockError), faults.step("source-moved"):
                    await self._link.send(fr.MigrationAck())
            self._connector._prefer(link.address)
            self._finish(link)
            return
        with suppress(PenstockError):
            await self._link.send(fr.Error(f"nobody answers at {self._target}"))
        raise LinkLostError(f"nobody answers at {self._target}")


async def _called(result: object) -> Records:
    return cast("Records", await result if inspect.isawaitable(result) else result)
