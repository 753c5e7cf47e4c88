"""The operation log: what a recording disk wrote down, step by step.

Content belongs to an inode, a name to a folder, as on a real file system: a file that was renamed keeps its
inode, and a folder is an inode as well (the root is `ROOT`). Syncs have a start and an end, since only what
was issued before the start is promised at the end. Paths are relative to the root and serve the reader only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

ROOT = 0
T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """Where the code under test asked for a step; `helper` is set if `Disk` took the step on its behalf."""

    file: str
    line: int
    function: str
    helper: str = ""

    @property
    def label(self) -> str:
        """The site without its line number, stable enough to be named in a test: `spool.py:Spool.roll`."""
        name = f"{self.file.rpartition('/')[2]}:{self.function}"
        return f"{name} Disk.{self.helper.partition(':')[0]}" if self.helper else name

    def __str__(self) -> str:
        text = f"{'/'.join(self.file.split('/')[-3:])}:{self.line} in {self.function}"
        return f"{text}, through Disk.{self.helper}" if self.helper else text


@dataclass(frozen=True, slots=True)
class Event:
    site: Site
    path: str


@dataclass(frozen=True, slots=True)
class Create(Event):
    """An entry for a new inode: a file if `is_dir` is false."""

    folder: int
    name: str
    inode: int
    mode: int
    is_dir: bool

    def __str__(self) -> str:
        return f"{'make_dir' if self.is_dir else 'create'} {self.path}"


@dataclass(frozen=True, slots=True)
class Write(Event):
    inode: int
    position: int
    data: bytes

    def __str__(self) -> str:
        return f"write {self.path} [{self.position}:{self.position + len(self.data)}]"


@dataclass(frozen=True, slots=True)
class Truncate(Event):
    inode: int
    size: int

    def __str__(self) -> str:
        return f"truncate {self.path} to {self.size}"


@dataclass(frozen=True, slots=True)
class Rename(Event):
    folder: int
    name: str
    target_folder: int
    target_name: str
    target_path: str
    inode: int
    is_dir: bool

    def __str__(self) -> str:
        return f"rename {self.path} to {self.target_path}"


@dataclass(frozen=True, slots=True)
class Link(Event):
    """One more entry for a file."""

    target_folder: int
    target_name: str
    target_path: str
    inode: int

    def __str__(self) -> str:
        return f"link {self.path} as {self.target_path}"


@dataclass(frozen=True, slots=True)
class Remove(Event):
    folder: int
    name: str
    inode: int

    def __str__(self) -> str:
        return f"remove {self.path}"


@dataclass(frozen=True, slots=True)
class SyncStart(Event):
    """`dropped`: the disk was told to lie about this sync, so it makes nothing durable."""

    inode: int
    is_dir: bool
    dropped: bool

    def __str__(self) -> str:
        return f"{'sync_dir' if self.is_dir else 'sync'} {self.path or '.'} starts"


@dataclass(frozen=True, slots=True)
class SyncEnd(Event):
    """`start` is the index of the `SyncStart` in the log."""

    inode: int
    is_dir: bool
    dropped: bool
    start: int

    def __str__(self) -> str:
        return (
            f"{'sync_dir' if self.is_dir else 'sync'} {self.path or '.'} (started as #{self.start}) returns"
        )


@dataclass(frozen=True, slots=True)
class Mark(Event):
    """A promise that the code under test made at this moment, in the test's own words."""

    value: object

    def __str__(self) -> str:
        return f"mark {self.value!r}"


def marked(marks: Iterable[Mark], kind: type[T]) -> list[T]:
    """The values of the marks that are of this type, in order."""
    return [mark.value for mark in marks if isinstance(mark.value, kind)]


@dataclass(frozen=True, slots=True)
class Base:
    """What was on the disk when recording began; durable by definition."""

    folders: Mapping[int, Mapping[str, int]]
    files: Mapping[int, bytes]
    modes: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Log:
    base: Base
    events: tuple[Event, ...]


def sync_sites(log: Log) -> list[Site]:
    """The distinct places that ask for a sync of a file or a directory, in order of file and line."""
    return sorted({event.site for event in log.events if isinstance(event, SyncStart)})
