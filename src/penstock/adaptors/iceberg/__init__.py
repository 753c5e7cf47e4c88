"""`iceberg`: tables of Apache Iceberg, through the connector of the user's Spark.

What the source promises is told in `penstock.adaptors.lake.reading`, what the sink promises in
`penstock.adaptors.lake.tables`, and how both use the format in `penstock.adaptors.iceberg.tables` and `.reading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.adaptors.base import Sink, Source
from penstock.adaptors.iceberg.tables import EXTENSIONS, IcebergFormat
from penstock.adaptors.lake.adaptor import LakeAdaptor
from penstock.base.settings import setting


@dataclass(frozen=True, kw_only=True)
class Iceberg(LakeAdaptor):
    """The tables of an Iceberg catalog."""

    name: ClassVar[str] = "iceberg"
    description: ClassVar[str] = (
        "Apache Iceberg, through Spark's connector. Source: copies tables as they are at one snapshot and, if asked "
        "to, follows later ones. Sink: merges rows by their keys, or appends them, each exactly once."
    )
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    experimental: ClassVar[str] = "no release of the connector runs on this Spark yet"

    catalog: str = setting("the name of the catalog in Spark", example="lake")
    database: str = setting(
        "the database in the catalog; without it, namespaces name theirs: `shop.orders`", default=""
    )
    warehouse: str = setting(
        "a directory for a catalog of files; without it, the catalog is one that Spark is set up for",
        default="",
    )
    tail: bool = setting("source: go on with snapshots that are added later", default=False)
    poll_interval: float = setting("source: seconds between two looks for new snapshots", default=5.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.poll_interval > 0:
            raise ValueError(f"setting 'poll_interval': expected more than 0, got {self.poll_interval}")
        if not self.catalog or "." in self.catalog:
            raise ValueError(f"setting 'catalog': expected a name without dots, got '{self.catalog}'")

    def wanted(self) -> Mapping[str, str]:
        found = {"spark.sql.extensions": EXTENSIONS}
        if self.warehouse:
            name = f"spark.sql.catalog.{self.catalog}"
            found |= {name: "org.apache.iceberg.spark.SparkCatalog", f"{name}.type": "hadoop"}
            found[f"{name}.warehouse"] = self.warehouse
        return found

    def source(self) -> Source:
        from penstock.adaptors.iceberg.reading import IcebergReader
        from penstock.adaptors.lake.reading import TableSource

        poll = self.poll_interval if self.tail else None
        return TableSource(IcebergReader(IcebergFormat(self.catalog, self.database)), self.keys, poll)

    def sink(self) -> Sink:
        from penstock.adaptors.lake.tables import TableSink, Writing

        growing = (self.create_tables, self.add_columns, self.unknown_fields)
        return TableSink(Writing(IcebergFormat(self.catalog, self.database), self.options, *growing))
