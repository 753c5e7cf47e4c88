"""`file`: JSON lines, read and written. One JSON object a line, UTF-8, nothing around it.

As a source it takes lines as they are (`penstock.adaptors.file_source`); as a sink it appends them, each
exactly once whatever crashes (`penstock.adaptors.file_sink`).

Not as in the original: objects stand on lines of their own; the namespace is the name of the file without
its extension, not the path; a malformed line ends the run by name or is skipped, and never spins; a target
that holds something is refused, not written over from its first byte; a resumed run goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.adaptors.file_sink import FileSink
from penstock.adaptors.file_source import FileSource
from penstock.adaptors.uri import absolute, path_of
from penstock.base.settings import setting


@dataclass(frozen=True)
class File(Adaptor):
    """A file of JSON lines. `uri` and, for a source, what to read; for a sink, what to write."""

    name: ClassVar[str] = "file"
    description: ClassVar[str] = (
        "JSON lines. Source: reads a file, and follows it as it grows if asked to. "
        "Sink: appends the data of every message, whatever its op, exactly once."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True

    uri: str = setting("the file; relative to where the command runs", example="file://audit.jsonl")
    ns: str | None = setting(
        "source: the namespace; if not given, the file's name without extension", default=None
    )
    tail: bool = setting("source: follow the file as it grows", default=False)
    bad_lines: Literal["stop", "skip"] = setting(
        "source: at a line that is no JSON object, 'stop' or 'skip' it", default="stop"
    )
    envelope: bool = setting(
        'sink: write {"op":,"ts":,"ns":,"data":} instead of the data alone', default=False
    )
    if_exists: Literal["refuse", "append", "replace"] = setting(
        "sink: a target that others wrote: 'refuse' it, 'append' to it, or 'replace' it", default="refuse"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", absolute(self.uri, "file"))
        if self.ns == "":
            raise ValueError("setting 'ns': expected a name, got an empty one")

    @property
    def path(self) -> Path:
        return path_of(self.uri, "file")

    def source(self) -> Source:
        return FileSource(self.path, self.ns or self.path.stem, tail=self.tail, bad_lines=self.bad_lines)

    def sink(self) -> Sink:
        return FileSink(self.path, envelope=self.envelope, if_exists=self.if_exists)
