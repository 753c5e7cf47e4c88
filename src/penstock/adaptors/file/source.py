"""The reading half of `file` for one file: its lines or rows, from any place on.

A line of JSON is checked to be one object and taken as the text it is. Blank lines are skipped. The last line
needs no newline, unless the file is followed: then whoever writes it may not be done.

The position of a namespace is `{"byte": n, "line": n, "mark": "…"}`: how many bytes and newlines have been
read, and a digest of the first and the last bytes among them. A file that became shorter, or whose read part
is not what it was, is refused rather than read from the middle of something else. A file that was copied,
restored, or mended behind the position is still the same file. Of a compressed file the bytes are those before it was
compressed, and the mark is that of the whole file; so it is of a Parquet file, which is at `{"group": n, "row": n}`.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.adaptors.away import os_error, telling
from penstock.adaptors.base import Batch, Source, refuse_conditions
from penstock.adaptors.formats.contents import LocalContent
from penstock.adaptors.formats.reading import (
    ANOTHER_FILE,
    BadLineError,
    Batches,
    FileChangedError,
    OpenFile,
    Reading,
)
from penstock.base.errors import UsageError
from penstock.log.message import Mode, Resume

__all__ = ["BadLineError", "FileChangedError", "FileSource", "opened"]

POLL = 0.2


class FileSource(Source):
    """Reads one file, which is one namespace."""

    def __init__(self, path: Path, ns: str, *, tail: bool, reading: Reading) -> None:
        self._path = path
        self._ns = ns
        self._tail = tail
        self._reading = reading
        self._batches = Batches(reading.bad_lines)

    @property
    def skipped(self) -> int:
        """Bad lines left out since the start."""
        return self._batches.skipped

    def namespaces(self) -> Sequence[str]:
        with opened(self._path):
            return [self._ns]

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        if not accept(self._ns):
            return
        refuse_conditions("file", accept, resume)
        known = resume.get(self._ns)
        mode = Mode.COPY if known is None or known.mode is Mode.COPY else Mode.SYNC
        with opened(self._path) as fd:
            content = LocalContent(str(self._path), fd)
            file = OpenFile(
                content, self._reading, known.position if known else {}, "wait" if self._tail else "leave"
            )
            while not stop.is_set():
                # Asked first, so that what was written before a rotation is read before it is an error.
                rotated = self._tail and not self._is_there(fd)
                before = file.walk.place
                taken = file.walk.next()
                if taken is not None:
                    if file.walk.place != before:
                        yield self._batches.of(self._ns, mode, file, taken, file.position())
                    self._batches.complain(content.name, taken)
                    continue
                if mode is Mode.COPY:
                    mode = Mode.SYNC
                    yield Batch((), {self._ns: file.position()}, completed=(self._ns,))
                if not self._tail:
                    return
                self._wait(file, stop, rotated=rotated)

    def _wait(self, file: OpenFile, stop: threading.Event, *, rotated: bool) -> None:
        """Give the writer of a followed file time, unless nobody will write to it again."""
        if rotated:
            raise FileChangedError(
                f"{self._path} was replaced or removed while it was followed; byte {file.byte} was reached",
                hint=ANOTHER_FILE,
            )
        stop.wait(POLL)
        file.check()

    def _is_there(self, fd: int) -> bool:
        """Whether the open file is still the one of this name."""
        try:
            return os.path.samestat(os.fstat(fd), self._path.stat())
        except FileNotFoundError:
            return False


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A file of this machine, opened for reading."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise os_error(f"cannot read {path}", error) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UsageError(f"cannot read {path}: it is not a file")
        with telling(f"cannot read {path}"):
            yield fd
    finally:
        os.close(fd)
