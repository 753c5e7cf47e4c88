"""Ready streams: lines of a file, of the files of a directory, of a pipe; datagrams; HTTP posts.

Lines(path, follow=True)     a line is a message, its id the byte behind it; goes on after any crash
DirectoryLines(path)         the files of a directory in the order of their names, as one stream
PipeLines(file)              lines of something that cannot be read twice; the id is the number of the line
Datagrams(host, port)        each datagram a message; what no worker takes in time is lost, as UDP is
Posts(host, port)            each POST a message, answered with 200 when it is durable
"""

from __future__ import annotations

import asyncio
from collections import deque
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

from penstock.base.errors import UsageError
from penstock.connector.source import CannotSeekError, Record, Records, Stream

_CHUNK: Final = 256 << 10
_FILE_SHIFT: Final = 40
_POST_LIMIT: Final = 16 << 20


class Lines(Stream):
    """Lines of a file, without their newlines. With `follow`, those that are added as well."""

    def __init__(self, path: Path, *, name: str | None = None, follow: bool = False) -> None:
        self.name = name or path.name
        self._path = path
        self._follow = follow
        self._file: FileIO | None = None
        self._rest = b""
        self._at = 0

    def seek(self, point: int | None) -> None:
        self.close()
        self._at, self._rest = point or 0, b""
        size = self._path.stat().st_size
        if self._at > size:
            raise CannotSeekError(
                f"{self._path} has {size} bytes, and the log has its lines up to byte {self._at}: "
                "it was replaced or cut",
                hint="send it as a stream of another name",
            )
        self._file = FileIO(self._path)
        self._file.seek(self._at)

    def read(self) -> Records:
        return self.lines()

    def lines(self) -> list[Record] | None:
        """What `read` gives."""
        assert self._file is not None
        chunk = self._file.read(_CHUNK)
        if not chunk:
            if self._follow:
                return []
            last, self._rest = self._rest, b""
            return [Record(self._at + len(last), last)] if last else None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        at, records = self._at, []
        for line in lines:
            at += len(line) + 1
            records.append(Record(at, line))
        self._at = at
        return records

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class DirectoryLines(Stream):
    """Lines of all files of a directory, in the order of their names. New files must sort behind the old ones.

    An id is the number of the file in that order and the byte behind the line in it.
    """

    def __init__(
        self, path: Path, *, pattern: str = "*", name: str | None = None, follow: bool = False
    ) -> None:
        self.name = name or path.name
        self._path, self._pattern, self._follow = path, pattern, follow
        self._number = 0
        self._lines: Lines | None = None

    def seek(self, point: int | None) -> None:
        self._number = 0 if point is None else point >> _FILE_SHIFT
        within = None if point is None else point & ((1 << _FILE_SHIFT) - 1)
        files = self._files()
        if point is not None and self._number >= len(files):
            raise CannotSeekError(
                f"{self._path} has {len(files)} files, and the log has lines of {self._number + 1}"
            )
        self._lines = None
        if self._number < len(files):
            self._lines = Lines(files[self._number])
            self._lines.seek(within)

    def read(self) -> Records:
        files = self._files()
        if self._lines is None:
            if self._number >= len(files):
                return [] if self._follow else None
            self._lines = Lines(files[self._number])
            self._lines.seek(None)
        records = self._lines.lines()
        if records is None:
            if self._number + 1 < len(files) or not self._follow:
                self._lines.close()
                self._lines, self._number = None, self._number + 1
            return []
        base = self._number << _FILE_SHIFT
        return [Record(base + record.id, record.body) for record in records]

    def _files(self) -> list[Path]:
        return sorted(file for file in self._path.glob(self._pattern) if file.is_file())


class Kept(Stream):
    """For what cannot be read twice: records are kept until they are durable."""

    def __init__(self, name: str, limit: int = 64 << 20) -> None:
        self.name = name
        self.limit = limit
        self.kept: deque[Record] = deque()
        self.size = 0
        self._unread = 0
        """How many of those kept have to be given (again)."""
        self._durable = 0
        self._next: int | None = None
        self.over = False
        """Nothing more comes."""

    def put(self, body: bytes) -> int | None:
        """Take a message; its id, or None if there is no room, or no worker has told yet where to go on."""
        if self._next is None or self.size + len(body) > self.limit:
            return None
        record = Record(self._next, body)
        self._next += 1
        self.kept.append(record)
        self.size += len(body)
        self._unread += 1
        return record.id

    def seek(self, point: int | None) -> None:
        known = point or 0
        if known < self._durable:
            raise CannotSeekError(
                f"stream '{self.name}' keeps what is not durable, from {self._durable + 1} on, and was asked for "
                f"{known + 1}"
            )
        self.ack(known)
        self._next = max(self._next or 0, known + 1)
        self._unread = len(self.kept)

    def read(self) -> Records:
        if not self._unread:
            return None if self.over else []
        unread = [self.kept[i] for i in range(len(self.kept) - self._unread, len(self.kept))]
        self._unread = 0
        return unread

    def ack(self, point: int) -> None:
        while self.kept and self.kept[0].id <= point:
            self.size -= len(self.kept.popleft().body)
        self._durable = max(self._durable, point)
        self._unread = min(self._unread, len(self.kept))


class PipeLines(Kept):
    """Lines of a file that cannot be read twice. Run again with the same lines, it sends only what the log lacks."""

    blocking = True

    def __init__(self, file: BinaryIO, *, name: str) -> None:
        super().__init__(name)
        self._file = file
        self._number = 0

    def read(self) -> Records:
        again = super().read()
        if again != [] or self.size > self.limit // 2:
            return again
        for line in self._file.readlines(_CHUNK):
            self._number += 1
            if self._next is not None and self._number >= self._next:
                self.put(line.removesuffix(b"\n"))
            self._any = True
        self.over = not self._read_any()
        return super().read()

    _any = False

    def _read_any(self) -> bool:
        found, self._any = self._any, False
        return found


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


class Posts(Kept):
    """Bodies of HTTP posts. 200 means durable; 503: no room, or no worker."""

    def __init__(self, host: str, port: int, *, name: str, patience: float = 30.0) -> None:
        super().__init__(name)
        self._address = (host, port)
        self._patience = patience
        self._server: asyncio.Server | None = None
        self._waiting: dict[int, asyncio.Future[None]] = {}

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
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = int(head.partition("content-length:")[2].partition("\r\n")[0].strip() or 0)
                ok = head.startswith("post ") and 0 < length <= _POST_LIMIT
                code = await self._posted(await reader.readexactly(length)) if ok else "400 Bad Request"
        except TimeoutError:
            code = "503 Service Unavailable"
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            code = "400 Bad Request"
        try:
            writer.write(f"HTTP/1.1 {code}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        except OSError:
            return
        finally:
            writer.close()

    async def _posted(self, body: bytes) -> str:
        number = self.put(body)
        if number is None:
            return "503 Service Unavailable"
        durable = self._waiting[number] = asyncio.get_running_loop().create_future()
        await durable
        return "200 OK"
