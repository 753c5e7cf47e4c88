"""The Spark session.

`session` starts a JVM on a Java that it finds (`penstock.spark.java`), quietly: Spark logs to `spark.log` in
`scratch` and nothing to the terminal; what it writes lands in `scratch` and nothing in the current directory.
`stop` ends the session and the JVM. If the driver is killed instead, the JVM sees its standard input end
and goes by itself within seconds; until then its tasks may still run, so what guards a sink against
an old run must not be the death of that run.

Checkpoints on a local disk use Spark's manager on the Hadoop `FileSystem`: about 0.1 s less for each batch.
Like the default it writes aside and renames. `tests/spark/test_checkpoint_manager.py` kills queries in the
middle of such writes, and every restart on the same directory went on. It syncs nothing, nor does the
default: power loss may tear a checkpoint. Penstock never reads one again after a crash.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import re
import shutil
import signal
import socket
import socketserver
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.base.errors import PenstockError, UsageError
from penstock.spark.archive import SPARK_SUBMIT, Archive, archive_for
from penstock.spark.home import make_home, start_by_launcher, start_directly
from penstock.spark.java import Java, cache_dir, find_java
from penstock.spark.jvm import Jvm, JvmFailedError, environment, joined, launch
from penstock.spark.settings import (
    JAVA_VARIABLES,
    LOCAL,
    LOG_SETTINGS,
    Places,
    java_options,
    master_url,
    refuse_reserved,
    spark_settings,
)

log = logging.getLogger(__name__)

SPARK_HOME = Path(pyspark.__file__).parent

_SETTINGS_FILE = "log4j2.properties"

# What the JVM must know before it runs. All else is set inside it: a command line is open to every user of
# the machine, and a setting may be a password.
_ON_COMMAND_LINE = re.compile(r"spark\.(?:master|driver\..*|jars.*|files|archives|submit\..*)")

# From this heap on the JVM addresses objects differently, and an archive made by a smaller one does not fit.
_ARCHIVE_HEAP_LIMIT = 32 << 30

# Options of others with which it would not take the archive either: for modules, agents, objects of another layout.
_ANOTHER_JVM = re.compile(
    r"(?:^|\s)--|agent|-Xshare|Shared|AOT|Compress|Compact|ObjectAlignment|UseZGC|UseShenandoah"
)

# Variables that Spark's launcher heeds, and those that its scripts do; without the two that PySpark leaves in a process
# which has had a session: those are for its workers.
_HEEDED = re.compile(
    r"SPARK_(?!HOME$|LOCAL_IP$|AUTH_SOCKET_TIMEOUT$|BUFFER_SIZE$).*|PYSPARK_SUBMIT_ARGS|(?:HADOOP|YARN)_CONF_DIR"
)

# The longest path of a Unix socket is 107 bytes; Spark's names take 43 of them.
_SOCKET_DIR_LIMIT = 64


@dataclass(frozen=True, slots=True)
class _Running:
    """What `stop` must know of the session that runs in this process."""

    jvm: Jvm
    places: Places
    wanted: Archive | None
    """The archive that it started without, to be made once it has ended."""
    plain: bool


_running: _Running | None = None


def session(
    *,
    app: str,
    scratch: Path,
    master: str | None = None,
    cores: int | None = None,
    driver_memory: str = "1g",
    settings: Mapping[str, str] | None = None,
    fast_start: bool = True,
    short_lived: bool = False,
    plain: bool = False,
) -> SparkSession:
    """Start Spark. One session at a time in a process; `scratch` is this session's alone.

    `master` is `local[N,4]` if not given, with `cores` or all the process may use for N. `settings` come on
    top of Penstock's own. `fast_start` uses the start-up archive and has it built. `short_lived` compiles for
    a quick start instead of for peak speed: for commands that end within seconds, and where no rows pass the JVM.
    `plain` says that nobody but Penstock has code or settings in it: a local one's JVM need not end in its own time.
    """
    global _running
    given = dict(settings or {})
    refuse_reserved(given)
    if SparkContext._active_spark_context is not None or _running is not None:
        raise UsageError("a Spark session is already running in this process", hint="stop it first")
    url = master_url(master, cores)
    local = LOCAL.fullmatch(url) is not None
    places = _prepare(scratch.resolve())
    java = find_java(fallback=places.temporary)
    chosen = spark_settings(app, url, driver_memory, places) | given
    added = given.get("spark.driver.extraJavaOptions", "")
    others = " ".join([added, *(os.environ.get(name, "") for name in JAVA_VARIABLES)])
    options = java_options(places, short_lived, others)
    chosen["spark.driver.extraJavaOptions"] = f"{joined(options)} {added}".strip()
    archive = _archive(java, chosen, others) if fast_start and local else None
    plain = plain and local and "agent" not in others
    _load_meanwhile()
    _say_it_once()
    with environment(_variables(local, java, places)):
        direct = (
            _direct(chosen, places, archive, options, whole=not short_lived) if plain and archive else None
        )
        _running = _launch(chosen, places, archive, plain, direct)
        try:
            return _connect(chosen)
        except BaseException as error:
            # First the words: PySpark asks the JVM for them.
            reason = _reason(error, places)
            _running.jvm.end(patience=5.0)
            _running = None
            if reason is None:
                raise
            hint = f"its log is {places.log}"
            raise PenstockError(f"Spark did not start on '{url}': {reason}", hint=hint) from None


def _say_it_once() -> None:
    """Keep PySpark from logging each error of a query, plan and stack of the JVM included, before it raises it.

    It does so past all handlers, so past what masks secrets, too.
    """
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def stop(spark: SparkSession, *, patience: float = 30.0) -> None:
    """End the session and its JVM; a JVM that is not gone after `patience` seconds is killed.

    Stop the queries first: this waits for none of them.
    """
    global _running
    running, _running = _running, None
    if running is None:
        spark.stop()
        return
    deadline = threading.Timer(patience, running.jvm.kill)
    deadline.daemon = True
    deadline.start()
    if running.plain:
        running.jvm.kill()  # all that its end in order would do, a second of it, is to remove what `_discard` removes
    _disconnect(spark)
    running.jvm.end(patience)
    deadline.cancel()
    _discard(running.places)
    if running.wanted is not None:
        running.wanted.build(os.environ)


def claim(scratch: Path) -> None:
    """Say that a directory is for sessions alone, whatever is in it.

    The JVM of a run that was killed may write there for another moment, also where all was just removed.
    """
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    (scratch / _SETTINGS_FILE).touch()


def _prepare(scratch: Path) -> Places:
    """Empty directories for a new session; what a killed one left is removed."""
    if "," in str(scratch):
        raise UsageError(f"Spark cannot work in a directory with a comma in its name: {scratch}")
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    places = Places(
        local=scratch / "local",
        warehouse=scratch / "warehouse",
        temporary=scratch / "tmp",
        home=scratch / "home",
        sockets=_socket_dir(scratch),
        log=scratch / "spark.log",
        log_settings=scratch / _SETTINGS_FILE,
        jvm_crash=scratch / "jvm-crash-%p.log",
    )
    _refuse_strange(places)
    _discard(places)
    for directory in (places.local, places.warehouse, places.temporary, places.home, places.sockets):
        directory.mkdir(mode=0o700, exist_ok=True)
    places.log_settings.write_text(LOG_SETTINGS)
    return places


def _refuse_strange(places: Places) -> None:
    """Where no session was before, there is nothing of ours to remove."""
    for directory in (places.local, places.warehouse, places.temporary, places.home):
        if not places.log_settings.exists() and directory.is_dir() and any(directory.iterdir()):
            raise UsageError(
                f"{directory} would be emptied for Spark, but no session has made it",
                hint="give the session a directory of its own as scratch",
            )


def _socket_dir(scratch: Path) -> Path:
    """A directory for sockets with a path that is short enough, the same for the same scratch directory."""
    inside = scratch / "sockets"
    if len(os.fsencode(inside)) <= _SOCKET_DIR_LIMIT:
        return inside
    name = hashlib.sha256(os.fsencode(scratch)).hexdigest()[:12]
    outside = Path(tempfile.gettempdir()) / f"penstock-{os.geteuid()}-{name}"
    shutil.rmtree(outside, ignore_errors=True)
    try:
        outside.mkdir(mode=0o700)
    except FileExistsError:  # not ours, or it would be gone
        return Path(tempfile.mkdtemp(prefix="penstock-"))
    return outside


def _discard(places: Places) -> None:
    for directory in (places.local, places.warehouse, places.temporary, places.home, places.sockets):
        shutil.rmtree(directory, ignore_errors=True)


def _archive(java: Java, chosen: Mapping[str, str], options: str) -> Archive | None:
    """The archive to use, or to have made; none where class path, heap or `options` are not the usual ones."""
    if "spark.driver.extraClassPath" in chosen or os.environ.get("SPARK_CONF_DIR"):
        return None
    if _bytes(chosen["spark.driver.memory"]) >= _ARCHIVE_HEAP_LIMIT or _ANOTHER_JVM.search(options):
        return None
    archive = archive_for(cache_dir(os.environ), java.runtime, java.version, SPARK_HOME)
    return None if archive is None or archive.given_up() else archive


def _bytes(size: str) -> int:
    """A size as Spark writes it: `512m`, `1g`, `1024` (MiB)."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", size.strip().lower())
    if found is None:
        raise UsageError(f"the driver's memory is a number and k, m, g or t, such as 2g; not '{size}'")
    return int(found[1]) << {"k": 10, "": 20, "m": 20, "g": 30, "t": 40}[found[2]]


