"""The local key space: what etcd is to a cluster, for one broker, in one file.

Keys map to values with create and mod revisions; a transaction compares revisions, then puts and deletes,
all or nothing, and is durable when `transact` returns. The file is a sequence of transactions:

    length u32 | crc32 of the body u32 | body: msgpack [revision, [[key, value] …], [deleted key …]]

A torn last transaction is cut on open; it was never acknowledged. A damaged one with others behind it is
refused: the disk lost what it had confirmed. When most of the file is history it is rewritten beside itself
and swapped in, on open.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.base.disk import Disk, DiskFile
from penstock.base.errors import CorruptError

_HEAD = struct.Struct(">II")
_REWRITE_ABOVE = 1 << 20
_MAX_BODY = 64 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and the revisions at which its key was made and last changed."""

    value: bytes
    create_revision: int
    mod_revision: int


class _Transaction(msgspec.Struct, array_like=True):
    revision: int
    puts: list[tuple[str, bytes, int]]
    """Key, value, create revision (kept so that a rewritten file tells the same story)."""
    deletes: list[str]


class LocalKeySpace:
    """An open key space. One owner; reads are plain look-ups, writes sync before they return."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._entries: dict[str, Entry] = {}
        self.revision = 1
        self._observers: list[Callable[[], None]] = []
        self._file = disk.open(path, create=True)
        try:
            # Whoever wrote last may have died before its sync: what is read here must not be lost later.
            self._file.sync()
            disk.sync_dir(path.parent)
            self._end = self._load(self._file)
            self._rewrite_if_mostly_history()
        except BaseException:
            self._file.close()
            raise

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def under(self, prefix: str) -> list[tuple[str, Entry]]:
        """The entries whose key starts with `prefix`, in key order, as they are now."""
        return [(key, self._entries[key]) for key in sorted(self._entries) if key.startswith(prefix)]

    def observe(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after every transaction that took effect."""
        self._observers.append(changed)

    def transact(
        self, expected: Mapping[str, int], puts: Sequence[tuple[str, bytes]], deletes: Sequence[str]
    ) -> bool:
        """Apply all changes if each key's mod revision is as expected (0: not there); durable on True."""
        for key, revision in expected.items():
            entry = self._entries.get(key)
            if (entry.mod_revision if entry else 0) != revision:
                return False
        revision = self.revision + 1
        made = [(key, value, self._created(key, revision)) for key, value in puts]
        transaction = _Transaction(revision, made, [key for key in deletes if key in self._entries])
        encoded = _encode(transaction)
        try:
            self._file.write_at(encoded, self._end)
            self._file.sync()
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(encoded)
        self._apply(transaction)
        for changed in self._observers:
            changed()
        return True

    def close(self) -> None:
        self._file.close()

    def _created(self, key: str, revision: int) -> int:
        entry = self._entries.get(key)
        return entry.create_revision if entry else revision

    def _apply(self, transaction: _Transaction) -> None:
        self.revision = transaction.revision
        for key, value, created in transaction.puts:
            self._entries[key] = Entry(value, created, transaction.revision)
        for key in transaction.deletes:
            self._entries.pop(key, None)

    def _load(self, file: DiskFile) -> int:
        content = file.read_at(file.size(), 0)
        position = 0
        while position < len(content):
            body = _body_at(content, position)
            if body is None:
                self._cut(file, content, position)
                break
            self._apply(msgspec.msgpack.decode(body, type=_Transaction))
            position += _HEAD.size + len(body)
        return position

    def _cut(self, file: DiskFile, content: bytes, position: int) -> None:
        """Drop a torn last transaction; refuse to drop one that others follow."""
        if _another_follows(content, position):
            raise CorruptError(
                "a damaged transaction with others behind it",
                where=str(self._path),
                position=position,
                hint="restore the file from a copy; journals and their fragments are untouched",
            )
        # Not synced: a tail that comes back is cut again, and the next transaction's sync covers this too.
        file.truncate(position)

    def _rewrite_if_mostly_history(self) -> None:
        live = sum(len(key) + len(entry.value) + 16 for key, entry in self._entries.items())
        if self._end < _REWRITE_ABOVE or self._end < 4 * live:
            return
        by_revision: dict[int, list[tuple[str, bytes, int]]] = {self.revision: []}
        for key, entry in self._entries.items():
            by_revision.setdefault(entry.mod_revision, []).append((key, entry.value, entry.create_revision))
        content = b"".join(_encode(_Transaction(rev, by_revision[rev], [])) for rev in sorted(by_revision))
        self._file.close()
        self._disk.replace_file(self._path, content)
        self._file = self._disk.open(self._path)
        self._end = len(content)


def _encode(transaction: _Transaction) -> bytes:
    body = msgspec.msgpack.encode(transaction)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _body_at(content: bytes, position: int) -> bytes | None:
    """The body of the transaction at `position`, or None if it is not whole."""
    if position + _HEAD.size > len(content):
        return None
    length, crc = _HEAD.unpack_from(content, position)
    start = position + _HEAD.size
    body = content[start : start + length]
    if not 0 < length <= _MAX_BODY or len(body) < length or zlib.crc32(body) != crc:
        return None
    return body


def _another_follows(content: bytes, position: int) -> bool:
    """Whether a whole transaction starts where the damaged one says it ends."""
    if position + _HEAD.size > len(content):
        return False
    length, _ = _HEAD.unpack_from(content, position)
    after = position + _HEAD.size + length
    return 0 < length <= _MAX_BODY and _body_at(content, after) is not None
