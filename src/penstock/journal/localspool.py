"""A journal's spool on this broker's disk: the pure spool, its file, and the one place where commits become durable.

Who owns it applies content and proposals (`content`, `propose`), then waits in `durable`. Group commit: while one
sync is under way others adopt; the next sync serves them all. The observer learns of bytes only when they are
durable. Rolling makes the next file durable first, since it carries the registers, before the old one is handed
on.

On the event loop's thread, but for what blocks: that runs in threads, and since a thread cannot be cancelled, a
cancelled task waits for its end (`uncancelled`): nobody finds a file still being written by someone who has gone.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from penstock.base import faults
from penstock.base.disk import Buffer, Disk
from penstock.base.errors import PenstockError
from penstock.journal.fragment import Codec, Fragment
from penstock.journal.metrics import Metrics
from penstock.journal.protocol import LabelSet
from penstock.journal.spool import Outcome, Spool, empty_fragment
from penstock.journal.spoolfile import SpoolFile
from penstock.journal.spoolfiles import Observer, SpoolFiles
from penstock.journal.spoollayout import is_whole
from penstock.journal.spoolrecord import require_fitting
from penstock.journal.spoolrecovery import found, read_epoch, set_aside, write_epoch
from penstock.journal.uncancelled import uncancelled

log = logging.getLogger(__name__)

_REMEMBERED = 64
LARGE = 1 << 20
"""From this size on what was rolled back gives its room on the disk back at once."""

_WORTH_A_THREAD = 128 << 10
_FULL = (errno.ENOSPC, errno.EDQUOT)


class JournalFailedError(PenstockError):
    """A sync failed: what was adopted is in doubt. If the disk was full the journal goes on once it has room."""


class Spawn(Protocol):
    """Starts a task that the broker owns and ends."""

    def __call__(self, work: Awaitable[None], name: str) -> asyncio.Task[None]: ...


@dataclass(frozen=True, slots=True)
class Workshop:
    """What the spools of one broker share: the disk, the threads that sync, who owns tasks, the clock (µs)."""

    disk: Disk
    threads: Executor
    spawn: Spawn
    metrics: Metrics
    now: Callable[[], int]


class LocalSpool(SpoolFiles):
    """The spool of one journal. Recovers from its directory when made, which blocks."""

    __slots__ = (
        "_adopted",
        "_directory",
        "_durable",
        "_epoch_written",
        "_failure",
        "_flushing",
        "_lost",
        "_shop",
        "_unsure",
        "_waiting",
        "epoch",
        "era",
        "first_append",
        "in_sync",
        "journal",
        "spool",
        "used",
    )

    def __init__(
        self, journal: str, directory: Path, shop: Workshop, observer: Observer, *, clustered: bool = False
    ) -> None:
        """Where brokers are several, what is recovered is kept from everyone until a synchronisation confirms it."""
        super().__init__(observer)
        self.journal = journal
        self.epoch = read_epoch(directory) if clustered else 0
        """The revision of the last synchronisation that we took part in."""
        self.in_sync = not clustered
        """Whether all replicas have agreed on where the journal ends, in this life of ours."""
        self.first_append = 0
        self.era = 0
        """Raised whenever commits were given up: what rested on them must not be tried."""
        self.used = 0.0
        """When content last came (monotonic clock)."""
        self._directory = directory
        self._shop = shop
        self._failure: BaseException | None = None
        self._adopted = 0
        self._durable = 0
        self._lost: list[range] = []
        """Tickets of commits that failed and were given up: the last ones. Of those below `_unsure` it is not known."""
        self._unsure = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._flushing = False
        self._epoch_written = self.epoch
        self.spool = Spool(empty_fragment(journal, 0, Codec.NONE), LabelSet(), self)
        with faults.step("recover"):
            self._recover(clustered)

    @property
    def fragment(self) -> Fragment:
        return self.spool.fragment

    @property
    def end(self) -> int:
        return self.spool.end

    @property
    def registers(self) -> LabelSet:
        return self.spool.registers

    @property
    def committed_end(self) -> int:
        """One past the last byte that is durable, and may be read."""
        if self.gated:
            return self._published
        return self._file.fragment.end if self._file is not None else self.spool.end

    @property
    def is_flushing(self) -> bool:
        """Whether commits are being synced, or readers being told of them."""
        return self._flushing

    # What the owner does.

    async def ready(self) -> None:
        """Make sure that there is a file for content to go to."""
        self.require_sound()
        self.used = time.monotonic()
        if self._file is None:
            await uncancelled(self._start(self.spool.fragment, self.spool.registers))
        await self._summed()

    async def _summed(self) -> None:
        """Go through content that recovery took on trust, before more is added to it or it is handed on."""
        spool, file = self.spool, self._file
        if not spool.takes_content and file is not None:
            loop = asyncio.get_running_loop()
            spool.go_on_from(await uncancelled(loop.run_in_executor(self._shop.threads, file.sum)))

    async def mended(self) -> None:
        """Go on after a commit that failed since the disk was full, if it has room by now.

        What was adopted since the last commit that went well is given up: whoever waited for it was told. Its record
        is made void before anything else takes its place.
        """
        if self._failure is None or self._flushing or not _is_full(self._failure):
            return
        await uncancelled(self._mend())

    async def _mend(self) -> None:
        file = self._file
        assert file is not None
        await asyncio.get_running_loop().run_in_executor(self._shop.threads, file.give_up)
        fragment, registers = file.fragment, file.record.registers
        if fragment.length:
            await self._start(empty_fragment(self.journal, fragment.end, fragment.codec), registers)
        else:
            self.spool = Spool(fragment, registers, self)
        self._lost.append(range(self._durable + 1, self._adopted + 1))
        if len(self._lost) > _REMEMBERED:
            self._unsure = self._lost.pop(0).stop
        self.era += 1
        self._adopted += 1
        self._durable = self._adopted
        self._failure = None

    def has_room(self, size: int) -> bool:
        """Whether so much more content is taken without waiting for the disk; after `ready`."""
        assert self._file is not None
        return self._file.has_room(self.spool.fragment.length + self.spool.delta + size)

    def content(self, chunk: Buffer) -> None:
        """Take a chunk that continues what has been taken; after `ready`. Blocks if there is no room for it."""
        self.spool.content(chunk, self.spool.delta)

    async def content_at(self, chunk: Buffer, content_delta: int) -> None:
        """Take a chunk that a primary elsewhere has sent."""
        await self.ready()
        if len(chunk) < _WORTH_A_THREAD and self.has_room(len(chunk)):
            self.spool.content(chunk, content_delta)
        else:
            take = partial(self.spool.content, chunk, content_delta)
            await uncancelled(asyncio.get_running_loop().run_in_executor(self._shop.threads, take))

    def write(self, content: Buffer, position: int) -> None:
        """The pure spool's storage: the file of the fragment under construction."""
        assert self._file is not None
        try:
            self._file.write(content, position)
        except OSError as error:
            raise OSError(error.errno, f"{self.journal}: {error.strerror}", str(self._file.path)) from error

    async def propose(self, proposal: Fragment, registers: LabelSet) -> tuple[Outcome, int]:
        """Apply a proposal (reference 15): roll if it says so, then commit, roll back, or refuse it.

        Returns the ticket to wait for with `durable`, if it is to be acknowledged.
        """
        if self.spool.rolls_at(proposal):
            await self.roll(proposal, registers)
        if proposal == self.spool.fragment and registers == self.spool.registers:
            self.roll_back()
            return Outcome.ROLLED_BACK, self._adopted
        if self.spool.delta and proposal == self.spool.next():
            return Outcome.COMMITTED, self.adopt(registers)
        return Outcome.MISMATCH, self._adopted

    async def roll(self, proposal: Fragment, registers: LabelSet) -> None:
        """Begin the fragment that `proposal` ends with, unless that is where we are. Drops what is uncommitted."""
        self.require_sound()
        self.roll_back()
        current = self.spool.fragment
        started = empty_fragment(self.journal, proposal.end, proposal.codec)
        if started == current:
            return
        if self._file is None and started.end == 0 and not self.spool.registers.labels:
            self.spool = self.spool.rolled(started, registers, self)
            return
        await self.durable()
        await self._summed()
        kept = registers if started.end > current.end else self.spool.registers
        if started.begin == current.begin:
            await uncancelled(self._recode(started))
        else:
            await uncancelled(self._start(started, kept))

    def adopt(self, registers: LabelSet, *, appends: int = 1) -> int:
        """Commit the streamed content, of so many appends, in memory; durable once `durable` returns for the ticket."""
        require_fitting(self.journal, registers)
        if not self.spool.fragment.length:
            self.first_append = self._shop.now()
        self._shop.metrics.commits += appends
        self._shop.metrics.commit_bytes += self.spool.delta
        self.spool.commit(registers)
        self._adopted += 1
        if not self._flushing:
            self._flushing = True
            self._shop.spawn(self._flush(), f"flush {self.journal}")
        return self._adopted

    def roll_back(self) -> None:
        if self.spool.delta:
            self._shop.metrics.rollbacks += 1
            self._shop.metrics.rollback_bytes += self.spool.delta
            large = self.spool.delta >= LARGE
            self.spool.roll_back()
            if large and self._file is not None:
                self._file.cut(self.spool.fragment.length)

    def require_sound(self) -> None:
        if self._failure is not None:
            full = _is_full(self._failure)
            raise JournalFailedError(
                f"{self.journal}: a sync failed ({self._failure}); nothing more is accepted",
                hint="make room on the disk, then append again"
                if full
                else "see to the disk, then restart the broker",
            )

    @property
    def ticket(self) -> int:
        """Of the last commit."""
        return self._adopted

    # What anyone may do.

    async def durable(self, ticket: int | None = None) -> None:
        """Wait until the adopted commit of this ticket (by default: all there are) is on stable storage."""
        if ticket is not None and (ticket < self._unsure or any(ticket in lost for lost in self._lost)):
            raise JournalFailedError(f"{self.journal}: the sync failed, and the append was given up")
        ticket = self._adopted if ticket is None else ticket
        if ticket <= self._durable:
            return
        if self._failure is not None:
            raise JournalFailedError(f"{self.journal}: the sync failed: {self._failure}")
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((ticket, future))
        await future

    # What is known of others, in a cluster.

    def synchronised(self, revision: int) -> None:
        """Content to come rests on a synchronisation at this revision; durable with the first of it."""
        self.epoch = max(self.epoch, revision)
        self.in_sync = True
        self._observer.agreed()

    async def set_aside(self, offset: int = 0) -> list[Path]:
        """What was recovered is, from an offset on, not what the journal has: begin as a broker that never had it.

        Files that end before the offset are kept back, as they were. Where the others are now.
        """
        self.roll_back()
        await self.durable()
        return await uncancelled(self._set_aside(offset))

    async def _set_aside(self, offset: int) -> list[Path]:
        files = [file for file in self.files if file.fragment.end > offset or not file.fragment.length]
        if self._file is not None and self._file not in files:
            self._file.park()
        self._held, self._file = [file for file in self.files if file not in files], None
        self._durables.clear()
        self.spool = Spool(empty_fragment(self.journal, 0, Codec.NONE), LabelSet(), self)
        self.first_append = self._published = 0
        self.quarantined = bool(self._held)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._shop.threads, set_aside, self._shop.disk, files)

    def park(self) -> None:
        """Let go of the file's descriptor until content comes again, if nothing is under way."""
        if self._file is not None and not self._flushing and not self.spool.delta and self._failure is None:
            self._file.park()

    async def settle(self) -> None:
        """Before the end: spare the next owner the way through what is durable here."""
        file = self._file
        if file is None or file.is_settled or self._failure is not None or self._flushing:
            return
        self._flushing = True
        try:
            loop = asyncio.get_running_loop()
            await uncancelled(loop.run_in_executor(self._shop.threads, _settle, file))
        finally:
            self._flushing = False

    def abandon(self) -> None:
        """Close the file, and nothing else. Everything acknowledged is durable already."""
        if self._file is not None:
            self._file.close()

    async def _flush(self) -> None:
        """Group commit: one sync for all that have adopted since the last one."""
        loop = asyncio.get_running_loop()
        metrics = self._shop.metrics
        try:
            while self._durable < self._adopted:
                file, ticket, fragment = self._file, self._adopted, self.spool.fragment
                assert file is not None
                commit = partial(_commit, file, fragment, self.spool.registers, self.first_append)
                began = time.perf_counter()
                if self._epoch_written < self.epoch:
                    await self._write_epoch()
                await loop.run_in_executor(self._shop.threads, commit)
                metrics.syncs += 1
                metrics.sync_seconds += time.perf_counter() - began
                self._durable = ticket
                self._made_durable(fragment, file)
                self._wake(ticket, None)
        except BaseException as error:
            self._failure = error
            log.error("%s: sync failed: %r", self.journal, error)
            self._wake(self._adopted, JournalFailedError(f"{self.journal}: the sync failed: {error}"))
            if not isinstance(error, Exception):
                raise
        finally:
            self._flushing = False

    async def _write_epoch(self) -> None:
        epoch, write = self.epoch, partial(write_epoch, self._shop.disk, self._directory, self.epoch)
        await asyncio.get_running_loop().run_in_executor(self._shop.threads, write)
        self._epoch_written = epoch

    def _wake(self, ticket: int, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, []
        for wanted, future in waiting:
            if wanted > ticket:
                self._waiting.append((wanted, future))
            elif future.done():
                continue
            elif error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    async def _start(self, fragment: Fragment, registers: LabelSet) -> None:
        """Make the next file. The old one is handed on, or removed if it is empty."""
        loop = asyncio.get_running_loop()
        create = partial(self._create_file, fragment, registers)
        file = await loop.run_in_executor(self._shop.threads, create)
        old, self._file = self._file, file
        self.spool = Spool(fragment, registers, self)
        self.first_append = 0
        if old is not None:
            self._hand_on(old, self._shop.disk)

    async def _recode(self, fragment: Fragment) -> None:
        """An empty fragment takes another codec: one more record in the file that it has."""
        file = self._file
        if file is not None:
            commit = partial(_commit, file, fragment, self.spool.registers, 0)
            await asyncio.get_running_loop().run_in_executor(self._shop.threads, commit)
        self.spool = Spool(fragment, self.spool.registers, self)

    def _create_file(self, fragment: Fragment, registers: LabelSet) -> SpoolFile:
        before = self._file.fragment.length if self._file is not None else 0
        with faults.step("roll"):
            self._shop.disk.make_dirs(self._directory)
            return SpoolFile.create(self._shop.disk, self._directory, fragment, registers, expected=before)

    def _recover(self, clustered: bool) -> None:
        """Find the files that a crash left: the last one is under construction, those before it are complete.

        If that one is whole already, the one behind it was set aside, and nothing has taken its place yet.
        """
        recovered = found(self._shop.disk, self._directory, self.journal)
        if not recovered:
            return
        for file, _ in recovered:
            file.park()
        complete = recovered
        if not is_whole(recovered[-1][0].path):
            complete = recovered[:-1]
            self._file, spool = recovered[-1]
            self.spool = spool.attached_to(self)
            self.first_append = self._file.record.first_append
        for file, spool in complete:
            if spool.fragment.length:
                self._held.append(file)
            else:
                self._shop.disk.remove(file.path)
        if clustered:
            self.withhold()
            self.quarantined = any(file.fragment.length for file in self.files)
        else:
            self.release()


def _commit(file: SpoolFile, fragment: Fragment, registers: LabelSet, first_append: int) -> None:
    with faults.step("commit"):
        file.commit(fragment, registers, first_append)


def _settle(file: SpoolFile) -> None:
    with faults.step("leave"):
        file.settle()


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _FULL
