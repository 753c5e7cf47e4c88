"""How a pipeline stands, told once or again and again.

`Watched` remembers what it has read. Each look asks for the write heads of the pipeline's journals, and reads only
what has grown: the log is folded further, an offset log is read again if its sink has moved. So looking every second
costs a few calls, however long the log is.

The journals of the pipeline, and their write heads, may be given with each look by somebody who has asked for those of
all pipelines anyway (`listed`, `heads`): then a look at one where nothing has moved costs no call at all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from penstock.journal import labels
from penstock.journal.client import NotOfferedError
from penstock.log import deadletters, offsets
from penstock.log.control import ControlState, RunMark
from penstock.log.deadletters import DeadLetter
from penstock.log.journals import (
    KIND_LABEL,
    PIPELINE_LABEL,
    SINK_LABEL,
    control_journal,
    dead_journal,
    journal_labels,
    log_journal,
    offsets_journal,
)
from penstock.log.message import MODE_WORDS
from penstock.log.positions import GRANULE, LogCache, LogPoint, LogState
from penstock.log.reader import LogReader, Survey
from penstock.pipeline import sinkstate
from penstock.pipeline.live import running
from penstock.pipeline.progress import NodeProgress, RunFile
from penstock.pipeline.records import NamespaceStatus, PipelineStatus, RunStatus, SinkStatus
from penstock.pipeline.sinkstate import Pending

if TYPE_CHECKING:
    from penstock.pipeline.operations import Directory

_TRIM_SECONDS = 10
"""A log that is trimmed at its front does not grow by that: it is looked at again after so long."""

T = TypeVar("T")


_ALL = labels.parse_selector(f"{KIND_LABEL},{PIPELINE_LABEL}")


class Journals(NamedTuple):
    """Which journals a pipeline has."""

    sinks: tuple[str, ...]
    """Those that have an offset log, by name."""
    control: bool
    dead: bool

    def names(self, pipeline: str) -> list[str]:
        """Those that a look at the pipeline looks into."""
        names = [log_journal(pipeline), *(offsets_journal(pipeline, sink) for sink in self.sinks)]
        return names + [control_journal(pipeline)] * self.control + [dead_journal(pipeline)] * self.dead


def listed(directory: Directory) -> dict[str, Journals]:
    """The journals of all pipelines that have a log, by their names; one call."""
    found: dict[str, dict[str, list[str]]] = {}
    for journal in directory.client.list(_ALL):
        values = {label.name: label.value for label in journal.spec.labels.labels}
        kinds = found.setdefault(values[PIPELINE_LABEL], {})
        kinds.setdefault(values[KIND_LABEL], []).append(values.get(SINK_LABEL, ""))
    return {
        name: Journals(tuple(sorted(kinds.get("offsets", ()))), "control" in kinds, "dead" in kinds)
        for name, kinds in sorted(found.items())
        if "log" in kinds
    }


def heads(directory: Directory) -> Mapping[str, int]:
    """The write heads of the journals of all pipelines; one call. Of a broker that does not offer it none are known."""
    try:
        return directory.client.heads(_ALL)
    except NotOfferedError:
        return {}


class Remembered:
    """What is known of a log from earlier looks; at first, what its owner left on disk."""

    def __init__(self, disk: LogCache | None) -> None:
        self._disk = disk
        self._points: list[LogPoint] = []
        self._state: LogState | None = None

    def entries(self) -> list[LogPoint]:
        return self._disk.entries() if self._disk is not None else list(self._points)

    def state(self) -> LogState | None:
        if self._state is not None:
            return copy.deepcopy(self._state)
        return self._disk.state() if self._disk is not None else None

    def keep(self, state: LogState) -> None:
        """Go on from here the next time."""
        self._state = copy.deepcopy(state)
        known = self._points[-1].byte if self._points else -GRANULE
        if state.open is None and state.byte >= known + GRANULE:
            self._points.append(state.point)


class Watched:
    """One pipeline under observation. For one thread at a time."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.control = ControlState()
        """As of the last look."""
        self.letters: Sequence[DeadLetter] = ()
        """The dead letters as of the last look, without their content."""
        self._positions: Remembered | None = None
        self._known: dict[str, tuple[Hashable, object]] = {}
        self._heads: Mapping[str, int] = {}

    def look(
        self,
        directory: Directory,
        now: int,
        journals: Journals | None = None,
        heads: Mapping[str, int] | None = None,
    ) -> PipelineStatus:
        """How far the pipeline and each of its sinks are, at `now` (us). Of `heads` not all have to be known."""
        self._heads = heads or {}
        journals = journals or listed(directory).get(self.pipeline) or Journals((), False, False)
        file = directory.run_file(self.pipeline)
        self._read_control(directory, journals)
        run = running(directory.owner, file, self.control, now, local=directory.directory is not None)
        reader, log = self._read_log(directory, now)
        self._read_letters(directory, journals)
        sinks = self._sinks(directory, journals, reader, log, file, run, now)
        progress = file.progress if run and file else None
        return PipelineStatus(
            pipeline=self.pipeline,
            running=run is not None,
            pid=run.pid if run else None,
            oldest=max(log.state.oldest, 0),
            next=log.state.next,
            log_bytes=log.size,
            namespaces={
                ns: NamespaceStatus(MODE_WORDS[known.mode], known.offset)
                for ns, known in sorted(log.state.namespaces.items())
            },
            sinks=sinks,
            run=run,
            first=log.first.offset,
            log_limit=file.progress.log_limit if file else None,
            readers=progress.readers if progress else None,
            holder=sinkstate.holder(sinks),
            ended=None if run else sinkstate.bad_end(self.control),
            bad=sum(letter.place is not None and letter.state == "dead" for letter in self.letters),
            source=next((node for node in progress.nodes if node.kind == "source"), None)
            if progress
            else None,
        )

    def reader(self, directory: Directory) -> LogReader:
        """A reader of the log that knows what was seen of it."""
        journal = log_journal(self.pipeline)
        if self._positions is None:
            journal_labels(directory.client, journal)  # refuses a log that a newer version wrote
            here = directory.directory
            self._positions = Remembered(LogCache(here.index, journal) if here is not None else None)
        return LogReader(directory.client, journal, self._positions)

    def _read_control(self, directory: Directory, journals: Journals) -> None:
        if journals.control:
            head = self._head(directory, control_journal(self.pipeline))
            self.control = self._once("control", head, lambda: directory.control(self.pipeline).state())

    def _read_letters(self, directory: Directory, journals: Journals) -> None:
        if journals.dead:
            head = self._head(directory, dead_journal(self.pipeline))
            self.letters = self._once(
                "dead", head, lambda: deadletters.outlines(directory.client, self.pipeline)
            )

    def _read_log(self, directory: Directory, now: int) -> tuple[LogReader, Survey]:
        reader = self.reader(directory)
        head = self._head(directory, reader.journal)
        key = (head, now // (_TRIM_SECONDS * 1_000_000))
        return reader, self._once("log", key, lambda: self._folded(reader))

    def _folded(self, reader: LogReader) -> Survey:
        survey = reader.survey()
        assert self._positions is not None
        self._positions.keep(survey.state)
        return survey

    def _sinks(
        self,
        directory: Directory,
        journals: Journals,
        reader: LogReader,
        log: Survey,
        file: RunFile | None,
        run: RunStatus | None,
        now: int,
    ) -> list[SinkStatus]:
        """What a run tells counts while it goes on; of one that has ended, why a sink that stands still stopped."""
        dead = _still_dead(self.letters)
        nodes = {node.node: node for node in file.progress.nodes} if file else {}
        found = []
        for sink in journals.sinks:
            node = nodes.get(sink) if run else None
            head = self._head(directory, offsets_journal(self.pipeline, sink))
            load = partial(offsets.load, directory.client, self.pipeline, sink)
            held = self._once(f"offsets {sink}", head, load)
            watermark, end = held.commit.watermark, log.state.point
            measure = partial(sinkstate.pending, reader, watermark, end)
            lacking = _told(node, now) or self._once(f"pending {sink}", (watermark, end), measure)
            status = sinkstate.status_of(
                sink,
                held,
                end,
                lacking,
                dead_letters=dead.get(sink, 0),
                paused=sink in self.control.paused,
                node=node,
            )
            if run and node is None:
                status = _beaten(status, self.control.run)
            if not run and file is not None:
                status = replace(status, error=stopped_by(file, sink, status.watermark) or status.error)
            found.append(status)
        return found

    def _head(self, directory: Directory, journal: str) -> int:
        known = self._heads.get(journal)
        return directory.client.head(journal) if known is None else known

    def _once(self, name: str, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, made again only if the key is another one."""
        known = self._known.get(name)
        if known is not None and known[0] == key:
            return cast("T", known[1])
        made = make()
        self._known[name] = (key, made)
        return made


def _told(node: NodeProgress | None, now: int) -> Pending | None:
    """What a run measures anyway."""
    if node is None:
        return None
    return Pending(node.lag_bytes, now - int(node.lag_seconds * 1_000_000) if node.lag else None)


def _beaten(status: SinkStatus, run: RunMark | None) -> SinkStatus:
    """A sink of a run that has its file elsewhere: that it stands still, or votes, is known from the run's beat."""
    if run is None:
        return status
    status = replace(status, transaction=run.in_flight.get(status.sink))
    stands = run.standing.get(status.sink)
    return replace(status, state=stands.state, error=stands.error) if stands else status


def _still_dead(letters: Sequence[DeadLetter]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for letter in letters:
        if letter.state == "dead":
            counts[letter.sink] = counts.get(letter.sink, 0) + 1
    return counts


def stopped_by(file: RunFile, sink: str, watermark: int) -> str | None:
    """What a run had to say of a sink, if it left it at this offset."""
    node = next((node for node in file.progress.nodes if node.node == sink), None)
    return node.error if node and file.progress.log_next - node.lag == watermark else None
