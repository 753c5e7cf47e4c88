"""The Spark session, and every setting of Spark that Penstock relies on. No other module sets one.

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
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.base.errors import PenstockError, UsageError
from penstock.spark.archive import Archive, archive_for
from penstock.spark.home import make_home
from penstock.spark.java import Java, cache_dir, find_java
from penstock.spark.jvm import Jvm, JvmFailedError, environment, joined, launch

SPARK_HOME = Path(pyspark.__file__).parent

_SETTINGS_FILE = "log4j2.properties"

# A task is tried this often. `local[N]` alone would mean once: a dead Python worker would end the query.
ATTEMPTS = 4

_LOCAL = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:,\s*(?P<attempts>\d+))?\])?")

# Settings that Penstock's own correctness rests on, and where to say instead what is wanted.
_RESERVED = {
    "spark.app.name": "it is the pipeline's name",
    "spark.driver.memory": "say it as the driver's memory",
    "spark.master": "say it as the master",
    "spark.sql.session.timeZone": "Penstock's times are UTC",
}

# What the JVM must know before it runs. All else is set inside it: a command line is open to every user of
# the machine, and a setting may be a password.
_ON_COMMAND_LINE = re.compile(r"spark\.(?:master|driver\..*|jars.*|files|archives|submit\..*)")

# From this heap on the JVM addresses objects differently, and an archive made by a smaller one does not fit.
_ARCHIVE_HEAP_LIMIT = 32 << 30

# The longest path of a Unix socket is 107 bytes; Spark's names take 43 of them.
_SOCKET_DIR_LIMIT = 64

# To a file and never to the terminal: what a person needs to know, Penstock says.
_LOG_SETTINGS = """\
status = off
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${sys:penstock.spark.log}
appender.file.filePattern = ${sys:penstock.spark.log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 4MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a session keeps what; all of it is of no value once the session has ended, but for the log."""

    local: Path
    warehouse: Path
    temporary: Path
    home: Path
    sockets: Path
    log: Path
    log_settings: Path
    class_list: Path
    jvm_crash: Path


@dataclass(frozen=True, slots=True)
class _Running:
    """What `stop` must know of the session that runs in this process."""

    jvm: Jvm
    places: _Places
    recording: Archive | None


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
) -> SparkSession:
    """Start Spark. One session at a time in a process; `scratch` is this session's alone.

    `master` is `local[N,4]` if not given, with `cores` or all the process may use for N. `settings` come on
    top of Penstock's own. `fast_start` uses the start-up archive and has it built. `short_lived` compiles for
    a quick start instead of for peak speed: for commands that end within seconds, and where no rows pass the JVM.
    """
    global _running
    given = dict(settings or {})
    _refuse_reserved(given)
    if SparkContext._active_spark_context is not None or _running is not None:
        raise UsageError("a Spark session is already running in this process", hint="stop it first")
    url = master_url(master, cores)
    local = _LOCAL.fullmatch(url) is not None
    places = _prepare(scratch.resolve())
    java = find_java(fallback=places.temporary)
    chosen = spark_settings(app, url, driver_memory, places) | given
    options = [joined(_java_options(places, short_lived)), given.get("spark.driver.extraJavaOptions", "")]
    chosen["spark.driver.extraJavaOptions"] = " ".join(options).strip()
    archive = _archive(java, chosen) if fast_start and local else None
    with environment(_variables(local, java, places)):
        _running = _launch(chosen, places, archive)
        try:
            return _connect(chosen)
        except BaseException as error:
            # First the words: PySpark asks the JVM for them.
            reason = _reason(error)
            _running.jvm.end(patience=5.0)
            _running = None
            if reason is None:
                raise
            hint = f"its log is {places.log}"
            raise PenstockError(f"Spark did not start on '{url}': {reason}", hint=hint) from None


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
    _disconnect(spark)
    running.jvm.end(patience)
    deadline.cancel()
    if running.recording is not None and running.jvm.ended_well():
        running.recording.build(running.places.class_list)
    _discard(running.places)


def master_url(master: str | None, cores: int | None) -> str:
    """The master that Spark is told: `local[N,4]` by default, and retries wherever a local one names none."""
    if cores is not None and cores < 1:
        raise UsageError(f"cores: at least 1, not {cores}")
    local = _LOCAL.fullmatch(master or "local[*]")
    if local is None:
        if cores is not None:
            raise UsageError(f"cores: only a local master takes them, and the master is '{master}'")
        assert master is not None
        return master
    named = local["cores"] or "1"
    usable = len(os.sched_getaffinity(0))
    count = cores or (usable if named == "*" else int(named))
    return f"local[{count},{local['attempts'] or ATTEMPTS}]"


def spark_settings(app: str, master: str, driver_memory: str, places: _Places) -> dict[str, str]:
    """All settings but the JVM's own options. Pure: the same arguments, the same settings."""
    chosen = {
        "spark.app.name": app,
        "spark.master": master,
        "spark.driver.memory": driver_memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark's own, and the keys that executors on other machines get to make tokens with (`reach.py`).
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|auth_?keys",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": places.warehouse.as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        # A batch for Python ends at either; with messages of up to 16 MiB rows alone would be no bound.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
        # Queries share the cores fairly if each runs in a pool of its own.
        "spark.scheduler.mode": "FAIR",
        # Penstock's queries keep no state, so a batch without data has nothing to do.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # Every start has a new checkpoint: only the last batches of this run are ever looked at.
        "spark.sql.streaming.minBatchesToRetain": "10",
        # Kept for a web page that is off, on the heap that the batches need.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "1000",
        "spark.ui.dagGraph.retainedRootRDDs": "10",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.sql.streaming.ui.retainedQueries": "10",
    }
    local = _LOCAL.fullmatch(master)
    if local is not None or master.startswith("local-cluster["):
        chosen |= {
            # Python's processes talk through Unix sockets: a quarter less time for a small batch. Only on one
            # machine, since the directory must be there for all. The sockets ask for no secret: whoever reaches
            # the directory is let in.
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.python.unix.domain.socket.dir": str(places.sockets),
        }
    if local is not None:
        chosen |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(places.local),
            "spark.sql.shuffle.partitions": str(local["cores"]),
            "spark.default.parallelism": str(local["cores"]),
            "spark.sql.streaming.checkpointFileManagerClass": (
                "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
            ),
        }
    return chosen


