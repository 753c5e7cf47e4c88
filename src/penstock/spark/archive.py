"""The start-up archive: Spark's classes as the JVM has them in memory, so that no start makes them again.

It halves the time to a ready session. The first session that ends well leaves the list of the classes it
used; a process of lowest priority then builds the archive from it (half a minute, once for each pair of
Java and Spark) and later sessions start with it. Building it inside a session (`-XX:ArchiveClassesAtExit`)
was tried and dropped: it doubles that session's start, and whoever kills a driver waits for the dump.

An archive only ever costs or saves time. It is written aside and renamed; the JVM checks its sums
and starts without it if anything differs; what the JVM did not accept is removed. After `_STRIKES` failures
in a row nothing more is tried for that pair. One build runs at a time, and at most `_KEPT` archives stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_STRIKES = 3
_KEPT = 2
_ROOM_ON_DISK = 1 << 30
_ROOM_IN_MEMORY = 2 << 30
_LONGEST_ARGUMENT = 120_000

# A session that never ran a query has loaded a part of the classes only: not worth keeping for good.
_SIGN_OF_WORK = b"org/apache/spark/sql/execution/streaming/runtime/MicroBatchExecution"

# With sums in the archive and their check at every start, a damaged one is refused rather than used.
_CHECKED = "-XX:+VerifySharedSpaces"

_BUILD = """\
(
  if "$1" -Xshare:dump -Xmx512m -Xlog:disable {checked} \
      -XX:SharedClassListFile="$2" -XX:SharedArchiveFile="$3" -cp "$6"
  then mv -f "$3" "$4"
  else rm -f "$3"; printf x >> "$5"
  fi
  rm -f "$2"
) &
""".replace("{checked}", _CHECKED)


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of one Java and one Spark; `path` may not exist yet."""

    path: Path
    java: Path
    class_path: str

    def usable(self) -> bool:
        return self.path.is_file()

    def given_up(self) -> bool:
        return _size(self._strikes) >= _STRIKES

    def options_to_use(self) -> list[str]:
        return [f"-XX:SharedArchiveFile={self.path}", _CHECKED]

    def options_to_record(self, class_list: Path) -> list[str]:
        return [f"-XX:DumpLoadedClassList={class_list}"]

    def accepted(self) -> None:
        """The JVM runs with it: old failures no longer count, and it is the last to be pruned."""
        self._strikes.unlink(missing_ok=True)
        os.utime(self.path)

    def refused(self) -> None:
        """The JVM did not take it: damaged, or made for another one. The next session records again."""
        self.path.unlink(missing_ok=True)
        with self._strikes.open("ab") as strikes:
            strikes.write(b"x")

    def build(self, class_list: Path) -> bool:
        """Start building in the background, unless it makes no sense here and now; says whether it did."""
        if self.usable() or self.given_up() or not _shows_work(class_list) or not _room(self.path.parent):
            return False
        lock = os.open(self.path.parent / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._tidy()
            self._start_build(class_list, lock)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True

    def _start_build(self, class_list: Path, lock: int) -> None:
        # The session's own directories go away with it; the build outlives them.
        kept_list = self.path.with_suffix(".list.part")
        shutil.copyfile(class_list, kept_list)
        part = self.path.with_suffix(".jsa.part")
        places = [self.java, kept_list, part, self.path, self._strikes]
        shell = subprocess.Popen(
            ["/bin/sh", "-c", _BUILD, "penstock-archive", *map(str, places), self.class_path],
            cwd=self.path.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[lock],  # held until the last process of the build is gone, however it goes
        )
        shell.wait()
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PGRP, shell.pid, 19)

    def _tidy(self) -> None:
        """With the lock held: parts belong to builds that died; of the archives only the newest stay."""
        for part in self.path.parent.glob("*.part"):
            part.unlink(missing_ok=True)
        archives = sorted(self.path.parent.glob("*.jsa"), key=lambda file: file.stat().st_mtime)
        for archive in archives[: max(0, len(archives) - _KEPT + 1)]:
            archive.unlink(missing_ok=True)

    @property
    def _strikes(self) -> Path:
        return self.path.with_suffix(".strikes")


def archive_for(cache: Path | None, java_home: Path, java_version: str, spark_home: Path) -> Archive | None:
    """The archive for this pair; None without a cache directory, or where a path cannot be passed on.

    The JVM refuses an archive if a jar has changed in size or time, so these are part of the name.
    """
    if cache is None:
        return None
    jars = sorted((spark_home / "jars").glob("*.jar"), key=_precedence)
    class_path = ":".join(str(jar) for jar in jars)
    directory = cache / "archives"
    if not jars or len(class_path) > _LONGEST_ARGUMENT or ":" in f"{directory}{spark_home}":
        return None
    directory.mkdir(mode=0o700, exist_ok=True)
    seen = hashlib.sha256(java_version.encode())
    for file in [java_home / "lib" / "modules", java_home / "lib" / "server" / "libjvm.so", *jars]:
        status = file.stat() if file.exists() else None
        seen.update(f"{file}\0{status and (status.st_size, status.st_mtime_ns)}\n".encode())
    name = f"java-{java_version}-{seen.hexdigest()[:16]}.jsa"
    return Archive(path=directory / name, java=java_home / "bin" / "java", class_path=class_path)


def _precedence(jar: Path) -> tuple[int, str]:
    """Spark's launcher puts slf4j first; then those with most classes, since each search walks the path."""
    often = ("slf4j-api-", "scala-library-", "spark-", "hadoop-client-")
    rank = next((rank for rank, prefix in enumerate(often) if jar.name.startswith(prefix)), len(often))
    return rank, jar.name


def _shows_work(class_list: Path) -> bool:
    try:
        return _SIGN_OF_WORK in class_list.read_bytes()
    except OSError:
        return False


def _room(directory: Path) -> bool:
    """Whether disk and memory can spare what a build takes: it is not worth a full disk."""
    if shutil.disk_usage(directory).free < _ROOM_ON_DISK:
        return False
    try:
        memory = Path("/proc/meminfo").read_text()
    except OSError:
        return False
    available = next((line for line in memory.splitlines() if line.startswith("MemAvailable:")), "")
    return int((available.split() or ["", "0"])[1]) * 1024 >= _ROOM_IN_MEMORY


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
