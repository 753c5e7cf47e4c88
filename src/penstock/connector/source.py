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
a time. A lost connection, or a worker that sends the connector elsewhere, ends a `seek` or `read` that waits: one that
is `async` is cancelled, one in a thread is left alone, and the next `seek` waits for it. What it gives then is not
sent: that `seek` says where to go on. `ack` waits for nothing, and may be called meanwhile. Ids grow from record to
record until the next `seek`, or the connector ends; the same record always has the same id. `seek` may land earlier
than asked: what the log has already is dropped by its id. If it cannot reach the point it raises `CannotSeekError`, the
worker is told why, and the connector ends. `ack(point)` says that everything up to that id is durable; what was read
and not acknowledged may be asked for again.

**What is promised.** Each record that `read` gave is in the journal once, in order, if `seek` and `read` keep to that.
Lost connections are made again, at the other addresses as well, later each time; a worker may move the connector to
another one. `run` returns when all streams have ended and everything is durable.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TypeVar

from penstock.base import memory
from penstock.base.errors import PenstockError, UsageError
from penstock.connector import frames as fr
from penstock.connector.addresses import Addresses, wait_after
from penstock.connector.columns import Columns
from penstock.connector.conversation import Conversation
from penstock.connector.frames import SOURCE_VERSION
from penstock.connector.link import (
    Link,
    LinkLostError,
    MovedError,
    SenselessError,
    WorkerRefusedError,
    connect,
    is_final,
)
from penstock.connector.stream import (
    CannotSeekError,
    Flow,
    IteratorStream,
    Record,
    Records,
    SourceFailedError,
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

_MIGRATION_TRIES = 8
_T = TypeVar("_T")


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
        self._addresses = Addresses(addresses)
        self._hello = fr.Hello(version, cookie, program, instance, frozenset({fr.MIGRATE}))
        try:
            fr.encode(self._hello)
        except (fr.Unsendable, UnicodeEncodeError) as error:
            raise UsageError(f"version, cookie, program and instance fit no HELLO: {error}") from None
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
        self._progressed = False

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

    @property
    def acked(self) -> dict[str, int]:
        """The last id of each stream, by its name, that is durable."""
        return {flow.stream.name: flow.acked for flow in self._flows.values() if flow.acked is not None}

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
        told: set[str] = set()
        refusal: PenstockError | None = None
        while not self._stop.is_set() and not self._done:
            address = link.address if link is not None else self._addresses.current
            try:
                link = link or await self._unless_stopped(self._connected(address))
                if link is None:
                    return
                link = await self._session(link)
                failures = 0
                continue
            except MovedError as moved:
                if self._addresses.redirected(address, moved.address) and refusal is not None:
                    raise refusal from None
            except (LinkLostError, WorkerRefusedError) as error:
                final = is_final(error)
                if self._addresses.failed(address, for_good=final, missed=link is None and not final):
                    raise
                refusal = error if final else None
                if isinstance(error, (WorkerRefusedError, SenselessError)):
                    self._progressed = False  # it may say the same again, each time behind some ACKs
                # Told once where nothing gets anywhere: who waits at a wrong address would not know why.
                known = self._progressed or error.message in told
                log.log(logging.INFO if known else logging.WARNING, "%s; trying again", error.message)
                told.add(error.message)
            link = None
            self._require_patience()
            # After a session that got somewhere the next one is tried at once; then each waits longer.
            if self._progressed:
                told.clear()
            failures, self._progressed = 0 if self._progressed else failures + 1, False
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

    async def _session(self, link: Link) -> Link | None:
        """Stream over a link until it ends; the link to go on with, if the worker sent us to another."""
        talk = Conversation(
            link,
            self._flows,
            self._addresses,
            connect=self._connected,
            max_frame=self._max_frame,
            migration_tries=self._migration_tries,
        )
        self.link = link
        try:
            return await self._unless_stopped(talk.work())
        finally:
            self.link = None
            self._progressed |= talk.progressed
            if talk.accepted:
                self._addresses.took(link.address)
            self._heard = asyncio.get_running_loop().time()
            await link.close()
