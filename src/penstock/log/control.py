"""The control journal of a pipeline: what operators asked for, and what runs told of themselves.

One JSON object a line, one append each. Nobody owns it: appends are atomic, and the order in the journal is the order
in which things were asked. `state` is the fold: which sinks are paused, and the last run. Every edit of an operator
leaves an entry here as well, so the journal is the audit record too.

It keeps itself small. When it has grown, its fragment is closed and a summary appended: the fold of everything
before that border, and the newest entries there that are more than heartbeats. What lies before the border is then
trimmed; entries between the border and the summary, from others, count on top of the summary.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from penstock.base.errors import CorruptError
from penstock.base.process import has_ended
from penstock.journal.client import Client
from penstock.log.journals import (
    KIND_LABEL,
    PIPELINE_LABEL,
    control_journal,
    ensure,
    extent,
    journal_labels,
    journal_spec,
    read_whole,
    steadily,
)
from penstock.log.transaction import Transaction

RUN_BEGIN, RUN_BEAT, RUN_END = "run-begin", "run-beat", "run-end"
PAUSE, RESUME = "pause", "resume"
STANDING = ("stopped", "paused")
"""What a run calls a sink that it does not feed until an operator says so."""
BEAT_SECONDS = 5.0
ALIVE_SECONDS = 20.0
"""A run whose last beat is older is taken for dead, where no lock tells."""

_SUMMARY = "summary"
_SEGMENT_BYTES = 16 << 20
_ROOM = 1 << 20
_KEPT_ENTRIES = 1000

DetailValue = str | int | float | bool | list[object] | dict[str, object] | None
Detail = dict[str, DetailValue]


class ControlEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: at `time` (us) `who` did `action`, on a sink perhaps."""

    time: int
    who: str
    action: str
    sink: str | None = None
    detail: Detail = {}


class Standing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sink that a run does not feed until an operator says so: how it calls that, and why it is so."""

    state: str
    error: str | None = None


class RunMark(msgspec.Struct, frozen=True):
    """What the last run told. `beat` is when it was last heard of; times in us."""

    run: str
    pid: int = 0
    host: str = ""
    http: str | None = None
    began: int = 0
    beat: int = 0
    ended: bool = False
    exit_code: int | None = None
    process: str = ""
    """The identity of its process (`penstock.base.process`)."""
    file: str = ""
    """The pipeline file it was given, on its host; with `:NAME` if that was said."""
    cwd: str = ""
    """The directory it was started in, from which relative places in the file count."""
    graph: dict[str, object] | None = None
    """The shape of the pipeline: nodes and edges, as `penstock graph` tells them."""
    standing: dict[str, Standing] = {}
    """The sinks that stand still while it runs, as of its last beat."""
    in_flight: dict[str, Transaction] = {}
    """The two-phase commits of its sinks that take their time, as of its last beat."""
    functions: list[dict[str, object]] = []
    """What each of its functions has done, as a run's file has it."""
    spark: dict[str, object] | None = None
    """Its Spark session with the last batches, as a run's file has it."""

    def after(self, beat: ControlEntry) -> RunMark:
        """This mark and one more beat. Not every beat tells what is different with every batch."""
        told: Detail = {name: beat.detail[name] for name in ("functions", "spark") if name in beat.detail}
        moment = msgspec.convert(told | {"run": self.run}, RunMark)
        return msgspec.structs.replace(
            self,
            beat=max(self.beat, beat.time),
            standing=msgspec.convert(beat.detail.get("standing") or {}, dict[str, Standing]),
            in_flight=msgspec.convert(beat.detail.get("in_flight") or {}, dict[str, Transaction]),
            functions=moment.functions if "functions" in told else self.functions,
            spark=moment.spark if "spark" in told else self.spark,
        )

    def alive(self, now: int) -> bool:
        """Whether it is taken to run still, at `now` (us)."""
        recent = now - self.beat < ALIVE_SECONDS * 1_000_000
        return not self.ended and recent and not has_ended(self.process)

    def is_ahead(self, now: int) -> bool:
        """Whether its last beat is from a time to come: a clock was set back, or its machine has another time."""
        return self.beat - now >= ALIVE_SECONDS * 1_000_000


class ControlState(msgspec.Struct, frozen=True):
    """The fold over the entries."""

    paused: frozenset[str] = frozenset()
    run: RunMark | None = None
    source: str = ""
    """The source that the last run read."""

    def after(self, entry: ControlEntry) -> ControlState:
        """This state and one more entry."""
        replace = msgspec.structs.replace
        if entry.action == PAUSE and entry.sink is not None:
            return replace(self, paused=self.paused | {entry.sink})
        if entry.action == RESUME and entry.sink is not None:
            return replace(self, paused=self.paused - {entry.sink})
        if entry.action == RUN_BEGIN:
            return replace(self, run=_begun(entry), source=str(entry.detail.get("source") or self.source))
        if self.run is None or entry.detail.get("run") != self.run.run:
            # Of two that began at once the later one may have given way. Who beats lives.
            takes_its_place = entry.action == RUN_BEAT and "pid" in entry.detail
            return replace(self, run=_begun(entry)) if takes_its_place and self._vacant else self
        if entry.action == RUN_BEAT:
            return replace(self, run=self.run.after(entry))
        if entry.action == RUN_END:
            code = entry.detail.get("exit_code")
            # What was in flight at its last beat is decided, or the next run decides it.
            ended = replace(
                self.run, ended=True, exit_code=code if isinstance(code, int) else None, in_flight={}
            )
            return replace(self, run=ended)
        return self

    @property
    def _vacant(self) -> bool:
        return self.run is None or self.run.ended


