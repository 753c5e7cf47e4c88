"""A real Spark cluster on this machine: a standalone master and worker processes, on loopback ports of their own.

    with standalone(tmp_path) as cluster:
        run(pipeline, data_dir=..., once=True, master=cluster.master, settings=cluster.settings)

Tests take it as the fixture `standalone_master`, started once for all of them. A session on it is a driver of
its own: start it in a process of its own, since one process has one session. Executors find the virtual
environment's Python and write below `directory` only. When the block ends no process of the cluster is left,
executors and their Python workers included.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

import penstock
from penstock.spark.archive import archive_for
from penstock.spark.java import cache_dir, find_java
from penstock.spark.jvm import joined

SPARK_HOME = Path(pyspark.__file__).parent
SOURCES = Path(penstock.__file__).parents[1]
PATIENCE = 100.0

# Executors ask for 1 GiB unless told otherwise, and a worker that offers less gets none. It is a number in the
# master's books: what an executor takes is what it uses.
OFFERED = "1g"

_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_QUICK = "-XX:TieredStopAtLevel=1"


@dataclass(frozen=True)
class Standalone:
    """A running cluster."""

    master: str
    """Its URL, `spark://127.0.0.1:PORT`."""
    settings: Mapping[str, str] = field(repr=False)
    """For a session on it: everything here still works without them, only slower."""
    environment: Mapping[str, str]
    """For the process of a driver: with a loopback address it depends on no look-up of the machine's name."""
    workers: tuple[int, ...]
    """The process of each worker; executors are below them."""
    directory: Path

    def executors(self) -> list[psutil.Process]:
        """The executors that run now, each a JVM."""
        below = [child for pid in self.workers for child in psutil.Process(pid).children()]
        return [process for process in below if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())]

    def log(self) -> str:
        """What the daemons and the executors said."""
        said = [*self.directory.glob("*.log"), *self.directory.glob("work-*/app-*/*/stderr")]
        return "\n".join(f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(said))


@contextmanager
def standalone(directory: Path, workers: int = 2, cores: int = 1) -> Iterator[Standalone]:
    """Start a master and its workers, each worker with so many cores."""
    java = find_java(fallback=directory)
    class_path, options = _quick_start(java.runtime, java.version)
    environment = _environment(directory, java.home, class_path, options)
    daemons: list[subprocess.Popen[bytes]] = []

    def daemon(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (directory / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", *arguments],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        daemons.append(started)
        return started

    try:
        daemon("master", "org.apache.spark.deploy.master.Master", *_at("127.0.0.1"))
        _wait(daemons, directory, lambda: bool(_master(directory)))
        url = _master(directory)
        limits = ("--cores", str(cores), "--memory", OFFERED)
        for number in range(workers):
            # An address each: Spark starts no second attempt of a task on the machine of the first.
            where = (*_at(f"127.0.0.{number + 1}"), "--work-dir", str(directory / f"work-{number}"))
            daemon(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *limits, *where, url)
        _wait(daemons, directory, lambda: _registered(directory) == workers)
        yield Standalone(
            master=url,
            settings=_settings(class_path, options),
            environment={"SPARK_LOCAL_IP": "127.0.0.1"},
            workers=tuple(worker.pid for worker in daemons[1:]),
            directory=directory,
        )
    finally:
        _end(daemons)


def _at(host: str) -> tuple[str, ...]:
    return "--host", host, "--port", "0", "--webui-port", "0"


def _quick_start(runtime: Path, version: str) -> tuple[str, str]:
    """The class path and the options by which a JVM starts with the archive of local sessions, if it is built."""
    archive = archive_for(cache_dir(os.environ), runtime, version, SPARK_HOME)
    if archive is None or not archive.usable():
        return "", ""
    return archive.class_path, joined(archive.options_to_use())


def _environment(directory: Path, java: Path, class_path: str, options: str) -> dict[str, str]:
    """What the daemons, and through the workers the executors, are started with."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return kept | {
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")])),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_WORKER_DIR": str(directory / "work"),
        # Read by every JVM below, an executor's too, whatever the session is told.
        "JDK_JAVA_OPTIONS": _QUICK,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_CLASSPATH": class_path,
        "SPARK_DAEMON_JAVA_OPTS": options,
    }


def _settings(class_path: str, options: str) -> dict[str, str]:
    chosen = {"spark.executor.memory": "512m"}
    for role in ("driver", "executor") if class_path else ():
        chosen[f"spark.{role}.extraClassPath"] = class_path
        chosen[f"spark.{role}.extraJavaOptions"] = options
    return chosen


def _master(directory: Path) -> str:
    """The URL that the master has told; empty until it has."""
    told = _MASTER_URL.search((directory / "master.log").read_text())
    return told[1] if told else ""


def _registered(directory: Path) -> int:
    return (directory / "master.log").read_text().count("Registering worker ")


def _wait(daemons: list[subprocess.Popen[bytes]], directory: Path, true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        if any(daemon.poll() is not None for daemon in daemons) or time.monotonic() > deadline:
            said = [path.read_text(errors="replace")[-2000:] for path in directory.glob("*.log")]
            raise AssertionError("the cluster did not start: " + "\n".join(said))
        time.sleep(0.05)


def _end(daemons: list[subprocess.Popen[bytes]]) -> None:
    """End workers, then the master, and all below them; whoever has not gone when asked is killed."""
    below = [child for daemon in daemons for child in _below(daemon.pid)]
    for daemon in reversed(daemons):
        daemon.terminate()
    _, alive = psutil.wait_procs(below, timeout=10)
    for process in alive:
        process.kill()
    for daemon in daemons:
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
