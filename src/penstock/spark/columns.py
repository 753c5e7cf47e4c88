"""Log bytes to Arrow columns, a buffer at a time.

The schema of a message in Spark is `offset, ts, mode, op, ns, key, old_key, data`. Only the walk from record to
record, where there is one, is a loop over rows; every field is gathered for all records at once. Numbers come through
numpy views of the buffer that begin at every byte, of which the wanted ones are taken. Texts are Arrow *views* into the
buffer (16 bytes each: length, then the text itself up to 12 bytes, or its prefix and place), which Arrow copies into an
ordinary column in one go (`log.slices`). So nothing that is returned refers to the buffer, and a caller may fill it
anew.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.base.chained import MARK, alike
from penstock.base.disk import Buffer
from penstock.log import record as rec
from penstock.log.message import MODE_WORDS, OP_WORDS
from penstock.log.record import (
    CONTROL,
    MAX_SIZE,
    MODE_MASK,
    NEWER,
    OP_MASK,
    OP_SHIFT,
    PREFIX,
    WITH_HEADER,
    CorruptRecordError,
    Record,
)
from penstock.log.slices import Texts
from penstock.log.units import Mark, mark_at

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
        ("old_key", pa.string()),
        ("data", pa.string()),
    ]
)
COLUMNS = tuple(SCHEMA.names)

_SIZE = struct.Struct(">8xI")
_SIZE_AT, _TS_AT = 8, 12
_WALK, _LONG_WALK = 1 << 10, 128 << 10
"""Bytes that are walked over before records are searched for: few where that has brought many."""
_SEARCH = 64 << 10
"""Bytes of the first search; one that has found records up to its end is followed by a longer one."""
_LONG = 512
"""Bytes of a record from which on a step is cheaper than to search so many."""

_PREFIX = np.dtype([("offset", ">i8"), ("size", ">u4"), ("ts", ">i8"), ("attributes", "u1"), ("key", ">u4")])
"""A record up to the length of its namespace."""


def decode(buffer: Buffer, where: str, base: int = 0) -> tuple[pa.RecordBatch, int]:
    """The messages in the whole records of `buffer`, and how many bytes these records take.

    Control records are left out. `where` and `base` name the journal and the buffer's place in it.
    """
    starts, consumed = record_starts(buffer, where, base)
    if not len(starts):
        return _EMPTY, consumed
    return _Fields(buffer, starts, where, base).batch(), consumed


def record_starts(buffer: Buffer, where: str, base: int = 0) -> tuple[Positions, int]:
    """Where the whole records of `buffer` begin, and where the last of them ends; `log.record.boundaries` on columns.

    Lengths chain from record to record, a walk of one step each. Records of one append have their time in common, by
    which they are found together (`base.chained`); where that brings little, the next walk is longer.
    """
    raw = np.frombuffer(buffer, np.uint8)
    texts = Texts(buffer)
    starts = array("q")
    append, unpack = starts.append, _SIZE.unpack_from
    limit = len(buffer) - PREFIX.size

    def ends(at: Positions) -> Positions:
        return at + PREFIX.size + texts.u32(at + _SIZE_AT)

    position, walk, search = 0, _WALK, _SEARCH
    while position <= limit:
        first, walked = position, len(starts)
        stop = min(position + walk, limit)
        while position <= stop:
            append(position)
            position += PREFIX.size + unpack(buffer, position)[0]
        walk = _LONG_WALK
        short = position - first <= (len(starts) - walked) * _LONG
        if short and position <= limit and _times_are_equal(raw, starts[-1], position):
            end = min(position + search, len(raw))
            found = alike(raw, position, end, PREFIX.size, _TS_AT, ends)
            starts.frombytes(found.tobytes())
            position = int(ends(found[-1:])[0])
            walk, search = (_WALK, 8 * search) if position >= end else (_LONG_WALK, _SEARCH)
    begins = np.frombuffer(starts, np.int64)
    sizes = np.diff(begins, append=position) - PREFIX.size
    wrong = (sizes < 8) | (sizes > MAX_SIZE)
    if wrong.any():
        first = int(np.argmax(wrong))
        at = base + starts[first]
        raise CorruptRecordError(f"a record of size {sizes[first]}", where=where, position=at)
    if position > len(buffer):
        return begins[:-1], starts[-1]
    return begins, position


def _times_are_equal(raw: NDArray[np.uint8], one: int, other: int) -> bool:
    one, other = one + _TS_AT, other + _TS_AT
    return bool((raw[one : one + MARK] == raw[other : other + MARK]).all())


class RecordEnds(NamedTuple):
    """The whole records of a buffer, as far as one needs them to say where a batch may end."""

    ends: Positions
    """The byte behind each of them."""
    following: Positions
    """The offset of the next message from there on."""
    marks: list[tuple[int, Mark]]
    """Those that begin a unit, by their index."""


def record_ends(buffer: Buffer, where: str, base: int, upcoming: int) -> RecordEnds:
    """Where the whole records end. `base` is the buffer's place, `upcoming` the next message's offset there."""
    starts, consumed = record_starts(buffer, where, base)
    if not len(starts):
        return RecordEnds(starts, starts, [])
    prefixes = Texts(buffer).items(starts, _PREFIX)
    control = (prefixes["attributes"] & CONTROL) != 0
    following = np.where(control, 0, prefixes["offset"].astype(np.int64) + 1)
    ends = np.append(starts[1:], consumed) + base
    suspects = np.flatnonzero(control & (prefixes["key"] == 0)).tolist()
    found = [(i, mark_at(buffer, int(starts[i]), where, base)) for i in suspects]
    marks = [(i, mark) for i, mark in found if mark is not None]
    return RecordEnds(ends, np.maximum(np.maximum.accumulate(following), upcoming), marks)


def of_records(records: Iterable[Record]) -> pa.RecordBatch:
    """Messages that are at hand as records, as the same columns."""
    batch, _ = decode(b"".join(map(rec.encode, records)), "records")
    return batch


class _Rest(msgspec.Struct, frozen=True):
    """What a row needs of the rest of its record's header."""

    old: str | None = None


