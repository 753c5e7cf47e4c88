"""A journal at this broker: its spool, the index of its fragments, and the two things that one append owns at a time.

A replica lives while the journal is assigned to the broker. What a crash left is recovered when it is made. What its
stores hold, and how fragments get there, is in `stored.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from penstock.journal.flow import MaximumRate
from penstock.journal.fragment import Fragment
from penstock.journal.localspool import JournalFailedError, LocalSpool
from penstock.journal.protocol import JournalSpec, Route
from penstock.journal.replication import Pipeline
from penstock.journal.slots import Slot
from penstock.journal.spool import Spool
from penstock.journal.spoolfile import SpoolFile
from penstock.journal.stored import Stored
from penstock.journal.surroundings import InSpool, InStore, Place, StoreHealth, StoreSet, Surroundings

__all__ = ["Guest", "InSpool", "InStore", "Place", "Replica", "StoreHealth", "StoreSet", "Surroundings"]

GAP_PATIENCE = 120.0
"""Seconds for which what others close when we come may take to get into the store; then it counts as not there."""
_PARK_AFTER = 30.0
_O_WRONLY = 2
"""Of the flags of a spec."""


def _nothing() -> None:
    """For those who want to know nothing."""


class Guest(Protocol):
    """A stream of the journal's primary, elsewhere, that holds our spool."""

    @property
    def route(self) -> Route: ...

    def leave(self) -> None:
        """End the stream: somebody else is the primary now."""


class Replica(Stored):
    """One journal. `pipeline` belongs to the owner of `pipeline_slot`, the spool to that of `spool_slot`."""

    __slots__ = (
        "_began",
        "began_at",
        "closed",
        "guest",
        "invalidations",
        "local",
        "on_agreed",
        "pipeline",
        "pipeline_slot",
        "rate",
        "set_aside",
        "spool_slot",
        "waits_ended",
    )

    def __init__(
        self, spec: JournalSpec, directory: Path, surroundings: Surroundings, *, trimmed: int = 0
    ) -> None:
        """Recover the journal's spools from their directory. Blocks."""
        super().__init__(spec, surroundings, trimmed)
        self.spool_slot = Slot()
        self.pipeline_slot = Slot()
        self.pipeline: Pipeline | None = None
        self.guest: Guest | None = None
        self.rate = MaximumRate()
        self.invalidations = 0
        """How often what appends resolved may have changed."""
        self.began_at = -1
        """Where the journal ended when we came, and have our own spools from."""
        self._began = 0.0
        """When that was."""
        self.on_agreed: Callable[[], None] = _nothing
        """Told whenever all replicas have agreed."""
        self.closed = False
        """No append is accepted any more, and reads end."""
        self.waits_ended = False
        self.set_aside: list[Path] = []
        """Spools that a crash left and that turned out not to be what the journal has: for a person to look at."""
        self.local = LocalSpool(
            spec.name, directory, surroundings.shop, self, clustered=surroundings.clustered
        )

    @property
    def spool(self) -> Spool:
        return self.local.spool

    @property
    def write_head(self) -> int:
        """One past the last committed byte."""
        return max(self.local.committed_end, self.index.end)

    @property
    def is_write_only(self) -> bool:
        return self.spec.flags == _O_WRONLY

    @property
    def is_about_to_show(self) -> bool:
        """Whether a sync has ended, in its thread, of which readers see nothing before the loop's next turn."""
        return self.local.is_flushing and self.write_head > self.index.end

    @property
    def unpersisted(self) -> list[Fragment]:
        """Fragments that are in no store yet, the one under construction included."""
        building = [self.local.fragment] if self.local.fragment.length else []
        return [*(file.fragment for file in self._unpersisted), *building]

    @property
    def files(self) -> list[SpoolFile]:
        """Everything of the journal that is on our disk."""
        return [*self._unpersisted, *self.local.files]

    def committed(self, fragment: Fragment, file: SpoolFile) -> None:
        """Let readers see what has become durable."""
        self.index.add(fragment, InSpool(file.path))
        self._notify()

    def agreed(self) -> None:
        """All replicas agree on where the journal ends."""
        if self.began_at != self.local.fragment.begin:
            self.began_at, self._began = self.local.fragment.begin, time.monotonic()
        self._notify()
        self.on_agreed()

    @property
    def has_gap(self) -> bool:
        """Whether what was written right before we came is yet to be seen in the store: others closed it for us."""
        begin = self.began_at
        if begin <= self.trimmed or time.monotonic() - self._began > GAP_PATIENCE:
            return False
        return not self.index.lookup(begin - 1)[1]

    async def until_listed_once(self) -> None:
        """Wait for the first listing of the stores to have succeeded or failed."""
        while not self.attempted and not self.closed and not self.waits_ended:
            await self.changed().wait()

    def park(self, now: float) -> None:
        """Hold no descriptor for a journal that nobody writes to."""
        idle = not self.pipeline_slot.owned and now - self.local.used > _PARK_AFTER
        if idle and self.local.path is not None:
            self.local.park()

    def end_waits(self) -> None:
        """Have reads end where they would wait for a commit, now and from now on."""
        self.waits_ended = True
        self._notify()

    def invalidate(self) -> None:
        """What an append resolved may no longer hold: have those that wait resolve again."""
        self.invalidations += 1
        self.pipeline_slot.wake()
        self.spool_slot.wake()
        self._notify()

    def retire(self) -> None:
        """Take nothing more, from this moment on."""
        self.closed = True
        self.end_waits()
        self.pipeline_slot.close()
        self.spool_slot.close()

    async def close(self, *, persist: bool = False) -> None:
        """Let the journal go: refuse what is not adopted yet, wait for what is, end reads, close the files.

        With `persist`, complete fragments get into the store first: a broker that leaves takes its disk with it.
        """
        self.retire()
        await self.pipeline_slot.drained()
        if self.pipeline is not None:
            await self.pipeline.settled()
            self.pipeline.close()
            self.pipeline = None
        await self.spool_slot.drained()
        with suppress(JournalFailedError):
            await self.local.durable()
        if persist:
            await self.persisted()
        for task in self._persisting:
            task.cancel()
        await asyncio.gather(*self._persisting, return_exceptions=True)
        await self.local.settle()
        self.abandon()

    def abandon(self) -> None:
        """Close the files, and nothing else. Everything acknowledged is durable already."""
        self.local.abandon()
