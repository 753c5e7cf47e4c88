"""All stores of one broker: opened once per URL, counted, watched, and dropped when nobody uses them.

Whoever needs a store or its health asks for it each time, and keeps neither: a store that was not asked for
between two sweeps is dropped with its watch, and opened again when it is wanted (reference, 19 "Health").
Everything here belongs to the event loop's thread. The stores themselves are called from other threads; what
they count is handed over to the loop, since `Metrics` is touched there only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

from penstock.base.disk import Buffer, Disk
from penstock.journal.health import Health, Pace, Watch
from penstock.journal.metrics import Metrics
from penstock.journal.stores import FileStore, FragmentStore, Listed, open_store

log = logging.getLogger(__name__)

ABANDONED = 3600.0
"""Seconds after which nobody is at work any more on a half-written file that has not grown."""

Spawn = Callable[[Coroutine[None, None, None], str], "asyncio.Task[None]"]


@dataclass(slots=True)
class _Entry:
    """What is held for one URL."""

    stores: dict[bool, FragmentStore] = field(default_factory=dict)
    """By whether it was opened read-only."""
    watch: Watch | None = None
    trouble: str | None = None
    """Why the last upload or listing failed; "" if it did not, None if there was none."""
    task: asyncio.Task[None] | None = None
    used: bool = True
    """Since the last sweep."""

    def store(self) -> FragmentStore:
        return self.stores[False] if False in self.stores else self.stores[True]


class Stores:
    """The stores of one broker. `spawn` starts a task that the broker owns."""

    def __init__(
        self,
        root: Path | None,
        disk: Disk,
        executor: Executor,
        metrics: Metrics,
        *,
        file_only: bool = False,
        shared: bool = False,
        spawn: Spawn,
        pace: Pace | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`shared`: other processes write below `root` as well."""
        self._root = root
        self._shared = shared
        self._disk = disk
        self._executor = executor
        self._metrics = metrics
        self._file_only = file_only
        self._spawn = spawn
        self._pace = pace or Pace()
        self._chance = chance
        self._entries: dict[str, _Entry] = {}
        self._swept: set[Path] = set()
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def active(self) -> int:
        """How many stores are open."""
        return len(self._entries)

    def get(self, url: str, *, read_only: bool = False) -> FragmentStore:
        """The store of a URL; UsageError or ValidationError if there cannot be one."""
        entry = self._entries.get(url)
        store = entry.stores.get(read_only) if entry is not None else None
        if store is None:
            store = self._open(url, read_only)
        if entry is None:
            entry = self._entries[url] = _Entry()
            if self._sweeper is None:
                self._sweeper = self._spawn(self._sweep(), "sweep of stores")
        entry.used = True
        if read_only not in entry.stores:
            entry.stores[read_only] = store
            if not read_only and entry.watch is not None:
                entry.watch.start_over()  # so far it was only listed; now it must take writes
        return store

    def as_used(self, url: str) -> FragmentStore:
        """The store as journals use it: read-only if it is known from read-only journals alone."""
        entry = self._entries.get(url)
        return self.get(url, read_only=entry is not None and False not in entry.stores)

    def health(self, url: str) -> Health:
        """The health of a store, which is watched from now on."""
        self.as_used(url)
        entry = self._entries[url]
        if entry.watch is None:
            entry.watch = Watch(entry.store, self._metrics, self._pace, self._chance)
            entry.task = self._spawn(entry.watch.run(), f"health of {url}")
        return entry.watch.health

    def known(self) -> list[tuple[str, bool]]:
        """The stores in use, and whether the last check, upload or listing of each went well."""
        return [(url, not self.fault(url)) for url in self._entries]

    def fault(self, url: str) -> str | None:
        """Why the last check, upload or listing of a store failed; "" if it did not, None if there was none here."""
        entry = self._entries.get(url)
        if entry is None:
            return None
        if entry.trouble or entry.watch is None or not entry.watch.health.checked:
            return entry.trouble
        return entry.watch.health.error

    def note(self, url: str, trouble: str) -> None:
        """An upload or a listing has ended so. Shown at once; appends go by the checks, and wait for nothing else."""
        entry = self._entries.get(url)
        if entry is not None:
            entry.trouble = trouble

    def trouble(self, url: str) -> str:
        """What was noted last."""
        entry = self._entries.get(url)
        return (entry.trouble or "") if entry is not None else ""

    async def close(self) -> None:
        """End all watches. A check or an operation under way goes on in its thread, and counts no more."""
        if self._sweeper is not None:
            await _end([self._sweeper])
            self._sweeper = None
        await self._drop(list(self._entries))

    def _open(self, url: str, read_only: bool) -> FragmentStore:
        # Sweeping walks the whole directory: not on the event loop, and not each time a store is opened again.
        store = open_store(
            url, self._root, self._disk, file_only=self._file_only, read_only=read_only, sweep=False
        )
        if isinstance(store, FileStore) and not read_only and store.directory not in self._swept:
            self._swept.add(store.directory)
            self._executor.submit(_remove_leftovers, store, ABANDONED if self._shared else 0.0)
        return CountedStore(store, self._metrics, asyncio.get_running_loop())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._pace.sweep)
            unused = [url for url, entry in self._entries.items() if not entry.used]
            for entry in self._entries.values():
                entry.used = False
            await self._drop(unused)

    async def _drop(self, urls: Iterable[str]) -> None:
        entries = [self._entries.pop(url) for url in urls]
        for entry in entries:
            if entry.watch is not None:  # whoever waits for a change must not wait for ever
                health = entry.watch.health
                health.tell(health.error if health.checked else "closed before the first check ended")
        await _end([entry.task for entry in entries if entry.task is not None])


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def _remove_leftovers(store: FileStore, age: float) -> None:
    try:
        store.remove_leftovers(age)
    except OSError as error:
        # It harms nothing: they are not listed, and the next start tries again.
        log.warning("half-written files in the store %s could not be removed: %s", store.url, error)


