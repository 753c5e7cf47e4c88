"""A range of the log on its way to a sink, and what its tasks told, put together. Pure, but for the frame it cuts.

`Work` says which messages a batch is about: where it ends, and which of them are dead. The functions behind it read
the reports of tasks (`tasks.py`): who was refused, whether the parts are in order, how far each namespace came.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.adaptors.base import Refusal, Staged
from penstock.log.message import MessageOffset
from penstock.log.positions import LogPoint
from penstock.spark.formats import RECORDS_SCHEMA
from penstock.spark.tasks import LogRead, Task
from penstock.spark.transform import Seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import InputPartition


@dataclass(slots=True)
class Spent:
    """Where the time of a batch went; in seconds."""

    started: float = field(default_factory=time.monotonic)
    times: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.times[what] = self.times.get(what, 0.0) + time.monotonic() - began


class Rows(Protocol):
    """Messages as Spark has them, for whoever cannot do without: most tasks read the log themselves."""

    @property
    def spark(self) -> SparkSession: ...

    @property
    def frame(self) -> DataFrame: ...


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Those of a frame that is there."""

    frame: DataFrame

    @property
    def spark(self) -> SparkSession:
        return self.frame.sparkSession


@dataclass(frozen=True)
class LoggedRows:
    """Those of a part of the log, read in workers when Spark asks for them."""

    spark: SparkSession
    read: LogRead

    @functools.cached_property
    def frame(self) -> DataFrame:
        count = len(self.read.ranges)
        return self.spark.range(0, count, 1, count).mapInArrow(self.read.of_frame, RECORDS_SCHEMA)


@dataclass(frozen=True, slots=True)
class Work:
    """A range of the log on its way to the sink: how far it goes, and who in it is dead."""

    rows: Rows
    begin: LogPoint
    end: LogPoint
    given: int | None
    """How many messages there are in the range, if it has holes."""
    dead: Mapping[int, Refusal] = field(default_factory=dict)
    ranges: Sequence[InputPartition] = ()
    """Where the messages lie, for tasks that read the log themselves; and others around them, maybe."""

    @property
    def frame(self) -> DataFrame:
        return self.rows.frame

    @property
    def messages(self) -> int:
        whole = self.end.offset - self.begin.offset
        return whole if self.given is None else self.given

    def behind(self, begin: LogPoint) -> Work:
        """The work that begins later."""
        if begin.offset == self.begin.offset:
            return self
        later = dataclasses.replace(self, begin=begin)
        if self.given is None:
            return later
        return dataclasses.replace(later, given=later.messages_of().count())

    def until(self, offset: int) -> Work:
        """The work that ends before a message."""
        if offset == self.end.offset:
            return self
        end = LogPoint(MessageOffset(offset), self.end.byte)
        shorter = dataclasses.replace(self, end=end)
        if self.given is None:
            return shorter
        return dataclasses.replace(shorter, given=shorter.messages_of().count())

    def burying(self, refusals: Iterable[Refusal], until: int | None) -> Work:
        work = self if until is None or until >= self.end.offset else self.until(until)
        dead = {**self.dead, **{refusal.offset: refusal for refusal in refusals}}
        return dataclasses.replace(
            work, dead={offset: dead[offset] for offset in dead if offset < work.end.offset}
        )

    def leave_out(self, acked: Sequence[int]) -> tuple[int, ...]:
        return (*(offset for offset in acked if offset < self.end.offset), *self.dead)

    def messages_of(self) -> DataFrame:
        """Cuts only where a refused message ends the batch, or where it follows careful delivery."""
        return self.frame.where(f"offset >= {self.begin.offset} AND offset < {self.end.offset}")


def refusals_of(tasks: Sequence[Task]) -> list[Refusal]:
    """What was refused, each message once, in the order of their offsets."""
    found: dict[int, Refusal] = {}
    for task in tasks:
        for refusal in task.staged.refused:
            found.setdefault(refusal.offset, refusal)
    return [found[offset] for offset in sorted(found)]


def last_told(tasks: Sequence[Task]) -> int | None:
    """Where a batch must end so that every refusal in it is known; None if all of them are."""
    ends = [task.staged.refused[-1].offset + 1 for task in tasks if task.more]
    return min(ends, default=None)


def in_order(tasks: Sequence[Task]) -> bool:
    """Whether the parts, put one behind the other, are in the order of their offsets."""
    staged = sorted((task.staged for task in tasks if task.staged.rows), key=lambda part: part.first)
    apart = all(one.last < two.first for one, two in itertools.pairwise(staged))
    return apart and all(part.ordered for part in staged)


def highest(parts: Sequence[Staged]) -> dict[str, int]:
    """The highest offset of each namespace over all parts."""
    namespaces: dict[str, int] = {}
    for part in parts:
        for ns, offset in part.namespaces.items():
            namespaces[ns] = max(offset, namespaces.get(ns, -1))
    return namespaces


def told_by(seen: Seen, limit: int) -> Task:
    """What the passes before the last one told, as if a task had staged nothing and reported it."""
    refusals = [Refusal(r.offset, r.ns, r.error, r.node) for r in seen.refused]
    staged = Staged("", 0, 0, 0, -1, -1, True, dict(seen.namespaces), refusals)
    return Task(staged, dict(seen.counts), more=len(refusals) >= limit)