_decode_rest = msgspec.json.Decoder(_Rest).decode


class _Fields:
    """The fields of the records that begin at `starts`; at least one."""

    def __init__(self, buffer: Buffer, starts: Positions, where: str, base: int) -> None:
        self._texts = Texts(buffer)
        self._where, self._base = where, base
        prefixes = self._texts.items(starts, _PREFIX)
        attributes = np.ascontiguousarray(prefixes["attributes"])
        self._refuse(starts, (attributes & NEWER) != 0, "a record of a newer format")
        messages = (attributes & CONTROL) == 0
        everything = bool(messages.all())
        self.starts = starts if everything else starts[messages]
        self.prefixes = prefixes if everything else prefixes[messages]
        self.attributes = attributes if everything else attributes[messages]

    def batch(self) -> pa.RecordBatch:
        starts, prefixes, attributes = self.starts, self.prefixes, self.attributes
        if not len(starts):
            return _EMPTY
        ns_length = prefixes["key"].astype(np.int64)
        size = prefixes["size"].astype(np.int64)
        self._refuse(starts, ns_length + 8 > size, "a key longer than its record")
        data_at = starts + 25 + ns_length
        data_length = self._texts.u32(data_at)
        self._refuse(starts, ns_length + data_length + 8 != size, "lengths that do not add up")
        ops = attributes >> OP_SHIFT & OP_MASK
        modes = attributes & MODE_MASK
        self._refuse(starts, (ops >= len(OP_WORDS)) | (modes >= len(MODE_WORDS)), "an unknown op or mode")
        key, old_key, text_at, text_length = self._headers(data_at + 4, data_length)
        return pa.RecordBatch.from_arrays(
            [
                numbers(prefixes["offset"].astype(np.int64)),
                numbers(prefixes["ts"].astype(np.int64), pa.timestamp("us", tz="UTC")),
                _MODES.take(numbers(modes, pa.uint8())),
                _OPS.take(numbers(ops, pa.uint8())),
                self._namespaces(starts + 25, ns_length),
                key,
                old_key,
                self._column(text_at, text_length),
            ],
            schema=SCHEMA,
        )

    def _namespaces(self, at: Positions, length: Positions) -> pa.Array:
        """Mostly there is one alone, which is then not looked at again for each record."""
        if length[0] and (length == length[0]).all():
            texts = self._texts.items(at, np.dtype(f"V{length[0]}")).view(np.uint8).reshape(len(at), -1)
            if (texts == texts[0]).all():
                return self._column(at[:1], length[:1]).take(numbers(np.zeros(len(at), np.uint8), pa.uint8()))
        return self._column(at, length)

    def _headers(self, at: Positions, length: Positions) -> tuple[pa.Array, pa.Array, Positions, Positions]:
        """The row keys, old ones too, and where the text proper begins: behind the header, if there is one."""
        has = np.flatnonzero(self.attributes & WITH_HEADER)
        if not len(has):
            none = pa.nulls(len(at), pa.string())
            return none, none, at, length
        self._refuse(self.starts[has], length[has] < 8, "a damaged header")
        header = 4 + self._texts.u32(at[has])
        key_length = self._texts.u32(at[has] + 4).astype(np.int32).astype(np.int64)
        wrong = (header > length[has]) | (key_length < -1) | (8 + key_length > header)
        self._refuse(self.starts[has], wrong, "a damaged header")
        text_at, text_length = at.copy(), length.copy()
        text_at[has] += header
        text_length[has] -= header
        key_at = np.zeros(len(at), dtype=np.int64)
        key_size = np.full(len(at), -1, dtype=np.int64)
        key_at[has] = at[has] + 8
        key_size[has] = key_length
        rest_at = at[has] + rec.HEADER.size + np.maximum(key_length, 0)
        old_keys = self._old_keys(has, rest_at, at[has] + header)
        return self._column(key_at, key_size), old_keys, text_at, text_length

    def _old_keys(self, has: Positions, begin: Positions, end: Positions) -> pa.Array:
        """The old keys in the rests of headers. Few have one: the last of a batch, and rows whose key has changed."""
        old: list[str | None] = [None] * len(self.starts)
        found = False
        for i in np.flatnonzero(end > begin).tolist():
            row = int(has[i])
            try:
                rest = _decode_rest(self._texts.slice(int(begin[i]), int(end[i])))
            except msgspec.DecodeError as error:
                position = self._base + int(self.starts[row])
                raise CorruptRecordError(
                    f"a damaged header ({error})", where=self._where, position=position
                ) from None
            old[row] = rest.old
            found = found or rest.old is not None
        return pa.array(old, pa.string()) if found else pa.nulls(len(old), pa.string())

    def _column(self, at: Positions, length: Positions) -> pa.Array:
        try:
            return self._texts.strings(at, length)
        except pa.ArrowInvalid as error:
            raise CorruptRecordError(
                f"text that is not UTF-8 ({error})", where=self._where, position=self._base
            ) from None

    def _refuse(self, starts: Positions, wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            position = self._base + int(starts[int(np.argmax(wrong))])
            raise CorruptRecordError(what, where=self._where, position=position)


_EMPTY = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in SCHEMA], schema=SCHEMA)


def numbers(values: NDArray[np.int64] | NDArray[np.uint8], kind: pa.DataType | None = None) -> pa.Array:
    """A column of these numbers, without a copy. `pa.array` would import pandas first, in every worker process."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind or pa.int64(), len(values), buffers)


def _words(words: Sequence[str]) -> pa.Array:
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    return Texts("".join(words).encode()).strings(np.cumsum(lengths) - lengths, lengths)


_MODES = _words(MODE_WORDS)
_OPS = _words(OP_WORDS)


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
