"""Records of the commit log and the offset log: the seed's layout, byte for byte (seed 004, "Log").

    offset u64 | size u32 | timestamp u64 | attributes u8 | key length u32 | key | data length u32 | data

All integers big-endian; `size` counts what follows the attributes: 8 + key + data. The key is the namespace.

    attributes  bits 0-1  mode: 0 copy, 1 sync, 2 complete
                bits 2-4  op
                bit 5     the data begins with a header, see below
                bit 6     control: tells about the log itself, takes no message offset (all ones stand there)
                bit 7     0; a set bit is a newer format and is refused

    header      length u32 (of what follows) | key length i32, -1 for none | row key | rest

The row key is JSON text. The rest, often empty, is one JSON object: the key that the row had before (`old`, its text
as a JSON string), the source's position, and whatever else a source needs beyond the message. Without bit 5 the
record is the seed's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple, cast

import msgspec

from penstock.base.disk import Buffer
from penstock.base.errors import CorruptError, PenstockError
from penstock.log.message import MAX_MESSAGE_BYTES, Message, Mode, Op

PREFIX = struct.Struct(">QIQB")
LENGTH = struct.Struct(">I")
HEADER = struct.Struct(">Ii")
_LOOK = struct.Struct(">QIQBI")
_OFFSET = struct.Struct(">Q")
OVERHEAD = PREFIX.size + 2 * LENGTH.size
MAX_SIZE = MAX_MESSAGE_BYTES + (1 << 20)
"""Of a record's `size`: the largest message, and room for its namespace, key and position."""

NO_OFFSET = 0xFFFF_FFFF_FFFF_FFFF
MODE_MASK, OP_SHIFT, OP_MASK = 0b11, 2, 0b111
WITH_HEADER, CONTROL, NEWER = 1 << 5, 1 << 6, 1 << 7

_encode_json = msgspec.json.encode
_decode_json = msgspec.json.Decoder(dict[str, object]).decode


class CorruptRecordError(CorruptError):
    """Bytes that do not read as a record."""


class RecordTooLargeError(PenstockError):
    """A record that would be refused when it is read."""

    def __init__(self, ns: str, size: int) -> None:
        super().__init__(
            f"a record of namespace '{ns[:100]}' has {size:,} bytes with its key and position, "
            f"the limit is {MAX_SIZE:,}"
        )


class Record(NamedTuple):
    """One record, decoded. `offset` is -1 for control records; `extra` is the rest of the header."""

    offset: int
    ts: int
    mode: Mode
    op: Op
    ns: str
    data: bytes
    key: bytes | None = None
    extra: dict[str, object] | None = None
    control: bool = False

    @property
    def old_key(self) -> bytes | None:
        """The JSON text of the key that the row had before, if this message changes it."""
        old = self.extra.get("old") if self.extra is not None else None
        return old.encode() if isinstance(old, str) else None


def encode(record: Record) -> bytes:
    """The bytes of one record."""
    attributes = record.mode | record.op << OP_SHIFT
    header = b""
    if record.key is not None or record.extra is not None:
        attributes |= WITH_HEADER
        header = encode_header(record.key, record.extra)
    if record.control:
        attributes |= CONTROL
    ns = record.ns.encode()
    length = len(header) + len(record.data)
    if 8 + len(ns) + length > MAX_SIZE:
        raise RecordTooLargeError(record.ns, 8 + len(ns) + length)
    offset = NO_OFFSET if record.control else record.offset
    return b"".join(
        (
            PREFIX.pack(offset, 8 + len(ns) + length, record.ts, attributes),
            LENGTH.pack(len(ns)),
            ns,
            LENGTH.pack(length),
            header,
            record.data,
        )
    )


def encode_messages(
    messages: Sequence[Message], first: int, extras: Mapping[int, dict[str, object]]
) -> bytes:
    """The records of a batch whose offsets begin at `first`.

    `extras` gives the header's rest for messages by their index. Kept tight: every message in passes here.
    """
    parts: list[bytes] = []
    add = parts.append
    packers: dict[str, tuple[Callable[..., bytes], bytes, int]] = {}
    for i, message in enumerate(messages):
        data, key, old = message.data, message.key, message.old_key
        known = packers.get(message.ns)
        if known is None:
            name = message.ns.encode()
            known = packers[message.ns] = Struct(f">QIQBI{len(name)}sI").pack, name, len(name)
        pack, name, name_length = known
        attributes = message.mode | message.op << OP_SHIFT
        length = len(data)
        if key is None and old is None and i not in extras:
            header = b""
        else:
            attributes |= WITH_HEADER
            extra = extras.get(i)
            header = encode_header(key, extra if old is None else {"old": old.decode(), **(extra or {})})
            length += len(header)
        size = 8 + name_length + length
        if size > MAX_SIZE:
            raise RecordTooLargeError(message.ns, size)
        add(pack(first + i, size, message.ts, attributes, name_length, name, length))
        if header:
            add(header)
        add(data)
    return b"".join(parts)


def encode_rest(extra: dict[str, object] | None) -> bytes:
    """What a header holds beside the key."""
    return _encode_json(extra) if extra is not None else b""


def encode_header(key: bytes | None, extra: dict[str, object] | None) -> bytes:
    rest = encode_rest(extra)
    row_key = key if key is not None else b""
    size = 4 + len(row_key) + len(rest)
    return HEADER.pack(size, -1 if key is None else len(row_key)) + row_key + rest


