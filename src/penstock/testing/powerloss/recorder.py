"""A disk that works as usual and writes down every step.

Each operation is applied to a real directory and logged under one lock, so the log has the order in which the
steps took effect, whatever threads took them. Only the syncs are not carried out: the directory is scratch,
and what they promise is worked out from the log.

The site of a step is where its method was looked up, not where it was called: in `to_thread(file.sync)` the
thread's stack has no frame of the product left, and every such sync would look like the same one.
"""

from __future__ import annotations

import functools
import itertools
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from penstock.base import disk as disk_module
from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.testing.powerloss.events import (
    ROOT,
    Base,
    Create,
    Event,
    Link,
    Log,
    Mark,
    Remove,
    Rename,
    Site,
    SyncEnd,
    SyncStart,
    Truncate,
    Write,
)

P = ParamSpec("P")
R = TypeVar("R")

_DISK = disk_module.__file__
_HARNESS = os.path.dirname(__file__) + os.sep
_DISK_METHODS = frozenset(name for name in vars(Disk) if not name.startswith("_")) | {"mark"}
_FILE_METHODS = frozenset({"write_at", "copy_from", "truncate", "free", "sync"})


class _Caller(threading.local):
    """The site on whose behalf this thread is inside the disk."""

    site: Site | None = None


_caller = _Caller()


class ProcessKilledError(BaseException):
    """The process is dead: raised by every step inside `killed_after` once its steps are used up."""


class RecordingFile(DiskFile):
    """An open file of a `RecordingDisk`."""

    def __init__(self, disk: RecordingDisk, path: Path, fd: int, inode: int) -> None:
        super().__init__(disk, path, fd)
        self._recorder = disk
        self._inode = inode

    if not TYPE_CHECKING:

        def __getattribute__(self, name):
            found = super().__getattribute__(name)
            return _from_here(found) if name in _FILE_METHODS else found

    def write_at(self, data: Buffer, position: int) -> None:
        size = memoryview(data).nbytes
        with self._recorder.step():
            try:
                super().write_at(data, position)
            finally:
                self._written(position, size)

    def copy_from(self, source: Path, position: int) -> int:
        with self._recorder.step():
            size = os.stat(source).st_size
            try:
                return super().copy_from(source, position)
            finally:
                self._written(position, size)

    def truncate(self, size: int) -> None:
        with self._recorder.step():
            super().truncate(size)
            self._recorder.append(Truncate(here(), self._name(), self._inode, size))

    def free(self, position: int, size: int) -> None:
        with self._recorder.step():
            super().free(position, size)
            self._written(position, size)

    def sync(self) -> None:
        os.fstat(self.fileno())  # a closed file must fail here as it would in production
        self._recorder.record_sync(self._name(), self._inode, is_dir=False)

    def _written(self, position: int, size: int) -> None:
        # Read back rather than believed: a write that failed half-way left something behind.
        data = self.read_at(size, position)
        if data:
            self._recorder.append(Write(here(), self._name(), self._inode, position, data))

    def _name(self) -> str:
        return "/".join(self._recorder.parts(self.path))


