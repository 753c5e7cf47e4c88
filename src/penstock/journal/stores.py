"""Fragment stores: where closed fragments are kept (reference, 19 "Store URLs").

`FragmentStore` is the contract; `FileStore` keeps it in a directory, `objectstores.py` in a bucket. A file is
named by its *content path* (`Fragment.content_path`), relative to the store; one that is not a clean relative
path is refused, so no name leads out of a store.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from penstock.base import faults
from penstock.base.disk import Buffer, Disk, DiskFile
from penstock.base.errors import CorruptError, UsageError, did_you_mean
from penstock.journal.tokens import ValidationError, check_path, clean_path
from penstock.journal.validation import validate_store

CHUNK = 1 << 20
PARTIAL = ".partial-"
PATH_LENGTH = (1, 4096)
_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system says that has no second names, or has them elsewhere."""

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


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The `find` and `replace` arguments of a store's URL: rewrite the first occurrence in content paths."""

    url: str
    find: str = ""
    replace: str = ""

    def path(self, path: str) -> str:
        """What is stored as `path`, below the store."""
        check_path(path, *PATH_LENGTH)
        rewritten = self._rewritten(path)
        check_path(rewritten, *PATH_LENGTH)
        return rewritten

    def directory(self, directory: str) -> str:
        """What the files of `directory` are stored below."""
        check_path(directory, *PATH_LENGTH)
        # Rewriting sees the path of a file, where a slash follows the journal's name.
        rewritten = self._rewritten(f"{directory}/")
        if not rewritten.endswith("/"):
            raise ValidationError(f"find and replace must leave directories apart ({self.url})")
        check_path(rewritten.removesuffix("/"), *PATH_LENGTH)
        return rewritten.removesuffix("/")

    def _rewritten(self, path: str) -> str:
        return path.replace(self.find, self.replace, 1) if self.find else path


class FragmentStore(ABC):
    """One store. The broker calls it from threads, several at a time; calls block until done.

    Failures are OSError; a file that is not there is FileNotFoundError. Only what is over within seconds is
    retried here: the caller knows whether it may wait. A store opened read-only belongs to another cluster:
    `put` and `remove` raise PermissionError, and nothing else writes.
    """

    url: str
    """The store's URL as the journal's spec has it; its path ends in `/`."""

    read_only: bool = False

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether a whole file is at this content path, durably: the caller may free its own copy. If it is empty, it
        is not."""

    @abstractmethod
    def put(self, path: str, source: Iterable[Buffer], *, content_encoding: str = "") -> None:
        """Store the bytes of `source`; when it returns they are durable, and listed.

        After a failure or a crash the path is as it was, or holds the whole content: never a part of it. A
        file that is already there is replaced. `content_encoding` is told to whoever fetches the signed URL;
        stores that have no such notion ignore it.
        """

    @abstractmethod
    def open(self, path: str, *, position: int = 0) -> BinaryIO:
        """Open for reading, as stored (not decompressed), from `position`. The caller closes it.

        From the end of the file on there is nothing to read, which is no error.
        """

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

    def local_path(self, path: str) -> Path | None:
        """Where the file lies on this machine, if it does."""
        return None

    def can_adopt(self, file: Path) -> bool:
        """Whether a file of this machine may become one of the store without being copied."""
        return False

    def adopt(self, path: str, file: Path) -> bool:
        """Store a file of this machine under another name; False if it has to be copied after all.

        The store has it for good then, as after `put`. Its content must be durable, and stay as it is.
        """
        return False

    def _check_writable(self) -> None:
        if self.read_only:
            raise PermissionError(f"the store of a read-only journal is never written ({self.url})")


class FileStore(FragmentStore):
    """A `file:///prefix/` store: the directory `prefix` below `root`, which must exist.

    A file's content is durable before it gets its name. Its name is durable once the directories down to it
    are synced; since a put can fail, or its process die, just before that, whatever is found (`exists`,
    `list`) is synced again before it is told.

    Only one process may write to the directory: `sweep` removes what an earlier one left half-written. A
    process that only reads passes False.

    With `file_only` a URL of any scheme is taken: its path is the prefix, and whatever else it says is of no
    interest to a directory.
    """

    def __init__(
        self,
        url: str,
        root: Path,
        disk: Disk,
        *,
        sweep: bool = True,
        file_only: bool = False,
        read_only: bool = False,
    ) -> None:
        if validate_store(url) != "file" and not file_only:
            raise ValidationError(f"expected a file:/// store ({url})")
        parts = urlsplit(url)
        self.url = url
        self.read_only = read_only
        self._url_path = parts.path
        arguments = store_arguments(url, None if parts.scheme != "file" else ())
        self._rewrite = Rewrite(url, arguments.get("find", ""), arguments.get("replace", ""))
        self.directory = root / store_prefix(url, parts.path)
        if not self.directory.is_dir():
            raise UsageError(
                f"the directory {self.directory} of the store {url} does not exist",
                hint="create it, or correct the journal's list of stores",
            )
        self._disk = disk
        if sweep and not read_only:
            self.remove_leftovers()

    def path_of(self, path: str) -> Path:
        """Where the file of a content path lies on this machine."""
        return self.directory / self._rewrite.path(path)

    def local_path(self, path: str) -> Path | None:
        return self.path_of(path)

    def exists(self, path: str) -> bool:
        target = self.path_of(path)
        if not target.is_file() or not target.stat().st_size:
            return False
        self._sync_up(target.parent)
        return True

    def put(self, path: str, source: Iterable[Buffer], *, content_encoding: str = "") -> None:
        self._check_writable()
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

    def can_adopt(self, file: Path) -> bool:
        return file.stat().st_dev == self.directory.stat().st_dev

    def adopt(self, path: str, file: Path) -> bool:
        self._check_writable()
        target = self.path_of(path)
        self._make_dirs(target.parent)
        try:
            with faults.step("adopt"):
                self._disk.link(file, target)
        except FileExistsError:
            return self.exists(path)  # another broker was faster
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            return False
        self._sync_up(target.parent)
        return True

    def open(self, path: str, *, position: int = 0) -> BinaryIO:
        file = self.path_of(path).open("rb")
        file.seek(position)
        return file

    def list(self, directory: str) -> Iterator[Listed]:
        top = self.directory / self._rewrite.directory(directory)
        if not top.is_dir():
            self._require_directory()
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
        self._check_writable()
        target = self.path_of(path)
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(target)
        # Also when it was gone: an earlier removal may not have been made durable. Directories stay, since a
        # put may be about to use them.
        if target.parent.is_dir():
            self._disk.sync_dir(target.parent)

    def sign(self, path: str, ttl: timedelta) -> str:
        """`file://`, the URL's path and the content path, without the root: a reader has its own."""
        return f"file://{self._url_path}{quote(self._rewrite.path(path), safe='/=+')}"

    def is_authorization_error(self, error: OSError) -> bool:
        return isinstance(error, PermissionError)

    def _make_dirs(self, directory: Path) -> None:
        """Make what is missing, not synced yet: whoever puts a file there syncs all the way up afterwards."""
        self._require_directory()
        missing = [level for level in (directory, *directory.parents) if not level.is_dir()]
        for level in reversed(missing):
            with contextlib.suppress(FileExistsError):
                self._disk.make_dir(level, 0o750)

    def _require_directory(self) -> None:
        """The store's own directory is not ours to make: if it has gone, so has what is mounted there."""
        if not self.directory.is_dir():
            raise FileNotFoundError(
                errno.ENOENT, f"the directory of the store {self.url} is gone", str(self.directory)
            )

    def _sync_up(self, directory: Path) -> None:
        """Make `directory`'s entries durable, and its own, up to the store's. None is taken to be synced."""
        while True:
            self._disk.sync_dir(directory)
            if directory == self.directory:
                return
            directory = directory.parent

    def remove_leftovers(self, age: float = 0.0) -> None:
        """Remove what a process that died left half-written, so many seconds ago."""
        before = time.time() - age
        for parent, names in _walk(self.directory):
            for name in names:
                if name.startswith(PARTIAL) and parent / name not in _under_way:
                    with contextlib.suppress(FileNotFoundError):
                        if not age or (parent / name).stat().st_mtime < before:
                            self._disk.remove(parent / name)


