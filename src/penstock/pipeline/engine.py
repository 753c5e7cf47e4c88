"""Spark, as a run uses it: a session of its own, or one that the caller lends; started only when it is needed."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.adaptors.base import Adaptor
from penstock.adaptors.lake import session as lake
from penstock.functions.base import Function
from penstock.pipeline.definition import Pipeline
from penstock.pipeline.master import is_remote
from penstock.pipeline.progress import SparkProgress
from penstock.spark.copying import ParallelCopier
from penstock.spark.reach import KEYS, TOKEN
from penstock.spark.sealed import Safe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DRIVER_MEMORY = "1g"
"""Where nobody says otherwise. In local mode all sinks share it."""

THREADS = 4
"""That read the ranges of a copy, where Spark's tasks cannot."""


@dataclass
class Engine:
    """`settings` go to Spark as they are."""

    pipeline: Pipeline
    scratch: Path
    master: str | None = None
    cores: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    lent: SparkSession | None = None
    spark: SparkSession | None = None
    wanted: threading.Event = field(default_factory=threading.Event)
    """Set by whoever has work for Spark that the sinks do not show: a large copy."""
    settled: threading.Event = field(default_factory=threading.Event)
    """Set once the sinks have had their first batches: until then Spark's cores are theirs, and a copy is read here."""
    safe: Safe = field(init=False)
    """Where the tasks of sinks find their settings."""
    starting: threading.Lock = field(default_factory=threading.Lock)
    told: SparkProgress | None = None
    """What there is to tell of the session, once it is up."""

    def __post_init__(self) -> None:
        self.safe = Safe(None if self.elsewhere else self.scratch.parent / "sealed")
        lake.provide(self.start)

    @property
    def elsewhere(self) -> bool:
        """Whether tasks may run where the scratch directory is not. A session that is lent runs here."""
        return self.lent is None and is_remote(self.master)

    def copier(self) -> ParallelCopier:
        """What reads the ranges of a large copy: threads of this process, then Spark's tasks if those are here."""
        directory = self.scratch.parent / "copy"
        if self.elsewhere:
            return ParallelCopier(directory, THREADS)
        cores = self.cores or len(os.sched_getaffinity(0))
        return ParallelCopier(directory, cores, self._for_copies, self.wanted.set)

    def _for_copies(self) -> SparkSession | None:
        """Spark, once its start and that of the queries are over: ranges that wait for a worker would hold up both."""
        return self.spark if self.settled.is_set() else None

    def start(self) -> SparkSession:
        """Spark, started if it is not up yet; by whoever needs it first."""
        with self.starting:
            if self.spark is None:
                self.spark = self._started()
                context = self.spark.sparkContext
                self.told = SparkProgress(
                    context.version, context.master or "", context.applicationId, context.uiWebUrl
                )
            return self.spark

    def _started(self) -> SparkSession:
        from pyspark import cloudpickle

        from penstock.spark.discovery import leave_out_discovery
        from penstock.spark.session import claim, session
        from penstock.spark.settings import NO_ROWS
        from penstock.spark.source import PenstockSource

        # A failing batch is the supervisor's to report, once, not py4j's with a traceback for each attempt.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        for module in self.pipeline.modules:
            cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]
        sealed = {f"spark.executorEnv.{name}": value for name, value in self.safe.variables().items()}
        asked = [*wanted(self.pipeline), self.settings]
        compiles = works_in_jvm(self.pipeline)
        settings = ({} if compiles else NO_ROWS) | lake.joined(_credentials(), sealed, *asked)
        claim(self.scratch)
        spark = self.lent or session(
            app=f"penstock {self.pipeline.name}",
            master=self.master,
            cores=self.cores,
            driver_memory=settings.pop("spark.driver.memory", DRIVER_MEMORY),
            settings=settings,
            scratch=self.scratch,
            short_lived=not compiles,
            plain=not any(asked),
        )
        if self.lent is None:
            leave_out_discovery(spark)
        spark.dataSource.register(PenstockSource)
        return spark

    def warm_up(self) -> None:
        """Have the first batch's work done beside the start of the queries. A session that is lent is warm."""
        if self.spark is not None and self.lent is None and not self.elsewhere:
            from penstock.spark.warming import warm_up

            warm_up(self.spark)

    def alive(self) -> bool:
        """Whether the JVM still answers; it may have run out of memory, or been killed."""
        from py4j.protocol import Py4JError

        assert self.spark is not None
        try:
            return not self.spark.sparkContext._jsc.sc().isStopped()
        except (Py4JError, OSError):
            return False

    def is_deaf(self) -> bool:
        """Whether the JVM can call this process no more, so that no batch will ever begin.

        Py4J's thread that takes its calls ends for good when it cannot open a socket for one.
        """
        assert self.spark is not None
        server = getattr(self.spark.sparkContext._gateway, "_callback_server", None)
        thread: threading.Thread | None = getattr(server, "thread", None)
        return thread is not None and not thread.is_alive()

    def stop(self) -> None:
        lake.withdraw(self.start)
        try:
            if self.spark is not None and self.lent is None:
                from penstock.spark.session import stop

                stop(self.spark)
        finally:
            self.safe.clear()


def works_in_jvm(pipeline: Pipeline) -> bool:
    """Whether rows pass through the JVM. If they do not it only plans and waits: code for that needs no peak speed."""
    functions = [step.function for node in pipeline.sink_nodes for step in node.steps]
    by_spark = [type(one).spark_settings is not Adaptor.spark_settings for one in _adaptors(pipeline)]
    return any(by_spark) or any(not isinstance(function, Function) for function in functions)


def wanted(pipeline: Pipeline) -> list[Mapping[str, str]]:
    """The settings that the adaptors of a pipeline work with."""
    return [adaptor.spark_settings() for adaptor in _adaptors(pipeline)]


def _adaptors(pipeline: Pipeline) -> list[Adaptor]:
    return [pipeline.source_node.adaptor, *(node.adaptor for node in pipeline.sink_nodes)]


@contextmanager
def at_hand(pipeline: Pipeline) -> Iterator[None]:
    """For commands that are no run: an adaptor that works through Spark gets a session when it asks for one."""
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as scratch:
        engine = Engine(pipeline, Path(scratch) / "spark", cores=1)
        try:
            yield
        finally:
            engine.stop()


def _credentials() -> dict[str, str]:
    """What executors on other machines need to be let in by the broker; Spark redacts it wherever it shows it."""
    return {f"spark.executorEnv.{name}": os.environ[name] for name in (TOKEN, KEYS) if name in os.environ}
