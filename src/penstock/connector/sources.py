"""Ready streams: lines of a file, of the files of a directory, of a pipe; datagrams; HTTP posts.

Lines(path, follow=True)     a line is a message, its id the byte behind it; goes on after any crash
DirectoryLines(path)         the files of a directory in the order of their names, as one stream
PipeLines(file)              lines of something that cannot be read twice; the id is the number of the line
Datagrams(host, port)        each datagram a message; what no worker takes in time is lost, as UDP is
Posts(host, port)            each POST a message, answered with 200 when it is durable
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from penstock.base.errors import PenstockError, UsageError
from penstock.connector.columns import Columns, sizes_of
from penstock.connector.frames import MAX_FRAME
from penstock.connector.source import CannotSeekError, Records, Stream

_CHUNK: Final = 256 << 10
_CHUNKS: Final = 4
"""Chunks of a pipe that are read ahead."""
_FILE_SHIFT: Final = 40
_POST_LIMIT: Final = 16 << 20
_OVERHEAD: Final = 64
"""What a body that is kept takes of memory besides its bytes, about."""
_NOTHING_NOW: Final = Columns((), ())


def whole_lines(rest: bytes, chunk: bytes, where: object) -> tuple[list[bytes], bytes]:
    """The lines that are whole now, and what is begun of the next. One that fits no frame is told before it is kept."""
    *lines, rest = (rest + chunk).split(b"\n")
    if len(rest) > MAX_FRAME:
        raise PenstockError(f"{where} has a line of more than {MAX_FRAME:,} bytes, which fits no frame")
    return lines, rest


class Lines(Stream):
    """Lines of a file, without their newlines. With `follow`, those that are added as well."""

    def __init__(self, path: Path, *, name: str | None = None, follow: bool = False) -> None:
        self.name = name or path.name
        self._path = path
        self._follow = follow
        self._file: FileIO | None = None
        self._known: os.stat_result | None = None
        """Which file it was that was read before."""
        self._rest = b""
        self._at = 0
        self._before = b""
        """The byte before what is read next."""

    def seek(self, point: int | None) -> None:
        self.close()
        self._at, self._rest = point or 0, b""
        self._file = FileIO(self._path)
        try:
            self._find(self._file)
        except BaseException:
            self.close()
            raise

    def _find(self, file: FileIO) -> None:
        """Go to where reading begins, if that is still the file and the place that it was."""
        mine = os.fstat(file.fileno())
        if self._at > mine.st_size:
            raise self._changed(f"has {mine.st_size} bytes")
        if self._known is not None and not os.path.samestat(mine, self._known):
            raise self._changed("is another file now")
        around = os.pread(file.fileno(), 2, self._at - 1) if self._at else b"\n"
        if len(around) == 2 and b"\n" not in around:
            raise self._changed("ends no line there")
        self._known, self._before = mine, around[:1]
        file.seek(self._at)

    def read(self) -> Records:
        return self.lines(whole=not self._follow)

    def lines(self, *, whole: bool) -> Columns | None:
        """What `read` gives. Of a file that is `whole` the last line needs no newline, and None comes behind it."""
        assert self._file is not None
        chunk = self._file.read(_CHUNK)
        if not chunk:
            return self._last() if whole else self._nothing_new()
        place = self._at + len(self._rest)
        if place and os.pread(self._file.fileno(), 1, place - 1) != self._before:
            raise self._changed("has other lines now")
        self._before = chunk[-1:]
        lines, self._rest = whole_lines(self._rest, chunk, self._path)
        if not lines:
            return _NOTHING_NOW
        sizes = sizes_of(lines)
        behind = (self._at + np.cumsum(sizes + 1)).astype(np.uint64)
        self._at = int(behind[-1])
        return Columns(behind, lines, sizes=sizes)

    def _last(self) -> Columns | None:
        last, self._rest = self._rest, b""
        self._at += len(last)
        return Columns([self._at], [last]) if last else None

    def _nothing_new(self) -> Columns:
        """Whoever waits for more of a file that nobody writes to any more is told so."""
        assert self._file is not None
        mine = os.fstat(self._file.fileno())
        if mine.st_size < self._file.tell():
            raise self._changed(f"has {mine.st_size} bytes now")
        with suppress(FileNotFoundError):  # it may be on its way to another name, and the next one to this
            if not os.path.samestat(mine, self._path.stat()):
                raise self._changed("is another file now")
        return _NOTHING_NOW

    def _changed(self, how: str) -> CannotSeekError:
        return CannotSeekError(
            f"{self._path} {how}, and the log has its lines up to byte {self._at}: it was replaced or cut",
            hint="send it as a stream of another name",
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class DirectoryLines(Stream):
    """Lines of all files of a directory, in the order of their names.

    An id is the number of the file in that order and the byte behind the line in it. So new files must sort behind the
    old ones, and the old ones must stay. With `follow`, a file is whole once there is another behind it.
    """

    def __init__(
        self, path: Path, *, pattern: str = "*", name: str | None = None, follow: bool = False
    ) -> None:
        self.name = name or path.name
        self._path, self._pattern, self._follow = path, pattern, follow
        self._number = 0
        self._passed: list[Path] = []
        self._lines: Lines | None = None

    def seek(self, point: int | None) -> None:
        self._number = 0 if point is None else point >> _FILE_SHIFT
        within = None if point is None else point & ((1 << _FILE_SHIFT) - 1)
        self.close()
        self._passed = []
        files = self._files()
        if point is not None and self._number >= len(files):
            raise CannotSeekError(
                f"{self._path} has {len(files)} files, and the log has lines of {self._number + 1}"
            )
        if self._number < len(files):
            self._open(files, within)

    def read(self) -> Records:
        files = self._files()
        if self._lines is None:
            if self._number >= len(files):
                return [] if self._follow else None
            self._open(files, None)
        assert self._lines is not None
        newest = self._number + 1 >= len(files)
        lines = self._lines.lines(whole=not (self._follow and newest))
        if lines is None:
            self.close()
            self._number += 1
            return []
        return Columns(lines.ids + (self._number << _FILE_SHIFT), lines.bodies, sizes=lines.sizes)

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _open(self, files: list[Path], point: int | None) -> None:
        self._passed = files[: self._number + 1]
        self._lines = Lines(files[self._number])
        self._lines.seek(point)

    def _files(self) -> list[Path]:
        files = sorted(file for file in self._path.glob(self._pattern) if file.is_file())
        passed = self._passed
        if files[: len(passed)] != passed:
            odd = next((a for a, b in zip(passed, files, strict=False) if a != b), passed[-1])
            raise CannotSeekError(
                f"{self._path} has other files before {odd.name} than it had",
                hint="new files must sort behind the old ones, and the old ones must stay",
            )
        return files


class Kept(Stream):
    """For what cannot be read twice: bodies are numbered as they come, and kept until they are durable."""

    def __init__(self, name: str, limit: int = 64 << 20) -> None:
        self.name = name
        self.limit = limit
        self.kept: deque[bytes] = deque()
        """The last of them has the number before `_next`."""
        self.size = 0
        self._unread = 0
        """How many of those kept have to be given (again)."""
        self._durable = 0
        self._next: int | None = None
        self.over = False
        """Nothing more comes."""

    def put(self, body: bytes) -> int | None:
        """Take a message; its id, or None if there is no room, or no worker has told yet where to go on."""
        if self._next is None or self.size + len(body) + _OVERHEAD > self.limit:
            return None
        self.keep(self._next, [body])
        return self._next - 1

    @property
    def unsettled(self) -> bool:
        """Whether something has come that is not durable."""
        return bool(self.kept)

    def keep(self, first: int, bodies: Sequence[bytes]) -> None:
        """Take messages with the ids from `first` on, whether there is room or not."""
        self.kept.extend(bodies)
        self.size += _weight(bodies)
        self._next = first + len(bodies)
        self._unread += len(bodies)

    def seek(self, point: int | None) -> None:
        known = point or 0
        if known < self._durable:
            raise CannotSeekError(
                f"stream '{self.name}' keeps what is not durable, from {self._durable + 1} on, and was asked for "
                f"{known + 1}"
            )
        if self._next is not None and known >= self._next:
            raise CannotSeekError(
                f"the log has stream '{self.name}' up to message {known}, and this sender gave none behind "
                f"{self._next - 1}: another sends it, too",
                hint="give each sender a stream of another name",
            )
        self.ack(known)
        self._next = max(self._next or 0, known + 1)
        self._unread = len(self.kept)

    def read(self) -> Records:
        if not self._unread or self._next is None:
            return None if self.over else []
        bodies = list(islice(self.kept, len(self.kept) - self._unread, None))
        self._unread = 0
        return Columns(range(self._next - len(bodies), self._next), bodies)

    def ack(self, point: int) -> None:
        if self._next is not None:
            first = self._next - len(self.kept)
            gone = [self.kept.popleft() for _ in range(first, min(point + 1, self._next))]
            self.size -= _weight(gone)
        self._durable = max(self._durable, point)
        self._unread = min(self._unread, len(self.kept))


def _weight(bodies: Sequence[bytes]) -> int:
    """What they take of memory, about."""
    return sum(map(len, bodies)) + _OVERHEAD * len(bodies)


class Readable(Protocol):
    """What a pipe is read from: a file without a buffer of its own, such as `sys.stdin.buffer.raw`.

    A buffer is locked by the thread that waits in it, and then Python cannot end.
    """

    def read(self, size: int, /) -> bytes | None:
        """What there is, up to so much; waits if there is nothing, and is empty at the end."""


_PAUSE: Final = 0.05


class PipeLines(Kept):
    """Lines of a file that cannot be read twice. Run again with the same lines, it sends only what the log lacks.

    A thread reads, and is left alone with a pipe that says nothing: neither a lost connection nor the end of the
    connector waits for it. What it has read is numbered and kept by whoever calls `read`. It has room before it reads:
    so nothing is in its hands that `read` and `unsettled` do not see, except while it waits for the pipe.
    """

    def __init__(self, file: Readable, *, name: str) -> None:
        super().__init__(name)
        self._file = file
        self._number = 0
        self._rest = b""
        self._chunks: deque[bytes | OSError] = deque()
        """Read ahead; empty bytes are the end."""
        self._room = threading.Semaphore(_CHUNKS)
        self._lock = threading.Lock()
        """For `_stopped` and what is added to `_chunks`: nothing is, once it is stopped."""
        self._stopped = False
        self._reader: threading.Thread | None = None

    def stop(self) -> None:
        """Take nothing more from the pipe; what was read ahead of it is given all the same."""
        with self._lock:
            self._stopped = True
        self._room.release()

    def read(self) -> Records:
        if self._reader is None and not self._stopped:
            self._reader = threading.Thread(target=self._read_on, name=f"lines of {self.name}", daemon=True)
            self._reader.start()
        while self._chunks and not self._unread and not self.over and self.size <= self.limit // 2:
            chunk = self._chunks.popleft()
            self._room.release()
            if isinstance(chunk, OSError):
                raise PenstockError(f"stream '{self.name}' cannot be read: {chunk}")
            self._took(chunk)
        return super().read()

    @property
    def unsettled(self) -> bool:
        """A line that has begun is none yet, but for the last one: the end makes it whole."""
        begun = bool(self._rest)
        for chunk in self._chunks.copy():
            if isinstance(chunk, OSError) or b"\n" in chunk or (begun and not chunk):
                return True
            begun = True
        return super().unsettled

    def _took(self, chunk: bytes) -> None:
        if chunk:
            lines, self._rest = whole_lines(self._rest, chunk, self.name)
        else:
            lines, self._rest, self.over = [self._rest] if self._rest else [], b"", True
        first, self._number = self._number + 1, self._number + len(lines)
        assert self._next is not None  # the first `read` comes after a `seek`
        known = min(max(self._next - first, 0), len(lines))
        if known < len(lines):
            self.keep(first + known, lines[known:])

    def _read_on(self) -> None:
        """In the thread: what there is, as soon as there is any, until the end or `stop`."""
        chunk: bytes | OSError = b"begun"
        while chunk and not isinstance(chunk, OSError):
            self._room.acquire()
            if self._stopped:
                return
            try:
                while (found := self._file.read(_CHUNK)) is None and not self._stopped:
                    time.sleep(_PAUSE)  # whoever shares this pipe wants it not to block
                chunk = found or b""
            except OSError as error:
                chunk = error
            with self._lock:
                if not self._stopped:
                    self._chunks.append(chunk)


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
