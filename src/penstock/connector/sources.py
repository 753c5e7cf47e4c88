"""Ready streams: lines of a file, of the files of a directory, of a pipe; datagrams; HTTP posts.

Lines(path, follow=True)     a line is a message, its id the byte behind it; goes on after any crash
DirectoryLines(path)         the files of a directory in the order of their names, as one stream
PipeLines(file)              lines of something that cannot be read twice; the id is the number of the line
Datagrams(host, port)        each datagram a message; what no worker takes in time is lost, as UDP is
Posts(host, port)            each POST a message, answered with 200 when it is durable
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from penstock.base.errors import PenstockError
from penstock.connector.columns import Columns, sizes_of
from penstock.connector.frames import MAX_FRAME
from penstock.connector.kept import Kept
from penstock.connector.ports import Datagrams, Posts
from penstock.connector.source import CannotSeekError, Records, Stream

__all__ = ["Datagrams", "DirectoryLines", "Kept", "Lines", "PipeLines", "Posts", "Readable"]

_CHUNK: Final = 256 << 10
_CHUNKS: Final = 4
"""Chunks of a pipe that are read ahead."""
_PAUSE: Final = 0.05
"""Seconds until a pipe that does not block is read again."""
_FILE_SHIFT: Final = 40
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


class Readable(Protocol):
    """What a pipe is read from: a file without a buffer of its own, such as `sys.stdin.buffer.raw`.

    A buffer is locked by the thread that waits in it, and then Python cannot end.
    """

    def read(self, size: int, /) -> bytes | None:
        """What there is, up to so much; empty at the end. None if there is nothing now and it does not wait."""


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
