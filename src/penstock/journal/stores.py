"""Fragment stores: where closed fragments are kept (reference, 19 "Store URLs").

`FragmentStore` is the contract; `FileStore` keeps it in a directory. A file is named by its *content path*
(`Fragment.content_path`), relative to the store; one that is not a clean relative path is refused, so no
name leads out of a store.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.base.errors import CorruptError, UsageError, did_you_mean
from penstock.journal.tokens import ValidationError, check_path
from penstock.journal.validation import validate_store

CHUNK = 1 << 20
PARTIAL = ".partial-"
PATH_LENGTH = (1, 4096)

# Tells the files this process is writing, maybe through another store of the same root, from those that a
# dead one left behind.
_under_way: set[Path] = set()


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of a listing: its path below the listed directory, its size, its mod time in unix seconds."""

    path: str
    size: int
    mod_time: int


@dataclass(frozen=True, slots=True)
class LocalSpan:
    """`length` bytes of a local file from `position`, as a source for `put`; can be read more than once."""

    file: DiskFile
    position: int
    length: int

    def __iter__(self) -> Iterator[bytes]:
        position, end = self.position, self.position + self.length
        while position < end:
            chunk = self.file.read_at(min(CHUNK, end - position), position)
            if not chunk:
                raise CorruptError(
                    f"the file ends here, {end - position} bytes early",
                    where=str(self.file.path),
                    position=position,
                )
            yield chunk
            position += len(chunk)


