"""A directory or a prefix of files, written by batches, each message in them exactly once.

To publish:

1. note the names of the files to come;
2. bring the files, under names that nobody else uses;
3. replace the position, which makes them count;
4. take back the note.

A crash before 3 leaves a note of a publication that the position does not name: the files in the note are taken away,
and their messages come again. After 3 nothing is left to do. A reader may see files of step 2 before they count, or for
as long as nobody starts the sink again after a crash; the position tells which count, since their names have the
offset they go up to. No two publications use the same names, of whatever log: a target may hold files of others.

Whatever the files lie in is a `Target`: a directory (`partition_local`) or an object store (`s3_target`).
"""

from __future__ import annotations

import logging
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.adaptors.away import telling
from penstock.adaptors.base import (
    Finding,
    Guarantee,
    Order,
    Publisher,
    Sink,
    SinkPosition,
    Staged,
    Stager,
)
from penstock.adaptors.formats.partition_stage import (
    RAW,
    Files,
    Layout,
    PartitionStager,
    by_schema,
    by_value,
    united,
)
from penstock.base.errors import CorruptError, PenstockError, RefusedError, UsageError
from penstock.log.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

IfExists = Literal["refuse", "append", "replace"]

FORMAT = 1
LATE = "late"
"""In the directory of a task: what the publisher wrote for it."""

log = logging.getLogger(__name__)


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position of a target: its files hold all messages below `watermark`, by these schemas."""

    log: str
    generation: int
    watermark: int
    number: int = 0
    """Counts the positions that were saved."""
    batch: str = ""
    """The last publication."""
    schemas: dict[str, Schema | None] = {}
    format: int = FORMAT


class Note(msgspec.Struct, frozen=True):
    """What a publication is about to bring."""

    batch: str
    names: tuple[str, ...]


class Target(ABC):
    """Where the files go. Names are relative, with `/` between their parts."""

    where: str
    locked: bool = True
    """Whether `open` keeps others out. If not, each writer claims the position, and who was late cannot save his."""

    @abstractmethod
    def inspect(self) -> Sequence[Finding]:
        """What stands in the way of writing; connects, changes nothing."""

    @abstractmethod
    def open(self) -> None:
        """Connect; be the only one, if that can be had."""

    @abstractmethod
    def load(self) -> tuple[Kept | None, Sequence[Note]]:
        """The position and the notes that are there, made durable if they are not."""

    @abstractmethod
    def save(self, kept: Kept) -> None:
        """Replace the position by the one with the next number; durable on return. Another writer is an error."""

    @abstractmethod
    def note(self, note: Note) -> None:
        """Leave a note, in place of the one before, durable on return."""

    @abstractmethod
    def forget_notes(self) -> None:
        """Take back all notes that `load` told, and that of this writer."""

    @abstractmethod
    def bring(self, files: Iterable[tuple[Path, str]]) -> None:
        """Bring staged files under these names, all durable on return."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Take files away, those that are there."""

    @abstractmethod
    def others(self) -> Sequence[str]:
        """The names of files that are there."""

    @abstractmethod
    def staging(self, scratch: Path) -> Path:
        """Where tasks should stage."""

    def close(self) -> None:  # noqa: B027 - a target may hold nothing
        """Let go of it."""


class PartitionedSink(Sink):
    """Rows as files by partition. Knows the schemas of the namespaces that it has met."""

    order = Order.NONE
    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, target: Target, layout: Layout, if_exists: IfExists) -> None:
        self._target = target
        self._layout = layout
        self._if_exists: IfExists = if_exists
        self._met: dict[str, Schema | None] = {}

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        return self._target.inspect()

    def stager(self) -> Stager:
        return PartitionStager(self._layout, self.met(), self.schemas)

    def publisher(self) -> Publisher:
        return PartitionPublisher(self._target, self, self._layout, self._if_exists)

    def staging(self, scratch: Path) -> Path:
        return self._target.staging(scratch)

    def meet(self, schemas: Mapping[str, Schema | None]) -> None:
        for ns, schema in schemas.items():
            self._know(ns, schema)

    def met(self) -> dict[str, Schema | None]:
        return dict(self._met)

    def learn(self, ns: str, last: int) -> None:
        """All fields that a namespace has had up to this message: rows of later ones are written with them."""
        schema = self._met.get(ns)
        for told in self.schemas.told(ns):
            schema = united(schema, told.schema) if told.since <= last else schema
        self._know(ns, schema)

    def _know(self, ns: str, schema: Schema | None) -> None:
        if ns not in self._met or self._met[ns] != schema:
            self.learnt += 1
        self._met[ns] = schema


