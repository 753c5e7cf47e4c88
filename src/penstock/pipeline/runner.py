"""The runner: a pipeline carried out, from the lock on the data directory to the account at the end.

Order of the start: the directory and its broker; the log and the offset logs, claimed; the targets, opened;
the source, read from where the log says. Spark comes last, and only if some sink lacks something: a run that
finds nothing to do ends within a second.

By default each sink catches up by itself while reading goes on. `strict` is the seed to the letter: reading goes on
only when every sink has what earlier runs left in the log, and a sink that fails stops the whole pipeline.

Order of the end: no further reading; every sink is told to stop, and together they have `stop_timeout` seconds for the
batches under way; Spark; the log; the broker. After a SIGKILL none of this happens, and nothing is lost.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from penstock.adaptors.base import Adaptor
from penstock.base import faults
from penstock.base.errors import InUseError, PenstockError
from penstock.journal.client import BrokerGoneError, TimedOutError
from penstock.log.commitlog import CommitLog
from penstock.log.control import BEAT_SECONDS, PAUSE, RESUME, Control
from penstock.log.keeping import keep
from penstock.log.offsets import OffsetLog
from penstock.log.schema import LatestSchemas
from penstock.pipeline.account import account, functions_told, source_told
from penstock.pipeline.atomic import atomic_nodes, decisions_of, leave_group
from penstock.pipeline.beating import beating
from penstock.pipeline.burying import Burials
from penstock.pipeline.clock import Clock, now_us
from penstock.pipeline.copies import Copies
from penstock.pipeline.definition import Pipeline
from penstock.pipeline.engine import Engine
from penstock.pipeline.errortext import first_line
from penstock.pipeline.housekeeping import Housekeeping
from penstock.pipeline.identity import refuse_another_source
from penstock.pipeline.ingest import Ingest
from penstock.pipeline.live import is_gone
from penstock.pipeline.place import Place, empty_scratch, open_place, source_options
from penstock.pipeline.progress import Progress, RunFile, SparkProgress, Summary, publish
from penstock.pipeline.serving import serving
from penstock.pipeline.signs import Signs
from penstock.pipeline.stopping import Stop, signals
from penstock.pipeline.supervisedgroup import SupervisedGroup
from penstock.pipeline.supervisor import SupervisedSink
from penstock.pipeline.surroundings import Surroundings, runner_for
from penstock.spark.reach import Reach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_TICK = 0.1
_REPORT_EVERY = 0.25
_CONTROL_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a pipeline is to be run. `http` is HOST:PORT for `/metrics`, `/ready` and `/status`; None for nowhere."""

    data_dir: Path
    once: bool
    strict: bool | None = None
    broker: Reach | None = None
    master: str | None = None
    cores: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    scratch: Path | None = None
    http: str | None = None


def run(
    pipeline: Pipeline,
    *,
    data_dir: Path,
    once: bool,
    strict: bool | None = None,
    broker: Reach | None = None,
    master: str | None = None,
    cores: int | None = None,
    settings: Mapping[str, str] | None = None,
    scratch: Path | None = None,
    http: str | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
    failed: Callable[[Summary], None] = lambda summary: None,
    spark: SparkSession | None = None,
) -> Summary:
    """Run the pipeline: until all that is there is delivered (`once`), or until a signal.

    Spark is started when it is needed and stopped at the end, unless the caller lends a session of its own. A run that
    ends by an exception has an account, too: `failed` gets it, before the exception comes.
    """
    options = RunOptions(data_dir, once, strict, broker, master, cores, settings or {}, scratch, http)
    pipeline.check()
    with _named_runner(), open_place(data_dir, broker) as place, signals() as stop:
        work = _Run(pipeline, place, options, stop, report, spark)
        with serving(options.http, lambda: work.progress) as address:
            work.signs.http = address
            summary = work.carry_out()
            if work.failure is not None:
                failed(summary)
                raise work.failure
            return summary


