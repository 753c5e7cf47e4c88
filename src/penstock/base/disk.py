"""The disk, as everything that promises durability sees it.

All writes that a promise rests on go through a `Disk`: positioned writes, truncation, sync of a file,
creation, rename, link, removal, and sync of a directory. Production uses this class as it is; the power-loss
harness (`penstock.testing.powerloss`) subclasses it, records every step, and rebuilds the disk as it may
look after the power went at any of them.

What a caller may assume after power loss, and nothing more:
- bytes written before a `sync` of that file that returned are there;
- an entry (created, renamed, linked, removed) is as the directory was at its last `sync_dir` that returned; a file
  moved from one directory to another may have both names until both are synced, but is never lost;
- of what came later any part may be there, in any order, cut anywhere.

That holds across processes too: what a restarted process reads may exist only in memory, left there by one that
died before its sync. Whoever builds on it syncs it first.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

Buffer = bytes | bytearray | memoryview

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_WRITE_OUT = 4 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class DiskFile:
    """An open file with positioned reads and writes. Not thread-safe for overlapping writes."""

    def __init__(self, disk: Disk, path: Path, fd: int) -> None:
        self.disk = disk
        self.path = path
        self._fd = fd
        self._failure: OSError | None = None

    def fileno(self) -> int:
        return self._fd

    def write_at(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`; raises OSError (for one: disk full) with the file partly written."""
        view = memoryview(data).cast("B")
        while view:
            written = os.pwrite(self._fd, view, position)
            view = view[written:]
            position += written

    def read_at(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        chunks: list[bytes] = []
        while size:
            chunk = os.pread(self._fd, size, position)
            if not chunk:
                break
            chunks.append(chunk)
            size -= len(chunk)
            position += len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def copy_from(self, source: Path, position: int) -> int:
        """Copy the whole of `source` to `position`, inside the kernel where it can; returns its size.

        What is there goes to the disk while the rest is copied, so that the next sync has less to do.
        """
        with open(source, "rb", buffering=0) as file:
            size, done = os.fstat(file.fileno()).st_size, 0
            with contextlib.suppress(OSError):  # file systems that cannot: copied by hand below
                while done < size:
                    wanted = min(size - done, _WRITE_OUT)
                    copied = os.copy_file_range(file.fileno(), self._fd, wanted, done, position + done)
                    if not copied:
                        break
                    self.start_writing_out(position + done, copied)
                    done += copied
            file.seek(done)
            while chunk := file.read(1 << 20):
                self.write_at(chunk, position + done)
                done += len(chunk)
        return done

    def start_writing_out(self, position: int, size: int) -> None:
        """Have the kernel begin to write these bytes to the disk, so that the next sync has less to do. No promise."""
        os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)

    def read_anew(self, position: int = 0, size: int = 0) -> None:
        """After a sync: have the next reads of these bytes (0: to the end) come from the disk, and not from memory.

        Of what an earlier process could not sync the kernel may have forgotten that it was never written: our own sync
        then succeeds without it, and memory still shows it. No promise, but what Linux does with pages nobody uses.
        """
        os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def free(self, position: int, size: int) -> None:
        """Give the room of these bytes back; they read as zeros then. OSError where the file system cannot."""
        where = (ctypes.c_int64(position), ctypes.c_int64(size))
        if _libc.fallocate(self._fd, _KEEP_SIZE | _PUNCH_HOLE, *where):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(self.path))

    def sync(self) -> None:
        """Return once the content, and the size, are on stable storage.

        An error is final. The kernel may have dropped the pages it could not write, so that a second try would
        succeed without them; hence it fails as well.
        """
        if self._failure is not None:
            raise self._failure
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._failure = error
            raise

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> DiskFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Disk:
    """The real disk. One instance serves a process; it keeps no state."""

    def open(self, path: Path, *, create: bool = False, mode: int = 0o640) -> DiskFile:
        """Open for reading and writing; `create` makes the file if it is not there."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return DiskFile(self, path, os.open(path, flags, mode))

    def make_dirs(self, path: Path, mode: int = 0o750) -> None:
        """Make `path` and its missing parents, each durable in the directory above it.

        Also when it is there: a process that died between making it and the sync left it so. Directories are
        made and synced from the top, so no more than the lowest one can be in doubt.
        """
        if not path.is_dir():
            self.make_dirs(path.parent, mode)
            try:
                self.make_dir(path, mode)
            except FileExistsError:
                if not path.is_dir():
                    raise  # something else has the name; otherwise another thread was faster
        if os.access(path.parent, os.W_OK):  # where we could not have made it, it is not ours to sync
            self.sync_dir(path.parent)

    def make_dir(self, path: Path, mode: int) -> None:
        os.mkdir(path, mode)

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` by `source`, atomically for other processes; durable after `sync_dir`."""
        os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, which nothing has yet; durable after `sync_dir`."""
        os.link(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def sync_dir(self, path: Path) -> None:
        """Return once the entries of this directory are on stable storage."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace_file(self, path: Path, content: Buffer, mode: int = 0o640) -> None:
        """Give `path` this content so that after a crash it holds the old or the new one, whole."""
        aside = path.with_name(f".{path.name}.partial")
        with contextlib.suppress(FileNotFoundError):
            self.remove(aside)  # left by a crash, perhaps with another mode
        with self.open(aside, create=True, mode=mode) as file:
            file.write_at(content, 0)
            file.sync()
        self.rename(aside, path)
        self.sync_dir(path.parent)

    def entries(self, path: Path) -> Iterator[Path]:
        """The entries of a directory in name order; none if it is not there."""
        if not path.is_dir():
            return
        yield from sorted(path.iterdir())
