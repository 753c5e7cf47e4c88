"""How the source reads tables of Iceberg: a version is a snapshot, by its id.

A copy reads the scan tasks of a snapshot in the order of their files, handed to the connector in groups. What later
snapshots changed comes from the connector's changelog, one snapshot at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from penstock.adaptors.iceberg.tables import IcebergFormat
from penstock.adaptors.lake.feeds import changes_of
from penstock.adaptors.lake.frames import quoted
from penstock.adaptors.lake.reading import Reader
from penstock.adaptors.lake.session import Frame, Session
from penstock.base.errors import UsageError

GROUP = 8 << 20
"""Bytes of files that are read together."""

_FEED = ("_change_type", "_change_ordinal", "_commit_snapshot_id")


class IcebergReader(Reader):
    """Reads the tables of a catalog."""

    def __init__(self, format: IcebergFormat) -> None:
        self.format: IcebergFormat = format
        self._staged: tuple[Any, str] | None = None
        """The group that is being read: its table, and the name for its tasks."""

    def newest(self, spark: Session, ns: str) -> int:
        snapshot = self._table(spark, ns).currentSnapshot()
        return -1 if snapshot is None else int(snapshot.snapshotId())

    def key(self, spark: Session, ns: str) -> Sequence[str]:
        return sorted(self._table(spark, ns).schema().identifierFieldNames())

    def rows(self, spark: Session, ns: str) -> int | None:
        snapshot = self._table(spark, ns).currentSnapshot()
        if snapshot is None:
            return 0
        told = snapshot.summary().get("total-records")
        return None if told is None else int(told)

    def groups(self, spark: Session, ns: str, version: int) -> Sequence[Callable[[], Frame]]:
        if version < 0:
            return []
        table = self._table(spark, ns)
        if table.snapshot(version) is None:
            raise self._gone(ns, version)
        tasks = _listed(table.newScan().useSnapshot(version).planFiles())
        groups: list[list[Any]] = []
        size = GROUP
        for task in sorted(tasks, key=lambda one: (one.file().location(), one.start())):
            if size + task.length() > GROUP:
                groups.append([])
                size = 0
            groups[-1].append(task)
            size += task.length()
        return [partial(self._group, spark, table, group) for group in groups]

    def behind(self, spark: Session, ns: str, version: int) -> Sequence[int]:
        table = self._table(spark, ns)
        found: list[int] = []
        snapshot = table.currentSnapshot()
        while snapshot is not None and snapshot.snapshotId() != version:
            found.append(int(snapshot.snapshotId()))
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        if snapshot is None and version >= 0:
            raise self._gone(ns, version)
        return found[::-1]

    def changes(self, spark: Session, ns: str, before: int, version: int, key: Sequence[str]) -> Frame | None:
        table = self.format.table(spark, ns)
        if self._table(spark, ns).snapshot(version).operation() == "replace":
            return None  # a compaction: the same rows in other files
        options = f"'end-snapshot-id', '{version}'"
        options += f", 'start-snapshot-id', '{before}'" if before >= 0 else ""
        view = f"penstock_{uuid.uuid4().hex}"
        spark.sql(
            f"CALL {quoted(self.format.catalog)}.system.create_changelog_view(table => '{table.sql}', "
            f"options => map({options}), changelog_view => '{view}')"
        ).collect()
        return changes_of(spark.table(view), "_change_type = 'DELETE'", key, _FEED)

    def _group(self, spark: Session, table: Any, tasks: Sequence[Any]) -> Frame:
        """The rows of these tasks, by the way of the connector's own rewriting of files: a name for a table and tasks.

        The name is what is loaded. By the table's own name one gets the table of now, whatever is asked of it.
        """
        self._forget_group(spark)
        name = uuid.uuid4().hex
        staged = spark._jvm.java.util.ArrayList()
        for task in tasks:
            staged.add(task)
        iceberg = spark._jvm.org.apache.iceberg.spark
        iceberg.SparkTableCache.get().add(name, table)
        iceberg.ScanTaskSetManager.get().stageTasks(table, name, staged)
        self._staged = (table, name)
        rows = spark.read.format("iceberg").option("scan-task-set-id", name).load(name)
        return rows.select(*(quoted(column.name()) for column in table.schema().columns()))

    def _forget_group(self, spark: Session) -> None:
        """Groups are read one after another."""
        if self._staged is not None:
            (table, name), self._staged = self._staged, None
            iceberg = spark._jvm.org.apache.iceberg.spark
            iceberg.ScanTaskSetManager.get().removeTasks(table, name)
            iceberg.SparkTableCache.get().remove(name)

    def _table(self, spark: Session, ns: str) -> Any:
        table = self.format.table(spark, ns).loaded()
        if table is None:
            raise UsageError(f"there is no table '{ns}' in {self.format.where}")
        return table

    def _gone(self, ns: str, version: int) -> UsageError:
        return UsageError(
            f"table '{ns}' no longer has snapshot {version}, behind which the source was to go on",
            hint=f"copy it anew: `penstock backfill {ns}`; and expire snapshots later than a run may be away",
        )


def _listed(planned: Any) -> list[Any]:
    try:
        walk, found = planned.iterator(), []
        while walk.hasNext():
            found.append(walk.next())
        return found
    finally:
        planned.close()
