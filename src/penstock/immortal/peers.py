"""Calls from and to other instances: the receiving and the sending end of each stream (`streams` has the layout).

The receiver counts, and tells what is durable. A sender keeps what is not, finds out where its peer runs now from what
is said about it, and goes on where the peer says. Of two streams of one sender the later claimant's is the one that
counts.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine

from penstock.base.errors import PenstockError, UsageError
from penstock.base.faults import step
from penstock.immortal import about, journals
from penstock.immortal.coordinator import Coordinator
from penstock.immortal.logformat import Met, Source
from penstock.immortal.outputs import Output
from penstock.immortal.state import COMMIT_BUFFER
from penstock.immortal.streams import (
    NOT_PRIMARY,
    OPENING,
    READ,
    Hello,
    NoStreamError,
    Welcome,
    connected,
    line,
    matches,
    read_line,
)
from penstock.immortal.wire.between import Commit, ReplayFrom
from penstock.immortal.wire.messages import CALLS, Message, MessageDecoder, MessageType, encode_message
from penstock.immortal.wire.pings import arriving, is_ping
from penstock.immortal.wire.rpc import batch_counts, require_sound
from penstock.immortal.wire.zigzag import CorruptWireError
from penstock.journal.client import FencedError

_log = logging.getLogger(__name__)
_RETRY = 0.25
_TAKEN = CALLS | {MessageType.RPC_BATCH, MessageType.COUNT_REPLAYABLE_RPC_BATCH}
BEAT = 0.25
_STALLED = 1 << 20

Spawn = Callable[[Coroutine[None, None, None]], object]


class Incoming:
    """One open stream of calls to us."""

    def __init__(self, source: str, incarnation: str, writer: asyncio.StreamWriter) -> None:
        self.source = source
        self.incarnation = incarnation
        self.writer = writer
        self.is_replaced = False


class Peers:
    """All streams of a primary, and those who watch it."""

    def __init__(
        self, coordinator: Coordinator, password: str, spawn: Spawn, tell: Callable[[str], None]
    ) -> None:
        self._coordinator = coordinator
        self._password = password
        self._spawn = spawn
        self._tell = tell
        self._told: set[str] = set()
        self._incoming: dict[str, Incoming] = {}
        self._senders: dict[str, asyncio.Event] = {}
        self._watchers: dict[str, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self.port = 0
        coordinator.on_output = self._has_output
        coordinator.on_attach = self._send_to
        coordinator.on_durable = self._tell_senders
        coordinator.listening = self._watchers.keys

    async def listen(self) -> None:
        """Take connections; they are refused until this is the primary."""
        options = self._coordinator.options
        tls = None if options.tls is None else options.tls.ssl_context()
        self._server = await asyncio.start_server(
            self._accept, options.host, options.port, limit=READ, ssl=tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in [*self._watchers.values(), *(one.writer for one in self._incoming.values())]:
            writer.transport.abort()

    def begin(self) -> None:
        """We are primary: send to those for whom there is something, and to those attached to."""
        for name, output in self._coordinator.state.outputs.items():
            if name and (output.has_unsent or output.size):
                self._send_to(name)
        for name in self._coordinator.attached:
            self._send_to(name)

    def _tell_once(self, end: str, name: str) -> None:
        """Bindings count the ends of streams that they are told of: of calls, and of what is durable."""
        text = f"Adding {end}:{name}"
        if text not in self._told:
            self._told.add(text)
            self._tell(text)
            self._tell(text)

    # Receiving.

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = await read_line(reader, Hello)
            refusal = self._refusal(hello)
            if refusal:
                writer.write(line(Welcome(error=refusal)))
                await writer.drain()
            elif hello.watcher:
                await self._watched(hello.watcher, reader, writer)
            else:
                await self._receive(hello, reader, writer)
        except (OSError, PenstockError) as error:
            _log.info("a stream to %s ended: %s", self._coordinator.options.name, error)
        except asyncio.CancelledError:
            pass  # the coordinator ends
        finally:
            writer.close()

    def _refusal(self, hello: Hello) -> str:
        if not matches(hello.password, self._password):
            return "the password is not that of this start"
        if hello.to != self._coordinator.options.name:
            return f"this is {self._coordinator.options.name}, not {hello.to}"
        if not (self._coordinator.fenced if hello.watcher else self._coordinator.is_primary):
            return NOT_PRIMARY
        if not hello.watcher and not hello.source:
            return "a stream of nobody"
        return "" if hello.watcher else _unwritable(hello)

    async def _receive(
        self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        state = self._coordinator.state
        is_replaced = await self._is_replaced(hello)
        known = None if is_replaced else state.introduce(hello.source, hello.incarnation, hello.epoch)
        if known is None:
            writer.write(line(Welcome(error="a later claimant of your log was heard")))
            return
        before = self._incoming.get(hello.source)
        if before is not None:
            before.is_replaced = True
            before.writer.transport.abort()
        self._tell_once("input", hello.source)
        mine = self._incoming[hello.source] = Incoming(hello.source, hello.incarnation, writer)
        writer.transport.set_write_buffer_limits(high=_STALLED)
        writer.write(line(Welcome(incarnation=state.incarnation)))
        writer.write(ReplayFrom(known.number + 1, known.replayable + 1).encode())
        durable = self._coordinator.durable.get(hello.source)
        if durable is not None and durable.incarnation == hello.incarnation and durable.number:
            writer.write(Commit(durable.number, durable.replayable).encode())
        try:
            await self._calls(mine, reader)
        finally:
            if self._incoming.get(hello.source) is mine:
                del self._incoming[hello.source]

    async def _is_replaced(self, hello: Hello) -> bool:
        """Whether a sender that says to be of another making than was heard last is the earlier one of the two."""
        known = self._coordinator.state.sources.get(hello.source, Source())
        if known.incarnation in ("", hello.incarnation):
            return False
        serving = (await about.read(self._coordinator.client, hello.source)).serving
        return serving is not None and serving.epoch > hello.epoch

    async def _calls(self, mine: Incoming, reader: asyncio.StreamReader) -> None:
        coordinator = self._coordinator
        decoder = MessageDecoder()
        while data := await reader.read(READ):
            for event in decoder.feed(data):
                if mine.is_replaced:
                    return
                if not isinstance(event, Message) or event.type not in _TAKEN:
                    raise CorruptWireError("something else than calls on a stream of calls", position=0)
                kind, data = event
                if is_ping(kind):
                    data = arriving(kind, data, time.time())
                require_sound(kind, data)  # once it is in the log, each replay would end there
                count, replayable, _ = batch_counts(kind, data)
                coordinator.state.accept(mine.source, encode_message(kind, data), count, replayable)
                coordinator.input.set()
            while coordinator.state.gathered_bytes > 2 * COMMIT_BUFFER and not mine.is_replaced:
                coordinator.progress.clear()
                await coordinator.progress.wait()

    def _tell_senders(self, sources: dict[str, Source]) -> None:
        for name, durable in sources.items():
            incoming = self._incoming.get(name)
            if incoming is None or incoming.incarnation != durable.incarnation:
                continue  # what a predecessor of another making sent is of no concern to this one
            # One who does not read gets the next one, which says it all.
            if incoming.writer.transport.get_write_buffer_size() < _STALLED:
                with step("immortal-tell"):
                    incoming.writer.write(Commit(durable.number, durable.replayable).encode())

    async def _watched(self, who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(line(Welcome(incarnation=self._coordinator.state.incarnation)))
        self._watchers[who] = writer
        try:
            ended = asyncio.ensure_future(reader.read(1))
            try:
                while not ended.done() and not writer.is_closing():
                    writer.write(b".\n")
                    await writer.drain()
                    await asyncio.wait((ended,), timeout=BEAT)
            finally:
                ended.cancel()
        finally:
            if self._watchers.get(who) is writer:
                del self._watchers[who]

    # Sending.

    def _has_output(self, output: Output) -> None:
        if not output.name or not self._coordinator.is_primary:
            return
        event = self._senders.get(output.name)
        if event is None:
            self._send_to(output.name)
        else:
            event.set()

    def _send_to(self, name: str) -> None:
        if name not in self._senders and self._coordinator.is_primary:
            event = self._senders[name] = asyncio.Event()
            self._spawn(self._sender(self._coordinator.state.output(name), event))

    async def _sender(self, output: Output, ready: asyncio.Event) -> None:
        """Send to one destination for as long as we live, wherever it runs."""
        told = ""
        while True:
            try:
                await self._stream(output, ready)
            except (OSError, PenstockError) as error:
                if isinstance(error, FencedError):
                    raise
                if str(error) != told:
                    told = str(error)
                    _log.info("%s: no stream to %s: %s", self._coordinator.options.name, output.name, error)
            await asyncio.sleep(_RETRY)

    async def _stream(self, output: Output, ready: asyncio.Event) -> None:
        coordinator = self._coordinator
        try:
            known = await about.read(coordinator.client, journals.check_name(output.name))
        except PenstockError:
            raise NoStreamError("no such instance is registered") from None
        if known.serving is None:
            raise NoStreamError("it has not been started yet")
        where = known.serving
        async with asyncio.timeout(OPENING):
            reader, writer = await connected(where, limit=1 << 20)
        try:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            fenced = coordinator.fenced
            assert fenced is not None
            own = coordinator.state
            hello = Hello(output.name, where.password, own.name, own.incarnation, fenced.epoch)
            writer.write(line(hello))
            welcome = await read_line(reader, Welcome)
            if welcome.error:
                raise NoStreamError(welcome.error)
            decoder = MessageDecoder(limit=64)
            wanted, rest = await _replay_from(reader, decoder)
            await self._meet(output, welcome.incarnation, wanted)
            output.open(wanted)
            self._tell_once("output", output.name)
            for message in rest:
                self._heard(output, message)
            await self._exchange(output, ready, reader, writer, decoder, where.epoch)
        finally:
            writer.close()

    async def _meet(self, output: Output, incarnation: str, wanted: ReplayFrom) -> None:
        """The log knows whom we count for before anything is sent, and before we do: if it did not take the mark, the
        next stream meets it anew."""
        if output.incarnation == incarnation:
            if wanted.replayable + output.base - 1 < output.acked_replayable:
                raise NoStreamError("it knows less than it once acknowledged: a primary that was replaced")
            return
        if output.incarnation:
            _log.warning("%s was made anew; it gets what its predecessor had not got", output.name)
        await self._coordinator.append(Met(output.name, incarnation, output.acked_replayable))
        output.forgotten(incarnation)

    async def _exchange(
        self,
        output: Output,
        ready: asyncio.Event,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decoder: MessageDecoder,
        epoch: int,
    ) -> None:
        hearing = asyncio.ensure_future(self._hear(output, reader, decoder))
        # A peer that is frozen keeps its connection; who took its place says so.
        moving = asyncio.ensure_future(self._moved(output.name, epoch))
        try:
            while not hearing.done() and not moving.done():
                ready.clear()
                while (unsent := output.unsent()) is not None:
                    with step("immortal-send"):
                        writer.write(unsent[0])
                    draining = asyncio.ensure_future(writer.drain())
                    await asyncio.wait((draining, hearing, moving), return_when=asyncio.FIRST_COMPLETED)
                    if not draining.done():
                        draining.cancel()
                        break
                    draining.result()
                waiting = asyncio.ensure_future(ready.wait())
                await asyncio.wait((waiting, hearing, moving), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
            await (hearing if hearing.done() else moving)
        finally:
            await _ended(hearing, moving)

    async def _moved(self, name: str, epoch: int) -> None:
        """Return when another coordinator of the peer is primary."""
        async for known in about.follow(self._coordinator.client, name):
            if known.serving is not None and known.serving.epoch > epoch:
                return

    async def _hear(self, output: Output, reader: asyncio.StreamReader, decoder: MessageDecoder) -> None:
        while data := await reader.read(READ):
            for event in decoder.feed(data):
                self._heard(output, event)

    def _heard(self, output: Output, event: object) -> None:
        if not isinstance(event, Message) or event.type != MessageType.COMMIT:
            raise CorruptWireError("something else than Commit from a receiver", position=0)
        commit = Commit.decode(event.data)
        if output.committed(commit.number, commit.replayable):
            self._coordinator.state.acknowledged(output)
            self._coordinator.progress.set()


def _unwritable(hello: Hello) -> str:
    """Why the log could not tell who sends: what is in it has to be read at the next start."""
    try:
        journals.check_name(hello.source)
    except UsageError as error:
        return str(error)
    if not hello.incarnation.isalnum() or not 0 <= hello.epoch < 1 << 63:
        return f"the making {hello.incarnation!r}, epoch {hello.epoch}: no making has such a name"
    return ""


async def _ended(*tasks: asyncio.Future[None]) -> None:
    """End them, whatever they end by. They are not awaited by name: that would take our own end for theirs."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()


async def _replay_from(
    reader: asyncio.StreamReader, decoder: MessageDecoder
) -> tuple[ReplayFrom, list[object]]:
    async with asyncio.timeout(OPENING):
        while data := await reader.read(READ):
            events: list[object] = [*decoder.feed(data)]
            if events:
                first = events[0]
                if not isinstance(first, Message) or first.type != MessageType.REPLAY_FROM:
                    raise CorruptWireError("a stream that does not begin with ReplayFrom", position=0)
                return ReplayFrom.decode(first.data), events[1:]
    raise NoStreamError("the connection ended before ReplayFrom")
