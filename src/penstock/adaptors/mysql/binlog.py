"""The events of a MySQL or MariaDB binlog, read from bytes. No sockets, no state but the format of the file.

An event, little endian throughout:

    seconds u32 | type u8 | server id u32 | size u32 | end in the file u32 | flags u16 | body | crc32 u32 if checked

Bodies, each behind the header:

    ROTATE           next position u64 | name of the next file
    FORMAT           version u16 | server version 50s | created u32 | header size u8 | sizes … | checksum kind u8
    QUERY            thread u32 | seconds u32 | len(db) u8 | error u16 | len(status) u16 | status | db | 0 | statement
    GTID (MySQL)     flags u8 | uuid 16s | number u64 | …
    GTID (MariaDB)   number u64 | domain u32 | flags u8 | …
    TABLE MAP        see `penstock.adaptors.mysql.tablemap`
    ROWS             table id u48 | flags u16 | [extra u16 | …, version 2] | columns varint | present bits |
                     [present bits of the row after, updates] | rows

MariaDB compresses bodies of QUERY and ROWS, MySQL whole transactions (`payload`). What an event cannot be read as is a
`BinlogError` that says which and where.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from io import BytesIO
from typing import Protocol

from penstock.adaptors.mysql.place import Gtid, MariaGtid, MySqlGtid
from penstock.base.errors import PenstockError

HEADER = struct.Struct("<IBIIIH")
_QUERY = struct.Struct("<IIBHH")
_IGNORABLE = 0x80
_ARTIFICIAL = 0x20


class Type(IntEnum):
    """Events that matter here, and those that are known not to."""

    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    RAND = 13
    USER_VAR = 14
    FORMAT = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_1 = 23
    UPDATE_1 = 24
    DELETE_1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_2 = 30
    UPDATE_2 = 31
    DELETE_2 = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE = 39
    PAYLOAD = 40
    HEARTBEAT_2 = 41
    GTID_TAGGED = 42
    ANNOTATE_ROWS = 160
    CHECKPOINT = 161
    MARIA_GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_COMPRESSED_1 = 166
    UPDATE_COMPRESSED_1 = 167
    DELETE_COMPRESSED_1 = 168
    WRITE_COMPRESSED_2 = 169
    UPDATE_COMPRESSED_2 = 170
    DELETE_COMPRESSED_2 = 171


T = Type
WRITES = frozenset({T.WRITE_1, T.WRITE_2, T.WRITE_COMPRESSED_1, T.WRITE_COMPRESSED_2})
UPDATES = frozenset({T.UPDATE_1, T.UPDATE_2, T.UPDATE_COMPRESSED_1, T.UPDATE_COMPRESSED_2})
DELETES = frozenset({T.DELETE_1, T.DELETE_2, T.DELETE_COMPRESSED_1, T.DELETE_COMPRESSED_2})
ROWS = WRITES | UPDATES | DELETES
_VERSION_2 = frozenset(
    {T.WRITE_2, T.UPDATE_2, T.DELETE_2, T.WRITE_COMPRESSED_2, T.UPDATE_COMPRESSED_2, T.DELETE_COMPRESSED_2}
)
_COMPRESSED = frozenset(
    {
        T.WRITE_COMPRESSED_1, T.UPDATE_COMPRESSED_1, T.DELETE_COMPRESSED_1,
        T.WRITE_COMPRESSED_2, T.UPDATE_COMPRESSED_2, T.DELETE_COMPRESSED_2,
    }
)  # fmt: skip
_KNOWN = frozenset(Type)


class BinlogError(PenstockError):
    """Bytes of the binlog that do not read as an event."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event as it stands: the body is without checksum. `end` is 0 for what the server made up on the way."""

    type: int
    seconds: int
    server: int
    end: int
    size: int
    flags: int
    body: bytes

    @property
    def known(self) -> bool:
        """Whether it may be passed over if nobody here reads it."""
        return self.type in _KNOWN or bool(self.flags & _IGNORABLE)

    @property
    def artificial(self) -> bool:
        return bool(self.flags & _ARTIFICIAL) or self.end == 0


@dataclass(frozen=True, slots=True)
class Rotate:
    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class Query:
    database: str
    statement: str


@dataclass(frozen=True, slots=True)
class RowsHead:
    """The front of a row event; rows begin at `start` of `body`."""

    table: int
    width: int
    before: bytes
    after: bytes
    body: bytes
    start: int


class EventReader:
    """Takes events apart. The format event of a file says whether the others carry a checksum."""

    def __init__(self) -> None:
        self._checked = False

    def event(self, data: bytes, *, checked: bool | None = None) -> Event:
        if len(data) < HEADER.size:
            raise BinlogError(f"an event of {len(data)} bytes, which is less than its header")
        seconds, type, server, size, end, flags = HEADER.unpack_from(data)
        if size != len(data):
            raise BinlogError(f"an event of type {type} has {len(data)} bytes and says {size}")
        if type == Type.FORMAT and checked is None:
            self._checked = _format_is_checked(data)
        has_sum = zlib.crc32(data[:-4]) == int.from_bytes(data[-4:], "little")
        if type == Type.ROTATE and checked is None:
            # The first one comes before the file has said what it does.
            self._checked = self._checked or has_sum
            checked = has_sum
        if not (self._checked if checked is None else checked):
            return Event(type, seconds, server, end, size, flags, data[HEADER.size :])
        if not has_sum and type != Type.FORMAT:
            raise BinlogError(
                f"the event of type {type} that ends at byte {end} has another checksum than it says",
                hint="the binlog on the server's disk may be damaged: mysqlbinlog --verify-binlog-checksum",
            )
        return Event(type, seconds, server, end, size, flags, data[HEADER.size : -4])


