"""A coordinator that says what a test tells it to say, over the two real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.immortal import wire
from penstock.immortal.binding.shell import Shell
from penstock.immortal.wire import Blob, CheckpointStart, Message, MessageDecoder, MessageType

COMMITTER = 0x0A0B0C0D
PATIENCE = 60.0


class Scripted:
    """The coordinator's side of a pair."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.checkpoint = b""
        self.complete = asyncio.Event()
        self._connected: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._decoder = MessageDecoder()
        self._events: list[Message | CheckpointStart | Blob] = []

    async def accept(self, index: int) -> tuple[asyncio.Server, int]:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._connected.append((reader, writer))
            if len(self._connected) == 2:
                self.complete.set()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]

    async def event(self) -> Message | CheckpointStart | Blob:
        while not self._events:
            data = await asyncio.wait_for(self._connected[0][0].read(65536), PATIENCE)
            assert data, "the binding has gone"
            self._events += self._decoder.feed(data)
        return self._events.pop(0)

    async def message(self) -> Message:
        event = await self.event()
        assert isinstance(event, Message), event
        return event

    async def take_checkpoint(self) -> bytes:
        event = await self.event()
        assert isinstance(event, CheckpointStart), event
        self.checkpoint = b""
        while True:
            piece = await self.event()
            assert isinstance(piece, Blob)
            self.checkpoint += piece.piece
            if piece.left == 0:
                return self.checkpoint

    def write(self, data: bytes) -> None:
        self._connected[1][1].write(data)

    def control(self, kind: MessageType) -> None:
        self.write(wire.control_record(COMMITTER, kind))

    def record(self, *messages: bytes) -> None:
        self.log.append(b"".join(messages))
        self.write(wire.encode_record(COMMITTER, len(self.log) - 1, self.log[-1]))

    async def first_start(self) -> None:
        self.control(MessageType.TAKE_BECOMING_PRIMARY_CHECKPOINT)
        first = await self.message()
        assert first.type == MessageType.INITIAL_MESSAGE
        await self.take_checkpoint()
        self.record(wire.encode_message(first.type, first.data))

    async def recover(self, blob: bytes, log: list[bytes], first: int, *, cut: int = 0) -> None:
        """Send checkpoint and log again, in pieces of `cut` bytes if asked for."""
        self.log = list(log)
        data = wire.checkpoint_record(COMMITTER, len(blob)) + blob
        for at, body in enumerate(log[first:], first):
            data += wire.encode_record(COMMITTER, at, body)
        for begin in range(0, len(data), cut or len(data)):
            self.write(data[begin : begin + (cut or len(data))])
            await asyncio.sleep(0)

    async def log_what_comes(self) -> wire.Call:
        """The next message is a call of the binding to itself: log it, as a coordinator would."""
        message = await self.message()
        assert message.type == MessageType.RPC, message
        destination, rpc = wire.decode_outgoing(message.data)
        assert destination == ""
        assert isinstance(rpc, wire.Call)
        self.record(wire.incoming(rpc))
        return rpc

    def close(self) -> None:
        for _, writer in self._connected:
            writer.close()


@asynccontextmanager
async def pair(shell: Shell) -> AsyncIterator[tuple[Scripted, asyncio.Task[None]]]:
    """A shell and a scripted coordinator, connected."""
    scripted = Scripted()
    first, receive = await scripted.accept(0)
    second, send = await scripted.accept(1)
    serving = asyncio.create_task(shell.serve(receive, send))
    try:
        await asyncio.wait_for(scripted.complete.wait(), PATIENCE)
        yield scripted, serving
    finally:
        scripted.close()
        first.close()
        second.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
