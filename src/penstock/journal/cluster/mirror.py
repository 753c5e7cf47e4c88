"""The key space of a cluster: an exact mirror in memory of all keys below one prefix of etcd (reference 12).

Keys are named as in `keys.py`, without the prefix. What the mirror promises:

- **One revision rule.** `revision` is the largest mod revision of a key below the prefix that was applied, or the
  revision that `load` was asked for; what happens elsewhere in etcd does not move it. It never goes back.
- **No gap is trusted.** After any fault of the watch (no leader, a broken or silent connection, a forgotten
  revision, an event out of order or one that does not fit what is held) everything is read anew and compared, and
  observers are told the difference. Then the watch goes on where the old one stopped, which tells the revision of
  what was deleted meanwhile; until then the mirror is newer than its revision says. If etcd has forgotten that part
  of its history, the revision becomes that of the reading, and `on_gap` is called: someone must change a key below
  the prefix (`Session.touch`), or else others wait for a revision that does not come to them.
- **Trouble never ends it.** It goes on trying, later each time, and says so in `health`. Another etcd than before,
  or one that was set back, is not believed: the mirror keeps what it has, and says so.
- Observers run before anyone else sees a change, and see each difference once.

Changes are gathered for a moment (30 ms) and applied together.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from enum import Enum

from penstock.base.errors import UsageError
from penstock.journal.cluster.callbacks import tell_all
from penstock.journal.cluster.entries import Entries, LeasedEntry, Refuses
from penstock.journal.cluster.etcd import EtcdClient
from penstock.journal.cluster.etcd_errors import CompactedError, EtcdError, ForeignError
from penstock.journal.cluster.etcd_values import (
    Change,
    Changes,
    Committed,
    Compare,
    Delete,
    Field,
    Found,
    Operation,
    Origin,
    Put,
)
from penstock.journal.revisions import RevisionWaits

log = logging.getLogger(__name__)

DEFAULT_PREFIX = "/gazette/cluster"
WATCH_DELAY = 0.03
_PAUSES = (0.0, 0.005, 0.1, 0.5, 1.0, 2.0, 5.0)
_GOOD_FOR = 5.0
"""A watch that lived so many seconds was a good one: the next fault is a first one again."""
_AT_MOST = 10_000
"""Changes that are gathered, whatever the delay."""


class Health(Enum):
    """How far the mirror can be believed."""

    LOADING = "not yet loaded"
    CURRENT = "current"
    BEHIND = "behind: etcd cannot be followed"
    FOREIGN = "not believed: another etcd than before"
    BACKWARDS = "not believed: etcd was set back"


class BackwardsError(EtcdError):
    """etcd's answer cannot be the continuation of what it said before."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"etcd was set back: {what}",
            hint="if it was restored from a backup on purpose, restart the brokers",
        )


_HEALTH: tuple[tuple[type[EtcdError], Health], ...] = (
    (ForeignError, Health.FOREIGN),
    (BackwardsError, Health.BACKWARDS),
    (EtcdError, Health.BEHIND),
)


def prefix_bytes(prefix: str) -> bytes:
    """What all keys of a cluster begin with, in etcd. With the slash, so that no longer name is among them."""
    parts = prefix.split("/")
    if len(parts) < 2 or parts[0] or any(part in ("", ".", "..") for part in parts[1:]):
        raise UsageError(
            f"'{prefix}' is no prefix in etcd", hint=f"write a clean path, like {DEFAULT_PREFIX}"
        )
    return f"{prefix}/".encode()


def _accepts_all(key: str, value: bytes) -> str | None:
    return None