class CountedStore(FragmentStore):
    """Another store, with its operations counted."""

    def __init__(self, inner: FragmentStore, metrics: Metrics, loop: asyncio.AbstractEventLoop) -> None:
        self.url = inner.url
        self.read_only = inner.read_only
        self._inner = inner
        self._metrics = metrics
        self._loop = loop

    def exists(self, path: str) -> bool:
        with self._counted("exists"):
            return self._inner.exists(path)

    def put(self, path: str, source: Iterable[Buffer], *, content_encoding: str = "") -> None:
        size = 0

        def measured() -> Iterator[Buffer]:
            nonlocal size
            for chunk in source:
                size += memoryview(chunk).nbytes
                yield chunk

        with self._counted("put"):
            self._inner.put(path, measured(), content_encoding=content_encoding)
        self._tell(lambda: self._metrics.store_put_bytes.update({(self.url, content_encoding): size}))

    def can_adopt(self, file: Path) -> bool:
        return self._inner.can_adopt(file)

    def adopt(self, path: str, file: Path) -> bool:
        size = file.stat().st_size
        with self._counted("put"):
            adopted = self._inner.adopt(path, file)
        if adopted:
            self._tell(lambda: self._metrics.store_put_bytes.update({(self.url, ""): size}))
        return adopted

    def open(self, path: str, *, position: int = 0) -> BinaryIO:
        with self._counted("get"):
            return self._inner.open(path, position=position)

    def list(self, directory: str) -> Iterator[Listed]:
        count = 0
        try:
            with self._counted("list"):
                for listed in self._inner.list(directory):
                    count += 1
                    yield listed
        finally:
            self._tell(lambda: self._metrics.store_listed.update({self.url: count}))

    def remove(self, path: str) -> None:
        with self._counted("remove"):
            self._inner.remove(path)

    def sign(self, path: str, ttl: timedelta) -> str:
        return self._inner.sign(path, ttl)

    def is_authorization_error(self, error: OSError) -> bool:
        return self._inner.is_authorization_error(error)

    def local_path(self, path: str) -> Path | None:
        return self._inner.local_path(path)

    @contextmanager
    def _counted(self, operation: str) -> Iterator[None]:
        started, status = time.perf_counter(), "ok"
        try:
            yield
        except GeneratorExit:  # a listing that was not read to its end
            raise
        except OSError as error:
            status = "denied" if self._inner.is_authorization_error(error) else "error"
            raise
        except BaseException:
            status = "error"
            raise
        finally:
            seconds = time.perf_counter() - started
            self._tell(lambda: self._metrics.store_operation(self.url, operation, status, seconds))

    def _tell(self, count: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody reads the numbers
            self._loop.call_soon_threadsafe(count)
