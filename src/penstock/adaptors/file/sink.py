"""The writing half of `file`: appends lines to one file, each exactly once.

Tasks write their lines into part files beside the target. The publisher appends these, and keeps in a file
beside the target, `.NAME.penstock`, how long the target is and which messages that covers. A crash can leave
the target longer than recorded, never shorter; what is beyond is cut off and comes again. Deletes and updates
are lines like any other, as in the original; with `envelope` a reader can tell them apart.

A compressed target grows by whole members (gzip) or frames (zstd), so that it can be cut between any two of them. A CSV
target has one header; its columns are those of the settings, or the fields of the first message, and are recorded with
the length.

Bytes behind the recorded length are the publisher's own: nobody else should append to the target.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.adaptors.away import os_error, telling
from penstock.adaptors.base import (
    Finding,
    Guarantee,
    Order,
    Publisher,
    Refusal,
    Sink,
    SinkPosition,
    Stage,
    Staged,
    Stager,
)
from penstock.adaptors.file.obstacles import obstacles_to_file
from penstock.adaptors.formats.contents import FRONT, codec_at
from penstock.adaptors.formats.csvwriter import first_fields, header_of, records_of
from penstock.adaptors.formats.linewriter import Writing, lines_of
from penstock.adaptors.formats.partfile import PartFile, compressed
from penstock.adaptors.parts import whole_messages
from penstock.adaptors.staging import Tally
from penstock.base.disk import Disk, DiskFile
from penstock.base.errors import CorruptError, PenstockError, UsageError
from penstock.base.locks import lock_soon

if TYPE_CHECKING:
    import pyarrow as pa

IfExists = Literal["refuse", "append", "replace"]

FORMAT = 1

log = logging.getLogger(__name__)


class FileSink(Sink):
    """One file of JSON lines; lines stand in the order of the log."""

    order = Order.TOTAL
    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        target: Path,
        *,
        writing: Writing | None = None,
        if_exists: IfExists = "refuse",
        disk: Disk | None = None,
    ) -> None:
        self._target = target
        self._writing = writing or Writing()
        self._if_exists: IfExists = if_exists
        self._disk = disk or Disk()

    def inspect(self, namespaces: Sequence[str] | None = None) -> Sequence[Finding]:
        return obstacles_to_file(self._target)

    def stager(self) -> Stager:
        return FileStager(self._writing, self._target)

    def publisher(self) -> Publisher:
        return FilePublisher(self._target, self._if_exists, self._disk, self._writing)

    def staging(self, scratch: Path) -> Path:
        """Beside the target: on its filesystem, parts are appended without passing through this process."""
        return staging_of(self._target)


def staging_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.staging")


def position_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.penstock")


class FileStager(Stager):
    """Writes the lines of one task into one part file."""

    def __init__(self, writing: Writing, target: Path | None) -> None:
        self._writing = writing
        self._target = target

    def stage(self, stage: Stage, rows: Iterator[pa.RecordBatch]) -> Staged:
        tally = Tally(stage.skip_below)
        refused: list[Refusal] = []
        part = stage.directory / stage.name
        columns = self._columns()
        with telling(f"cannot write {part}"):
            stage.directory.mkdir(parents=True, exist_ok=True)
            with PartFile(part, self._writing.codec) as file:
                for fresh in whole_messages(map(tally.fresh, rows)):
                    if self._writing.form == "csv":
                        columns = columns or first_fields(fresh)
                        lines, taken, refusals = records_of(fresh, columns, self._writing)
                    else:
                        lines, taken, refusals = lines_of(fresh, envelope=self._writing.envelope)
                    file.write(lines)
                    tally.add(taken)
                    refused += refusals
            size = part.stat().st_size
            if not size:
                part.unlink()
            elif self._writing.form == "csv":
                columns_beside(part).write_bytes(msgspec.json.encode(columns))
        return tally.staged(str(part) if size else "", size, refused)

    def _columns(self) -> Sequence[str]:
        """Those of the settings, or those that the target has; none if it is still to be begun."""
        if self._writing.form != "csv" or self._writing.columns or self._target is None:
            return self._writing.columns
        kept = recorded(self._target)
        return kept.columns or () if kept is not None else ()


def columns_beside(part: Path) -> Path:
    """Where the stager of a part of CSV tells the publisher which columns it has."""
    return part.with_name(f"{part.name}.columns")


class Kept(msgspec.Struct, frozen=True):
    """The content of the position file: the first `length` bytes of the target are all below `watermark`."""

    log: str
    generation: int
    watermark: int
    length: int
    columns: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of CSV, once it has a header."""
    format: int = FORMAT


