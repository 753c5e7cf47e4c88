"""The Spark data source `penstock`: a commit log as a DataFrame, batch or streaming.

    spark.dataSource.register(PenstockSource)
    spark.readStream.format("penstock").option("dataDir", ".penstock").option("pipeline", "shop").load()

Columns: `offset, ts, mode, op, ns, key, data` (`spark/columns.py`). A Spark offset is a place in the log,
message and byte together, so that planning needs no index, though it uses one. A batch is a range of the
log, so reading it again gives the same rows. Partitions are consecutive ranges, in order.

    dataDir      the data directory; its broker is asked over the socket in it
    pipeline     whose commit log
    startOffset  where a stream begins, and a batch read; startByte, if it is known, saves the look-up
    endOffset    where a batch read ends, exclusive
    maxBytes, maxMessages    limits of one micro-batch
    partitions   at most so many in a batch; small ones get one
    wait         seconds that planning waits in the broker when there is nothing new

Tasks read stored fragments and the committed part of spools from their files; if a file has gone (a spool
moves into the store), they ask again, and what is in no local file comes through the broker.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.base import faults
from penstock.base.errors import UsageError, did_you_mean
from penstock.journal.client import Client, Span
from penstock.journal.datadir import DataDir
from penstock.journal.embedded import address
from penstock.journal.fragment import Codec
from penstock.log.commitlog import LogReader, log_journal
from penstock.log.message import ByteOffset, MessageOffset
from penstock.log.positions import LogCache, LogPoint

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

READ_CHUNK = 8 << 20
ARROW_ROWS = 50_000
ARROW_BYTES = 16 << 20
SMALL_BATCH = 4 << 20
"""Below this many bytes a second partition costs more than it saves."""

_OPTIONS = frozenset(
    [
        "datadir",
        "pipeline",
        "startoffset",
        "startbyte",
        "endoffset",
        "maxbytes",
        "maxmessages",
        "partitions",
        "wait",
    ]
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options, checked."""

    data_dir: Path
    pipeline: str
    start: LogPoint | None
    end_offset: int | None
    max_bytes: int
    max_messages: int
    partitions: int
    wait: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            if name not in _OPTIONS:
                raise UsageError(
                    f"data source penstock: unknown option '{name}'{did_you_mean(name, _OPTIONS)}"
                )
        for name in ("datadir", "pipeline"):
            if name not in given:
                raise UsageError(f"data source penstock: option '{name}' is missing")
        start = None
        if "startoffset" in given:
            offset, byte = int(given["startoffset"]), int(given.get("startbyte", "-1"))
            start = LogPoint(MessageOffset(offset), ByteOffset(byte))
        return cls(
            data_dir=Path(given["datadir"]),
            pipeline=given["pipeline"],
            start=start,
            end_offset=int(given["endoffset"]) if "endoffset" in given else None,
            max_bytes=int(given.get("maxbytes", 64 << 20)),
            max_messages=int(given.get("maxmessages", 500_000)),
            partitions=int(given.get("partitions", os.cpu_count() or 2)),
            wait=float(given.get("wait", 1.0)),
        )


class LogRange(InputPartition):
    """What one task reads: bytes [begin, end) of the log, and the files they lay in at planning."""

    def __init__(self, begin: int, end: int, spans: Sequence[Span]) -> None:
        super().__init__((begin, end))
        self.begin = begin
        self.end = end
        self.spans = tuple(spans)


