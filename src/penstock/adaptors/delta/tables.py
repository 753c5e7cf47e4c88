"""Tables of Delta Lake in one directory, each in the subdirectory of its namespace's name.

A marker is an action `txn` of the table's log, which every commit carries and every checkpoint keeps: its application
is sink, log and generation, its version the watermark. Delta refuses a commit if another one with the same application
came in between, so a run that was thought dead and still commits is not met by a second copy of its rows.

    version = watermark << 16 | serial      serial grows where one watermark is committed twice (a dead letter that is
                                            sent again); it is odd on the last table of a batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from penstock.adaptors.base import Finding
from penstock.adaptors.lake.frames import quoted, quoted_all
from penstock.adaptors.lake.session import Frame, Package, Session, has_class
from penstock.adaptors.lake.tables import Format, Marker, Table
from penstock.base.errors import UsageError

PACKAGE = Package("io.delta:delta-spark_{spark}_2.13", {"4.1": "4.4.0", "4.2": "4.4.0"})

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What Delta Lake asks of a session."""

_SERIAL_BITS = 16
_APP, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True)
class DeltaFormat(Format):
    """The tables below a directory."""

    uri: str
    name = "delta"

    @property
    def where(self) -> str:  # type: ignore[override]
        return self.uri

    def missing(self, spark: Session) -> Finding | None:
        if not has_class(spark, "org.apache.spark.sql.delta.DeltaLog"):
            return PACKAGE.missing(spark, "Delta Lake")
        for name, value in SETTINGS.items():
            if value not in spark.conf.get(name, ""):
                return Finding(
                    f"Spark is not set up for Delta Lake: {name}", f"--conf {name}={value}", fatal=True
                )
        return None

    def tables(self, spark: Session) -> Sequence[str]:
        path = spark._jvm.org.apache.hadoop.fs.Path(self.uri)
        files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        if not files.exists(path):
            return []
        if not files.getFileStatus(path).isDirectory():
            raise UsageError(f"{self.uri} is not a directory", hint="give the directory of the tables")
        found = [entry.getPath() for entry in files.listStatus(path) if entry.isDirectory()]
        log = spark._jvm.org.apache.hadoop.fs.Path
        return sorted(unquote(one.getName()) for one in found if files.exists(log(one, "_delta_log")))

    def table(self, spark: Session, ns: str) -> DeltaTable:
        return DeltaTable(spark, self.path(ns), ns)

    def path(self, ns: str) -> str:
        """Where the table of a namespace is."""
        return f"{self.uri}/{quote(ns, safe='.-_ ')}"


class DeltaTable(Table):
    """One table."""

    def __init__(self, spark: Session, path: str, ns: str) -> None:
        self._spark = spark
        self.path = path
        self.shown = f"'{ns}'"
        self.sql = f"delta.{quoted(path)}"

    def snapshot(self) -> object:
        """The newest state of its log: a `Snapshot` of Delta's."""
        log = self._spark._jvm.org.apache.spark.sql.delta.DeltaLog
        return log.forTableWithSnapshot(self._spark._jsparkSession, self.path)._2()

    @property
    def version(self) -> int:
        """Of the newest commit; -1 if there is no table."""
        return int(self.snapshot().version())  # type: ignore[attr-defined]

    def columns(self) -> Mapping[str, str] | None:
        if self.version < 0:
            return None
        schema = self._spark.read.format("delta").load(self.path).schema
        return {field.name: field.dataType.simpleString().upper() for field in schema.fields}

    def marker(self, sink: str) -> Marker | None:
        found = self._held(sink)
        return max(found)[1] if found else None

    def _held(self, sink: str) -> list[tuple[int, Marker, int]]:
        """The markers of a sink: generation, marker, version."""
        convert = self._spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava
        held = dict(convert(self.snapshot().transactions()))  # type: ignore[attr-defined]
        found = []
        for app, version in held.items():
            who, _, rest = app.partition("|")
            if who == f"penstock {sink}":
                log, _, generation = rest.partition("|")
                watermark, serial = version >> _SERIAL_BITS, version & ((1 << _SERIAL_BITS) - 1)
                marker = Marker(log, int(generation), watermark, bool(serial & 1))
                found.append((int(generation), marker, int(version)))
        return found

    def _transaction(self, sink: str, marker: Marker) -> tuple[str, int]:
        """What Delta is told: an application, and a version that it has not seen of it."""
        version = marker.watermark << _SERIAL_BITS
        for generation, held, before in self._held(sink):
            if (generation, held.log) == (marker.generation, marker.log) and before >= version:
                version = (before | 1) + 1
        return f"penstock {sink}|{marker.log}|{marker.generation}", version | marker.last

    def create(self, columns: Mapping[str, str]) -> None:
        """The first append does."""

    def add(self, columns: Mapping[str, str]) -> None:
        if "TIMESTAMP_NTZ" in columns.values():
            self._spark.sql(
                f"ALTER TABLE {self.sql} SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
            )
        terms = ", ".join(f"{quoted_all([name])} {kind}" for name, kind in columns.items())
        self._spark.sql(f"ALTER TABLE {self.sql} ADD COLUMNS ({terms})")

    def append(self, rows: Frame, sink: str, marker: Marker) -> None:
        application, version = self._transaction(sink, marker)
        options = {"txnAppId": application, "txnVersion": str(version)}
        rows.write.format("delta").mode("append").options(**options).save(self.path)

    def change(self, statement: str, sink: str, marker: Marker) -> None:
        application, version = self._transaction(sink, marker)
        self._spark.conf.set(_APP, application)
        self._spark.conf.set(_VERSION, str(version))
        try:
            self._spark.sql(statement).collect()
        finally:
            self._spark.conf.unset(_APP)
            self._spark.conf.unset(_VERSION)
