"""Streams of what others send to a port: datagrams, and the bodies of HTTP posts."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.base.errors import UsageError
from penstock.connector.kept import Kept

_CHUNK: Final = 256 << 10
_POST_LIMIT: Final = 16 << 20


class Datagrams(Kept):
    """Datagrams of a UDP port."""

    def __init__(self, host: str, port: int, *, name: str) -> None:
        super().__init__(name)
        self._address = (host, port)
        self._transport: asyncio.DatagramTransport | None = None
        self.lost = 0
        """Datagrams for which there was no room."""

    async def open(self) -> int:
        """Listen; the port."""
        stream = self

        class Receiver(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, addr: object) -> None:
                if stream.put(data) is None:
                    stream.lost += 1

        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_datagram_endpoint(Receiver, local_addr=self._address)
        except OSError as error:
            raise UsageError(
                f"cannot listen on UDP {self._address[0]}:{self._address[1]}: {error.strerror}"
            ) from None
        return int(self._transport.get_extra_info("sockname")[1])

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _NoRoomError(Exception):
    """More is on its way than may be kept."""


class Posts(Kept):
    """Bodies of HTTP posts. 200 means durable; 503: no room, or no worker."""

    def __init__(self, host: str, port: int, *, name: str, patience: float = 30.0) -> None:
        super().__init__(name)
        self._address = (host, port)
        self._patience = patience
        self._server: asyncio.Server | None = None
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._coming = 0
        """Bytes of bodies that are not whole yet."""

    async def open(self) -> int:
        """Listen; the port."""
        try:
            self._server = await asyncio.start_server(self._connected, *self._address, limit=64 << 10)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self._address[0]}:{self._address[1]}: {error.strerror}"
            ) from None
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def ack(self, point: int) -> None:
        super().ack(point)
        for number in [number for number in self._waiting if number <= point]:
            waiting = self._waiting.pop(number)
            if not waiting.done():
                waiting.set_result(None)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._patience):
                length = _length_of((await reader.readuntil(b"\r\n\r\n")).decode("latin-1"))
                body = await self._body(reader, length)
                code = await self._posted(body) if length else "400 Bad Request"
        except (TimeoutError, _NoRoomError):
            code = "503 Service Unavailable"
        except asyncio.CancelledError:  # by the end of all: who hears nothing posts again
            writer.close()
            return
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            code = "400 Bad Request"
        try:
            writer.write(f"HTTP/1.1 {code}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        except OSError:
            return
        finally:
            writer.close()

    async def _body(self, reader: asyncio.StreamReader, length: int) -> bytes:
        """So many bytes. What has come of them counts as what is kept does, however many senders there are."""
        pieces: list[bytes] = []
        size = 0
        try:
            while size < length:
                piece = await reader.read(min(length - size, _CHUNK))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", length)
                if self.size + self._coming + len(piece) > self.limit:
                    raise _NoRoomError
                pieces.append(piece)
                size += len(piece)
                self._coming += len(piece)
        finally:
            self._coming -= size
        return b"".join(pieces)

    async def _posted(self, body: bytes) -> str:
        number = self.put(body)
        if number is None:
            return "503 Service Unavailable"
        durable = self._waiting[number] = asyncio.get_running_loop().create_future()
        await durable
        return "200 OK"


def _length_of(head: str) -> int:
    """How long the body of a POST is; 0 for whatever has none that can be taken: it must be told once, as it is."""
    request, *lines = head.split("\r\n")
    fields = [
        (name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)
    ]
    told = [value for name, value in fields if name == "content-length"]
    plain = (
        len(told) == 1 and told[0].isdecimal() and not any(name == "transfer-encoding" for name, _ in fields)
    )
    length = int(told[0]) if plain and request.upper().startswith("POST ") else 0
    return length if length <= _POST_LIMIT else 0
