"""Log bytes to Arrow columns, a buffer at a time.

The schema of a message in Spark is `offset, ts, mode, op, ns, key, data`. Only the walk from record to record
is a loop over rows (`log.record.boundaries`); every field is then gathered for all records at once: numbers
by numpy, texts as Arrow *views* into the buffer (16 bytes each: length, then the text itself up to 12 bytes,
or its prefix and place), which Arrow copies into an ordinary column in one go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.log.message import MODE_WORDS, OP_WORDS
from penstock.log.record import (
    CONTROL,
    MODE_MASK,
    NEWER,
    OP_MASK,
    OP_SHIFT,
    WITH_HEADER,
    CorruptRecordError,
    boundaries,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    Positions = NDArray[np.int64]

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("mode", pa.string()),
        ("op", pa.string()),
        ("ns", pa.string()),
        ("key", pa.string()),
        ("data", pa.string()),
    ]
)
SPARK_SCHEMA = "offset BIGINT, ts TIMESTAMP, mode STRING, op STRING, ns STRING, key STRING, data STRING"
COLUMNS = tuple(SCHEMA.names)

_MODES = pa.array(MODE_WORDS)
_OPS = pa.array(OP_WORDS)
_INLINE = 12


def decode(buffer: bytes, where: str, base: int = 0) -> tuple[pa.RecordBatch, int]:
    """The messages in the whole records of `buffer`, and how many bytes these records take.

    Control records are left out. `where` and `base` name the journal and the buffer's place in it.
    """
    starts, consumed = boundaries(buffer, where, base)
    fields = _Fields(buffer, np.array(starts, dtype=np.int64), where, base)
    return fields.batch(), consumed


class _Fields:
    """The fields of the records that begin at `starts`."""

    def __init__(self, buffer: bytes, starts: Positions, where: str, base: int) -> None:
        self._buffer = buffer
        self._bytes = np.frombuffer(buffer, dtype=np.uint8)
        attributes = self._bytes[starts + 20]
        self._where, self._base = where, base
        self._refuse(starts, (attributes & NEWER) != 0, "a record of a newer format")
        messages = (attributes & CONTROL) == 0
        self.starts = starts[messages]
        self.attributes = attributes[messages]

    def batch(self) -> pa.RecordBatch:
        starts, attributes = self.starts, self.attributes
        if not len(starts):
            return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)
        ns_length = self._u32(starts + 21)
        size = self._u32(starts + 8)
        self._refuse(starts, ns_length + 8 > size, "a key longer than its record")
        data_at = starts + 25 + ns_length
        data_length = self._u32(data_at)
        self._refuse(starts, ns_length + data_length + 8 != size, "lengths that do not add up")
        ops = attributes >> OP_SHIFT & OP_MASK
        modes = attributes & MODE_MASK
        self._refuse(starts, (ops >= len(OP_WORDS)) | (modes >= len(MODE_WORDS)), "an unknown op or mode")
        key, text_at, text_length = self._headers(data_at + 4, data_length)
        stamps = pa.array(self._u64(starts + 12)).view(pa.timestamp("us", tz="UTC"))
        return pa.RecordBatch.from_arrays(
            [
                pa.array(self._u64(starts)),
                stamps,
                _MODES.take(pa.array(modes)),
                _OPS.take(pa.array(ops)),
                self._texts(starts + 25, ns_length),
                key,
                self._texts(text_at, text_length),
            ],
            schema=SCHEMA,
        )

    def _headers(self, at: Positions, length: Positions) -> tuple[pa.Array, Positions, Positions]:
        """The row keys, and where the text proper begins: behind the header, if there is one."""
        has = np.flatnonzero(self.attributes & WITH_HEADER)
        if not len(has):
            return pa.nulls(len(at), pa.string()), at, length
        self._refuse(self.starts[has], length[has] < 8, "a damaged header")
        header = 4 + self._u32(at[has])
        key_length = self._u32(at[has] + 4).astype(np.int32).astype(np.int64)
        wrong = (header > length[has]) | (key_length < -1) | (8 + key_length > header)
        self._refuse(self.starts[has], wrong, "a damaged header")
        text_at, text_length = at.copy(), length.copy()
        text_at[has] += header
        text_length[has] -= header
        key_at = np.zeros(len(at), dtype=np.int64)
        key_size = np.full(len(at), -1, dtype=np.int64)
        key_at[has] = at[has] + 8
        key_size[has] = key_length
        return self._texts(key_at, key_size), text_at, text_length

    def _texts(self, at: Positions, length: Positions) -> pa.Array:
        """A string column of these slices of the buffer; a negative length is a null."""
        views = np.zeros((len(at), 4), dtype=np.int32)
        views[:, 0] = np.maximum(length, 0)
        raw = views.view(np.uint8)
        reach = np.arange(_INLINE)
        last = len(self._bytes) - 1
        raw[:, 4:] = self._bytes[np.minimum(at[:, None] + reach, last)]
        raw[:, 4:][(reach >= length[:, None]) & (length <= _INLINE)[:, None]] = 0
        long = length > _INLINE
        views[long, 2] = 0
        views[long, 3] = at[long]
        nulls = None
        if (length < 0).any():
            nulls = pa.py_buffer(np.packbits(length >= 0, bitorder="little"))
        buffers = [nulls, pa.py_buffer(views), pa.py_buffer(self._buffer)]
        column = pa.Array.from_buffers(pa.binary_view(), len(at), buffers).cast(pa.binary())
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise CorruptRecordError(
                f"text that is not UTF-8 ({error})", where=self._where, position=self._base
            ) from None

    def _u32(self, at: Positions) -> Positions:
        gathered: Positions = self._bytes[at[:, None] + np.arange(4)].view(">u4").ravel().astype(np.int64)
        return gathered

    def _u64(self, at: Positions) -> Positions:
        gathered: Positions = self._bytes[at[:, None] + np.arange(8)].view(">i8").ravel().astype(np.int64)
        return gathered

    def _refuse(self, starts: Positions, wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            position = self._base + int(starts[int(np.argmax(wrong))])
            raise CorruptRecordError(what, where=self._where, position=position)


def cut(batch: pa.RecordBatch, max_rows: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of at most so many rows and about so many bytes: large rows in small batches."""
    rows = batch.num_rows
    if not rows:
        return
    by_size = max(1, int(max_bytes * rows / max(batch.nbytes, 1)))
    piece = min(max_rows, by_size)
    for at in range(0, rows, piece):
        yield batch.slice(at, piece)


def with_variant(frame: DataFrame) -> DataFrame:
    """`data` as VARIANT instead of text, parsed by Spark itself; null where the text is not JSON."""
    from pyspark.sql import functions as sf

    return frame.withColumn("data", sf.try_parse_json("data"))
