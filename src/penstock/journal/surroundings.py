"""What a replica finds around it: the stores of its broker, its threads, and the places where fragments lie."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.journal.localspool import Workshop
from penstock.journal.stores import FragmentStore


class StoreHealth(Protocol):
    """What is known of a store: whether it was checked, and what is wrong with it."""

    checked: bool
    error: str
    failures: int
    """Checks in a row that failed."""

    def changed(self) -> asyncio.Event: ...


class StoreSet(Protocol):
    """The stores of a broker, by URL."""

    def get(self, url: str, *, read_only: bool = False) -> FragmentStore: ...

    def health(self, url: str) -> StoreHealth: ...

    def note(self, url: str, trouble: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the replicas of one broker share."""

    shop: Workshop
    stores: StoreSet
    store_threads: Executor
    """For listing, which appends may wait for."""
    upload_threads: Executor
    """For putting fragments into stores, which nobody waits for."""
    watched: Callable[[str], bool]
    """Whether the health of a store is to be watched: not if it is on the disk that the spools are on."""
    nested: Callable[[str], Iterable[str]]
    """The journals whose names continue a journal's name, as in `a/b` and `a/b/c`."""
    clustered: bool = False
    """Whether other brokers have replicas, too, so that what a spool has is not all there is to know."""


@dataclass(frozen=True, slots=True)
class InSpool:
    """Bytes of a fragment in a spool file, uncompressed, behind the commit records."""

    path: Path


@dataclass(frozen=True, slots=True)
class InStore:
    """Bytes of a fragment in a store, as its codec has it."""

    store: FragmentStore
    path: str


Place = InSpool | InStore
