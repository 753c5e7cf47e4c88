"""Planning for journals other than commit logs: a place is a byte; with lines, one at which a line begins."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from penstock.base.errors import UsageError
from penstock.log.journals import extent, steadily
from penstock.spark import planner as common
from penstock.spark.endsearch import Limits
from penstock.spark.options import Edge
from penstock.spark.planner import Place, Planner

_SEARCH = 64 << 10
"""How much is read at first when a newline is looked for."""


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
            end, size = low, min(4 * size, common.SMALL_BATCH)
        return begin

    def _behind_first_newline(self, begin: int, end: int) -> int | None:
        """Behind the first newline of [begin, end), if there is one."""
        size = _SEARCH
        while begin < end:
            high = min(end, begin + size)
            found = self._read(begin, high).find(b"\n")
            if found >= 0:
                return begin + found + 1
            begin, size = high, min(4 * size, common.SMALL_BATCH)
        return None

    def _behind_line(self, begin: int, end: int, count: int) -> int:
        """Behind line number `count` from `begin` on, or `end` if there are fewer."""
        while begin < end:
            high = min(end, begin + common.SMALL_BATCH)
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
