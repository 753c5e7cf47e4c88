"""The two sockets of a binding (reference 8): it connects to both, to the one that it sends on first.

    receive port   binding -> coordinator: bare messages
    send port      coordinator -> binding: records

Each port is bound, accepts one connection, and is closed again; the pair is never joined anew. Only this machine can
connect. `listens` is the way of old bindings: they listen for the second connection themselves.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence

from penstock.base.disk import Buffer
from penstock.base.errors import PenstockError
from penstock.immortal.wire.decoding import Blob
from penstock.immortal.wire.messages import CheckpointStart, Message, MessageDecoder, MessageType
from penstock.immortal.wire.records import checkpoint_record, control_record, encode_record

HOST = "127.0.0.1"
_READ = 256 << 10
_RETRY = 0.25


class BindingGoneError(PenstockError):
    """The binding's connection ended, or brought what no binding may send."""


class Binding:
    """An accepted pair of connections."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        own: asyncio.StreamWriter,
        legacy: bool,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._own = own
        self._decoder = MessageDecoder(fixed_lengths=legacy)

    @classmethod
    async def accepted(
        cls, receive_port: int, send_port: int, ready: Callable[[], None], *, legacy: bool = False
    ) -> Binding:
        """Wait for a binding, as long as it takes; it may connect from `ready` on."""
        reader, own = await _accept(receive_port, ready)
        _, writer = await (_connect(send_port) if legacy else _accept(send_port, lambda: None))
        return cls(reader, writer, own, legacy)

    async def events(self) -> AsyncIterator[Message | CheckpointStart | Blob]:
        """What the binding sends; ends with an error when the connection does."""
        while True:
            try:
                data = await self._reader.read(_READ)
            except OSError as error:
                raise BindingGoneError(f"the connection of the binding broke: {error}") from None
            if not data:
                raise BindingGoneError("the binding closed its connection")
            for event in self._decoder.feed(data):
                yield event

    async def deliver(self, committer: int, sequence: int, body: Buffer) -> None:
        """A record of input."""
        await self._write([encode_record(committer, sequence, body)])

    async def control(self, committer: int, kind: MessageType) -> None:
        await self._write([control_record(committer, kind)])

    async def checkpoint(self, committer: int, length: int, blob: AsyncIterator[bytes]) -> None:
        """A checkpoint to begin with, streamed."""
        await self._write([checkpoint_record(committer, length)])
        async for piece in blob:
            await self._write([piece])

    async def _write(self, pieces: Sequence[Buffer]) -> None:
        try:
            self._writer.writelines(pieces)
            await self._writer.drain()
        except OSError as error:
            raise BindingGoneError(f"the connection of the binding broke: {error}") from None

    def close(self) -> None:
        self._writer.close()
        self._own.close()


async def _accept(port: int, ready: Callable[[], None]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError as error:
            raise PenstockError(
                f"port {port} of {HOST} cannot be listened on: {error.strerror}",
                hint="another coordinator uses it, perhaps one of this instance; name another port",
            ) from None
        listening.listen(1)
        listening.setblocking(False)
        ready()
        connection, _ = await asyncio.get_running_loop().sock_accept(listening)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return await asyncio.open_connection(sock=connection, limit=1 << 20)


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection(HOST, port)
        except ConnectionRefusedError:
            await asyncio.sleep(_RETRY)
