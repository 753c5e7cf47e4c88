"""One connection at a worker: bytes in, frames judged by the session's tables, messages to the log, ACKs when durable.

The protocol's rules are in `session`, `intake` and `registry`; here is what happens when. A peer that breaks them gets
an ERROR that says how, and its connection is closed once it had the chance to read that. Whatever ends a connection,
the streams that it held are free at once. Nothing is read while much of what the peer sent is not durable yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.base import faults
from penstock.base.errors import PenstockError
from penstock.base.texts import one_line
from penstock.connector import frames as fr
from penstock.connector.directory import STOPPING
from penstock.connector.frames import NOTHING_SEEN, Frame, FrameError
from penstock.connector.intake import Greeting, Intake, Run
from penstock.connector.session import Connection, IllegalFrameError, Session, Side, Stream, Verdict
from penstock.connector.wire import LINGER, Timer, Wire

if TYPE_CHECKING:
    from penstock.connector.worker import Instance, Worker

log = logging.getLogger(__name__)

_LOOK: Final = 1.0
"""Seconds between two looks whether a peer that waits for its instance is still there."""
REFUSAL_DELAY: Final = 0.2
"""Seconds until the ACK behind a refused NOTIFY: peers ask again at once then."""
_BESIDES: Final = 2 << 10
"""What a run that waits for the log takes of memory besides its messages, about: it may be of one short message."""


class Peer(asyncio.BufferedProtocol):
    """A connector, connected."""

    def __init__(self, worker: Worker, number: int) -> None:
        self.worker = worker
        self.number = number
        self.settings = worker.settings
        self.session = Session(strict_credits=self.settings.strict_credits)
        self.hello: fr.Hello | None = None
        self.instance: Instance | None = None
        self.address = ""
        self.messages = self.dropped = self.bytes = 0
        self.acked: dict[int, int] = {}
        self._intake = Intake(self.settings.max_frame, worker.buffers)
        self.wire = Wire()
        self._joining: asyncio.Task[None] | None = None
        self._over = False
        self._refusal: str | None = None
        """Why this peer is refused, told once it has shown that it is no worker that asks for something."""
        self._greeting, self._frame_end, self._parting = Timer(), Timer(), Timer()
        """What runs out: the wait for HELLO, for the rest of a frame, for one to go that was told to."""
        self._unsettled = 0
        self._owed = 0
        self._points: dict[int, int] = {}
        self._acking: asyncio.Handle | None = None

    def last_seen(self, stream: int) -> int | None:
        """The last id that came on a stream of this session, or that it goes on behind; None if there is none."""
        last = self._intake.last.get(stream, self.session.last.get(stream, NOTHING_SEEN))
        return None if last < 0 or last == NOTHING_SEEN else last

    @property
    def is_absent(self) -> bool:
        """Whether the peer is gone and nobody was told, since nothing is read of it at the moment."""
        return not self.wire.reading and self.wire.is_gone

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.address = self.wire.made(transport)
        self._refusal = refusal = self.worker.enter(self)
        if refusal is None:
            seconds = self.settings.hello_timeout
            self._greeting.arm(seconds, self.fail, f"no HELLO within {seconds:g} s")
        elif refusal == STOPPING:
            self.fail(refusal)
        else:
            self._greeting.arm(LINGER, self.fail, refusal)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._intake.room()

    def buffer_updated(self, count: int) -> None:
        if not self._over:
            self._intake.filled(count)
            self._process()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._let_go()
        self.wire.lost()
        if self._joining is not None:
            self._joining.cancel()
        self.worker.leave(self)

    # What comes.

    def _process(self) -> None:
        if self._over or (self._joining is not None and not self._joining.done()):
            return
        try:
            if self.hello is None:
                self._greeted()
                return
            for item in self._intake.items():
                self._frame_end.disarm()
                if isinstance(item, Run):
                    self._messages(item)
                else:
                    self._frame(item)
                if self._over:
                    return
        except (FrameError, IllegalFrameError) as error:
            self.fail(error.message)
            return
        except PenstockError as error:
            self._refused_by_the_log(error)
            return
        self._watch_the_frame()

    def _refused_by_the_log(self, error: PenstockError) -> None:
        """The log takes no more; what it has is asked for when the peer comes back."""
        log.warning("connection of %s starts again: %s", self.address, error.message)
        self.restart(self.worker.me.address)

    def _watch_the_frame(self) -> None:
        """A frame that has begun must end in time, as long as it is the peer that we wait for."""
        if not self._intake.pending or not self.wire.reading:
            self._frame_end.disarm()
        elif not self._frame_end.is_armed:
            reason = "a frame that was begun did not end in time"
            self._frame_end.arm(self.settings.frame_timeout, self.fail, reason)

    def _greeted(self) -> None:
        greeting = self._intake.greeting()
        if greeting is None:
            return
        if not isinstance(greeting, Greeting):
            self._frame(greeting)
            return
        version, cookie, payload = greeting
        if version != self.settings.version:
            self.fail(f"Unknown protocol version: {version[:40]}; this worker speaks {self.settings.version}")
            return
        if not self.settings.trusts(cookie):
            self.fail("Bad cookie")
            return
        hello = fr.frame_of(payload)
        assert isinstance(hello, fr.Hello)
        answer = self.worker.probed(hello, self._refusal)
        fault = self._refusal or self.settings.instance_fault(hello.instance)
        if answer is None and fault is not None:
            self.fail(fault)
            return
        self.hello = hello
        self.session.frame(Side.CONNECTOR, hello)
        self._greeting.disarm()
        if answer is not None:
            self._send(answer)
            self._end()
            return
        self.wire.hold()
        self._joining = asyncio.get_running_loop().create_task(self._join(hello))
        self._greeting.arm(_LOOK, self._look)

    def _look(self) -> None:
        """Whether the peer still waits for its instance."""
        if self.wire.is_gone:
            self.wire.cut()
        else:
            self._greeting.arm(_LOOK, self._look)

    async def _join(self, hello: fr.Hello) -> None:
        """Open the instance, which may take a while, and answer."""
        try:
            joined = await self.worker.join(self, hello.instance)
        except PenstockError as error:
            self.fail(error.message)
            return
        except Exception:
            self.fail("an error of the worker itself; its log has more")
            raise
        if isinstance(joined, str):
            self.send_away(joined)
            return
        self.instance = joined
        if self._over:
            return  # the worker was told to stop meanwhile
        told = fr.takes(self.settings.max_frame) if hello.capabilities else frozenset[str]()
        self._send(fr.Ok(self.settings.credits, told))
        self._greeting.disarm()
        self.wire.resume()
        # What came behind the HELLO is read once this task is over.
        asyncio.get_running_loop().call_soon(self._process)

    def _messages(self, run: Run) -> None:
        assert self.instance is not None
        if self.session.strict_credits:
            self.session.credits.spend(run.spent)
        self.messages += run.count
        self.dropped += run.spent - run.count
        self.bytes += run.size
        self.worker.counters.took(run.count, run.size, run.spent - run.count)
        if run.spent > run.count:
            self._owe(run.spent - run.count)
        if run.count:
            self._unsettled += run.size + _BESIDES
            self.instance.messages(run, lambda: self._durable(run))
        if self._unsettled > self.settings.max_pending or (run.count and self.instance.is_full):
            self.wire.hold()

    def _frame(self, frame: Frame) -> None:
        verdict = self.session.frame(Side.CONNECTOR, frame)
        match frame:
            case fr.Notify():
                self._notified(frame, verdict)
            case fr.EosMessage(stream=stream):
                self._ended(stream)
            case fr.Error(reason=reason) if self.hello is None:
                log.info("%s gave up before it said who it is: %s", self.address, one_line(reason, 200))
                self._end()
            case fr.Error(reason=reason):
                log.warning("connector %s gave up: %s", self.address, one_line(reason, 2000))
                self.worker.counters.gave_up(self.instance.name if self.instance else "", reason)
                self._end()
            case fr.MigrationAck():
                self._end()
            case _:
                pass

    def _notified(self, notify: fr.Notify, verdict: Verdict) -> None:
        if verdict is Verdict.REFUSE:
            self._refused(notify)
            return
        instance = self.instance
        assert instance is not None
        if instance.leaving:
            self._refuse(notify)
            return
        if self.session.count_streams(self.settings.max_streams) > self.settings.max_streams:
            self.fail(f"too many streams: {self.settings.max_streams} are open on this connection")
            return
        if not instance.registry.notify(self.number, notify.stream):
            instance.free(notify.stream)
            self._refuse(notify)
        elif not instance.pending_bytes:
            self._accept(notify)
        else:
            self.worker.spawn(self._accept_later(notify))

    async def _accept_later(self, notify: fr.Notify) -> None:
        """What an earlier session sent of this stream may be on its way to the log."""
        assert self.instance is not None
        try:
            await self.instance.flush()
        except PenstockError:
            return  # the log failed; all sessions hear of that
        if self._over:
            return
        try:
            self._accept(notify)
        except PenstockError as error:
            self._refused_by_the_log(error)

    def _accept(self, notify: fr.Notify) -> None:
        instance = self.instance
        assert instance is not None
        if not instance.has_room_for(notify.stream, notify.name):
            self.fail(
                "too many streams: the names of all that this instance had fill a record of its journal"
            )
            return
        with faults.step("connector-notify"):
            point = instance.registry.accepted(self.number, notify.stream, notify.name)
            if point is None:
                return
            if instance.registry.held[notify.stream].first:
                instance.opened(notify.stream, notify.name)
            self._intake.open(notify.stream, point, instance.partition_of(notify.stream))
            if point != NOTHING_SEEN:
                self.acked[notify.stream] = point
            self._owe(1)
            self._send(fr.NotifyAck(True, notify.stream, point))

    def _refuse(self, notify: fr.Notify) -> None:
        self._send(fr.NotifyAck(False, notify.stream, notify.point))
        self._after_refusal()

    def _refused(self, notify: fr.Notify) -> None:
        self._write(fr.NotifyAck(False, notify.stream, notify.point))
        self._after_refusal()

    def _after_refusal(self) -> None:
        self.worker.counters.refused += 1
        asyncio.get_running_loop().call_later(REFUSAL_DELAY, self._owe, 1)

    def _ended(self, stream: int) -> None:
        instance = self.instance
        assert instance is not None
        last = self._intake.close(stream)
        self.session.last[stream] = last
        self._points.pop(stream, None)  # an ACK of the last id says from now on that the end is durable, too
        instance.registry.ending(self.number, stream)

        def durable() -> None:
            instance.registry.closed(self.number, stream)
            # Peers that tell of no capability take the last id of an empty stream for an error.
            if last != NOTHING_SEEN or (self.hello is not None and self.hello.capabilities):
                self._points[stream] = last
                self._owe(0)
            else:
                self.session.closed_in_silence(stream)
            instance.settled()

        if self.session.connection is Connection.MIGRATING:
            self.worker.spawn(self._closed_to_go(durable))  # it does not end, it goes on elsewhere
        else:
            instance.ended(stream, durable)

    async def _closed_to_go(self, durable: Callable[[], None]) -> None:
        """A stream was closed since its connector goes to another worker."""
        assert self.instance is not None
        try:
            with faults.step("connector-close"):
                await self.instance.flush()
        except PenstockError:
            return
        durable()

    # What is durable.

    def _durable(self, run: Run) -> None:
        self._unsettled -= run.size + _BESIDES
        instance = self.instance
        if not self.wire.reading and instance is not None and not self._over:
            room = self._unsettled <= self.settings.max_pending // 2 and not instance.is_full
            if room or not self._unsettled:
                self.wire.resume()
                self._watch_the_frame()
        for stream, last in run.lasts.items():
            if self.session.stream(stream) is Stream.OPEN:
                self._points[stream] = last
        self._owe(run.count)

    def _owe(self, credits: int) -> None:
        """Credits to give back; several at a time go in one ACK."""
        self._owed += credits
        if self._acking is None and not self._over:
            self._acking = asyncio.get_running_loop().call_soon(self._acknowledge)

    def _acknowledge(self) -> None:
        self._acking = None
        if self._over:
            return
        with faults.step("connector-ack"):
            points = tuple(self._points.items())
            self.acked |= self._points
            owed, self._owed, self._points = self._owed, 0, {}
            self._send(fr.Ack(owed, points))
        if self.wire.is_deaf:
            self.fail("this peer does not read what it is sent")

    # Ends.

    def fail(self, reason: str) -> None:
        """The peer did something that it must not: tell it, and close."""
        if self._over:
            return
        log.info("connection of %s ended: %s", self.address or "a connector", one_line(reason))
        self.worker.counters.fault(reason)
        self._write(fr.Error(reason))
        self._end()

    def turn_out(self) -> None:
        """It is refused, and has no moment to read why, since others want it; those may be workers that ask us."""
        self.fail(self._refusal or STOPPING)
        self.wire.cut()

    def migrate(self, address: str) -> None:
        """Ask the peer to go to another worker; one that does not understand that is sent away."""
        if self._over or self.session.connection in (Connection.CONNECTED, Connection.HANDSHAKE):
            return  # whoever joins while the instance is leaving is told then
        if self.hello is None or fr.MIGRATE not in self.hello.capabilities:
            self.restart(address)
            return
        with faults.step("connector-migrate"):
            self._told_to_go(address)

    def _told_to_go(self, address: str) -> None:
        """It goes by itself, or else it is sent away."""
        self._send(_migrate(address))
        self._parting.arm(self.settings.migration_timeout, self.restart, address)

    def send_away(self, address: str) -> None:
        """Another worker has the instance: a connector that has no stream yet goes there."""
        if self._over:
            return
        if self.hello is not None and fr.MIGRATE in self.hello.capabilities:
            self._told_to_go(address)
            self.wire.resume()
            return
        self._send(fr.Ok(self.settings.credits))
        self.restart(address)

    def restart(self, address: str = "") -> None:
        """Tell what is durable, let go of all streams, and send the peer away."""
        if self._over:
            return
        if self.session.connection is Connection.CONNECTED:
            self.fail(STOPPING)
            return
        if self._points:
            self._acknowledge()
            if self._over:
                return  # it does not read, and was told so
        if self.session.connection is Connection.HANDSHAKE:
            self._send(fr.Ok(self.settings.credits))
        with faults.step("connector-restart"):
            self._send(fr.Restart(self._readable(address)))
        self._end()

    def _readable(self, address: str) -> str:
        """An address as this peer can read it: those that name no capability cut it at its one colon."""
        if address.count(":") <= 1 or (self.hello is not None and self.hello.capabilities):
            return address
        log.warning("%s cannot be sent to %s: give workers a name (--advertise)", self.address, address)
        return ""

    def _end(self) -> None:
        """No more is taken or promised; the connection closes when the peer does, or soon."""
        if self._over:
            return
        self._over = True
        self._let_go()
        self.wire.finish()

    def _let_go(self) -> None:
        self._over = True
        for timer in (self._greeting, self._frame_end, self._parting):
            timer.disarm()
        if self._acking is not None:
            self._acking.cancel()
            self._acking = None
        if self.session.connection not in (Connection.ERROR, Connection.DISCONNECTED):
            self.session.end()
        if self.instance is not None:
            self.instance.registry.relinquish(self.number)
            self.instance.settled()

    # The transport.

    def _send(self, frame: Frame) -> None:
        self.session.frame(Side.WORKER, frame)
        self._write(frame)

    def _write(self, frame: Frame) -> None:
        self.wire.write(fr.encode(frame))


def _migrate(address: str) -> fr.Migrate:
    host, _, port = address.rpartition(":")
    return fr.Migrate(host, int(port))
