"""A journal at this broker: its spool, its index, and the one place where commits become durable.

Appends adopt their content one after another under `pipeline`, then wait in `durable`. Group commit: while
one sync is under way others adopt; the next sync serves them all. Readers learn of bytes only when they are
durable. A fragment that has grown long enough is closed: the next spool file is made durable first, since it
carries the registers; then the old one is put into the store, and only then removed.

On the event loop's thread except where a call says that it blocks. What blocks runs in one of two pools of
threads, so that a store that is slow holds no commit up; and since a thread cannot be cancelled, a cancelled
task waits for its end (`uncancelled`): nobody finds a file still being written by someone who has gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from penstock.base import faults
from penstock.base.disk import Buffer, Disk
from penstock.base.errors import PenstockError
from penstock.journal.fragment import Codec, Fragment, parse_path
from penstock.journal.index import Index
from penstock.journal.protocol import JournalSpec, LabelSet
from penstock.journal.spool import Outcome, Spool, empty_fragment
from penstock.journal.spoolfile import CONTENT_AT, SUFFIX, SpoolFile, require_fitting
from penstock.journal.stores import FileStore
from penstock.journal.tokens import ValidationError
from penstock.journal.uncancelled import uncancelled

log = logging.getLogger(__name__)

_RETRY_DELAYS = (0.1, 1.0, 5.0, 30.0)


class JournalFailedError(PenstockError):
    """A sync failed; what is on the disk is unknown until the journal is recovered by a restart."""


@dataclass(frozen=True, slots=True)
class Threads:
    """Where blocking calls run: `commits` are what appends wait for, `stores` what nobody does."""

    commits: Executor
    stores: Executor


@dataclass(frozen=True, slots=True)
class LocalFile:
    """Where a fragment's bytes lie: in a file, from `position` on."""

    path: Path
    position: int
    spool: SpoolFile | None


class Spawn(Protocol):
    """Starts a task that the broker owns and ends."""

    def __call__(self, work: Awaitable[None], name: str) -> asyncio.Task[None]: ...