def boundaries(buffer: Buffer, where: str, base: int = 0) -> tuple[list[int], int]:
    """Where the whole records of `buffer` begin, and where the last of them ends.

    A record cut off by the end of the buffer is left out; nonsense raises. `where` and `base` name the
    journal and the position of the buffer in it. Lengths chain from record to record, so this walk is the
    one part of decoding that cannot be done on columns.
    """
    starts: list[int] = []
    append = starts.append
    unpack = LENGTH.unpack_from
    limit = len(buffer) - PREFIX.size
    end = len(buffer)
    position = 0
    while position <= limit:
        (size,) = unpack(buffer, position + 8)
        after = position + 21 + size
        if not 8 <= size <= MAX_SIZE:
            raise CorruptRecordError(f"a record of size {size}", where=where, position=base + position)
        if after > end:
            break
        append(position)
        position = after
    return starts, position


class Skimmed(NamedTuple):
    """What a buffer of records says, as far as a fold over them needs it, without decoding each."""

    latest: list[int]
    """Where the last message of each namespace begins."""
    telling: list[int]
    """Where records begin that tell more than a message: control records, and those with a rest in the header."""
    first: int
    """The offset of the first message; -1 if there is none."""
    messages: int
    """How many there are."""
    last: int


def skim(buffer: Buffer, where: str, base: int = 0) -> tuple[Skimmed, int]:
    """Look over the whole records of `buffer`; also where the last of them ends."""
    starts, end = boundaries(buffer, where, base)
    latest: dict[bytes, int] = {}
    telling: list[int] = []
    first = last = -1
    count = 0
    unpack, unpack_header = _LOOK.unpack_from, HEADER.unpack_from
    for start in starts:
        offset, size, _, attributes, ns_length = unpack(buffer, start)
        if attributes & (CONTROL | NEWER):
            telling.append(start)
            continue
        data_at = start + 29 + ns_length
        if 8 + ns_length > size:
            raise CorruptRecordError("a key longer than its record", where=where, position=base + start)
        latest[bytes(buffer[start + 25 : data_at - 4])] = start
        if attributes & WITH_HEADER:
            if size < 16 + ns_length:
                raise CorruptRecordError("a damaged header", where=where, position=base + start)
            length, key_length = unpack_header(buffer, data_at)
            if length != 4 + max(key_length, 0):
                telling.append(start)
        if not count:
            first = offset
        last = offset
        count += 1
    return Skimmed(list(latest.values()), telling, first, count, last), end


def offset_at(buffer: Buffer, position: int) -> int:
    """The message offset of the record at `position`; -1 for a control record."""
    (offset,) = _OFFSET.unpack_from(buffer, position)
    return -1 if offset == NO_OFFSET else cast("int", offset)


def ns_at(buffer: Buffer, position: int) -> bytes:
    """The namespace of the record at `position`, encoded."""
    (length,) = LENGTH.unpack_from(buffer, position + PREFIX.size)
    return bytes(buffer[position + 25 : position + 25 + length])


def length_at(buffer: Buffer, position: int) -> int:
    """How many bytes the record at `position` takes."""
    (size,) = LENGTH.unpack_from(buffer, position + 8)
    return PREFIX.size + cast("int", size)


def decode(buffer: Buffer, position: int, where: str, base: int = 0) -> Record:
    """The record at `position`, which must be whole."""
    offset, size, ts, attributes = PREFIX.unpack_from(buffer, position)
    if attributes & NEWER:
        raise CorruptRecordError(
            "a record of a newer format",
            where=where,
            position=base + position,
            hint="this log was written by a newer version of Penstock; use that one",
        )
    view = memoryview(buffer)
    (ns_length,) = LENGTH.unpack_from(view, position + 21)
    data_at = position + 25 + ns_length
    if 8 + ns_length > size:
        raise CorruptRecordError("a key longer than its record", where=where, position=base + position)
    (data_length,) = LENGTH.unpack_from(view, data_at)
    if 8 + ns_length + data_length != size:
        raise CorruptRecordError("lengths that do not add up", where=where, position=base + position)
    data = bytes(view[data_at + 4 : data_at + 4 + data_length])
    key: bytes | None = None
    extra: dict[str, object] | None = None
    if attributes & WITH_HEADER:
        key, extra, data = _split_header(data, where, base + position)
    try:
        mode, op = Mode(attributes & MODE_MASK), Op(attributes >> OP_SHIFT & OP_MASK)
        ns = bytes(view[position + 25 : data_at]).decode()
    except ValueError as error:
        raise CorruptRecordError(
            f"a damaged record ({error})", where=where, position=base + position
        ) from None
    control = bool(attributes & CONTROL)
    return Record(
        offset=-1 if control else offset,
        ts=ts,
        mode=mode,
        op=op,
        ns=ns,
        data=data,
        key=key,
        extra=extra,
        control=control,
    )


def decode_all(buffer: Buffer, where: str, base: int = 0) -> Iterator[tuple[int, Record]]:
    """Each whole record of the buffer with its position in it."""
    starts, _ = boundaries(buffer, where, base)
    for start in starts:
        yield start, decode(buffer, start, where, base)


def _split_header(
    data: bytes, where: str, position: int
) -> tuple[bytes | None, dict[str, object] | None, bytes]:
    try:
        length, key_length = HEADER.unpack_from(data)
        stop = 4 + length
        rest_at = HEADER.size + max(key_length, 0)
        if rest_at > stop or stop > len(data) or key_length < -1:
            raise ValueError("header lengths")
        key = data[HEADER.size : rest_at] if key_length >= 0 else None
        rest = data[rest_at:stop]
        return key, (_decode_json(rest) if rest else None), data[stop:]
    except (struct.error, ValueError, msgspec.DecodeError) as error:
        raise CorruptRecordError(f"a damaged header ({error})", where=where, position=position) from None
