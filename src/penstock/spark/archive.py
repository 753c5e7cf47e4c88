"""The start-up archive: Spark's classes as the JVM has them in memory, so that no start makes them again.

It halves the time to a ready session. When a session that found none has ended, a process of lowest priority makes
one: it starts a session of its own that records, and does there what a pipeline does (`penstock.spark.training`; half
a minute, once for each pair of Java and Spark). Later sessions start with it. No session of a user ever records: a
recording JVM is slower, and takes its time to end.

For Java 25 it is an AOT cache, which the recording JVM leaves: a tenth less work at each start than an archive of
class data. For 17 and 21 it is such an archive, made from a list of classes. What those could leave at their end
(`-XX:ArchiveClassesAtExit`) was tried and dropped: it needs another archive, which the wheel lacks, a truncated one
crashes the JVM, and that a damaged one was refused cannot be told.

An archive only ever costs or saves time. It is written aside and renamed; the JVM checks its sums
and starts without it, silently, if anything differs; what the JVM did not accept is removed. After `_STRIKES` failures
in a row nothing more is tried for that pair. One is made at a time, none for longer than `LONGEST` seconds, and at
most `_KEPT` stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.spark.java import major
from penstock.spark.settings import JAVA_VARIABLES

LONGEST = 900
"""Seconds. With cores to itself a training takes half a minute; with the lowest priority it may have few."""

_STRIKES = 3
_KEPT = 2
_ROOM_ON_DISK = 1 << 30
_ROOM_IN_MEMORY = 2 << 30
_LONGEST_ARGUMENT = 120_000

# The first release with caches that hold linked classes and profiles, and how their names end.
_AHEAD_OF_TIME = 25
_SUFFIXES = (_CACHE, _CLASS_DATA) = (".aot", ".jsa")

# The options that the launcher adds, in a file beside the archive, and the first of them.
_ADDED = ".launcher"
_FIRST_ADDED = "-XX:+IgnoreUnrecognizedVMOptions"

SPARK_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
"""The class that the JVM of a driver runs."""

_MLLIB = "spark-mllib_"

# With sums in the archive and their check at every start, a damaged one is refused rather than used.
_CHECKED = "-XX:+VerifySharedSpaces"

# The variables that would have the training start another Spark, or one on another class path, begin with these.
_NOT_FOR_TRAINING = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_")

_TRAINING = (sys.executable, "-m", "penstock.spark.training")
_IN_BACKGROUND = """\
strikes=$1
shift
( "$@" || printf x >> "$strikes" ) &
"""


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of one Java and one Spark; `path` may not exist yet."""

    path: Path
    runtime: Path
    class_path: str
    left_out: str = ""
    """What follows the class path for whoever may need all of Spark."""

    def usable(self) -> bool:
        return self.path.is_file()

    def given_up(self) -> bool:
        return _size(self._strikes) >= _STRIKES

    def options_to_use(self) -> list[str]:
        """Whether the JVM took it is told by its property `java.vm.info`; never by a word on the terminal."""
        if self._ahead_of_time():
            return [f"-XX:AOTCache={self.path}", _CHECKED, "-Xlog:aot*=off,cds*=off:stderr"]
        return [f"-XX:SharedArchiveFile={self.path}", _CHECKED, "-Xlog:cds*=off:stderr"]

    def options_to_record(self, record: Path, part: Path) -> list[str]:
        """For a JVM with `class_path` and nothing else as its class path."""
        if self._ahead_of_time():
            return [f"-XX:AOTCacheOutput={part}"]
        return [f"-XX:DumpLoadedClassList={record}"]

    def command_to_assemble(self, record: Path, part: Path) -> list[str]:
        """What makes `part` of what was recorded; nothing if the JVM that recorded has done so."""
        if self._ahead_of_time():
            return []
        places = [
            f"-XX:SharedClassListFile={record}",
            f"-XX:SharedArchiveFile={part}",
            "-cp",
            self.class_path,
        ]
        java = self.runtime / "bin" / "java"
        return [str(java), "-Xshare:dump", "-Xmx512m", "-Xlog:disable", _CHECKED, *places]

    def added_by_launcher(self) -> list[str] | None:
        """The options that Spark's launcher gives this Java, as the training saw them; None if it did not."""
        try:
            *added, last = self._added.read_text().splitlines()
        except (OSError, ValueError):
            return None
        return added if last == SPARK_SUBMIT else None  # or it was not written to its end

    def note_added(self, command: Sequence[str]) -> None:
        """Keep what the launcher has put into the command line of a JVM, behind all options that it was asked for."""
        if _FIRST_ADDED in command and SPARK_SUBMIT in command:
            added = command[command.index(_FIRST_ADDED) : command.index(SPARK_SUBMIT) + 1]
            self._added.write_text("".join(f"{option}\n" for option in added))

    def forget_added(self) -> None:
        """A JVM that was started with them did not come up."""
        self._added.unlink(missing_ok=True)

    def accepted(self) -> None:
        """The JVM runs with it: old failures no longer count, and it is the last to be pruned."""
        self._strikes.unlink(missing_ok=True)
        os.utime(self.path)

    def refused(self) -> None:
        """The JVM did not take it: damaged, or made for another one. The session has another made when it ends."""
        self.path.unlink(missing_ok=True)
        self.failed()

    def failed(self) -> None:
        with self._strikes.open("ab") as strikes:
            strikes.write(b"x")

    def build(self, environment: Mapping[str, str]) -> bool:
        """Start a training in the background, unless it makes no sense here and now; says whether it did."""
        if self.usable() or self.given_up() or not sys.executable or not _room(self.path.parent):
            return False
        lock = os.open(self.path.parent / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.usable():  # since the look above
                return False
            self._tidy()
            self._start_training(environment, lock)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True

    def _start_training(self, environment: Mapping[str, str], lock: int) -> None:
        scratch = self.path.with_suffix(".part")
        scratch.mkdir(mode=0o700)
        places = map(str, (scratch, self.path))
        shell = subprocess.Popen(
            ["/bin/sh", "-c", _IN_BACKGROUND, "penstock-archive", str(self._strikes), *_TRAINING, *places],
            cwd=self.path.parent,
            env=_for_training(environment) | {"JAVA_HOME": str(self.runtime)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[lock],  # held until the training is gone, however it goes
        )
        shell.wait()
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PGRP, shell.pid, 19)

    def _tidy(self) -> None:
        """With the lock held: parts belong to trainings that died; of the archives only the newest stay."""
        for part in self.path.parent.glob("*.part"):
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        archives = [file for file in self.path.parent.iterdir() if file.suffix in _SUFFIXES]
        archives.sort(key=lambda file: file.stat().st_mtime)
        for archive in archives[: max(0, len(archives) - _KEPT + 1)]:
            archive.unlink(missing_ok=True)
            archive.with_suffix(_ADDED).unlink(missing_ok=True)

    def _ahead_of_time(self) -> bool:
        return self.path.suffix == _CACHE

    @property
    def _added(self) -> Path:
        return self.path.with_suffix(_ADDED)

    @property
    def _strikes(self) -> Path:
        return self.path.with_suffix(".strikes")


def archive_for(cache: Path | None, java_home: Path, java_version: str, spark_home: Path) -> Archive | None:
    """The archive for this pair; None without a cache directory, or where a path cannot be passed on.

    MLlib is left out. It adds functions to every session that finds it, which takes half a second: for these few it
    starts all of Scala's reflection. The JVM refuses an archive if a jar has changed in size or time, so these are part
    of the name.
    """
    if cache is None:
        return None
    found = sorted((spark_home / "jars").glob("*.jar"), key=_precedence)
    left_out = [jar for jar in found if jar.name.startswith(_MLLIB)]
    jars = [jar for jar in found if jar not in left_out]
    class_path, behind = (":".join(map(str, some)) for some in (jars, left_out))
    directory = cache / "archives"
    if not jars or len(class_path) > _LONGEST_ARGUMENT or ":" in f"{directory}{spark_home}":
        return None
    directory.mkdir(mode=0o700, exist_ok=True)
    seen = hashlib.sha256(java_version.encode())
    for file in [java_home / "lib" / "modules", java_home / "lib" / "server" / "libjvm.so", *jars]:
        status = file.stat() if file.exists() else None
        seen.update(f"{file}\0{status and (status.st_size, status.st_mtime_ns)}\n".encode())
    suffix = _CACHE if (major(java_version) or 0) >= _AHEAD_OF_TIME else _CLASS_DATA
    name = f"java-{java_version}-{seen.hexdigest()[:16]}{suffix}"
    return Archive(path=directory / name, runtime=java_home, class_path=class_path, left_out=behind)


def _precedence(jar: Path) -> tuple[int, str]:
    """Spark's launcher puts slf4j first; then those with most classes, since each search walks the path."""
    often = ("slf4j-api-", "scala-library-", "spark-", "hadoop-client-")
    rank = next((rank for rank, prefix in enumerate(often) if jar.name.startswith(prefix)), len(often))
    return rank, jar.name


def _for_training(environment: Mapping[str, str]) -> dict[str, str]:
    """Without options for the JVM, which would be recorded, and without what leads to another Spark."""
    return {
        name: value
        for name, value in environment.items()
        if name not in JAVA_VARIABLES and not name.startswith(_NOT_FOR_TRAINING)
    }


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
