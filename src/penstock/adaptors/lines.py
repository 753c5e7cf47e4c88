"""JSON lines as text: which lines are documents, which are blank, and what is wrong with the others.

A document is the text of a line without the whitespace around it; nothing else is made of it. Text comes in,
values go out; files, positions and what to do about a bad line belong to `penstock.adaptors.file_source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.log.message import MAX_MESSAGE_BYTES

_SPACE = b" \t\r"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no document. `line` and `byte` count from the start of the scanned text."""

    line: int
    byte: int
    reason: str


@dataclass(frozen=True, slots=True)
class Scan:
    """What some lines hold, and how many lines and bytes of the text that accounts for."""

    documents: Sequence[bytes]
    bad: Sequence[BadLine]
    lines: int
    bytes: int


class _Object(msgspec.Struct, gc=False):
    """Any JSON object: having no fields of its own, it is read by stepping over all there is."""


_decoder = msgspec.json.Decoder(_Object)


def scan(text: bytes, *, stop_at_bad: bool) -> Scan:
    """Look at whole lines, the last one with or without its newline. Stopping is in front of a bad line."""
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if _all_documents(text, len(lines)):
        return Scan(lines, (), len(lines), len(text))
    documents: list[bytes] = []
    bad: list[BadLine] = []
    byte = 0
    for number, line in enumerate(lines):
        document = line.strip(_SPACE)
        reason = fault(document) if document else None
        if reason is not None:
            bad.append(BadLine(number, byte, reason))
            if stop_at_bad:
                return Scan(documents, bad, number, byte)
        elif document:
            documents.append(document)
        byte += len(line) + 1
    return Scan(documents, bad, len(lines), len(text))


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
