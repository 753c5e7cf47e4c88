"""`s3`: files under a prefix of a bucket, of S3 and of what speaks as it does, of Google and of Azure.

As a source it reads the objects that are there, in the order of their names or times, and those that come later
(`penstock.adaptors.formats.folder`). As a sink it puts files of JSON lines or Parquet by partition, each message
exactly once (`penstock.adaptors.formats.partition_sink`).

URLs and credentials are those of the journal's stores: keys come from the environment or the profile files, never from
the pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from penstock.adaptors.base import Adaptor, Sink, Source
from penstock.adaptors.formats.csvwalk import TYPES, CsvFormat
from penstock.adaptors.formats.folder import FolderSource
from penstock.adaptors.formats.partition_sink import PartitionedSink
from penstock.adaptors.formats.partition_stage import Layout
from penstock.adaptors.formats.reading import Reading
from penstock.adaptors.s3.places import S3Folder, S3Target
from penstock.base.errors import UsageError
from penstock.base.settings import setting
from penstock.base.units import Unit
from penstock.log.schema import Kind

_SCHEMES = ("s3://", "gs://", "azure://", "az://")


@dataclass(frozen=True)
class S3(Adaptor):
    """Objects under a prefix."""

    name: ClassVar[str] = "s3"
    description: ClassVar[str] = (
        "Objects of S3, Google and Azure. Source: JSON lines, CSV and Parquet under a prefix, and new ones as they "
        "come. Sink: files of Parquet or JSON lines by partition, exactly once."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    extra: ClassVar[str] = "s3"

    uri: str = setting(
        "bucket and prefix; s3://, gs:// or azure://, with arguments such as ?endpoint= and &region=",
        example="s3://lake/orders/",
    )
    format: Literal["jsonl", "csv", "parquet"] | None = setting(
        "what is in the objects; if not given, a source takes what each name says, a sink writes Parquet",
        default=None,
    )
    compression: Literal["none", "gzip", "zstd"] | None = setting(
        "how they are compressed; if not given, what each name says: .gz, .zst", default=None
    )
    ns: str | None = setting(
        "source: one namespace for all; if not given, each object is one, by its name", default=None
    )
    watch: bool = setting("source: read new objects as they appear", default=False)
    order: Literal["name", "time"] = setting("source: the order in which objects are read", default="name")
    poll_interval: float = setting(
        "source: with watch, seconds between two listings", default=5.0, unit=Unit.SECONDS
    )
    late: float = setting(
        "source: by how much an object may show up later than its time says, as those do that take long to upload",
        default=3600.0,
        unit=Unit.SECONDS,
    )
    bad_lines: Literal["stop", "skip", "dead-letter"] = setting(
        "source: at a line that is no message, 'stop', 'skip' it, or send it to the dead letters with 'dead-letter'",
        default="stop",
    )
    delimiter: str = setting("CSV source: what stands between two fields", default=",")
    columns: list[str] = setting(  # noqa: RUF009
        "CSV source: the columns; if not given, those of the first line", default=[]
    )
    null_text: str = setting("CSV source: what a null is written as, without quotes", default="")
    types: dict[str, str] = setting(  # noqa: RUF009
        "CSV source: types of columns that are not text, such as {'id': 'int', 'at': 'timestamp'}", default={}
    )
    envelope: bool = setting(
        'sink: write {"op":,"ts":,"ns":,"data":} instead of the data alone; as columns _op, _ts, _ns, _offset in '
        "Parquet",
        default=False,
    )
    if_exists: Literal["refuse", "append", "replace"] = setting(
        "sink: objects that others wrote: 'refuse' to go on, 'append', or 'replace' them", default="refuse"
    )
    partition_by: list[str] = setting(  # noqa: RUF009
        "sink: how rows are parted: fields, 'ns' for the namespace, 'date' for the day of ts", default=["ns"]
    )

    def __post_init__(self) -> None:
        if not self.uri.startswith(_SCHEMES):
            raise ValueError(
                f"setting 'uri': expected s3://BUCKET/PREFIX, gs:// or azure://, got '{self.uri}'"
            )
        if self.uri.startswith("az://"):
            object.__setattr__(self, "uri", f"azure://{self.uri.removeprefix('az://')}")
        path, mark, arguments = self.uri.partition("?")
        object.__setattr__(self, "uri", f"{path.rstrip('/')}/{mark}{arguments}")
        if self.ns == "":
            raise ValueError("setting 'ns': expected a name, got an empty one")
        if len(self.delimiter.encode()) != 1 or self.delimiter in '"\r\n':
            raise ValueError(f"setting 'delimiter': expected one character, got {self.delimiter!r}")
        for column, word in self.types.items():
            if word not in {kind.value for kind in TYPES}:
                known = ", ".join(kind.value for kind in TYPES)
                raise ValueError(f"setting 'types': column '{column}' cannot be '{word}'; there are {known}")

    def source(self) -> Source:
        types = {column: Kind(word) for column, word in self.types.items()}
        csv = CsvFormat(self.delimiter, tuple(self.columns), self.null_text, types)
        return FolderSource(
            "s3",
            S3Folder(self.uri, late=self.late),
            ns=self.ns,
            watch=self.watch,
            order=self.order,
            reading=Reading(self.bad_lines, self.format, self.compression, csv),
            poll=self.poll_interval,
        )

    def sink(self) -> Sink:
        if self.format == "csv":
            raise UsageError("adaptor 's3': objects are written as Parquet or JSON lines, not as CSV")
        layout = Layout(
            self.format or "parquet", self.compression or "none", tuple(self.partition_by), self.envelope
        )
        return PartitionedSink(S3Target(self.uri), layout, self.if_exists)
