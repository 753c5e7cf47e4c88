"""Where a pipeline's journals are for the time of a run, and where its own files go.

Embedded, the run is the broker of its data directory. With a broker elsewhere the directory holds only what the run
needs for itself: caches, scratch, the file that tells how it stands; its lock still keeps two runs on one machine
apart, and the journals' epochs keep runs on two machines apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.base.disk import Disk
from penstock.journal.client import Client
from penstock.journal.datadir import DataDir, Lock
from penstock.journal.embedded import EmbeddedBroker
from penstock.spark.reach import Reach

_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """A data directory that is ours, and a way to the broker for this process and for others."""

    directory: DataDir
    client: Client
    reach: Reach
    remote: bool


@contextmanager
def open_place(data_dir: Path, broker: Reach | None) -> Iterator[Place]:
    """Own `data_dir`; be its broker unless another `broker` is named."""
    if broker is None:
        with EmbeddedBroker(data_dir) as embedded, Client(embedded.address) as client:
            yield Place(embedded.directory, client, Reach(embedded.address), remote=False)
        return
    directory, disk = DataDir(data_dir), Disk()
    lock = Lock(directory, disk, _PATIENCE)
    try:
        directory.create(disk)
        yield Place(directory, broker.client(), broker, remote=True)
    finally:
        lock.release()