class FragmentStore(ABC):
    """One store. The broker calls it from threads, several at a time; calls block until done.

    Failures are OSError; a file that is not there is FileNotFoundError. Nothing is retried here: the caller
    knows whether it may wait.
    """

    url: str
    """The store's URL as the journal's spec has it; ends in `/`."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether a whole file is at this content path, durably: the caller may free its own copy."""

    @abstractmethod
    def put(self, path: str, source: Iterable[Buffer], *, content_encoding: str = "") -> None:
        """Store the bytes of `source`; when it returns they are durable, and listed.

        After a failure or a crash the path is as it was, or holds the whole content: never a part of it. A
        file that is already there is replaced. `content_encoding` is told to whoever fetches the signed URL;
        stores that have no such notion ignore it.
        """

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Open for reading, as stored (not decompressed). The caller closes it."""

    @abstractmethod
    def list(self, directory: str) -> Iterator[Listed]:
        """All files below `directory` (a journal's name), at any depth; none if there is no such directory.

        What is listed is durable, as with `exists`. Files put or removed meanwhile may or may not be listed.
        What is not a fragment is listed as well: the caller tells by the name.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file, durably. If it is not there that is no error: an earlier try may have crashed."""

    @abstractmethod
    def sign(self, path: str, ttl: timedelta) -> str:
        """A URL by which a reader without credentials can fetch the file for `ttl`."""

    @abstractmethod
    def is_authorization_error(self, error: OSError) -> bool:
        """Whether the store refused us, rather than failed."""


class FileStore(FragmentStore):
    """A `file:///prefix/` store: the directory `prefix` below `root`, which must exist.

    A file's content is durable before it gets its name. Its name is durable once the directories down to it
    are synced; since a put can fail, or its process die, just before that, whatever is found (`exists`,
    `list`) is synced again before it is told.

    URL arguments `find` and `replace` rewrite the first occurrence in every content path. Only one process
    may write to the directory: `sweep` removes what an earlier one left half-written. A process that only
    reads passes False.
    """

    def __init__(self, url: str, root: Path, disk: Disk, *, sweep: bool = True) -> None:
        if validate_store(url) != "file":
            raise ValidationError(f"expected a file:/// store ({url})")
        parts = urlsplit(url)
        self.url = url
        self._url_path = parts.path
        self._find, self._replace = _rewrite_arguments(url, parts.query)
        self.directory = root / unquote(parts.path).strip("/")
        if not self.directory.is_dir():
            raise UsageError(
                f"the directory {self.directory} of the store {url} does not exist",
                hint="create it, or correct the journal's list of stores",
            )
        self._disk = disk
        if sweep:
            self._remove_leftovers()

    def path_of(self, path: str) -> Path:
        """Where the file of a content path lies on this machine."""
        return self.directory / self._rewritten(path)

    def exists(self, path: str) -> bool:
        target = self.path_of(path)
        if not target.is_file():
            return False
        self._sync_up(target.parent)
        return True

    def put(self, path: str, source: Iterable[Buffer], *, content_encoding: str = "") -> None:
        target = self.path_of(path)
        self._make_dirs(target.parent)
        partial = target.with_name(f"{PARTIAL}{secrets.token_hex(8)}")
        _under_way.add(partial)
        try:
            with self._disk.open(partial, create=True) as file:
                position = 0
                for chunk in source:
                    file.write_at(chunk, position)
                    position += memoryview(chunk).nbytes
                file.sync()
            self._disk.rename(partial, target)
        except BaseException:
            # The first failure is the one to tell; what cannot be removed now is swept at the next start.
            with contextlib.suppress(OSError):
                self._disk.remove(partial)
            raise
        finally:
            _under_way.discard(partial)
        self._sync_up(target.parent)

    def open(self, path: str) -> BinaryIO:
        return self.path_of(path).open("rb")

    def list(self, directory: str) -> Iterator[Listed]:
        check_path(directory, *PATH_LENGTH)
        # Rewriting sees the path of a file, where a slash follows the journal's name.
        rewritten = self._rewrite(f"{directory}/")
        if not rewritten.endswith("/"):
            raise ValidationError(f"find and replace must leave directories apart ({self.url})")
        top = self.directory / self._checked(rewritten.removesuffix("/"))
        if not top.is_dir():
            return
        self._sync_up(top.parent)
        for parent, names in _walk(top):
            self._disk.sync_dir(parent)  # after its names were read: all of them, or more, are durable then
            for name in names:
                if name.startswith(PARTIAL):
                    continue
                file = parent / name
                with contextlib.suppress(FileNotFoundError):
                    stat = file.stat()
                    yield Listed(file.relative_to(top).as_posix(), stat.st_size, int(stat.st_mtime))

    def remove(self, path: str) -> None:
        target = self.path_of(path)
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(target)
        # Also when it was gone: an earlier removal may not have been made durable. Directories stay, since a
        # put may be about to use them.
        if target.parent.is_dir():
            self._disk.sync_dir(target.parent)

    def sign(self, path: str, ttl: timedelta) -> str:
        """`file://`, the URL's path and the content path, without the root: a reader has its own."""
        return f"file://{self._url_path}{quote(self._rewritten(path), safe='/=+')}"

    def is_authorization_error(self, error: OSError) -> bool:
        return isinstance(error, PermissionError)

    def _rewrite(self, path: str) -> str:
        return path.replace(self._find, self._replace, 1) if self._find else path

    def _rewritten(self, path: str) -> str:
        check_path(path, *PATH_LENGTH)
        return self._checked(self._rewrite(path))

    def _checked(self, path: str) -> str:
        check_path(path, *PATH_LENGTH)
        return path

    def _make_dirs(self, directory: Path) -> None:
        """Make what is missing, not synced yet: whoever puts a file there syncs all the way up afterwards."""
        missing = [level for level in (directory, *directory.parents) if not level.is_dir()]
        for level in reversed(missing):
            with contextlib.suppress(FileExistsError):
                self._disk.make_dir(level, 0o750)

    def _sync_up(self, directory: Path) -> None:
        """Make `directory`'s entries durable, and its own, up to the store's. None is taken to be synced."""
        while True:
            self._disk.sync_dir(directory)
            if directory == self.directory:
                return
            directory = directory.parent

    def _remove_leftovers(self) -> None:
        for parent, names in _walk(self.directory):
            for name in names:
                if name.startswith(PARTIAL) and parent / name not in _under_way:
                    with contextlib.suppress(FileNotFoundError):
                        self._disk.remove(parent / name)


def _walk(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """The directories from `top` down, each before those in it, with the names of their files."""
    for parent, directories, names in os.walk(top):
        directories.sort()
        yield Path(parent), sorted(names)


def open_store(url: str, root: Path | None, disk: Disk) -> FragmentStore:
    """The store of a URL. `root` is where `file:` stores live; without one they are refused."""
    scheme = validate_store(url)
    if scheme != "file":
        raise UsageError(f"this version keeps fragments in file:/// stores only, not in {scheme}: ({url})")
    if root is None:
        raise UsageError(f"the store {url} needs a root directory", hint="give the broker a file root")
    return FileStore(url, root, disk)


def _rewrite_arguments(url: str, query: str) -> tuple[str, str]:
    """The `find` and `replace` of a URL; their names match in any case, and no other is known."""
    arguments = {name.lower(): value for name, value in parse_qsl(query, keep_blank_values=True)}
    for name in arguments:
        if name not in ("find", "replace"):
            suggestion = did_you_mean(name, ("find", "replace"))
            raise ValidationError(f"unknown argument '{name}' of the store {url}{suggestion}")
    return arguments.get("find", ""), arguments.get("replace", "")
