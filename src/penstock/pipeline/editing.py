"""What an operator can change: offsets of sinks, dead letters, what a source copies again, which sinks pause.

Editing needs the pipeline to stand still. A data directory is taken for the moment, so that no run can begin; while
one goes on, `InUseError` (exit 4) says so and nothing is changed. Behind a broker the last run's beat tells; a run
that begins in spite of it is fenced off by the edit, or the edit by the run, and neither loses anything.

Some things work in a run as well. `pause` and `resume` only say what is wanted, in the journal that a run follows. A
sink that a run has stopped or paused stands still: `ack` and `step` lead it past a message, `resume` has it go on.

Every change leaves an entry in the control journal: who, when, what.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.base.errors import InUseError, UsageError, did_you_mean
from penstock.journal.client import Client
from penstock.journal.datadir import DataDir
from penstock.journal.embedded import EmbeddedBroker, address
from penstock.log import commitlog, offsets
from penstock.log.control import PAUSE, RESUME, STANDING, ControlEntry, Detail
from penstock.log.deadletters import DeadLetter, DeadLetters
from penstock.log.message import Mode
from penstock.log.offsets import Commit, OffsetLog, SinkOffsets
from penstock.log.positions import NamespaceState
from penstock.pipeline import moves
from penstock.pipeline.atomic import GROUP
from penstock.pipeline.clock import now_us
from penstock.pipeline.live import is_gone, serves
from penstock.pipeline.offsetfile import Exported, ExportedSink
from penstock.pipeline.operations import Directory, running_here
from penstock.pipeline.records import Acknowledged, Move, RunStatus


@contextmanager
def open_editor(path: Path, who: str, *, patience: float = 5.0) -> Iterator[Editor]:
    """Take a data directory for editing; refused at once while a pipeline runs on it.

    A command that holds it for a moment is waited for, up to `patience` seconds.
    """
    directory = DataDir(path)
    directory.version()
    owner = directory.owner()
    if owner is not None and serves(owner):
        with Client(address(directory)) as client:
            yield Editor(Directory(client, directory, owner), who)
        return
    if owner is not None and (runs := running_here(directory, owner)):
        if not directory.socket.exists():
            raise _runs(runs[0], owner.pid)
        with Client(address(directory)) as client:
            yield Editor(Directory(client, directory, owner), who)
        return
    try:
        broker = EmbeddedBroker(path, create=False, patience=patience, passing=True)
    except InUseError as error:
        raise InUseError(error.message, hint="stop it first: offsets are edited while nothing runs") from None
    with broker, Client(broker.address) as client:
        yield Editor(Directory(client, directory), who)


def _runs(pipeline: str, pid: int, host: str = "") -> InUseError:
    where = f" on {host}" if host else ""
    return InUseError(
        f"pipeline '{pipeline}' is running (process {pid}{where}), so it cannot be edited",
        hint=f"stop it (Ctrl-C, or kill {pid}), then say this again; while it runs, `penstock pause SINK` works, and "
        "`step` and `offset ack` on a sink that is paused or has stopped",
    )


class Editor:
    """Changes pipelines of one place. Each method is one edit: done and on record when it returns."""

    def __init__(self, directory: Directory, who: str, clock: Callable[[], int] = now_us) -> None:
        self.directory = directory
        self.client = directory.client
        self.who = who
        self.clock = clock

    def require_still(self, pipeline: str) -> None:
        """Refuse while a run of this pipeline goes on; also refuses a pipeline that is not there."""
        self.directory.reader(pipeline)
        run = self._run(pipeline)
        if run is not None:
            raise _runs(pipeline, run.pid, run.host)

    def require_sink_still(self, pipeline: str, sink: str) -> None:
        """Refuse while a run feeds this sink; one that it has stopped or paused stands still."""
        self.directory.reader(pipeline)
        run = self._run(pipeline)
        if run is not None and self.directory.told_state(pipeline, sink) not in STANDING:
            raise _runs(pipeline, run.pid, run.host)

    def _run(self, pipeline: str) -> RunStatus | None:
        """The run that goes on, if one does."""
        now = self.clock()
        run, control = self.directory.run(pipeline, now), self.directory.control(pipeline)
        mark = control.state().run if run is not None else None
        return None if mark is not None and is_gone(control, mark, now) else run

    def record(self, pipeline: str, action: str, sink: str | None, detail: Detail) -> None:
        """Leave the entry that an edit leaves."""
        entry = ControlEntry(self.clock(), self.who, action, sink, detail)
        self.directory.control(pipeline).append(entry)

    def planned_mark(self, pipeline: str, sink: str, offset: int) -> Move:
        """What `mark` would do."""
        self.directory.require_sink(pipeline, sink)
        return moves.planned(
            sink, self.directory.loaded(pipeline, sink), offset, self.directory.reader(pipeline)
        )

    def mark(self, pipeline: str, sink: str, offset: int) -> Move:
        """Set the sink's offset: what is up to it counts as acknowledged, the next one is delivered next."""
        self.require_still(pipeline)
        move = self.planned_mark(pipeline, sink, offset)
        if not move.changes:
            return move
        reader = self.directory.reader(pipeline)
        done = offsets.edit(
            self.client, pipeline, sink, self.clock(), lambda held: moves.moved(held, offset, reader)
        )
        detail: Detail = {"from": move.before, "to": move.after, "generation": done.commit.generation}
        self.record(pipeline, "mark", sink, detail)
        return move

    def ack(self, pipeline: str, sink: str, wanted: Sequence[int]) -> Acknowledged:
        """Acknowledge messages without sending them; those that are not the next ones wait for their turn."""
        self.require_sink_still(pipeline, sink)
        self.directory.require_sink(pipeline, sink)
        reader = self.directory.reader(pipeline)
        before = self.directory.loaded(pipeline, sink).commit.watermark
        done = offsets.edit(
            self.client, pipeline, sink, self.clock(), lambda held: moves.acknowledged(held, wanted, reader)
        )
        given: list[object] = [*sorted(set(wanted))]
        self.record(pipeline, "ack", sink, {"offsets": given})
        return Acknowledged(sink, before - 1, done.commit.watermark - 1, done.commit.acked)

    def forget(self, pipeline: str, sink: str) -> SinkOffsets:
        """Forget a sink: its offsets are gone, and it no longer holds the log back."""
        self.require_still(pipeline)
        self.directory.require_sink(pipeline, sink)
        held = self.directory.loaded(pipeline, sink)
        offsets.forget(self.client, pipeline, sink, self.clock())
        self.record(pipeline, "delete", sink, {"offset": held.commit.watermark - 1})
        return held

    def restore(self, pipeline: str, exported: Exported) -> list[Move]:
        """Set the offsets of every sink in an export; nothing is changed unless all of it can be."""
        self.require_still(pipeline)
        reader = self.directory.reader(pipeline)
        exported.check(pipeline, self.directory.log_id(pipeline), reader.state().closed.offset)
        there = self.directory.sinks(pipeline)
        if GROUP not in there and any(wanted.sink == GROUP for wanted in exported.sinks):
            raise UsageError(
                f"'{GROUP}' is no sink: those that commit together keep their decisions under this name",
                hint="leave it out of the file; each of these sinks has offsets of its own",
            )
        done = []
        for wanted in exported.sinks:
            if wanted.sink not in there:
                OffsetLog(self.client, pipeline, wanted.sink, self.clock())
            done.append(self._restored(pipeline, wanted))
        return done

    def _restored(self, pipeline: str, wanted: ExportedSink) -> Move:
        reader = self.directory.reader(pipeline)
        held = self.directory.loaded(pipeline, wanted.sink)
        move = moves.planned(wanted.sink, held, wanted.offset, reader)
        if wanted.same_as(held):
            return move

        def change(now: SinkOffsets) -> tuple[Commit, dict[str, int]]:
            # A sink of a new name may be given the target of the one that was exported, with its generations.
            newest = max(now.commit.generation, wanted.generation)
            return wanted.commit(newest + 1), dict(wanted.namespaces)

        held = offsets.edit(self.client, pipeline, wanted.sink, self.clock(), change)
        detail: Detail = {"from": move.before, "to": move.after, "generation": held.commit.generation}
        self.record(pipeline, "import", wanted.sink, detail)
        return dataclasses.replace(move, generation=held.commit.generation)

    def replaced_backfill(self, pipeline: str, ns: str, where: str | None) -> str | None:
        """The condition of a backfill whose rows will not be copied, if `where` takes its place; None if none waits."""
        known = self._namespace(pipeline, ns)
        return known.where if where is not None and known.where != where else None

    def backfill(self, pipeline: str, ns: str, where: str | None) -> None:
        """Have the source copy a namespace again at the next run: all of it, or the rows that `where` means.

        Some rows cannot take the place of all: what of these is not copied yet would never be.
        """
        self.require_still(pipeline)
        known = self._namespace(pipeline, ns)
        if where is not None and known.mode == Mode.COPY and known.where is None:
            raise UsageError(
                f"'{ns}' is not copied to its end yet, and these rows come with all others",
                hint="run the pipeline until `penstock status` shows it as complete, then say this again",
            )
        here = self.directory.directory
        with tempfile.TemporaryDirectory() as elsewhere:
            cache = here.index if here is not None else Path(elsewhere)
            commitlog.request_backfill(self.client, pipeline, cache, ns, where, self.clock())
        self.record(pipeline, "backfill", None, {"ns": ns, "where": where})

    def _namespace(self, pipeline: str, ns: str) -> NamespaceState:
        known = self.directory.reader(pipeline).state().namespaces
        if ns not in known:
            raise UsageError(
                f"'{ns}' is not a namespace of the log of '{pipeline}'{did_you_mean(ns, known)}",
                hint="a namespace that was never read is copied at the next run anyway",
            )
        return known[ns]

    def fence_off(self, pipeline: str) -> None:
        """Make sure that no run of this pipeline goes on.

        Where no lock tells, one that has lost touch with the broker, or whose clock is wrong, looks dead: it ends then
        with its next append.
        """
        self.require_still(pipeline)
        commitlog.fence_off(self.client, pipeline, self.clock())

    def drop_letters(self, pipeline: str, letters: Sequence[DeadLetter]) -> None:
        """Give dead letters up; they can still be shown, and are not replayed any more."""
        self.require_still(pipeline)
        numbers = [letter.number for letter in letters]
        DeadLetters(self.client, pipeline, self.clock()).settle(numbers, "dropped", self.clock())
        for sink in sorted({letter.sink for letter in letters}):
            mine: list[object] = [letter.number for letter in letters if letter.sink == sink]
            self.record(pipeline, "dead-drop", sink, {"numbers": mine})


def pause(directory: Directory, pipeline: str, sink: str, who: str, *, paused: bool) -> bool:
    """Have a sink pause or go on, now or at the next run; False if it was so already."""
    directory.reader(pipeline)
    directory.require_sink(pipeline, sink)
    control = directory.control(pipeline)
    restart = not paused and directory.told_state(pipeline, sink) == "stopped"
    if (sink in control.state().paused) == paused and not restart:
        return False
    control.append(ControlEntry(now_us(), who, PAUSE if paused else RESUME, sink))
    return True
