"""The life of one pipeline, lived once and looked at by many tests: what it kept of its promises.

Before     a log of 0 to 15 with the seed's keys; c0 has acknowledged 12, c1 13, c2 nothing; then, as after `kill -9`:
One        a strict run that follows its source: each sink gets what it misses, then 16 to 18 are read; it is asked to
           stop while c0 is in the middle of its last batch
Idle       a run that finds nothing to do
Two        scratch and index are lost; 19 to 25 are read; c0's target refuses the bulk; `broken`, which is new, refuses
           everything; c2 is left out
Three      c0 gets them one at a time; 24 is poison
After      an operator acknowledges 24 and steps to 25
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pyspark.sql import SparkSession

from penstock import Pipeline
from penstock import adaptors as a
from penstock import functions as f
from penstock.adaptors.base import Adaptor, Batch, Publisher, Sink, SinkPosition, Source, Staged
from penstock.journal.client import Client
from penstock.journal.embedded import EmbeddedBroker
from penstock.log.commitlog import CommitLog
from penstock.log.message import Message, Mode, Op, Resume
from penstock.log.offsets import SinkOffsets
from penstock.pipeline.delivering import step
from penstock.pipeline.editing import open_editor
from penstock.pipeline.operations import open_directory
from penstock.pipeline.progress import Progress, SinkSummary, Summary
from penstock.pipeline.records import LogEntry, Stepped
from penstock.pipeline.runner import run

from .picky import Picky, PickyPublisher, PickySink, attempts

KEYS = "AABBAABBCACBAACB"
NOW = 1_700_000_000_000_000
POISON = 24


def text(n: int, more: str = "") -> str:
    return f'{{"n":{n},"x":1.10{more}}}'


@dataclass(frozen=True)
class Told(Adaptor):
    """A source that gives the batches it was told, and tells what it was given."""

    name: ClassVar[str] = "told"
    description: ClassVar[str] = "for tests"
    reads: ClassVar[bool] = True
    batches: tuple[Batch, ...] = ()
    begun: Callable[[Mapping[str, Resume]], None] = lambda resume: None
    stays: bool = False

    def source(self) -> Source:
        return ToldSource(self)


class ToldSource(Source):
    def __init__(self, told: Told) -> None:
        self._told = told

    def namespaces(self) -> Sequence[str]:
        return "ABCD"

    def read(self, accept: object, resume: Mapping[str, Resume], stop: object) -> Iterator[Batch]:
        self._told.begun(resume)
        yield from self._told.batches
        if self._told.stays:
            stop.wait()  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Slow(Picky):
    """A picky target that takes its time over a batch with a slow document: until `asked` is there."""

    name: ClassVar[str] = "slow"

    def sink(self) -> Sink:
        return SlowSink(self.directory)


class SlowSink(PickySink):
    def publisher(self) -> Publisher:
        return SlowPublisher(self._directory)


class SlowPublisher(PickyPublisher):
    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        if any('"slow"' in Path(part.part).read_text() for part in parts if part.part):
            (self._directory / "publishing").touch()
            deadline = time.monotonic() + 120
            while not (self._directory / "asked").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.5)
        super().publish(parts, position)


def broken(message: object) -> object:
    raise KeyError("nothing works here")


@dataclass(frozen=True)
class Chapter:
    """How things stood when a run had ended."""

    summary: Summary
    phases: frozenset[str]
    held: Mapping[str, SinkOffsets]
    lines: Mapping[str, Sequence[str]]

    def sink(self, name: str) -> SinkSummary:
        return next(sink for sink in self.summary.sinks if sink.sink == name)

    def offset(self, sink: str) -> int:
        """The last message that a sink has acknowledged."""
        return self.held[sink].commit.watermark - 1


@dataclass
class Story:
    """What happened."""

    path: Path
    spark: SparkSession
    before: dict[str, int] = field(default_factory=dict)
    given: list[Mapping[str, Resume]] = field(default_factory=list)
    """What the source was given at each start."""
    when_read: list[dict[str, int]] = field(default_factory=list)
    """What the sinks had acknowledged when reading began."""
    kept_meanwhile: int = -1
    """What the offset log of c2 said while the run went on, some time after its last message was dropped."""
    chapters: dict[str, Chapter] = field(default_factory=dict)
    shown: Sequence[LogEntry] = ()
    stepped: Sequence[Stepped] = ()
    acknowledged: int = -1
    strangers: tuple[Path, ...] = ()
    """Files of somebody else, in the middle of it all."""

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def target(self) -> Path:
        return self.path / "target"

    @property
    def temporary(self) -> Path:
        return self.path / "temporary"

    @property
    def attempts(self) -> list[int]:
        """How many documents each bulk of c0 had."""
        return attempts(self.target)

    def tell(self) -> None:
        """Live it."""
        for folder in (self.target, self.temporary, self.path / "scratch"):
            folder.mkdir()
        with EmbeddedBroker(self.data):
            own = self.path / "scratch" / "penstock-seed"
            own.mkdir()
            self.strangers = tuple(
                folder / "notes.txt" for folder in (self.target, self.data, own.parent, own)
            )
            for path in self.strangers:
                path.write_text("precious")
        usual, tempfile.tempdir = tempfile.tempdir, str(self.temporary)
        try:
            self._before()
            self._one()
            self._idle()
            self._two()
            self._three()
            self._after()
        finally:
            tempfile.tempdir = usual

    def pipeline(self, told: Told, sinks: Sequence[str] = ("c0", "c1", "c2")) -> Pipeline:
        """The pipeline, with some of its sinks."""
        pipeline = Pipeline("seed", strict=told.stays)
        pipeline.modules = (Picky.__module__, __name__)
        source = pipeline.source("in", told)
        renamed = source.transform("named", f.remap(ns_map={"A": "Z"}))
        ways = {
            "c0": (source, Slow(directory=self.target), ".*"),
            "c1": (source.transform("slim", f.omit(fields=["x"])), self._file("c1"), ".*"),
            "c2": (
                renamed.transform("early", f.skip(field="n", operator="<", match=12), ns="^Z$"),
                self._file("c2"),
                "^[AB]$",
            ),
            "broken": (source.transform("wrong", f.python(broken)), self._file("broken"), ".*"),
        }
        for sink in sinks:
            node, adaptor, ns = ways[sink]
            node.save(sink, adaptor, ns)
        return pipeline

    def _file(self, sink: str) -> Adaptor:
        return a.file(uri=f"file://{self.path}/{sink}.jsonl", envelope=sink == "c2")

    def _before(self) -> None:
        with EmbeddedBroker(self.data) as broker, Client(broker.address) as client:
            log = CommitLog(client, "seed", self.data / "index", None, NOW)
            copied = [Message(ns, text(n).encode(), ts=NOW + n) for n, ns in enumerate(KEYS[:12])]
            log.append(copied, {ns: {"at": 12} for ns in "ABC"}, ["A", "B"], NOW)
            later = [
                Message(ns, text(n).encode(), Op.UPDATE, NOW + n, Mode.COPY if ns == "C" else Mode.SYNC)
                for n, ns in enumerate(KEYS[12:], 12)
            ]
            log.append(later, {ns: {"at": 16} for ns in "ABC"}, [], NOW)
            log.close()
        pipeline = self.pipeline(Told())
        with open_editor(self.data, "the story") as editor:
            assert len(list(step(editor, pipeline, "c0", 13, bury=False))) == 13
            assert len(list(step(editor, pipeline, "c1", 14, bury=False))) == 14
        self.before = {sink: held.commit.watermark - 1 for sink, held in self._held().items()}

    def _one(self) -> None:
        def begun(resume: Mapping[str, Resume]) -> None:
            self.given.append(resume)
            self.when_read.append({sink: held.commit.watermark - 1 for sink, held in self._held().items()})

        done: list[float] = []

        def stop_while_c0_is_at_it(progress: Progress) -> None:
            others = [node for node in progress.nodes if node.kind == "sink" and node.node != "c0"]
            asked = self.target / "asked"
            if not (self.target / "publishing").exists() or asked.exists() or any(n.pending for n in others):
                return
            done.append(time.monotonic())
            self.kept_meanwhile = self._held()["c2"].commit.watermark - 1
            if self.kept_meanwhile == 18 or done[-1] - done[0] > 20:
                os.kill(os.getpid(), signal.SIGINT)
                asked.touch()

        batches = (
            Batch([Message("D", text(16).encode(), ts=NOW)], {"D": {"at": 1}}, ["D"]),
            Batch([Message("D", text(17).encode(), Op.UPDATE, NOW, Mode.SYNC)], {"D": {"at": 2}}),
            Batch(
                [Message("A", text(18, ',"slow":1').encode(), Op.DELETE, NOW, Mode.SYNC)], {"A": {"at": 18}}
            ),
        )
        told = Told(batches, begun, stays=True)
        self._chapter("one", self.pipeline(told), once=False, report=stop_while_c0_is_at_it)

    def _idle(self) -> None:
        self._chapter("idle", self.pipeline(Told(begun=self.given.append)))

    def _two(self) -> None:
        (scratch,) = (self.path / "scratch").glob("penstock-seed-*")
        shutil.rmtree(scratch)
        shutil.rmtree(self.data / "index")
        (self.target / "poison").write_text(text(POISON) + "\n")
        bulk = [Message("A", text(n).encode(), Op.UPDATE, NOW, Mode.SYNC) for n in range(19, 26)]
        self._chapter("two", self.pipeline(Told((Batch(bulk, {"A": {"at": 26}}),)), ("c0", "c1", "broken")))

    def _three(self) -> None:
        self._chapter("three", self.pipeline(Told(), ["c0"]))

    def _after(self) -> None:
        with open_directory(self.data) as directory:
            self.shown = list(directory.show("seed", POISON, POISON + 1))
        with open_editor(self.data, "the story") as editor:
            self.acknowledged = editor.ack("seed", "c0", [POISON]).after
            self.stepped = list(step(editor, self.pipeline(Told()), "c0", 1, bury=False))
        self._chapter("after", self.pipeline(Told(), ["c0", "c1"]))

    def _chapter(
        self,
        name: str,
        pipeline: Pipeline,
        *,
        once: bool = True,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        phases: set[str] = set()

        def reported(progress: Progress) -> None:
            phases.add(progress.phase)
            report(progress)

        summary = run(
            pipeline,
            data_dir=self.data,
            once=once,
            scratch=self.path / "scratch",
            spark=self.spark,
            report=reported,
        )
        files = {
            "c0": self.target / "out.jsonl",
            **{s: self.path / f"{s}.jsonl" for s in ("c1", "c2", "broken")},
        }
        lines = {sink: path.read_text().splitlines() for sink, path in files.items() if path.exists()}
        self.chapters[name] = Chapter(summary, frozenset(phases), self._held(), lines)

    def _held(self) -> dict[str, SinkOffsets]:
        """What the offset logs say."""
        with open_directory(self.data) as directory:
            return {sink: directory.loaded("seed", sink) for sink in directory.sinks("seed")}