def _variables(local: bool, java: Java, places: Places) -> dict[str, str]:
    """The environment that the JVM, and the Python processes below it, are started with."""
    variables = {"JAVA_HOME": str(java.home), "PYSPARK_DRIVER_PYTHON": sys.executable}
    if local:
        # The Spark of the wheel, whatever other one is installed; and no look-up of this machine's name.
        home = make_home(places.home, SPARK_HOME)
        variables |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        variables |= {"PYSPARK_PYTHON": sys.executable}
    else:
        # As a setting the directory would reach the executors, whose machines may have no such place.
        variables |= {"SPARK_LOCAL_DIRS": str(places.local)}
        variables |= {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
    return variables


def _load_meanwhile() -> None:
    """Load pandas while the JVM starts: PySpark wants to know, at the first word to it, whether NumPy is there."""

    def load() -> None:
        with contextlib.suppress(ImportError):  # to be told by whoever needs it
            importlib.import_module("pyspark.testing.utils")

    threading.Thread(target=load, name="penstock-load", daemon=True).start()


def command_line() -> list[str]:
    """That of the JVM behind the session that runs in this process."""
    assert _running is not None
    assert _running.jvm.process is not None
    told = Path(f"/proc/{_running.jvm.process.pid}/cmdline").read_bytes()
    return os.fsdecode(told).split("\0")[:-1]


def _launch(
    chosen: Mapping[str, str],
    places: Places,
    archive: Archive | None,
    plain: bool,
    direct: Sequence[str] | None = None,
) -> _Running:
    """Start the JVM, `direct` if that is known; one that does not come up with the archive is started again without."""
    command = {name: value for name, value in chosen.items() if _ON_COMMAND_LINE.fullmatch(name)}
    if archive is None or not archive.usable():
        return _Running(launch(command), places, archive, plain)
    command["spark.driver.extraJavaOptions"] += " " + joined(archive.options_to_use())
    # The JVM takes an archive if its class path begins with the one the archive was made for. Spark's own names a jar
    # twice, and a directory of this session; in front of it each jar stands once.
    command["spark.driver.extraClassPath"] = archive.class_path
    jvm = _directly(command, places, archive, direct) if direct is not None else None
    try:
        jvm = jvm or launch(command)
    except JvmFailedError:
        running = _launch(chosen, places, None, plain)
        archive.refused()  # only now is it known to be the archive's fault
        return replace(running, wanted=archive)
    if "sharing" in jvm.property("java.vm.info"):
        archive.accepted()
        return _Running(jvm, places, None, plain)
    archive.refused()
    return _Running(jvm, places, archive, plain)


def _directly(
    command: Mapping[str, str], places: Places, archive: Archive, direct: Sequence[str]
) -> Jvm | None:
    """A JVM that is started without the launcher; None if it does not come up, which is not the archive's fault yet."""
    start_directly(places.home, direct)
    try:
        return launch(command)
    except OSError as error:  # a disk from which nothing is executed, or a file that a fork still holds open
        log.info("Spark's launcher is needed: %s", error)
    except JvmFailedError as error:
        log.info("Spark's launcher is needed: %s", error)
        archive.forget_added()
    start_by_launcher(places.home, SPARK_HOME)
    return None


def _direct(
    chosen: Mapping[str, str], places: Places, archive: Archive, options: Sequence[str], *, whole: bool
) -> list[str] | None:
    """The command that Spark's launcher would come to; None where it may come to another, or that is not known.

    Each jar is on its class path once; those that the archive leaves out are, if it is to be the `whole` of Spark.
    """
    added = archive.added_by_launcher()
    home = os.environ["SPARK_HOME"]
    heeded = [name for name in os.environ if _HEEDED.fullmatch(name)]
    if added is None or heeded or home != str(places.home) or (places.home / "conf").exists():
        return None
    java = str(archive.runtime / "bin" / "java")
    heap = f"-Xmx{chosen['spark.driver.memory']}"
    class_path = ":".join([archive.class_path, archive.left_out] if whole else [archive.class_path])
    return [java, "-cp", class_path, heap, *options, *archive.options_to_use(), *added, SPARK_SUBMIT]


def _connect(chosen: Mapping[str, str]) -> SparkSession:
    """The session in the running JVM."""
    handler = signal.getsignal(signal.SIGINT)
    context = SparkContext(conf=SparkConf().setAll(list(chosen.items())))
    if threading.current_thread() is threading.main_thread():
        # PySpark's handler would cancel the jobs of a batch that is being written: stopping is the runner's.
        signal.signal(signal.SIGINT, handler)
    # If the JVM dies, whoever waits for it hears of it; a stack trace on the terminal tells nobody anything.
    setattr(context._accumulatorServer, "handle_error", lambda *request: None)  # noqa: B010 - mypy
    # Queries give this to their tasks. Spark forks workers from a process for each environment that there is: so tasks
    # that belong to no query, those of a copy, have it too.
    context.environment["SPARK_SIMPLIFIED_TRACEBACK"] = "1"
    return SparkSession(context)


def _disconnect(spark: SparkSession) -> None:
    """Stop the session, also if its JVM has died or dies on the way: the next session must find no trace."""
    waking = threading.Thread(target=_wake, args=[spark.sparkContext._accumulatorServer], daemon=True)
    waking.start()
    with contextlib.suppress(Py4JError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        spark.stop()
    # Where the JVM did not answer, the call above ended half-way; this does the half on Python's side.
    spark.sparkContext.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _wake(server: socketserver.BaseServer | None) -> None:
    """Have PySpark's server of accumulators see at once that it is to end: it looks only every half a second."""
    where = getattr(server, "server_address", None)
    if not isinstance(where, str):  # none, or not the one for local sockets
        return
    while not getattr(server, "server_shutdown", True):
        time.sleep(0.01)
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(1.0)
        caller.connect(where)


def _reason(error: BaseException, places: Places) -> str | None:
    """What went wrong, in one line; None if it was neither Spark nor what it stands on."""
    if isinstance(error, FileNotFoundError) and not places.sockets.is_dir():
        return f"{places.sockets}, where its sockets are, was removed meanwhile"
    if isinstance(error, Py4JJavaError):
        text = str(error.java_exception.getMessage())
    elif isinstance(error, (Py4JError, PySparkException)):
        text = str(error)
    else:
        return None
    return text.strip().partition("\n")[0]