def _java_options(places: _Places, short_lived: bool) -> list[str]:
    options = [
        f"-Dlog4j2.configurationFile={places.log_settings.as_uri()}",
        f"-Dpenstock.spark.log={places.log}",
        f"-Djava.io.tmpdir={places.temporary}",
        f"-Dderby.system.home={places.temporary}",
        f"-XX:ErrorFile={places.jvm_crash}",
        # Out of memory in one thread leaves the others waiting for it; a dead JVM is noticed, and the run ends.
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:+DisplayVMOutputToStderr",
        "-XX:-UsePerfData",
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
    ]
    return [*options, "-XX:TieredStopAtLevel=1"] if short_lived else options


def _refuse_reserved(given: Mapping[str, str]) -> None:
    for name, instead in _RESERVED.items():
        if name in given:
            raise UsageError(f"the setting '{name}' cannot be given: {instead}")


def claim(scratch: Path) -> None:
    """Say that a directory is for sessions alone, whatever is in it.

    The JVM of a run that was killed may write there for another moment, also where all was just removed.
    """
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    (scratch / _SETTINGS_FILE).touch()


def _prepare(scratch: Path) -> _Places:
    """Empty directories for a new session; what a killed one left is removed."""
    if "," in str(scratch):
        raise UsageError(f"Spark cannot work in a directory with a comma in its name: {scratch}")
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    places = _Places(
        local=scratch / "local",
        warehouse=scratch / "warehouse",
        temporary=scratch / "tmp",
        home=scratch / "home",
        sockets=_socket_dir(scratch),
        log=scratch / "spark.log",
        log_settings=scratch / _SETTINGS_FILE,
        class_list=scratch / "classes.list",
        jvm_crash=scratch / "jvm-crash-%p.log",
    )
    _refuse_strange(places)
    _discard(places)
    for directory in (places.local, places.warehouse, places.temporary, places.home, places.sockets):
        directory.mkdir(mode=0o700, exist_ok=True)
    places.log_settings.write_text(_LOG_SETTINGS)
    return places


