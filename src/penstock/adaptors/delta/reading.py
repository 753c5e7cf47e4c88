"""How the source reads tables of Delta Lake.

A copy reads the data files of a version in the order of their paths. What later versions changed comes from the change
data feed where the table keeps one; else from the files that a version added, as long as it took no rows away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from penstock.adaptors.base import Finding
from penstock.adaptors.delta.tables import DeltaFormat
from penstock.adaptors.lake.chunks import OP
from penstock.adaptors.lake.feeds import changes_of
from penstock.adaptors.lake.reading import Reader
from penstock.adaptors.lake.session import Frame, Session
from penstock.adaptors.needs import need
from penstock.base.errors import UsageError
from penstock.log.message import Op

GROUP = 8 << 20
"""Bytes of files that are read together."""

FEED = "delta.enableChangeDataFeed"


class _Said(msgspec.Struct):
    """An action of a commit, as far as it counts here."""

    path: str = ""
    dataChange: bool = True  # noqa: N815 - its name in the log


class _Action(msgspec.Struct):
    """A line of a commit."""

    add: _Said | None = None
    remove: _Said | None = None


class DeltaReader(Reader):
    """Reads the tables below a directory."""

    def __init__(self, format: DeltaFormat) -> None:
        self.format: DeltaFormat = format

    def newest(self, spark: Session, ns: str) -> int:
        return self.format.table(spark, ns).version

    def key(self, spark: Session, ns: str) -> Sequence[str]:
        return ()

    def rows(self, spark: Session, ns: str) -> int | None:
        return None

    def groups(self, spark: Session, ns: str, version: int) -> Sequence[Callable[[], Frame]]:
        snapshot = self._at(spark, ns, version)
        files = sorted(snapshot.allFiles().collectAsList(), key=lambda one: one.path())
        groups: list[list[Any]] = []
        size = GROUP
        for file in files:
            if size + file.size() > GROUP:
                groups.append([])
                size = 0
            groups[-1].append(file)
            size += file.size()
        return [partial(self._files, spark, snapshot, group) for group in groups]

    def behind(self, spark: Session, ns: str, version: int) -> Sequence[int]:
        return range(version + 1, self.newest(spark, ns) + 1)

    def changes(self, spark: Session, ns: str, before: int, version: int, key: Sequence[str]) -> Frame | None:
        snapshot = self._at(spark, ns, version)
        if self._fed(spark, snapshot):
            return self._feed(spark, ns, version, key)
        actions = self._actions(spark, ns, version)
        if any(action.remove is not None and action.remove.dataChange for action in actions):
            raise UsageError(
                f"version {version} of table '{ns}' removed rows, and the table does not say which",
                hint=f"ALTER TABLE {self.format.table(spark, ns).sql} SET TBLPROPERTIES ({FEED} = true), "
                f"then `penstock backfill {ns}`",
            )
        added = {action.add.path for action in actions if action.add is not None and action.add.dataChange}
        if not added:
            return None
        files = [one for one in snapshot.allFiles().collectAsList() if one.path() in added]
        frame = self._files(spark, snapshot, sorted(files, key=lambda one: one.path()))
        return frame.selectExpr("*", f"CAST({int(Op.INSERT)} AS TINYINT) AS {OP}")

    def hindrance(self, spark: Session, ns: str) -> Finding | None:
        snapshot = self._at(spark, ns, self.newest(spark, ns))
        if self._fed(spark, snapshot):
            return None
        return Finding(
            f"table '{ns}' keeps no change data feed: added rows are followed, an update or delete stops the source",
            fix=f"ALTER TABLE {self.format.table(spark, ns).sql} SET TBLPROPERTIES ({FEED} = true)",
        )

    def _fed(self, spark: Session, snapshot: Any) -> bool:
        found = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(snapshot.getProperties())
        return str(dict(found).get(FEED, "")).lower() == "true"

    def _feed(self, spark: Session, ns: str, version: int, key: Sequence[str]) -> Frame:
        options = {"readChangeFeed": "true", "startingVersion": str(version), "endingVersion": str(version)}
        feed = spark.read.format("delta").options(**options).load(self.format.path(ns))
        gone = "_change_type IN ('delete', 'update_preimage')"
        return changes_of(feed, gone, key, ("_change_type", "_commit_version", "_commit_timestamp"))

    def _actions(self, spark: Session, ns: str, version: int) -> list[_Action]:
        path = f"{self.format.path(ns)}/_delta_log/{version:020d}.json"
        lines = spark.read.text(path).collect()
        return [msgspec.json.decode(line[0], type=_Action) for line in lines]

    def _at(self, spark: Session, ns: str, version: int) -> Any:
        """A version of a table's log, as the connector itself finds it for a query: a `Snapshot` of Delta's."""
        frame = spark.read.format("delta").option("versionAsOf", str(version)).load(self.format.path(ns))
        return (
            frame._jdf.queryExecution().analyzed().collectLeaves().head().relation().location().getSnapshot()
        )

    def _files(self, spark: Session, snapshot: Any, files: Sequence[Any]) -> Frame:
        """The rows of some files of a version."""
        chosen = spark._jvm.java.util.ArrayList()
        for file in files:
            chosen.add(file)
        scala = spark._jvm.scala
        wanted = scala.jdk.javaapi.CollectionConverters.asScala(chosen).toSeq()
        frame = snapshot.deltaLog().createDataFrame(snapshot, wanted, False, scala.Option.empty())
        return need("pyspark.sql", "spark").DataFrame(frame, spark)