class PartitionPublisher(Publisher):
    """Brings the staged files of a batch into the target."""

    def __init__(self, target: Target, sink: PartitionedSink, layout: Layout, if_exists: IfExists) -> None:
        self._target = target
        self._sink = sink
        self._layout = layout
        self._if_exists: IfExists = if_exists
        self._kept: Kept | None = None

    def open(self, start: SinkPosition) -> SinkPosition:
        self._target.open()
        try:
            kept, notes = self._target.load()
            done = kept.batch if kept is not None else ""
            unfinished = [name for note in notes if note.batch != done for name in note.names]
            if kept is None or kept.log != start.log:
                kept = self._claimed(kept, start, unfinished)
            elif kept.generation > start.generation:
                raise UsageError(
                    f"{self._target.where} was written in generation {kept.generation} of this sink's history, "
                    f"the offset log knows only {start.generation}: it is older than the target",
                    hint="bring back the offset log that belongs to the target, or move the target away",
                )
            elif not self._target.locked:
                kept = msgspec.structs.replace(kept, number=kept.number + 1)
                self._target.save(kept)
            if notes:
                self._take_back(unfinished)
            if kept.generation < start.generation:
                kept = msgspec.structs.replace(kept, generation=start.generation, watermark=start.watermark)
        except PenstockError:
            self._target.close()
            raise
        self._kept = kept
        self._sink.meet(kept.schemas)
        return SinkPosition(kept.log, kept.generation, kept.watermark)

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        kept = self._kept
        if kept is None:
            raise PenstockError(f"{self._target.where} is not open")
        self._kept = None
        directories = [Path(staged.part) for staged in parts if staged.part]
        for directory in directories:
            with telling(f"cannot write {directory}"):
                self._write_raw(directory)
        for staged in parts:
            for ns, last in staged.namespaces.items():
                self._sink.learn(ns, last)
        batch = uuid.uuid4().hex[:12]
        files = list(self._named(directories, position, batch))
        if files:
            self._target.note(Note(batch, tuple(name for _, name in files)))  # 1
            self._target.bring(files)  # 2
        number = kept.number + 1
        moved = Kept(position.log, position.generation, position.watermark, number, batch, self._sink.met())
        self._target.save(moved)  # 3
        if files:
            self._target.forget_notes()  # 4
        self._kept = moved
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        self._kept = None
        self._target.close()

    def _claimed(self, kept: Kept | None, start: SinkPosition, unfinished: Sequence[str]) -> Kept:
        """Begin with a target that is empty, or that the settings say to take over."""
        others = [name for name in self._target.others() if name not in unfinished]
        if others and self._if_exists == "refuse":
            raise UsageError(
                f"{self._target.where} holds files that this pipeline did not write, such as {others[0]}",
                hint="move them away, or set if_exists='append' to keep them or 'replace' to lose them",
            )
        self._target.remove(unfinished)  # nobody would know of them any more
        if others and self._if_exists == "replace":
            self._target.remove(others)
        claimed = Kept(start.log, start.generation, start.watermark, kept.number + 1 if kept else 1)
        self._target.save(claimed)
        return claimed

    def _take_back(self, unfinished: Sequence[str]) -> None:
        if unfinished:
            log.warning("%s: %d files of an unfinished batch taken away", self._target.where, len(unfinished))
            self._target.remove(unfinished)
        self._target.forget_notes()

    def _named(
        self, directories: Sequence[Path], position: SinkPosition, batch: str
    ) -> Iterable[tuple[Path, str]]:
        """The staged files, and what they will be called."""
        unique = f"g{position.generation}-{position.watermark:015d}-{batch}"
        count = 0
        for directory in directories:
            for path in sorted(directory.rglob(f"*{self._layout.ending}")):
                if not path.is_file():  # a value that ends as files do
                    continue
                above = path.relative_to(directory).parent.parts
                above = above[1:] if above[:1] == (LATE,) else above
                count += 1
                yield path, "/".join((*above, f"part-{count:05d}-{unique}{self._layout.ending}"))

    def _write_raw(self, directory: Path) -> None:
        """Write rows whose schema their task did not know, now that it can be asked for."""
        import pyarrow as pa

        raw = directory / RAW
        if not raw.exists():
            return
        under = directory / LATE
        under.mkdir(exist_ok=True)
        with pa.OSFile(str(raw)) as file, Files(under, self._layout) as files:
            reader = pa.ipc.open_file(file)
            for index in range(reader.num_record_batches):
                for origin, rows in by_value(reader.get_batch(index), "origin"):
                    self._add_raw(files, origin, rows)
        raw.unlink()

    def _add_raw(self, files: Files, origin: str, rows: pa.RecordBatch) -> None:
        for told, some in by_schema(rows, self._sink.schemas.told(origin)):
            _, refused = files.add(some, united(self._sink.met().get(origin), told))
            if refused:
                raise RefusedError(f"message {refused[0].offset} of {refused[0].ns}: {refused[0].error}")


def read_kept(text: bytes, where: str) -> Kept:
    try:
        kept = msgspec.json.decode(text, type=Kept)
    except msgspec.DecodeError as error:
        raise CorruptError(f"not the position of a sink: {error}", where=where, position=0) from None
    if kept.format > FORMAT:
        raise CorruptError(
            f"format {kept.format}, this version knows {FORMAT}", where=where, position=0,
            hint="use the version of Penstock that wrote it, or a newer one",
        )  # fmt: skip
    return kept