class _Summary(msgspec.Struct, frozen=True):
    """Stands for everything before byte `upto`."""

    upto: int
    state: ControlState
    kept: tuple[ControlEntry, ...] = ()
    places: tuple[int, ...] = ()
    """The byte at which each of those was; not known if an earlier version has kept them."""

    def lines(self) -> list[tuple[int, ControlEntry]]:
        """What was kept, with where it was: of what is not known so much, that it was before `upto`."""
        unknown = (self.upto - 1,) * (len(self.kept) - len(self.places))
        return list(zip(unknown + self.places, self.kept, strict=True))


class _Content(NamedTuple):
    """What the journal says: the last summary, and the entries that count on top of it."""

    summary: _Summary
    newer: list[tuple[int, ControlEntry]]
    end: int

    def state(self) -> ControlState:
        state = self.summary.state
        for _, entry in self.newer:
            state = state.after(entry)
        return state

    def lines(self) -> list[tuple[int, ControlEntry]]:
        """Every entry that is left, with the byte at which it is or was."""
        return [*self.summary.lines(), *self.newer]


class Control:
    """The control journal of one pipeline. Reading makes nothing; the first append makes the journal."""

    def __init__(self, client: Client, pipeline: str) -> None:
        self.journal = control_journal(pipeline)
        self._client = client
        self._pipeline = pipeline
        self._there = False
        self._tidied = 0
        self._lock = threading.Lock()

    def append(self, entry: ControlEntry) -> None:
        """Add an entry; durable on return."""
        with self._lock:
            if not self._there:
                extra = {PIPELINE_LABEL: self._pipeline, KIND_LABEL: "control"}
                ensure(self._client, journal_spec(self.journal, _SEGMENT_BYTES, extra))
                self._there = True
                self._tidied = extent(self._client, self.journal).begin
            landed = self._client.append(self.journal, msgspec.json.encode(entry) + b"\n")
            if landed.end - self._tidied > _ROOM:
                self._tidy(entry.time)

    def entries(self, begin: int = 0) -> list[ControlEntry]:
        """The entries from byte `begin` on; of what was trimmed, those that were worth keeping."""
        content = self._read()
        if begin > content.summary.upto:
            return self.changed_since(begin)[1]
        return [entry for _, entry in content.lines()]

    def state(self) -> ControlState:
        return self._read().state()

    def changed_since(self, byte: int) -> tuple[int, list[ControlEntry]]:
        """The entries from `byte` on, and where to go on from the next time. Begin with 0."""
        if not self._exists():
            return 0, []
        return steadily(lambda: self._changed_since(byte))

    def _changed_since(self, byte: int) -> tuple[int, list[ControlEntry]]:
        if byte and self._client.head(self.journal) <= byte:  # as mostly, twice a second
            return byte, []
        begin, head = extent(self._client, self.journal)
        if byte < begin:
            content = self._content()
            return content.end, [entry for at, entry in content.lines() if at >= byte]
        raw = read_whole(self._client, self.journal, byte, head)
        return head, [entry for _, entry in _parsed(raw, self.journal, byte) if entry.action != _SUMMARY]

    def _exists(self) -> bool:
        self._there = self._there or journal_labels(self._client, self.journal) is not None
        return self._there

    def _read(self) -> _Content:
        if not self._exists():
            return _Content(_Summary(0, ControlState()), [], 0)
        return steadily(self._content)

    def _content(self, below: int | None = None) -> _Content:
        """All of it, or what counts of it below a border; summaries are looked for everywhere."""
        begin, head = extent(self._client, self.journal)
        raw = read_whole(self._client, self.journal, begin, head)
        lines = list(_parsed(raw, self.journal, begin))
        summary = _latest_summary(entry for _, entry in lines)
        end = head if below is None else below
        newer = [(at, entry) for at, entry in lines if summary.upto <= at < end and entry.action != _SUMMARY]
        return _Content(summary, newer, end)

    def _tidy(self, now: int) -> None:
        """Sum up what lies before a new border, then trim it.

        Another process may be doing the same. Whose border is behind has nothing left to sum up.
        """
        border = self._client.roll(self.journal).offset
        content = steadily(lambda: self._content(below=border))
        if content.summary.upto < border:
            history = [(at, entry) for at, entry in content.lines() if entry.action != RUN_BEAT]
            places, kept = zip(*history[-_KEPT_ENTRIES:], strict=True) if history else ((), ())
            summary = _Summary(border, content.state(), kept, places)
            line = ControlEntry(now, "penstock", _SUMMARY, None, msgspec.to_builtins(summary))
            self._client.append(self.journal, msgspec.json.encode(line) + b"\n")
            self._client.trim(self.journal, border)
        self._tidied = max(border, content.summary.upto)


def _latest_summary(entries: Iterable[ControlEntry]) -> _Summary:
    found = [msgspec.convert(entry.detail, _Summary) for entry in entries if entry.action == _SUMMARY]
    return max(found, key=lambda summary: summary.upto, default=_Summary(0, ControlState()))


def _parsed(raw: bytes, journal: str, base: int) -> Iterable[tuple[int, ControlEntry]]:
    position = 0
    for line in raw.splitlines(keepends=True):
        try:
            yield base + position, msgspec.json.decode(line, type=ControlEntry)
        except msgspec.DecodeError as error:
            raise CorruptError(
                f"not a control entry ({error})", where=journal, position=base + position
            ) from None
        position += len(line)


def _begun(entry: ControlEntry) -> RunMark:
    known = {
        name: entry.detail.get(name)
        for name in ("run", "pid", "host", "http", "process", "file", "cwd", "graph")
    }
    told = {name: value for name, value in known.items() if value is not None}
    return msgspec.convert({**told, "began": entry.time, "beat": entry.time}, RunMark)
