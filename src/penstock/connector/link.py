"""A connection of a connector to a worker: HELLO and OK, frames both ways, credits to wait for.

Used by the source kit. `connect` gives a link whose session is streaming, or tells where else to go.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from penstock.base.errors import PenstockError, UsageError
from penstock.base.texts import one_line
from penstock.connector import frames as fr
from penstock.connector import wire
from penstock.connector.columns import NOT_BYTES, Columns
from penstock.connector.frames import HEAD_AFTER_LENGTH, Frame
from penstock.connector.framing import LENGTH_BYTES, Splitter
from penstock.connector.session import Connection, IllegalFrameError, Session, Side
from penstock.connector.settings import split
from penstock.connector.wire import Timer, bear, keep_alive, under_way

_HEAD: Final = fr.HEAD.pack
_ONE_WRITE = 512 << 10
Fields = tuple[int, bytes, bytes, int]
"""Id, body, key and time of a record."""
_SILENCE = 60.0
"""Seconds for an answer to HELLO: a worker may have to wait for its broker."""
_UNREAD = 300.0
"""Seconds that a worker may leave unread what was sent: one that waits for its log does not read meanwhile.

Only while something is on its way: the kernel has one limit for that and for keep-alive, and a connector that waits
would notice a worker that vanished as late.
"""


_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""How OpenSSL names an answer that is no TLS."""


class LinkLostError(PenstockError):
    """The connection is gone, or could not be made; another may be."""


class WorkerRefusedError(PenstockError):
    """The worker answered with an ERROR."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {one_line(reason)}", hint=_hint(reason))
        self.reason = reason


class SenselessError(LinkLostError):
    """What the worker sent is no frame, or none that it may send now."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"the worker at {address} does not keep to the protocol: {reason}")
        self.reason = reason


class UntrustedError(LinkLostError):
    """The worker shows a certificate that nobody we trust has signed, or one of another name."""

    def __init__(self, address: str, error: ssl.SSLCertVerificationError) -> None:
        super().__init__(
            f"the certificate of the worker at {address} is not to be trusted: {error.verify_message}",
            hint="--tls-ca FILE names whom to trust; the address must be one that the certificate has",
        )


class MovedError(PenstockError):
    """The worker sent us elsewhere instead of opening a session."""

    def __init__(self, address: str) -> None:
        super().__init__(f"sent to {address}")
        self.address = address


class TooLargeError(fr.Unsendable):
    """A record that fits no frame that the worker takes."""

    def __init__(self, number: int, limit: int, address: str) -> None:
        super().__init__(
            f"message {number} is too large for a frame of {limit:,} bytes, which is what the worker at {address} takes"
        )


_FINAL: Final = (
    "Bad cookie",
    "Unknown protocol version",
    "no instance can be called",
    "the instance has no name",
    "unknown instance",
    "too many streams",
)
"""Refusals that no waiting mends."""
_HINTS: Final = {
    "Bad cookie": "give the cookie that the worker was started with (--cookie-file)",
    "Unknown protocol version": "connector and worker must be of versions that speak the same protocol",
    "unknown instance": "name one that the worker was started with (--instance), or start it with this one, too",
    "too many streams: the names": "give new streams an instance of their own",
    "too many streams": "spread them over several connectors",
    "too many connections": "try later, or start the worker with more --max-sessions",
}


def _hint(reason: str) -> str | None:
    return next((hint for begin, hint in _HINTS.items() if reason.startswith(begin)), None)


def is_final(error: PenstockError) -> bool:
    """Whether trying again at the same address is of no use."""
    if isinstance(error, WorkerRefusedError):
        return error.reason.startswith(_FINAL)
    return isinstance(error, UntrustedError)


