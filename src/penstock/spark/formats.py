"""What the bytes of a range become: rows of one of the five contents.

    raw       offset BIGINT, value BINARY      pieces of `chunkBytes`, cut where the offset is a multiple of that
    lines     offset BIGINT, value STRING      a line without its newline; value BINARY if the schema says so
    json      the same, without blank lines; or the columns of the schema that the reader was given (`jsonrows.py`)
    records   the messages of a commit log (`columns.py`)
    connector the messages in the journal of a connector instance (`connectorrows.py`)

`offset` is where the piece or line begins in the journal. A range of lines begins at a line and, in a stream, ends
behind one; the end of a batch read may lie within a line, which is then given as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from penstock.base.errors import CorruptError, UsageError
from penstock.spark.options import Content, SourceOptions
from penstock.spark.ranges import CompactedRange, JournalRange, RangeReader, Window

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.columns import Positions

ARROW_ROWS = 50_000
ARROW_BYTES = 16 << 20
RAW_SCHEMA = "offset BIGINT, value BINARY"
TEXT_SCHEMA = "offset BIGINT, value STRING"
RECORDS_SCHEMA = (  # `columns.SCHEMA`, in Spark's words
    "offset BIGINT, ts TIMESTAMP, mode STRING, op STRING, ns STRING, key STRING, old_key STRING, data STRING"
)

CONNECTOR_SCHEMA = (  # `connectorrows.SCHEMA`
    "offset BIGINT, stream DECIMAL(20,0), id DECIMAL(20,0), time BIGINT, key BINARY, body BINARY"
)


def default_schema(content: Content) -> str:
    if content is Content.RECORDS:
        return RECORDS_SCHEMA
    if content is Content.CONNECTOR:
        return CONNECTOR_SCHEMA
    return RAW_SCHEMA if content is Content.RAW else TEXT_SCHEMA


def check_schema(options: SourceOptions, schema: StructType) -> None:
    """Refuse a schema that the content cannot give. Only JSON takes one of the user's own."""
    if options.content is Content.JSON and not _is_text(schema):
        from penstock.spark.jsonrows import check_json_schema

        check_json_schema(schema)
        return
    given = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    allowed = [default_schema(options.content)]
    if options.content is Content.LINES:
        allowed.append(RAW_SCHEMA)
    if given not in [_columns(text) for text in allowed]:
        raise UsageError(
            f"data source penstock: content '{options.content}' has the columns {' or '.join(allowed)}",
            hint="leave out .schema(...), or read JSON documents into columns with content=json",
        )


def _columns(text: str) -> list[tuple[str, str]]:
    pairs = (column.split(" ") for column in text.split(", "))
    return [(name, kind.lower()) for name, kind in pairs]


def _is_text(schema: StructType) -> bool:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields] == _columns(TEXT_SCHEMA)


