"""What a connector and a worker say to each other over one link: streams asked for, sent, ended, and taken elsewhere.

`Connector` has the link, and makes the next one. Here a task listens, another asks for the streams, and each stream
that the worker has accepted has a task that reads it. All of them end with the conversation.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import cast

from penstock.base import faults
from penstock.base.errors import PenstockError, UsageError
from penstock.connector import frames as fr
from penstock.connector.addresses import Addresses, wait_after
from penstock.connector.frames import NOTHING_SEEN
from penstock.connector.given import UNSENDABLE, fault, last_id, together
from penstock.connector.link import (
    Fields,
    Link,
    LinkLostError,
    MovedError,
    SenselessError,
    WorkerRefusedError,
    is_final,
)
from penstock.connector.session import Connection
from penstock.connector.session import Stream as State
from penstock.connector.stream import CannotSeekError, Flow, Records, SourceFailedError

log = logging.getLogger(__name__)

_IDLE = 0.05
_TURN = 0.001
"""Seconds after which a stream that always has something lets others run: ACKs come in, and `stop` is heard.

Not after each `read`: one that gives a single record would cost a third more.
"""
_ACK_PATIENCE = 5.0
"""Seconds that a stream which has been read to its end waits for the ACK of its last record."""


class Conversation:
    """What happens over one link."""

    def __init__(
        self,
        link: Link,
        flows: Mapping[int, Flow],
        addresses: Addresses,
        *,
        connect: Callable[[str], Awaitable[Link]],
        max_frame: int,
        migration_tries: int,
    ) -> None:
        """`connect`: how to make a link to the worker that this one names."""
        self._link = link
        self._flows = flows
        self._addresses = addresses
        self._connect = connect
        self._max_frame = max_frame
        self._migration_tries = migration_tries
        self.progressed = False
        """Something has been acknowledged."""
        self.accepted = False
        """The worker has taken a stream."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcome: asyncio.Future[Link | None]
        self._asking: set[asyncio.Task[None]] = set()
        """Those that wait for a `seek` or a `read`."""
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
        except SenselessError as error:
            await self._give_up(error.reason)
            raise
        except (LinkLostError, MovedError, WorkerRefusedError):
            raise
        except Exception as error:
            reason = _reason(error)
            await self._give_up(reason)
            raise SourceFailedError(reason, hint=getattr(error, "hint", None)) from error
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _give_up(self, reason: str) -> None:
        """Tell the worker why."""
        with suppress(PenstockError):
            await self._link.send(fr.Error(reason))

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._outcome.done():
            return  # we are the ones that cancel it, or nobody asks any more
        if task.cancelled():
            self._outcome.set_exception(UsageError("a method of a stream was cancelled, and not by us"))
        elif (error := task.exception()) is not None:
            self._outcome.set_exception(error)

    def _finish(self, link: Link | None) -> None:
        if not self._outcome.done():
            self._outcome.set_result(link)

    async def _notify(self, flows: Sequence[Flow]) -> None:
        for flow in flows:
            if not flow.ended and not self._target:
                await self._link.credits(1)
                with faults.step("source-notify"):
                    await self._link.send(fr.Notify(flow.id, flow.stream.name, flow.acked or 0))

    async def _listen(self) -> None:
        async for frame in self._link.frames():
            match frame:
                case fr.NotifyAck(success=True, stream=stream, point=point):
                    self._accepted(self._flows[stream], point)
                case fr.NotifyAck(stream=stream):
                    if self._link.session.stream(stream) is State.CLOSED:  # or it answers no NOTIFY of ours
                        self._refused.append(self._flows[stream])
                case fr.Ack(points=points):
                    await self._acked(points)
                case fr.Restart(address=address):
                    if address:
                        raise MovedError(address)
                    raise LinkLostError("the worker asked to start again")
                case fr.Error(reason=reason):
                    raise WorkerRefusedError(f"the worker at {self._link.address} ended the session", reason)
                case fr.Migrate(host=host, port=port):
                    self._migrate(f"{host}:{port}")
                case _:
                    pass
            self._closed.set()
            if self._is_done:
                self._finish(None)
                return
        if not self._is_done:
            raise LinkLostError(f"the worker at {self._link.address} closed the connection")

    @property
    def _is_done(self) -> bool:
        return all(flow.ended for flow in self._flows.values())

    def _accepted(self, flow: Flow, point: int) -> None:
        self.accepted = True
        self._durable[flow.id] = point
        self._start(self._pump(flow, None if point == NOTHING_SEEN else point))

    async def _acked(self, points: Iterable[tuple[int, int]]) -> None:
        for stream, point in points:
            flow = self._flows.get(stream)
            if flow is None:
                continue
            self.progressed = True
            if point != NOTHING_SEEN:
                self._require_sent(flow, point)
                flow.acked = self._durable[stream] = point
                if inspect.isawaitable(acked := flow.stream.ack(point)):
                    await self._unless_cancelled(flow, acked)
            if flow.at_end and self._link.session.stream(stream) is State.CLOSED:
                flow.ended = True
        if self._refused and not self._target:
            again, self._refused = self._refused, []
            self._start(self._notify(again))

    async def _unless_cancelled(self, flow: Flow, acked: Awaitable[None]) -> None:
        try:
            await acked
        except asyncio.CancelledError:
            if not cast("asyncio.Task[None]", asyncio.current_task()).cancelling():
                raise UsageError(f"stream '{flow.stream.name}': `ack` was cancelled, and not by us") from None
            raise

    def _require_sent(self, flow: Flow, point: int) -> None:
        """More is durable of a stream that has ended than its last record: it will never be told that this is, too."""
        session = self._link.session
        if session.stream(flow.id) is State.CLOSING and point > session.last[flow.id]:
            raise SenselessError(
                self._link.address,
                f"ACK of message {point} of stream_id {flow.id}, which ended with message {session.last[flow.id]}",
            )

    # One stream.

    async def _pump(self, flow: Flow, point: int | None) -> None:
        stream, link, last = flow.stream, self._link, -1
        clock, turn = asyncio.get_running_loop().time, 0.0
        flow.at_end = False
        if not self._target:
            await self._asked(flow, lambda: stream.seek(point))
        while not self._target:
            records = await self._asked(flow, stream.read)
            if records is None:
                flow.at_end = not self._target
                break
            if records:
                last = await self._give(flow, records, last)
                if clock() - turn >= _TURN:
                    await asyncio.sleep(0)
                    turn = clock()
            else:
                await asyncio.sleep(_IDLE)
        await self._all_durable(flow)
        if link.is_open:
            with faults.step("source-close"):
                await link.send(fr.EosMessage(flow.id))

    async def _give(self, flow: Flow, records: Sequence[Fields], last: int) -> int:
        """Send what `read` gave behind message `last`, as there are credits for it; the last id of it."""
        try:
            records = together(records)
            reached, at = last_id(records, last), 0
            while at < len(records) and not self._target:
                some = records[at : at + await self._link.credits(len(records) - at)]
                await self._link.send_messages(flow.id, some, self._max_frame)
                at += len(some)
        except UNSENDABLE as error:
            what = fault(records, last) or _reason(error)
            raise UsageError(f"stream '{flow.stream.name}': {what}") from error
        return reached

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

    async def _asked(self, flow: Flow, method: Callable[[], object]) -> Records:
        """What a method of the stream gives; None if we are told to go before it does."""
        try:
            given = flow.in_thread(method) if flow.stream.blocking else method()
            return cast(
                "Records", await self._unless_moved(flow, given) if inspect.isawaitable(given) else given
            )
        except Exception as error:
            if isinstance(error, PenstockError) and not isinstance(error, fr.Unsendable):
                raise
            raise UsageError(f"stream '{flow.stream.name}': {_reason(error)}") from error

    async def _unless_moved(self, flow: Flow, waiting: Awaitable[object]) -> object:
        """Broken off if we are told to go. What it has taken from its source comes again: a `seek` is called next."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._asking.add(task)
        try:
            return await waiting
        except asyncio.CancelledError:
            if not task.cancelling():
                raise UsageError(f"stream '{flow.stream.name}': it was cancelled, and not by us") from None
            if not self._target or task.uncancel():
                raise  # the conversation is over
            return None
        except Exception as error:
            # Drivers make errors of their own of our cancelling.
            if (
                isinstance(error, CannotSeekError)
                or not (self._target and task.cancelling())
                or task.uncancel()
            ):
                raise
            log.info("stream '%s' was broken off to go elsewhere: %s", flow.stream.name, _reason(error))
            return None
        finally:
            self._asking.discard(task)

    # Migration.

    def _migrate(self, address: str) -> None:
        """Stop reading at once, close the streams, wait for their last ACKs; then go. The later address counts.

        Whether the worker took an EOS_MESSAGE that is not acknowledged yet for the end of a stream, or for that of a
        stream that goes on elsewhere, cannot be known: it is said again there.
        """
        self._target = address
        for flow in self._flows.values():
            flow.at_end = False
        self._addresses.fall_back(self._link.address, address)
        if not self._leaving:
            self._leaving = True
            for task in self._asking:
                task.cancel()
            self._start(self._leave())

    async def _leave(self) -> None:
        open_states = {State.OPEN, State.CLOSING, State.NOTIFY_SENT}
        while any(state in open_states for state in self._link.session.streams.values()):
            self._closed.clear()
            await self._closed.wait()
        why = "sent elsewhere each time"
        for failures in range(1, self._migration_tries + 1):
            try:
                with faults.step("source-move"):
                    link = await self._connect(self._target)
            except MovedError as moved:
                self._target = moved.address
                self._addresses.fall_back(self._link.address, moved.address)
                continue
            except (LinkLostError, WorkerRefusedError) as error:
                why = error.message
                log.info("%s", why)
                if is_final(error):
                    break
                await asyncio.sleep(wait_after(failures))
                continue
            if self._link.session.connection is Connection.MIGRATING:
                with suppress(PenstockError), faults.step("source-moved"):
                    await self._link.send(fr.MigrationAck())
            self._addresses.prefer(link.address)
            self._finish(link)
            return
        why = f"cannot go to {self._target}: {why}"
        await self._give_up(why)
        raise LinkLostError(why)


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