class RecordingDisk(Disk):
    """Records what is done below `root`; what is there already counts as durable.

    `drop_sync` makes the disk lie: syncs asked for at that site are logged but make nothing durable.
    `during_sync` is called with the path, outside the lock, between start and end of each sync: there a test
    can place the steps of other threads, or raise and so make the sync fail.
    """

    def __init__(
        self,
        root: Path,
        *,
        drop_sync: Site | None = None,
        during_sync: Callable[[Path], None] | None = None,
    ) -> None:
        self.root = Path(os.path.abspath(root))
        self.lock = threading.RLock()
        self._drop = drop_sync
        self._steps_to_live: int | None = None
        self._of_the_living: list[RecordingFile] | None = None
        self.during_sync = during_sync
        self._inodes = itertools.count(ROOT)
        self._names: dict[int, dict[str, int]] = {}
        self._events: list[Event] = []
        self._base = self._snapshot()

    if not TYPE_CHECKING:

        def __getattribute__(self, name):
            found = super().__getattribute__(name)
            return _from_here(found) if name in _DISK_METHODS else found

    @property
    def log(self) -> Log:
        """What was recorded so far."""
        with self.lock:
            return Log(self._base, tuple(self._events))

    def mark(self, value: object) -> None:
        """Note a promise made at this moment; `verify` gets the marks that came before the cut."""
        with self.step():
            self.append(Mark(here(), "", value))

    def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
        with self.step():
            folder, name = self._locate(path)
            if os.path.lexists(path):
                inode = self._inode(folder, name, path)
                return self._opened(RecordingFile(self, path, super().open(path).fileno(), inode))
            fd = super().open(path, create=create, mode=mode).fileno()
            inode = self._names[folder][name] = next(self._inodes)
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            self.append(Create(here(), self._text(path), folder, name, inode, mode, is_dir=False))
            return self._opened(RecordingFile(self, path, fd, inode))

    def _opened(self, file: RecordingFile) -> RecordingFile:
        if self._of_the_living is not None:
            self._of_the_living.append(file)
        return file

    def make_dir(self, path: Path, mode: int) -> None:
        with self.step():
            folder, name = self._locate(path)
            super().make_dir(path, mode)
            inode = self._names[folder][name] = next(self._inodes)
            self._names[inode] = {}
            mode = stat.S_IMODE(os.stat(path).st_mode)
            self.append(Create(here(), self._text(path), folder, name, inode, mode, is_dir=True))

    def rename(self, source: Path, target: Path) -> None:
        with self.step():
            folder, name = self._locate(source)
            target_folder, target_name = self._locate(target)
            super().rename(source, target)
            inode = self._inode(folder, name, source)
            if self._names[target_folder].get(target_name) == inode:
                return  # of two names of one file neither goes
            del self._names[folder][name]
            self._names[target_folder][target_name] = inode
            self.append(
                Rename(
                    here(),
                    self._text(source),
                    folder,
                    name,
                    target_folder,
                    target_name,
                    self._text(target),
                    inode,
                    is_dir=inode in self._names,
                )
            )

    def link(self, source: Path, target: Path) -> None:
        with self.step():
            inode = self._inode(*self._locate(source), source)
            folder, name = self._locate(target)
            super().link(source, target)
            self._names[folder][name] = inode
            self.append(Link(here(), self._text(source), folder, name, self._text(target), inode))

    def remove(self, path: Path) -> None:
        with self.step():
            folder, name = self._locate(path)
            super().remove(path)
            inode = self._inode(folder, name, path)
            del self._names[folder][name]
            self.append(Remove(here(), self._text(path), folder, name, inode))

    def sync_dir(self, path: Path) -> None:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))  # fails as production would
        if self.root.absolute().is_relative_to(path.absolute()) and path.absolute() != self.root.absolute():
            return  # above the directory under recording, which counts as durable
        with self.lock:
            inode = self._folder(self.parts(path), path)
        self.record_sync(self._text(path), inode, is_dir=True)

    def record_sync(self, text: str, inode: int, *, is_dir: bool) -> None:
        """Log the start and the end of a sync; for the files of this disk."""
        site = here()
        dropped = site == self._drop
        with self.step():
            start = len(self._events)
            self.append(SyncStart(site, text, inode, is_dir, dropped))
        if self.during_sync is not None:
            self.during_sync(self.root / text)
        else:
            time.sleep(0)  # lets other threads in, as a real sync does
        with self.step():
            self.append(SyncEnd(site, text, inode, is_dir, dropped, start))

    @contextmanager
    def killed_after(self, steps: int) -> Iterator[None]:
        """Run a process that is killed after so many steps; what follows is its successor on the same disk.

        The successor finds what the dead one left in the cache of the operating system, durable or not, and a
        promise it makes about that is worth nothing before it has synced it. Threads of the dead process must
        have ended when the block does; the files it had opened are closed, as a real death would.
        """
        self._steps_to_live, self._of_the_living = steps, []
        try:
            yield
        except ProcessKilledError:
            pass
        finally:
            for file in self._of_the_living:
                file.close()
            self._steps_to_live, self._of_the_living = None, None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Take a step of the process under recording: alone, and only while it lives."""
        with self.lock:
            if self._steps_to_live is not None:
                if self._steps_to_live <= 0:
                    raise ProcessKilledError
                self._steps_to_live -= 1
            yield

    def append(self, event: Event) -> None:
        """Log a step that has just taken effect; for the files of this disk, inside `step`."""
        self._events.append(event)

    def parts(self, path: Path) -> tuple[str, ...]:
        """The path below the root; a step outside it would escape the recording, so it is refused."""
        absolute = Path(os.path.abspath(path))
        if not absolute.is_relative_to(self.root):
            raise ValueError(f"{path} is outside {self.root}, the directory under recording")
        return absolute.relative_to(self.root).parts

    def _text(self, path: Path) -> str:
        return "/".join(self.parts(path))

    def _locate(self, path: Path) -> tuple[int, str]:
        parts = self.parts(path)
        if not parts:
            raise ValueError(f"{path} is the directory under recording itself; use one below it")
        if not os.path.isdir(path.parent):
            raise FileNotFoundError(f"{path.parent} is not a directory")
        return self._folder(parts[:-1], path), parts[-1]

    def _folder(self, parts: tuple[str, ...], path: Path) -> int:
        inode = ROOT
        for part in parts:
            inode = self._inode(inode, part, path)
        return inode

    def _inode(self, folder: int, name: str, path: Path) -> int:
        inode = self._names.get(folder, {}).get(name)
        if inode is None:
            raise AssertionError(
                f"{path}: {name!r} was made or moved beside the disk under recording; "
                f"let all steps that a promise rests on go through the Disk"
            )
        return inode

    def _snapshot(self) -> Base:
        files: dict[int, bytes] = {}
        modes: dict[int, int] = {}

        def visit(path: str) -> int:
            inode = next(self._inodes)
            names = self._names[inode] = {}
            modes[inode] = stat.S_IMODE(os.stat(path).st_mode)
            for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    names[entry.name] = visit(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    names[entry.name] = number = next(self._inodes)
                    files[number] = Path(entry.path).read_bytes()
                    modes[number] = stat.S_IMODE(entry.stat().st_mode)
            return inode

        visit(str(self.root))
        return Base({inode: dict(names) for inode, names in self._names.items()}, files, modes)


def here() -> Site:
    """The site of the step under way in this thread."""
    return _caller.site or _where(sys._getframe(1))


def _from_here(method: Callable[P, R]) -> Callable[P, R]:
    """Bind the place where a method is looked up to the calls made through it."""
    site = _where(sys._getframe(2))

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        before, _caller.site = _caller.site, site
        try:
            return method(*args, **kwargs)
        finally:
            _caller.site = before

    return call


def _where(frame: FrameType | None) -> Site:
    helper = ""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _DISK:
            helper = helper or f"{code.co_name}:{frame.f_lineno}"
            if _caller.site is not None:
                return replace(_caller.site, helper=helper)
        elif not code.co_filename.startswith(_HARNESS):
            return Site(code.co_filename, frame.f_lineno, code.co_qualname, helper)
        frame = frame.f_back
    return Site("?", 0, "?", helper)
