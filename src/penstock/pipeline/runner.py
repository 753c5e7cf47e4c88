"""The runner: a pipeline carried out, from the lock on the data directory to the account at the end.

Order of the start: the directory and its broker; the log and the offset logs, claimed; the targets, opened;
the source, read from where the log says. Spark comes last, and only if some sink lacks something: a run that
finds nothing to do ends within a second.

Order of the end: no further reading; queries stopped between batches, up to `PATIENCE` seconds for the batch
under way; Spark; the log; the broker. After a SIGKILL none of this happens, and nothing is lost.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from penstock.adaptors.base import Adaptor
from penstock.base import faults
from penstock.base.errors import PenstockError
from penstock.journal.client import Client
from penstock.journal.datadir import DataDir
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import CommitLog
from penstock.log.offsets import OffsetLog
from penstock.pipeline.definition import Pipeline
from penstock.pipeline.ingest import Ingest
from penstock.pipeline.progress import NodeProgress, Progress, Summary
from penstock.pipeline.supervisor import SupervisedSink, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 30.0
_TICK = 0.1
_REPORT_EVERY = 0.25


def run(
    pipeline: Pipeline,
    *,
    data_dir: Path,
    once: bool,
    master: str | None = None,
    cores: int | None = None,
    settings: Mapping[str, str] | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
    spark: SparkSession | None = None,
) -> Summary:
    """Run the pipeline: until all that is there is delivered (`once`), or until a signal.

    Spark is started when it is needed and stopped at the end, unless the caller lends a session of its own.
    """
    pipeline.check()
    os.environ[faults.RUNNER] = str(os.getpid())
    with EmbeddedBroker(data_dir) as broker, Client(broker.address) as client, _signals() as stop:
        engine = _Engine(pipeline, broker.directory, master, cores, settings or {}, spark)
        return _Run(pipeline, broker.directory, client, once, stop, report, engine).carry_out()


def _tailing(adaptor: Adaptor, tail: bool) -> Adaptor:
    """The adaptor, following its source or not, as the command says, where it can do either."""
    if dataclasses.is_dataclass(adaptor) and hasattr(adaptor, "tail"):
        return dataclasses.replace(adaptor, tail=tail)
    return adaptor


class _Run:
    """The state of one run."""

    def __init__(
        self,
        pipeline: Pipeline,
        directory: DataDir,
        client: Client,
        once: bool,
        stop: _Stop,
        report: Callable[[Progress], None],
        engine: _Engine,
    ) -> None:
        self._engine = engine
        self._pipeline = pipeline
        self._once = once
        self._stop = stop
        self._report = report
        self._started = time.monotonic()
        self._reported = 0.0
        shutil.rmtree(directory.scratch, ignore_errors=True)
        directory.scratch.mkdir(mode=0o700)
        now = time.time_ns() // 1000
        self._log = CommitLog(client, pipeline.name, directory.index, pipeline.settings.segment_bytes, now)
        options = _source_options(pipeline, directory)
        self._sinks = [
            SupervisedSink(
                node,
                OffsetLog(client, pipeline.name, node.name, now),
                self._log.reader,
                self._log.log_id,
                directory.scratch,
                options,
            )
            for node in pipeline.sink_nodes
        ]
        source = pipeline.source_node
        self._ingest = Ingest(_tailing(source.adaptor, not once).source(), source.ns, self._log)

    def carry_out(self) -> Summary:
        self._tell("opening")
        for sink in self._sinks:
            sink.open()
        self._ingest.start()
        try:
            self._tell("starting spark" if self._lacking() else "running")
            while not self._finished():
                self._tend()
                self._tell("running", at_most_every=_REPORT_EVERY)
                self._stop.wait(_TICK)
        finally:
            self._shut_down()
        return self._summary()

    def _tend(self) -> None:
        if self._engine.spark is None and self._lacking():
            self._start()
        if self._engine.spark is None:
            return
        if not self._engine.alive():
            raise PenstockError(
                "Spark's process has gone",
                hint="run it again: what was delivered is, and the rest comes then",
            )
        for sink in self._sinks:
            sink.tend(self._engine.spark, self._ingest.end.offset)

    def _start(self) -> None:
        self._tell("starting spark")
        spark = self._engine.start()
        for sink in self._sinks:
            sink.start(spark)

    def _lacking(self) -> bool:
        """Whether any sink wants something that the log has."""
        end = self._ingest.end.offset
        return any(sink.commit.watermark < end for sink in self._sinks)

    def _finished(self) -> bool:
        if self._stop.is_set():
            return True
        if all(sink.error is not None for sink in self._sinks):
            return True
        if not self._ingest.done.is_set() or not (self._once or self._ingest.error):
            return False
        end = self._ingest.end.offset
        return all(sink.error is not None or sink.commit.watermark >= end for sink in self._sinks)

    def _shut_down(self) -> None:
        self._tell("stopping")
        self._ingest.stop(PATIENCE)
        for sink in self._sinks:
            sink.stop(PATIENCE)
        self._tell("stopping")
        self._engine.stop()
        self._log.close()

    def _tell(self, phase: str, at_most_every: float = 0.0) -> None:
        now = time.monotonic()
        if now - self._reported < at_most_every:
            return
        self._reported = now
        end = self._ingest.end.offset
        elapsed = now - self._started
        source = NodeProgress(
            node=self._pipeline.source_node.name,
            kind="source",
            adaptor=self._pipeline.source_node.adaptor.name,
            state="stopped" if self._ingest.error else "done" if self._ingest.done.is_set() else "running",
            messages_in=self._ingest.read,
            delivered=self._ingest.read,
            rate=self._ingest.read / elapsed if elapsed else 0.0,
            error=first_line(self._ingest.error) if self._ingest.error else None,
        )
        nodes = [source, *(sink.progress(end) for sink in self._sinks)]
        self._report(Progress(self._pipeline.name, elapsed, phase, end, nodes))

    def _summary(self) -> Summary:
        end = self._ingest.end.offset
        sinks = [sink.summary(end) for sink in self._sinks]
        errors = [error for error in (self._ingest.error, *(sink.error for sink in self._sinks)) if error]
        adds_up = all(sink.adds_up for sink in sinks)
        code = max((getattr(error, "exit_code", 1) for error in errors), default=0)
        message = "; ".join(_told(error) for error in errors) or None
        if not adds_up:
            code, message = code or 1, message or "the account does not add up"
        return Summary(
            pipeline=self._pipeline.name,
            elapsed=time.monotonic() - self._started,
            read=self._ingest.read,
            log_next=end,
            sinks=sinks,
            adds_up=adds_up,
            exit_code=code,
            message=message,
        )


def _told(error: BaseException) -> str:
    text = first_line(error)
    return f"{text} ({error.hint})" if isinstance(error, PenstockError) and error.hint else text


def _source_options(pipeline: Pipeline, directory: DataDir) -> dict[str, str]:
    """What Spark is told: names and limits, never an adaptor's settings, since its plans show options."""
    options = {
        "dataDir": str(directory.path),
        "pipeline": pipeline.name,
        "maxBytes": str(pipeline.settings.batch_bytes),
        "maxMessages": str(pipeline.settings.batch_messages),
    }
    if pipeline.settings.partitions is not None:
        options["partitions"] = str(pipeline.settings.partitions)
    return options


