"""A DataFrame of Spark to messages: its tasks make the text of the rows, and this process gets finished records.

Rows come as Arrow batches to `Packer`, which runs in the tasks and gives back *chunks*: records of about a megabyte,
laid out for the log. They are fetched partition by partition, one at a time, so that no more than a partition is held.
What a row cannot be is told in a chunk as well, since an error of a task would lose its words and be tried four times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.adaptors.columns.rowtext import key_texts, row_texts, schema_of
from penstock.adaptors.lake.session import Frame
from penstock.base.errors import PenstockError
from penstock.log.message import Mode
from penstock.log.packing import Packed, pack
from penstock.log.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

OP = "_penstock_op"
"""The column that says what happened to a row, by the number of its `Op`; without it, rows are inserts."""

CHUNK = 1 << 20

_COLUMNS = "content BINARY, starts BINARY, error STRING"


@dataclass(frozen=True)
class Packer:
    """What tasks do with rows of a namespace."""

    ns: str
    schema: Schema
    mode: Mode
    ts: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for rows in _cut(batch):
                try:
                    packed = self._packed(rows)
                    found = {
                        "content": [packed.content],
                        "starts": [packed.starts.tobytes()],
                        "error": [None],
                    }
                except PenstockError as error:
                    found = {"content": [b""], "starts": [b""], "error": [error.message]}
                types = pa.schema([("content", pa.binary()), ("starts", pa.binary()), ("error", pa.string())])
                yield pa.RecordBatch.from_pydict(found, schema=types)

    def _packed(self, rows: pa.RecordBatch) -> Packed:
        data = rows.drop_columns([OP]) if OP in rows.schema.names else rows
        key = self.schema.key
        more = {"ops": rows.column(OP)} if OP in rows.schema.names else {}
        keys = key_texts(data, key, self.schema) if key else None
        return pack(self.ns, row_texts(data, self.schema), ts=self.ts, keys=keys, mode=self.mode, **more)


def log_schema(frame: Frame, key: Sequence[str]) -> Schema:
    """What the log is told about the rows of a frame."""
    arrow = frame.limit(0).toArrow().schema
    arrow = arrow.remove(arrow.get_field_index(OP)) if OP in arrow.names else arrow
    return schema_of(arrow, key)


def chunks(frame: Frame, ns: str, schema: Schema, mode: Mode, skip: int = 0) -> Iterator[Packed]:
    """The rows of a frame, in the order of its partitions; without the first `skip`."""
    packer = Packer(ns, schema, mode, time.time_ns() // 1000)
    for content, starts, error in frame.mapInArrow(packer, _COLUMNS).toLocalIterator():
        if error is not None:
            raise PenstockError(error)
        packed = _packed_of(ns, bytes(content), bytes(starts))
        passed, skip = min(skip, len(packed)), max(0, skip - len(packed))
        if passed:
            packed = behind(packed, passed)
        if len(packed):
            yield packed


def behind(packed: Packed, rows: int) -> Packed:
    """Without the first rows."""
    if rows >= len(packed):
        return replace(packed, content=b"", starts=packed.starts[:0])
    begin = int(packed.starts[rows])
    return replace(packed, content=packed.content[begin:], starts=packed.starts[rows:] - begin)


def _packed_of(ns: str, content: bytes, starts: bytes) -> Packed:
    import numpy as np

    return Packed(ns, content, np.frombuffer(starts, np.int64))


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of about a megabyte."""
    at_once = max(1, batch.num_rows * CHUNK // max(batch.nbytes, 1))
    for begin in range(0, batch.num_rows, at_once):
        yield batch.slice(begin, at_once)
