"""A key space as one broker sees it: a test can hold it back, so that the broker knows less than others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from penstock.journal.keyspace import Entry, LocalKeySpace


class View:
    """A broker's mirror of the key space; while it is `held` it shows what was when that began."""

    def __init__(self, shared: LocalKeySpace) -> None:
        self._shared = shared
        self._snapshot: dict[str, Entry] | None = None
        self._revision = shared.revision
        self._observers: list[Callable[[Sequence[str]], None]] = []
        self._moved = asyncio.Event()
        shared.observe(self._changed)

    @property
    def revision(self) -> int:
        return self._revision

    def hold(self) -> None:
        self._snapshot = dict(self._shared.under(""))

    def catch_up(self) -> None:
        before, self._snapshot = self._snapshot or {}, None
        after = dict(self._shared.under(""))
        self._changed([key for key in before | after if before.get(key) != after.get(key)])

    def get(self, key: str) -> Entry | None:
        return self._shared.get(key) if self._snapshot is None else self._snapshot.get(key)

    def under(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        if self._snapshot is None:
            return self._shared.under(prefix)
        return iter([item for item in sorted(self._snapshot.items()) if item[0].startswith(prefix)])

    def observe(self, changed: Callable[[Sequence[str]], None]) -> None:
        self._observers.append(changed)

    async def wait_for_revision(self, revision: int) -> None:
        while self._revision < revision:
            await self._moved.wait()

    def _changed(self, changed: Sequence[str]) -> None:
        if self._snapshot is not None:
            return
        self._revision = self._shared.revision
        for observer in self._observers:
            observer(changed)
        self._moved.set()
        self._moved = asyncio.Event()
