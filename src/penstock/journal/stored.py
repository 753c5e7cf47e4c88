"""A journal's fragments and its stores: what is in them, and what is on its way there.

Closed fragments are put into the journal's first store, however long that takes, and only then removed from the disk;
nothing waits for that. Every replica of a journal does so, the primary at once and the others later, if the primary
did not. The stores are listed when the broker asks for it (`refresh`); readers see the union of both.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from penstock.base import faults
from penstock.base.disk import Disk
from penstock.base.errors import PenstockError
from penstock.journal import codecs, postfix
from penstock.journal.fragment import Codec, Fragment, parse_path
from penstock.journal.index import Index
from penstock.journal.protocol import JournalSpec
from penstock.journal.rolling import flushes
from penstock.journal.spoolfile import SpoolFile, committed_content
from penstock.journal.stores import FragmentStore, Listed
from penstock.journal.surroundings import InSpool, InStore, Place, StoreHealth, Surroundings
from penstock.journal.tokens import ValidationError
from penstock.journal.uncancelled import uncancelled

log = logging.getLogger(__name__)

FOLLOWERS_WAIT = (60.0, 120.0)
"""Seconds for which a replica that is not the primary leaves a fragment to the primary."""
SYNCHRONISERS_WAIT = (0.2, 2.0)
"""The same, of a fragment that was closed for the sake of a replica that does not have it."""
FLUSH_SPREAD, LONGEST_SPREAD = 0.1, 30.0
"""Over which part of a flush interval, and how many seconds at most, uploads at its end are spread."""
_RETRY_DELAYS = (0.1, 1.0, 5.0, 30.0)
_O_RDONLY = 1


class Stored:
    """What one journal has in its stores, and what is to get there."""

    __slots__ = (
        "_changed",
        "_hurried",
        "_leftovers",
        "_listing",
        "_persisting",
        "_respecified",
        "_since_listing",
        "_unpersisted",
        "_with",
        "attempted",
        "following",
        "index",
        "listed",
        "listing_error",
        "spec",
        "trimmed",
    )

    def __init__(self, spec: JournalSpec, surroundings: Surroundings, trimmed: int) -> None:
        self.spec = spec
        self.index: Index[Place] = Index()
        self.trimmed = trimmed
        """Everything below has been deleted on purpose."""
        self.listed = not spec.fragment.stores
        """Whether the stores have been listed: before that, nobody knows where the journal ends."""
        self.attempted = self.listed
        """Whether they have been tried at least."""
        self.listing_error = ""
        self.following = False
        """Whether another broker is the primary, who stores what is complete."""
        self._with = surroundings
        self._changed: asyncio.Event | None = None
        self._respecified: asyncio.Event | None = None
        self._hurried: asyncio.Event | None = None
        self._unpersisted: list[SpoolFile] = []
        self._persisting: set[asyncio.Task[None]] = set()
        self._listing = asyncio.Lock()
        self._since_listing: list[tuple[Fragment, Place]] = []
        self._leftovers: list[Place] = []

    @property
    def codec(self) -> Codec:
        return Codec(self.spec.fragment.compression_codec)

    @property
    def read_only(self) -> bool:
        """Whether the store is another cluster's, to be read and never to be written."""
        return self.spec.flags == _O_RDONLY

    @property
    def _has_store(self) -> bool:
        """Whether there is one that we may write to."""
        return not self.read_only and bool(self.spec.fragment.stores)

    def now_seconds(self) -> int:
        return self._with.shop.now() // 1_000_000

    def health(self) -> StoreHealth | None:
        """Of the store that fragments go to; None if there is none to be watched, or none that is ours to write to."""
        if not self.spec.fragment.stores or self.read_only:
            return None
        url = self.spec.fragment.stores[0]
        return self._with.stores.health(url) if self._with.watched(url) else None

    def completed(self, file: SpoolFile, *, by_synchronising: bool = False) -> None:
        """Put a closed fragment into the store. Only what all replicas agree on is to get here."""
        if file.fragment.end <= self.trimmed:
            self.index.discard(file.fragment)
            self._with.shop.disk.remove(file.path)
            return
        self._with.shop.metrics.spools_completed += 1
        self._unpersisted.append(file)
        task = self._with.shop.spawn(self._persist(file, by_synchronising), f"persist {self.spec.name}")
        self._persisting.add(task)
        task.add_done_callback(self._persisting.discard)

    def changed(self) -> asyncio.Event:
        """Set at the next change of the index. Take it before looking."""
        if self._changed is None:
            self._changed = asyncio.Event()
        return self._changed

    def locate(self, begin: int, end: int) -> Iterator[tuple[Fragment, Place]]:
        """The fragments that hold [begin, end), in order, up to the first gap."""
        position = begin
        while position < end:
            entry, covered = self.index.lookup(position)
            if entry is None or not covered:
                return
            yield entry.fragment, entry.payload
            position = entry.fragment.end

    def respecify(self, spec: JournalSpec) -> None:
        """The spec has changed. New stores have to be listed before the next append."""
        if list(spec.fragment.stores) != list(self.spec.fragment.stores):
            self.listed = self.attempted = not spec.fragment.stores
        self.spec = spec
        if self._respecified is not None:
            self._respecified.set()
            self._respecified = None
        self._notify()

    async def refresh(self) -> None:
        """List the stores, and take that for all that is in them. An error is kept, and told by the next append.

        One at a time: a listing that is late would take away what has got into the stores since a later one began.
        """
        async with self._listing:
            await self._refresh()

    async def _refresh(self) -> None:
        urls = list(self.spec.fragment.stores)
        since: list[tuple[Fragment, Place]] = []
        self._since_listing = since
        loop = asyncio.get_running_loop()
        url = ""
        try:
            found: list[tuple[Fragment, Place]] = []
            for url in urls:
                store = self._with.stores.get(url, read_only=self.read_only)
                listing = loop.run_in_executor(self._with.store_threads, _list, store, self.spec.name)
                found += [(fragment, place) for fragment, place in self._fragments(store, await listing)]
        except (PenstockError, OSError) as error:
            if str(error) != self.listing_error:  # it is tried every second: told once is enough
                log.warning("%s: cannot list its stores: %s", self.spec.name, error)
            self.listing_error = str(error)
            self._with.stores.note(url, self.listing_error)
        else:
            if urls == list(self.spec.fragment.stores):
                self.listing_error = ""
                self._take_listing([*found, *since])
                self.listed = True
                self._note_success(urls)
        self.attempted = True
        self._notify()
        await self._remove_leftovers()

    def _note_success(self, urls: Iterable[str]) -> None:
        """A listing says nothing about uploads that fail."""
        for url in urls:
            if not self._persisting:
                self._with.stores.note(url, "")

    def _take_listing(self, listing: list[tuple[Fragment, Place]]) -> None:
        """What lies below the trim point is not part of the journal, whatever the store still has."""
        self.index.replace_remote(listed for listed in listing if listed[0].end > self.trimmed)
        self._leftovers = [place for fragment, place in listing if fragment.end <= self.trimmed]

    async def _remove_leftovers(self) -> None:
        """Finish what an interrupted trim began."""
        leftovers, self._leftovers = self._leftovers, []
        if self.read_only:
            return
        for place in leftovers:
            assert isinstance(place, InStore)
            try:
                await self._remove(place)
            except OSError as error:
                log.warning("%s: cannot remove %s yet: %s", self.spec.name, place.path, error)

    async def _remove(self, place: InStore) -> None:
        loop = asyncio.get_running_loop()
        remove = partial(place.store.remove, place.path)
        await uncancelled(loop.run_in_executor(self._with.store_threads, remove))

    async def delete_below(self, offset: int) -> tuple[int, int]:
        """Delete the fragments that end at or below an offset, whose trim point is durable already.

        Returns how many, and their bytes. What a failure leaves behind goes at the next refresh.
        """
        self.trimmed = max(self.trimmed, offset)
        fragments = size = 0
        while (entry := self.index.lookup(0)[0]) is not None and entry.fragment.end <= offset:
            fragment, place = entry.fragment, entry.payload
            with faults.step("trim"):
                if isinstance(place, InSpool) and not self._drop_unpersisted(place.path):
                    break  # under construction
                self.index.discard(fragment)
                self._notify()
                if isinstance(place, InStore):
                    await self._remove(place)
            fragments, size = fragments + 1, size + fragment.length
        return fragments, size

    def forget_below(self, offset: int) -> None:
        """Another broker deletes the fragments that end at or below an offset: let ours go, too."""
        self.trimmed = max(self.trimmed, offset)
        while (entry := self.index.lookup(0)[0]) is not None and entry.fragment.end <= offset:
            if isinstance(entry.payload, InSpool) and not self._drop_unpersisted(entry.payload.path):
                break  # under construction
            self.index.discard(entry.fragment)
        self._notify()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def _drop_unpersisted(self, path: Path) -> bool:
        """Remove a closed spool file that is not wanted in the store any more; its task finds it gone."""
        for file in self._unpersisted:
            if file.path == path:
                self._unpersisted.remove(file)
                with suppress(FileNotFoundError):
                    self._with.shop.disk.remove(path)
                return True
        return False

    async def _persist(self, file: SpoolFile, by_synchronising: bool) -> None:
        """Put a closed fragment into the store, however long that takes; then let its file go."""
        attempt = 0
        await self._unless_hurried(self._wait_before(file, by_synchronising))
        while file in self._unpersisted:
            try:
                stored = await self._put(file)
            except (PenstockError, OSError) as error:
                if file not in self._unpersisted:
                    return  # trimmed meanwhile, and its file with it
                delay = _RETRY_DELAYS[min(attempt, len(_RETRY_DELAYS) - 1)] * random.uniform(0.8, 1.2)
                attempt += 1
                log.warning("%s: cannot store %s yet: %s", self.spec.name, file.path.name, error)
                if self.spec.fragment.stores:
                    self._with.stores.note(self.spec.fragment.stores[0], str(error))
                await asyncio.sleep(delay)
                continue
            if stored is None:
                await self._until_respecified()
                continue
            if file not in self._unpersisted:
                await self._discard_trimmed(stored[1])
                return
            self._with.stores.note(stored[0].backing_store, "")
            self.index.add(*stored)
            self._since_listing.append(stored)
            self._notify()
            self._unpersisted.remove(file)
            self._with.shop.metrics.spools_persisted += 1
            # Not synced: a spool that comes back after a power cut is put into the store once more, and goes again.
            with suppress(FileNotFoundError):
                self._with.shop.disk.remove(file.path)

    def _wait_before(self, file: SpoolFile, by_synchronising: bool) -> float:
        """Seconds until a fragment is put into the store.

        One upload of it is enough; that replicas wait for different times keeps it so. And since the interval after
        which fragments are flushed ends for all journals of all brokers at once, what it has closed is spread.
        """
        if self.following and self._with.clustered:
            return random.uniform(*(SYNCHRONISERS_WAIT if by_synchronising else FOLLOWERS_WAIT))
        interval = self.spec.fragment.flush_interval.ToSeconds()
        wanted = by_synchronising or file.fragment.length > self.spec.fragment.length
        if wanted or not flushes(interval, file.record.first_append // 1_000_000, self.now_seconds()):
            return 0.0
        return random.uniform(0.0, min(FLUSH_SPREAD * interval, LONGEST_SPREAD))

    async def _unless_hurried(self, seconds: float) -> None:
        if seconds:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._in_a_hurry().wait()

    def _in_a_hurry(self) -> asyncio.Event:
        if self._hurried is None:
            self._hurried = asyncio.Event()
        return self._hurried

    async def persisted(self) -> None:
        """Wait until everything that was complete is in the store: for a broker that leaves, so nobody waits longer
        than the store takes. Where there is none, it stays on the disk."""
        self._in_a_hurry().set()
        while self._persisting and self._has_store:
            await asyncio.wait(tuple(self._persisting))

    async def _discard_trimmed(self, place: InStore) -> None:
        """Trimmed while it was being stored. If it cannot be removed now, the next refresh does it."""
        with suppress(OSError):
            await self._remove(place)

    async def _put(self, file: SpoolFile) -> tuple[Fragment, InStore] | None:
        """One attempt, by the spec of now; None if there is no store that we may write to."""
        spec = self.spec
        if not self._has_store:
            return None
        url = spec.fragment.stores[0]
        store = self._with.stores.get(url)
        first_append = datetime.fromtimestamp(file.record.first_append / 1e6, UTC)
        fragment = replace(
            file.fragment,
            backing_store=url,
            mod_time=self.now_seconds(),
            path_postfix=postfix.evaluate(spec.fragment.path_postfix_template, first_append),
        )
        as_it_is = fragment.codec is Codec.NONE and file.can_be_whole and store.can_adopt(file.path)
        if as_it_is:
            self._name_whole(file)
        put = partial(_put, store, self._with.shop.disk, fragment, file, as_it_is)
        loop = asyncio.get_running_loop()
        await uncancelled(loop.run_in_executor(self._with.upload_threads, put))
        return fragment, InStore(store, fragment.content_path)

    def _name_whole(self, file: SpoolFile) -> None:
        """Give a complete file the name under which it is cut to its content, and readers that name."""
        before = InSpool(file.path)
        file.name_whole()
        entry, _ = self.index.lookup(file.fragment.begin)
        if entry is not None and entry.payload == before:
            self.index.add(entry.fragment, InSpool(file.path))

    async def _until_respecified(self) -> None:
        if self._respecified is None:
            self._respecified = asyncio.Event()
        await self._respecified.wait()

    def _fragments(self, store: FragmentStore, listing: Iterable[Listed]) -> Iterator[tuple[Fragment, Place]]:
        """The fragments of a listing; other files are named in the log and left alone."""
        journal = self.spec.name
        others = tuple(f"{name[len(journal) + 1 :]}/" for name in self._with.nested(journal))
        for listed in listing:
            if listed.path.startswith(others) or not self._may_be_postfix(listed.path):
                continue  # of a journal whose name begins with ours
            try:
                fragment = parse_path(
                    journal, listed.path, backing_store=store.url, mod_time=max(1, listed.mod_time)
                )
            except ValidationError as error:
                log.warning("%s: not a fragment in the store: %s", journal, error)
                continue
            if fragment.length and not listed.size:
                # Some stores, and whoever copies files, leave the name of what was never written.
                log.warning(
                    "%s: an empty file in the store, of a fragment that is none: %s", journal, listed.path
                )
            elif fragment.length:
                yield fragment, InStore(store, f"{journal}/{listed.path}")

    def _may_be_postfix(self, path: str) -> bool:
        """A folder below the journal's is a postfix, or another journal that was deleted and left its fragments.

        Without a template only folders that look like partitions (`date=2026-01-02`) are taken for postfixes.
        """
        folders = path.split("/")[:-1]
        return bool(self.spec.fragment.path_postfix_template) or all("=" in folder for folder in folders)


def _list(store: FragmentStore, journal: str) -> list[Listed]:
    return list(store.list(journal))


def _put(store: FragmentStore, disk: Disk, fragment: Fragment, file: SpoolFile, as_it_is: bool) -> None:
    """Store the content of a closed spool file, or the file itself. Blocks."""
    with faults.step("close"):
        if store.exists(fragment.content_path):
            return
        if as_it_is:
            file.make_whole()
            if store.adopt(fragment.content_path, file.path):
                return
        source = committed_content(disk, file.path, fragment.length)
        store.put(
            fragment.content_path,
            codecs.compressed(fragment.codec, source),
            content_encoding=codecs.content_encoding(fragment.codec),
        )