def _walk(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """The directories from `top` down, each before those in it, with the names of their files.

    One that cannot be read is an error: who took it for empty would begin the journal anew. One that is gone by then
    has nothing.
    """

    def told(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for parent, directories, names in os.walk(top, onerror=told):
        directories.sort()
        yield Path(parent), sorted(names)


def open_store(
    url: str,
    root: Path | None,
    disk: Disk,
    *,
    file_only: bool = False,
    read_only: bool = False,
    sweep: bool = True,
) -> FragmentStore:
    """The store of a URL; UsageError or ValidationError if there cannot be one. No store is asked for it.

    `root` is where `file:` stores live; without one they are refused. `file_only` keeps the stores of every
    scheme there.
    """
    if validate_store(url) == "file" or file_only:
        if root is None:
            raise UsageError(f"the store {url} needs a root directory", hint="give the broker a file root")
        return FileStore(url, root, disk, sweep=sweep, file_only=file_only, read_only=read_only)
    try:
        from penstock.journal.objectstores import ObjectStore
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("obstore"):
            raise
        raise UsageError(
            f"the store {url} needs a package that is not installed", hint="pip install 'penstock[broker]'"
        ) from error
    return ObjectStore(url, read_only=read_only)


def store_arguments(url: str, known: Iterable[str] | None) -> dict[str, str]:
    """The arguments of a store's URL by lower-case name; their names match in any case.

    `known` are those of its scheme, beside `find` and `replace` which all have; any other is refused. With
    None all are taken.
    """
    given = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    if known is not None:
        names = ("find", "replace", *known)
        folded = {name.lower() for name in names}
        for name, _ in given:
            if name.lower() not in folded:
                raise ValidationError(
                    f"unknown argument '{name}' of the store {url}{did_you_mean(name, names)}"
                )
    return {name.lower(): value for name, value in given}


def store_prefix(url: str, path: str) -> str:
    """What the path of a store's URL puts before content paths: "" or a clean path without outer slashes."""
    prefix = unquote(path)
    if clean_path(prefix) != (prefix.removesuffix("/") or "/") or "//" in prefix or "\x00" in prefix:
        raise ValidationError(f"must be a clean path ({url})")
    return prefix.strip("/")
