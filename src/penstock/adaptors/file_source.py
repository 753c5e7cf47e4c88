"""The reading half of `file`: the lines of a file, untouched, from any byte on.

A line is checked to be one JSON object and taken as the text it is. Blank lines are skipped. The last line
needs no newline, unless the file is followed: then whoever writes it may not be done.

The position of a namespace is `{"byte": n, "line": n, "mark": "…"}`: how many bytes and newlines have been
read, and a digest of the first and the last bytes among them. A file that became shorter, or whose read part
is not what it was, is refused rather than read from the middle of something else. A file that was copied,
restored, or mended behind the position is still the same file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from penstock.adaptors.away import os_error, telling
from penstock.adaptors.base import Batch, Source, refuse_conditions
from penstock.adaptors.lines import BadLine, Scan, fault, scan
from penstock.base.errors import PenstockError, UsageError
from penstock.log.message import MAX_MESSAGE_BYTES, Message, Mode, Op, Position, Resume

BadLines = Literal["stop", "skip"]

BLOCK = 1024 * 1024
MOST_LINES = 10_000
POLL = 0.2
MARKED = 1024
"""Bytes at the front of the file, and in front of the position, of which the mark is made."""

_ANOTHER_FILE = "bring the old content back, or read the new one as another namespace, with the setting 'ns'"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

log = logging.getLogger(__name__)


class BadLineError(PenstockError):
    """A line that cannot be a message."""


class FileChangedError(PenstockError):
    """What lies in front of the position is not what was read."""


class Place(NamedTuple):
    """How far the file has been read: bytes, and newlines among them."""

    byte: int
    line: int


class _Known(msgspec.Struct):
    """A position as the log gives it back."""

    byte: int = 0
    line: int = 0
    mark: str = ""


class FileSource(Source):
    """Reads one file, which is one namespace."""

    def __init__(self, path: Path, ns: str, *, tail: bool, bad_lines: BadLines) -> None:
        self._path = path
        self._ns = ns
        self._tail = tail
        self._bad_lines = bad_lines
        self.skipped = 0
        """Bad lines left out since the start."""

    def namespaces(self) -> Sequence[str]:
        with self._opened():
            return [self._ns]

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        if not accept(self._ns):
            return
        refuse_conditions("file", accept, resume)
        known = resume.get(self._ns)
        mode = Mode.COPY if known is None or known.mode is Mode.COPY else Mode.SYNC
        with self._opened() as fd:
            place = self._start(fd, known.position if known else {})
            while not stop.is_set():
                # Asked first, so that what was written before a rotation is read before it is an error.
                rotated = self._tail and not self._is_there(fd)
                found = self._next(fd, place)
                if found is not None:
                    began, place = place, Place(place.byte + found.bytes, place.line + found.lines)
                    if found.bytes:
                        yield self._batch(found.documents, mode, self._position(fd, place))
                    self._complain(began, found.bad)
                    continue
                if mode is Mode.COPY:
                    mode = Mode.SYNC
                    yield Batch((), {self._ns: self._position(fd, place)}, completed=(self._ns,))
                if not self._tail:
                    return
                self._wait(fd, place, stop, rotated=rotated)

    def _next(self, fd: int, place: Place) -> Scan | None:
        """What stands at `place`, as far as it can be taken now; None if that is nothing."""
        stop = self._bad_lines == "stop"
        text = _read_ahead(fd, place.byte)
        whole = text.rfind(b"\n") + 1
        if whole:
            return scan(_some_lines(text[:whole]), stop_at_bad=stop)
        if len(text) > MAX_MESSAGE_BYTES:
            too_long = [BadLine(0, 0, str(fault(text)))]
            size = 0 if stop else _length_of_line(fd, place.byte)
            return Scan((), too_long, 1 if size else 0, size) if stop or size else None
        if self._tail or not text:
            return None
        last = scan(text, stop_at_bad=stop)
        if last.bad and not stop:
            log.warning("%s: the last line, at byte %d, is not finished and was left", self._path, place.byte)
            return None
        return Scan(last.documents, last.bad, 0, last.bytes)

    def _batch(self, documents: Sequence[bytes], mode: Mode, position: Position) -> Batch:
        now = time.time_ns() // 1000
        ns, insert = self._ns, Op.INSERT
        return Batch([Message(ns, text, insert, now, mode) for text in documents], {ns: position})

    def _complain(self, began: Place, bad: Sequence[BadLine]) -> None:
        """Raise the error of the first bad line, or count and log them, as the setting says."""
        if not bad:
            return
        line, byte, reason = began.line + bad[0].line + 1, began.byte + bad[0].byte, bad[0].reason
        if self._bad_lines == "stop":
            raise BadLineError(
                f"{self._path}, line {line}, at byte {byte}: {reason}",
                hint="mend the line and start again, or leave such lines out with bad_lines='skip'",
            )
        self.skipped += len(bad)
        log.warning(
            "%s: %d bad lines left out, %d since the start; the first is line %d, at byte %d: %s",
            self._path, len(bad), self.skipped, line, byte, reason,
        )  # fmt: skip

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise os_error(f"cannot read {self._path}", error) from None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise UsageError(f"cannot read {self._path}: it is not a file")
            with telling(f"cannot read {self._path}"):
                yield fd
        finally:
            os.close(fd)

    def _start(self, fd: int, position: Position) -> Place:
        """Where to go on; refuses a file that is not the one read so far."""
        known = msgspec.convert(position, _Known)
        place = Place(known.byte, known.line)
        self._check_unchanged(fd, place, known.mark)
        if not place.byte and os.pread(fd, len(_BYTE_ORDER_MARK), 0) == _BYTE_ORDER_MARK:
            return Place(len(_BYTE_ORDER_MARK), 0)
        return place

    def _position(self, fd: int, place: Place) -> Position:
        return {"byte": place.byte, "line": place.line, "mark": _mark(fd, place.byte)}

    def _wait(self, fd: int, place: Place, stop: threading.Event, *, rotated: bool) -> None:
        """Give the writer of a followed file time, unless nobody will write to it again."""
        if rotated:
            raise FileChangedError(
                f"{self._path} was replaced or removed while it was followed; byte {place.byte} was reached",
                hint=_ANOTHER_FILE,
            )
        mark = _mark(fd, place.byte)
        stop.wait(POLL)
        self._check_unchanged(fd, place, mark)

    def _is_there(self, fd: int) -> bool:
        """Whether the open file is still the one of this name."""
        try:
            return os.path.samestat(os.fstat(fd), self._path.stat())
        except FileNotFoundError:
            return False

    def _check_unchanged(self, fd: int, place: Place, mark: str) -> None:
        size = os.fstat(fd).st_size
        if size < place.byte:
            raise FileChangedError(
                f"{self._path} has {size} bytes, but {place.byte} were read from it: it was cut or replaced",
                hint=_ANOTHER_FILE,
            )
        if place.byte and mark != _mark(fd, place.byte):
            raise FileChangedError(
                f"{self._path} is not the file that was read up to byte {place.byte}: its content is another",
                hint=_ANOTHER_FILE,
            )


def _read_ahead(fd: int, byte: int) -> bytes:
    """About a block from `byte` on; more if it holds no newline, up to what a message may have."""
    size = BLOCK
    while True:
        text = os.pread(fd, size, byte)
        if b"\n" in text or len(text) < size or size > MAX_MESSAGE_BYTES:
            return text
        size = min(4 * size, MAX_MESSAGE_BYTES + 1)


def _some_lines(text: bytes) -> bytes:
    """Of whole lines, as many as one batch should have."""
    if text.count(b"\n") <= MOST_LINES:
        return text
    return text[: len(text) - len(text.split(b"\n", MOST_LINES)[-1])]


def _length_of_line(fd: int, byte: int) -> int:
    """How long the line that begins at `byte` is, with its newline; 0 if that has not been written yet."""
    size = 0
    while text := os.pread(fd, BLOCK, byte + size):
        found = text.find(b"\n")
        if found >= 0:
            return size + found + 1
        size += len(text)
    return 0


def _mark(fd: int, byte: int) -> str:
    """A digest by which the part of the file in front of `byte` is known again."""
    size = min(byte, MARKED)
    ends = os.pread(fd, size, 0) + os.pread(fd, size, byte - size)
    return hashlib.blake2b(ends, digest_size=8).hexdigest()