def _format_is_checked(data: bytes) -> bool:
    """The checksum kind is the byte before the event's own checksum, which a format event always has room for."""
    version = data[HEADER.size + 2 : HEADER.size + 52].split(b"\0")[0]
    parts = version.split(b"-")[0].split(b".")[:3]
    numbers = tuple(int(part) if part.isdigit() else 0 for part in parts)
    oldest = (5, 3, 0) if b"MariaDB" in version else (5, 6, 1)
    return numbers >= oldest and data[-5] == 1


def read_rotate(event: Event) -> Rotate:
    return Rotate(event.body[8:].decode(), int.from_bytes(event.body[:8], "little"))


def read_query(event: Event, decoded: Callable[[bytes, int | None], str]) -> Query:
    """A statement. It stands in the character set of whoever sent it: `decoded` reads it by that one's collation."""
    _, _, database, _, status = _QUERY.unpack_from(event.body)
    start = _QUERY.size + status
    text = event.body[start + database + 1 :]
    if event.type == Type.QUERY_COMPRESSED:
        text = _inflated(text)
    collation = _client_collation(event.body[_QUERY.size : start])
    return Query(event.body[start : start + database].decode(), decoded(text, collation))


_STATUS_SIZES = {0: 4, 1: 8, 3: 4}
_STATUS_CATALOG, _STATUS_CHARSET = 6, 4


def _client_collation(status: bytes) -> int | None:
    """Of the variables of a statement, which come by their numbers, the one that says how its text is to be read."""
    place = 0
    while place < len(status):
        code, place = status[place], place + 1
        if code == _STATUS_CHARSET:
            return int.from_bytes(status[place : place + 2], "little")
        if code == _STATUS_CATALOG:
            place += 1 + status[place]
        elif code in _STATUS_SIZES:
            place += _STATUS_SIZES[code]
        else:
            return None
    return None


def read_gtid(event: Event) -> Gtid | None:
    """The GTID of the transaction that begins; None if it has none."""
    body = event.body
    if event.type == Type.MARIA_GTID:
        number, domain = struct.unpack_from("<QI", body)
        return MariaGtid(domain, event.server, number)
    if event.type == Type.GTID:
        return MySqlGtid(_uuid(body[1:17]), int.from_bytes(body[17:25], "little"))
    return None


def read_payload(event: Event) -> Iterator[bytes]:
    """The events inside a compressed transaction, one by one as they are asked for; they have no checksums.

    The transaction may be a thousand times as large as the event.
    """
    place, kind = 0, 255
    body = event.body
    while place < len(body):
        field, place = varint(body, place)
        if field == 0:
            break
        length, place = varint(body, place)
        if field == 2:
            kind = varint(body[place : place + length], 0)[0]
        place += length
    content: Content = BytesIO(body[place:])
    if kind == 0:
        from penstock.adaptors.needs import need

        zstandard = need("zstandard", "mysql")
        content = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True)
    elif kind != 255:
        raise BinlogError(f"a transaction that is compressed in a way {kind} that is not known")
    while head := _read(content, HEADER.size):
        length = int.from_bytes(head[9:13], "little") - len(head)
        rest = _read(content, length) if len(head) == HEADER.size and length >= 0 else b""
        if len(rest) != length:
            raise BinlogError("a compressed transaction that does not read")
        yield head + rest


class Content(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes: ...


def _read(content: Content, size: int) -> bytes:
    """So many bytes, or as many as are left."""
    found = content.read(size)
    while len(found) < size and (more := content.read(size - len(found))):
        found += more
    return found


def read_rows(event: Event) -> RowsHead:
    body = event.body
    table, place = int.from_bytes(body[:6], "little"), 8
    if event.type in _VERSION_2:
        place += int.from_bytes(body[8:10], "little")
    width, place = varint(body, place)
    size = (width + 7) // 8
    before = after = body[place : place + size]
    place += size
    if event.type in UPDATES:
        after = body[place : place + size]
        place += size
    if event.type in _COMPRESSED:
        return RowsHead(table, width, before, after, _inflated(body[place:]), 0)
    return RowsHead(table, width, before, after, body, place)


def varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of one to nine bytes, and the place behind it."""
    first = data[place]
    if first < 0xFB:
        return first, place + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
    if size is None:
        raise BinlogError(f"a number that begins with the byte {first}")
    return int.from_bytes(data[place + 1 : place + 1 + size], "little"), place + 1 + size


def _inflated(data: bytes) -> bytes:
    """MariaDB: a byte with the way and the count of length bytes, the length (big endian), zlib."""
    if data[0] >> 4 & 7:
        raise BinlogError(f"an event that is compressed in a way {data[0] >> 4 & 7} that is not known")
    return zlib.decompress(data[1 + (data[0] & 7) :])


def _uuid(data: bytes) -> str:
    text = data.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