class EtcdKeySpace:
    """Read like the local key space, changed by transactions in etcd. `load` it, then have `run` running.

    `refuses` is asked about each new value (`entries.py`). Lists of callbacks (`on_gap`, `on_health`) may be added to.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: str = DEFAULT_PREFIX,
        *,
        refuses: Refuses = _accepts_all,
        delay: float = WATCH_DELAY,
    ) -> None:
        self._client = client
        self.prefix = prefix_bytes(prefix)
        self._entries = Entries(self.prefix, refuses)
        self._delay = delay
        self._observers: list[Callable[[Sequence[str]], None]] = []
        self._waits = RevisionWaits(lambda: self.revision)
        self._pending: list[Change] = []
        self._timer: asyncio.TimerHandle | None = None
        self.origin: Origin | None = None
        """Who answered last: which etcd, and which member of it."""
        self.health = Health.LOADING
        self.trouble: EtcdError | None = None
        """Why the mirror is not current."""
        self.heard_at = time.monotonic()
        """When etcd last gave a sign of life that we could believe."""
        self.on_gap: list[Callable[[], object]] = []
        self.on_health: list[Callable[[Health], object]] = []

    @property
    def revision(self) -> int:
        return self._entries.revision

    @property
    def refused(self) -> Mapping[str, str]:
        """Keys whose value is skipped, and why."""
        return self._entries.refused

    def get(self, key: str) -> LeasedEntry | None:
        return self._entries.get(key)

    def under(self, prefix: str) -> Iterator[tuple[str, LeasedEntry]]:
        """The entries whose key starts with `prefix`, in key order, as they are now."""
        return self._entries.under(prefix)

    def observe(self, changed: Callable[[Sequence[str]], None]) -> None:
        """Have `changed` called with the keys that differ, each time some do, before anyone else sees it."""
        self._observers.append(changed)

    async def wait_for_revision(self, revision: int) -> None:
        """Return once that revision has been applied; a future one, or etcd's trouble, may take for ever."""
        await self._waits.until(revision)

    async def commit(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Committed:
        """One transaction, not yet to be seen here: `wait_for_revision` of what it returns."""
        return await self._client.commit(self.prefix, compares, operations)

    async def transact(
        self, expected: Mapping[str, int], puts: Sequence[tuple[str, bytes]], deletes: Sequence[str]
    ) -> bool:
        """Apply all changes if each key's mod revision is as expected (0: not there), and wait to see them here.

        Keys that are put lose their lease. If a key is not as expected, it can be seen on return what it is instead,
        unless it was deleted, which may take a moment longer.
        """
        compares = [Compare(key, Field.MOD_REVISION, number) for key, number in expected.items()]
        operations: list[Operation] = [Put(key, value) for key, value in puts]
        operations += [Delete(key) for key in deletes]
        committed = await self.commit(compares, operations)
        await self.wait_for_revision(committed.revision)
        return committed.ok

    async def load(self, asked: int = 0) -> None:
        """Read everything for the first time, at the revision `asked` for: that of a key which we have just put.

        Raises what etcd says; try again. If it has forgotten that revision already, everything is read as it is now.
        """
        try:
            found = await self._client.snapshot(self.prefix, asked)
        except CompactedError:
            found = await self._client.snapshot(self.prefix)
            self._jump(found)
        else:
            self._entries.revision = asked
            self._tell(self._entries.read(found.keys, asked or found.origin.revision))
        self.origin = found.origin
        self._become(Health.CURRENT)

    async def run(self) -> None:
        """Follow etcd until cancelled."""
        start = self.revision + 1
        failures = 0
        try:
            while True:
                began = time.monotonic()
                trouble = await self._follow(start)
                if time.monotonic() - began > _GOOD_FOR:
                    failures = 0
                start, failures = await self._read_anew(trouble, failures)
        finally:
            self._flush()

    async def _follow(self, start: int) -> EtcdError:
        """Apply what a watch tells, until it fails; why it did."""
        newest = start
        try:
            async with aclosing(self._client.watch(self.prefix, start)) as watch:
                async for changes in watch:
                    if self._entries.misfit:
                        raise EtcdError(f"a watch has left something out: {self._entries.misfit}")
                    newest = self._believed(changes, newest)
                    self._become(Health.CURRENT)
                    self._gather(changes.changes)
        except EtcdError as error:
            trouble = error
        self._flush()
        return trouble

    async def _read_anew(self, trouble: EtcdError, failures: int) -> tuple[int, int]:
        """Read everything until that succeeds; from where to watch then, and the failures on the way."""
        forgotten = isinstance(trouble, CompactedError)
        while True:
            self._suffer(trouble)
            pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
            failures += 1
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            try:
                return await self._difference(forgotten=forgotten), failures
            except EtcdError as error:
                trouble = error

    async def _difference(self, *, forgotten: bool) -> int:
        """Read everything, and tell the difference; from where to watch then."""
        behind = self.revision + 1
        found = await self._client.snapshot(self.prefix)
        at = found.origin.revision
        if at < max(self.revision, self._entries.read_at):
            raise BackwardsError(f"it is at revision {at}, and has been at {self.revision} before")
        self.origin = found.origin
        if not forgotten:
            self._tell(self._entries.read(found.keys, at))
            return behind
        self._jump(found)
        return at + 1

    def _jump(self, found: Found) -> None:
        """Take what was found, whose own revision can no longer be known."""
        at = found.origin.revision
        log.warning("etcd has forgotten revisions; the key space goes from %d on to %d", self.revision, at)
        self._entries.revision = at
        self._tell(self._entries.read(found.keys, at))
        tell_all(self.on_gap)

    def _believed(self, changes: Changes, newest: int) -> int:
        """The newest revision of the watch, if these changes can be what follows it."""
        self.origin = changes.origin
        for change in changes.changes:
            if change.entry.mod_revision < newest:
                raise BackwardsError(
                    f"a watch told of revision {change.entry.mod_revision} where {newest} or a later one was due"
                )
            newest = change.entry.mod_revision
        return newest

    def _gather(self, changes: Sequence[Change]) -> None:
        self._pending += changes
        if len(self._pending) >= _AT_MOST:
            self._flush()
        elif self._pending and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, []
        if pending:
            self._tell(self._entries.apply(pending))

    def _tell(self, keys: list[str]) -> None:
        if keys:
            tell_all(self._observers, keys)
        self._waits.wake()

    def _suffer(self, trouble: EtcdError) -> None:
        if str(trouble) != str(self.trouble):
            log.warning("the key space: %s", trouble)
        self.trouble = trouble
        self._set_health(next(health for kind, health in _HEALTH if isinstance(trouble, kind)))

    def _become(self, health: Health) -> None:
        self.heard_at = time.monotonic()
        self.trouble = None
        self._set_health(health)

    def _set_health(self, health: Health) -> None:
        if health is not self.health:
            self.health = health
            tell_all(self.on_health, health)
