"""Messages that come as columns, laid out for the log without an object for each of them.

A `Packed` holds finished records (`record.py`) whose offsets are blank: the owner of the log writes those in with one
stroke of numpy, which makes them `Numbered`, and appends the bytes as they are. Whoever reads a lot at once (a file, a
table, an object) packs a few thousand rows at a time, in any process. The records are, byte for byte, those that
`encode_messages` gives for the same messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from penstock.log import record as rec
from penstock.log.message import MAX_MESSAGE_BYTES, MessageTooLargeError, Mode, NotTextError, Op

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Texts: TypeAlias = pa.Array | pa.ChunkedArray
    Numbers: TypeAlias = npt.NDArray[np.int64]

_SIZE_AT, _ATTRIBUTES_AT, _NS_AT = 8, 20, rec.PREFIX.size + rec.LENGTH.size


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Records of one namespace. `starts` are the places in `content` at which they begin."""

    ns: str
    content: bytes | bytearray
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def last_mode(self) -> Mode:
        """The mode of the last record; there must be one."""
        return Mode(self.content[int(self.starts[-1]) + _ATTRIBUTES_AT] & rec.MODE_MASK)


@dataclass(frozen=True, slots=True, eq=False)
class Numbered:
    """Packed records that have their offsets, from `first` on. There is at least one."""

    ns: str
    content: bytearray
    first: int
    count: int
    last_mode: Mode

    def __len__(self) -> int:
        return self.count


