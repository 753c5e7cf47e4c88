"""Messages of an append that are nothing but content, without the copies that a protobuf message of them costs.

Most bytes of a journal arrive in AppendRequests that have only `content` (field 4). Their encoding is a tag, a length
and the content; here it is written and read directly. Whatever does not look exactly like that goes through
protobuf, so both ends understand everything either way.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.journal.protocol import AppendRequest

_TAG = 4 << 3 | 2
_WORTH_IT = 4096
"""Below this size a message is cheap enough."""


@dataclass(frozen=True, slots=True)
class Content:
    """An AppendRequest with content and nothing else."""

    content: memoryview


def encode(request: AppendRequest | Content) -> bytes:
    if isinstance(request, AppendRequest):
        return request.SerializeToString()
    return b"".join((bytes((_TAG,)), varint(len(request.content)), request.content))


def decode(data: bytes) -> AppendRequest | Content:
    if len(data) >= _WORTH_IT and data[0] == _TAG:
        length, at = read_varint(data, 1)
        if at + length == len(data):
            return Content(memoryview(data)[at:])
    return AppendRequest.FromString(data)


def whole(request: AppendRequest | Content) -> AppendRequest:
    """The message itself, whichever form it came in."""
    return request if isinstance(request, AppendRequest) else AppendRequest(content=bytes(request.content))


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends; -1 if it is longer than any length of ours."""
    number = shift = 0
    while shift < 35 and at < len(data):
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
        shift += 7
    return -1, at
