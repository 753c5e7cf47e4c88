"""What a mirror of etcd holds, and how it changes: by a reading of everything, or by the events of a watch.

No clock, no network. Both ways give the keys that differ from before, each once: those that a reading no longer has
first, the others in the order of the revisions of their last change. A key that came and went in between is none.

Each event must fit what is held: a key is made only where there is none, put for the next time, deleted only if it
is there. One that does not is applied all the same, and `misfit` says that something was left out.

**The revision** is the largest mod revision of a key that was applied. A reading knows only those of the keys that
there are; those of deletions come from events. So after a reading the watch begins behind the last revision, not
behind the reading, and of events that the reading has seen already only the revision counts.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.journal.cluster.etcd_values import Change, KeyValue
from penstock.journal.keyspace import Entry

log = logging.getLogger(__name__)

Refuses = Callable[[str, bytes], str | None]
"""Says why a value cannot be read, or None if it can."""


@dataclass(frozen=True, slots=True)
class LeasedEntry(Entry):
    """An entry of etcd: it may belong to a lease (0: it does not)."""

    lease: int = 0
    version: int = field(default=0, compare=False)
    """How often it was put since it was made; 0: not known."""


class Entries:
    """Entries by key, without the prefix that they have in etcd.

    A value that is refused is skipped: what the key had before stays, until a good value or a deletion comes. A key
    that is no UTF-8 is skipped as well.
    """

    def __init__(self, prefix: bytes, refuses: Refuses) -> None:
        self._prefix = prefix
        self._refuses = refuses
        self._entries: dict[str, LeasedEntry] = {}
        self._keys: list[str] = []
        self.revision = 0
        self.read_at = 0
        """The revision of all of etcd at which everything was last read."""
        self.refused: dict[str, str] = {}
        """Keys whose value is skipped, and why."""
        self.misfit: str | None = None
        """Why an event cannot be what followed; everything must be read anew."""

    def get(self, key: str) -> LeasedEntry | None:
        return self._entries.get(key)

    def under(self, prefix: str) -> Iterator[tuple[str, LeasedEntry]]:
        """The entries whose key starts with `prefix`, in key order, as they are now."""
        start = bisect_left(self._keys, prefix)
        stop = bisect_left(self._keys, prefix + "\U0010ffff", lo=start)
        return iter([(key, self._entries[key]) for key in self._keys[start:stop]])

    def read(self, found: Iterable[KeyValue], at: int) -> list[str]:
        """Take what was found at revision `at` as all there is."""
        before = self._entries
        self._entries = {}
        self.refused = {}
        self.misfit = None
        self.read_at = at
        for kv in found:
            self.revision = max(self.revision, kv.mod_revision)
            if (key := self._key(kv)) is not None:
                entry = self._accepted(key, kv) or before.get(key)
                if entry is not None:
                    self._entries[key] = entry
        self._keys = sorted(self._entries)
        gone = sorted(key for key in before if key not in self._entries)
        return gone + self._by_revision(
            key for key, entry in self._entries.items() if before.get(key) != entry
        )

    def apply(self, changes: Sequence[Change]) -> list[str]:
        """Take events, in their order."""
        before: dict[str, LeasedEntry | None] = {}
        order: dict[str, None] = {}
        for change in changes:
            kv = change.entry
            self.revision = max(self.revision, kv.mod_revision)
            if kv.mod_revision <= self.read_at or (key := self._key(kv)) is None:
                continue
            self._must_fit(key, change)
            before.setdefault(key, self._entries.get(key))
            order.pop(key, None)
            order[key] = None
            if change.deleted:
                self._drop(key)
            elif (entry := self._accepted(key, kv)) is not None:
                self._set(key, entry)
        return [key for key in order if before[key] != self._entries.get(key)]

    def _must_fit(self, key: str, change: Change) -> None:
        entry, version = self._entries.get(key), change.entry.version
        if key in self.refused or (entry is not None and not entry.version):
            return
        held = entry.version if entry is not None else 0
        if (change.deleted and not held) or (version and version != held + 1):
            event = "its deletion" if change.deleted else f"put number {version}"
            self.misfit = (
                f"key {key} was put {held} times, and {event} came (revision {change.entry.mod_revision})"
            )

    def _set(self, key: str, entry: LeasedEntry) -> None:
        if key not in self._entries:
            insort(self._keys, key)
        self._entries[key] = entry

    def _drop(self, key: str) -> None:
        self.refused.pop(key, None)
        if self._entries.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def _key(self, kv: KeyValue) -> str | None:
        try:
            return kv.key.removeprefix(self._prefix).decode()
        except UnicodeDecodeError:
            log.warning("a key in etcd is no UTF-8, and skipped: %r", kv.key)
            return None

    def _accepted(self, key: str, kv: KeyValue) -> LeasedEntry | None:
        reason = self._refuses(key, kv.value)
        if reason is None:
            self.refused.pop(key, None)
            return LeasedEntry(kv.value, kv.create_revision, kv.mod_revision, kv.lease, kv.version)
        log.warning("the value of key %s at revision %d is skipped: %s", key, kv.mod_revision, reason)
        self.refused[key] = reason
        return None

    def _by_revision(self, keys: Iterable[str]) -> list[str]:
        return sorted(keys, key=lambda key: (self._entries[key].mod_revision, key))
