"""JSON lines as text: which lines are documents, which are blank, and what is wrong with the others.

A document is the text of a line without the whitespace around it; nothing else is made of it. Text comes in,
columns go out: no object is made for a line, unless something in its block is not as it should be. Files, positions and
what to do about a bad line belong to `penstock.adaptors.file.source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.columns import textarrays as ta
from penstock.log.message import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
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


@dataclass(frozen=True, slots=True)
class Scan:
    """What some lines hold, and how many lines and bytes of the text that accounts for."""

    documents: pa.Array
    bad: Sequence[BadLine]
    lines: int
    bytes: int


class _Object(msgspec.Struct, gc=False):
    """Any JSON object: having no fields of its own, it is read by stepping over all there is."""


_decoder = msgspec.json.Decoder(_Object)


def scan(text: bytes, *, stop_at_bad: bool) -> Scan:
    """Look at whole lines, the last one with or without its newline. Stopping is in front of a bad line."""
    count = text.count(b"\n") + (not text.endswith(b"\n") and bool(text))
    plain = text.replace(b"\r\n", b"\n") if b"\r\n" in text else text
    if _all_documents(plain, count):
        return Scan(_columns(plain), (), count, len(text))
    return _one_by_one(text, stop_at_bad=stop_at_bad)


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
    import pyarrow as pa

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
                return Scan(pa.array(documents, pa.large_binary()), bad, number, byte)
        elif document:
            documents.append(document)
        byte += len(line) + 1
    return Scan(pa.array(documents, pa.large_binary()), bad, len(lines), len(text))


def _columns(text: bytes) -> pa.Array:
    """The lines of a text, as a column."""
    import numpy as np

    if not text.endswith(b"\n"):
        text += b"\n"
    newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    bounds = np.zeros(len(newlines) + 1, np.int64)
    bounds[1:] = newlines - np.arange(len(newlines))
    return ta.of_parts(np.frombuffer(text.replace(b"\n", b""), np.uint8), bounds)


def _all_documents(text: bytes, lines: int) -> bool:
    """Whether each line is exactly one document, asked of all at once: three times as fast as one by one.

    The decoder reads a stream of objects and does not care about lines. But if every newline stands between
    `}` and `{`, none stands inside an object, where at least a comma would be between the two; and if there
    are as many objects as lines, each line holds one.
    """
    body = text.removesuffix(b"\n")
    if len(body) > MAX_MESSAGE_BYTES or not (body.startswith(b"{") and body.endswith(b"}")):
        return False
    if body.count(b"}\n{") != lines - 1:
        return False
    try:
        if not body.isascii():
            body.decode()
        return len(_decoder.decode_lines(body)) == lines
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