class PenstockSource(DataSource):
    """See the module's text."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = SourceOptions.parse(dict(options))

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        from penstock.spark.columns import SPARK_SCHEMA

        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(self._parsed)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _StreamReader(self._parsed)


class _Planner:
    """What both readers share: the log, its end, and how a range is cut into partitions."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    @functools.cached_property
    def log(self) -> LogReader:
        return _open_log(self.options)

    def start(self) -> LogPoint:
        """The first place asked for; the begin of the log by default."""
        start = self.options.start
        if start is None:
            return LogPoint(MessageOffset(0), ByteOffset(0))
        return start if start.byte >= 0 else self.log.seek(start.offset)

    def points(self, begin: LogPoint, head: int) -> list[LogPoint]:
        return self.log.points(begin, ByteOffset(head))

    def cut(self, points: Sequence[LogPoint]) -> list[LogRange]:
        """Consecutive ranges of about equal size between the first and the last point."""
        first, last = points[0].byte, points[-1].byte
        size = last - first
        if not size:
            return []
        wanted = max(1, min(self.options.partitions, size // SMALL_BATCH))
        borders = [first]
        for point in points[1:-1]:
            if point.byte - borders[-1] >= size / wanted and len(borders) < wanted:
                borders.append(point.byte)
        borders.append(last)
        spans = self.log.client.locate(self.log.journal, first, last)
        return [
            LogRange(begin, end, [span for span in spans if span.begin < end and span.end > begin])
            for begin, end in itertools.pairwise(borders)
        ]


class _BatchReader(DataSourceReader):
    """A batch read: from the start asked for to the end of the log as it is now."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        planner = _Planner(self._options)
        head: int = planner.log.client.head(planner.log.journal)
        if self._options.end_offset is not None:
            end = planner.log.state()
            if self._options.end_offset < end.next:
                head = planner.log.seek(self._options.end_offset).byte
        return planner.cut(planner.points(planner.start(), head))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, cast("LogRange", partition))


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Planning lives in one process for as long as the query does; reading in tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner = _Planner(options)
        self._target: int | None = None
        self._planned: list[LogPoint] = []

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return self._planner.start()._asdict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._planner.log.client.head(self._planner.log.journal)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of the next batch. With nothing new it waits in the broker rather than in a loop."""
        begin = _point(start)
        with faults.step("plan"):
            points = self._planner.points(begin, self._head(begin.byte))
            self._planned = self._within(points, limit)
            return self._planned[-1]._asdict()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        begin, stop = _point(start), _point(end)
        planned = self._planned
        if not planned or planned[0] != begin or planned[-1] != stop:
            planned = self._planner.points(begin, stop.byte)
        return self._planner.cut(planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, cast("LogRange", partition))

    def commit(self, end: dict[str, int]) -> None:
        """Nothing hangs on it: the offset log says what a sink has."""

    def stop(self) -> None:
        self._planner.log.client.close()

    def _head(self, byte: int) -> int:
        if self._target is not None:
            return max(self._target, byte)
        client, journal = self._planner.log.client, self._planner.log.journal
        return client.wait(journal, byte, self._options.wait)

    def _within(self, points: list[LogPoint], limit: ReadLimit) -> list[LogPoint]:
        """As many of the points as the limits allow, and always one step, or a large message would block."""
        if isinstance(limit, ReadAllAvailable):
            return points
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        begin = points[0]
        allowed = [
            point
            for point in points
            if point.byte - begin.byte <= max_bytes and point.offset - begin.offset <= max_rows
        ]
        if len(allowed) > 1 or len(points) == 1:
            return allowed
        return self._finer(points[0], points[1], max_rows)

    def _finer(self, begin: LogPoint, end: LogPoint, max_rows: int) -> list[LogPoint]:
        """Limits smaller than the index is fine: walk to the message they end at."""
        for byte, record in self._planner.log.records(begin.byte, end.byte):
            if not record.control and record.offset - begin.offset >= max(max_rows, 1):
                return [begin, LogPoint(MessageOffset(record.offset), ByteOffset(byte))]
        return [begin, end]


def _point(offset: dict[str, int]) -> LogPoint:
    return LogPoint(MessageOffset(offset["offset"]), ByteOffset(offset["byte"]))


def _open_log(options: SourceOptions) -> LogReader:
    directory = DataDir(options.data_dir)
    journal = log_journal(options.pipeline)
    return LogReader(_client(address(directory)), journal, LogCache(directory.index, journal))


@functools.lru_cache(maxsize=4)
def _client(where: str) -> Client:
    """One connection a process: a worker serves many tasks."""
    return Client(where)


def read_range(options: SourceOptions, wanted: LogRange) -> Iterator[pa.RecordBatch]:
    """The messages of a range, as Arrow batches."""
    from penstock.spark import columns

    journal = log_journal(options.pipeline)
    carry = b""
    position = wanted.begin
    for chunk in _chunks(options, journal, wanted):
        buffer = carry + chunk if carry else chunk
        batch, consumed = columns.decode(buffer, journal, position)
        position += consumed
        carry = buffer[consumed:]
        yield from columns.cut(batch, ARROW_ROWS, ARROW_BYTES)
    if position != wanted.end:
        raise RuntimeError(f"{journal}: bytes {position} to {wanted.end} do not end with a record")


def _chunks(options: SourceOptions, journal: str, wanted: LogRange) -> Iterator[bytes]:
    """The bytes of a range, from files where they are, from the broker where not."""
    position = wanted.begin
    spans = list(wanted.spans)
    while position < wanted.end:
        for chunk in _from_files(spans, position, wanted.end):
            position += len(chunk)
            yield chunk
        if position >= wanted.end:
            return
        client = _client(address(DataDir(options.data_dir)))
        spans = client.locate(journal, position, wanted.end)
        if not spans or not _readable(spans[0], position):
            for offset, chunk in client.read(journal, position, wanted.end):
                if offset != position:
                    raise RuntimeError(f"{journal}: bytes {position} to {offset} are gone")
                position += len(chunk)
                yield chunk
            if position < wanted.end:
                time.sleep(0.05)


def _from_files(spans: Sequence[Span], begin: int, end: int) -> Iterator[bytes]:
    """Bytes from `begin` on as far as the spans go without a gap; less if a file has gone."""
    position = begin
    for span in spans:
        if not _readable(span, position):
            continue
        try:
            file = span.path.open("rb", buffering=0)
        except FileNotFoundError:
            return
        with file:
            file.seek(span.position + position - span.begin)
            while position < min(span.end, end):
                chunk = file.read(min(READ_CHUNK, min(span.end, end) - position))
                if not chunk:
                    return
                position += len(chunk)
                yield chunk


def _readable(span: Span, position: int) -> bool:
    return span.codec is Codec.NONE and span.begin <= position < span.end and span.path.exists()
