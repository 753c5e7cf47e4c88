"""Directories and glob patterns of this machine, as a folder of files.

A file counts as whole if it was not written to for `settle` seconds, so one that was written aside and is renamed into
place is taken soon, and one that is written in place a little after it is done. Names that begin with `.` or `_`, and
those that end in `.tmp` or `.partial`, belong to writers that are not done.

What was read is known by times (`formats.ledger`): a file that shows up later than a newer one would be taken for read.
So none is told before those that are older, as long as one of them is still being written; nor one that came while the
names were being listed, since an older one may have come to where the listing had been.
"""

from __future__ import annotations

import glob
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.adaptors.away import os_error, telling
from penstock.adaptors.file.source import opened
from penstock.adaptors.formats.contents import Content, LocalContent
from penstock.adaptors.formats.folder import Folder
from penstock.adaptors.formats.ledger import Entry
from penstock.adaptors.formats.reading import FileChangedError
from penstock.base.errors import UsageError

_UNFINISHED = (".tmp", ".partial")
_TICK = 20_000
"""Microseconds by which the clock that files get their times from may be behind."""


def is_pattern(path: str) -> bool:
    return any(letter in path for letter in "*?[")


class LocalFolder(Folder):
    """The files of a directory, or those that match a pattern, `**` for any directories in between."""

    def __init__(self, path: Path, *, settle: float) -> None:
        self.where = str(path)
        self._settle = settle
        text = str(path)
        self._pattern = text if is_pattern(text) else None
        self._top = Path(_fixed_part(text)) if self._pattern else path

    def entries(self, *, settled: bool) -> Sequence[Entry]:
        if not self._top.is_dir():
            raise UsageError(f"cannot read {self._top}: there is no such directory")
        now = time.time_ns() // 1000
        with telling(f"cannot list {self.where}"):
            found = [entry for path in self._paths() if (entry := self._entry(path)) is not None]
        if not settled:
            return [entry for entry, _ in found]
        unsettled = (entry.time for entry, written in found if now - written < self._settle * 1_000_000)
        edge = min(unsettled, default=now)
        return [entry for entry, _ in found if entry.time < min(edge, now - _TICK)]

    @contextmanager
    def opened(self, entry: Entry) -> Iterator[Content]:
        path = self._top / entry.name
        with opened(path) as fd:
            if _tag(os.fstat(fd)) != entry.tag:
                raise FileChangedError(
                    f"{path} changed between two looks at it", hint="write files aside and rename them"
                )
            yield LocalContent(str(path), fd)

    def _paths(self) -> Iterator[str]:
        if self._pattern is not None:
            return glob.iglob(self._pattern, recursive=True)
        try:
            return iter([str(self._top / name) for name in os.listdir(self._top)])  # noqa: PTH208 - names
        except OSError as error:
            raise os_error(f"cannot read {self._top}", error) from None

    def _entry(self, path: str) -> tuple[Entry, int] | None:
        """A file that is there, and when it was written to; in microseconds."""
        name = os.path.relpath(path, self._top)
        last = name.rpartition("/")[2]
        if last.startswith((".", "_")) or last.endswith(_UNFINISHED):
            return None
        try:
            found = Path(path).stat()
        except FileNotFoundError:
            return None  # between listing and asking
        if not stat.S_ISREG(found.st_mode):
            return None
        # The time of the last change of name or content: a file that was renamed into place came then. That of the
        # content alone may have been set, to one in the future also.
        came, written = found.st_ctime_ns // 1000, found.st_mtime_ns // 1000
        return Entry(name, came, found.st_size, _tag(found)), min(came, written)


def _tag(found: os.stat_result) -> str:
    return f"{found.st_size}-{found.st_mtime_ns}"


def _fixed_part(pattern: str) -> str:
    """The directory above the first name with a wildcard."""
    parts = pattern.split("/")
    wild = next(index for index, part in enumerate(parts) if is_pattern(part))
    return "/".join(parts[:wild]) or "/"
