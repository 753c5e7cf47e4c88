"""Where a pipeline's journals are for the time of a run, and where its own files go.

Embedded, the run is the broker of its data directory. With a broker elsewhere the directory holds only what the run
needs for itself: caches, scratch, the file that tells how it stands; its lock still keeps two runs on one machine
apart, and the journals' epochs keep runs on two machines apart.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.base.disk import Disk
from penstock.base.errors import PenstockError
from penstock.journal.client import Client
from penstock.journal.datadir import DataDir, Lock
from penstock.journal.embedded import EmbeddedBroker
from penstock.pipeline.definition import Pipeline
from penstock.spark.reach import Reach

_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """A data directory that is ours, and a way to the broker for this process and for others."""

    directory: DataDir
    client: Client
    reach: Reach
    remote: bool
    lock: tuple[int, int] | None = None
    """The file by which the directory is ours."""

    def displaced(self) -> PenstockError | None:
        """Why nothing goes on that needs the directory, if somebody has taken it away; None if it is there."""
        return self.directory.displaced(self.lock)


@contextmanager
def open_place(data_dir: Path, broker: Reach | None) -> Iterator[Place]:
    """Own `data_dir`; be its broker unless another `broker` is named."""
    if broker is None:
        with EmbeddedBroker(data_dir) as embedded, embedded.client() as client:
            ours = embedded.directory
            yield Place(ours, client, Reach(embedded.address), remote=False, lock=ours.lock_file())
        return
    directory, disk = DataDir(data_dir), Disk()
    lock = Lock(directory, disk, _PATIENCE)
    try:
        directory.create(disk)
        yield Place(directory, broker.client(), broker, remote=True)
    finally:
        lock.release()


def empty_scratch(place: Place, given: Path | None, pipeline: str) -> Path:
    """An empty directory for what Spark and staging need.

    Of a directory that was given only a part is ours, and its name says so: the identity of the data directory is in
    it, so that neither another run nor anything of a person's can have that name.
    """
    scratch = place.directory.scratch
    if given is not None:
        scratch = given.absolute() / f"penstock-{pipeline}-{place.directory.version().id[:12]}"
    shutil.rmtree(scratch, ignore_errors=True)
    # The JVM of a run that was killed may still write here, for a moment.
    try:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PenstockError(
            f"cannot make {scratch}, for what Spark and staging need: {error.strerror}",
            hint="name another place with --scratch",
        ) from error
    return scratch


GATHER = "1s"
"""How long a batch waits for more while a source fills the log."""


def source_options(pipeline: Pipeline, place: Place) -> dict[str, str]:
    """What Spark is told: names and limits, never an adaptor's settings, since its plans show options."""
    options = {
        "dataDir": str(place.directory.path),
        "pipeline": pipeline.name,
        "maxBytes": str(pipeline.settings.batch_bytes),
        "maxMessages": str(pipeline.settings.batch_messages),
        "gather": GATHER,
    }
    if place.remote:
        reach = place.reach
        options["broker"] = reach.address
        files = {"caFile": reach.ca_file, "certFile": reach.cert_file, "keyFile": reach.key_file}
        options |= {name: str(path) for name, path in files.items() if path is not None}
    if pipeline.settings.partitions is not None:
        options["partitions"] = str(pipeline.settings.partitions)
    return options
