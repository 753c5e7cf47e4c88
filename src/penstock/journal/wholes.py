"""Appends that come whole, with their content beside their parameters instead of within a protobuf message.

A message of protobuf copies content whenever it is set, written, read or looked at. So an AppendBatch is written and
read here directly, as one field `appends` (1) after another: in each the parameters, and the content (4) where it lies.
It is the same message on the wire. Whatever has another look goes through protobuf, so both ends understand everything
either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.base.disk import Buffer
from penstock.journal.chunks import read_varint, varint
from penstock.journal.protocol import AppendBatch, AppendRequest

_APPENDS = 1 << 3 | 2
_INDEPENDENT = 2 << 3
_UNSUMMED = 3 << 3
_CONTENT = 4 << 3 | 2
_WORTH_IT = 4096
"""Below this size a message is cheap enough."""


class Pieces:
    """Content that lies in several places, to be taken as one."""

    __slots__ = ("_length", "parts")

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self.parts = parts
        self._length = sum(map(len, parts))

    def __len__(self) -> int:
        return self._length


def parts_of(content: Buffer | Pieces) -> Sequence[Buffer]:
    """Where it lies."""
    return content.parts if isinstance(content, Pieces) else (content,)


@dataclass(frozen=True, slots=True)
class Whole:
    """One append: `first` has everything but the content."""

    first: AppendRequest
    content: Buffer | Pieces

    def request(self) -> AppendRequest:
        """As a message."""
        request = AppendRequest(content=b"".join(parts_of(self.content)))
        request.MergeFrom(self.first)
        return request


@dataclass(frozen=True, slots=True)
class Wholes:
    """What an AppendBatch says."""

    appends: Sequence[Whole]
    independent: bool = False
    unsummed: bool = False


def whole(request: AppendRequest) -> Whole:
    """An append that came as one message. Its parameters are a new one: a message keeps what it was parsed from."""
    first = AppendRequest(
        journal=request.journal,
        do_not_proxy=request.do_not_proxy,
        offset=request.offset,
        suspend=request.suspend,
        min_etcd_revision=request.min_etcd_revision,
    )
    for name in ("header", "check_registers", "union_registers", "subtract_registers"):
        if request.HasField(name):
            getattr(first, name).CopyFrom(getattr(request, name))
    return Whole(first, request.content)


def wholes(batch: AppendBatch | Wholes) -> Wholes:
    """The batch, whichever form it has."""
    if isinstance(batch, Wholes):
        return batch
    return Wholes([whole(request) for request in batch.appends], batch.independent, batch.unsummed)


def encode(batch: AppendBatch | Wholes) -> bytes:
    if isinstance(batch, AppendBatch):
        return batch.SerializeToString()
    parts: list[Buffer] = []
    for append in batch.appends:
        parameters = append.first.SerializeToString()
        if append.content:
            parameters += bytes((_CONTENT,)) + varint(len(append.content))
        parts += (
            bytes((_APPENDS,)),
            varint(len(parameters) + len(append.content)),
            parameters,
            *parts_of(append.content),
        )
    if batch.independent:
        parts.append(bytes((_INDEPENDENT, 1)))
    if batch.unsummed:
        parts.append(bytes((_UNSUMMED, 1)))
    return b"".join(parts)


def decode(data: bytes) -> AppendBatch | Wholes:
    """The batch; contents of large ones are views into `data`."""
    if len(data) < _WORTH_IT:
        return AppendBatch.FromString(data)
    appends, flags = [], {_INDEPENDENT: False, _UNSUMMED: False}
    for tag, _, begin, end in _fields(data, 0, len(data)):
        if tag == _APPENDS:
            append = _append(data, begin, end)
            if append is None:
                return AppendBatch.FromString(data)
            appends.append(append)
        elif tag in flags and end - begin == 1:
            flags[tag] = data[begin] != 0
        else:
            return AppendBatch.FromString(data)
    return Wholes(appends, flags[_INDEPENDENT], flags[_UNSUMMED])


def _append(data: bytes, begin: int, end: int) -> Whole | None:
    """The append whose message lies there; None if it is not for us to read."""
    view = memoryview(data)
    rest: list[Buffer] = []
    content: memoryview | None = None
    for tag, at, value, behind in _fields(data, begin, end):
        if tag == _CONTENT and content is None:
            content = view[value:behind]
        elif tag < 0 or tag == _CONTENT:
            return None
        else:
            rest.append(view[at:behind])
    return Whole(AppendRequest.FromString(b"".join(rest)), content if content is not None else b"")


def _fields(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Tag, where it stands, and where the value begins and ends, of each field of a message; -1 where none can be."""
    at = begin
    while at < end:
        tag, value = data[at], at + 1
        if tag & 7 == 2 and tag < 0x80:
            length, value = read_varint(data, value)
            behind = value + length if length >= 0 else end + 1
        elif tag & 7 == 0 and tag < 0x80:
            number, behind = read_varint(data, value)
            behind = behind if number >= 0 else end + 1
        else:
            behind = end + 1
        if behind > end:
            yield -1, at, at, end
            return
        yield tag, at, value, behind
        at = behind
