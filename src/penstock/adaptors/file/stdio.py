"""`stdin://` and `stdout://`: lines from the program before, and to the program behind.

What comes by standard input comes once: nothing can be read again. A line is safe when the log has it, and no earlier;
whoever sends must send again what a crash found on the way, and what is sent again is logged again. What goes to
standard output goes there at least once.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from penstock.adaptors.away import telling
from penstock.adaptors.base import (
    Batch,
    Guarantee,
    Order,
    Publisher,
    Sink,
    SinkPosition,
    Source,
    Staged,
    Stager,
    refuse_conditions,
)
from penstock.adaptors.formats.contents import Content
from penstock.adaptors.formats.reading import Batches, OpenFile, Reading
from penstock.adaptors.formats.walks import BLOCK
from penstock.log.message import Mode, Resume

_PATIENCE = 0.2


class StdinContent(Content):
    """What was sent so far, as far as nobody has read behind it."""

    name = "stdin"

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._start = 0
        self._held = bytearray()
        self.ended = False

    def read_at(self, size: int, byte: int) -> bytes:
        """Waits a moment for something if there is nothing."""
        if byte > self._start:
            del self._held[: byte - self._start]
            self._start = byte
        patience = _PATIENCE
        while len(self._held) < size and not self.ended and select.select([self._fd], [], [], patience)[0]:
            piece = os.read(self._fd, BLOCK)
            self._held += piece
            self.ended = not piece
            patience = 0.0
        return bytes(self._held[:size])

    def size(self) -> int:
        return self._start + len(self._held)


class StdinSource(Source):
    """Lines from standard input, from whatever it has now on."""

    def __init__(self, ns: str, reading: Reading, fd: int | None = None) -> None:
        self._ns = ns
        self._reading = reading
        self._fd = fd
        self._batches = Batches(reading.bad_lines)

    def namespaces(self) -> Sequence[str]:
        return [self._ns]

    def read(
        self, accept: Callable[[str], bool], resume: Mapping[str, Resume], stop: threading.Event
    ) -> Iterator[Batch]:
        if not accept(self._ns):
            return
        refuse_conditions("file", accept, resume)
        content = StdinContent(sys.stdin.fileno() if self._fd is None else self._fd)
        file = OpenFile(content, self._reading, {}, "wait")
        while not stop.is_set():
            taken = file.walk.next()
            if taken is None and content.ended:
                file.walk.finish()
                taken = file.walk.next()
                if taken is None:
                    yield Batch((), {self._ns: dict(file.walk.place)}, completed=(self._ns,))
                    return
            if taken is not None:
                yield self._batches.of(self._ns, Mode.COPY, file, taken, dict(file.walk.place))
                self._batches.complain("stdin", taken)


class StdoutSink(Sink):
    """Lines to standard output."""

    order = Order.TOTAL
    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, stager: Stager, header: bytes = b"") -> None:
        self._stager = stager
        self._header = header

    def stager(self) -> Stager:
        return self._stager

    def publisher(self) -> Publisher:
        return StdoutPublisher(self._header)

    def staging(self, scratch: Path) -> Path:
        return scratch


class StdoutPublisher(Publisher):
    """Copies parts, behind a header once a start; keeps no position."""

    def __init__(self, header: bytes = b"") -> None:
        self._header = header

    def open(self, start: SinkPosition) -> None:
        return None

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        with telling("cannot write to stdout"):
            sys.stdout.buffer.write(self._header)
            self._header = b""
            for staged in parts:
                if staged.part:
                    with Path(staged.part).open("rb") as part:
                        shutil.copyfileobj(part, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        for staged in parts:
            if staged.part:
                Path(staged.part).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is held."""