class Replica:
    """One journal. `pipeline` is held by the append that is streaming."""

    def __init__(
        self,
        spec: JournalSpec,
        *,
        disk: Disk,
        directory: Path,
        store: FileStore,
        threads: Threads,
        spawn: Spawn,
        now: Callable[[], int],
    ) -> None:
        """Recover the journal from its directory and the store. Blocks."""
        self.spec = spec
        self.pipeline = asyncio.Lock()
        self.index: Index[LocalFile] = Index()
        self._disk = disk
        self._directory = directory
        self._store = store
        self._threads = threads
        self._spawn = spawn
        self._now = now
        self._file: SpoolFile | None = None
        self._first_append = 0
        self._failure: BaseException | None = None
        self._adopted = 0
        self._durable = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._flushing = False
        self._changed = asyncio.Event()
        self._unpersisted: list[SpoolFile] = []
        self._persisting: set[asyncio.Task[None]] = set()
        self.closed = False
        """No append is accepted any more, and reads end."""
        self.waits_ended = False
        self.spool = Spool(empty_fragment(spec.name, 0, self.codec), LabelSet(), self)
        self._recover()

    @property
    def codec(self) -> Codec:
        return Codec(self.spec.fragment.compression_codec)

    @property
    def write_head(self) -> int:
        """One past the last committed byte."""
        committed = self._file.fragment.end if self._file else 0
        return max(committed, self.index.end)

    def now_seconds(self) -> int:
        return self._now() // 1_000_000

    # What appends do, in this order, holding `pipeline`.

    async def prepare(self) -> None:
        """Make the spool ready for content: close a fragment that is long enough, make the first file."""
        if self._failure is not None:
            raise JournalFailedError(
                f"{self.spec.name}: a sync failed ({self._failure}); nothing more is accepted",
                hint="see to the disk, then restart the broker",
            )
        if self._file is None or self._is_due():
            await self.durable()
            await uncancelled(self._roll())

    def write(self, content: Buffer, position: int) -> None:
        """The spool's storage: the file of the fragment under construction."""
        assert self._file is not None
        self._file.write(content, position)

    def adopt(self, registers: LabelSet) -> int:
        """Commit the streamed content in memory; durable once `durable` returns for the ticket."""
        require_fitting(self.spec.name, registers)
        if not self.spool.fragment.length:
            self._first_append = self._now()
        outcome = self.spool.propose(self.spool.next(), registers)
        assert outcome is Outcome.COMMITTED
        self._adopted += 1
        if not self._flushing:
            self._flushing = True
            self._spawn(self._flush(), f"flush {self.spec.name}")
        return self._adopted

    # What appends do next, having given `pipeline` back.

    async def durable(self, ticket: int | None = None) -> None:
        """Wait until the adopted commit of this ticket (by default: all there are) is on stable storage."""
        ticket = self._adopted if ticket is None else ticket
        if ticket <= self._durable:
            return
        if self._failure is not None:
            raise JournalFailedError(f"{self.spec.name}: the sync failed: {self._failure}")
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((ticket, future))
        await future

    # What readers do.

    def changed(self) -> asyncio.Event:
        """Set at the next commit. Take it before looking at the index."""
        return self._changed

    def locate(self, begin: int, end: int) -> Iterator[tuple[Fragment, LocalFile]]:
        """The fragments that hold [begin, end), in order, up to the first gap."""
        position = begin
        while position < end:
            entry, covered = self.index.lookup(position)
            if entry is None or not covered:
                return
            yield entry.fragment, entry.payload
            position = entry.fragment.end

    def end_waits(self) -> None:
        """Have reads end where they would wait for a commit, now and from now on."""
        self.waits_ended = True
        self._notify()

    async def close(self) -> None:
        """Let the journal go: refuse what is not adopted yet, wait for what is, end reads, close the files."""
        self.closed = True
        self.end_waits()
        async with self.pipeline:
            with suppress(JournalFailedError):
                await self.durable()
        for task in self._persisting:
            task.cancel()
        await asyncio.gather(*self._persisting, return_exceptions=True)
        self.abandon()

    def abandon(self) -> None:
        """Close the files, and nothing else. Everything acknowledged is durable already."""
        for file in (self._file, *self._unpersisted):
            if file is not None:
                file.close()

    async def _flush(self) -> None:
        """Group commit: one sync for all that have adopted since the last one."""
        loop = asyncio.get_running_loop()
        try:
            while self._durable < self._adopted:
                file, ticket, fragment = self._file, self._adopted, self.spool.fragment
                assert file is not None
                registers, first_append = self.spool.registers, self._first_append
                commit = partial(file.commit, fragment, registers, first_append)
                await loop.run_in_executor(self._threads.commits, commit)
                self._durable = ticket
                self._publish(fragment, file)
                self._wake(ticket, None)
        except BaseException as error:
            self._failure = error
            log.error("%s: sync failed: %r", self.spec.name, error)
            self._wake(self._adopted, JournalFailedError(f"{self.spec.name}: the sync failed: {error}"))
            if not isinstance(error, Exception):
                raise
        finally:
            self._flushing = False

    def _wake(self, ticket: int, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, []
        for wanted, future in waiting:
            if wanted > ticket:
                self._waiting.append((wanted, future))
            elif future.cancelled():
                continue
            elif error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _publish(self, fragment: Fragment, file: SpoolFile) -> None:
        """Let readers see a fragment that has become durable."""
        self.index.add(fragment, LocalFile(file.path, CONTENT_AT, file))
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _is_due(self) -> bool:
        """Whether the fragment is to be closed before more is added (reference 14, "When a fragment rolls")."""
        fragment = self.spool.fragment
        if fragment.end < self.index.end:
            return True  # the store reaches further, and the append says that it knows: the head was reset
        if not fragment.length:
            return fragment.codec is not self.codec
        interval = self.spec.fragment.flush_interval.ToSeconds()
        aged = bool(interval) and (
            self._first_append // 1_000_000 // interval != self._now() // 1_000_000 // interval
        )
        return fragment.length > self.spec.fragment.length or aged

    async def _roll(self) -> None:
        """Begin the next fragment. The old spool file stays until the store has its content."""
        loop = asyncio.get_running_loop()
        started = empty_fragment(self.spec.name, max(self.spool.end, self.index.end), self.codec)
        creating = loop.run_in_executor(
            self._threads.commits, self._create_file, started, self.spool.registers
        )
        file = await creating
        old, self._file = self._file, file
        self.spool = self.spool.rolled(started, self.spool.registers, self)
        self._first_append = 0
        if old is None:
            return
        if old.fragment.length:
            self._persist_later(old)
        else:
            old.close()
            if old.path != file.path:
                self._disk.remove(old.path)

    def _persist_later(self, file: SpoolFile) -> None:
        self._unpersisted.append(file)
        task = self._spawn(self._persist(file), f"persist {self.spec.name}")
        self._persisting.add(task)
        task.add_done_callback(self._persisting.discard)

    def _create_file(self, fragment: Fragment, registers: LabelSet) -> SpoolFile:
        self._disk.make_dirs(self._directory)
        return SpoolFile.create(self._disk, self._directory, fragment, registers)

    async def _persist(self, file: SpoolFile) -> None:
        """Put a closed fragment into the store, however long that takes; then let its file go."""
        loop = asyncio.get_running_loop()
        for attempt in range(1 << 30):
            try:
                await uncancelled(loop.run_in_executor(self._threads.stores, self._put, file))
                break
            except OSError as error:
                log.warning("%s: cannot store %s yet: %s", self.spec.name, file.path.name, error)
                await asyncio.sleep(_RETRY_DELAYS[min(attempt, len(_RETRY_DELAYS) - 1)])
        seconds = self.now_seconds()
        stored = replace(file.fragment, backing_store=self._store.url, mod_time=seconds)
        self.index.add(stored, LocalFile(self._store.path_of(stored.content_path), 0, None))
        self._notify()
        self._unpersisted.remove(file)
        file.close()
        # Not synced: a spool that comes back after a power cut is put into the store once more, and goes again.
        self._disk.remove(file.path)

    def _put(self, file: SpoolFile) -> None:
        with faults.step("close"):
            # Also when the store has it: whoever put it may have died before its entry was made durable.
            self._store.put(file.fragment.content_path, file.content())

    def _stored(self) -> Iterator[Fragment]:
        """The fragments that the store lists; other files are named in the log and left alone."""
        journal, url = self.spec.name, self._store.url
        for listed in self._store.list(journal):
            if "/" in listed.path:
                continue  # of a journal whose name begins with ours
            try:
                yield parse_path(journal, listed.path, backing_store=url, mod_time=listed.mod_time)
            except ValidationError as error:
                log.warning("%s: not a fragment in the store: %s", journal, error)

    def _recover(self) -> None:
        """Find the spools that a crash left, and what the store has."""
        for fragment in self._stored():
            self.index.add(fragment, LocalFile(self._store.path_of(fragment.content_path), 0, None))
        found = self._spools()
        for file, spool in found:
            if spool.fragment.length:
                self.index.add(spool.fragment, LocalFile(file.path, CONTENT_AT, file))
        if found:
            self._file, self.spool = found[-1][0], found[-1][1].attached_to(self)
            self._first_append = self._file.record.first_append
        for file, spool in found[:-1]:
            if spool.fragment.length:
                self._persist_later(file)
            else:
                file.close()
                self._disk.remove(file.path)

    def _spools(self) -> list[tuple[SpoolFile, Spool]]:
        """The spools in the directory, in order; files that never came to life are removed."""
        if self._directory.is_dir():
            self._disk.sync_dir(self._directory)  # whoever made a file here may have died before that
        found: list[tuple[SpoolFile, Spool]] = []
        try:
            for path in self._disk.entries(self._directory):
                if path.suffix != SUFFIX:
                    continue
                recovered = SpoolFile.recover(self._disk, path, self.spec.name)
                if recovered is None:
                    self._disk.remove(path)
                else:
                    found.append(recovered)
        except BaseException:
            for file, _ in found:
                file.close()
            raise
        return found