class FilePublisher(Publisher):
    """Appends parts to the target and moves its position.

    To publish:

    1. cut the target to the recorded length, so that nothing a crash left is in the way;
    2. append the parts, in their order, behind a newline if what others wrote has none at its end;
    3. sync the target;
    4. replace the position file, which makes the new length the recorded one.

    A crash before 4 leaves the old length, and the messages come again; after 4 everything is done. A new
    target gets a position file at once: to replace that syncs the directory, and so the target's entry in it.
    """

    def __init__(
        self,
        target: Path,
        if_exists: IfExists = "refuse",
        disk: Disk | None = None,
        writing: Writing | None = None,
    ) -> None:
        self._target = target
        self._writing = writing or Writing()
        self._if_exists = if_exists
        self._disk = disk or Disk()
        self._file: DiskFile | None = None
        self._kept: Kept | None = None

    def open(self, start: SinkPosition) -> SinkPosition:
        """Find or make the target. A generation older than `start` counts for nothing: it was rewound."""
        self.close()
        self._file = file = self._opened()
        try:
            with telling(f"cannot write {self._target}"):
                kept = recorded(self._target)
                if kept is not None and kept.log == start.log:
                    # The publisher before us may have been killed between renaming and syncing what we build on.
                    self._disk.sync_dir(self._target.parent)
                    self._kept = self._continued(file, kept, start)
                else:
                    self._kept = self._claimed(file, start)
        except PenstockError:
            self.close()
            raise
        return SinkPosition(self._kept.log, self._kept.generation, self._kept.watermark)

    def publish(self, parts: Sequence[Staged], position: SinkPosition) -> None:
        file, kept = self._file, self._kept
        if file is None or kept is None:
            raise PenstockError(f"{self._target} is not open")
        length, columns = kept.length, kept.columns
        written = [staged for staged in parts if staged.part]
        with telling(f"cannot write {self._target}"):
            if written:
                file.truncate(length)  # 1
                if self._writing.form == "csv":
                    length, columns = self._begun(file, kept, [Path(staged.part) for staged in written])
                elif self._writing.codec == "none":
                    length = _on_a_new_line(file, length)
                for staged in written:  # 2
                    length += self._appended(file, staged, length)
                file.sync()  # 3
            self._keep(Kept(position.log, position.generation, position.watermark, length, columns))  # 4
        for staged in written:
            self._clear(Path(staged.part))

    def overlaps(self, parts: Sequence[Staged]) -> bool:
        """Unless the stager has to see the columns that a first batch has begun a CSV with."""
        return self._writing.form != "csv" or bool(self._writing.columns)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            shutil.rmtree(staging_of(self._target), ignore_errors=True)

    def _opened(self) -> DiskFile:
        """The target, made if need be, ours alone from now on; and the parts of earlier runs cleared."""
        try:
            file = self._disk.open(self._target, create=True)
        except OSError as error:
            raise os_error(f"cannot write {self._target}", error) from None
        try:
            if not stat.S_ISREG(self._target.stat().st_mode):
                raise UsageError(f"cannot write {self._target}: it is not a file")
            lock_soon(file.fileno())
        except BlockingIOError:
            file.close()
            raise UsageError(
                f"{self._target} is being written by another sink", hint="give each sink a file of its own"
            ) from None
        except UsageError:
            file.close()
            raise
        shutil.rmtree(staging_of(self._target), ignore_errors=True)
        return file

    def _continued(self, file: DiskFile, kept: Kept, start: SinkPosition) -> Kept:
        """Go on with a target that this log wrote."""
        if kept.generation > start.generation:
            raise UsageError(
                f"{self._target} was written in generation {kept.generation} of this sink's history, "
                f"the offset log knows only {start.generation}: it is older than the target",
                hint="bring back the offset log that belongs to the target, or move the target away",
            )
        self._check_codec(file)
        self._check_commas(file, kept)
        size = file.size()
        if size < kept.length:
            raise self._too_short(size, kept)
        if size > kept.length:
            log.warning("%s: %d bytes of an unfinished batch cut off", self._target, size - kept.length)
            file.truncate(kept.length)
        if kept.generation < start.generation:
            return Kept(start.log, start.generation, start.watermark, kept.length, kept.columns)
        return kept

    def _claimed(self, file: DiskFile, start: SinkPosition) -> Kept:
        """Begin with a target that is empty, or that the settings say to take over."""
        size = file.size()
        if size and self._if_exists == "refuse":
            raise UsageError(
                f"{self._target} holds {size} bytes that this pipeline did not write",
                hint="move it away, or set if_exists='append' to keep them or 'replace' to lose them",
            )
        if size and self._if_exists == "append" and self._writing.form == "csv" and not self._writing.columns:
            raise UsageError(
                f"{self._target} has columns that nobody has told",
                hint="name them in their order with the setting 'columns'",
            )
        if size and self._if_exists == "replace":
            file.truncate(0)
        elif size:
            self._check_codec(file)
            file.sync()  # the length that is recorded next must be there
        kept = Kept(start.log, start.generation, start.watermark, file.size())
        self._keep(kept)
        return kept

    def _check_codec(self, file: DiskFile) -> None:
        """Lines behind others that are compressed in another way, or not at all, could not be read."""
        found = codec_at(file.read_at(FRONT, 0))
        if file.size() and found != self._writing.codec:
            raise UsageError(
                f"{self._target} has the compression '{found}', and '{self._writing.codec}' was to be added to it",
                hint=f"set compression='{found}', or move it away",
            )

    def _check_commas(self, file: DiskFile, kept: Kept) -> None:
        """Records behind others with commas between their fields could not be read with them."""
        writing = self._writing
        if writing.form != "csv" or writing.codec != "none" or not kept.columns or len(kept.columns) < 2:
            return
        header = header_of(kept.columns, replace(writing, delimiter=","))
        if writing.delimiter != "," and file.read_at(len(header), 0) == header:
            raise UsageError(
                f"{self._target} has commas between its fields, and {writing.delimiter!r} was to stand there",
                hint="move it away, or set the delimiter that it has; that of .tsv is a tab",
            )

    def _begun(self, file: DiskFile, kept: Kept, parts: Sequence[Path]) -> tuple[int, tuple[str, ...]]:
        """A header, if there is none yet; the length with it, and the columns."""
        told = {
            tuple(msgspec.json.decode(columns_beside(part).read_bytes(), type=list[str])) for part in parts
        }
        if kept.columns:
            told.add(kept.columns)
        if len(told) > 1:
            raise PenstockError(
                f"messages for {self._target} have different fields, and there is no header yet",
                hint="name the columns with the setting 'columns'",
            )
        (columns,) = told
        length = _on_a_new_line(file, kept.length) if self._writing.codec == "none" else kept.length
        if length:
            return length, columns
        header = compressed(header_of(columns, self._writing), self._writing.codec)
        file.write_at(header, 0)
        return len(header), columns

    def _appended(self, file: DiskFile, staged: Staged, length: int) -> int:
        size = file.copy_from(Path(staged.part), length)
        if size != staged.bytes:
            raise PenstockError(
                f"the part {staged.part} has {size} bytes, its task reported {staged.bytes}",
                hint="something else writes to that directory, or its disk fails; start again",
            )
        return size

    def _clear(self, part: Path) -> None:
        """Parts are done with once published; what cannot be removed now is at the next `open`."""
        with contextlib.suppress(OSError):
            part.unlink()
            columns_beside(part).unlink(missing_ok=True)
            part.parent.rmdir()

    def _keep(self, kept: Kept) -> None:
        self._disk.replace_file(position_of(self._target), msgspec.json.encode(kept))
        self._kept = kept

    def _too_short(self, size: int, kept: Kept) -> CorruptError:
        return CorruptError(
            f"the file ends here, but {kept.length} bytes of it were written and recorded",
            where=str(self._target),
            position=size,
            hint=f"bring the file back; or remove {position_of(self._target).name} as well, "
            "to begin a new file with the messages from here on",
        )


def recorded(target: Path) -> Kept | None:
    """What the position file says; None if there is none."""
    path = position_of(target)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        kept = msgspec.json.decode(text, type=Kept)
    except msgspec.DecodeError as error:
        raise CorruptError(
            f"not the position of a file sink: {error}",
            where=str(path),
            position=0,
            hint=f"if {target.name} can be written anew, move both files away",
        ) from None
    if kept.format > FORMAT:
        raise CorruptError(
            f"format {kept.format}, this version knows {FORMAT}", where=str(path), position=0,
            hint="use the version of Penstock that wrote it, or a newer one",
        )  # fmt: skip
    return kept


def _on_a_new_line(file: DiskFile, length: int) -> int:
    """The length at which a line can begin."""
    if not length or file.read_at(1, length - 1) == b"\n":
        return length
    file.write_at(b"\n", length)
    return length + 1