class _Engine:
    """Spark, as this run uses it: a session of its own, or one that the caller lends."""

    def __init__(
        self,
        pipeline: Pipeline,
        directory: DataDir,
        master: str | None,
        cores: int | None,
        settings: Mapping[str, str],
        lent: SparkSession | None,
    ) -> None:
        self.spark: SparkSession | None = None
        self._pipeline = pipeline
        self._scratch = directory.scratch / "spark"
        self._master = master
        self._cores = cores
        self._settings = settings
        self._lent = lent

    def start(self) -> SparkSession:
        from pyspark import cloudpickle

        from penstock.spark.session import session
        from penstock.spark.source import PenstockSource

        # A failing batch is the supervisor's to report, once, not py4j's with a traceback for each attempt.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        for module in self._pipeline.modules:
            cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]
        self.spark = self._lent or session(
            app=f"penstock {self._pipeline.name}",
            master=self._master,
            cores=self._cores,
            settings=self._settings,
            scratch=self._scratch,
        )
        self.spark.dataSource.register(PenstockSource)
        return self.spark

    def alive(self) -> bool:
        """Whether the JVM still answers; it may have run out of memory, or been killed."""
        from py4j.protocol import Py4JError

        assert self.spark is not None
        try:
            return not self.spark.sparkContext._jsc.sc().isStopped()
        except (Py4JError, OSError):
            return False

    def stop(self) -> None:
        if self.spark is not None and self._lent is None:
            from penstock.spark.session import stop

            stop(self.spark)


class _Stop:
    """Set by SIGINT or SIGTERM. A second signal ends the process at once: nothing is lost by it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.wait = self._event.wait
        self.is_set = self._event.is_set

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._handle)
            signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._event.is_set():
            os._exit(128 + number)
        self._event.set()


@contextmanager
def _signals() -> Iterator[_Stop]:
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stop.install()
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
