"""The data directory of an embedded broker: what is in it, which version wrote it, who owns it now.

    VERSION          format number and the directory's identity, written when the directory is made or taken over
    LOCK             held (flock) by the owner for as long as it lives; tells its pid and command
    broker.sock      the broker's socket, mode 0600; elsewhere if the path would be too long for one
    keyspace         the local key space: journals and their specs
    spools/JOURNAL/#/BEGIN….spool     fragments under construction, or not yet in the store
    fragments/JOURNAL/BEGIN-END-SUM   closed fragments: the root of the `file:///` store
    index/           caches derived from journals; may be deleted
    scratch/         what Spark and staging need while running; cleared at start

Only the lock's holder touches these files. Others go through the socket, except that processes of the same
user may read committed bytes of spools and fragments.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import sys
import tempfile
import time
import uuid
from pathlib import Path

import msgspec

from penstock.base.disk import Disk
from penstock.base.errors import CorruptError, InUseError, PenstockError, UsageError

FORMAT = 2
"""2: commit records behind the content of spools. A version that looks for them in front would take these for empty."""
_SOCKET_PATH_LIMIT = 100
_LOCK_POLL = 0.05
_NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EEXIST, errno.ENOTDIR})
"""What a path is refused with, for good, where a directory cannot be."""


class Version(msgspec.Struct, frozen=True):
    """Content of the VERSION file."""

    format: int
    id: str
    """32 hex digits, made with the directory; the identity of its key space."""


class Owner(msgspec.Struct, frozen=True):
    """Content of the LOCK file: who holds it, in words, and whether it is a command that has it for a moment."""

    pid: int
    command: str
    passing: bool = False


class DisplacedError(PenstockError):
    """A data directory is no longer where its owner took it: what it wrote from now on would be in none, or in two."""

    exit_code = 5


class DataDir:
    """Paths of a data directory. Making one touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()

    @property
    def exists(self) -> bool:
        return (self.path / "VERSION").exists()

    @property
    def is_free(self) -> bool:
        """Whether there is a data directory, or could be."""
        return self.exists or not self.path.exists() or not self._stray()

    def _stray(self) -> list[str]:
        """What stands in a directory that is none of ours."""
        return [entry.name for entry in self.path.iterdir() if entry.name not in ("LOCK", ".VERSION.partial")]

    @property
    def keyspace(self) -> Path:
        return self.path / "keyspace"

    @property
    def fragments(self) -> Path:
        return self.path / "fragments"

    @property
    def index(self) -> Path:
        return self.path / "index"

    @property
    def scratch(self) -> Path:
        return self.path / "scratch"

    def spools(self, journal: str) -> Path:
        """`#` cannot occur in a journal's name, so no journal's folder can be another's spool folder."""
        return self.path / "spools" / journal / "#"

    @property
    def socket(self) -> Path:
        """The same path for everyone who asks: in the directory, or named after it if that is too long."""
        inside = self.path / "broker.sock"
        if len(os.fsencode(inside)) <= _SOCKET_PATH_LIMIT:
            return inside
        name = hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:24]
        return Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}" / f"{name}.sock"

    def prepare_socket(self) -> Path:
        """Clear the socket's place, in a folder where nobody else can put one; returns its path."""
        folder = self.socket.parent
        if folder != self.path:
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.stat(follow_symlinks=False)
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
                raise PenstockError(
                    f"{folder} is to hold the broker's socket, but others can write to it or read it",
                    hint="remove it, or use a data directory with a shorter path",
                )
        self.socket.unlink(missing_ok=True)
        return self.socket

    def version(self) -> Version:
        """What the VERSION file says; refuses formats that this version of Penstock does not know."""
        path = self.path / "VERSION"
        try:
            version = msgspec.json.decode(path.read_bytes(), type=Version)
        except FileNotFoundError:
            raise UsageError(
                f"no data directory at {self.path}", hint="run a pipeline first, or name one with --data-dir"
            ) from None
        except msgspec.DecodeError as error:
            raise CorruptError(f"not a version file ({error})", where=str(path), position=0) from None
        if version.format > FORMAT:
            raise CorruptError(
                f"format {version.format}, this version of Penstock reads up to {FORMAT}",
                where=str(path),
                position=0,
                hint="use the newer Penstock that wrote it",
            )
        return version

    def create(self, disk: Disk) -> Version:
        """Make the directory if it is not there; its version in any case, durable before anything rests on it.

        A directory of an earlier format is read as it is, and belongs to this one from now on.
        """
        try:
            str(self.path).encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"the path {self.path} is not UTF-8, and clients are told of it as text",
                hint="name another directory with --data-dir",
            ) from None
        if self.exists:
            disk.sync_dir(self.path)  # whoever made it may have died before that
            version = self.version()
            if version.format == FORMAT:
                return version
            version = msgspec.structs.replace(version, format=FORMAT)
        else:
            disk.make_dirs(self.path, 0o700)
            stray = self._stray()
            if stray:
                raise UsageError(
                    f"{self.path} is not a data directory and not empty (it holds {stray[0]})",
                    hint="name an empty or new directory",
                )
            version = Version(FORMAT, uuid.uuid4().hex)
        disk.replace_file(self.path / "VERSION", msgspec.json.encode(version))
        return version

    def refuse(self, error: OSError) -> None:
        """Raise what an error of the system means if it says that the directory cannot be ours."""
        if error.errno in _NOT_OURS:
            raise UsageError(
                f"cannot use {self.path} as a data directory: {error.filename}: {error.strerror}",
                hint="name one that this user can write to, with --data-dir or PENSTOCK_DATA_DIR; "
                "what a command of another user, root say, has left in it must be given back (chown -R)",
            ) from error

    def refuse_lost_keyspace(self) -> None:
        """Journals are in the key space before they have spools: spools alone are what somebody left over."""
        if (self.path / "spools").exists() and not self.keyspace.exists():
            raise CorruptError(
                "the key space is gone, and with it which journals there are and what they are",
                where=str(self.keyspace),
                position=0,
                hint="bring it back from a backup; the directory of a broker of a cluster is served with --etcd",
            )

    def lock_file(self) -> tuple[int, int] | None:
        """Which file has the lock's name now, by device and number; None if there is none."""
        try:
            found = (self.path / "LOCK").stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def displaced(self, ours: tuple[int, int] | None) -> DisplacedError | None:
        """What to say if the file that we hold the lock of is not here any more; None while it is."""
        if ours is None or self.lock_file() == ours:
            return None
        return DisplacedError(
            f"the data directory {self.path}, or the file LOCK in it, was moved, removed or replaced "
            "while this process had it",
            hint="bring the directory back to its place, and start again: it has all that was acknowledged before",
        )

    def owner(self) -> Owner | None:
        """Who holds the lock now, or None."""
        try:
            fd = os.open(self.path / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                return msgspec.json.decode(os.read(fd, 4096), type=Owner)
            except msgspec.DecodeError:
                return Owner(0, "another process")
        finally:
            os.close(fd)
        return None


class Lock:
    """The exclusive lock on a data directory, released by the kernel however the process ends."""

    def __init__(
        self, directory: DataDir, disk: Disk, patience: float = 0.0, *, passing: bool = False
    ) -> None:
        """Take the lock, waiting up to `patience` seconds for a command that holds it for a moment.

        `passing` says that we are such a one. The directory is made if need be, and through `disk`, since all that is
        in it will rest on that.
        """
        try:
            disk.make_dirs(directory.path, 0o700)
            self._fd = os.open(directory.path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            directory.refuse(error)
            raise
        try:
            self._take(directory, time.monotonic() + patience)
        except BaseException:
            os.close(self._fd)
            raise
        command = " ".join(["penstock", *sys.argv[1:]]).encode("utf-8", "backslashreplace").decode()[:1000]
        owner = msgspec.json.encode(Owner(os.getpid(), command, passing))
        with contextlib.suppress(OSError):  # a full disk: the lock holds, only nobody can say whose it is
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, owner, 0)

    def _take(self, directory: DataDir, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise in_use(directory) from None
                time.sleep(_LOCK_POLL)

    def release(self) -> None:
        """Let go; a second time does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
            os.close(fd)


def in_use(directory: DataDir) -> InUseError:
    """The error a second owner gets."""
    owner = directory.owner()
    who = f"process {owner.pid} ({owner.command})" if owner and owner.pid else "another process"
    return InUseError(
        f"the data directory {directory.path} is in use by {who}",
        hint="wait for it or stop it; `penstock status` works meanwhile; or use another --data-dir",
    )
