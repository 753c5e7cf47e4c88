"""Planning for an instance of connectors, all of its partitions: journals beside each other, each with its own place.

A place has the byte of partition 0 under `byte`, as that of a lone journal, and those of the others under their
numbers. Partitions that come while a query runs are read from their beginning; one that a place does not name yet
begins there, too. Ranges of one partition follow each other in order; those of different ones have no order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql.datasource import InputPartition

from penstock.base.errors import UsageError
from penstock.connector.partitions import partition_journal, partition_of_journal, partition_selector
from penstock.log.journals import extent
from penstock.spark.connectorrows import ConnectorPlanner
from penstock.spark.endsearch import Limits
from penstock.spark.options import SourceOptions
from penstock.spark.planner import Place

TURN = 0.1
"""Seconds to wait for one of several partitions before the others are looked at."""


class PartitionedPlanner:
    """A planner for each partition, and what they plan taken together."""

    def __init__(self, options: SourceOptions, *, stream: bool) -> None:
        self._options = options
        self._stream = stream
        self._first = ConnectorPlanner(options, stream=stream)
        self._others: dict[int, ConnectorPlanner] = {}
        self._turn = 0

    def start(self) -> Place:
        return {_key(number): part.start()["byte"] for number, part in self._look().items()}

    def heads(self) -> Place:
        return {_key(number): part.head() for number, part in self._look().items()}

    def more(self, start: Place) -> Place:
        deadline = time.monotonic() + self._options.wait
        while True:
            parts = self._look()
            if len(parts) == 1:
                return self._first.more(start)
            heads = {_key(number): part.head() for number, part in parts.items()}
            if any(head > start.get(key, 0) for key, head in heads.items()) or time.monotonic() >= deadline:
                return heads
            number = sorted(parts)[self._turn % len(parts)]
            self._turn += 1
            parts[number].wait(start.get(_key(number), 0))

    def next(self, start: Place, heads: Place, limits: Limits) -> Place:
        """Each partition that has something gets its share of the limits."""
        begins = {key: self._begin(start, key) for key in heads}
        behind = [key for key, head in heads.items() if head > begins[key]]
        share = Limits(_share(limits.max_bytes, len(behind)), _share(limits.max_rows, len(behind)))
        ends = {
            key: self._part(key).latest({"byte": begins[key]}, heads[key], share)["byte"] for key in behind
        }
        return {**start, **begins, **ends}

    def ranges(self, start: Place, end: Place) -> list[InputPartition]:
        found: list[InputPartition] = []
        for key, byte in end.items():
            found += self._part(key).ranges({"byte": self._begin(start, key)}, {"byte": byte})
        return found

    def batch(self) -> Sequence[InputPartition]:
        return [each for part in self._look().values() for each in part.batch()]

    def _begin(self, start: Place, key: str) -> int:
        known = start.get(key)
        if known is not None:
            return known
        part = self._part(key)
        return extent(part.client, part.options.journal).begin

    def _look(self) -> dict[int, ConnectorPlanner]:
        """The partitions that there are now."""
        journal = self._options.journal
        for found in self._first.client.list(partition_selector(journal)):
            number = partition_of_journal(journal, found.spec.name)
            if number is not None:
                self._part(_key(number))
        if self._others and (isinstance(self._options.start, int) or self._options.end_offset is not None):
            raise UsageError(
                f"data source penstock: {journal} has {1 + len(self._others)} partitions, "
                "and an offset is one of a single journal",
                hint="leave out startOffset and endOffset, or say earliest or latest",
            )
        return {0: self._first, **self._others}

    def _part(self, key: str) -> ConnectorPlanner:
        if key == _key(0):
            return self._first
        number = int(key)
        if number not in self._others:
            options = replace(self._options, journal=partition_journal(self._options.journal, number))
            self._others[number] = part = ConnectorPlanner(options, stream=self._stream)
            part.patience = self._first.patience = min(self._options.wait, TURN)
        return self._others[number]


def _key(number: int) -> str:
    return str(number) if number else "byte"


def _share(limit: int | None, among: int) -> int | None:
    return None if limit is None else max(1, limit // max(1, among))