def pack(
    ns: str,
    data: Texts,
    *,
    ts: int | npt.NDArray[np.int64] | pa.Array,
    keys: Texts | None = None,
    old_keys: Texts | None = None,
    ops: Op | npt.NDArray[np.uint8] | pa.Array = Op.INSERT,
    mode: Mode = Mode.COPY,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> Packed:
    """Lay out the rows of a namespace: a message for each of `data`, in order.

    `data`, `keys` and `old_keys` are columns of text or binary; in the latter two a null stands for none. `ts` and
    `ops` are for all rows, or one for each. A row with more than `max_bytes` of data is a `MessageTooLargeError`, one
    that is no UTF-8 a `NotTextError`.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    text = _binary(ns, data)
    if text.null_count:
        raise ValueError(f"a row of namespace '{ns}' without data")
    rows, name = len(text), ns.encode()
    text_length = _lengths(text)
    _refuse_large(ns, text_length, max_bytes)
    key, rest = _optional(ns, keys, rows), _rests(ns, old_keys, rows)
    headed = pc.or_(key.is_valid(), rest.is_valid()).to_numpy(zero_copy_only=False)
    header_length = np.where(headed, rec.HEADER.size + _lengths(key) + _lengths(rest), 0)
    length = header_length + text_length
    size = 8 + len(name) + length
    _refuse_large_records(ns, size)
    attributes = mode | _operations(ops) << rec.OP_SHIFT | headed * rec.WITH_HEADER
    parts = [
        _prefixes(name, size, ts, attributes, length),
        _headers(key, headed, header_length),
        key,
        rest,
        text,
    ]
    nothing = pa.scalar(b"", pa.large_binary())
    joined = pc.binary_join_element_wise(*parts, nothing, null_handling="replace", null_replacement="")
    content = joined.buffers()[2]
    starts = np.cumsum(size + rec.PREFIX.size) - size - rec.PREFIX.size
    return Packed(ns, bytearray(content) if content is not None else bytearray(), starts)


def pack_lines(
    ns: str,
    lines: bytes,
    ends: Numbers,
    *,
    ts: int,
    mode: Mode = Mode.COPY,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> Packed:
    """Lay out lines, each a message that is inserted; the same as `pack` of their texts, in a fraction of the time.

    `lines` is known to be UTF-8 as far as it counts, which is up to the last of its newlines, whose places are `ends`.
    What all records have alike takes the place of the newline before them, for all at once; lengths are written in
    behind that.
    """
    import numpy as np

    name = ns.encode()
    alike = rec.PREFIX.pack(0, 0, ts, mode | Op.INSERT << rec.OP_SHIFT) + rec.LENGTH.pack(len(name)) + name
    front = alike + bytes(rec.LENGTH.size)
    length = np.diff(ends, prepend=-1) - 1
    size = 8 + len(name) + length
    _refuse_large(ns, length, max_bytes)
    _refuse_large_records(ns, size)
    text = bytearray(b"\n" if len(ends) else b"")
    text += memoryview(lines)[: int(ends[-1]) if len(ends) else 0]
    content = text.replace(b"\n", front)
    starts = ends - length + np.arange(len(ends)) * (len(front) - 1)
    u32 = np.ndarray((max(len(content) - 3, 0),), ">u4", content, strides=(1,))
    u32[starts + _SIZE_AT] = size
    u32[starts + len(alike)] = length
    return Packed(ns, content, starts)


def _prefixes(
    name: bytes,
    size: Numbers,
    ts: int | npt.NDArray[np.int64] | pa.Array,
    attributes: npt.NDArray[np.uint8],
    length: Numbers,
) -> pa.Array:
    """Each record up to its header or data; the offsets blank."""
    import numpy as np

    fields = [("offset", ">u8"), ("size", ">u4"), ("ts", ">i8"), ("attributes", "u1"), ("name_length", ">u4")]
    prefix = np.zeros(len(size), np.dtype([*fields, ("name", f"S{len(name)}"), ("length", ">u4")]))
    prefix["size"], prefix["ts"], prefix["attributes"] = size, _numbers(ts), attributes
    prefix["name_length"], prefix["name"], prefix["length"] = len(name), name, length
    return _slices(prefix, np.full(len(size), prefix.dtype.itemsize))


def _headers(key: pa.Array, headed: npt.NDArray[np.bool_], length: Numbers) -> pa.Array:
    """The header of each record up to its key; nothing where there is none."""
    import numpy as np

    header = np.zeros(int(headed.sum()), np.dtype([("length", ">u4"), ("key_length", ">i4")]))
    header["length"] = length[headed] - rec.LENGTH.size
    header["key_length"] = np.where(key.is_valid().to_numpy(zero_copy_only=False), _lengths(key), -1)[headed]
    return _slices(header, headed * rec.HEADER.size)


def numbered(packed: Packed, first: int, max_bytes: int) -> Numbered:
    """These records with offsets from `first` on; refuses what would not read, or is too large.

    They are written into the content itself where that can be.
    """
    import numpy as np

    content = packed.content if isinstance(packed.content, bytearray) else bytearray(packed.content)
    starts = packed.starts
    everywhere = np.frombuffer(content, np.uint8)
    u32 = np.ndarray((len(content) - 3,), ">u4", content, strides=(1,))
    _check(packed, u32)
    at = starts + _NS_AT + len(packed.ns.encode())
    length = u32[at].astype(np.int64)
    attributes = everywhere[starts + _ATTRIBUTES_AT]
    of_messages = (attributes & (rec.CONTROL | rec.NEWER)) == 0
    if not (of_messages & (at + rec.LENGTH.size + length == np.append(starts[1:], len(content)))).all():
        raise _nonsense(packed)
    headed = (attributes & rec.WITH_HEADER) != 0
    length[headed] -= rec.LENGTH.size + u32[at[headed] + rec.LENGTH.size].astype(np.int64)
    _refuse_large(packed.ns, length, max_bytes)
    u64 = np.ndarray((len(content) - 7,), ">u8", content, strides=(1,))
    u64[starts] = np.arange(first, first + len(starts), dtype=np.uint64)
    return Numbered(packed.ns, content, first, len(starts), packed.last_mode)


def _check(packed: Packed, u32: npt.NDArray[np.uint32]) -> None:
    """That the records follow each other without a gap and are of this namespace: the log takes nothing else."""
    import numpy as np

    starts, content, name = packed.starts, packed.content, packed.ns.encode()
    whole = bool(starts[0] == 0 and starts[-1] + _NS_AT + len(name) + rec.LENGTH.size <= len(content))
    if whole:
        ends = starts + rec.PREFIX.size + u32[starts + _SIZE_AT]
        whole = bool((ends == np.append(starts[1:], len(content))).all())
    if whole:
        whole = bool((u32[starts + rec.PREFIX.size] == len(name)).all())
    if not whole or content[_NS_AT : _NS_AT + len(name)] != name:
        raise _nonsense(packed)


def _nonsense(packed: Packed) -> rec.CorruptRecordError:
    return rec.CorruptRecordError("packed records that do not add up", where=packed.ns, position=0)


def _refuse_large(ns: str, length: Numbers, limit: int) -> None:
    if len(length) and length.max() > limit:
        largest = int(length[length > limit][0])
        raise _too_large(f"a message of namespace '{ns}' has {largest:,} bytes, the limit is {limit:,}")


def _refuse_large_records(ns: str, size: Numbers) -> None:
    if len(size) and size.max() > rec.MAX_SIZE:
        raise _too_large(rec.RecordTooLargeError(ns, int(size.max())).message)


def _too_large(what: str) -> MessageTooLargeError:
    return MessageTooLargeError(what, hint="leave the row or field out at the source")


def _binary(ns: str, column: Texts) -> pa.Array:
    """The bytes of a column, which must be text: readers of the log take nothing else."""
    import pyarrow as pa

    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    try:
        return whole.cast(pa.large_string()).cast(pa.large_binary())
    except pa.ArrowInvalid as error:
        raise NotTextError(ns, error) from None


def _optional(ns: str, column: Texts | None, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.nulls(rows, pa.large_binary()) if column is None else _binary(ns, column)


def _operations(ops: Op | npt.NDArray[np.uint8] | pa.Array) -> npt.NDArray[np.uint8]:
    """The numbers of operations; one that is none would set other bits, and nobody could read the log any more."""
    import numpy as np

    numbers = _numbers(ops)
    if numbers.size and not (numbers.min() >= 0 and numbers.max() <= max(Op)):
        raise ValueError(f"an operation {int(numbers.max())}; the last one is {int(max(Op))}")
    return numbers.astype(np.uint8)


def _rests(ns: str, old_keys: Texts | None, rows: int) -> pa.Array:
    """What the headers hold beside the key. Rows whose key has changed are few, so each is written by itself."""
    import pyarrow as pa

    old = _optional(ns, old_keys, rows)
    if old.null_count == rows:
        return old
    rests = [rec.encode_rest({"old": key.decode()}) if key is not None else None for key in old.to_pylist()]
    return pa.array(rests, pa.large_binary())


def _lengths(column: pa.Array) -> Numbers:
    """The length of each text; 0 where there is none."""
    import pyarrow.compute as pc

    lengths: Numbers = pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return lengths


def _numbers(given: int | npt.NDArray[np.int64] | npt.NDArray[np.uint8] | pa.Array) -> Numbers:
    import numpy as np
    import pyarrow as pa

    numbers: Numbers = np.asarray(given.to_numpy() if isinstance(given, pa.Array) else given)
    return numbers


def _slices(values: npt.NDArray[np.void], lengths: npt.NDArray[np.int64]) -> pa.Array:
    """A binary column whose values lie one behind the other in `values`."""
    import numpy as np
    import pyarrow as pa

    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)
