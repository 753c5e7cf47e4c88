"""`delta`: tables of Delta Lake, through the connector of the user's Spark.

What the source promises is told in `penstock.adaptors.lake.reading`, what the sink promises in
`penstock.adaptors.lake.tables`, and how both use the format in `penstock.adaptors.delta.tables` and `.reading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from penstock.adaptors.base import Sink, Source
from penstock.adaptors.delta.tables import SETTINGS, DeltaFormat
from penstock.adaptors.lake.adaptor import LakeAdaptor
from penstock.base.settings import setting


@dataclass(frozen=True, kw_only=True)
class Delta(LakeAdaptor):
    """The tables of Delta Lake in a directory."""

    name: ClassVar[str] = "delta"
    description: ClassVar[str] = (
        "Delta Lake, through Spark's connector. Source: copies tables as they are at one version and, if asked to, "
        "follows later ones. Sink: merges rows by their keys, or appends them, each exactly once."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    experimental: ClassVar[str] = "no release of the connector runs on this Spark yet"

    uri: str = setting(
        "the directory of the tables, each in a subdirectory; as Spark takes it", example="file:///srv/lake"
    )
    tail: bool = setting("source: go on with versions that are added later", default=False)
    poll_interval: float = setting("source: seconds between two looks for new versions", default=5.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.poll_interval > 0:
            raise ValueError(f"setting 'poll_interval': expected more than 0, got {self.poll_interval}")
        given = self.uri.rstrip("/")
        if "://" not in given and not given.startswith(("/", "file:/")):
            given = str(Path(given).absolute())
        object.__setattr__(self, "uri", given)

    def wanted(self) -> Mapping[str, str]:
        return SETTINGS

    def source(self) -> Source:
        from penstock.adaptors.delta.reading import DeltaReader
        from penstock.adaptors.lake.reading import TableSource

        poll = self.poll_interval if self.tail else None
        return TableSource(DeltaReader(DeltaFormat(self.uri)), self.keys, poll)

    def sink(self) -> Sink:
        from penstock.adaptors.lake.tables import TableSink, Writing

        growing = (self.create_tables, self.add_columns, self.unknown_fields)
        return TableSink(Writing(DeltaFormat(self.uri), self.options, *growing))
