"""Where a read begins and ends, and how it is cut into ranges for tasks.

A place in a commit log is a message and a byte together (`LogPoint`), so that planning needs no index, though it uses
one where it is. A place in any other journal is a byte; with lines, one at which a line begins. A batch is a range
between two places, so reading it again gives the same rows. Ranges of one batch follow each other, in order. A batch of
a commit log ends where no transaction of the source is cut (`endsearch.py`), unless its reader has begun within one.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence
from contextlib import closing

from pyspark.sql.datasource import InputPartition

from penstock.journal.datadir import DataDir
from penstock.log.message import ByteOffset, MessageOffset
from penstock.log.positions import ORIGIN, LogCache, LogPoint
from penstock.log.reader import LogReader
from penstock.log.record import MAX_SIZE
from penstock.spark import planner as common
from penstock.spark.byteplanning import BytePlanner, LinePlanner
from penstock.spark.endsearch import EndSearch, Limits
from penstock.spark.options import Content, Edge, SourceOptions
from penstock.spark.planner import Place, Plan, Planner
from penstock.spark.ranges import CompactedRange, RangeReader, Window

WALK = 16 << 20
"""Bytes that are gone through to find a border between two parts of a batch."""
UNEVEN = 1 / 16
"""What parts may differ by without that."""


class RecordPlanner(Planner):
    """Of a commit log."""

    def __init__(self, options: SourceOptions, *, stream: bool) -> None:
        super().__init__(options, stream=stream)
        self._planned: list[LogPoint] = []
        self._search = EndSearch(ORIGIN, Limits(None, None))

    @functools.cached_property
    def log(self) -> LogReader:
        directory = self.options.data_dir
        cache = LogCache(DataDir(directory).index, self.options.journal) if directory is not None else None
        return LogReader(self.client, self.options.journal, cache)

    def wait(self, beyond: int) -> int:
        return super().wait(self._search.byte if self._search.begin.byte == beyond else beyond)

    def start(self) -> Place:
        return self._start()._asdict()

    def latest(self, start: Place, head: int, limits: Limits) -> Place:
        begin = _point(start)
        self._planned = _within(self._points(begin, head, limits), limits)
        if len(self._planned) == 1 and head > begin.byte:
            self._planned = self._walk(begin, head, limits)  # limits that are finer than the index
        return self._planned[-1]._asdict()

    def ranges(self, start: Place, end: Place) -> list[InputPartition]:
        begin, stop = _point(start), _point(end)
        if self._planned[:1] != [begin] or self._planned[-1:] != [stop]:
            self._planned = self._points(begin, stop.byte, Limits(None, None))
        return self._cut([point.byte for point in self._planned])

    def upcoming(self, begin: LogPoint) -> LogPoint:
        """Where a batch from `begin` on ends, within the options' limits; waits a while if there is nothing yet."""
        limits = Limits(self.options.max_bytes, self.options.max_messages)
        start = begin._asdict()
        return _point(self.next(start, self.more(start), limits))

    def between(self, begin: LogPoint, end: LogPoint) -> list[InputPartition]:
        """The ranges of what lies between two places, for whoever has planned these."""
        inner = self._borders(begin.byte, end.byte) if self._parts(end.byte - begin.byte) > 1 else []
        return self._cut([begin.byte, *inner, end.byte])

    def batch(self) -> list[InputPartition]:
        """The log, and before it what compaction has kept if the read begins below the log."""
        first, last = self.log.first(), (1 << 63) - 1
        compacted: list[InputPartition] = []
        asked = self.options.start if isinstance(self.options.start, int) else 0
        if self.options.start is not Edge.LATEST and asked < first.offset:
            if asked or self.options.start_byte is not None:
                self._loss(asked, first.offset)
            compacted = [CompactedRange(asked, (self.options.end_offset or last) - 1)]
            begin = first
        else:
            begin = self._start()
        head = self.head()
        if self.options.end_offset is not None:
            if self.options.end_offset <= begin.offset:
                return compacted
            if self.options.end_offset < self.log.state().next:
                head = self.log.seek(self.options.end_offset).byte
        borders = [begin.byte, *self._borders(begin.byte, head), head]
        return compacted + self._cut(borders)

    def _start(self) -> LogPoint:
        asked, byte = self.options.start, self.options.start_byte
        if asked is Edge.EARLIEST:
            return self.log.first()
        if asked is Edge.LATEST:
            return self.log.state().point
        assert isinstance(asked, int)
        if byte is not None:
            return LogPoint(MessageOffset(asked), ByteOffset(byte))
        if not self.options.fails_on_data_loss(stream=self.stream):
            first = self.log.first()
            if asked < first.offset:
                self._loss(asked, first.offset)
                return first
        return self.log.seek(asked)

    def _borders(self, begin: int, head: int) -> list[int]:
        """Record borders that cost no walk: the index, and where fragments begin, since appends are never split."""
        known = {int(point.byte) for point in self.log.trusted_entries(head)}
        if head - begin >= 2 * common.SMALL_BATCH:
            known |= {fragment.spec.begin for fragment in self.client.fragments(self.options.journal)}
        return sorted(byte for byte in known if begin < byte < head)

    def _cut(self, borders: Sequence[int]) -> list[InputPartition]:
        """Consecutive ranges of about equal size between the first and the last of these borders."""
        first, last = borders[0], borders[-1]
        size = last - first
        if size <= 0:
            return []
        parts = self._parts(size)
        self._range(first, last)  # all files at once
        chosen = [first]
        for part in range(1, parts):
            border = self._near(first + size * part // parts, size // parts, borders, chosen[-1])
            if chosen[-1] < border < last:
                chosen.append(border)
        return self._between([*chosen, last])

    def _near(self, ideal: int, size: int, borders: Sequence[int], before: int) -> int:
        """A record border at about `ideal`: a known one, or one that a short walk finds, from `before` on at most.

        Known borders may lie far apart, between large appends: cut there alone, parts of a batch differ so much that
        one core waits for the other. Bytes that are not on this machine are not fetched for that.
        """
        at = bisect.bisect_right(borders, ideal)
        nearest = min(borders[at - 1 : at + 1], key=lambda border: abs(border - ideal))
        below = max(borders[at - 1], before)
        far = ideal - below
        if (
            abs(nearest - ideal) <= size * UNEVEN
            or not 0 < far <= WALK
            or not self._range(below, ideal).files
        ):
            return nearest
        return self._walked(below, ideal)

    def _walked(self, below: int, ideal: int) -> int:
        """Where the last record begins that begins at or before `ideal`; one begins at `below`."""
        from penstock.spark.columns import record_starts

        reader = RangeReader(self.options.access, self._range(below, ideal))
        with closing(reader):
            window = Window(reader, MAX_SIZE + (1 << 20))
            while window.fill():
                window.consume(record_starts(window.view, self.options.journal, window.base)[1])
        return window.base

    def _points(self, begin: LogPoint, head: int, limits: Limits) -> list[LogPoint]:
        """Known places from `begin` on: those of the index, or else of a walk as far as the limits go.

        What lies behind the index is walked through, and may be a unit of any size that has no end yet: not for a batch
        that ends before.
        """
        if head - begin.byte > common.SMALL_BATCH:
            entries = self.log.trusted_entries(head)
            if entries and entries[-1].byte > begin.byte:
                far = begin.byte + limits.max_bytes if limits.max_bytes is not None else head
                end = next((point.byte for point in entries if point.byte >= far), head)
                return self.log.points(begin, ByteOffset(end))
        return self._walk(begin, head, limits)

    def _walk(self, begin: LogPoint, head: int, limits: Limits) -> list[LogPoint]:
        """Places found by going from record to record, as far as the limits go.

        A unit that has no end yet may be long, and grows: it is looked through once, whoever asks how often.
        """
        if not self._search.goes_on(begin, limits):
            self._search = EndSearch(begin, limits)
        search = self._search
        if search.byte >= head:
            return search.points()
        reader = RangeReader(self.options.access, self._range(search.byte, head))
        with closing(reader):
            search.go_on(Window(reader, MAX_SIZE + (1 << 20)), self.options.journal)
        return search.points()


def _within(points: list[LogPoint], limits: Limits) -> list[LogPoint]:
    """As many of the points as the limits allow."""
    begin = points[0]
    return [
        point
        for point in points
        if (limits.max_bytes is None or point.byte - begin.byte <= limits.max_bytes)
        and (limits.max_rows is None or point.offset - begin.offset <= limits.max_rows)
    ]


def _point(place: Place) -> LogPoint:
    return LogPoint(MessageOffset(place["offset"]), ByteOffset(place["byte"]))


def planner(options: SourceOptions, *, stream: bool) -> Plan:
    if options.content is Content.RECORDS:
        return RecordPlanner(options, stream=stream)
    if options.content is Content.CONNECTOR:
        from penstock.spark.partitioned import PartitionedPlanner

        return PartitionedPlanner(options, stream=stream)
    kind = BytePlanner if options.content is Content.RAW else LinePlanner
    return kind(options, stream=stream)
