"""JSON lines out of a batch: whole columns joined into one buffer, without a loop over the rows.

The data of a message is written as it is. Only a text with newlines in it is put on one line first, which
takes away whitespace between the tokens and changes none of them. With an envelope a line is

    {"op":"update","ts":1700000000000000,"ns":"orders","data":{...}}

in which `ts` counts microseconds and `ns` is the namespace after `remap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.adaptors.base import Refusal
from penstock.adaptors.formats.contents import Codec
from penstock.adaptors.formats.reading import Form

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Writing:
    """What is made of messages that are written to a file."""

    form: Form = "jsonl"
    codec: Codec = "none"
    envelope: bool = False
    columns: Sequence[str] = ()
    delimiter: str = ","
    null_text: str = ""
    unknown_fields: Literal["error", "ignore"] = "error"


def lines_of(batch: pa.RecordBatch, *, envelope: bool) -> tuple[memoryview, pa.RecordBatch, list[Refusal]]:
    """The lines of a batch, the rows they stand for, and the messages that cannot be a line."""
    batch, refused = _on_one_line(batch)
    columns = _enveloped(batch) if envelope else [batch.column("data"), "\n"]
    return _joined(columns, batch.column("data").type), batch, refused


def _enveloped(batch: pa.RecordBatch) -> list[pa.Array | str]:
    import pyarrow as pa

    names = batch.column("ns").dictionary_encode()
    quoted = pa.array([msgspec.json.encode(ns).decode() for ns in names.dictionary.to_pylist()], pa.string())
    return [
        '{"op":"', batch.column("op"), '","ts":', batch.column("ts").cast(pa.int64()),
        ',"ns":', quoted.take(names.indices), ',"data":', batch.column("data"), "}\n",
    ]  # fmt: skip


def _joined(columns: list[pa.Array | str], kind: pa.DataType) -> memoryview:
    """The columns side by side, row after row: the values of the joined column, which lie in one piece."""
    import pyarrow as pa
    import pyarrow.compute as pc

    nothing_between = pa.scalar("", kind)
    texts = [pa.scalar(one, kind) if isinstance(one, str) else one.cast(kind) for one in columns]
    return _bytes_of(pc.binary_join_element_wise(*texts, nothing_between))


def _on_one_line(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Refusal]]:
    """The batch with no newline in any text, and the messages for which that cannot be."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    data = batch.column("data")
    if not data.null_count and not (np.frombuffer(_bytes_of(data), dtype=np.uint8) == ord("\n")).any():
        return batch, []
    affected = pc.fill_null(pc.match_substring(data, "\n"), True)
    reasons: dict[int, str] = {}
    texts: list[str | None] = []
    for row in np.flatnonzero(affected):
        try:
            texts.append(msgspec.json.format(data[row].as_py() or "", indent=-1))
        except (msgspec.DecodeError, RecursionError) as error:
            reasons[int(row)] = f"data is not JSON: {error}"
            texts.append(None)
    index = batch.schema.get_field_index("data")
    flat = pc.replace_with_mask(data, affected, pa.array(texts, data.type))
    return without(batch.set_column(index, batch.schema.field(index), flat), reasons)


def without(batch: pa.RecordBatch, reasons: dict[int, str]) -> tuple[pa.RecordBatch, list[Refusal]]:
    """Take out the messages that have one of these rows; they are refused as a whole, once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not reasons:
        return batch, []
    offsets, origins = batch.column("offset"), batch.column("origin")
    refused: dict[int, Refusal] = {}
    for row, reason in reasons.items():
        offset = offsets[row].as_py()
        refused.setdefault(offset, Refusal(offset, origins[row].as_py(), reason, node=""))
    gone = pc.is_in(offsets, pa.array(list(refused), offsets.type))
    return batch.filter(pc.invert(gone)), list(refused.values())


def _bytes_of(column: pa.Array) -> memoryview:
    """The values of a column of text, which lie one behind the other."""
    import numpy as np
    import pyarrow as pa

    _, ends, values = column.buffers()
    if not len(column) or values is None:
        return memoryview(b"")
    kind = np.int64 if pa.types.is_large_string(column.type) else np.int32
    bounds = np.frombuffer(ends, dtype=kind)
    return memoryview(values)[bounds[column.offset] : bounds[column.offset + len(column)]]