class Link:
    """A session that is open."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self.session = Session()
        self.longest_frame = fr.CAUTIOUS_FRAME
        self._reader = reader
        self._writer = writer
        self._splitter = Splitter()
        self._come: deque[memoryview] = deque()
        """Frames that came behind the one that was looked for."""
        self._credit = asyncio.Event()
        self._patience = Timer()

    def watch(self) -> None:
        """From now until it is closed, notice a worker that vanished."""
        sock = self._writer.get_extra_info("socket")
        if sock is None or self._writer.is_closing() or not hasattr(socket, "TCP_USER_TIMEOUT"):
            return
        bear(sock, _UNREAD if under_way(sock) else wire.UNANSWERED)
        self._patience.arm(wire.EVERY, self.watch)

    async def greet(self, hello: fr.Hello) -> None:
        await self.send(hello)
        async for frame in self.frames():
            match frame:
                case fr.Ok(capabilities=capabilities):
                    self.longest_frame = fr.longest_frame(capabilities)
                    return
                case fr.Error(reason=reason):
                    raise WorkerRefusedError(f"the worker at {self.address} refused", reason)
                case fr.Migrate(host=host, port=port):
                    raise MovedError(f"{host}:{port}")
                case _:
                    raise LinkLostError(f"the worker at {self.address} answered HELLO with {frame}")
        plain = self._writer.get_extra_info("ssl_object") is None
        perhaps = " and did not answer; if it speaks TLS, say --tls" if plain else ""
        raise LinkLostError(f"the worker at {self.address} closed the connection{perhaps}")

    async def frames(self) -> AsyncIterator[Frame]:
        """What the worker says, until it closes the connection. Raises `SenselessError`."""
        while True:
            while self._come:
                try:
                    frame = fr.frame_of(self._come.popleft())
                    self.session.frame(Side.WORKER, frame)
                except (fr.FrameError, IllegalFrameError) as error:
                    raise SenselessError(self.address, error.message) from None
                if isinstance(frame, (fr.Ok, fr.Ack)):
                    self._credit.set()
                yield frame
            if self._splitter.fault is not None:
                raise SenselessError(self.address, self._splitter.fault.message)
            try:
                data = await self._reader.read(65536)
            except OSError:
                return
            if not data:
                return
            self._come.extend(self._splitter.feed(data))

    async def send(self, frame: Frame) -> None:
        self.session.frame(Side.CONNECTOR, frame)
        await self._write(fr.encode(frame))

    async def credits(self, wanted: int) -> int:
        """Wait for credits; how many of those wanted there are, at least one."""
        while not (held := self.session.credits.held):
            self._credit.clear()
            await self._credit.wait()
        return min(held, wanted)

    async def send_messages(self, stream: int, records: Sequence[Fields], limit: int) -> None:
        """Records for which there are credits, in writes of moderate size.

        Raises `TooLargeError` for what no frame holds, `Unsendable` for what is not as long as it says, and whatever
        Python does for what is no record. Every record of a source passes here, so this is kept tight.
        """
        session, limit = self.session, min(limit, self.longest_frame)
        session.credits.spend(len(records))
        if isinstance(records, Columns):
            await self._send_columns(stream, records, limit)
            return
        parts: list[bytes] = []
        add, room, keyed = parts.append, _ONE_WRITE, 0
        for number, body, key, time in records:
            size = len(body) + HEAD_AFTER_LENGTH
            if key:
                length = len(key)
                size += length
                if size > limit or length > fr.SHORT_LIMIT:
                    raise TooLargeError(number, limit, self.address)
                add(_HEAD(size, 5, stream, number, time, length))
                add(key)
                keyed += 1
            else:
                if size > limit:
                    raise TooLargeError(number, limit, self.address)
                add(_HEAD(size, 5, stream, number, time, 0))
            add(body)
            room -= size
            if room < 0:
                await self._write(_joined(parts, keyed, _ONE_WRITE - room))
                parts.clear()
                room, keyed = _ONE_WRITE, 0
        session.passed(stream, records[-1][0])
        await self._write(_joined(parts, keyed, _ONE_WRITE - room))

    async def _send_columns(self, stream: int, columns: Columns, limit: int) -> None:
        number = columns.too_large(limit)
        if number is not None:
            raise TooLargeError(number, limit, self.address)
        self.session.passed(stream, columns[-1].id)
        for part in columns.parts(_ONE_WRITE):
            await self._write(part.encoded(stream))

    @property
    def is_open(self) -> bool:
        over = (Connection.ERROR, Connection.DISCONNECTED)
        return self.session.connection not in over and not self._writer.is_closing()

    async def close(self) -> None:
        self._patience.disarm()
        self.session.end()
        self._credit.set()
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(2):
                await self._writer.wait_closed()

    async def _write(self, data: bytes | bytearray) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise LinkLostError(f"the worker at {self.address} is gone: {error}") from None


def _joined(parts: Sequence[bytes], keyed: int, size: int) -> bytes:
    """Frames of so many parts, `keyed` of them keys, that were counted to have `size` bytes behind their lengths."""
    data = b"".join(parts)
    if len(data) != size + (len(parts) - keyed) // 2 * LENGTH_BYTES:
        raise fr.Unsendable(NOT_BYTES)
    return data


async def connect(address: str, hello: fr.Hello, tls: ssl.SSLContext | None = None) -> Link:
    """Connect and open a session. Raises `LinkLostError`, `WorkerRefusedError`, `MovedError` or `UntrustedError`."""
    try:
        host, port = split(address)
    except UsageError as error:  # from a RESTART: those that we were given were looked at before
        raise LinkLostError(error.message) from None
    link: Link | None = None
    try:
        async with asyncio.timeout(_SILENCE):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            keep_alive(writer.get_extra_info("socket"))
            link = Link(address, reader, writer)
            link.watch()
            await link.greet(hello)
            return link
    except ssl.SSLCertVerificationError as error:
        raise UntrustedError(address, error) from None
    except (OSError, UnicodeError, TimeoutError) as error:  # the second for what no host can be called
        if link is not None:
            await link.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "no answer"
        if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
            reason = "what answers does not speak TLS"
        raise LinkLostError(f"no worker at {address}: {reason}") from None
    except SenselessError as error:
        if link is not None:
            await link.close()
        raise LinkLostError(f"what answers at {address} is no worker: {error.reason}") from None
    except BaseException:
        if link is not None:
            await link.close()
        raise
