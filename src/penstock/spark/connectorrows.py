"""The journal of a connector instance as rows, and where its frames end, for the planner (`connector/records.py`).

    offset BIGINT, stream DECIMAL(20,0), id DECIMAL(20,0), time BIGINT, key BINARY, body BINARY

`offset` is the byte at which the message's frame begins. Ids are unsigned and may need all 64 bits, hence the decimals.
An empty key is null. Ends of streams and what workers write for themselves are no rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from penstock.connector.frames import HEAD, TAG, Tag
from penstock.connector.records import MAX_RECORD, CorruptJournalError
from penstock.log.journals import steadily
from penstock.spark.byteplanning import BytePlanner
from penstock.spark.planner import Place

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = "offset BIGINT, stream DECIMAL(20,0), id DECIMAL(20,0), time BIGINT, key BINARY, body BINARY"
WINDOW_LIMIT = MAX_RECORD + (1 << 20)
_STEP = 4 << 20


def frame_ends(view: memoryview, journal: str, base: int) -> array[int]:
    """Where the whole frames in `view` end, which begins with one, at byte `base` of the journal."""
    ends, at, size = array("q"), 0, len(view)
    while size - at >= TAG.size:
        length = TAG.unpack_from(view, at)[0]
        if not 0 < length <= MAX_RECORD:
            raise CorruptJournalError(f"a frame of {length} bytes", where=journal, position=base + at)
        at += 4 + length
        if at > size:
            break
        ends.append(at)
    return ends


def decode(view: memoryview, journal: str, base: int) -> tuple[pa.RecordBatch, int]:
    """The messages in `view`, which begins with a frame, and how many bytes of it that took."""
    import pyarrow as pa

    ends = frame_ends(view, journal, base)
    offsets, streams, ids, times = array("q"), array("Q"), array("Q"), array("q")
    keys: list[bytes | None] = []
    bodies: list[bytes] = []
    begin, message = 0, Tag.MESSAGE.value
    for end in ends:
        if view[begin + 4] == message:
            if end - begin < HEAD.size:
                raise CorruptJournalError("a message without its head", where=journal, position=base + begin)
            _, _, stream, number, time, key = HEAD.unpack_from(view, begin)
            body = begin + HEAD.size + key
            offsets.append(base + begin)
            streams.append(stream)
            ids.append(number)
            times.append(time)
            keys.append(bytes(view[begin + HEAD.size : body]) if key else None)
            bodies.append(bytes(view[body:end]))
        begin = end
    arrays = [
        pa.array(offsets, pa.int64()),
        _unsigned(streams),
        _unsigned(ids),
        pa.array(times, pa.int64()),
        pa.array(keys, pa.binary()),
        pa.array(bodies, pa.binary()),
    ]
    names = [column.split(" ")[0] for column in SCHEMA.split(", ")]
    return pa.RecordBatch.from_arrays(arrays, names=names), begin


def _unsigned(values: array[int]) -> pa.Array:
    """Unsigned numbers as decimals: their bytes are the low half of each."""
    import numpy as np
    import pyarrow as pa

    wide = np.zeros((len(values), 2), "<u8")
    wide[:, 0] = np.frombuffer(values, np.uint64) if len(values) else 0
    return pa.Array.from_buffers(pa.decimal128(20, 0), len(values), [None, pa.py_buffer(wide.tobytes())])


class ConnectorPlanner(BytePlanner):
    """Places lie between frames. The head of the journal always does, since every append holds whole frames."""

    def ranges(self, start: Place, end: Place) -> list[InputPartition]:
        begin, stop = self._remaining(start["byte"]), end["byte"]
        size = stop - begin
        if size <= 0:
            return []
        parts = self._parts(size)
        borders, wanted = [begin], [begin + size * i // parts for i in range(1, parts)]
        if wanted:
            for border in self._borders(begin, stop):
                if wanted and border >= wanted[0] and border < stop:
                    borders.append(border)
                    wanted = [place for place in wanted if place > border]
        return self._between([*borders, stop])

    def _end(self, begin: int, end: int, head: int, max_rows: int | None) -> int:
        """The last end of a frame within the limits; one frame is always within them."""
        if end >= head and max_rows is None:
            return head
        last = begin
        for count, border in enumerate(self._borders(begin, head), 1):
            if last > begin and (border > end or (max_rows is not None and count > max_rows)):
                break
            last = border
        return last

    def _borders(self, begin: int, end: int) -> Iterator[int]:
        step = _STEP
        while begin < end:
            high = min(end, begin + step)
            content = steadily(partial(self.client.read_bytes, self.options.journal, begin, high))
            ends = frame_ends(memoryview(content), self.options.journal, begin)
            if not ends:
                step *= 4
                continue
            yield from (begin + each for each in ends)
            begin, step = begin + ends[-1], _STEP
