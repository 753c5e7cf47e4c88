"""A directory of this machine as the target of a partitioned sink.

Everything that is no file of rows lies in `.penstock/` at its top: position, note, lock, and the files of tasks that
are still to come. Names that begin with a dot are left alone by Spark and other readers of such directories.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.adaptors.away import telling
from penstock.adaptors.base import Finding
from penstock.adaptors.file.obstacles import obstacles
from penstock.adaptors.formats.partition_sink import Kept, Note, Target, read_kept
from penstock.base.disk import Disk, DiskFile
from penstock.base.errors import CorruptError, UsageError
from penstock.base.locks import lock_soon


class LocalTarget(Target):
    """A directory."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.where = str(path)
        self._top = path
        self._disk = disk or Disk()
        self._own = path / ".penstock"
        self._lock: DiskFile | None = None

    def inspect(self) -> Sequence[Finding]:
        return obstacles(self._top, made=True)

    def open(self) -> None:
        self.close()
        if self._top.exists() and not self._top.is_dir():
            raise UsageError(f"cannot write {self._top}: it is not a directory")
        with telling(f"cannot write {self._top}"):
            try:
                self._disk.make_dirs(self._own)
            except PermissionError as error:
                raise UsageError(f"cannot write {self._top}: {error.strerror}") from None
            self._lock = lock = self._disk.open(self._own / "lock", create=True)
        try:
            lock_soon(lock.fileno())
        except BlockingIOError:
            self.close()
            raise UsageError(
                f"{self._top} is being written by another sink", hint="give each sink a directory of its own"
            ) from None
        shutil.rmtree(self._own / "staging", ignore_errors=True)

    def load(self) -> tuple[Kept | None, Sequence[Note]]:
        with telling(f"cannot read {self._own}"):
            # Whoever wrote them may have been killed before they were durable.
            self._disk.sync_dir(self._own)
            position, note = _content(self._own / "position"), _content(self._own / "note")
        try:
            noted = [msgspec.json.decode(note, type=Note)] if note is not None else []
        except msgspec.DecodeError as error:
            raise CorruptError(f"not the note of a sink: {error}", where=str(self._own), position=0) from None
        return (None if position is None else read_kept(position, str(self._own / "position"))), noted

    def save(self, kept: Kept) -> None:
        with telling(f"cannot write {self._own}"):
            self._disk.replace_file(self._own / "position", msgspec.json.encode(kept))

    def note(self, note: Note) -> None:
        with telling(f"cannot write {self._own}"):
            self._disk.replace_file(self._own / "note", msgspec.json.encode(note))

    def forget_notes(self) -> None:
        with telling(f"cannot write {self._own}"), suppress(FileNotFoundError):
            self._disk.remove(self._own / "note")

    def bring(self, files: Iterable[tuple[Path, str]]) -> None:
        touched: set[Path] = set()
        with telling(f"cannot write {self._top}"):
            for staged, name in files:
                target = self._top / name
                if target.parent not in touched:
                    self._disk.make_dirs(target.parent)
                    touched.add(target.parent)
                with self._disk.open(staged) as file:
                    file.sync()
                self._disk.rename(staged, target)
            for directory in sorted(touched):
                self._disk.sync_dir(directory)

    def remove(self, names: Iterable[str]) -> None:
        touched: set[Path] = set()
        with telling(f"cannot write {self._top}"):
            for name in names:
                path = self._top / name
                if path.exists():
                    self._disk.remove(path)
                    touched.add(path.parent)
            for directory in sorted(touched):
                self._disk.sync_dir(directory)

    def others(self) -> Sequence[str]:
        found = []
        for directory, inside, names in os.walk(self._top):
            inside[:] = [one for one in inside if not one.startswith(".")]
            found += [
                str((Path(directory) / one).relative_to(self._top))
                for one in names
                if not one.startswith(".")
            ]
        return sorted(found)

    def staging(self, scratch: Path) -> Path:
        return self._own / "staging"

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
