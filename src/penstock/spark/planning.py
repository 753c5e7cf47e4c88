"""Where a read begins and ends, and how it is cut into ranges for tasks.

A place in a commit log is a message and a byte together (`LogPoint`), so that planning needs no index, though it uses
one where it is. A place in any other journal is a byte; with lines, one at which a line begins. A batch is a range
between two places, so reading it again gives the same rows. Ranges of one batch follow each other, in order. A batch of
a commit log ends where no transaction of the source is cut (`endsearch.py`), unless its reader has begun within one.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing

from pyspark.sql.datasource import InputPartition

from penstock.base.errors import UsageError
from penstock.journal.client import Client
from penstock.journal.datadir import DataDir
from penstock.log.journals import extent, steadily
from penstock.log.message import ByteOffset, MessageOffset
from penstock.log.positions import ORIGIN, LogCache, LogPoint
from penstock.log.reader import LogReader
from penstock.log.record import MAX_SIZE
from penstock.spark import ranges
from penstock.spark.endsearch import EndSearch, Limits
from penstock.spark.options import Content, DataLossError, Edge, SourceOptions
from penstock.spark.ranges import CompactedRange, JournalRange, LocalFile, RangeReader, Window, locate

log = logging.getLogger(__name__)

SMALL_BATCH = 4 << 20
"""Below this many bytes a second partition costs more than it saves."""

_SEARCH = 64 << 10
"""How much is read at first when a newline is looked for."""

Place = dict[str, int]


class Planner(ABC):
    """What both readers need of a journal. Lives in Spark's planning process."""

    def __init__(self, options: SourceOptions, *, stream: bool) -> None:
        self.options = options
        self.stream = stream
        self._located: tuple[int, int, list[LocalFile]] = (0, 0, [])
        self._lacking_since: float | None = None

    @abstractmethod
    def start(self) -> Place:
        """Where a stream begins."""

    @abstractmethod
    def latest(self, start: Place, head: int, limits: Limits) -> Place:
        """The end of the next micro-batch, at most at `head`; `start` if there is nothing yet."""

    @abstractmethod
    def ranges(self, start: Place, end: Place) -> list[InputPartition]:
        """The ranges of a micro-batch."""

    @abstractmethod
    def batch(self) -> list[InputPartition]:
        """The ranges of a batch read."""

    @functools.cached_property
    def client(self) -> Client:
        directory = self.options.data_dir
        if directory is not None and self.options.serves_itself:
            _require_served(DataDir(directory))
        return self.options.access.client()

    def head(self) -> int:
        return self.client.head(self.options.journal)

    def wait(self, beyond: int) -> int:
        """The head, as soon as it is past `beyond`; waits in the broker rather than in a loop.

        `beyond` was the head once. A broker that is behind may say less for a while; a journal that was set back would
        have the query wait until other bytes are there, and go on in the midst of them.
        """
        head = self.client.wait(self.options.journal, beyond, self.options.wait)
        now = time.monotonic()
        self._lacking_since = None if head >= beyond else self._lacking_since or now
        if self._lacking_since is not None and now - self._lacking_since > ranges.PATIENCE:
            raise ranges.set_back(self.options.journal, head, beyond)
        return head

    def _loss(self, begin: int, end: int) -> None:
        """The bytes between are gone and were asked for."""
        if self.options.fails_on_data_loss(stream=self.stream):
            raise DataLossError(self.options.journal, begin, end)
        log.warning(
            "journal %s: bytes %d to %d are gone; going on at %d", self.options.journal, begin, end, end
        )

    def _range(self, begin: int, end: int) -> JournalRange:
        """A range with the files it lies in; those of a range that was looked up before are known already."""
        known_begin, known_end, files = self._located
        if begin < known_begin or end > known_end:
            files = locate(self.options.access, self.options.journal, begin, end)
            self._located = (begin, end, files)
        return JournalRange(begin, end, [file for file in files if file.begin < end and file.end > begin])

    def _between(self, borders: Sequence[int]) -> list[InputPartition]:
        """A range between each two borders."""
        self._range(borders[0], borders[-1])
        return [self._range(begin, end) for begin, end in itertools.pairwise(borders)]

    def _parts(self, size: int) -> int:
        return max(1, min(self.options.partitions, size // SMALL_BATCH))


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
        if head - begin >= 2 * SMALL_BATCH:
            known |= {fragment.spec.begin for fragment in self.client.fragments(self.options.journal)}
        return sorted(byte for byte in known if begin < byte < head)

    def _cut(self, borders: Sequence[int]) -> list[InputPartition]:
        """Consecutive ranges of about equal size between the first and the last of these borders."""
        first, last = borders[0], borders[-1]
        size = last - first
        if size <= 0:
            return []
        wanted = self._parts(size)
        chosen = [first]
        for border in borders[1:-1]:
            if border - chosen[-1] >= size / wanted and len(chosen) < wanted:
                chosen.append(border)
        return self._between([*chosen, last])

    def _points(self, begin: LogPoint, head: int, limits: Limits) -> list[LogPoint]:
        """Known places from `begin` on: those of the index, or else of a walk as far as the limits go.

        What lies behind the index is walked through, and may be a unit of any size that has no end yet: not for a batch
        that ends before.
        """
        if head - begin.byte > SMALL_BATCH:
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
        reader = RangeReader(self.options.access, self.options.journal, self._range(search.byte, head))
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


class BytePlanner(Planner):
    """Of a journal whose bytes mean nothing to the planner: pieces of it."""

    def start(self) -> Place:
        return {"byte": self._start()}

    def latest(self, start: Place, head: int, limits: Limits) -> Place:
        begin = self._remaining(start["byte"])
        end = head if limits.max_bytes is None else min(head, begin + limits.max_bytes)
        return {"byte": max(self._end(begin, end, head, limits.max_rows), start["byte"])}

    def ranges(self, start: Place, end: Place) -> list[InputPartition]:
        begin, stop = self._remaining(start["byte"]), end["byte"]
        size = stop - begin
        if size <= 0:
            return []
        parts = self._parts(size)
        inner = (self._border(begin + size * i // parts, stop) for i in range(1, parts))
        return self._between([begin, *sorted({b for b in inner if begin < b < stop}), stop])

    def batch(self) -> list[InputPartition]:
        head = self.head()
        end = head if self.options.end_offset is None else min(head, self.options.end_offset)
        return self.ranges({"byte": self._start()}, {"byte": end})

    def _start(self) -> int:
        journal, asked = self.options.journal, self.options.start
        held = extent(self.client, journal)
        if asked is Edge.EARLIEST:
            return held.begin
        if asked is Edge.LATEST:
            return self._last_border(held.begin, held.head)
        assert isinstance(asked, int)
        if asked > held.head:
            raise UsageError(
                f"journal {journal} ends at byte {held.head}, a read cannot start at {asked}",
                hint="startOffset=latest starts at its end",
            )
        return self._remaining(asked)

    def _remaining(self, byte: int) -> int:
        """`byte`, or the first one behind it that is still there."""
        begin = self.client.begin(self.options.journal)
        if begin <= byte:
            return byte
        self._loss(byte, begin)
        return begin

    def _last_border(self, begin: int, head: int) -> int:
        return head

    def _border(self, byte: int, end: int) -> int:
        """The first place at or behind `byte` where a range may begin."""
        size = self.options.chunk_bytes
        return min(-(-byte // size) * size, end)

    def _end(self, begin: int, end: int, head: int, max_rows: int | None) -> int:
        if max_rows is None:
            return end
        size = self.options.chunk_bytes
        return min(end, begin // size * size + max_rows * size)


class LinePlanner(BytePlanner):
    """Of a journal of lines: places lie behind newlines."""

    _searched = (-1, -1)
    """A range known to hold no newline, which a line that grows would have searched again and again."""

    def wait(self, beyond: int) -> int:
        begin, end = self._searched
        return super().wait(end if begin == beyond else beyond)

    def _last_border(self, begin: int, head: int) -> int:
        return self._behind_last_newline(begin, head)

    def _border(self, byte: int, end: int) -> int:
        found = self._behind_first_newline(byte - 1, end)
        return end if found is None else found

    def _end(self, begin: int, end: int, head: int, max_rows: int | None) -> int:
        """Behind the last whole line within the limits; one line is always within them."""
        if self._searched[0] != begin:
            self._searched = (begin, begin)
        if max_rows is not None:
            end = self._behind_line(begin, end, max_rows)
        found = self._behind_last_newline(max(begin, self._searched[1]), end)
        if found > self._searched[1]:
            return found
        behind = self._behind_first_newline(max(end, self._searched[1]), head)
        if behind is None:
            self._searched = (begin, head)
            return begin
        return behind

    def _behind_last_newline(self, begin: int, end: int) -> int:
        """Behind the last newline of [begin, end), or `begin`. Reads backwards, ever more at a time."""
        size = _SEARCH
        while end > begin:
            low = max(begin, end - size)
            found = self._read(low, end).rfind(b"\n")
            if found >= 0:
                return low + found + 1
            end, size = low, min(4 * size, SMALL_BATCH)
        return begin

    def _behind_first_newline(self, begin: int, end: int) -> int | None:
        """Behind the first newline of [begin, end), if there is one."""
        size = _SEARCH
        while begin < end:
            high = min(end, begin + size)
            found = self._read(begin, high).find(b"\n")
            if found >= 0:
                return begin + found + 1
            begin, size = high, min(4 * size, SMALL_BATCH)
        return None

    def _behind_line(self, begin: int, end: int, count: int) -> int:
        """Behind line number `count` from `begin` on, or `end` if there are fewer."""
        while begin < end:
            high = min(end, begin + SMALL_BATCH)
            content = self._read(begin, high)
            lines = content.count(b"\n")
            if lines >= count:
                at = -1
                for _ in range(count):
                    at = content.index(b"\n", at + 1)
                return begin + at + 1
            begin, count = high, count - lines
        return end

    def _read(self, begin: int, end: int) -> bytes:
        return steadily(lambda: self.client.read_bytes(self.options.journal, begin, end))


def planner(options: SourceOptions, *, stream: bool) -> Planner:
    if options.content is Content.RECORDS:
        return RecordPlanner(options, stream=stream)
    kind = BytePlanner if options.content is Content.RAW else LinePlanner
    return kind(options, stream=stream)


def _require_served(directory: DataDir) -> None:
    directory.version()
    if directory.owner() is None:
        raise UsageError(
            f"nobody serves the data directory {directory.path} at the moment",
            hint=f"`penstock broker serve --data-dir {directory.path}` does, and so does a running pipeline",
        )
