"""A prefix of a bucket, as a folder to read and as a target to write.

What belongs to the sink lies under `_penstock/`, and names of which a part begins with `_` or `.` are not read. The
position of a sink is an object whose name is a number, created only if there is none: of two writers one is too late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.adaptors.base import Finding
from penstock.adaptors.formats.contents import Content
from penstock.adaptors.formats.folder import Folder
from penstock.adaptors.formats.ledger import Entry
from penstock.adaptors.formats.partition_sink import Kept, Note, Target, read_kept
from penstock.adaptors.needs import need
from penstock.base.errors import CorruptError, UsageError

if TYPE_CHECKING:
    from penstock.adaptors.s3.objects import Objects

OWN = "_penstock/"
_POSITION, _NOTE = f"{OWN}position-", f"{OWN}note-"
AT_ONCE = 4
"""Files that are put side by side."""
_CHUNK = 1 << 20


def objects_of(url: str) -> Objects:
    need("obstore", "s3")
    from penstock.adaptors.s3.objects import Objects

    return Objects(url)


class S3Folder(Folder):
    """The objects under a prefix."""

    def __init__(self, url: str, *, late: float) -> None:
        self.where = url.partition("?")[0]
        self.late = int(late * 1_000_000)
        self._url = url
        self._store: Objects | None = None

    @property
    def _objects(self) -> Objects:
        if self._store is None:
            self._store = objects_of(self._url)
        return self._store

    def entries(self, *, settled: bool) -> Sequence[Entry]:
        return [entry for entry in self._objects.entries() if _is_file(entry.name)]

    @contextmanager
    def opened(self, entry: Entry) -> Iterator[Content]:
        yield self._objects.opened(entry)


def _is_file(name: str) -> bool:
    return bool(name) and not name.endswith("/") and not any(part[:1] in ("_", ".") for part in _parts(name))


def _parts(name: str) -> list[str]:
    """The parts of a name; those of a partition, `_ns=…`, do not count."""
    return [part for part in name.split("/") if "=" not in part]


class S3Target(Target):
    """A prefix to put files under."""

    locked = False

    def __init__(self, url: str) -> None:
        self.where = url.partition("?")[0]
        self._url = url
        self._store: Objects | None = None
        self._notes: list[str] = []

    @property
    def _objects(self) -> Objects:
        if self._store is None:
            self._store = objects_of(self._url)
        return self._store

    def inspect(self) -> Sequence[Finding]:
        self._objects.entries(OWN)
        return ()

    def open(self) -> None:
        """Nothing keeps others out; see `save`."""

    def load(self) -> tuple[Kept | None, Sequence[Note]]:
        own = [entry.name for entry in self._objects.entries(OWN)]
        positions = sorted(name for name in own if name.startswith(_POSITION))
        for name in positions[:-2]:
            self._remove(name)
        self._notes = [name for name in own if name.startswith(_NOTE)]
        notes = []
        for name in self._notes:
            try:
                notes.append(msgspec.json.decode(self._objects.bytes_of(name), type=Note))
            except msgspec.DecodeError as error:
                raise CorruptError(f"not the note of a sink: {error}", where=name, position=0) from None
        if not positions:
            return None, notes
        return read_kept(self._objects.bytes_of(positions[-1]), f"{self.where}/{positions[-1]}"), notes

    def save(self, kept: Kept) -> None:
        name = f"{_POSITION}{kept.number:015d}"
        content = msgspec.json.encode(kept)
        # A create whose answer was lost may have come through: then it is ours that is there.
        if not self._objects.create(name, content) and self._objects.bytes_of(name) != content:
            raise UsageError(
                f"{self.where} is being written by another sink", hint="give each sink a prefix of its own"
            )
        self._remove(f"{_POSITION}{kept.number - 2:015d}")

    def note(self, note: Note) -> None:
        name = f"{_NOTE}{note.batch}"
        self._put(name, [msgspec.json.encode(note)])
        self._notes.append(name)

    def forget_notes(self) -> None:
        while self._notes:
            self._remove(self._notes[-1])
            self._notes.pop()

    def bring(self, files: Iterable[tuple[Path, str]]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(self._put, name, _chunks(path)) for path, name in files]:
                done.result()

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._remove(name)

    def others(self) -> Sequence[str]:
        return sorted(entry.name for entry in self._objects.entries() if not entry.name.startswith(OWN))

    def staging(self, scratch: Path) -> Path:
        return scratch

    def _put(self, name: str, content: Iterable[bytes]) -> None:
        with self._objects.asking():
            self._objects.put(name, content)

    def _remove(self, name: str) -> None:
        with self._objects.asking():
            self._objects.remove(name)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
