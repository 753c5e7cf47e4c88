"""The messages of PostgreSQL's `pgoutput`, protocol version 1: bytes in, values out.

    B  Begin      final LSN i64, commit time i64, xid i32
    C  Commit     flags i8, commit LSN i64, end LSN i64, commit time i64
    O  Origin     LSN i64, name str
    M  Message    transactional i8, LSN i64, prefix str, length i32, content
    R  Relation   oid i32, schema str, name str, identity char,
                  columns i16 × (flags i8, name str, type i32, modifier i32)
    Y  Type       oid i32, schema str, name str
    I  Insert     oid i32, 'N' tuple
    U  Update     oid i32, ('K' tuple | 'O' tuple)?, 'N' tuple
    D  Delete     oid i32, 'K' tuple | 'O' tuple
    T  Truncate   relations i32, options i8, oid i32 each

    tuple         columns i16 × ('n' | 'u' | 't' length i32, text | 'b' length i32, binary)
    str           UTF-8, ends in a zero byte

All numbers are big-endian. LSNs are places in the server's log; times count microseconds since 2000-01-01. Around them
stands the replication protocol, which `XLogData` and `Keepalive` tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from struct import Struct
from typing import TypeAlias

import msgspec

from penstock.base.errors import CorruptError

EPOCH = 946_684_800_000_000
"""Microseconds from 1970 to 2000."""

_I8, _I16, _I32, _U32, _I64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">I"), Struct(">q")
_DATA = Struct(">QQq")
_KEEPALIVE = Struct(">QqB")
_STATUS = Struct(">cQQQqB")


class CorruptStream(CorruptError):  # noqa: N818 - named as the other formats' errors
    """Bytes that are not a message of pgoutput."""


class _Unchanged(Enum):
    UNCHANGED = "unchanged"


UNCHANGED = _Unchanged.UNCHANGED
"""A large value that an update did not touch, and that the server therefore did not send."""

Value: TypeAlias = bytes | _Unchanged | None
Tuple: TypeAlias = tuple[Value, ...]


class Begin(msgspec.Struct, frozen=True):
    """A transaction, whose commit stands at `final`."""

    final: int
    time: int
    xid: int


class Commit(msgspec.Struct, frozen=True):
    lsn: int
    end: int
    time: int


class Origin(msgspec.Struct, frozen=True):
    lsn: int
    name: str


class Note(msgspec.Struct, frozen=True):
    """What somebody has put into the log with pg_logical_emit_message."""

    lsn: int
    transactional: bool
    prefix: str
    content: bytes


class RelationColumn(msgspec.Struct, frozen=True):
    name: str
    type: int
    modifier: int
    is_key: bool


class Relation(msgspec.Struct, frozen=True):
    """What a table is from now on. `identity` is d(efault), n(othing), f(ull) or i(ndex)."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


class TypeName(msgspec.Struct, frozen=True):
    oid: int
    schema: str
    name: str


class Insert(msgspec.Struct, frozen=True):
    relation: int
    new: Tuple


class Update(msgspec.Struct, frozen=True):
    """`old` has the columns of the key, if they changed, or all columns if `whole`."""

    relation: int
    new: Tuple
    old: Tuple | None = None
    whole: bool = False


class Delete(msgspec.Struct, frozen=True):
    """`old` has the columns of the key, or all columns if `whole`."""

    relation: int
    old: Tuple
    whole: bool


class Truncate(msgspec.Struct, frozen=True):
    relations: tuple[int, ...]
    cascade: bool
    restart: bool


Decoded: TypeAlias = (
    Begin | Commit | Origin | Note | Relation | TypeName | Insert | Update | Delete | Truncate
)


class XLogData(msgspec.Struct, frozen=True):
    """A piece of the stream."""

    start: int
    end: int
    content: bytes


class Keepalive(msgspec.Struct, frozen=True):
    """How far the server is, and whether it wants an answer now."""

    end: int
    wants_reply: bool


class _Cursor:
    """Reads one message; every read says where it failed."""

    __slots__ = ("_at", "_content", "_where")

    def __init__(self, content: bytes, where: str) -> None:
        self._content, self._at, self._where = content, 0, where

    def number(self, form: Struct) -> int:
        if self._at + form.size > len(self._content):
            raise self.corrupt(f"{form.size} bytes wanted, {len(self._content) - self._at} are left")
        (value,) = form.unpack_from(self._content, self._at)
        self._at += form.size
        return int(value)

    def char(self) -> str:
        return self.take(1).decode("latin-1")

    def take(self, length: int) -> bytes:
        if length < 0 or self._at + length > len(self._content):
            raise self.corrupt(f"{length} bytes wanted, {len(self._content) - self._at} are left")
        found = self._content[self._at : self._at + length]
        self._at += length
        return found

    def text(self) -> str:
        end = self._content.find(b"\0", self._at)
        if end < 0:
            raise self.corrupt("a name without an end")
        found = self.take(end - self._at)
        self._at += 1
        try:
            return found.decode()
        except UnicodeDecodeError:
            raise self.corrupt("a name that is not UTF-8") from None

    def count(self, form: Struct) -> int:
        number = self.number(form)
        if number < 0:
            raise self.corrupt(f"a count of {number}")
        return number

    def row(self) -> Tuple:
        """In one loop, without a call for each value: most of the stream is rows."""
        found: list[Value] = []
        content, at, unpack = self._content, self._at + _I16.size, _I32.unpack_from
        count = self.count(_I16)
        for _ in range(count):
            kind = content[at : at + 1]
            at += 1
            if kind == b"t":
                self._at = at
                if at + 4 > len(content):
                    raise self.corrupt(f"4 bytes wanted, {len(content) - at} are left")
                (length,) = unpack(content, at)
                at += 4
                value = content[at : at + length]
                if length < 0 or len(value) != length:
                    raise self.corrupt(f"{length} bytes wanted, {len(content) - at} are left")
                found.append(value)
                at += length
            elif kind == b"n":
                found.append(None)
            elif kind == b"u":
                found.append(UNCHANGED)
            else:
                self._at = at - 1
                raise self.corrupt(f"a value of the kind {kind.decode('latin-1')!r}")
        self._at = at
        return tuple(found)

    def end(self) -> None:
        if self._at != len(self._content):
            raise self.corrupt(f"{len(self._content) - self._at} bytes too many")

    def corrupt(self, what: str) -> CorruptStream:
        return CorruptStream(what, where=self._where, position=self._at)


