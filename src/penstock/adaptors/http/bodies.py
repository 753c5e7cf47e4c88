"""What a post holds: its documents, by content type, and where those stand that are none.

    content type                                   body
    application/json, anything +json, none         one JSON object, or an array of them
    application/x-ndjson, application/jsonl, …     a JSON object on each line; blank lines are none

A body may be compressed with gzip. Documents keep their text byte for byte. No sockets here: bytes in, values out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from penstock.adaptors.documents import key_of
from penstock.adaptors.formats.lines import fault

_LINES = frozenset(
    {
        "application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonl",
        "application/jsonlines", "application/x-jsonlines", "application/json-lines",
    }
)  # fmt: skip
_GZIP = 31
"""What zlib calls gzip with its header and check sum."""

_BETWEEN = b" \t\r\n,["
_SPACE = b" \t\r\n"


class Piece(NamedTuple):
    """One document of a body: its text, and where it begins. `wrong` says why it cannot be a message."""

    text: bytes
    place: str
    wrong: str | None


class TooLongError(Exception):
    """A body that is above the limit once it is unpacked."""


def is_lines(content_type: str) -> bool:
    """Whether a body of this type has a document on each line. Raises ValueError for a type that is not JSON."""
    if content_type in _LINES:
        return True
    if content_type in ("", "application/json", "text/json") or content_type.endswith("+json"):
        return False
    raise ValueError(f"expected application/json or application/x-ndjson, got {content_type[:100]}")


def unpacked(body: bytes, encoding: str, most: int) -> bytes:
    """The body as it was before it was compressed. Raises ValueError, or `TooLongError` above `most` bytes."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip"):
        raise ValueError(f"expected a body that is not compressed, or with gzip, got {encoding[:100]}")
    reader = zlib.decompressobj(_GZIP)
    try:
        found = reader.decompress(body, most + 1)
    except zlib.error as error:
        raise ValueError(f"not gzip ({error})") from None
    if len(found) > most:
        raise TooLongError
    if not reader.eof or reader.unused_data:
        raise ValueError("not one whole gzip stream")
    return found


def pieces(body: bytes, *, lines: bool, key: tuple[str, ...]) -> Iterator[Piece]:
    """All documents of a body, in their order. With `key`, each needs these fields."""
    wrong = _checked(key)
    if lines:
        return _of_lines(body, wrong)
    start = body.lstrip(_SPACE)
    if start.startswith(b"["):
        return _of_array(body, wrong)
    at = len(body) - len(start)
    text = start.rstrip(_SPACE)
    return iter([Piece(text, f"byte {at}", wrong(text))])


def _of_lines(body: bytes, wrong: Callable[[bytes], str | None]) -> Iterator[Piece]:
    at = 0
    for number, line in enumerate(body.split(b"\n"), 1):
        text = line.strip(_SPACE)
        if text:
            yield Piece(text, f"line {number}, byte {at}", wrong(text))
        at += len(line) + 1


def _of_array(body: bytes, wrong: Callable[[bytes], str | None]) -> Iterator[Piece]:
    try:
        found = msgspec.json.decode(body, type=list[msgspec.Raw])
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        yield Piece(body, "byte 0", f"not JSON ({error})")
        return
    at = 0
    for number, raw in enumerate(found, 1):
        text = bytes(raw)
        # Between two elements of an array there is a comma, and space.
        while body[at] in _BETWEEN and not body.startswith(text, at):
            at += 1
        yield Piece(text, f"document {number}, byte {at}", wrong(text))
        at += len(text)


def _checked(key: tuple[str, ...]) -> Callable[[bytes], str | None]:
    def wrong(text: bytes) -> str | None:
        reason = fault(text)
        if reason is None and key:
            try:
                key_of(text, key)
            except ValueError as error:
                return str(error)
        return reason

    return wrong
