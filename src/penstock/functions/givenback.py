"""What a function of a DataFrame gave back, looked at before any other function or a sink sees it.

Spark holds what no message can be: a null where every message has a value, an op that is none, a namespace without a
name. A sink would leave such a row out without a word, or fail for ever. So its message is refused, by offset and
under the name of the function. A row with op `skip` is dropped, as with the other kinds of functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.base.errors import did_you_mean
from penstock.functions.steps import Refused
from penstock.log.message import OP_WORDS

if TYPE_CHECKING:
    import pyarrow as pa

_NEVER_NULL = ("data", "ts", "mode", "op", "ns")
_SKIP = "skip"


def usable(batch: pa.RecordBatch, node: str) -> tuple[pa.RecordBatch, list[Refused]]:
    """The rows that can go on, and the messages of those that cannot, which the function at `node` made so."""
    import pyarrow.compute as pc

    faults = dict(_faults(batch))
    if not faults:
        return batch, []
    offsets, origins = batch.column("offset"), batch.column("origin")
    refused: dict[int, Refused] = {}
    for row, why in sorted(faults.items()):
        offset = offsets[row].as_py()
        if why is not None:
            refused.setdefault(offset, Refused(offset, origins[row].as_py(), why, node))
    gone = [row in faults or offset in refused for row, offset in enumerate(offsets.to_pylist())]
    return batch.filter(pc.invert(gone)), list(refused.values())


def _faults(batch: pa.RecordBatch) -> Iterator[tuple[int, str | None]]:
    """Rows that cannot go on, with the reason; None for one that is dropped. The last word about a row counts."""
    import pyarrow.compute as pc

    for op in batch.column("op").unique().drop_null().to_pylist():
        if op == _SKIP or op not in OP_WORDS:
            why = None if op == _SKIP else f"the function set op to '{op}'{did_you_mean(op, OP_WORDS)}"
            yield from ((row, why) for row in _rows(pc.equal(batch.column("op"), op)))
    for row in _rows(pc.equal(batch.column("ns"), "")):
        yield row, "the function set ns to '', a name is wanted"
    for name in reversed(_NEVER_NULL):
        if batch.column(name).null_count:
            for row in _rows(pc.is_null(batch.column(name))):
                yield row, _null(name)


def _null(name: str) -> str:
    if name == "data":
        return "data is null: the text is not JSON, or a DataFrame function made it so"
    return f"the function set {name} to null"


def _rows(mask: pa.BooleanArray) -> list[int]:
    import pyarrow.compute as pc

    rows: list[int] = pc.indices_nonzero(mask).to_pylist()
    return rows