def read_range(
    options: SourceOptions, schema: StructType | None, wanted: InputPartition, *, stream: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, as Arrow batches. `schema` is the reader's; None is the content's own."""
    if isinstance(wanted, CompactedRange):
        yield from _compacted(options, wanted)
    if not isinstance(wanted, JournalRange):
        return  # Spark makes one of its own where there is nothing to read
    framed = options.content in (Content.RECORDS, Content.CONNECTOR)
    skip_lost = not framed and not options.fails_on_data_loss(stream=stream)
    reader = RangeReader(options.access, wanted, skip_lost=skip_lost)
    with closing(reader):
        if options.content is Content.RECORDS:
            yield from _records(reader, wanted.end)
        elif options.content is Content.CONNECTOR:
            yield from _frames(reader, wanted.end)
        elif options.content is Content.RAW:
            yield from _pieces(reader, options.chunk_bytes)
        elif options.content is Content.JSON:
            yield from _documents(reader, options, schema)
        else:
            binary = schema is not None and schema.fields[-1].dataType.simpleString() == "binary"
            yield from _lines(reader, options.max_line_bytes, binary=binary)


def _records(reader: RangeReader, end: int) -> Iterator[pa.RecordBatch]:
    from penstock.log.record import MAX_SIZE
    from penstock.spark import columns

    window = Window(reader, MAX_SIZE + (1 << 20))
    while window.fill():
        batch, consumed = columns.decode(window.view, reader.journal, window.base)
        window.consume(consumed)
        yield from columns.cut(batch, ARROW_ROWS, ARROW_BYTES)
    if window.base != end:
        raise CorruptError("a record that does not end", where=reader.journal, position=window.base)


def _frames(reader: RangeReader, end: int) -> Iterator[pa.RecordBatch]:
    from penstock.spark import columns, connectorrows

    window = Window(reader, connectorrows.WINDOW_LIMIT)
    while window.fill():
        batch, consumed = connectorrows.decode(window.view, reader.journal, window.base)
        window.consume(consumed)
        yield from columns.cut(batch, ARROW_ROWS, ARROW_BYTES)
    if window.base != end:
        raise CorruptError("a frame that does not end", where=reader.journal, position=window.base)


def _compacted(options: SourceOptions, wanted: CompactedRange) -> Iterator[pa.RecordBatch]:
    from penstock.log.reader import LogReader
    from penstock.spark import columns

    kept = LogReader(options.access.client(), options.journal, None).compacted(wanted.first, wanted.last)
    batch = columns.of_records(kept)
    yield from columns.cut(batch, ARROW_ROWS, ARROW_BYTES)


def _pieces(reader: RangeReader, size: int) -> Iterator[pa.RecordBatch]:
    """Pieces that end where the offset is a multiple of their size, so that they do not depend on the range."""
    import numpy as np
    import pyarrow as pa

    from penstock.log.slices import Texts
    from penstock.spark.columns import numbers

    window = Window(reader, size, size)
    more = True
    while more or window.view:
        more = window.fill()
        border = size - window.base % size
        if len(window.view) < border and more:
            continue
        piece = np.array([min(border, len(window.view))])
        if piece[0]:
            value = Texts(window.view).binaries(np.zeros(1, np.int64), piece)
            arrays = [numbers(np.array([window.base])), value]
            yield pa.RecordBatch.from_arrays(arrays, names=["offset", "value"])
        window.consume(int(piece[0]))


class Lines:
    """The lines in a buffer: where each begins and how long it is, without its newline."""

    def __init__(self, window: Window, *, whole: bool) -> None:
        """`whole` takes what has no newline yet for a line too."""
        import numpy as np

        from penstock.log.slices import Texts

        self.base = window.base
        self._view = window.view
        raw = np.frombuffer(window.view, dtype=np.uint8)
        ends = np.flatnonzero(raw == 0x0A)
        if whole and len(raw) and raw[-1] != 0x0A:
            ends = np.append(ends, len(raw))
        self.at: Positions = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))[: len(ends)]
        self.length: Positions = ends - self.at
        self.consumed = min(int(ends[-1]) + 1, len(raw)) if len(ends) else 0
        self._texts = Texts(window.view)

    def __len__(self) -> int:
        return len(self.at)

    def offsets(self) -> pa.Array:
        from penstock.spark.columns import numbers

        return numbers(self.at + self.base)

    def binaries(self) -> pa.Array:
        return self._texts.binaries(self.at, self.length)

    def strings(self, journal: str) -> pa.Array:
        import pyarrow as pa

        try:
            return self._texts.strings(self.at, self.length)
        except pa.ArrowInvalid:
            raise self._not_text(journal) from None

    def not_blank(self) -> Lines:
        """The same without lines of nothing but blanks."""
        import numpy as np

        raw = np.frombuffer(self._view, dtype=np.uint8)
        suspects = np.flatnonzero((self.length == 0) | (raw[np.minimum(self.at, len(raw) - 1)] <= 0x20))
        kept = np.ones(len(self.at), dtype=np.bool_)
        kept[[i for i in suspects.tolist() if not self._content(i).strip()]] = False
        self.at, self.length = self.at[kept], self.length[kept]
        return self

    def _content(self, i: int) -> bytes:
        return bytes(self._view[self.at[i] : self.at[i] + self.length[i]])

    def contents(self) -> list[bytes]:
        ends = self.at + self.length
        return [bytes(self._view[a:b]) for a, b in zip(self.at.tolist(), ends.tolist(), strict=True)]

    def _not_text(self, journal: str) -> CorruptError:
        for at, content in zip(self.at.tolist(), self.contents(), strict=True):
            try:
                content.decode()
            except UnicodeDecodeError as error:
                return CorruptError(
                    f"a line that is not UTF-8 ({error.reason})",
                    where=journal,
                    position=self.base + at + error.start,
                    hint='read it as .schema("offset BIGINT, value BINARY"), or with content=raw',
                )
        raise AssertionError("Arrow found text that is not UTF-8 where Python does not")


def _all_lines(reader: RangeReader, limit: int) -> Iterator[Lines]:
    window = Window(reader, limit)
    more = True
    while more:
        more = window.fill()
        lines = Lines(window, whole=not more)
        if len(lines):
            yield lines
        window.consume(lines.consumed)


def _lines(reader: RangeReader, limit: int, *, binary: bool) -> Iterator[pa.RecordBatch]:
    for lines in _all_lines(reader, limit):
        values = lines.binaries() if binary else lines.strings(reader.journal)
        yield from _cut([lines.offsets(), values])


def _documents(
    reader: RangeReader, options: SourceOptions, schema: StructType | None
) -> Iterator[pa.RecordBatch]:
    if schema is None or _is_text(schema):
        for lines in _all_lines(reader, options.max_line_bytes):
            lines.not_blank()
            yield from _cut([lines.offsets(), lines.strings(reader.journal)])
        return
    from penstock.spark.jsonrows import JsonRows

    rows = JsonRows(schema, options.mode, reader.journal)
    for lines in _all_lines(reader, options.max_line_bytes):
        lines.not_blank()
        batch = rows.batch((lines.at + lines.base).tolist(), lines.contents())
        if batch.num_rows:
            yield batch


def _cut(arrays: Sequence[pa.Array]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from penstock.spark import columns

    batch = pa.RecordBatch.from_arrays(arrays, names=["offset", "value"])
    yield from columns.cut(batch, ARROW_ROWS, ARROW_BYTES)