def _refuse_strange(places: _Places) -> None:
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


def _discard(places: _Places) -> None:
    for directory in (places.local, places.warehouse, places.temporary, places.home, places.sockets):
        shutil.rmtree(directory, ignore_errors=True)
    places.class_list.unlink(missing_ok=True)


def _archive(java: Java, chosen: Mapping[str, str]) -> Archive | None:
    """The archive to use or to record for; none where the class path or the heap is not the usual one."""
    if "spark.driver.extraClassPath" in chosen or os.environ.get("SPARK_CONF_DIR"):
        return None
    if _bytes(chosen["spark.driver.memory"]) >= _ARCHIVE_HEAP_LIMIT:
        return None
    archive = archive_for(cache_dir(os.environ), java.runtime, java.version, SPARK_HOME)
    return None if archive is None or archive.given_up() else archive


def _bytes(size: str) -> int:
    """A size as Spark writes it: `512m`, `1g`, `1024` (MiB)."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", size.strip().lower())
    if found is None:
        raise UsageError(f"the driver's memory is a number and k, m, g or t, such as 2g; not '{size}'")
    return int(found[1]) << {"k": 10, "": 20, "m": 20, "g": 30, "t": 40}[found[2]]


def _variables(local: bool, java: Java, places: _Places) -> dict[str, str]:
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


def _launch(chosen: Mapping[str, str], places: _Places, archive: Archive | None) -> _Running:
    """Start the JVM; one that does not come up with the archive is started again without."""
    command = {name: value for name, value in chosen.items() if _ON_COMMAND_LINE.fullmatch(name)}
    if archive is None:
        return _Running(launch(command), places, recording=None)
    using = archive.usable()
    options = archive.options_to_use() if using else archive.options_to_record(places.class_list)
    command["spark.driver.extraJavaOptions"] += " " + joined(options)
    # Spark names one jar twice on its class path, which Java 21 does not take with an archive. With all jars
    # in front in an order of our own, the part of the path that counts has each of them once.
    command["spark.driver.extraClassPath"] = archive.class_path
    if not using:
        return _Running(launch(command), places, recording=archive)
    try:
        jvm = launch(command)
    except JvmFailedError:
        running = _launch(chosen, places, None)
        archive.refused()  # only now is it known to be the archive's fault
        return running
    if "sharing" in jvm.property("java.vm.info"):
        archive.accepted()
    else:
        archive.refused()
    return _Running(jvm, places, recording=None)


def _connect(chosen: Mapping[str, str]) -> SparkSession:
    """The session in the running JVM."""
    handler = signal.getsignal(signal.SIGINT)
    context = SparkContext(conf=SparkConf().setAll(list(chosen.items())))
    if threading.current_thread() is threading.main_thread():
        # PySpark's handler would cancel the jobs of a batch that is being written: stopping is the runner's.
        signal.signal(signal.SIGINT, handler)
    # If the JVM dies, whoever waits for it hears of it; a stack trace on the terminal tells nobody anything.
    setattr(context._accumulatorServer, "handle_error", lambda *request: None)  # noqa: B010 - mypy
    return SparkSession(context)


def _disconnect(spark: SparkSession) -> None:
    """Stop the session, also if its JVM has died or dies on the way: the next session must find no trace."""
    with contextlib.suppress(Py4JError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        spark.stop()
    # Where the JVM did not answer, the call above ended half-way; this does the half on Python's side.
    spark.sparkContext.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _reason(error: BaseException) -> str | None:
    """What Spark says went wrong, in one line; None if it was not Spark that failed."""
    if isinstance(error, Py4JJavaError):
        text = str(error.java_exception.getMessage())
    elif isinstance(error, (Py4JError, PySparkException)):
        text = str(error)
    else:
        return None
    return text.strip().partition("\n")[0]
