"""The local key space: what etcd is to a cluster, for one broker, in one file.

Keys map to values with create and mod revisions; a transaction compares revisions, then puts and deletes,
all or nothing, and is durable when `transact` returns. The file is a sequence of transactions, as records of
`penstock.base.checked`:

    body: msgpack [revision, [[key, value] …], [deleted key …]]

A torn last transaction is cut on open; it was never acknowledged. A damaged one with others behind it is
refused: the disk lost what it had confirmed. When most of the file is history it is rewritten beside itself
and swapped in, on open.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.base import faults
from penstock.base.checked import CheckedRecords
from penstock.base.disk import Disk, DiskFile
from penstock.base.errors import CorruptError
from penstock.journal.revisions import RevisionWaits

_RECORDS = CheckedRecords(64 << 20)
_REWRITE_ABOVE = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and the revisions at which its key was made and last changed."""

    value: bytes
    create_revision: int
    mod_revision: int


class Transaction(msgspec.Struct, array_like=True):
    """Changes that have passed their comparisons, made at `revision`."""

    revision: int
    puts: list[tuple[str, bytes, int]]
    """Key, value, create revision (kept so that a rewritten file tells the same story)."""
    deletes: list[str]


class LocalKeySpace:
    """An open key space. One owner; reads are plain look-ups, writes sync before they return.

    `transact` blocks for the sync. Who must not block takes its three parts: `planned` and `adopt` where the key
    space is read, `write` between them in a thread; one transaction at a time.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []
        self._waits = RevisionWaits(lambda: self.revision)
        self.revision = 1
        self._observers: list[Callable[[Sequence[str]], None]] = []
        self._doubtful = False
        """Whether a write failed, so that nobody knows what the file holds behind the last transaction."""
        self._file = disk.open(path, create=True)
        try:
            # Whoever wrote last may have died before its sync: what is read here must not be lost later.
            self._file.sync()
            self._file.read_anew()
            disk.sync_dir(path.parent)
            self._end = self._load(self._file)
            self._rewrite_if_mostly_history()
        except BaseException:
            self._file.close()
            raise

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def under(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        """The entries whose key starts with `prefix`, in key order, as they are now."""
        start = bisect_left(self._keys, prefix)
        stop = bisect_left(self._keys, prefix + "\U0010ffff", lo=start)
        return iter([(key, self._entries[key]) for key in self._keys[start:stop]])

    def observe(self, changed: Callable[[Sequence[str]], None]) -> None:
        """Have `changed` called with the keys of every transaction that takes effect, before anyone else sees it."""
        self._observers.append(changed)

    async def wait_for_revision(self, revision: int) -> None:
        """Return once that revision has been applied; a future one may take for ever."""
        await self._waits.until(revision)

    def transact(
        self, expected: Mapping[str, int], puts: Sequence[tuple[str, bytes]], deletes: Sequence[str]
    ) -> bool:
        """Apply all changes if each key's mod revision is as expected (0: not there); durable on True."""
        transaction = self.planned(expected, puts, deletes)
        if transaction is None:
            return False
        self.write(transaction)
        self.adopt(transaction)
        return True

    def planned(
        self, expected: Mapping[str, int], puts: Sequence[tuple[str, bytes]], deletes: Sequence[str]
    ) -> Transaction | None:
        """The transaction that makes these changes, or None if a key's mod revision is not as expected."""
        for key, revision in expected.items():
            entry = self._entries.get(key)
            if (entry.mod_revision if entry else 0) != revision:
                return None
        revision = self.revision + 1
        made = [(key, value, self._created(key, revision)) for key, value in puts]
        return Transaction(revision, made, [key for key in deletes if key in self._entries])

    def write(self, transaction: Transaction) -> None:
        """Make the next transaction durable; it has no effect before `adopt`. Blocks.

        After one that failed, the file is written anew first: a disk that was full may have room by now.
        """
        encoded = _encode(transaction)
        with faults.step("transact"):
            if self._doubtful:
                self._rewrite()
            self._doubtful = True
            self._file.write_at(encoded, self._end)
            self._file.sync()
            self._doubtful = False
        self._end += len(encoded)

    def adopt(self, transaction: Transaction) -> None:
        """Let everyone see a transaction that is durable."""
        self._apply(transaction)
        keys = [*(key for key, _, _ in transaction.puts), *transaction.deletes]
        for changed in self._observers:
            changed(keys)
        self._waits.wake()

    def close(self) -> None:
        self._file.close()

    def _created(self, key: str, revision: int) -> int:
        entry = self._entries.get(key)
        return entry.create_revision if entry else revision

    def _apply(self, transaction: Transaction) -> None:
        self.revision = transaction.revision
        for key, value, created in transaction.puts:
            if key not in self._entries:
                insort(self._keys, key)
            self._entries[key] = Entry(value, created, transaction.revision)
        for key in transaction.deletes:
            if self._entries.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    def _load(self, file: DiskFile) -> int:
        content = file.read_at(file.size(), 0)
        position = 0
        for end, body in _RECORDS.walk(content):
            self._apply(msgspec.msgpack.decode(body, type=Transaction))
            position = end
        if position < len(content):
            self._cut(file, content, position)
        return position

    def _cut(self, file: DiskFile, content: bytes, position: int) -> None:
        """Drop a torn last transaction; refuse to drop one that others follow."""
        if _RECORDS.is_followed(content, position):
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
        if self._end >= _REWRITE_ABOVE and self._end >= 4 * live:
            self._rewrite()

    def _rewrite(self) -> None:
        """Put a file beside ours that tells what is true now, and swap it in."""
        by_revision: dict[int, list[tuple[str, bytes, int]]] = {self.revision: []}
        for key, entry in self._entries.items():
            by_revision.setdefault(entry.mod_revision, []).append((key, entry.value, entry.create_revision))
        content = b"".join(_encode(Transaction(rev, by_revision[rev], [])) for rev in sorted(by_revision))
        self._disk.replace_file(self._path, content)
        self._file.close()
        self._file = self._disk.open(self._path)
        self._end = len(content)


def _encode(transaction: Transaction) -> bytes:
    return _RECORDS.encode(msgspec.msgpack.encode(transaction))