def decode(content: bytes) -> Decoded:
    """One message. Raises `CorruptStream`, with the position in the message."""
    cursor = _Cursor(content, "replication stream")
    kind = cursor.char()
    reader = _READERS.get(kind)
    if reader is None:
        raise CorruptStream(f"a message of the kind {kind!r}", where="replication stream", position=0)
    found = reader(cursor)
    cursor.end()
    return found


def unwrap(content: bytes) -> XLogData | Keepalive:
    """A message of the replication protocol."""
    kind, body = content[:1], content[1:]
    if kind == b"w" and len(body) >= _DATA.size:
        start, end, _ = _DATA.unpack_from(body)
        return XLogData(start, end, body[_DATA.size :])
    if kind == b"k" and len(body) == _KEEPALIVE.size:
        end, _, reply = _KEEPALIVE.unpack(body)
        return Keepalive(end, bool(reply))
    raise CorruptStream(
        f"a message of the kind {kind!r}, {len(content)} bytes", where="replication", position=0
    )


def status(written: int, flushed: int, now: int, *, wants_reply: bool = False) -> bytes:
    """The client's word: what it has seen up to `written`, and that all below `flushed` is not needed again."""
    return _STATUS.pack(b"r", written, flushed, flushed, now - EPOCH, wants_reply)


def _begin(cursor: _Cursor) -> Begin:
    return Begin(cursor.number(_I64), cursor.number(_I64) + EPOCH, cursor.number(_U32))


def _commit(cursor: _Cursor) -> Commit:
    cursor.number(_I8)
    return Commit(cursor.number(_I64), cursor.number(_I64), cursor.number(_I64) + EPOCH)


def _origin(cursor: _Cursor) -> Origin:
    return Origin(cursor.number(_I64), cursor.text())


def _note(cursor: _Cursor) -> Note:
    transactional, lsn, prefix = cursor.number(_I8), cursor.number(_I64), cursor.text()
    return Note(lsn, bool(transactional & 1), prefix, cursor.take(cursor.number(_I32)))


def _relation(cursor: _Cursor) -> Relation:
    oid, schema, name, identity = cursor.number(_U32), cursor.text(), cursor.text(), cursor.char()
    columns = []
    for _ in range(cursor.count(_I16)):
        flags, column = cursor.number(_I8), cursor.text()
        columns.append(RelationColumn(column, cursor.number(_U32), cursor.number(_I32), bool(flags & 1)))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _type(cursor: _Cursor) -> TypeName:
    return TypeName(cursor.number(_U32), cursor.text() or "pg_catalog", cursor.text())


def _insert(cursor: _Cursor) -> Insert:
    relation = cursor.number(_U32)
    _expect(cursor, "N")
    return Insert(relation, cursor.row())


def _update(cursor: _Cursor) -> Update:
    relation, kind = cursor.number(_U32), cursor.char()
    if kind == "N":
        return Update(relation, cursor.row())
    if kind not in "KO":
        raise cursor.corrupt(f"an update with a row of the kind {kind!r}")
    old = cursor.row()
    _expect(cursor, "N")
    return Update(relation, cursor.row(), old, kind == "O")


def _delete(cursor: _Cursor) -> Delete:
    relation, kind = cursor.number(_U32), cursor.char()
    if kind not in "KO":
        raise cursor.corrupt(f"a delete with a row of the kind {kind!r}")
    return Delete(relation, cursor.row(), kind == "O")


def _truncate(cursor: _Cursor) -> Truncate:
    count, options = cursor.count(_I32), cursor.number(_I8)
    return Truncate(tuple(cursor.number(_U32) for _ in range(count)), bool(options & 1), bool(options & 2))


def _expect(cursor: _Cursor, kind: str) -> None:
    found = cursor.char()
    if found != kind:
        raise cursor.corrupt(f"a row of the kind {kind!r} wanted, found {found!r}")


_READERS: Mapping[str, Callable[[_Cursor], Decoded]] = {
    "B": _begin, "C": _commit, "O": _origin, "M": _note, "R": _relation, "Y": _type,
    "I": _insert, "U": _update, "D": _delete, "T": _truncate,
}  # fmt: skip


def lsn_text(lsn: int) -> str:
    """As the server writes it: 0/16B3748."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)
