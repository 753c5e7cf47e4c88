"""Tables of Apache Iceberg in one catalog of Spark. A namespace `shop.orders` is the table `orders` in `shop`.

A marker is a property in the summary of the snapshot that a commit makes: `penstock.SINK` = `log generation watermark
last`. It is found by walking back from the current snapshot; one that was expired is no longer found, and then the
offset log alone says what the sink has.

An append is committed only if no row was added since the marker was read (`validate-from-snapshot-id`, in an overwrite
that overwrites nothing): a run that was thought dead and still commits, or any other writer, makes it fail, and the
batch is repeated. A MERGE fails in the same way if the table changed while it ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.adaptors.base import Finding
from penstock.adaptors.lake.frames import quoted
from penstock.adaptors.lake.session import Frame, Package, Session, has_class
from penstock.adaptors.lake.tables import Format, Marker, Table
from penstock.adaptors.needs import need

PACKAGE = Package("org.apache.iceberg:iceberg-spark-runtime-{spark}_2.13", {"4.0": "1.11.0", "4.1": "1.12.0"})

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_PROPERTY = "spark.sql.iceberg.snapshot-property."


@dataclass(frozen=True)
class IcebergFormat(Format):
    """The tables of a catalog, or of one database in it."""

    catalog: str
    database: str = ""
    name = "iceberg"

    @property
    def where(self) -> str:  # type: ignore[override]
        return f"catalog '{self.catalog}'" + (f", database '{self.database}'" if self.database else "")

    def missing(self, spark: Session) -> Finding | None:
        if not has_class(spark, "org.apache.iceberg.spark.SparkCatalog"):
            return PACKAGE.missing(spark, "Iceberg")
        catalog = f"spark.sql.catalog.{self.catalog}"
        if not spark.conf.get(catalog, ""):
            return Finding(
                f"Spark has no catalog '{self.catalog}'",
                fix=f"--conf {catalog}=org.apache.iceberg.spark.SparkCatalog, and {catalog}.type and what that needs",
                fatal=True,
            )
        if EXTENSIONS not in spark.conf.get("spark.sql.extensions", ""):
            fix = f"--conf spark.sql.extensions={EXTENSIONS}"
            return Finding("Spark is not set up for Iceberg: spark.sql.extensions", fix, fatal=True)
        return None

    def tables(self, spark: Session) -> Sequence[str]:
        return sorted(self._below(spark, [self.database] if self.database else []))

    def _below(self, spark: Session, database: list[str]) -> list[str]:
        found: list[str] = []
        sql = ".".join(map(quoted, [self.catalog, *database]))
        if database and not self._has(spark, database):
            return []
        if database:
            rows = spark.sql(f"SHOW TABLES IN {sql}").collect()
            names = [row["tableName"] for row in rows if not row["isTemporary"]]
            found += [".".join([*database[bool(self.database) :], name]) for name in names]
        for (inner,) in spark.sql(f"SHOW NAMESPACES IN {sql}").collect():
            parts = inner.split(".")
            found += self._below(spark, parts if len(parts) > len(database) else [*database, parts[-1]])
        return found

    def _has(self, spark: Session, database: list[str]) -> bool:
        catalog = spark._jsparkSession.sessionState().catalogManager().catalog(self.catalog)
        parts = spark._sc._gateway.new_array(spark._jvm.java.lang.String, len(database))
        for index, name in enumerate(database):
            parts[index] = name
        return bool(catalog.namespaceExists(parts))

    def table(self, spark: Session, ns: str) -> IcebergTable:
        parts = [self.catalog, *([self.database] if self.database else []), *ns.split(".")]
        return IcebergTable(spark, parts, ns)


class IcebergTable(Table):
    """One table."""

    def __init__(self, spark: Session, parts: Sequence[str], ns: str) -> None:
        self._spark = spark
        self._parts = parts
        self.shown = f"'{ns}'"
        self.sql = ".".join(map(quoted, parts))

    def loaded(self) -> Any:
        """The table, refreshed: a `Table` of Iceberg's; None if there is none."""
        if not self._spark.catalog.tableExists(self.sql):
            return None
        table = self._spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self._spark._jsparkSession, self.sql
        )
        table.refresh()
        return table

    def _refresh(self) -> None:
        """A session remembers a table for a while, also if another one has changed it."""
        self._spark.sql(f"REFRESH TABLE {self.sql}")

    def columns(self) -> Mapping[str, str] | None:
        if self.loaded() is None:
            return None
        self._refresh()
        schema = self._spark.table(self.sql).schema
        return {field.name: field.dataType.simpleString().upper() for field in schema.fields}

    def marker(self, sink: str) -> Marker | None:
        table = self.loaded()
        snapshot = table.currentSnapshot() if table is not None else None
        while snapshot is not None:
            told = snapshot.summary().get(f"penstock.{sink}")
            if told is not None:
                log, generation, watermark, last = told.split(" ")
                return Marker(log, int(generation), int(watermark), last == "last")
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        return None

    def create(self, columns: Mapping[str, str]) -> None:
        database = self._parts[:-1]
        if len(database) > 1:
            self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {'.'.join(map(quoted, database))}")
        terms = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
        self._spark.sql(f"CREATE TABLE {self.sql} ({terms}) USING iceberg")

    def add(self, columns: Mapping[str, str]) -> None:
        terms = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
        self._spark.sql(f"ALTER TABLE {self.sql} ADD COLUMNS ({terms})")

    def append(self, rows: Frame, sink: str, marker: Marker) -> None:
        self._refresh()
        current = self.loaded().currentSnapshot()
        options = {"isolation-level": "serializable", f"snapshot-property.penstock.{sink}": _written(marker)}
        if current is not None:
            options["validate-from-snapshot-id"] = str(current.snapshotId())
        nothing = need("pyspark.sql.functions", "spark").lit(False)
        rows.writeTo(self.sql).options(**options).overwrite(nothing)

    def change(self, statement: str, sink: str, marker: Marker) -> None:
        self._refresh()
        name = f"{_PROPERTY}penstock.{sink}"
        self._spark.conf.set(name, _written(marker))
        try:
            self._spark.sql(statement).collect()
        finally:
            self._spark.conf.unset(name)


def _written(marker: Marker) -> str:
    last = "last" if marker.last else "more"
    return f"{marker.log} {marker.generation} {marker.watermark} {last}"
