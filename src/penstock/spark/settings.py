"""Every setting of Spark that Penstock relies on. No other module names one, but an adaptor those of its connector."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.base.errors import UsageError

# A task is tried this often. `local[N]` alone would mean once: a dead Python worker would end the query.
ATTEMPTS = 4

JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Where a JVM that Spark's launcher starts finds options beside those of its command."""

_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")

LOCAL = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:,\s*(?P<attempts>\d+))?\])?")

# Settings that Penstock's own correctness rests on, and where to say instead what is wanted.
_RESERVED = {
    "spark.app.name": "it is the pipeline's name",
    "spark.driver.memory": "say it as the driver's memory",
    "spark.master": "say it as the master",
    "spark.sql.session.timeZone": "Penstock's times are UTC",
}

# To a file and never to the terminal: what a person needs to know, Penstock says.
NO_ROWS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Where no rows pass the JVM nothing is worth compiling: for the first query alone that took a fifth of a second."""

LOG_SETTINGS = """\
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
class Places:
    """Where a session keeps what; all of it is of no value once the session has ended, but for the log."""

    local: Path
    warehouse: Path
    temporary: Path
    home: Path
    sockets: Path
    log: Path
    log_settings: Path
    jvm_crash: Path


def master_url(master: str | None, cores: int | None) -> str:
    """The master that Spark is told: `local[N,4]` by default, and retries wherever a local one names none."""
    if cores is not None and cores < 1:
        raise UsageError(f"cores: at least 1, not {cores}")
    local = LOCAL.fullmatch(master or "local[*]")
    if local is None:
        if cores is not None:
            raise UsageError(f"cores: only a local master takes them, and the master is '{master}'")
        assert master is not None
        return master
    named = local["cores"] or "1"
    usable = len(os.sched_getaffinity(0))
    count = cores or (usable if named == "*" else int(named))
    return f"local[{count},{local['attempts'] or ATTEMPTS}]"


def spark_settings(app: str, master: str, driver_memory: str, places: Places) -> dict[str, str]:
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
        # Workers are forked with everything loaded.
        "spark.python.daemon.module": "penstock.spark.daemon",
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
    local = LOCAL.fullmatch(master)
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


def java_options(places: Places, short_lived: bool, given: str = "") -> list[str]:
    """The JVM's own options; `given` are those that it gets from others."""
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
    if short_lived:
        options.append("-XX:TieredStopAtLevel=1")
        # A small heap with little in it: the threads of a collector that works beside the rest only take cores
        # from it. Two collectors named make the JVM refuse to start.
        if not _COLLECTOR.search(given):
            options.append("-XX:+UseSerialGC")
    return options


def refuse_reserved(given: Mapping[str, str]) -> None:
    for name, instead in _RESERVED.items():
        if name in given:
            raise UsageError(f"the setting '{name}' cannot be given: {instead}")
