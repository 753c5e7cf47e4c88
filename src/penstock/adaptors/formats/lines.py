"""JSON lines as text: which lines are documents, which are blank, and what is wrong with the others.

A document is the text of a line without the whitespace around it; nothing else is made of it. Text comes in and goes
out as it is: no object is made for a line, unless something in its block is not as it should be. Files, positions and
what to do about a bad line belong to `penstock.adaptors.file.source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.log.message import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_SPACE = b" \t\r"

KEPT = 64 * 1024
"""Of a bad line, so many bytes at its front are worth keeping."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no document. `line` and `byte` count from the start of the scanned text."""

    line: int
    byte: int
    reason: str
    content: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """Documents as they come in most files: a text of UTF-8 in which each is a line, and where these lines end."""

    text: bytes
    """What is behind the last newline is none of them."""
    ends: npt.NDArray[np.int64]
    """The places of the newlines; there is one behind each line."""

    @classmethod
    def of(cls, text: bytes) -> Lines:
        import numpy as np

        return cls(text, np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")))

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def size(self) -> int:
        """In bytes, newlines included."""
        return int(self.ends[-1]) + 1 if len(self.ends) else 0

    def first(self, number: int) -> Lines:
        return self if number >= len(self) else Lines(self.text, self.ends[:number])

    def to_pylist(self) -> list[bytes]:
        return self.text[: self.size].split(b"\n")[:-1]


@dataclass(frozen=True, slots=True)
class Scan:
    """What some lines hold, and how many lines and bytes of the text that accounts for."""

    documents: pa.Array | Lines
    bad: Sequence[BadLine]
    lines: int
    bytes: int


class _Object(msgspec.Struct, gc=False):
    """Any JSON object: having no fields of its own, it is read by stepping over all there is."""


_decoder = msgspec.json.Decoder(_Object)


def scan(text: bytes, *, stop_at_bad: bool, most: int | None = None) -> Scan:
    """Look at lines: at all, the last one with or without its newline; or at no more than `most` that have one.

    Stopping is in front of a bad line.
    """
    lines = Lines.of(text) if most is None else Lines.of(text).first(most)
    size = len(text) if most is None else lines.size
    plain = lines
    if text.find(b"\r", 0, size) >= 0:
        plain = Lines.of(text[:size].replace(b"\r\n", b"\n"))
    if size > lines.size:
        plain = Lines.of(plain.text + b"\n")
    if _all_documents(plain):
        return Scan(plain, (), len(plain), size)
    return _one_by_one(text[:size], stop_at_bad=stop_at_bad)


def no_documents() -> pa.Array:
    import pyarrow as pa

    return pa.array([], pa.large_binary())


def fault(document: bytes) -> str | None:
    """Why this is not the text of one JSON object of a size that the log takes; None if it is."""
    if len(document) > MAX_MESSAGE_BYTES:
        return f"longer than a message may be ({MAX_MESSAGE_BYTES} bytes)"
    try:
        document.decode()
        _decoder.decode(document)
    except UnicodeDecodeError as error:
        return f"not UTF-8 ({error.reason}, byte {error.start} of the line)"
    except msgspec.ValidationError as error:
        return f"not a JSON object ({error})".replace("`", "")
    except msgspec.DecodeError as error:
        return f"not JSON ({error})"
    except RecursionError:
        return "nested too deeply"
    return None


def _one_by_one(text: bytes, *, stop_at_bad: bool) -> Scan:
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    documents: list[bytes] = []
    bad: list[BadLine] = []
    byte = 0
    for number, line in enumerate(lines):
        document = line.strip(_SPACE)
        reason = fault(document) if document else None
        if reason is not None:
            bad.append(BadLine(number, byte, reason, line[:KEPT]))
            if stop_at_bad:
                return Scan(Lines.of(b"".join(documents)), bad, number, byte)
        elif document:
            documents.append(document + b"\n")
        byte += len(line) + 1
    return Scan(Lines.of(b"".join(documents)), bad, len(lines), len(text))


def _all_documents(lines: Lines) -> bool:
    """Whether each line is exactly one document, asked of all at once: three times as fast as one by one.

    The decoder reads a stream of objects and does not care about lines. But if every newline stands between
    `}` and `{`, none stands inside an object, where at least a comma would be between the two; and if there
    are as many objects as lines, each line holds one.
    """
    import numpy as np

    text, ends = lines.text, lines.ends
    if not lines or not text.startswith(b"{") or lines.size - 1 > MAX_MESSAGE_BYTES:
        return False
    letters = np.frombuffer(text, np.uint8)
    if (letters[ends - 1] != ord("}")).any() or (letters[ends[:-1] + 1] != ord("{")).any():
        return False
    try:
        counted = memoryview(text)[: lines.size]
        if not text.isascii():
            str(counted, "utf-8")
        return len(_decoder.decode_lines(counted)) == len(lines)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
