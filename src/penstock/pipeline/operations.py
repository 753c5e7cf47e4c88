"""What an operator can ask about pipelines, whether they run or not. Starts no Spark, changes nothing.

The journals are asked: those of a data directory, through the process that owns it, or through this one for the
moment if nobody does; or those of a broker. Nothing is created by asking.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.base.errors import InUseError, UsageError, did_you_mean
from penstock.journal import labels
from penstock.journal.client import Client
from penstock.journal.datadir import DataDir, Owner
from penstock.journal.embedded import EmbeddedBroker, connect
from penstock.log import deadletters, offsets
from penstock.log.control import Control, ControlEntry, ControlState
from penstock.log.deadletters import DeadLetter
from penstock.log.journals import (
    ID_LABEL,
    KIND_LABEL,
    PIPELINE_LABEL,
    SINK_LABEL,
    journal_labels,
    log_journal,
)
from penstock.log.offsets import SinkOffsets
from penstock.log.positions import LogCache
from penstock.log.reader import LogReader
from penstock.log.record import Record
from penstock.pipeline.clock import now_us
from penstock.pipeline.live import running
from penstock.pipeline.namespace import Namespace
from penstock.pipeline.progress import RunFile, published
from penstock.pipeline.records import LogEntry, PipelineStatus, RunStatus, SinkStatus, entry
from penstock.pipeline.watching import Watched, heads, listed, stopped_by

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PATIENCE = 15.0
_POLL = 0.02


@contextmanager
def open_directory(path: Path) -> Iterator[Directory]:
    """Look into a data directory, which must be there."""
    directory = DataDir(path)
    directory.version()
    while (owner := _lasting_owner(directory)) is None:
        try:
            broker = EmbeddedBroker(path, create=False, patience=0.0, passing=True)
        except InUseError:
            continue  # somebody was faster
        with broker, Client(broker.address) as client:
            yield Directory(client, directory)
        return
    _refuse_without_journals(directory, owner)
    with connect(path) as client:
        yield Directory(client, directory, owner)


def _lasting_owner(directory: DataDir) -> Owner | None:
    """Who owns the directory, other commands aside: their broker would go before we are done with it."""
    deadline = time.monotonic() + _PATIENCE
    while (owner := directory.owner()) is not None and owner.passing and time.monotonic() < deadline:
        time.sleep(_POLL)
    return owner


def _refuse_without_journals(directory: DataDir, owner: Owner) -> None:
    """A run whose journals are at a broker elsewhere owns the directory, and serves nothing from it."""
    runs = running_here(directory, owner)
    if runs and not directory.socket.exists():
        raise UsageError(
            f"pipeline '{runs[0]}' runs in {directory.path}, but its journals are at a broker",
            hint="name that broker with --broker; `penstock top` works here",
        )


def running_here(directory: DataDir, owner: Owner) -> list[str]:
    """The pipelines that the owner of a directory runs, by what it tells itself."""
    files = {
        path.stem: published(directory.path, path.stem) for path in (directory.path / "runs").glob("*.json")
    }
    mine = [name for name, file in files.items() if file and file.pid == owner.pid and file.exit_code is None]
    return sorted(mine)


def utc(ts: int) -> str:
    """A moment as a date in UTC; the bare number if no calendar reaches that far."""
    try:
        return (_EPOCH + timedelta(microseconds=ts)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except OverflowError:
        return str(ts)


class Directory:
    """The pipelines of a data directory, or of a broker. Each call answers for the moment of the call."""

    def __init__(
        self,
        client: Client,
        directory: DataDir | None = None,
        owner: Owner | None = None,
        *,
        runs: Path | None = None,
    ) -> None:
        """Without a directory it is a broker's: no lock tells who runs, and no cache tells where messages are.

        `runs` is where a run that has its journals at that broker leaves its file, for those beside it.
        """
        self.client = client
        self.directory = directory
        self.owner = owner
        self._runs = runs

    @property
    def place(self) -> str:
        """Where this is, for messages to a person."""
        return str(self.directory.path) if self.directory else self.client.address

    def pipelines(self) -> list[str]:
        """The pipelines that have a commit log here."""
        found = self.client.list(labels.parse_selector(f"{KIND_LABEL}=log"))
        return sorted(labels.values_of(journal.spec.labels, PIPELINE_LABEL)[0] for journal in found)

    def sinks(self, pipeline: str) -> list[str]:
        """The sinks that have an offset log, by name."""
        selector = labels.parse_selector(f"{KIND_LABEL}=offsets,{PIPELINE_LABEL}={pipeline}")
        found = self.client.list(selector)
        return sorted(labels.values_of(journal.spec.labels, SINK_LABEL)[0] for journal in found)

    def require_sink(self, pipeline: str, sink: str) -> None:
        """Refuse a sink that has no offset log."""
        there = self.sinks(pipeline)
        if sink not in there:
            raise UsageError(
                f"there is no sink '{sink}'{did_you_mean(sink, there)}",
                hint="a sink is known from its first run on; `penstock offset list` shows them",
            )

    def log_id(self, pipeline: str) -> str:
        """The identity of the commit log: offsets mean something for this log alone."""
        return (journal_labels(self.client, log_journal(pipeline)) or {}).get(ID_LABEL, "")

    def reader(self, pipeline: str) -> LogReader:
        """A reader of the pipeline's log, which must be there."""
        journal = log_journal(pipeline)
        if journal_labels(self.client, journal) is None:
            known = self.pipelines()
            raise UsageError(f"no pipeline '{pipeline}' in {self.place}{did_you_mean(pipeline, known)}")
        cache = LogCache(self.directory.index, journal) if self.directory else None
        return LogReader(self.client, journal, cache)

    def oldest(self, pipeline: str) -> int:
        """The first message that is still there, compacted or not; -1 if there is none."""
        found = self.reader(pipeline).oldest()
        return -1 if found is None else found

    def current(self, pipeline: str) -> int:
        """The last message of the log; -1 if it has none."""
        return self.reader(pipeline).state().next - 1

    def show(self, pipeline: str, first: int, last: int, ns: Namespace | None = None) -> Iterator[LogEntry]:
        """Messages `first` to `last`, both included, of the namespaces that `ns` means.

        Refuses a range that the log never held or of which nothing is left; within one, those messages are left
        out that compaction has removed.
        """
        for record in self.records(pipeline, first, last):
            if ns is None or ns.matches(record.ns):
                yield entry(record)

    def records(self, pipeline: str, first: int, last: int) -> Iterator[Record]:
        """As `show`, the messages as they are in the log."""
        reader = self.reader(pipeline)
        end = reader.state().next
        oldest = max(self.oldest(pipeline), 0)
        if not oldest <= first <= last < end:
            held = f"{oldest} to {end - 1}" if end else "no messages"
            asked = f"{first}" if first == last else f"{first} to {last}"
            raise UsageError(f"the log of '{pipeline}' holds {held}, asked for {asked}")
        found = False
        for record in reader.show(first, last):
            found = True
            yield record
        if not found:
            asked = f"message {first} is" if first == last else f"messages {first} to {last} are"
            raise UsageError(
                f"{asked} not in the log of '{pipeline}' any more: all sinks had acknowledged, and compaction "
                "kept the newest message of each namespace only",
                hint=f"from {reader.first().offset} on everything is there",
            )

    def message(self, pipeline: str, offset: int) -> Record | None:
        """One message; None if compaction has removed it."""
        found = self.reader(pipeline).messages([offset])
        return found.get(offset)

    def offsets(self, pipeline: str) -> Sequence[SinkStatus]:
        """Every sink that has an offset log, by name."""
        return self.status(pipeline).sinks

    def loaded(self, pipeline: str, sink: str) -> SinkOffsets:
        """What a sink's offset log says."""
        return offsets.load(self.client, pipeline, sink)

    def control(self, pipeline: str) -> Control:
        return Control(self.client, pipeline)

    def audit(self, pipeline: str) -> list[ControlEntry]:
        """What operators did, and when runs began and ended; oldest first."""
        return self.control(pipeline).entries()

    def dead(self, pipeline: str) -> list[DeadLetter]:
        """The dead letters, also those that were replayed or dropped."""
        self.reader(pipeline)
        return deadletters.load(self.client, pipeline)

    def run_file(self, pipeline: str) -> RunFile | None:
        """What the newest run left in the data directory; of a broker's, if that run is beside us."""
        if self.directory is not None:
            return published(self.directory.path, pipeline)
        found = published(self._runs, pipeline) if self._runs is not None else None
        newest = self.control(pipeline).state().run if found is not None else None
        return found if found is not None and newest is not None and newest.run == found.run else None

    def run(self, pipeline: str, now: int) -> RunStatus | None:
        """The run that goes on now, if one does."""
        return self._run(self.control(pipeline).state(), self.run_file(pipeline), now)

    def status(self, pipeline: str, now: int | None = None) -> PipelineStatus:
        """How far the pipeline and each of its sinks are."""
        self.reader(pipeline)
        return Watched(pipeline).look(self, now_us() if now is None else now)

    def statuses(self, pipelines: Iterable[str]) -> list[PipelineStatus]:
        """As `status`, of several: what can be asked for all of them at once is."""
        journals, ends, found = listed(self), heads(self), []
        for pipeline in pipelines:
            self.reader(pipeline)
            found.append(Watched(pipeline).look(self, now_us(), journals.get(pipeline), ends))
        return found

    def _run(self, control: ControlState, file: RunFile | None, now: int) -> RunStatus | None:
        return running(self.owner, file, control, now, local=self.directory is not None)

    def told_state(self, pipeline: str, sink: str) -> str | None:
        """What the run that goes on says of a sink; None if none goes on.

        Of one that has its file elsewhere, behind a broker, only sinks are known that stand still.
        """
        control, file = self.control(pipeline).state(), self.run_file(pipeline)
        if self._run(control, file, now_us()) is None:
            return None
        if file is not None and file.exit_code is None:
            return next((node.state for node in file.progress.nodes if node.node == sink), None)
        stands = control.run.standing.get(sink) if control.run else None
        return stands.state if stands else None

    def stopped_by(self, pipeline: str, sink: str, watermark: int) -> str | None:
        """Why the newest run stopped a sink at this offset; None if it did not, or goes on trying."""
        file = self.run_file(pipeline)
        stopped = file and any(one.node == sink and one.state == "stopped" for one in file.progress.nodes)
        return stopped_by(file, sink, watermark) if file and stopped else None
