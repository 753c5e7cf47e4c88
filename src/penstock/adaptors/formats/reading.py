"""How files are read, wherever they lie: their format, how they are compressed, and what becomes of bad lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.adaptors.base import Bad, Batch
from penstock.adaptors.formats.contents import (
    Codec,
    Content,
    Decompressed,
    bare_name,
    codec_of,
    mark_at,
    mark_of_whole,
)
from penstock.adaptors.formats.csvwalk import CsvFormat, CsvWalk
from penstock.adaptors.formats.lines import Lines
from penstock.adaptors.formats.parquetwalk import ParquetWalk
from penstock.adaptors.formats.walks import Last, LineWalk, Taken, Walk
from penstock.base.errors import PenstockError
from penstock.log.message import Mode, Position
from penstock.log.packing import Packed, pack, pack_lines
from penstock.log.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

BadLines = Literal["stop", "skip", "dead-letter"]
Form = Literal["jsonl", "csv", "parquet"]

_FORMS: Mapping[str, Form] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".parq": "parquet",
    ".pq": "parquet",
}

ANOTHER_FILE = "bring the old content back, or read the new one as another namespace, with the setting 'ns'"

log = logging.getLogger(__name__)


class BadLineError(PenstockError):
    """A line that cannot be a message."""


class FileChangedError(PenstockError):
    """What lies in front of the position is not what was read."""


def form_of(name: str) -> Form:
    """The format of a file of this name; JSON lines if it says no other."""
    bare = bare_name(name)
    return next((form for ending, form in _FORMS.items() if bare.lower().endswith(ending)), "jsonl")


@dataclass(frozen=True)
class Reading:
    """Settings. What is None is guessed from the name of each file."""

    bad_lines: BadLines = "stop"
    form: Form | None = None
    codec: Codec | None = None
    csv: CsvFormat = field(default_factory=CsvFormat)

    def form_of(self, name: str) -> Form:
        return self.form or form_of(name)

    def codec_of(self, name: str) -> Codec:
        return self.codec or codec_of(name)

    def csv_of(self, name: str) -> CsvFormat:
        """Tabs stand between the fields of a file whose name says so, unless something else is set."""
        tabs = self.csv.delimiter == "," and bare_name(name).lower().endswith(".tsv")
        return replace(self.csv, delimiter="\t") if tabs else self.csv

    def can_grow(self, name: str) -> bool:
        """Whether a file can be read while it is written."""
        return self.form_of(name) != "parquet" and self.codec_of(name) == "none"


class _Known(msgspec.Struct):
    """A position in a file as the log gives it back."""

    byte: int = 0
    line: int = 0
    group: int = 0
    row: int = 0
    mark: str = ""


class OpenFile:
    """One file being read from a position on, which is checked to be a position in this very file."""

    def __init__(self, raw: Content, reading: Reading, position: Position, last: Last) -> None:
        self.raw = raw
        self._grows = reading.can_grow(raw.name)
        known = msgspec.convert(position, _Known)
        self._mark_of_whole = "" if self._grows else mark_of_whole(raw)
        self._mark, self._marked = known.mark, known.byte
        self.check()
        self.walk = self._walk(reading, known, last if self._grows else "take")

    def _walk(self, reading: Reading, known: _Known, last: Last) -> Walk:
        form, codec = reading.form_of(self.raw.name), reading.codec_of(self.raw.name)
        content = self.raw if codec == "none" else Decompressed(self.raw, codec)
        stop = reading.bad_lines == "stop"
        if form == "parquet":
            return ParquetWalk(content, {"group": known.group, "row": known.row})
        place = {"byte": known.byte, "line": known.line}
        if form == "csv":
            csv = reading.csv_of(self.raw.name)
            return CsvWalk(content, place, csv, stop_at_bad=stop, last=last)
        return LineWalk(content, place, stop_at_bad=stop, last=last)

    @property
    def byte(self) -> int:
        return self.walk.place.get("byte", 0)

    def position(self) -> Position:
        """Where the reader is, with a mark of what it has read."""
        if not self._grows:
            return {**self.walk.place, "mark": self._mark_of_whole}
        if self.byte != self._marked:
            self.check()
            self._mark, self._marked = mark_at(self.raw, self.byte), self.byte
        return {**self.walk.place, "mark": self._mark}

    def check(self) -> None:
        """Refuse a file that is not the one read up to the last position."""
        if not self._grows:
            if self._mark and self._mark != self._mark_of_whole:
                raise FileChangedError(f"{self.raw.name} is not the file that was read", hint=ANOTHER_FILE)
            return
        size = self.raw.size()
        if size < self._marked:
            raise FileChangedError(
                f"{self.raw.name} has {size} bytes, but {self._marked} were read from it: it was cut or replaced",
                hint=ANOTHER_FILE,
            )
        if self._marked and self._mark != mark_at(self.raw, self._marked):
            raise FileChangedError(
                f"{self.raw.name} is not the file that was read up to byte {self._marked}: its content is another",
                hint=ANOTHER_FILE,
            )


def _packed(ns: str, texts: pa.Array | Lines, now: int, mode: Mode) -> Packed:
    if isinstance(texts, Lines):
        return pack_lines(ns, texts.text, texts.ends, ts=now, mode=mode)
    return pack(ns, texts, ts=now, mode=mode)


class Batches:
    """Makes batches of what was taken; tells schemas when they change, and does with bad lines what is set."""

    def __init__(self, bad_lines: BadLines) -> None:
        self._bad_lines = bad_lines
        self._told: dict[str, Schema] = {}
        self.skipped = 0
        """Bad lines left out since the start."""

    def of(self, ns: str, mode: Mode, file: OpenFile, taken: Taken, position: Position) -> Batch:
        now = time.time_ns() // 1000
        packed = [_packed(ns, taken.texts, now, mode)] if len(taken.texts) else []
        schemas = {}
        schema = file.walk.schema
        if schema is not None and self._told.get(ns) != schema:
            schemas[ns] = self._told[ns] = schema
        bad = self._dead(ns, file.raw.name, taken) if self._bad_lines == "dead-letter" else ()
        return Batch((), {ns: position}, schemas=schemas, packed=packed, bad=bad)

    def complain(self, name: str, taken: Taken) -> None:
        """Raise the error of the first bad line, or count and log them, as the setting says."""
        if not taken.bad or self._bad_lines == "dead-letter":
            return
        first = taken.bad[0]
        if self._bad_lines == "stop":
            raise BadLineError(
                f"{name}, line {first.line + 1}, at byte {first.byte}: {first.reason}",
                hint="mend the line and start again, or leave such lines out with bad_lines='skip', "
                "or keep them among the dead letters with bad_lines='dead-letter'",
            )
        self.skipped += len(taken.bad)
        log.warning(
            "%s: %d bad lines left out, %d since the start; the first is line %d, at byte %d: %s",
            name, len(taken.bad), self.skipped, first.line + 1, first.byte, first.reason,
        )  # fmt: skip

    def _dead(self, ns: str, name: str, taken: Taken) -> list[Bad]:
        return [
            Bad(ns, f"{name}, line {bad.line + 1}, byte {bad.byte}", bad.reason, bad.content)
            for bad in taken.bad
        ]