@contextmanager
def _named_runner() -> Iterator[None]:
    """Tell the processes below this one whom a planned fault kills, as long as the run lasts."""
    before = os.environ.get(faults.RUNNER)
    os.environ[faults.RUNNER] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(faults.RUNNER)
        if before is not None:
            os.environ[faults.RUNNER] = before


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
        place: Place,
        options: RunOptions,
        stop: Stop,
        report: Callable[[Progress], None],
        lent: SparkSession | None,
    ) -> None:
        self.failure: BaseException | None = None
        """What ended the run, if nobody asked it to end."""
        self.id = uuid.uuid4().hex
        self._pipeline = pipeline
        self._place = place
        self._once = options.once
        self._strict = pipeline.settings.strict if options.strict is None else options.strict
        self._stop = stop
        self._report = report
        self._started = time.monotonic()
        self._began = now_us()
        self._every = Clock()
        scratch = empty_scratch(place, options.scratch, pipeline.name)
        self._engine = Engine(
            pipeline, scratch / "spark", options.master, options.cores, options.settings, lent
        )
        self._control = Control(place.client, pipeline.name)
        self.signs = Signs(self._control, self.id, lambda: self.progress)
        self._refuse_second()
        self._heard, _ = self._control.changed_since(0)
        settings = pipeline.settings
        self._log = CommitLog(
            place.client,
            pipeline.name,
            place.directory.index,
            settings.segment_bytes,
            self._began,
            max_message_bytes=settings.max_message_bytes,
        )
        before = self._control.state()
        refuse_another_source(pipeline, before.source, self._log.point.offset)
        self._resumes_at = self._log.closed.offset if self._strict else 0
        """Nothing is read before every sink has what lies below; the seed's rule after a crash."""
        burials = Burials(place.client, pipeline, self._log.reader)
        around = Surroundings(
            pipeline.name, self._log.reader, self._log.log_id, scratch, source_options(pipeline, place), place.reach,
            LatestSchemas(lambda ns: self._log.state.told(ns), lambda: self._log.state.all_told()),
            self._engine.safe, self._batch_done, self._alone,
            max(self._began - before.run.beat, 0) / 1e6 if before.run is not None else 0.0,
        )  # fmt: skip
        self._sinks = self._supervised(burials, around)
        self._upkeep = Housekeeping(
            self._log, pipeline.name, settings, lambda: {sink.node.name: sink.durable for sink in self._sinks}
        )
        keep(place.client, pipeline.name, settings.store, settings.replication)
        node = pipeline.source_node
        self._source = _tailing(node.adaptor, not options.once).source()
        self._source.use(self._engine.copier(), f"{pipeline.name}.{node.name}")
        self._source.announce(place.client, pipeline.name)
        self._ingest = Ingest(
            self._source,
            node.ns,
            self._log,
            self._hindrance,
            patient=place.remote,
            keep_bad=burials.keep_bad,
            tell=stop.nudge,
        )
        self._copies = Copies()
        self._broker_away = self._untold = False
        self.progress = self._told("opening")

    def _supervised(self, burials: Burials, around: Surroundings) -> list[SupervisedSink]:
        """Each sink with a query of its own; those that commit together with one for all of them."""
        together = atomic_nodes(self._pipeline)
        alone = [node for node in self._pipeline.sink_nodes if node not in together]
        leave_group(self._place.client, self._pipeline.name, [node.name for node in alone], now_us())
        sinks = [
            SupervisedSink(
                node,
                runner_for(node, self._claim_of(node.name), partial(burials.bury, node.name), around),
                around,
            )
            for node in alone
        ]
        if together:
            bury = lambda name: partial(burials.bury, name)  # noqa: E731
            sinks.append(SupervisedGroup(together, self._decisions, self._claim_of, bury, around))
        return sinks

    def carry_out(self) -> Summary:
        """Do all of it. Whatever ends the run is in `failure`; the account is made in any case."""
        try:
            self._tell("opening")
            self.signs.begin(self._pipeline)
            with beating(self.signs.beat, BEAT_SECONDS):
                self._go_on()
        except BaseException as error:  # noqa: BLE001 - raised again by `run`, once everything has ended
            self.failure = self._place.displaced() or error
        self._shut_down()
        elapsed = time.monotonic() - self._started
        summary = account(self._pipeline.name, elapsed, self._ingest, self._sinks, self.failure)
        self._note_end(summary.exit_code)
        return summary

    def _go_on(self) -> None:
        """From the opening of the targets until there is nothing more to do."""
        for sink in self._sinks:
            sink.open()
        self._pause(self._control.state().paused)
        self._upkeep.start()
        self._ingest.start()
        self._tell("starting spark" if self._lacking() else "running")
        while not self._finished():
            self._tend()
            self._tell("running", at_most_every=_REPORT_EVERY)
            self._stop.wait(_TICK)

    def _note_end(self, exit_code: int) -> None:
        """The last word; without a broker to take it nothing is lost but that."""
        self._publish(exit_code)
        try:
            self.signs.end(exit_code)
        except PenstockError as error:
            log.warning("the end of the run is not on record: %s", first_line(error))

    def _refuse_second(self) -> None:
        """Where no lock keeps runs apart, ask the control journal whether another one is alive."""
        mark = self._control.state().run if self._place.remote else None
        if mark is not None and mark.alive(now := now_us()) and not is_gone(self._control, mark, now):
            raise InUseError(
                f"pipeline '{self._pipeline.name}' is running on {mark.host} (pid {mark.pid})",
                hint="stop it first; after a crash on another machine its place is free within 20 s",
            )

    def _alone(self) -> bool:
        """Whether no other run has taken our place: one that has began with the log. Where a lock tells, none can."""
        if not self._place.remote:
            return True
        try:
            self._log.ownership.confirm()
        except PenstockError:
            return False
        return True

    def _claim_of(self, sink: str) -> Callable[[], OffsetLog]:
        return lambda: OffsetLog(self._place.client, self._pipeline.name, sink, now_us())

    def _decisions(self) -> OffsetLog:
        return decisions_of(self._place.client, self._pipeline.name, now_us())

    def _hindrance(self) -> str | None:
        """Why the source may not be read now."""
        full = self._upkeep.full()
        if full is not None:
            return full
        lagging = [sink for sink in self._sinks if sink.commit.watermark < self._resumes_at]
        behind = [sink for sink in lagging if not sink.commit.detached]  # one that is lacks messages for good
        if not behind:
            return None
        missing = self._resumes_at - behind[0].commit.watermark
        return f"strict: sink '{behind[0].node.name}' has still {missing} messages of earlier runs to take"

    def _stuck(self) -> str | None:
        """Why a run that is to end by itself can read no further: who is in the way will not move by itself.

        Who is in the way is asked first: if it is a sink at work, the log's end is beyond it afterwards, too.
        """
        if not self._once or self._ingest.paused is None or self._ingest.done.is_set():
            return None
        reason, end = self._hindrance(), self._log.closed.offset
        at_work = any(sink.durable.watermark < end and not sink.idle for sink in self._sinks)
        return None if at_work else reason

    def _tend(self) -> None:
        """One look at everything. A broker elsewhere may be away for a while: nothing moves then, nor is it lost."""
        try:
            self._look_after()
        except (BrokerGoneError, TimedOutError) as error:
            if not self._place.remote:
                raise
            if not self._broker_away:
                log.warning("waiting for the broker: %s", first_line(error))
            self._broker_away = True
        except (Py4JError, ConnectionError):
            raise _spark_gone() from None

    def _look_after(self) -> None:
        if self._every("control", _CONTROL_EVERY):
            self._obey()
            self._broker_away = False
            if reason := self._stuck():
                self._ingest.give_up(reason)
        if self._place.remote:
            self.signs.tell(self._sinks)
        given = self._ingest.given  # nobody is behind for a transaction that cannot be had yet
        for sink in self._sinks:
            sink.watch(given)
        if self._engine.spark is None and (self._lacking() or self._engine.wanted.is_set()):
            self._start()
        if self._engine.spark is None:
            return
        if not self._engine.alive():
            raise _spark_gone()
        if self._engine.is_deaf():
            raise PenstockError(
                "Spark cannot call this process any more",
                hint="too many files were open, most likely: raise the limit (`ulimit -n`), and run it again",
            )
        ended = self._ingest.done.is_set()
        keep = self._every("offsets", self._pipeline.settings.offset_interval)
        for sink in self._sinks:
            sink.tend(self._engine.spark, self._ingest.given)
            if ended:
                sink.hurry()
            if keep:
                sink.keep_offsets()
        if all(sink.begun or sink.idle for sink in self._sinks):
            self._engine.settled.set()

    def _obey(self) -> None:
        """Do what operators asked for since the last time; all of it once more, if the broker is away meanwhile."""
        heard, entries = self._control.changed_since(self._heard)
        for entry in entries:
            for sink in self._sinks:
                if entry.sink in sink.names and entry.action == PAUSE:
                    self._pause(sink.names)
                elif entry.sink in sink.names and entry.action == RESUME:
                    sink.resume()
        self._heard = heard

    def _batch_done(self) -> None:
        """Have a run that ends by itself see whether this was the last batch."""
        if self._once and self._ingest.done.is_set():
            self._stop.nudge()

    def _pause(self, names: frozenset[str] | set[str]) -> None:
        for sink in self._sinks:
            if not sink.names.isdisjoint(names) and not sink.idle:
                sink.pause()

    def _start(self) -> None:
        self._tell("starting spark")
        spark = self._engine.start()
        self._engine.warm_up()
        for sink in self._sinks:
            sink.start(spark)

    def _lacking(self) -> bool:
        """Whether any sink that is at work wants something that the log has."""
        end = self._ingest.given.offset
        return any(sink.commit.watermark < end and not sink.idle for sink in self._sinks)

    def _finished(self) -> bool:
        if self._stop.is_set():
            return True
        failed = [sink for sink in self._sinks if sink.error is not None]
        if len(failed) == len(self._sinks) or (failed and self._strict):
            return True
        if not self._ingest.done.is_set() or not (self._once or self._ingest.error):
            return False
        return not self._lacking()

    def _shut_down(self) -> None:
        """Everybody is told at once, so that all of them share one time limit. One that fails keeps nobody up."""
        deadline = time.monotonic() + self._pipeline.settings.stop_timeout
        left: Callable[[], float] = lambda: deadline - time.monotonic()  # noqa: E731
        steps: list[Callable[[], None]] = [
            lambda: self._tell("stopping"),
            *(sink.ask_to_stop for sink in self._sinks),
            lambda: self._ingest.stop(left()),
            *(partial(lambda sink: sink.stop(left()), sink) for sink in self._sinks),
            lambda: self._upkeep.stop(max(left(), 1.0)),
            lambda: self._tell("stopping"),
            self._engine.stop,
            self._log.close,
        ]
        for step in steps:
            try:
                step()
            except BaseException as error:  # noqa: BLE001 - it ends the run, if nothing else has
                log.warning("while the run ends: %s", first_line(error))
                self.failure = self.failure or error

    def _tell(self, phase: str, at_most_every: float = 0.0) -> None:
        if not self._every("report", at_most_every):
            return
        self.progress = self._told(phase)
        self._report(self.progress)
        self._publish(None)

    def _told(self, phase: str) -> Progress:
        elapsed = time.monotonic() - self._started
        end = self._ingest.end
        source = source_told(self._pipeline.source_node, self._ingest, self._source, self._copies, elapsed)
        functions = functions_told(self._pipeline, self._sinks)
        return Progress(
            self._pipeline.name,
            elapsed,
            phase,
            end.offset,
            [source, *functions, *(shown for sink in self._sinks for shown in sink.progresses(end))],
            log_bytes=self._upkeep.size,
            log_limit=self._pipeline.settings.log_limit,
            readers=self._ingest.paused,
            spark=self._spark_told(),
        )

    def _spark_told(self) -> SparkProgress | None:
        told = self._engine.told
        return dataclasses.replace(told, queries=[s.query_progress() for s in self._sinks]) if told else None

    def _publish(self, exit_code: int | None) -> None:
        content = RunFile(
            run=self.id,
            pid=os.getpid(),
            host=socket.gethostname(),
            started=self._began,
            written=now_us(),
            progress=self.progress,
            http=self.signs.http,
            exit_code=exit_code,
        )
        try:
            publish(self._place.directory.path, content)
            self._untold = False
        except OSError as error:
            if not self._untold:  # as many times a second as it would be written
                log.warning("what `penstock status` shows of the run is old from now on: %s", error)
            self._untold = True


def _spark_gone() -> PenstockError:
    return PenstockError(
        "Spark's process has gone", hint="run it again: what was delivered is, and the rest comes then"
    )
