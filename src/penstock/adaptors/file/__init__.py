"""`file`: JSON lines, CSV and Parquet, read and written; one file, or all files of a directory.

As a source it takes a file (`file_source`), a directory or pattern (`file_folder`), or standard input (`file_stdio`).
As a sink it appends to one file, each message exactly once whatever crashes (`file_sink`), writes a directory of files
(`partition_sink`), or standard output.

Not as in the original: objects stand on lines of their own; the namespace is the name of the file without
its extension, not the path; a malformed line ends the run by name, is skipped or goes to the dead letters, and never
spins; a target that holds something is refused, not written over from its first byte; a resumed run goes on where it
was.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.adaptors.file.directory import LocalFolder, is_pattern
from penstock.adaptors.file.partition_local import LocalTarget
from penstock.adaptors.file.sink import FileSink, FileStager
from penstock.adaptors.file.source import FileSource
from penstock.adaptors.file.stdio import StdinSource, StdoutSink
from penstock.adaptors.formats.contents import Codec, codec_of
from penstock.adaptors.formats.csvwalk import TYPES, CsvFormat
from penstock.adaptors.formats.csvwriter import header_of
from penstock.adaptors.formats.folder import FolderSource, namespace_of
from penstock.adaptors.formats.linewriter import Writing
from penstock.adaptors.formats.partition_sink import PartitionedSink
from penstock.adaptors.formats.partition_stage import Layout
from penstock.adaptors.formats.reading import Form, Reading, form_of
from penstock.adaptors.uri import absolute, path_of
from penstock.base.errors import UsageError
from penstock.base.settings import setting
from penstock.base.units import Unit
from penstock.log.schema import Kind

STDIN, STDOUT = "stdin://", "stdout://"


@dataclass(frozen=True)
class File(Adaptor):
    """A file. `uri` and, for a source, what to read; for a sink, what to write."""

    name: ClassVar[str] = "file"
    description: ClassVar[str] = (
        "JSON lines, CSV, Parquet. Source: reads a file, and follows it as it grows if asked to; or all files of a "
        "directory. Sink: appends the data of every message, whatever its op, exactly once."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True

    uri: str = setting(
        "the file, directory or pattern, relative to where the command runs; or stdin://, stdout://",
        example="file://audit.jsonl",
    )
    format: Literal["jsonl", "csv", "parquet"] | None = setting(
        "what is in it; if not given, what the name says, and else JSON lines", default=None
    )
    compression: Literal["none", "gzip", "zstd"] | None = setting(
        "how it is compressed; if not given, what the name says: .gz, .zst", default=None
    )
    ns: str | None = setting(
        "source: the namespace; if not given, the file's name without extension", default=None
    )
    tail: bool = setting("source: follow the file as it grows", default=False)
    watch: bool = setting("source: of a directory, read new files as they appear", default=False)
    order: Literal["name", "time"] = setting(
        "source: of a directory, the order in which files are read", default="name"
    )
    settle: float = setting(
        "source: with watch, a file not written to for so many seconds is whole",
        default=1.0,
        unit=Unit.SECONDS,
    )
    poll_interval: float = setting(
        "source: with watch, seconds between two looks", default=0.5, unit=Unit.SECONDS
    )
    bad_lines: Literal["stop", "skip", "dead-letter"] = setting(
        "source: at a line that is no message, 'stop', 'skip' it, or send it to the dead letters with 'dead-letter'",
        default="stop",
    )
    delimiter: str = setting("CSV: what stands between two fields", default=",")
    columns: list[str] = setting(  # noqa: RUF009
        "CSV: the columns; if not given, a source takes those of the first line, a sink those of its first message",
        default=[],
    )
    null_text: str = setting("CSV: what a null is written as, without quotes", default="")
    types: dict[str, str] = setting(  # noqa: RUF009
        "CSV source: types of columns that are not text, such as {'id': 'int', 'at': 'timestamp'}", default={}
    )
    envelope: bool = setting(
        'sink: write {"op":,"ts":,"ns":,"data":} instead of the data alone; as columns _op, _ts, _ns, _offset in '
        "CSV and Parquet",
        default=False,
    )
    if_exists: Literal["refuse", "append", "replace"] = setting(
        "sink: a target that others wrote: 'refuse' it, 'append' to it, or 'replace' it", default="refuse"
    )
    unknown_fields: Literal["error", "ignore"] = setting(
        "CSV sink: a field that is no column: refuse the message with an 'error', or 'ignore' the field",
        default="error",
    )
    partition_by: list[str] = setting(  # noqa: RUF009
        "sink: of a directory, how rows are parted: fields, 'ns' for the namespace, 'date' for the day of ts",
        default=["ns"],
    )

    def __post_init__(self) -> None:
        if self.uri not in (STDIN, STDOUT):
            ends = "/" if self.uri.endswith("/") else ""
            object.__setattr__(self, "uri", absolute(self.uri, "file") + ends)
        if self.ns == "":
            raise ValueError("setting 'ns': expected a name, got an empty one")
        if len(self.delimiter.encode()) != 1 or self.delimiter in '"\r\n':
            raise ValueError(f"setting 'delimiter': expected one character, got {self.delimiter!r}")
        for column, word in self.types.items():
            if word not in {kind.value for kind in TYPES}:
                known = ", ".join(kind.value for kind in TYPES)
                raise ValueError(f"setting 'types': column '{column}' cannot be '{word}'; there are {known}")
        self._check_together()

    def _check_together(self) -> None:
        if self.form == "parquet" and self.compression not in (None, "none"):
            raise ValueError("setting 'compression': a Parquet file is compressed in itself")
        if self.tail and self.uri not in (STDIN, STDOUT):
            if self.is_folder:
                raise ValueError(
                    "setting 'tail': a directory is not followed; for new files in it set watch=True"
                )
            if self.form == "parquet" or self.codec != "none":
                raise ValueError(
                    "setting 'tail': a file can be followed if it is JSON lines or CSV, not compressed"
                )

    @property
    def path(self) -> Path:
        return path_of(self.uri, "file")

    @property
    def is_folder(self) -> bool:
        return self.watch or self.uri.endswith("/") or is_pattern(self.uri) or self.path.is_dir()

    @property
    def form(self) -> Form:
        return self.format or form_of(self.uri)

    @property
    def codec(self) -> Codec:
        return self.compression or codec_of(self.uri)

    @property
    def reading(self) -> Reading:
        types = {column: Kind(word) for column, word in self.types.items()}
        csv = CsvFormat(self.delimiter, tuple(self.columns), self.null_text, types)
        return Reading(self.bad_lines, self.format, self.compression, csv)

    def source(self) -> Source:
        if self.uri == STDOUT:
            raise UsageError("adaptor 'file': stdout:// cannot be a source", hint="stdin:// can")
        if self.uri == STDIN:
            if self.form == "parquet" or self.codec != "none":
                raise UsageError("adaptor 'file': stdin:// takes JSON lines or CSV, not compressed")
            return StdinSource(self.ns or "stdin", self.reading)
        if self.is_folder:
            return FolderSource(
                "file",
                LocalFolder(self.path, settle=self.settle),
                ns=self.ns,
                watch=self.watch,
                order=self.order,
                reading=self.reading,
                poll=self.poll_interval,
            )
        return FileSource(
            self.path, self.ns or namespace_of(self.path.name), tail=self.tail, reading=self.reading
        )

    def sink(self) -> Sink:
        if self.uri == STDIN:
            raise UsageError("adaptor 'file': stdin:// cannot be a sink", hint="stdout:// can")
        if self.form == "parquet" or (self.uri != STDOUT and self.uri.endswith("/")):
            return self._partitioned()
        writing = Writing(
            form=self.form,
            codec=self.codec,
            envelope=self.envelope,
            columns=tuple(self.columns),
            delimiter=self.reading.csv_of(self.uri).delimiter,
            null_text=self.null_text,
            unknown_fields=self.unknown_fields,
        )
        if self.uri == STDOUT:
            if writing.form == "csv" and not writing.columns:
                raise UsageError("adaptor 'file': CSV to stdout:// needs the setting 'columns'")
            return StdoutSink(
                FileStager(writing, None), header_of(self.columns, writing) if self.form == "csv" else b""
            )
        return FileSink(self.path, writing=writing, if_exists=self.if_exists)

    def _partitioned(self) -> Sink:
        if self.uri == STDOUT or self.form == "csv":
            raise UsageError(
                "adaptor 'file': a directory of files is written as JSON lines or Parquet",
                hint="set format='parquet'; one file of CSV is file://NAME.csv",
            )
        layout = Layout(
            "parquet" if self.form == "parquet" else "jsonl",
            self.codec,
            tuple(self.partition_by),
            self.envelope,
        )
        return PartitionedSink(LocalTarget(self.path), layout, self.if_exists)
