"""A way through one file: what comes next, and from which place to go on after it.

One class for each format. A walk is made at a place that an earlier one has told, in the same file, and goes on exactly
there. It holds no more than the block that it is at.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from penstock.adaptors.formats.contents import Content
from penstock.adaptors.formats.lines import KEPT, BadLine, Lines, Scan, fault, no_documents, scan
from penstock.log.message import MAX_MESSAGE_BYTES
from penstock.log.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

Last = Literal["wait", "leave", "take"]
"""A last line without a newline: wait for the rest; take it unless it is bad, then leave it; take it, bad or not."""

BLOCK = 4 << 20
MOST_LINES = 50_000
_LINES = 2 << 20
"""Bytes of lines that are read at once: so few that they are still in the processor's cache when they are laid out."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows, as the text of their messages, and what could not be one. Lines (from 0) and bytes count from the front."""

    texts: pa.Array | Lines
    bad: Sequence[BadLine] = ()


class Walk(ABC):
    """One file being read."""

    schema: Schema | None = None
    """What the rows are, where the file says it."""

    @property
    @abstractmethod
    def place(self) -> Mapping[str, int]:
        """Where to go on after what was taken so far."""

    @abstractmethod
    def next(self) -> Taken | None:
        """What comes next; None if that is nothing, for now or for good."""

    def finish(self) -> None:  # noqa: B027 - most files are whole from the start
        """Nobody writes any more: what is left is all there is."""


class Place(NamedTuple):
    """How far a text has been read: bytes, and newlines among them."""

    byte: int
    line: int


class TextWalk(Walk):
    """A walk through lines: places are a byte and a line."""

    def __init__(self, content: Content, place: Mapping[str, int], *, stop_at_bad: bool, last: Last) -> None:
        self._content = content
        self._stop_at_bad = stop_at_bad
        self._last: Last = last
        self.at = Place(place.get("byte", 0), place.get("line", 0))
        if not self.at.byte and content.read_at(len(_BYTE_ORDER_MARK), 0) == _BYTE_ORDER_MARK:
            self.at = Place(len(_BYTE_ORDER_MARK), 0)

    @property
    def place(self) -> Mapping[str, int]:
        return {"byte": self.at.byte, "line": self.at.line}

    def finish(self) -> None:
        self._last = "take"

    def _moved(self, found: Scan) -> Taken:
        """Go behind what was found, which tells lines and bytes from here on."""
        here = self.at
        self.at = Place(here.byte + found.bytes, here.line + found.lines)
        bad = [BadLine(here.line + b.line, here.byte + b.byte, b.reason, b.content) for b in found.bad]
        return Taken(found.documents, bad)

    def _too_long(self, text: bytes) -> Scan | None:
        """A line that no message can hold; None while its end is not written."""
        size = 0 if self._stop_at_bad else length_of_line(self._content, self.at.byte)
        if not size and not self._stop_at_bad:
            return None
        bad = [BadLine(0, 0, str(fault(text)), text[:KEPT])]
        return Scan(no_documents(), bad, 1 if size else 0, size)


class LineWalk(TextWalk):
    """JSON lines."""

    def next(self) -> Taken | None:
        text = read_ahead(self._content, self.at.byte)
        if b"\n" in text:
            return self._moved(scan(text, stop_at_bad=self._stop_at_bad, most=MOST_LINES))
        if len(text) > MAX_MESSAGE_BYTES:
            found = self._too_long(text)
            return None if found is None else self._moved(found)
        if self._last == "wait" or not text:
            return None
        last = scan(text, stop_at_bad=self._stop_at_bad)
        if last.bad and not self._stop_at_bad and self._last == "leave":
            log.warning(
                "%s: the last line, at byte %d, is not finished and was left",
                self._content.name,
                self.at.byte,
            )
            return None
        return self._moved(Scan(last.documents, last.bad, 0, last.bytes))


def read_ahead(content: Content, byte: int) -> bytes:
    """Some lines from `byte` on; more if that holds no newline, up to what a message may have."""
    size = min(_LINES, BLOCK)
    while True:
        text = content.read_at(size, byte)
        if b"\n" in text or len(text) < size or size > MAX_MESSAGE_BYTES:
            return text
        size = min(4 * size, MAX_MESSAGE_BYTES + 1)


def length_of_line(content: Content, byte: int) -> int:
    """How long the line that begins at `byte` is, with its newline; 0 if that has not been written yet."""
    size = 0
    while text := content.read_at(BLOCK, byte + size):
        found = text.find(b"\n")
        if found >= 0:
            return size + found + 1
        size += len(text)
    return 0
