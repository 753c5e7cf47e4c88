"""The two sockets of a binding (reference 8): it connects to both, to the one that it sends on first.

    receive port   binding -> coordinator: bare messages
    send port      coordinator -> binding: records

Each port is bound, accepts one connection, and is closed again; the pair is never joined anew. Only this machine can
connect, by IPv4 or IPv6. `legacy` is the way of old bindings: they listen for the second connection themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable, Sequence

from penstock.base.disk import Buffer
from penstock.base.errors import PenstockError
from penstock.immortal.wire.decoding import Blob
from penstock.immortal.wire.messages import CheckpointStart, Message, MessageDecoder, MessageType
from penstock.immortal.wire.records import checkpoint_record, control_record, encode_record

HOST = "127.0.0.1"
HOST6 = "::1"
_READ = 256 << 10
_EARLY = 1 << 20
"""Bytes that are taken of a binding before its second connection; what it says beyond waits in its socket."""
_RETRY = 0.25


class BindingGoneError(PenstockError):
    """The binding's connection ended, or brought what no binding may send."""


class Binding:
    """An accepted pair of connections."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        said: bytes,
        writer: asyncio.StreamWriter,
        own: asyncio.StreamWriter,
        legacy: bool,
    ) -> None:
        self._reader = reader
        self._said = said
        self._writer = writer
        self._own = own
        self._decoder = MessageDecoder(fixed_lengths=legacy)

    @classmethod
    async def accepted(
        cls, receive_port: int, send_port: int, ready: Callable[[], None], *, legacy: bool = False
    ) -> Binding:
        """Wait for a binding, as long as it takes; it may connect from `ready` on."""
        reader, own = await _accept(receive_port, ready)
        said = bytearray()
        hearing = asyncio.ensure_future(_hear(reader, said))
        second = asyncio.ensure_future(_connect(send_port) if legacy else _accept(send_port, lambda: None))
        try:
            await asyncio.wait((hearing, second), return_when=asyncio.FIRST_COMPLETED)
            if not second.done():
                hearing.result()  # a binding that died between its two connections is not waited for
            _, writer = await second
        except BaseException:
            second.cancel()
            own.close()
            raise
        finally:
            hearing.cancel()
            await asyncio.wait((hearing,))
            if not hearing.cancelled():
                hearing.exception()  # who reads on is told again
        return cls(reader, bytes(said), writer, own, legacy)

    async def events(self) -> AsyncIterator[Message | CheckpointStart | Blob]:
        """What the binding sends; ends with an error when the connection does."""
        data = self._said
        while True:
            for event in self._decoder.feed(data):
                yield event
            data = await _read(self._reader)

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

    @property
    def is_behind(self) -> bool:
        """Whether the binding has not read what was written to it."""
        return self._writer.transport.get_write_buffer_size() > 0

    async def _write(self, pieces: Sequence[Buffer]) -> None:
        try:
            self._writer.writelines(pieces)
            await self._writer.drain()
        except OSError as error:
            raise BindingGoneError(f"the connection of the binding broke: {error}") from None

    def close(self) -> None:
        self._writer.close()
        self._own.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        data = await reader.read(_READ)
    except OSError as error:
        raise BindingGoneError(f"the connection of the binding broke: {error}") from None
    if not data:
        raise BindingGoneError("the binding closed its connection")
    return data


async def _hear(reader: asyncio.StreamReader, said: bytearray) -> None:
    """Take what comes, up to a bound, until it is told to stop; ends by itself when the connection does."""
    while len(said) < _EARLY:
        said += await _read(reader)
    await asyncio.Event().wait()


async def _accept(port: int, ready: Callable[[], None]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    with contextlib.ExitStack() as listening:
        waiting = [listening.enter_context(one) for one in _listening(port)]
        ready()
        connection = await _first_connection(waiting)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return await asyncio.open_connection(sock=connection, limit=1 << 20)


def _listening(port: int) -> list[socket.socket]:
    """On both loopback addresses: `localhost` is the one for some bindings, and the other for others."""
    made: list[socket.socket] = []
    for family, host in ((socket.AF_INET, HOST), (socket.AF_INET6, HOST6)):
        try:
            one = socket.socket(family)
        except OSError:
            continue  # no IPv6 here
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setblocking(False)
        try:
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((host, port))
            one.listen(1)
        except OSError as error:
            one.close()
            if made and error.errno != errno.EADDRINUSE:
                continue
            for other in made:
                other.close()
            raise PenstockError(
                f"port {port} of {host} cannot be listened on: {error.strerror}",
                hint="another coordinator uses it, perhaps one of this instance; name another port",
            ) from None
        made.append(one)
    return made


async def _first_connection(listening: Sequence[socket.socket]) -> socket.socket:
    loop = asyncio.get_running_loop()
    accepting = [asyncio.ensure_future(loop.sock_accept(one)) for one in listening]
    try:
        done, _ = await asyncio.wait(accepting, return_when=asyncio.FIRST_COMPLETED)
        (connection, _), *others = [one.result() for one in done]
        for other, _ in others:
            other.close()
        return connection
    finally:
        for one in accepting:
            one.cancel()
        await asyncio.gather(*accepting, return_exceptions=True)  # before the sockets are closed


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        with contextlib.suppress(ConnectionRefusedError):  # nobody listens there yet
            return await asyncio.open_connection(HOST, port)
        with contextlib.suppress(OSError):  # or there is no IPv6
            return await asyncio.open_connection(HOST6, port)
        await asyncio.sleep(_RETRY)
